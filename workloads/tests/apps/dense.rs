use gpuvm_workloads::apps::{AppError, Dense, DenseKind, GesummvParameters};

use crate::every_way;

#[test]
fn matrices_and_vectors_come_to_what_the_processor_computes() {
    let factors = GesummvParameters { alpha: 0.3, beta: -1.5 };
    for kind in DenseKind::ALL {
        // Rows that begin within a page.
        every_way(&Dense::new(kind, 300, &factors).unwrap());
    }
}

#[test]
fn matrices_of_nothing_are_refused() {
    assert!(matches!(
        Dense::new(DenseKind::Mvt, 0, &GesummvParameters::default()),
        Err(AppError::Input { .. })
    ));
}
