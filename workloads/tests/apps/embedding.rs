use gpuvm_workloads::apps::{AppError, Embedding, EmbeddingShape};

use crate::every_way;

#[test]
fn bags_come_to_what_the_processor_computes() {
    every_way(&Embedding::new(EmbeddingShape::of_rows(2_001, 50), 1).unwrap());
    // Rows that no warp's width divides.
    let narrow = EmbeddingShape {
        rows: 5_000,
        columns: 20,
        bags: 37,
        bag_ids: 3,
    };
    every_way(&Embedding::new(narrow, 1).unwrap());
}

#[test]
fn tables_past_the_limits_are_refused() {
    let right = EmbeddingShape::of_rows(100, 10);
    for wrong in [
        EmbeddingShape { rows: 0, ..right },
        EmbeddingShape { columns: 6, ..right },
        EmbeddingShape { bags: 0, ..right },
        EmbeddingShape { bag_ids: 0, ..right },
        EmbeddingShape {
            columns: 1 << 62,
            ..right
        },
    ] {
        let refused = Embedding::new(wrong, 1);
        assert!(matches!(refused, Err(AppError::Input { .. })), "{wrong:?}");
    }
}
