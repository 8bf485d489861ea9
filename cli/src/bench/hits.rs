//! Accesses whose page is there, beside the raw pointer.

use clap::Args;
use gpuvm::{Buffer, Kernel, LaunchConfig, Module, Region};

use crate::bench::args::parse_data;
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{self, Machine, Tally, fill, hash, must_be_right, shuffled, size, with_resources};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

/// Accesses that find their page.
#[derive(Debug, Args)]
pub struct HitsArgs {
    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data, all of it resident. Without it: 16 GiB, and 16 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Accesses of one thread, a multiple of 32. Without it: 256, and 64 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = parse_turns)]
    pub accesses: Option<u32>,
}

fn parse_turns(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(count) if count.is_multiple_of(32) && (32..=65_536).contains(&count) => Ok(count),
        _ => Err("a multiple of 32 from 32 to 65536".to_owned()),
    }
}

const SOURCE: &str = include_str!("hits.cu");
const KERNELS: &str = "fill_values warm_pages gather_raw gather_paged gather_resident rows_raw rows_paged rows_span rows_reader rows_cursor \
                       stream_raw stream_paged";

/// What word `index` holds; `hits.cu` has the same rule.
fn value_of(index: u64) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995
}

/// Where the k-th access of a thread goes; `hits.cu` has the same rule.
fn place_of(thread: u64, k: u32, words: u64) -> u64 {
    let mixed = hash(
        (thread as u32)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(k.wrapping_mul(40_503)),
    );
    // Below 2^32 * 2^31: sizes are limited to 8 TiB.
    u64::from(mixed).wrapping_mul(words) >> 32
}

/// What a kernel reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    Gather,
    Rows,
    Stream,
}

/// Ways to the elements of a region whose pages may leave, and their kernels.
fn paged(walk: Walk) -> &'static [(&'static str, &'static str)] {
    match walk {
        Walk::Gather => &[("a[i]", "gather_paged")],
        Walk::Rows => &[
            ("a[i]", "rows_paged"),
            ("span", "rows_span"),
            ("reader", "rows_reader"),
            ("cursor", "rows_cursor"),
        ],
        Walk::Stream => &[("pin", "stream_paged")],
    }
}

/// Ways to the elements of a region that is never evicted, and their kernels.
fn kept(walk: Walk) -> &'static [(&'static str, &'static str)] {
    match walk {
        Walk::Gather => &[("never evicted", "gather_paged"), ("resident()", "gather_resident")],
        Walk::Rows => &[
            ("never evicted", "rows_paged"),
            ("never evicted, cursor", "rows_cursor"),
        ],
        Walk::Stream => &[("never evicted", "stream_paged")],
    }
}

impl Benchmark for HitsArgs {
    const NAME: &'static str = "hits";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let bytes = run.data.unwrap_or(run.usual(16 << 30, 16 << 20));
        for &page_bytes in &run.page_size {
            // A gather's random number has 32 bits, and whole pages are read.
            if bytes < page_bytes || bytes > 16 << 30 {
                return Err(CliError::Options(format!(
                    "--data {bytes} bytes; hits take one page of {} to 16 GiB",
                    size(page_bytes)
                )));
            }
            Hits::new(run, page_bytes, bytes / page_bytes * page_bytes)?.rows(report)?;
        }
        Ok(())
    }
}

struct Hits<'a> {
    run: &'a Run<'a, HitsArgs>,
    machine: Machine,
    module: Module,
    tally: Tally,
    paged: Region<u32>,
    kept: Region<u32>,
    raw: Buffer<u32>,
    page_bytes: u64,
    words: u64,
    accesses: u32,
    config: LaunchConfig,
    warps: u64,
}

impl<'a> Hits<'a> {
    fn new(run: &'a Run<'a, HitsArgs>, page_bytes: u64, bytes: u64) -> Result<Self, CliError> {
        let (pages, words) = (bytes / page_bytes, bytes / 4);
        let machine = Machine::open(&run.machine, page_bytes, pages + Machine::reserve(pages))?;
        let region = |name: &str| machine.vm.region::<u32>().name(name).read_only();
        let paged = region("data").from_vec(fill(words, value_of)?);
        let kept = region("kept").never_evicted().from_vec(fill(words, value_of)?);
        let (config, warps) = machine.most_warps();
        let hits = Self {
            module: machine.compile("bench/hits.cu", SOURCE, KERNELS)?,
            tally: Tally::new(&machine)?,
            paged: paged?,
            kept: kept?,
            raw: machine.vm.buffer(words)?,
            accesses: run.accesses.unwrap_or(run.usual(256, 64)),
            machine,
            run,
            page_bytes,
            words,
            config,
            warps,
        };
        let fill = hits.kernel("fill_values")?;
        let (config, _) = hits.machine.many_warps();
        hits.tally
            .run(&fill, config, (&hits.raw, words, hits.tally.arg()), words)?;
        hits.warm(&hits.paged)?;
        hits.warm(&hits.kept)?;
        Ok(hits)
    }

    fn kernel(&self, name: &str) -> Result<Kernel, CliError> {
        self.module.kernel(name).map_err(CliError::Vm)
    }

    /// Brings every page, in a random order.
    fn warm(&self, region: &Region<u32>) -> Result<(), CliError> {
        let pages = self.words * 4 / self.page_bytes;
        let order = self.machine.upload(&shuffled(pages, 11))?;
        let (config, _) = self.machine.many_warps();
        let args = (region, &order, pages, self.page_bytes / 4, self.tally.arg());
        self.tally.run(&self.kernel("warm_pages")?, config, args, pages)?;
        Ok(())
    }

    fn rows(&self, report: &mut Report) -> Result<(), CliError> {
        for (walk, raw, name) in [
            (Walk::Gather, "gather_raw", "random gather of 4 B"),
            (Walk::Rows, "rows_raw", "32 neighbouring words a thread"),
            (Walk::Stream, "stream_raw", "streaming read"),
        ] {
            let sum = self.expected(walk);
            let ceiling = self.time(walk, raw, Operand::Raw, sum)?;
            let row = |access: &str, runs: Runs| {
                let row = Row::new(name, unit(walk), runs.0)
                    .with("page", size(self.page_bytes))
                    .with("data", size(self.words * 4))
                    .with("access", access)
                    .verified(self.count(walk), "words in a sum");
                let row = self.run.beside(row);
                if access == "raw pointer" {
                    row
                } else {
                    row.ceiling("raw pointer", &ceiling)
                }
            };
            let raw = self.kernel(raw)?;
            report
                .rows
                .push(with_resources(row("raw pointer", ceiling.clone()), &raw));
            for (access, kernel) in paged(walk) {
                let timed = || self.time(walk, kernel, Operand::Paged(&self.paged), sum);
                let (runs, stats) = self.machine.counted(timed)?;
                if stats.faults != 0 {
                    return Err(CliError::NotCold {
                        faults: stats.faults,
                        pages: 0,
                    });
                }
                report
                    .rows
                    .push(with_resources(row(access, runs), &self.kernel(kernel)?));
            }
            for (access, kernel) in kept(walk) {
                let runs = self.time(walk, kernel, Operand::Paged(&self.kept), sum)?;
                report
                    .rows
                    .push(with_resources(row(access, runs), &self.kernel(kernel)?));
            }
        }
        Ok(())
    }

    /// Words that a launch reads.
    fn count(&self, walk: Walk) -> u64 {
        match walk {
            Walk::Gather | Walk::Rows => self.warps * 32 * u64::from(self.accesses),
            Walk::Stream => self.words,
        }
    }

    /// The sum of a launch's words as the lanes make it: each in 32 bits, together in 64.
    fn expected(&self, walk: Walk) -> u64 {
        let (words, accesses) = (self.words, self.accesses);
        let lane = |thread: u64| -> u32 {
            let add = |sum: u32, index: u64| sum.wrapping_add(value_of(index));
            match walk {
                Walk::Gather => (0..accesses).map(|k| place_of(thread, k, words)).fold(0, add),
                _ => (0..accesses)
                    .step_by(32)
                    .map(|k| place_of(thread, k, words / 32) * 32)
                    .flat_map(|first| first..first + 32)
                    .fold(0, add),
            }
        };
        match walk {
            Walk::Stream => machine::sum(words, |index| u64::from(value_of(index))) & u64::from(u32::MAX),
            _ => machine::sum(self.warps * 32, |thread| u64::from(lane(thread))),
        }
    }

    /// Billions of accesses, or of bytes, a second.
    fn time(&self, walk: Walk, kernel: &str, operand: Operand<'_>, sum: u64) -> Result<Runs, CliError> {
        let kernel = self.kernel(kernel)?;
        let threads = self.warps * 32;
        let (page_words, pages) = (self.page_bytes / 4, self.words * 4 / self.page_bytes);
        let tally = self.tally.arg();
        let runs = self.run.times(|| {
            // No spans are declared: every page is there, so that they need no frames.
            let (launch, config) = (&self.tally, self.config.clone());
            let (words, accesses) = (self.words, self.accesses);
            let (seconds, said) = match (walk, operand) {
                (Walk::Stream, Operand::Raw) => {
                    launch.run(&kernel, config, (&self.raw, words, page_words, tally), pages)
                }
                (Walk::Stream, Operand::Paged(region)) => {
                    launch.run(&kernel, config, (region, page_words, tally), pages)
                }
                (_, Operand::Raw) => launch.run(&kernel, config, (&self.raw, words, accesses, tally), threads),
                (_, Operand::Paged(region)) => launch.run(&kernel, config, (region, accesses, tally), threads),
            }?;
            // A streaming lane's pages, and so its 32-bit sum, depend on nothing that the host repeats.
            let (mask, bytes) = match walk {
                Walk::Stream => (u64::from(u32::MAX), 4.0),
                _ => (u64::MAX, 1.0),
            };
            let what = format!("the sum of {}", kernel.info().name);
            must_be_right(u64::from((said.sum ^ sum) & mask != 0), self.count(walk), &what)?;
            Ok(self.count(walk) as f64 * bytes / seconds / 1e9)
        })?;
        Ok(Runs(runs))
    }
}

#[derive(Clone, Copy)]
enum Operand<'a> {
    Raw,
    Paged(&'a Region<u32>),
}

fn unit(walk: Walk) -> Unit {
    match walk {
        Walk::Gather | Walk::Rows => Unit::GigaAccesses,
        Walk::Stream => Unit::GigaBytes,
    }
}
