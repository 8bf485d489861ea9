//! The time of one fault.

use clap::Args;
use gpuvm::{Advice, Buffer, Kernel, LaunchConfig, Module, Region, Stats};

use crate::bench::args::HomeArg;
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Said, Tally, fill, pattern, size};
use crate::bench::raw::{Raw, microseconds};
use crate::bench::report::{Report, Row, Times};
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

/// One fault at a time.
#[derive(Debug, Args)]
pub struct LatencyArgs {
    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// Lanes that wait together for neighbouring words of the page.
    #[arg(long, value_name = "N,..", default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    pub lanes: Vec<u32>,

    /// Faults to time; fewer where they would take more than 512 MiB (16 MiB on the simulated GPU).
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub faults: u64,

    /// Also time pages that many warps wait for at once.
    #[arg(long, value_name = "WARPS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub crowd: Option<u32>,
}

const SOURCE: &str = include_str!("latency.cu");
/// Pages that a crowd waits for, one after the other.
const CROWD_PAGES: u64 = 32;

impl Benchmark for LatencyArgs {
    const NAME: &'static str = "latency";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        for &page_bytes in &run.page_size {
            let faults = run.faults.min((run.usual(512 << 20, 16 << 20) / page_bytes).max(1));
            let bench = Latency::new(run, page_bytes, faults)?;
            let bare = Raw::new(&probe, HomeArg::Host, faults * page_bytes)?;
            let pages = bare.pages(page_bytes, true)?;
            let ceiling = run.spread(|| bare.one_page(&pages))?.medians();
            let mut clock = Said::default();
            for &lanes in &run.lanes {
                let (row, said) = bench.by_lanes(lanes, run.repeat)?;
                clock = said;
                if report.first.is_empty() {
                    for (key, name) in [
                        ("ns_min", "min"),
                        ("ns_p50", "p50"),
                        ("ns_p99", "p99"),
                        ("ns_p999", "p99.9"),
                    ] {
                        report.first.insert(key.to_owned(), (row.more[name] * 1e3).into());
                    }
                    report.first.insert("faults".to_owned(), faults.into());
                }
                report.rows.push(row.ceiling("one warp copies one page", &ceiling));
            }
            if let Some(warps) = run.crowd {
                let row = bench.crowd(run, warps, clock)?;
                let together = warps.next_power_of_two();
                report.rows.push(match page_bytes / 8 / u64::from(together) {
                    0 | 1 => row,
                    _ => {
                        let few: Vec<u32> = (0..faults.min(CROWD_PAGES) as u32).collect();
                        let few = bare.ordered(page_bytes, &few)?;
                        let times = run.spread(|| bare.crowd(&few, together, clock))?;
                        row.ceiling(&format!("{together} warps copy it together"), &times.medians())
                    }
                });
            }
        }
        Ok(())
    }
}

/// Runs before the first that counts: after them every frame has been used once, since nothing is as slow as the first touch of
/// memory.
pub const WARM_RUNS: u32 = 3;

/// The kernels that time faults.
pub fn compile(machine: &Machine) -> Result<Module, CliError> {
    machine.compile("bench/latency.cu", SOURCE, "time_faults time_crowd_fault")
}

struct Latency {
    machine: Machine,
    data: Region<u64>,
    module: Module,
    tally: Tally,
    faults: u64,
    page_bytes: u64,
}

impl Latency {
    fn new(run: &Run<'_, LatencyArgs>, page_bytes: u64, faults: u64) -> Result<Self, CliError> {
        // Enough frames that no fault waits for one.
        let machine = Machine::open(&run.machine, page_bytes, faults * 2 + 64)?;
        let data = machine.vm.region::<u64>().name("data").read_only();
        let bench = Self {
            data: data.from_vec(fill(faults * page_bytes / 8, pattern)?)?,
            module: compile(&machine)?,
            tally: Tally::new(&machine)?,
            machine,
            faults,
            page_bytes,
        };
        // Each page is to be a fault.
        bench.data.advise(Advice::Random)?;
        bench.by_lanes(1, WARM_RUNS)?;
        Ok(bench)
    }

    /// One fault after the other by one warp of this many lanes.
    fn by_lanes(&self, lanes: u32, repeat: u32) -> Result<(Row, Said), CliError> {
        let faults = OneByOne::new(&self.machine, &self.module, self.faults)?;
        let (mut all, mut clock) = (Times::default(), Said::default());
        for _ in 0..repeat {
            self.data.evict()?;
            let (times, said, stats) = faults.run(&self.data, lanes)?;
            // A page that was there already was not a fault, and its time not one of a fault's.
            if stats.faults != self.faults {
                return Err(CliError::NotCold {
                    faults: stats.faults,
                    pages: self.faults,
                });
            }
            all.add(times);
            clock = said;
        }
        let row = all
            .row("one fault at a time, p50")
            .with("page", size(self.page_bytes))
            .with("lanes", lanes)
            .and("faults", self.faults as f64)
            .verified(self.faults * u64::from(lanes), "words");
        Ok((row, clock))
    }

    /// Many warps that wait for the same page.
    fn crowd(&self, run: &Run<'_, LatencyArgs>, warps: u32, clock: Said) -> Result<Row, CliError> {
        let kernel = self.module.kernel("time_crowd_fault")?;
        let (pages, page_words, lanes) = (self.faults.min(CROWD_PAGES), self.machine.page_words, u64::from(warps));
        let times = run.spread(|| {
            self.data.evict()?;
            let mut times = Vec::new();
            for page in 0..pages {
                let took = self.machine.upload(&[0u64])?;
                let args = (&self.data, page, page_words, &took, self.tally.arg());
                self.tally.run(&kernel, LaunchConfig::new(warps, 32), args, lanes)?;
                times.extend(microseconds(&self.machine, &took, clock)?);
            }
            Ok(times)
        })?;
        Ok(times
            .row("one page for many warps, p50")
            .with("page", size(self.page_bytes))
            .with("warps", warps)
            .verified(pages * lanes * 32, "words"))
    }
}

/// Reads of page after page by one warp of an otherwise idle GPU, each timed by the GPU's clock.
pub struct OneByOne<'a> {
    machine: &'a Machine,
    kernel: Kernel,
    tally: Tally,
    took: Buffer<u64>,
    pages: u64,
}

impl<'a> OneByOne<'a> {
    /// Of that many pages, by the [compiled](compile) kernels.
    pub fn new(machine: &'a Machine, module: &Module, pages: u64) -> Result<Self, CliError> {
        Ok(Self {
            kernel: module.kernel("time_faults")?,
            tally: Tally::new(machine)?,
            took: machine.vm.buffer(pages)?,
            machine,
            pages,
        })
    }

    /// Microseconds that each page took, ascending; and what was counted meanwhile.
    pub fn run(&self, data: &Region<u64>, lanes: u32) -> Result<(Vec<f64>, Said, Stats), CliError> {
        let ((_, said), stats) = self.machine.counted(|| {
            let args = (data, self.machine.page_words, &self.took, self.tally.arg());
            self.tally
                .run(&self.kernel, LaunchConfig::new(1, lanes), args, self.pages)
        })?;
        Ok((microseconds(self.machine, &self.took, said)?, said, stats))
    }
}
