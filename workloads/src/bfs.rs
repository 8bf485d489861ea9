//! Breadth-first search on the GPU, over a graph that is paged.
//!
//! Row offsets, neighbours and distances are paged regions. Plain device memory holds the sets of vertices, as bitmaps of
//! half a byte for each vertex, and the list of long rows' pieces, at most a byte for 32 edges. `bfs.cu` beside this file
//! has the kernels.

use std::path::Path;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use gpuvm::{
    Arg, Buffer, Capabilities, CompileOptions, Kernel, LaunchConfig, Placement, Profile, Profiler, ReadCosts, Region,
    RegionBuilder, Stats, TransportKind, Vm, VmBuilder,
};

use crate::graph::Csr;
use crate::graph::reference::VertexOutOfRange;
use crate::rows;

/// The kernel's source.
pub const SOURCE: &str = include_str!("bfs.cu");

/// The search itself, over arrays of any kind; the kernel's source includes it as `search.cuh`.
pub const SEARCH: &str = include_str!("search.cuh");

/// Threads of a block: whole warps, as the kernels require.
const BLOCK_THREADS: u32 = 64;

/// Blocks for each multiprocessor of a GPU: as many as are resident by the kernels' launch bounds.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Blocks in the seeded mode, the same on every machine.
const BLOCKS_SEEDED: usize = 8;

/// Blocks for each core of the simulated GPU: some walk while others wait for pages, and the stacks of all lanes stay in
/// the cache.
const BLOCKS_PER_CORE: usize = 4;

/// Who takes the 32 neighbouring vertices of a word of the frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchShape {
    /// A warp, one vertex for each lane: its lanes read neighbouring edges. For a GPU.
    WordAWarp,
    /// One lane: the lanes of a warp miss different pages, which are fetched together. For the simulated GPU, whose lanes
    /// run one after the other.
    WordALane,
}

impl SearchShape {
    /// The faster one on that GPU.
    pub fn of(gpu: &Capabilities) -> Self {
        match gpu.compute_capability {
            Some(_) => Self::WordAWarp,
            None => Self::WordALane,
        }
    }

    /// The options for a source that includes `search.cuh`.
    pub fn compile_options(self) -> CompileOptions {
        let word_a_lane = match self {
            Self::WordAWarp => "0",
            Self::WordALane => "1",
        };
        let mut options = rows::compile_options();
        options.headers.push(("search.cuh".to_owned(), SEARCH.to_owned()));
        options
            .defines
            .push(("SEARCH_WORD_A_LANE".to_owned(), Some(word_a_lane.to_owned())));
        options
    }

    /// How such a kernel is launched on a GPU, for a graph of that many vertices.
    pub fn launch_config(self, gpu: &Capabilities, vertices: u64) -> LaunchConfig {
        let resident = match gpu.compute_capability {
            Some(_) => (gpu.sm_count * BLOCKS_PER_MULTIPROCESSOR) as usize,
            None if gpu.deterministic => BLOCKS_SEEDED,
            None => std::thread::available_parallelism().map_or(1, usize::from) * BLOCKS_PER_CORE,
        };
        let vertices_per_block = match self {
            Self::WordAWarp => u64::from(BLOCK_THREADS),
            Self::WordALane => 32 * u64::from(BLOCK_THREADS),
        };
        let blocks = vertices.div_ceil(vertices_per_block).min(resident as u64);
        LaunchConfig::new(blocks.max(1) as u32, BLOCK_THREADS)
    }
}

/// Where and how a search runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// GPU, transport and queues.
    pub machine: VmBuilder,
    /// Bytes of frames for all pages together.
    pub frame_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// What reads of the graph do with a page that has no frame.
    pub placement: Placement,
    /// Who takes which vertices; `None`: the faster shape on this GPU.
    pub shape: Option<SearchShape>,
    /// How long to rest between two samples of a profile; `None`: no profile.
    pub profile: Option<Duration>,
    /// Bytes of host memory before a graph that is read from its file while it is searched; `None`: the file is mapped.
    pub file_cache: Option<u64>,
}

/// How far a running search has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The level that was finished last; 0 holds the source alone.
    pub level: u32,
    /// Vertices reached so far.
    pub reached: u64,
}

/// What a search found and what it took.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Edges from the source to every vertex, -1 where there is no path.
    pub distances: Vec<i32>,
    /// Distances that occur, the source's 0 among them.
    pub levels: u32,
    /// Vertices with a distance.
    pub reached: u64,
    /// Stored neighbours that were walked: each once for a row whose vertex was reached.
    pub edges: u64,
    /// Elements of paged regions that lanes read or wrote, counted by the kernel.
    pub accesses: u64,
    /// From the first launch to the end of the last one.
    pub elapsed: Duration,
    /// What the paging did from the first launch until the distances were home.
    pub stats: Stats,
    /// What reads of the neighbours at their home cost, where the GPU weighs it.
    pub read_costs: Option<ReadCosts>,
    /// The GPU's name.
    pub gpu: String,
    /// What moved the pages.
    pub transport: String,
    /// What the search did with the pages, from the first launch until the distances were home, if that was asked for.
    pub profile: Option<Profile>,
    /// What was read of the graph's file, with [`Options::file_cache`].
    pub file: Option<FileReads>,
}

/// What a search read of the graph's file, from the first launch until the distances were home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReads {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that a perfect cache of the same size would have read: one that knows what will be asked for.
    pub perfect_bytes: u64,
}

/// A search that could not be run or did not end.
#[derive(Debug, thiserror::Error)]
pub enum BfsError {
    /// The source is no vertex of the graph.
    #[error("no start vertex was given")]
    Source(#[from] VertexOutOfRange),
    /// The paging or the GPU failed.
    #[error("{step} failed")]
    Vm {
        /// What was under way.
        step: &'static str,
        /// Why it failed.
        source: gpuvm::Error,
    },
    /// Pages are to be read in place over a transport whose lanes do not reach their homes.
    #[error(
        "placement {placement} is for the transport direct: over {transport} a NIC fetches every page; choose --transport direct, or --placement fetch"
    )]
    Placement {
        /// What was asked for.
        placement: Placement,
        /// What moves the pages.
        transport: TransportKind,
    },
    /// More levels than vertices: the device's counters cannot be right.
    #[error("the search went on after level {level} of a graph of {vertices} vertices; this is a defect of gpuvm")]
    Endless {
        /// The level.
        level: u32,
        /// Vertices of the graph.
        vertices: u32,
    },
}

/// Bytes of the pages of a graph's row offsets, neighbours and distances: frame memory for all of them.
pub fn paged_bytes(csr: &Csr, page_bytes: u64) -> u64 {
    let vertices = u64::from(csr.vertices());
    [(vertices + 1) * 8, csr.edges() * 4, vertices * 4]
        .map(|bytes| bytes.max(1).next_multiple_of(page_bytes))
        .iter()
        .sum()
}

/// Searches `csr` from `source` and calls `progress` after every level.
///
/// # Errors
/// [`BfsError`]; the runtime's errors name region, page and cause.
pub fn run(csr: &Csr, source: u32, options: &Options, progress: &mut dyn FnMut(Level)) -> Result<Outcome, BfsError> {
    let vertices = csr.vertices();
    if source >= vertices {
        return Err(VertexOutOfRange {
            vertex: source,
            vertices,
        }
        .into());
    }
    let vm = start(options).map_err(|source| BfsError::Vm {
        step: "starting the GPU and its transport",
        source,
    })?;
    check_placement(options.placement, vm.transport())?;
    let search = Search::new(&vm, csr, source, options).map_err(|source| BfsError::Vm {
        step: "preparing the search",
        source,
    })?;
    let (before, read_costs) = (search.stats()?, search.neighbours.read_costs());
    let profiler = options
        .profile
        .map(|interval| vm.profile(interval))
        .transpose()
        .map_err(of_profile)?;
    vm.record_file_requests();
    let file_before = vm.file_stats();
    let started = Instant::now();
    let ended = levels(vertices, progress, |level| search.level(level))?;
    let elapsed = started.elapsed();
    let distances = search.distances.to_vec().map_err(|source| BfsError::Vm {
        step: "reading the distances",
        source,
    })?;
    let profile = profiler.map(Profiler::finish).transpose().map_err(of_profile)?;
    let stats = search.stats()?.difference(&before);
    let file = vm.file_stats().zip(file_before).map(|(after, before)| FileReads {
        bytes: after.read_bytes - before.read_bytes,
        perfect_bytes: vm.perfect_file_reads().unwrap_or_default() * after.block,
    });
    let (levels, [reached, edges, accesses]) = ended;
    let (gpu, transport) = (vm.gpu_name(), vm.transport_name());
    Ok(Outcome {
        distances,
        levels,
        reached,
        edges,
        accesses,
        elapsed,
        stats,
        read_costs,
        gpu,
        transport,
        profile,
        file,
    })
}

fn of_profile(source: gpuvm::Error) -> BfsError {
    BfsError::Vm {
        step: "taking the profile",
        source,
    }
}

/// Searches level by level until one reaches nothing new: `level(n)` searches level `n` and returns the totals so far. The
/// levels and the last totals.
///
/// # Errors
/// What a level returns; [`BfsError::Endless`].
pub fn levels<E: From<BfsError>>(
    vertices: u32,
    progress: &mut dyn FnMut(Level),
    mut level: impl FnMut(u32) -> Result<[u64; 3], E>,
) -> Result<(u32, [u64; 3]), E> {
    progress(Level { level: 0, reached: 1 });
    let mut reached = 1;
    for number in 1..=vertices {
        let totals = level(number)?;
        if totals[0] == reached {
            return Ok((number, totals));
        }
        reached = totals[0];
        progress(Level { level: number, reached });
    }
    Err(E::from(BfsError::Endless {
        level: vertices,
        vertices,
    }))
}

/// Whether reads can follow that placement where `transport` moves the pages.
///
/// # Errors
/// [`BfsError::Placement`] where it asks for reads in place and lanes do not reach the homes. Left to the GPU
/// ([`Placement::Auto`]), pages that only a NIC reaches are fetched.
pub fn check_placement(placement: Placement, transport: TransportKind) -> Result<(), BfsError> {
    let asks = matches!(placement, Placement::InPlace | Placement::WhileFree | Placement::LookUp);
    match asks && transport != TransportKind::Direct {
        true => Err(BfsError::Placement { placement, transport }),
        false => Ok(()),
    }
}

fn start(options: &Options) -> gpuvm::Result<Vm> {
    let builder = options.machine.clone().frame_memory(options.frame_bytes);
    let builder = match options.file_cache {
        Some(bytes) => builder.file_cache(bytes),
        None => builder,
    };
    builder.page_size(options.page_bytes).build()
}

/// What the GPU reads and writes while a search runs.
struct Search {
    vm: Vm,
    rows: Kernel,
    pieces: Kernel,
    offsets: Region<u64>,
    neighbours: Region<u32>,
    distances: Region<i32>,
    sets: Sets,
    vertices: u32,
    config: LaunchConfig,
}

/// The sets of vertices of a search, its list and its totals, in plain device memory.
pub struct Sets {
    /// Vertices reached, one bit for each vertex.
    pub visited: Buffer<u32>,
    /// Frontiers: the ones of this, the next and the previous level take turns.
    frontiers: [Buffer<u32>; 3],
    /// Pieces of long rows.
    pub list: Buffer<u64>,
    /// Vertices reached, edges walked, accesses to paged elements.
    pub totals: Buffer<u64>,
}

impl Sets {
    /// For a search of `csr` from `source`.
    ///
    /// # Errors
    /// Too little device memory.
    pub fn new(vm: &Vm, csr: &Csr, source: u32) -> gpuvm::Result<Self> {
        let words = u64::from(csr.vertices()).div_ceil(32);
        let mut start = vec![0_u32; words as usize];
        start[source as usize / 32] = 1 << (source % 32);
        let sets = Self {
            visited: vm.buffer(words)?,
            frontiers: [vm.buffer(words)?, vm.buffer(words)?, vm.buffer(words)?],
            list: vm.buffer(rows::list_words(csr.edges()))?,
            totals: vm.buffer(3)?,
        };
        sets.visited.write(&start)?;
        sets.frontiers[0].write(&start)?;
        sets.totals.write(&[1, 0, 0])?;
        Ok(sets)
    }

    /// This level's frontier, the next one, and the one before, which is emptied.
    pub fn frontiers(&self, level: u32) -> [&Buffer<u32>; 3] {
        [level - 1, level, level + 1].map(|turn| &self.frontiers[turn as usize % 3])
    }

    /// Searches a level by the kernels `bfs_level` and `bfs_pieces` over row offsets, neighbours and distances; the totals so far.
    ///
    /// # Errors
    /// The launches'.
    pub fn level(
        &self,
        [walk, pieces]: [&Kernel; 2],
        config: &LaunchConfig,
        [offsets, neighbours, distances]: [Arg<'_>; 3],
        vertices: u32,
        level: u32,
    ) -> gpuvm::Result<[u64; 3]> {
        let [frontier, next, previous] = self.frontiers(level);
        let Self {
            visited, list, totals, ..
        } = self;
        let number = level as i32;
        let of_pieces = (
            neighbours.clone(),
            distances.clone(),
            visited,
            next,
            list,
            totals,
            number,
        );
        let args = (
            offsets, neighbours, distances, visited, frontier, next, previous, list, totals, vertices, number,
        );
        let walked = walk.launch(config.clone(), args)?;
        let pieces = pieces.launch(config.clone(), of_pieces)?;
        // First: its error is the cause of the other's.
        walked.sync()?;
        pieces.sync()?;
        self.totals()
    }

    /// The totals so far.
    ///
    /// # Errors
    /// The GPU's.
    pub fn totals(&self) -> gpuvm::Result<[u64; 3]> {
        let mut totals = [0; 3];
        self.totals.read(&mut totals)?;
        Ok(totals)
    }
}

/// A region of a part of the graph: of its place in the graph's file where there is a file cache, else a copy.
fn rows_of<T: Pod>(
    vm: &Vm,
    region: RegionBuilder<T>,
    values: &[T],
    place: Option<(&Path, u64)>,
) -> gpuvm::Result<Region<T>> {
    match (vm.file_stats(), place) {
        (Some(_), Some((path, at))) => region.map_file_span(path, at, values.len() as u64),
        _ => region.read_only().from_slice(values),
    }
}

impl Search {
    fn new(vm: &Vm, csr: &Csr, source: u32, options: &Options) -> gpuvm::Result<Search> {
        let gpu = vm.device().capabilities();
        let shape = options.shape.unwrap_or_else(|| SearchShape::of(&gpu));
        let vertices = u64::from(csr.vertices());
        let names = ["bfs_level", "bfs_pieces"];
        let [rows, pieces] = vm.kernels("bfs.cu", SOURCE, names, &shape.compile_options())?;
        let distances = (0..csr.vertices()).map(|vertex| if vertex == source { 0 } else { -1 });
        Ok(Search {
            vm: vm.clone(),
            rows,
            pieces,
            offsets: rows_of(
                vm,
                vm.region().name("row offsets"),
                csr.offsets(),
                csr.offsets_in_file(),
            )?,
            neighbours: rows_of(
                vm,
                vm.region().name("neighbours").placement(options.placement),
                csr.neighbours(),
                csr.neighbours_in_file(),
            )?,
            distances: vm.region().name("distances").from_iter(distances)?,
            sets: Sets::new(vm, csr, source)?,
            vertices: csr.vertices(),
            config: shape.launch_config(&gpu, vertices),
        })
    }

    /// Searches one level and returns the totals so far.
    fn level(&self, level: u32) -> Result<[u64; 3], BfsError> {
        let args = [
            Arg::from(&self.offsets),
            Arg::from(&self.neighbours),
            Arg::from(&self.distances),
        ];
        let kernels = [&self.rows, &self.pieces];
        let totals = self.sets.level(kernels, &self.config, args, self.vertices, level);
        totals.map_err(|source| BfsError::Vm {
            step: "searching a level",
            source,
        })
    }

    fn stats(&self) -> Result<Stats, BfsError> {
        self.vm.stats().map_err(|source| BfsError::Vm {
            step: "reading the counters",
            source,
        })
    }
}
