//! The paged search against the search on the CPU: graphs of all shapes, frames for all of it and for next to nothing.

use gpuvm::{Mlx5, Queues, Rxe, SimulatedGpu, Soft, Transport, Vm, VmBuilder};
use gpuvm_workloads::bfs::{self, BfsError, Options, SearchShape};
use gpuvm_workloads::graph::{Csr, Direction, GraphSpec, LoadOptions, reference};

/// Two queue pairs so deep over the transport that the environment asks for.
fn machine(depth: u32) -> VmBuilder {
    let queues = Queues::new().pairs(2).depth(depth);
    let transport = match std::env::var("GPUVM_TEST_RDMA") {
        Ok(device) => Transport::from(Rxe::new().device(device).queues(queues)),
        Err(_) => Soft::new().queues(queues).into(),
    };
    Vm::builder().gpu(SimulatedGpu::new()).transport(transport)
}

fn options(frames: u64) -> Options {
    Options {
        machine: machine(64),
        frame_bytes: frames * 4096,
        page_bytes: 4096,
        placement: gpuvm::Placement::Fetch,
        shape: None,
        profile: None,
        file_cache: None,
    }
}

/// Searches in both shapes; what the one that suits the GPU found.
fn check(csr: &Csr, source: u32, options: &Options) -> bfs::Outcome {
    let of = |shape| Options {
        shape: Some(shape),
        ..options.clone()
    };
    check_one(csr, source, &of(SearchShape::WordAWarp));
    check_one(csr, source, &of(SearchShape::WordALane))
}

/// Searches and compares distances, levels and counts.
fn check_one(csr: &Csr, source: u32, options: &Options) -> bfs::Outcome {
    let mut levels = Vec::new();
    let outcome = bfs::run(csr, source, options, &mut |level| levels.push(level)).unwrap();
    let expected = reference::bfs(csr, source).unwrap();
    reference::compare(&expected, &outcome.distances).unwrap();
    let reached = (0..csr.vertices()).filter(|v| expected[*v as usize] >= 0);
    assert_eq!(outcome.reached, reached.clone().count() as u64);
    assert_eq!(outcome.edges, reached.map(|v| csr.row(v).len() as u64).sum::<u64>());
    assert_eq!(outcome.levels as i32, expected.iter().max().unwrap() + 1);
    assert!(outcome.accesses >= outcome.edges + outcome.reached - 1);
    assert!(outcome.stats.missed_lanes <= outcome.accesses);
    // One report a level, each with the vertices up to it.
    assert_eq!(levels.len(), outcome.levels as usize);
    for (index, level) in levels.iter().enumerate() {
        let so_far = expected.iter().filter(|d| (0..=index as i32).contains(*d)).count();
        assert_eq!((level.level, level.reached), (index as u32, so_far as u64));
    }
    outcome
}

#[test]
fn generated_graphs_at_a_quarter_and_whole() {
    for spec in ["kron:13", "urand:13:4"] {
        let graph = spec
            .parse::<GraphSpec>()
            .unwrap()
            .load(&LoadOptions::default(), &mut |_| {})
            .unwrap();
        let csr = graph.csr();
        let pages = bfs::paged_bytes(csr, 4096) / 4096;
        let source = csr.first_connected().unwrap();
        let whole = check(csr, source, &options(pages * 2));
        assert_eq!(whole.stats.evictions, 0);
        let quarter = check(csr, source, &options(pages / 4));
        assert!(quarter.stats.evictions >= pages / 2, "{:?}", quarter.stats);
        assert!(quarter.stats.pages_fetched > whole.stats.pages_fetched);
    }
}

#[test]
fn long_rows_are_shared_by_a_warp() {
    // A star of one row of 20,000 and a second hub in its middle.
    let mut edges: Vec<(u32, u32)> = (1..20_000).map(|v| (0, v)).collect();
    edges.extend((10_000..30_000).map(|v| (10_000, v)));
    let csr = Csr::from_edges(40_000, &edges, Direction::Undirected).unwrap();
    for source in [0, 5, 25_000, 39_999] {
        check(&csr, source, &options(16));
    }
}

#[test]
fn a_long_chain_has_many_levels() {
    let edges: Vec<(u32, u32)> = (0..300).map(|v| (v, v + 1)).collect();
    let csr = Csr::from_edges(400, &edges, Direction::Directed).unwrap();
    assert_eq!(check(&csr, 0, &options(3)).levels, 301);
    assert_eq!(check(&csr, 299, &options(3)).levels, 2);
}

#[test]
fn one_frame_is_enough() {
    let graph = "urand:8:3"
        .parse::<GraphSpec>()
        .unwrap()
        .load(&LoadOptions::default(), &mut |_| {})
        .unwrap();
    let source = graph.csr().first_connected().unwrap();
    let outcome = check(graph.csr(), source, &options(1));
    assert!(outcome.stats.evictions > 10, "{:?}", outcome.stats);
}

#[test]
fn small_graphs_and_no_edges() {
    for vertices in [1, 2, 31, 32, 33, 1023, 1025] {
        let csr = Csr::from_edges(vertices, &[], Direction::Directed).unwrap();
        let outcome = check(&csr, vertices - 1, &options(4));
        assert_eq!((outcome.levels, outcome.reached, outcome.edges), (1, 1, 0));
        let edges: Vec<(u32, u32)> = (1..vertices).map(|v| (v - 1, v)).collect();
        let csr = Csr::from_edges(vertices.min(33), &edges[..edges.len().min(32)], Direction::Undirected).unwrap();
        check(&csr, 0, &options(4));
    }
}

#[test]
fn bad_settings_are_errors() {
    let csr = Csr::from_edges(2, &[(0, 1)], Direction::Directed).unwrap();
    let error = bfs::run(&csr, 2, &options(4), &mut |_| {}).unwrap_err();
    assert!(matches!(error, BfsError::Source(_)));
    for bad in [
        Options {
            frame_bytes: 100,
            ..options(4)
        },
        Options {
            page_bytes: 5000,
            ..options(4)
        },
        Options {
            machine: machine(3),
            ..options(4)
        },
        Options {
            machine: machine(64).transport(Mlx5::new()),
            ..options(4)
        },
    ] {
        let error = bfs::run(&csr, 0, &bad, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "starting the GPU and its transport failed");
        assert!(std::error::Error::source(&error).is_some());
    }
}
