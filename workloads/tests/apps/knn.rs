use gpuvm_workloads::apps::{AppError, Knn, KnnParameters, catalogue};
use gpuvm_workloads::vectors::{Clusters, IndexOptions, VectorError, Vectors, write_fvecs};

use crate::every_way;

const SOME: Clusters = Clusters {
    count: 2000,
    dim: 64,
    clusters: 8,
};

fn knn(clusters: Clusters, queries: u32, options: &IndexOptions) -> Knn {
    let (base, queries) = (clusters.vectors(1).unwrap(), clusters.queries(queries, 1).unwrap());
    Knn::new(base, queries, options, &KnnParameters::default()).unwrap()
}

#[test]
fn neighbours_are_those_that_the_processor_finds() {
    every_way(&knn(SOME, 6, &IndexOptions::default()));
    // Rows that no warp's width divides, of vectors and of links.
    let odd = Clusters { dim: 37, ..SOME };
    let options = IndexOptions {
        degree: 35,
        entries: 5,
        ..IndexOptions::default()
    };
    every_way(&knn(odd, 3, &options));
}

#[test]
fn fewer_vectors_than_the_beam_are_all_found() {
    let few = Clusters { count: 11, ..SOME };
    every_way(&knn(few, 3, &IndexOptions::default()));
}

#[test]
fn files_give_vectors_and_queries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("some.fvecs");
    let wrote = |vectors: &Vectors| write_fvecs(vectors, std::fs::File::create(&path).unwrap()).unwrap();
    let entry = catalogue::find("knn").unwrap();
    let made = || entry.make(path.to_str().unwrap()).map(|app| app.input());
    wrote(&SOME.vectors(1).unwrap());
    assert_eq!(
        made().unwrap(),
        "1900 vectors of 64 floats with 32 links each, 100 queries for 10"
    );
    wrote(&Vectors::new(2, vec![1.0, 2.0]).unwrap());
    assert!(matches!(made(), Err(AppError::Input { .. })));
    std::fs::write(&path, [3, 0, 0]).unwrap();
    assert!(matches!(made(), Err(AppError::Vectors(_))));
}

#[test]
fn vectors_that_cannot_be_searched_are_refused() {
    let refused = |input: &str| catalogue::find("knn").unwrap().make(input).map(|app| app.input());
    assert!(matches!(
        refused("clusters:9:4"),
        Err(AppError::Vectors(VectorError::Neighbours { k: 10, count: 9 }))
    ));
    assert!(matches!(refused("clusters:many"), Err(AppError::Spec(_))));
    // Both would be filled up to four.
    let (base, queries) = (Clusters { dim: 3, ..SOME }, Clusters { dim: 2, ..SOME });
    let (base, queries) = (base.vectors(1).unwrap(), queries.queries(2, 1).unwrap());
    let wrong = Knn::new(base, queries, &IndexOptions::default(), &KnnParameters::default()).err();
    assert!(
        matches!(wrong, Some(AppError::Vectors(VectorError::Dim { .. }))),
        "{wrong:?}"
    );
}
