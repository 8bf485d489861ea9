//! The time of one fault.

use gpuvm::{Advice, Buffer, Kernel, LaunchConfig, Module, Region, Stats};

use crate::bench::args::{HomeArg, LatencyArgs};
use crate::bench::machine::{Machine, Said, Tally, fill, pattern, size};
use crate::bench::raw::{Raw, microseconds, quantile};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("latency.cu");
const KERNELS: [&str; 3] = ["time_faults", "time_crowd_fault", "walk_pages"];
/// Pages from one that a walk reads to the next.
const WALK_STRIDES: [u64; 2] = [1, 3];
/// Pages that a crowd waits for, one after the other.
const CROWD_PAGES: u64 = 32;

/// Measures.
pub fn measure(args: &LatencyArgs) -> Result<Report, CliError> {
    let probe = Machine::probe(&args.machine)?;
    let mut report = Report::new("latency", probe.facts(&args.machine));
    for &page_bytes in &args.page_size {
        let bytes_max = if probe.is_cuda() { 512 << 20 } else { 16 << 20 };
        let faults = args.faults.min((bytes_max / page_bytes).max(1));
        let bench = Latency::new(args, page_bytes, faults)?;
        let bare = Raw::new(&probe, HomeArg::Host, faults * page_bytes)?;
        let pages = bare.pages(page_bytes, true)?;
        let mut ceilings = Vec::new();
        for _ in 0..args.output.repeat {
            ceilings.push(quantile(&bare.one_page(&pages)?, 0.5));
        }
        let ceiling = Runs(ceilings);
        let mut clock = Said::default();
        for &lanes in &args.lanes {
            let (row, said) = bench.by_lanes(lanes, args.output.repeat)?;
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
        for &warps in &args.walks {
            if faults < u64::from(warps) {
                report.skip(
                    &format!("walks of {warps} warps"),
                    "more warps than pages: see --faults",
                );
                continue;
            }
            report.rows.extend(bench.walks(warps, args.output.repeat)?);
        }
        if let Some(warps) = args.crowd {
            let row = bench.crowd(warps, clock, args.output.repeat)?;
            let part = page_bytes / 8 / u64::from(warps.next_power_of_two());
            if part < 2 {
                report.rows.push(row);
                continue;
            }
            let few = bare.ordered(page_bytes, &(0..faults.min(CROWD_PAGES) as u32).collect::<Vec<_>>())?;
            let together = warps.next_power_of_two();
            let mut ceilings = Vec::new();
            for _ in 0..args.output.repeat {
                ceilings.push(quantile(&bare.crowd(&few, together, clock)?, 0.5));
            }
            report
                .rows
                .push(row.ceiling(&format!("{together} warps copy it together"), &Runs(ceilings)));
        }
    }
    Ok(report)
}

/// Runs before the first that counts: after them every frame has been used once, since nothing is as slow as the first touch of
/// memory.
pub const WARM_RUNS: u32 = 3;

/// The kernels that time faults.
pub fn compile(machine: &Machine) -> Result<Module, CliError> {
    machine.compile("bench/latency.cu", SOURCE, &KERNELS)
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
    fn new(args: &LatencyArgs, page_bytes: u64, faults: u64) -> Result<Self, CliError> {
        // Enough frames that no fault waits for one.
        let machine = Machine::open(&args.machine, page_bytes, faults * 2 + 64)?;
        let words = faults * page_bytes / 8;
        let data = machine.vm.region::<u64>().name("data").read_only();
        let bench = Self {
            data: data.from_vec(fill(words, pattern)?)?,
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

    /// Walks of so many warps through absent pages, a stride apart, with read ahead and without.
    fn walks(&self, warps: u32, repeat: u32) -> Result<Vec<Row>, CliError> {
        let kernel = self.module.kernel("walk_pages")?;
        let part = self.faults / u64::from(warps);
        let ways = WALK_STRIDES.map(|stride| [(stride, Advice::Normal), (stride, Advice::Random)]);
        let mut rows = Vec::new();
        for (stride, advice) in ways.into_iter().flatten() {
            self.data.advise(advice)?;
            let pages = part.div_ceil(stride);
            let (mut times, mut ahead) = (Vec::new(), 0);
            for _ in 0..repeat {
                self.data.evict()?;
                let before = self.machine.vm.stats()?;
                let args = (&self.data, self.machine.page_words, stride, self.tally.arg());
                let config = LaunchConfig::new(warps, 32);
                let (seconds, _) = self.tally.run(&kernel, config, args, pages * u64::from(warps))?;
                times.push(seconds * 1e6 / pages as f64);
                let stats = self.machine.vm.stats()?.difference(&before);
                ahead = stats.read_ahead;
            }
            let row = Row::new("a walk, each page of a warp", Unit::Microseconds, times)
                .with("page", size(self.page_bytes))
                .with("stride", stride)
                .with("warps", warps)
                .with("advice", format!("{advice:?}").to_lowercase())
                .and("read ahead", ahead as f64)
                .verified(pages * u64::from(warps) * 32, "words");
            rows.push(row);
        }
        self.data.advise(Advice::Random)?;
        Ok(rows)
    }

    /// One fault after the other by one warp of so many lanes.
    fn by_lanes(&self, lanes: u32, repeat: u32) -> Result<(Row, Said), CliError> {
        let faults = OneByOne::new(&self.machine, &self.module, self.faults)?;
        let (mut medians, mut all, mut clock) = (Vec::new(), Vec::new(), Said::default());
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
            medians.push(quantile(&times, 0.5));
            all.extend(times);
            clock = said;
        }
        let row = spread("one fault at a time, p50", medians, all)
            .with("page", size(self.page_bytes))
            .with("lanes", lanes)
            .and("faults", self.faults as f64)
            .verified(self.faults * u64::from(lanes), "words");
        Ok((row, clock))
    }

    /// Many warps that wait for the same page.
    fn crowd(&self, warps: u32, clock: Said, repeat: u32) -> Result<Row, CliError> {
        let kernel = self.module.kernel("time_crowd_fault")?;
        let pages = self.faults.min(CROWD_PAGES);
        let (mut medians, mut all) = (Vec::new(), Vec::new());
        for _ in 0..repeat {
            self.data.evict()?;
            let mut times = Vec::new();
            for page in 0..pages {
                let took = self.machine.upload(&[0u64])?;
                let args = (&self.data, page, self.machine.page_words, &took, self.tally.arg());
                self.tally
                    .run(&kernel, LaunchConfig::new(warps, 32), args, u64::from(warps))?;
                times.extend(microseconds(&self.machine, &took, clock)?);
            }
            times.sort_by(f64::total_cmp);
            medians.push(quantile(&times, 0.5));
            all.extend(times);
        }
        all.sort_by(f64::total_cmp);
        Ok(Row::new("one page for many warps, p50", Unit::Microseconds, medians)
            .with("page", size(self.page_bytes))
            .with("warps", warps)
            .and("min", quantile(&all, 0.0))
            .and("p99", quantile(&all, 0.99))
            .verified(pages * u64::from(warps) * 32, "words"))
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
        let before = self.machine.vm.stats()?;
        let args = (data, self.machine.page_words, &self.took, self.tally.arg());
        let (_, said) = self
            .tally
            .run(&self.kernel, LaunchConfig::new(1, lanes), args, self.pages)?;
        let stats = self.machine.vm.stats()?.difference(&before);
        Ok((microseconds(self.machine, &self.took, said)?, said, stats))
    }
}

/// The medians of runs, and how the times of all of them spread.
pub fn spread(name: &str, medians: Vec<f64>, mut all: Vec<f64>) -> Row {
    all.sort_by(f64::total_cmp);
    Row::new(name, Unit::Microseconds, medians)
        .and("min", quantile(&all, 0.0))
        .and("p50", quantile(&all, 0.5))
        .and("p99", quantile(&all, 0.99))
        .and("p99.9", quantile(&all, 0.999))
}
