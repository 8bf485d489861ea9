//! Breadth-first search, cold: paged, over managed memory, and over the host's memory in place.

use std::sync::Arc;
use std::time::Instant;

use gpuvm::{GpuError, Kernel, LaunchConfig, Placement};
use gpuvm_gpu::Gpu;
use gpuvm_gpu::HostMemory;
use gpuvm_gpu::cuda::{Managed, Side};
use gpuvm_workloads::bfs::{self, BfsError, SearchShape, Sets};
use gpuvm_workloads::graph::{Csr, LoadOptions, reference};

use crate::bench::args::{BfsBenchArgs, Share};
use crate::bench::door::{Door, move_to};
use crate::bench::machine::{Machine, size};
use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("bfs.cu");
const MANAGED: &str = "managed memory";

/// Measures.
pub fn measure(args: &BfsBenchArgs) -> Result<Report, CliError> {
    let machine = Machine::probe(&args.machine)?;
    let mut report = Report::new("bfs", machine.facts(&args.machine));
    let failed = |source| CliError::Graph {
        graph: args.graph.to_string(),
        source,
    };
    let graph = args.graph.load(&LoadOptions::default(), &mut |_| {}).map_err(failed)?;
    let csr = graph.csr();
    let source = csr.first_connected().ok_or_else(|| CliError::NoEdges {
        graph: args.graph.to_string(),
    })?;
    let bench = Bench {
        args,
        csr,
        source,
        expected: reference::bfs(csr, source)?,
    };
    let mut peers = Vec::new();
    let mut ceiling = None;
    match Door::open(&machine, &args.machine, MANAGED) {
        Ok(door) => {
            let row = bench.peer(&machine, MANAGED, |contents| Peer::managed(&door, contents))?;
            // What CUDA's users have without further work.
            ceiling = Some(row.runs.clone());
            peers.push(row);
        }
        Err(error) => report.skip(MANAGED, error),
    }
    let in_place = "the host's memory in place";
    peers.push(bench.peer(&machine, in_place, |contents| Peer::host(machine.gpu(), contents))?);
    report.rows.append(&mut peers);
    drop(machine);
    let kinds = args
        .page_size
        .iter()
        .flat_map(|&page| args.placement.iter().map(move |&how| (page, how)));
    for (page_bytes, placement) in kinds {
        let mut whole = None;
        for &share in &args.frames_share {
            let mut row = bench.paged(page_bytes, placement, share)?;
            if share == Share(1.0) {
                whole = Some(row.figure);
            } else if let Some(whole) = whole {
                let times = row.figure / whole;
                row = row.and("times that of memory for all", times);
            }
            report.rows.push(match &ceiling {
                Some(runs) => row.ceiling(MANAGED, runs),
                None => row,
            });
        }
    }
    Ok(report)
}

struct Bench<'a> {
    args: &'a BfsBenchArgs,
    csr: &'a Csr,
    source: u32,
    expected: Vec<i32>,
}

impl Bench<'_> {
    fn row(&self, name: &str, milliseconds: Vec<f64>) -> Row {
        Row::new(name, Unit::Milliseconds, milliseconds)
            .with("graph", &self.args.graph)
            .verified(u64::from(self.csr.vertices()), "distances")
    }

    fn search_error(&self, source: BfsError) -> CliError {
        CliError::Search {
            graph: self.args.graph.to_string(),
            source,
        }
    }

    fn paged(&self, page_bytes: u64, placement: Placement, share: Share) -> Result<Row, CliError> {
        let all = bfs::paged_bytes(self.csr, page_bytes);
        let frame_bytes = ((all as f64 * share.0) as u64).next_multiple_of(page_bytes);
        let options = bfs::Options {
            machine: self.args.machine.builder(page_bytes, None)?,
            frame_bytes,
            page_bytes,
            placement,
            shape: None,
            profile: None,
            file_memory: None,
        };
        let (mut times, mut fetched, mut in_place) = (Vec::new(), 0, 0);
        for _ in 0..self.args.output.repeat {
            let ran = bfs::run(self.csr, self.source, &options, &mut |_| {});
            let outcome = ran.map_err(|source| self.search_error(source))?;
            reference::compare(&self.expected, &outcome.distances)?;
            times.push(outcome.elapsed.as_secs_f64() * 1e3);
            (fetched, in_place) = (outcome.stats.bytes_fetched, outcome.stats.bytes_in_place);
        }
        Ok(self
            .row("paged", times)
            .with("page", size(page_bytes))
            .with("placement", placement)
            .with("frames", size(frame_bytes))
            .with("share", share.0)
            .and("fetched MB", fetched as f64 / 1e6)
            .and("in place MB", in_place as f64 / 1e6))
    }

    /// Runs the kernel over memory that a peer makes cold.
    fn peer(
        &self,
        machine: &Machine,
        name: &str,
        cold: impl Fn([&[u8]; 3]) -> Result<Peer, CliError>,
    ) -> Result<Row, CliError> {
        let names = ["bfs_level_plain", "bfs_pieces_plain"];
        let shape = SearchShape::of(&machine.able);
        let module = machine
            .vm
            .compile_with("bench/bfs.cu", SOURCE, &names, &shape.compile_options());
        let kernels = module.and_then(|module| Ok([module.kernel(names[0])?, module.kernel(names[1])?]));
        let kernels = kernels?;
        let config = shape.launch_config(&machine.able, self.csr.vertices().into());
        let mut times = Vec::new();
        for _ in 0..self.args.output.repeat {
            let mut distances = vec![-1; self.csr.vertices() as usize];
            distances[self.source as usize] = 0;
            let contents = [
                bytemuck::cast_slice(self.csr.offsets()),
                bytemuck::cast_slice(self.csr.neighbours()),
                bytemuck::cast_slice(&distances),
            ];
            let peer = cold(contents)?;
            let sets = Sets::new(&machine.vm, self.csr, self.source)?;
            let started = Instant::now();
            bfs::levels(self.csr.vertices(), &mut |_| {}, |level| {
                self.level(&kernels, &config, &peer, &sets, level)
            })
            .map_err(|source| self.search_error(source))?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            reference::compare(&self.expected, &peer.distances(machine.gpu(), self.csr.vertices())?)?;
        }
        Ok(self.row(name, times))
    }

    fn level(
        &self,
        [rows, pieces]: &[Kernel; 2],
        config: &LaunchConfig,
        peer: &Peer,
        sets: &Sets,
        level: u32,
    ) -> Result<[u64; 3], BfsError> {
        let [frontier, next, previous] = sets.frontiers(level);
        let [offsets, neighbours, distances] = peer.addresses();
        let (vertices, edges, level) = (u64::from(self.csr.vertices()), self.csr.edges(), level as i32);
        let Sets {
            visited, list, totals, ..
        } = sets;
        let row_args = (
            offsets, vertices, neighbours, edges, distances, visited, frontier, next, previous, list, totals, level,
        );
        let piece_args = (
            vertices, neighbours, edges, distances, visited, next, list, totals, level,
        );
        let search = || {
            let rows = rows.launch(config.clone(), row_args)?;
            let pieces = pieces.launch(config.clone(), piece_args)?;
            rows.sync()?;
            pieces.sync()?;
            sets.totals()
        };
        search().map_err(|source| BfsError::Vm {
            step: "searching a level",
            source,
        })
    }
}

/// Row offsets, neighbours and distances that kernels reach by plain addresses; all of them on the host.
enum Peer {
    Managed([Managed; 3]),
    Host([HostMemory; 3]),
}

impl Peer {
    fn managed(door: &Door, contents: [&[u8]; 3]) -> Result<Self, CliError> {
        let memory = |bytes: &[u8]| {
            let memory = door.managed(bytes.len() as u64)?;
            memory.write(0, bytes)?;
            move_to(&memory, Side::Host)?;
            Ok::<_, CliError>(memory)
        };
        let [offsets, neighbours, distances] = contents;
        Ok(Self::Managed([
            memory(offsets)?,
            memory(neighbours)?,
            memory(distances)?,
        ]))
    }

    fn host(gpu: &Arc<dyn Gpu>, contents: [&[u8]; 3]) -> Result<Self, CliError> {
        let memory = |data: &[u8]| {
            let bytes = data.len() as u64;
            let refused = |source: GpuError| CliError::Memory { bytes, source };
            let memory = gpu.allocate_host(bytes).map_err(refused)?;
            gpu.write(memory.device_addr(), data)?;
            Ok::<_, CliError>(memory)
        };
        let [offsets, neighbours, distances] = contents;
        Ok(Self::Host([memory(offsets)?, memory(neighbours)?, memory(distances)?]))
    }

    /// For kernels.
    fn addresses(&self) -> [u64; 3] {
        match self {
            Self::Managed(memory) => memory.each_ref().map(Managed::addr),
            Self::Host(memory) => memory.each_ref().map(HostMemory::device_addr),
        }
    }

    fn distances(&self, gpu: &Arc<dyn Gpu>, vertices: u32) -> Result<Vec<i32>, CliError> {
        let mut found = vec![0; vertices as usize];
        let bytes = bytemuck::cast_slice_mut(&mut found);
        match self {
            Self::Managed([_, _, distances]) => distances.read(0, bytes)?,
            Self::Host([_, _, distances]) => {
                gpu.read(distances.device_addr(), bytes)?;
            }
        }
        Ok(found)
    }
}
