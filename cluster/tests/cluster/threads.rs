//! Ranks that are threads of this process, each with a simulated GPU: what the applications compute, without MPI.

use std::io::Write;
use std::iter;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Barrier, Mutex};

use gpuvm::{MemoryNodes, Placement, Rdma, SimulatedGpu, Vm};
use gpuvm_cluster::{Alone, ClusterError, Partitioned, Place, Ranks, ResultFile, compare, pagerank, shared};
use gpuvm_workloads::apps::PageRankParameters;
use gpuvm_workloads::graph::{Csr, Direction, Graph, GraphSpec, LoadOptions, reference};

/// What threads exchange.
struct Board {
    barrier: Barrier,
    said: Mutex<Vec<Vec<u8>>>,
}

/// One of the threads.
struct Threads<'a> {
    board: &'a Board,
    place: Place,
}

impl Threads<'_> {
    /// What each rank says.
    fn exchange(&self, said: &[u8]) -> Vec<Vec<u8>> {
        self.board.said.lock().unwrap()[self.place.rank] = said.to_vec();
        self.board.barrier.wait();
        let heard = self.board.said.lock().unwrap().clone();
        self.board.barrier.wait();
        heard
    }
}

impl Ranks for Threads<'_> {
    fn place(&self) -> Place {
        self.place
    }

    fn barrier(&self) {
        self.board.barrier.wait();
    }

    fn host_barrier(&self) {
        self.barrier();
    }

    fn gather(&self, _: &str, own: &[u32], parts: &[Range<usize>], all: &mut [u32]) -> Result<(), ClusterError> {
        for (part, said) in parts.iter().zip(self.exchange(bytemuck::cast_slice(own))) {
            all[part.clone()].copy_from_slice(&bytemuck::pod_collect_to_vec(&said));
        }
        Ok(())
    }

    fn sum(&self, number: u64) -> u64 {
        let said = self.exchange(&number.to_le_bytes());
        said.into_iter()
            .map(|said| u64::from_le_bytes(said.try_into().unwrap()))
            .sum()
    }

    fn most(&self, number: f64) -> f64 {
        let said = self.exchange(&number.to_le_bytes()).into_iter();
        said.map(|said| f64::from_le_bytes(said.try_into().unwrap()))
            .fold(number, f64::max)
    }

    fn hear_first(&self, said: &[u8]) -> Vec<u8> {
        self.exchange(said).swap_remove(0)
    }

    fn hear_first_of_host(&self, said: &[u8]) -> Vec<u8> {
        self.hear_first(said)
    }
}

/// What each of this many ranks makes of it.
fn on<R: Send>(size: usize, work: impl Fn(&Vm, &dyn Ranks) -> R + Sync) -> Vec<R> {
    let board = Board {
        barrier: Barrier::new(size),
        said: Mutex::new(vec![Vec::new(); size]),
    };
    let (board, work) = (&board, &work);
    let rank = move |rank| {
        let place = Place {
            rank,
            size,
            on_host: rank,
            of_host: size,
        };
        work(&vm(), &Threads { board, place })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|n| scope.spawn(move || rank(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Frames for less than the graph. `GPUVM_TEST_NODE=HOST:PORT` has regions at that memory node.
fn vm() -> Vm {
    let gpu = SimulatedGpu::new().workers(1).memory(64 << 20);
    let vm = Vm::builder().gpu(gpu).page_size(4096);
    let vm = match std::env::var("GPUVM_TEST_NODE") {
        Ok(node) if !node.is_empty() => vm.transport(Rdma::to(MemoryNodes::at([node]))),
        _ => vm,
    };
    vm.frame_memory(16 * 4096).build().unwrap()
}

fn iterations(iterations: u32) -> PageRankParameters {
    PageRankParameters {
        iterations,
        ..PageRankParameters::default()
    }
}

fn graph() -> Graph {
    let spec: GraphSpec = "kron:10".parse().unwrap();
    spec.load(&LoadOptions::default(), &mut |_| {}).unwrap()
}

#[test]
fn ranks_of_pages_are_the_same_to_the_bit() {
    let graph = graph();
    // It ends after 4 of 5 iterations.
    let parameters = PageRankParameters {
        damping: 0.7,
        tolerance: 0.03,
        ..iterations(5)
    };
    let mut ranking = reference::Ranking::new(graph.csr(), 0.7);
    let changes: Vec<f64> = (0..4).map(|_| ranking.iterate()).collect();
    assert!(changes[2] > 0.04 && changes[3] < 0.02, "{changes:?}");
    let run = |vm: &Vm, ranks: &dyn Ranks| {
        let ran = pagerank(vm, ranks, graph.csr(), &parameters, Placement::Fetch).unwrap();
        assert_eq!(ran.iterations, 4);
        ran.values.gather(ranks).unwrap()
    };
    let alone = run(&vm(), &Alone);
    for (found, expected) in alone.iter().zip(ranking.ranks) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-4 * expected,
            "{found} is not {expected}"
        );
    }
    for size in [2, 3, 5] {
        for found in on(size, run) {
            compare(&found, &alone).unwrap();
        }
    }
}

#[test]
fn the_file_of_a_result_is_the_same_from_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    // Ids that are no numbers of vertices.
    let path = folder.path().join("apart.el");
    std::fs::write(&path, "7 9\n9 12\n12 7\n12 300\n300 301\n").unwrap();
    let spec = GraphSpec::File(path.clone());
    let graph = spec.load(&LoadOptions::default(), &mut |_| {}).unwrap();
    for ending in ["", ".tsv", ".npy", ".parquet"] {
        let written = [1, 2, 4].map(|size| {
            let file = folder.path().join(format!("of-{size}{ending}"));
            on(size, |vm, ranks| {
                let output = ResultFile::new(&file, &spec, ranks).unwrap();
                let ran = pagerank(vm, ranks, graph.csr(), &iterations(6), Placement::Fetch).unwrap();
                let values = ran.values.gather(ranks).unwrap();
                if ranks.place().rank == 0 {
                    output.write(&graph, values).unwrap();
                }
            });
            std::fs::read(file).unwrap()
        });
        assert!(
            written[0].len() > 50 && written.iter().all(|bytes| *bytes == written[0]),
            "{ending}"
        );
        if ending.is_empty() {
            let text = String::from_utf8(written[0].clone()).unwrap();
            let ids = text.lines().map(|line| line.split('\t').next().unwrap());
            assert_eq!(ids.collect::<Vec<_>>(), ["# vertex", "7", "9", "12", "300", "301"]);
        }
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1 + 4 * 3,
        "something stays behind"
    );
    let refused = |path: &std::path::Path| ResultFile::new(path, &spec, &Alone).unwrap_err().to_string();
    assert!(refused(&path.with_extension("csv")).contains("unknown format of results"));
    assert!(refused(&folder.path().join("none/ranks")).starts_with("cannot write the result to"));
    let own = folder.path().join("graph");
    std::fs::write(&own, "0 1\n").unwrap();
    let error = ResultFile::new(&own, &GraphSpec::File(own.clone()), &Alone).unwrap_err();
    assert!(error.to_string().contains("is the graph itself"), "{error}");
}

#[test]
fn a_rank_writes_its_part_and_reads_all() {
    let parts = [0..3, 3..3, 3..10];
    let all = on(3, |vm, ranks| {
        let array = Partitioned::<u32>::zeroed(vm, ranks, "parts", parts.to_vec()).unwrap();
        let own: Vec<u32> = array.range().map(|n| n as u32 * 7).collect();
        array.region().write(0, &own).unwrap();
        assert_eq!(array.own().unwrap(), own);
        array.gather(ranks).unwrap()
    });
    let expected: Vec<u32> = (0..10).map(|n| n * 7).collect();
    assert!(all.iter().all(|found| *found == expected), "{all:?}");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let refused = |parts: Vec<Range<usize>>| {
        let made = Partitioned::<u32>::zeroed(&vm(), &Alone, "parts", parts);
        made.err().unwrap().to_string()
    };
    assert!(refused(vec![0..1, 1..2]).starts_with("an exchange of parts: 2 parts for 1 ranks"));
    let odd = Partitioned::<u8>::zeroed(&vm(), &Alone, "bytes", iter::once(0..8).collect())
        .err()
        .unwrap();
    assert!(odd.to_string().contains("elements of 1 bytes are not words"), "{odd}");
    // A part that does not begin at the beginning is found when it is gathered.
    let array = Partitioned::<u32>::zeroed(&vm(), &Alone, "parts", iter::once(1..3).collect()).unwrap();
    let text = array.gather(&Alone).err().unwrap().to_string();
    assert!(text.contains("rank 0 is 1..3, behind one that ends at 0"), "{text}");
    let none = Csr::from_edges(0, &[], Direction::Undirected).unwrap();
    let none = pagerank(&vm(), &Alone, &none, &iterations(1), Placement::Fetch)
        .err()
        .unwrap();
    assert!(none.to_string().contains("a graph without vertices"), "{none}");
}

#[test]
fn a_host_has_one_copy_without_a_name() {
    let found = on(3, |_, ranks| {
        let write = |out: &mut dyn Write| {
            assert_eq!(ranks.place().on_host, 0);
            out.write_all(b"what all have").map_err(|source| ClusterError::Share {
                what: "keep it".to_owned(),
                source,
            })
        };
        let open = |path: &std::path::Path| Ok((path.to_owned(), std::fs::read(path).unwrap()));
        shared::on_host(ranks, "it", write, open).unwrap()
    });
    assert!(
        found
            .iter()
            .all(|(path, bytes)| path == &found[0].0 && bytes == b"what all have")
    );
    // The system has taken it back.
    let gone: &PathBuf = &found[0].0;
    assert!(std::fs::read_link(gone).map_or(true, |to| !to.to_string_lossy().contains("gpuvm-mpi")));
}

#[test]
fn a_graph_is_mapped_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.gcsr");
    let mut file = std::fs::File::create(&path).unwrap();
    graph().write(&mut file, &mut |_| {}).unwrap();
    let specs: [GraphSpec; 2] = [GraphSpec::File(path), "kron:10".parse().unwrap()];
    for spec in specs {
        let found = on(3, |_, ranks| {
            let graph = shared::graph(ranks, &spec, &LoadOptions::default()).unwrap();
            (graph.csr().offsets().to_vec(), graph.csr().neighbours().to_vec())
        });
        let expected = (graph().csr().offsets().to_vec(), graph().csr().neighbours().to_vec());
        assert!(found.iter().all(|found| *found == expected));
    }
}
