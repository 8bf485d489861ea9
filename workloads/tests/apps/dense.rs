use gpuvm_workloads::apps::{AppError, Dense, DenseKind};

use crate::every_way;

#[test]
fn matrices_and_vectors_come_to_what_the_processor_computes() {
    for kind in DenseKind::ALL {
        // Rows that begin within a page.
        every_way(&Dense::new(kind, 300).unwrap());
    }
}

#[test]
fn matrices_of_nothing_are_refused() {
    assert!(matches!(Dense::new(DenseKind::Mvt, 0), Err(AppError::Input { .. })));
}
