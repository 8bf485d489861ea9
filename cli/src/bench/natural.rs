//! Loops as people write them, over `a[i]`, beside what they would run instead.

use std::collections::HashMap;
use std::path::PathBuf;

use bytemuck::Pod;
use clap::{Args, ValueEnum};
use gpuvm::{Arg, Buffer, ElementType, Kernel, Module, Placement, TransportKind, Value};
use gpuvm_gpu::cuda::{Advice, Side};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bench::args::{HomeArg, Share, parse_data};
use crate::bench::door::{Door, move_to};
use crate::bench::driver::{Benchmark, Run, each};
use crate::bench::machine::{self, Machine, RawMemory, Tally, host_pages, must_be_right, refill, size, with_resources};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::bench::take::ids;
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

const SOURCE: &str = include_str!("natural.cu");
const KERNELS: &str = "sum saxpy stencil row_sums neighbours gather gather_rows check_y check_row_sums check_gathered";

/// The data are a multiple of it: sixteen rows of [`ROW`] words, and as much again for what is written.
const DATA_STEP: u64 = 256 << 10;
/// Words of a row that is summed.
const ROW: u64 = 4096;
/// Words of a line of the stencil's grid.
const GRID: u64 = 8192;
/// What saxpy multiplies with.
const SCALE: f32 = 2.0;
/// The most words and rows that are gathered.
const GATHERED: u64 = 4 << 20;
const ROWS_GATHERED: u64 = 1 << 20;
/// Four words: what a lane reads of a row that is gathered, which 32 lanes share.
type Quad = [f32; 4];
const QUADS: u64 = 32;

const RAW: &str = "raw pointer";
const PINNED: &str = "pinned host memory, in place";
const HOST: &str = "managed memory kept on the host, in place";
const COLD: &str = "managed memory, cold";
const WARM: &str = "managed memory, warm";

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Loop {
    /// `s += x[i]`.
    Sum,
    /// `y[i] += a * x[i]`.
    Saxpy,
    /// Five points of a grid.
    Stencil,
    /// A warp sums a row of 4096 words.
    RowSums,
    /// A thread sums 32 neighbouring words.
    Neighbours,
    /// `out[i] = x[idx[i]]`, words of 4 bytes.
    Gather,
    /// A warp copies a row of 512 bytes, which is chosen at random.
    Rows,
}

impl Loop {
    /// What it is called, and its kernel.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Sum => ("sum", "sum"),
            Self::Saxpy => ("saxpy", "saxpy"),
            Self::Stencil => ("stencil of 5 points", "stencil"),
            Self::RowSums => ("row sums, a warp a row", "row_sums"),
            Self::Neighbours => ("32 neighbouring words a thread", "neighbours"),
            Self::Gather => ("random gather of 4 B", "gather"),
            Self::Rows => ("random rows of 512 B", "gather_rows"),
        }
    }

    /// Whether it writes half of the data.
    fn writes(self) -> bool {
        matches!(self, Self::Saxpy | Self::Stencil)
    }
}

/// Natural programs.
#[derive(Debug, Args)]
pub struct NaturalArgs {
    /// What each loop works on, all of it together. Without it: 1 GiB, and 1 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Which loops, with commas between. Without it: all of them.
    #[arg(long, value_name = "LOOP,..", value_delimiter = ',')]
    pub loops: Vec<Loop>,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// Frames, as shares of the data, with commas between.
    #[arg(long, value_name = "SHARE,..", default_value = "1,1/2,1/4", value_delimiter = ',')]
    pub frames_share: Vec<Share>,

    /// What reads of arrays that are only read do with a page that has no frame, with commas between: look-up (those that are written, too),
    /// fetch, auto, in-place, while-free. Without it: what arrays do unless told, look-up where GPU threads copy the pages, fetch elsewhere.
    #[arg(long, value_name = "HOW,..", value_delimiter = ',')]
    pub placement: Vec<Placement>,

    /// PTX of these kernels over plain pointers, for rows by its rewritten kernels, with --placement look-up. nvcc makes it: nvcc -ptx
    /// -arch=compute_75 -std=c++17 -DNATURAL_PLAIN=1 -I HEADERS -I cli/src cli/src/bench/natural.cu.
    #[arg(long, value_name = "FILE")]
    pub ptx: Option<PathBuf>,

    /// Arrays lie over memory that is lent to them, as NumPy's is, and not in memory of their own.
    #[arg(long)]
    pub lent: bool,

    /// Launches of a run: the first one finds no page; of the others the best one counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=10))]
    pub launches: u32,

    /// Seconds after which no row begins.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
}

/// What word `index` holds; `natural.cu` has the same rule.
fn value_of(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54
}

impl Benchmark for NaturalArgs {
    const NAME: &'static str = "natural";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        let bytes = run.data.unwrap_or(run.usual(1 << 30, 1 << 20)) / DATA_STEP * DATA_STEP;
        if bytes == 0 {
            let step = size(DATA_STEP);
            return Err(CliError::Options(format!("--data is less than {step}, a few rows")));
        }
        let (words, rows) = (bytes / 4, bytes / 4 / 4 / QUADS);
        let mut numbers = ChaCha8Rng::seed_from_u64(1);
        let natural = Natural {
            run,
            loops: match run.loops.as_slice() {
                [] => Loop::value_variants().to_vec(),
                given => given.to_vec(),
            },
            bytes,
            words,
            sum: machine::sum(words, value_of) as f64,
            idx: ids(&mut numbers, words, GATHERED.min(words / 8)),
            row_ids: ids(&mut numbers, rows, ROWS_GATHERED.min(rows / 2)),
        };
        let mut found = natural.peers(&probe, report)?;
        drop(probe);
        let mut data = host_pages(words, |index| value_of(index) as f32)?;
        let data = bytemuck::cast_slice_mut(&mut data);
        for kind in each(&run.page_size, &run.frames_share) {
            natural.paged(data, kind, &mut found, report)?;
        }
        // By loop, although memories are made by page size and share.
        for which in &natural.loops {
            let of_it = found.rows.iter().filter(|(of, _)| of == which);
            report.rows.extend(of_it.map(|(_, row)| row.clone()));
        }
        Ok(())
    }
}

struct Natural<'a> {
    run: &'a Run<'a, NaturalArgs>,
    loops: Vec<Loop>,
    bytes: u64,
    words: u64,
    /// Of all words.
    sum: f64,
    idx: Vec<i64>,
    row_ids: Vec<i64>,
}

/// Rows in the order in which they were measured, and what rows of `a[i]` are compared with.
#[derive(Default)]
struct Found {
    rows: Vec<(Loop, Row)>,
    peers: HashMap<(Loop, &'static str), Runs>,
}

impl Natural<'_> {
    /// Bytes that a launch asks its large arrays for, each counted once a read and once a write: of the stencil's grid each point once,
    /// whatever its neighbours read again.
    fn moves(&self, which: Loop) -> u64 {
        let half = self.words / 2;
        match which {
            Loop::Saxpy => 3 * half * 4,
            Loop::Stencil => (half + half - 2 * GRID) * 4,
            Loop::Gather | Loop::Rows => self.verified(which).0 * 4,
            Loop::Sum | Loop::RowSums | Loop::Neighbours => self.bytes,
        }
    }

    /// What is compared of a launch; of one that writes, of a run.
    fn verified(&self, which: Loop) -> (u64, &'static str) {
        match which {
            Loop::Sum | Loop::Neighbours => (self.words, "words in a sum"),
            Loop::Saxpy | Loop::Stencil => (self.words / 2, "words"),
            Loop::RowSums => (self.words / ROW, "sums"),
            Loop::Gather => (self.idx.len() as u64, "words"),
            Loop::Rows => (self.row_ids.len() as u64 * QUADS * 4, "words"),
        }
    }

    fn row(&self, which: Loop, by: &str, runs: Runs) -> Row {
        let (count, unit) = self.verified(which);
        Row::new(which.names().0, Unit::GigaBytes, runs.0)
            .with("by", by)
            .with("data", size(self.bytes))
            .verified(count, unit)
    }

    fn has_time(&self, what: &str, report: &mut Report) -> bool {
        self.run.has_time(self.run.limit, what, report)
    }

    /// What a user would run instead, over plain pointers.
    fn peers(&self, machine: &Machine, report: &mut Report) -> Result<Found, CliError> {
        let form = Form::new(self, machine, true)?;
        let mut found = Found::default();
        let door = Door::open(machine, &self.run.machine, "managed memory");
        let door = door.map_err(|error| report.skip("managed memory", error)).ok();
        for by in [RAW, PINNED, HOST, WARM] {
            let memory = match (by, &door) {
                (RAW, _) => machine.device_memory(self.bytes),
                (PINNED, _) => machine.memory(HomeArg::Host, self.bytes),
                (_, Some(door)) => managed(door, self.bytes, by == HOST),
                (_, None) => continue,
            };
            let memory = match memory {
                Ok(memory) => memory,
                Err(error) => {
                    report.skip(by, gpuvm_nic::with_causes(&error));
                    continue;
                }
            };
            let mut filled = false;
            for &which in &self.loops {
                if !self.has_time(&format!("{}, {by}", which.names().0), report) {
                    continue;
                }
                if !filled {
                    form.fill(&memory)?;
                }
                filled = !which.writes();
                let (first, later) = form.plain(which, by, &memory)?;
                let cold = (by == WARM).then_some((COLD, first));
                for (by, runs) in cold.into_iter().chain([(by, later)]) {
                    let row = self.row(which, by, runs.clone());
                    let row = with_resources(row, &form.kernel(which.names().1)?);
                    found.rows.push((which, row));
                    found.peers.insert((which, by), runs);
                }
            }
        }
        Ok(found)
    }

    /// All loops with frames for that share.
    fn paged(
        &self,
        data: &mut [f32],
        (page_bytes, share): (u64, Share),
        found: &mut Found,
        report: &mut Report,
    ) -> Result<(), CliError> {
        // Half of the data may be an array of its own.
        let pages = 2 * (self.bytes / 2).div_ceil(page_bytes);
        let machine = Machine::open(&self.run.machine, page_bytes, Machine::frames_for(pages, share))?;
        let form = Form::new(self, &machine, false)?;
        let by = self.run.ptx.as_ref().map_or("a[i]", |_| "plain pointers, rewritten");
        let unless_told = match machine.vm.transport() {
            TransportKind::Direct => [Placement::LookUp],
            _ => [Placement::Fetch],
        };
        let placements = match &self.run.placement[..] {
            [] => &unless_told,
            asked => asked,
        };
        for (which, placement) in each(&self.loops, placements) {
            let (name, kernel) = which.names();
            let what = format!("{name}, pages of {}, frames for {}", size(page_bytes), share.0);
            if !self.has_time(&what, report) {
                continue;
            }
            let (first, later) = form.paged(which, data, placement)?;
            let row = self
                .row(which, by, later)
                .with("page", size(page_bytes))
                .with("frames", share.0)
                .with("placement", placement);
            let row = with_resources(found.beside(which, row, &first), &form.kernel(kernel)?);
            found.rows.push((which, row));
        }
        Ok(())
    }
}

impl Found {
    /// The row of later launches with the first ones, and with what the peers took.
    fn beside(&self, which: Loop, row: Row, first: &Runs) -> Row {
        let peer = |by| self.peers.get(&(which, by));
        let (later, first) = (row.figure, first.median());
        let mut row = row.and("launch 1", first);
        let in_place = [PINNED, HOST].into_iter().filter_map(peer).map(Runs::median);
        if let Some(better) = in_place.reduce(f64::max) {
            row = row.and("times in place", later / better);
        }
        if let Some(cold) = peer(COLD) {
            row = row.and("launch 1, times managed cold", first / cold.median());
        }
        match peer(RAW) {
            Some(raw) => row.ceiling(RAW, raw),
            None => row,
        }
    }
}

/// Managed memory: told nothing, or kept on the host, where the GPU reads and writes it in place.
fn managed(door: &Door, bytes: u64, on_the_host: bool) -> Result<RawMemory, CliError> {
    let memory = door.managed(bytes)?;
    if on_the_host {
        for advice in [Advice::PreferredLocation(Side::Host), Advice::AccessedBy(Side::Gpu)] {
            memory.advise(advice)?;
        }
        move_to(&memory, Side::Host)?;
    }
    Ok(RawMemory::Managed(memory))
}

/// The kernels over paged arrays or over pointers, and what the loops have in device memory in either form.
struct Form<'a> {
    natural: &'a Natural<'a>,
    machine: &'a Machine,
    module: Module,
    tally: Tally,
    idx: Buffer<i64>,
    row_ids: Buffer<i64>,
    sum: Buffer<f64>,
    out: Buffer<f32>,
    rows: Buffer<Quad>,
}

impl<'a> Form<'a> {
    fn new(natural: &'a Natural<'a>, machine: &'a Machine, plain: bool) -> Result<Self, CliError> {
        let mut options = machine::options();
        options
            .defines
            .push(("NATURAL_PLAIN".to_owned(), Some(u32::from(plain).to_string())));
        let (rewritten, name) = (natural.run.ptx.as_ref().filter(|_| !plain), "bench/natural.cu");
        // Those of pointers have one more.
        let kernels = format!("{KERNELS} {}", if plain { "fill_values" } else { "" });
        let out = natural.words.div_ceil(ROW).max(natural.idx.len() as u64);
        let rows = natural.row_ids.len() as u64 * QUADS;
        Ok(Self {
            module: match rewritten {
                Some(path) => {
                    let text = std::fs::read(path).map_err(|source| gpuvm::Error::File {
                        path: path.clone(),
                        source,
                    });
                    machine.vm.load_ptx(&path.display().to_string(), &text?)?
                }
                None => machine.compile_with(name, SOURCE, &kernels, &options)?,
            },
            tally: Tally::new(machine)?,
            idx: machine.upload(&natural.idx)?,
            row_ids: machine.upload(&natural.row_ids)?,
            sum: machine.upload(&[0.0])?,
            out: machine.vm.buffer(out)?,
            rows: machine.vm.buffer(rows)?,
            natural,
            machine,
        })
    }

    fn kernel(&self, name: &str) -> Result<Kernel, CliError> {
        self.module.kernel(name).map_err(CliError::Vm)
    }

    /// Writes the words of all data.
    fn fill(&self, memory: &RawMemory) -> Result<(), CliError> {
        let ((config, _), words) = (self.machine.many_warps(), self.natural.words);
        let args = (Value([memory.addr()]), words, self.tally.arg());
        self.tally.run(&self.kernel("fill_values")?, config, args, words)?;
        Ok(())
    }

    /// GB/s over memory that the GPU reaches.
    fn plain(&self, which: Loop, by: &str, memory: &RawMemory) -> Result<(Runs, Runs), CliError> {
        let words = self.natural.words;
        let (x, y) = ([memory.addr()], [memory.addr() + words / 2 * 4]);
        let [x, y] = [&x, &y].map(|at| Arg::value(ElementType::of::<[u64; 1]>(), bytemuck::bytes_of(at)));
        self.runs(which, &x, &y, || match memory {
            RawMemory::Managed(memory) if by == WARM => move_to(memory, Side::Host).map(|_| ()),
            _ => Ok(()),
        })
    }

    /// GB/s over pages of this data, which it has again afterwards.
    fn paged(&self, which: Loop, data: &mut [f32], placement: Placement) -> Result<(Runs, Runs), CliError> {
        match which {
            Loop::Saxpy | Loop::Stencil => self.written(which, data, placement),
            Loop::Rows => self.read_only::<Quad>(which, bytemuck::cast_slice(data), placement),
            _ => self.read_only(which, &*data, placement),
        }
    }

    /// Of loops that write the second half of the data.
    fn written(&self, which: Loop, data: &mut [f32], placement: Placement) -> Result<(Runs, Runs), CliError> {
        // Others than reads are placed by looking up alone.
        let of_y = match placement {
            Placement::LookUp => placement,
            _ => Placement::Fetch,
        };
        let half = data.len() / 2;
        let (vm, lent) = (&self.machine.vm, self.natural.run.lent);
        let (x, y) = data.split_at_mut(half);
        if !lent {
            let x = vm.region().name("x").read_only().placement(placement).from_slice(x)?;
            let y = vm.region().name("y").placement(of_y).from_slice(y)?;
            let cold = || x.evict().and_then(|()| y.evict()).map_err(CliError::Vm);
            return self.runs(which, &Arg::from(&x), &Arg::from(&y), cold);
        }
        let ran = vm.scope(|scope| {
            let x = scope.read_only_placed("x", x, placement)?;
            let y = scope.region_placed("y", y, of_y)?;
            let cold = || x.evict().and_then(|()| y.evict()).map_err(CliError::Vm);
            Ok(self.runs(which, &Arg::from(&*x), &Arg::from(&*y), cold))
        });
        let first = half as u64;
        refill(&mut data[half..], |index| value_of(first + index) as f32);
        ran?
    }

    fn read_only<T: Pod>(&self, which: Loop, data: &[T], placement: Placement) -> Result<(Runs, Runs), CliError> {
        let vm = &self.machine.vm;
        if !self.natural.run.lent {
            let x = vm
                .region()
                .name("x")
                .read_only()
                .placement(placement)
                .from_slice(data)?;
            let arg = Arg::from(&x);
            return self.runs(which, &arg, &arg, || x.evict().map_err(CliError::Vm));
        }
        let ran = vm.scope(|scope| {
            let x = scope.read_only_placed("x", data, placement)?;
            let arg = Arg::from(&*x);
            Ok(self.runs(which, &arg, &arg, || x.evict().map_err(CliError::Vm)))
        });
        ran?
    }

    /// Of each run the rate of the first launch, and the best one of the others.
    fn runs(
        &self,
        which: Loop,
        x: &Arg<'_>,
        y: &Arg<'_>,
        cold: impl Fn() -> Result<(), CliError>,
    ) -> Result<(Runs, Runs), CliError> {
        let args = self.natural.run;
        let (mut first, mut later, mut launches) = (Vec::new(), Vec::new(), 0u16);
        for _ in 0..args.repeat {
            cold()?;
            let mut rates = Vec::new();
            for _ in 0..args.launches {
                launches += 1;
                let seconds = self.launch(which, x.clone(), y.clone(), f32::from(launches))?;
                rates.push(self.natural.moves(which) as f64 / seconds / 1e9);
            }
            first.push(rates[0]);
            later.push(rates[1..].iter().copied().fold(0.0, f64::max));
            if which.writes() {
                // What was written has been written back.
                cold()?;
                self.check_written(which, y, f32::from(launches))?;
            }
        }
        Ok((Runs(first), Runs(later)))
    }

    /// The seconds of launch `number` of those over this data, whose result is compared unless it is in `y`.
    fn launch(&self, which: Loop, x: Arg<'_>, y: Arg<'_>, number: f32) -> Result<f64, CliError> {
        let kernel = self.kernel(which.names().1)?;
        let (config, _) = self.machine.most_warps();
        let (words, half) = (self.natural.words, self.natural.words / 2);
        let (taken, rows) = (self.natural.idx.len() as u64, self.natural.row_ids.len() as u64);
        self.sum.write(&[0.0])?;
        let launched = match which {
            Loop::Sum | Loop::Neighbours => kernel.launch(config, (x, words, &self.sum)),
            Loop::Saxpy => kernel.launch(config, (x, y, SCALE, half)),
            Loop::Stencil => kernel.launch(config, (x, y, number, GRID, half)),
            Loop::RowSums => kernel.launch(config, (x, ROW, words / ROW, &self.out)),
            Loop::Gather => kernel.launch(config, (x, &self.idx, &self.out, taken)),
            Loop::Rows => kernel.launch(config, (x, &self.row_ids, &self.rows, rows)),
        };
        let ended = launched.and_then(|launch| launch.sync())?;
        self.check(which)?;
        Ok(ended.elapsed().as_secs_f64().max(1e-9))
    }

    /// Compares what a launch has left in device memory.
    fn check(&self, which: Loop) -> Result<(), CliError> {
        let (count, _) = self.natural.verified(which);
        let ((config, _), tally) = (self.machine.many_warps(), self.tally.arg());
        match which {
            Loop::Sum | Loop::Neighbours => {
                let what = format!("the sum of {}", which.names().1);
                let wrong = self.sum.to_vec()? != [self.natural.sum];
                must_be_right(u64::from(wrong), count, &what)?;
            }
            Loop::RowSums => {
                let args = (&self.out, ROW, count, tally);
                self.tally.run(&self.kernel("check_row_sums")?, config, args, count)?;
            }
            Loop::Gather => {
                let args = (&self.out, &self.idx, 1u64, count, tally);
                self.tally.run(&self.kernel("check_gathered")?, config, args, count)?;
            }
            Loop::Rows => {
                let args = (&self.rows, &self.row_ids, QUADS * 4, count, tally);
                self.tally.run(&self.kernel("check_gathered")?, config, args, count)?;
            }
            Loop::Saxpy | Loop::Stencil => {}
        }
        Ok(())
    }

    /// Compares what this many launches have made of `y`.
    fn check_written(&self, which: Loop, y: &Arg<'_>, launches: f32) -> Result<(), CliError> {
        let half = self.natural.words / 2;
        let (factor, grid) = match which {
            Loop::Saxpy => (SCALE * launches, 0),
            _ => (launches, GRID),
        };
        let (config, _) = self.machine.many_warps();
        let args = (y.clone(), factor, grid, half, self.tally.arg());
        self.tally.run(&self.kernel("check_y")?, config, args, half)?;
        Ok(())
    }
}
