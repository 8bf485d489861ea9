//! The index: what its searches find, and what they promise.

use gpuvm_workloads::vectors::{
    Clusters, Index, IndexOptions, NONE, Neighbours, Vectors, distance, nearest, read_ivecs, recall, write_ivecs,
};

const SOME: Clusters = Clusters {
    count: 10_000,
    dim: 48,
    clusters: 50,
};

#[test]
fn wider_beams_find_more_and_look_at_more() {
    let (base, queries) = (SOME.vectors(1).unwrap(), SOME.queries(300, 1).unwrap());
    let truth = nearest(&base, &queries, 10).unwrap();
    let index = Index::build(&base, &IndexOptions::default()).unwrap();
    let searches = [10, 32, 100].map(|width| {
        let found = index.search(&base, &queries, 10, width).unwrap();
        (
            recall(&base, &queries, &truth, &found.neighbours, 10).unwrap(),
            found.work,
        )
    });
    let [narrow, middle, wide] = searches;
    assert!(narrow.0 >= 0.85 && middle.0 >= 0.95 && wide.0 >= 0.99, "{searches:?}");
    assert!(narrow.0 < middle.0 && middle.0 < wide.0, "{searches:?}");
    assert!(narrow.1.distances < middle.1.distances && middle.1.expansions < wide.1.expansions);
    // A search looks at a small share of all vectors.
    assert!(middle.1.distances < 300 * 10_000 / 12, "{searches:?}");
}

#[test]
fn an_index_does_not_depend_on_the_number_of_cores() {
    let clusters = Clusters { count: 3000, ..SOME };
    let base = clusters.vectors(1).unwrap();
    let build = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Index::build(&base, &IndexOptions::default()).unwrap())
    };
    let index = build(1);
    assert!(index == build(5));
    let other = IndexOptions {
        seed: 2,
        ..IndexOptions::default()
    };
    assert!(index != Index::build(&base, &other).unwrap());
}

/// The search as it is described, without a set of visited vectors: all candidates are looked at again and again.
fn forgetful(index: &Index, base: &Vectors, query: &[f32], k: usize, width: usize) -> Vec<u32> {
    let mut beam: Vec<(f32, u32)> = Vec::new();
    let mut followed = vec![false; base.count()];
    let offer = |beam: &mut Vec<(f32, u32)>, ids: &[u32]| {
        let ids = ids.iter().filter(|id| **id != NONE);
        beam.extend(ids.map(|id| (distance(query, base.row(*id)), *id)));
        beam.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        beam.dedup();
        beam.truncate(width);
    };
    offer(&mut beam, index.entries());
    while let Some((_, id)) = beam.iter().copied().find(|(_, id)| !followed[*id as usize]) {
        followed[id as usize] = true;
        offer(&mut beam, index.links().row(id));
    }
    beam[..k].iter().map(|(_, id)| *id).collect()
}

#[test]
fn a_forgetful_search_finds_the_same() {
    let clusters = Clusters { count: 3000, ..SOME };
    let (base, queries) = (clusters.vectors(2).unwrap(), clusters.queries(50, 2).unwrap());
    let index = Index::build(
        &base,
        &IndexOptions {
            degree: 12,
            ..IndexOptions::default()
        },
    )
    .unwrap();
    for width in [7, 20, 65] {
        let found = index.search(&base, &queries, 7, width).unwrap().neighbours;
        for (query, found) in queries.rows().zip(found.rows()) {
            assert_eq!(forgetful(&index, &base, query, 7, width), found, "{width}");
        }
    }
}

#[test]
fn clusters_far_from_each_other_are_all_reached() {
    // Islands: the way from one to the next is longer than every way within one.
    let clusters = Clusters {
        count: 4000,
        dim: 16,
        clusters: 1,
    };
    let islands = |vectors: Vectors| {
        let mut values = vectors.into_values();
        for (place, vector) in values.chunks_exact_mut(16).enumerate() {
            vector[place % 16] += 300.0 * (1 + place / 16 % 3) as f32;
        }
        Vectors::new(16, values).unwrap()
    };
    let (base, queries) = (
        islands(clusters.vectors(1).unwrap()),
        islands(clusters.queries(300, 1).unwrap()),
    );
    let truth = nearest(&base, &queries, 10).unwrap();
    let index = Index::build(&base, &IndexOptions::default()).unwrap();
    let found = index.search(&base, &queries, 10, 32).unwrap().neighbours;
    let share = recall(&base, &queries, &truth, &found, 10).unwrap();
    assert!(share >= 0.95, "{share}");
}

#[test]
fn links_are_of_other_vectors_and_fill_their_rows_from_the_left() {
    let clusters = Clusters { count: 2000, ..SOME };
    let base = clusters.vectors(1).unwrap();
    let index = Index::build(
        &base,
        &IndexOptions {
            degree: 16,
            ..IndexOptions::default()
        },
    )
    .unwrap();
    assert_eq!(
        (index.links().count(), index.links().width(), index.entries().len()),
        (2000, 16, 64)
    );
    for (id, row) in (0..).zip(index.links().rows()) {
        let links = row.iter().take_while(|link| **link != NONE).count();
        assert!(links >= 1 && row[links..].iter().all(|link| *link == NONE));
        let mut sorted = row[..links].to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() == links && !sorted.contains(&id), "{id}: {row:?}");
    }
}

#[test]
fn small_and_equal_sets_are_searched() {
    for count in 1..8_u32 {
        let base = Clusters { count, ..SOME }.vectors(1).unwrap();
        let index = Index::build(&base, &IndexOptions::default()).unwrap();
        let found = index.search(&base, &base, count as usize, 1).unwrap().neighbours;
        assert_eq!(found, nearest(&base, &base, count as usize).unwrap());
    }
    let equal = Vectors::new(3, vec![1.0; 900]).unwrap();
    let index = Index::build(&equal, &IndexOptions::default()).unwrap();
    assert_eq!(index.entries().len(), 1);
    let found = index.search(&equal, &equal, 1, 8).unwrap().neighbours;
    assert!(found.values().iter().all(|id| (*id as usize) < equal.count()));
}

#[test]
fn an_index_comes_back_from_a_file() {
    let base = Clusters { count: 500, ..SOME }.vectors(1).unwrap();
    let index = Index::build(&base, &IndexOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.ivecs");
    write_ivecs(index.links(), std::fs::File::create(&path).unwrap()).unwrap();
    let links = read_ivecs(&path).unwrap();
    assert!(Index::from_parts(links, index.entries().to_vec()).unwrap() == index);
}

#[test]
fn links_and_options_that_make_no_index_are_refused() {
    let links = |ids: [u32; 4]| Neighbours::new(2, ids.to_vec()).unwrap();
    let refused = |links, entries: &[u32]| Index::from_parts(links, entries.to_vec()).unwrap_err().to_string();
    let expected = "cannot build an index: vector 1 of 2 has a link to vector 2";
    assert_eq!(refused(links([1, NONE, 0, 2]), &[0]), expected);
    assert_eq!(
        refused(links([1, 0, 0, 1]), &[]),
        "cannot build an index: there is no entry; give at least one"
    );
    assert_eq!(
        refused(links([1, 0, 0, 1]), &[0, 2]),
        "cannot build an index: entry 2 is none of the 2 vectors"
    );
    let base = Vectors::new(1, vec![0.0; 5]).unwrap();
    let default = IndexOptions::default();
    for (options, expected) in [
        (
            IndexOptions { degree: 1, ..default },
            "the degree 1 is not from 2 to 65536",
        ),
        (
            IndexOptions { width: 0, ..default },
            "the width 0 is not from 1 to 65536",
        ),
        (
            IndexOptions { entries: 0, ..default },
            "0 entries are not from 1 to 65536",
        ),
        (IndexOptions { alpha: 0.9, ..default }, "alpha 0.9 is not from 1 to 100"),
        (
            IndexOptions {
                alpha: f32::NAN,
                ..default
            },
            "alpha NaN is not from 1 to 100",
        ),
    ] {
        let error = Index::build(&base, &options).unwrap_err().to_string();
        assert_eq!(error, format!("cannot build an index: {expected}"));
    }
    let index = Index::build(&base, &default).unwrap();
    let other = Vectors::new(1, vec![0.0; 6]).unwrap();
    let error = index.search(&other, &base, 1, 4).unwrap_err().to_string();
    assert!(error.ends_with("it is of 5 vectors, 6 were given to search"), "{error}");
    assert!(
        index
            .search(&base, &Vectors::new(2, vec![0.0; 2]).unwrap(), 1, 4)
            .is_err()
    );
    assert!(index.search(&base, &base, 6, 4).is_err());
}
