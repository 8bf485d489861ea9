//! Random graphs written as files, in every format, and read back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpuvm_workloads::graph::{Direction, Graph, LoadOptions, reference};
use proptest::prelude::*;

use crate::common::{self, VERIFIED, csr_file, gap_file, weighted_rows};

fn load(name: &str, text: &str, gzip: bool, direction: Direction) -> Graph {
    let options = LoadOptions {
        direction: Some(direction),
        ..LoadOptions::default()
    };
    let text = text.as_bytes();
    match gzip {
        true => common::load(name, &common::gzip(text), &options).0.unwrap(),
        false => common::load(name, text, &options).0.unwrap(),
    }
}

/// The neighbours of every vertex, kept the simple way.
fn model(vertices: usize, edges: &[(usize, usize)], direction: Direction) -> Vec<BTreeSet<u32>> {
    let mut rows = vec![BTreeSet::new(); vertices];
    for &(u, v) in edges.iter().filter(|(u, v)| u != v) {
        rows[u].insert(v as u32);
        if direction == Direction::Undirected {
            rows[v].insert(u as u32);
        }
    }
    rows
}

fn agree(graph: &Graph, rows: &[BTreeSet<u32>]) {
    assert_eq!(graph.csr().vertices() as usize, rows.len());
    for (vertex, row) in rows.iter().enumerate() {
        let row: Vec<u32> = row.iter().copied().collect();
        assert_eq!(graph.csr().row(vertex as u32), row, "row {vertex}");
    }
    assert_eq!(
        graph.csr().edges(),
        rows.iter().map(|row| row.len() as u64).sum::<u64>()
    );
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Directed), Just(Direction::Undirected)]
}

/// Rows with the least weight of each edge, kept the simple way.
fn weighted_model(vertices: usize, edges: &[(usize, usize, u32)], direction: Direction) -> Vec<BTreeMap<u32, u32>> {
    let mut rows = vec![BTreeMap::new(); vertices];
    let mut put = |u: usize, v: usize, weight: u32| {
        let least: &mut u32 = rows[u].entry(v as u32).or_insert(weight);
        *least = weight.min(*least);
    };
    for &(u, v, weight) in edges.iter().filter(|(u, v, _)| u != v) {
        put(u, v, weight);
        if direction == Direction::Undirected {
            put(v, u, weight);
        }
    }
    rows
}

/// Distances by relaxing every edge until nothing changes.
fn relax(rows: &[BTreeSet<u32>], source: usize) -> Vec<i32> {
    let mut distances = vec![-1; rows.len()];
    distances[source] = 0;
    for level in 0..rows.len() as i32 {
        for (vertex, row) in rows.iter().enumerate() {
            for &neighbour in row {
                if distances[vertex] == level && distances[neighbour as usize] < 0 {
                    distances[neighbour as usize] = level + 1;
                }
            }
        }
    }
    distances
}

proptest! {
    #[test]
    fn matrices_come_back(
        size in 1_usize..60,
        pairs in prop::collection::vec((0_usize..60, 0_usize..60), 0..200),
        field in 0_usize..4,
        gzip: bool,
        direction in direction(),
    ) {
        let edges: Vec<_> = pairs.iter().map(|(u, v)| (u % size, v % size)).collect();
        let name = ["pattern", "real", "integer", "complex"][field];
        let mut text = format!("%%MatrixMarket matrix coordinate {name} general\n");
        writeln!(text, "% random\n{size} {size} {}", edges.len()).unwrap();
        for (index, (u, v)) in edges.iter().enumerate() {
            let value = ["", "-1.25e-3", "7", "0.5 -2"][field];
            let end = if index % 3 == 0 { "\r\n" } else { "\n" };
            write!(text, "{} {} {value}{end}", u + 1, v + 1).unwrap();
        }
        let graph = load("m.mtx", &text, gzip, direction);
        agree(&graph, &model(size, &edges, direction));
        let rows = model(size, &edges, direction);
        let source = size / 2;
        let distances = reference::bfs(graph.csr(), source as u32).unwrap();
        prop_assert_eq!(distances, relax(&rows, source));
    }

    #[test]
    fn edge_lists_come_back(
        edges in prop::collection::vec((any::<u64>(), any::<u64>()), 1..100),
        bits in 1_u32..=64,
        gzip: bool,
        direction in direction(),
    ) {
        let cut = |id: u64| id >> (64 - bits);
        let edges: Vec<_> = edges.into_iter().map(|(u, v)| (cut(u), cut(v))).collect();
        let mut text = String::from("# random\n");
        for (u, v) in &edges {
            writeln!(text, "{u}\t{v}").unwrap();
        }
        let graph = load("edges.txt", &text, gzip, direction);
        let ids: BTreeSet<u64> = edges.iter().flat_map(|(u, v)| [*u, *v]).collect();
        let places: BTreeMap<u64, usize> =
            ids.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let numbered: Vec<_> = edges.iter().map(|(u, v)| (places[u], places[v])).collect();
        agree(&graph, &model(ids.len(), &numbered, direction));
        for (id, place) in places {
            prop_assert_eq!(graph.vertex_of(id), Some(place as u32));
            prop_assert_eq!(graph.id_of(place as u32), Some(id));
        }
    }

    /// From a matrix through GAP's formats and ours, each of which is written from what the one before it gave.
    #[test]
    fn weighted_graphs_come_back_from_every_format(
        size in 1_usize..60,
        entries in prop::collection::vec((0_usize..60, 0_usize..60, 1_u32..=255), 0..200),
        direction in direction(),
    ) {
        let edges: Vec<_> = entries.iter().map(|(u, v, weight)| (u % size, v % size, *weight)).collect();
        let mut text = format!("%%MatrixMarket matrix coordinate integer general\n{size} {size} {}\n", edges.len());
        for (u, v, weight) in &edges {
            writeln!(text, "{} {} {weight}", u + 1, v + 1).unwrap();
        }
        let options = LoadOptions { direction: Some(direction), ..VERIFIED };
        let matrix = common::load("m.mtx", text.as_bytes(), &options).0.unwrap();
        let rows: Vec<Vec<(u32, u32)>> = weighted_model(size, &edges, direction)
            .into_iter()
            .map(|row| row.into_iter().collect())
            .collect();
        prop_assert_eq!(&weighted_rows(&matrix), &rows);
        let mapped = common::load("g.gcsr", &csr_file(&matrix), &VERIFIED).0.unwrap();
        prop_assert_eq!(&mapped, &matrix);
        let serialized = gap_file(&weighted_rows(&mapped), direction == Direction::Directed, true);
        let read = common::load("g.wsg", &serialized, &VERIFIED).0.unwrap();
        prop_assert_eq!((&weighted_rows(&read), read.direction()), (&rows, direction));
        let again = common::load("g.gcsr", &csr_file(&read), &VERIFIED).0.unwrap();
        prop_assert_eq!(again, read);
    }

    /// Rows in any order, with self-loops and duplicates, and ids with gaps.
    #[test]
    fn rows_in_disorder_are_read_as_the_graph_that_they_mean(
        size in 1_usize..40,
        entries in prop::collection::vec((0_usize..40, 0_usize..40, 1_u32..=9), 0..150),
        direction in direction(),
        weighted: bool,
    ) {
        let edges: Vec<_> = entries.iter().map(|(u, v, weight)| (u % size, v % size, *weight)).collect();
        let mut rows = vec![Vec::new(); size];
        for &(u, v, weight) in &edges {
            rows[u].push((v as u32, weight));
        }
        let name = if weighted { "g.wsg" } else { "g.sg" };
        let options = LoadOptions { direction: Some(direction), ..LoadOptions::default() };
        let bytes = gap_file(&rows, true, weighted);
        let plain: Vec<_> = edges.iter().map(|(u, v, _)| (*u, *v)).collect();
        agree(&common::load(name, &bytes, &options).0.unwrap(), &model(size, &plain, direction));
        if weighted {
            let graph = common::load(name, &bytes, &LoadOptions { direction: Some(direction), ..VERIFIED }).0.unwrap();
            let model = weighted_model(size, &edges, direction);
            let rows: Vec<BTreeMap<u32, u32>> = weighted_rows(&graph).into_iter().map(|row| row.into_iter().collect()).collect();
            prop_assert_eq!(rows, model);
        }
    }

    #[test]
    fn ids_come_back(edges in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50), direction in direction()) {
        let text: String = edges.iter().map(|(u, v)| format!("{u} {v}\n")).collect();
        let graph = load("a.txt", &text, false, direction);
        let mapped = common::load("g.gcsr", &csr_file(&graph), &LoadOptions::default()).0.unwrap();
        prop_assert_eq!(&mapped, &graph);
        for (u, _) in edges {
            prop_assert_eq!(mapped.vertex_of(u), graph.vertex_of(u));
        }
    }
}
