//! Weights of edges: from files, drawn, and of edges that are written twice.

use gpuvm_workloads::graph::{DRAWN_WEIGHT_MAX, Direction, Graph, GraphSpec, LoadOptions, Weights, draw_weights};

use crate::common::{load, refusal, weighted_rows};

fn options(weights: Weights) -> LoadOptions {
    LoadOptions {
        weights,
        ..LoadOptions::default()
    }
}

fn weighted(name: &str, text: &str) -> Graph {
    load(name, text.as_bytes(), &options(Weights::FromFileOrDrawn))
        .0
        .unwrap()
}

#[test]
fn values_of_matrices_are_weights() {
    for (field, values) in [
        ("integer", ["5", "+7", "4294967295", "9"]),
        ("real", ["5.0", "0.7e1", "4294967295", "9"]),
    ] {
        let [a, b, c, d] = values;
        let entries = format!("3 3 4\n2 1 {a}\n3 2 {b}\n3 1 {c}\n1 1 {d}\n");
        let directed = weighted(
            "m",
            &format!("%%MatrixMarket matrix coordinate {field} general\n{entries}"),
        );
        let rows = [vec![], vec![(0, 5)], vec![(0, u32::MAX), (1, 7)]];
        assert_eq!(weighted_rows(&directed), rows, "{field}");
        let both = weighted(
            "m",
            &format!("%%MatrixMarket matrix coordinate {field} symmetric\n{entries}"),
        );
        let rows = [
            vec![(1, 5), (2, u32::MAX)],
            vec![(0, 5), (2, 7)],
            vec![(0, u32::MAX), (1, 7)],
        ];
        assert_eq!(weighted_rows(&both), rows, "{field}");
    }
}

#[test]
fn weights_of_lists_and_rows_are_read() {
    let rows = [vec![(1, 3), (2, 1)], vec![(0, 3)], vec![(0, 1)]];
    for (name, text) in [
        ("a.wel", "2 1 3\n3 1 1\n"),
        ("A.WEL", "# c\n2 1 3.0\n3 1 1\n3 3 0\n"),
        ("a.csv", "source,target,Weight\n2,1,3\n3,1,1\n"),
        ("a.graph", "3 2 1\n2 3 3 1\n1 3\n1 1\n"),
        ("a.metis", "3 2 011\n9 2 3 3 1\n9 1 3\n9 1 1\n"),
    ] {
        let graph = weighted(name, text);
        assert_eq!(
            (weighted_rows(&graph), graph.weights_name()),
            (rows.to_vec(), "with the file's weights"),
            "{name}"
        );
        // Where they are not asked for they are dropped.
        assert_eq!(
            load(name, text.as_bytes(), &options(Weights::None))
                .0
                .unwrap()
                .weights_name(),
            "without weights"
        );
    }
    let arcs = weighted("a.gr", "p sp 3 2\na 2 1 3\na 3 1 1\n");
    assert_eq!(weighted_rows(&arcs), [vec![], vec![(0, 3)], vec![(0, 1)]]);
    for (name, text, expected) in [
        ("a.wel", "1 2 3\n2 3 0\n", "2: invalid weight '0'"),
        ("a.wel", "1 2 0.5\n", "1: invalid weight '0.5'"),
        ("a.wel", "1 2\n", "1: an edge without its weight"),
        ("a.gr", "p sp 2 1\na 1 2 -1\n", "2: invalid weight '-1'"),
        ("a.graph", "2 1 1\n2 0\n1 0\n", "2: invalid weight '0'"),
    ] {
        let message = refusal(name, text.as_bytes(), &options(Weights::FromFileOrDrawn));
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn the_least_weight_of_duplicates_stays() {
    let text = "%%MatrixMarket matrix coordinate integer general\n3 3 5\n1 2 8\n1 2 3\n2 1 5\n3 2 4\n1 2 9\n";
    assert_eq!(
        weighted_rows(&weighted("m", text)),
        [vec![(1, 3)], vec![(0, 5)], vec![(1, 4)]]
    );
    let both = LoadOptions {
        direction: Some(Direction::Undirected),
        ..options(Weights::FromFileOrDrawn)
    };
    let both = load("m", text.as_bytes(), &both).0.unwrap();
    assert_eq!(weighted_rows(&both), [vec![(1, 3)], vec![(0, 3), (2, 4)], vec![(1, 4)]]);
}

#[test]
fn values_that_are_no_weights_are_refused_with_their_line() {
    for (field, value) in [
        ("integer", "0"),
        ("integer", "-3"),
        ("integer", "4294967296"),
        ("integer", "123456789012345678901234567890"),
        ("real", "2.5"),
        ("real", "0"),
        ("real", "-1e3"),
        ("real", "nan"),
        ("real", "inf"),
    ] {
        // A self-loop is dropped, and its value with it.
        let text =
            format!("%%MatrixMarket matrix coordinate {field} general\n2 2 3\n1 1 {value}\n2 1 1\n1 2 {value}\n");
        let message = refusal("m", text.as_bytes(), &options(Weights::FromFileOrDrawn));
        let expected = format!("5: invalid weight '{value}': expected a whole number from 1 to 4294967295;");
        assert!(message.starts_with(&expected), "{message}");
        for unasked in [Weights::None, Weights::Drawn] {
            let graph = load("m", text.as_bytes(), &options(unasked)).0.unwrap();
            assert_eq!(graph.weights().is_some(), unasked == Weights::Drawn);
        }
    }
    for kind in ["complex general", "integer skew-symmetric", "real Skew-Symmetric"] {
        let text = format!("%%MatrixMarket matrix coordinate {kind}\n2 2 0\n");
        let message = refusal("m", text.as_bytes(), &options(Weights::FromFileOrDrawn));
        assert!(message.starts_with("1: weights are positive numbers, "), "{message}");
    }
}

#[test]
fn weights_are_drawn_where_there_are_none() {
    let pattern = "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n3 2\n";
    let integer = "%%MatrixMarket matrix coordinate integer general\n3 3 2\n1 2 1000\n3 2 2000\n";
    let expected = weighted("m", pattern);
    assert_eq!(expected.weights().unwrap(), draw_weights(expected.csr(), 1).unwrap());
    assert!(
        expected
            .weights()
            .unwrap()
            .iter()
            .all(|weight| (1..=DRAWN_WEIGHT_MAX).contains(weight))
    );
    assert_eq!(
        load("m", integer.as_bytes(), &options(Weights::Drawn)).0.unwrap(),
        expected
    );
    // What stands behind an edge may be a time.
    let list = weighted("a.txt", "# Directed graph\n1 2 1000\n3 2 1000\n");
    assert_eq!(list.weights(), expected.weights());
    assert_eq!(list.weights_name(), "with drawn weights");
    let seeded = |seed| {
        let options = LoadOptions {
            seed,
            ..options(Weights::FromFileOrDrawn)
        };
        load("a.txt", b"1 2\n3 2\n2 9\n5 6\n", &options).0.unwrap()
    };
    assert_ne!(seeded(1).weights(), seeded(2).weights());
}

#[test]
fn a_generated_graph_has_the_weights_of_its_seed_on_any_number_of_cores() {
    for spec in ["kron:12", "urand:12:5"] {
        let spec: GraphSpec = spec.parse().unwrap();
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| spec.load(&options(Weights::FromFileOrDrawn), &mut |_| {}).unwrap())
        };
        let graph = on(1);
        assert_eq!(graph, on(5));
        let plain = spec.load(&LoadOptions::default(), &mut |_| {}).unwrap();
        assert_eq!((plain.csr(), plain.weights()), (graph.csr(), None));
        let rows = weighted_rows(&graph);
        for (vertex, row) in rows.iter().enumerate() {
            for &(neighbour, weight) in row {
                let back = &rows[neighbour as usize];
                let place = back.binary_search_by_key(&(vertex as u32), |edge| edge.0).unwrap();
                assert_eq!(back[place].1, weight);
            }
        }
    }
}
