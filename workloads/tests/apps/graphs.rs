//! Applications over graphs: generated ones, and one whose rows are longer than pieces.

use std::fmt::Write;
use std::sync::Arc;

use gpuvm_workloads::apps::{
    AppError, Bfs, BfsParameters, Components, PageRank, PageRankParameters, Parameters, Sssp, SsspParameters, Triangles,
};
use gpuvm_workloads::graph::{Direction, Graph, GraphSpec, LoadOptions, SourceError, Weights};

use crate::every_way;

const THREE: PageRankParameters = PageRankParameters {
    iterations: 3,
    damping: 0.85,
    tolerance: 0.0,
};

fn paths(source: Option<u64>, step: Option<u32>) -> SsspParameters {
    SsspParameters { source, step }
}

fn load(spec: &str, direction: Option<Direction>, weights: Weights) -> Arc<Graph> {
    let options = LoadOptions {
        direction,
        weights,
        ..LoadOptions::default()
    };
    let graph = spec.parse::<GraphSpec>().unwrap().load(&options, &mut |_| {});
    Arc::new(graph.unwrap())
}

/// Two hubs with rows of thousands of edges, a triangle and a path apart from them, and vertices without edges.
fn hubs() -> Arc<Graph> {
    let mut edges = String::from("%%MatrixMarket matrix coordinate pattern symmetric\n");
    let mut pairs: Vec<(u32, u32)> = (2..2500).map(|v| (v, 1)).collect();
    // The last vertex: all of its row is lower.
    pairs.extend((1..3500).map(|v| (5000, v)));
    pairs.extend([(4102, 4101), (4103, 4102), (4103, 4101)]);
    pairs.extend((4200..4230).map(|v| (v + 1, v)));
    writeln!(edges, "5000 5000 {}", pairs.len()).unwrap();
    pairs.iter().for_each(|(u, v)| writeln!(edges, "{u} {v}").unwrap());
    let file = tempfile::Builder::new().suffix(".mtx").tempfile().unwrap();
    std::fs::write(file.path(), edges).unwrap();
    load(file.path().to_str().unwrap(), None, Weights::Drawn)
}

fn undirected() -> [Arc<Graph>; 3] {
    let drawn = |spec| load(spec, None, Weights::Drawn);
    [drawn("kron:9"), drawn("urand:9:4"), hubs()]
}

#[test]
fn shortest_paths_are_the_processors() {
    for graph in undirected() {
        every_way(&Sssp::new(&graph, &SsspParameters::default()).unwrap());
    }
    let directed = load("urand:8", Some(Direction::Directed), Weights::Drawn);
    every_way(&Sssp::new(&directed, &paths(Some(3), Some(1000))).unwrap());
}

#[test]
fn shortest_paths_without_weights_a_source_or_a_step_are_refused() {
    let graph = load("urand:4", None, Weights::Drawn);
    let plain = load("urand:4", None, Weights::None);
    let refused = Sssp::new(&plain, &SsspParameters::default());
    assert!(matches!(refused, Err(AppError::Input { .. })));
    let refused = Sssp::new(&graph, &paths(Some(16), None));
    assert!(matches!(
        refused,
        Err(AppError::Source(SourceError::NoSuchVertex { id: 16, last: 15, .. }))
    ));
    assert!(SsspParameters::default().set("step", "0").is_err());
}

#[test]
fn distances_are_the_processors() {
    for graph in undirected() {
        every_way(&Bfs::new(&graph, &BfsParameters { source: Some(3) }).unwrap());
    }
    // Matrix Market counts from 1.
    let refused = Bfs::new(&hubs(), &BfsParameters { source: Some(5001) });
    assert!(matches!(refused, Err(AppError::Source(_))));
}

#[test]
fn components_are_the_processors() {
    for graph in undirected() {
        every_way(&Components::new(&graph).unwrap());
    }
    let directed = load("urand:9:1", Some(Direction::Directed), Weights::None);
    every_way(&Components::new(&directed).unwrap());
}

#[test]
fn ranks_are_the_processors() {
    for graph in undirected() {
        every_way(&PageRank::new(&graph, &THREE).unwrap());
        let until = PageRankParameters {
            iterations: 100,
            damping: 0.6,
            tolerance: 0.01,
        };
        every_way(&PageRank::new(&graph, &until).unwrap());
    }
}

#[test]
fn triangles_are_the_processors() {
    for graph in undirected() {
        every_way(&Triangles::new(&graph).unwrap());
    }
}

#[test]
fn directed_graphs_and_those_without_edges_are_refused() {
    let directed = load("urand:4", Some(Direction::Directed), Weights::None);
    assert!(matches!(PageRank::new(&directed, &THREE), Err(AppError::Input { .. })));
    assert!(matches!(Triangles::new(&directed), Err(AppError::Input { .. })));
    let file = tempfile::Builder::new().suffix(".mtx").tempfile().unwrap();
    let empty = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 0\n";
    std::fs::write(file.path(), empty).unwrap();
    let empty = load(file.path().to_str().unwrap(), None, Weights::None);
    assert!(matches!(Components::new(&empty), Err(AppError::Input { .. })));
    assert!(matches!(PageRank::new(&empty, &THREE), Err(AppError::Input { .. })));
}
