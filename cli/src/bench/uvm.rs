//! The access patterns of `faults` through CUDA's managed memory.

use clap::Args;
use gpuvm::{Kernel, LaunchConfig, Module};
use gpuvm_gpu::cuda::{Advice, Managed, Side};

use crate::bench::args::{HomeArg, parse_data};
use crate::bench::door::{Door, move_to};
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, shuffled, size};
use crate::bench::raw::{self, Raw, microseconds};
use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;

/// Managed memory.
#[derive(Debug, Args)]
pub struct UvmArgs {
    /// The data; never more than 80 % of the GPU's free memory.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_data)]
    pub data: u64,

    /// Pages of 4 KiB that the sparse rows touch.
    #[arg(long, value_name = "PAGES", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub sparse: u64,

    /// Faults of the serial row.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub faults: u64,
}

const SOURCE: &str = include_str!("uvm.cu");
/// What counts as a page: the smallest piece that the driver moves.
const PAGE_BYTES: u64 = 4096;

/// What the driver is told before the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Advice(Advice),
    Prefetch,
}

impl Told {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Advice(Advice::ReadMostly),
        Self::Advice(Advice::AccessedBy(Side::Gpu)),
        Self::Advice(Advice::PreferredLocation(Side::Gpu)),
        Self::Prefetch,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Advice(Advice::ReadMostly) => "read mostly",
            Self::Advice(Advice::AccessedBy(_)) => "accessed by the GPU",
            Self::Advice(Advice::PreferredLocation(_)) => "preferred on the GPU",
            Self::Prefetch => "prefetched",
        }
    }
}

impl Benchmark for UvmArgs {
    const NAME: &'static str = "uvm";

    fn measure(run: &Run<'_, Self>, machine: Machine, report: &mut Report) -> Result<(), CliError> {
        let door = Door::open(&machine, &run.machine, "managed memory")?;
        let bytes = run.data / PAGE_BYTES * PAGE_BYTES;
        let pages = bytes / PAGE_BYTES;
        if pages < run.sparse.max(run.faults) || pages > u64::from(u32::MAX) {
            return Err(CliError::Options(format!(
                "--data of {pages} pages of 4 KiB; it must hold --sparse ({}) and --faults ({}) pages, and at most 2^32",
                run.sparse, run.faults
            )));
        }
        let uvm = Uvm {
            fill: raw::compile(&machine, "fill_pattern")?.kernel("fill_pattern")?,
            module: machine.compile("bench/uvm.cu", SOURCE, "touch_managed time_managed")?,
            tally: Tally::new(&machine)?,
            door: &door,
            machine: &machine,
            run,
            bytes,
        };
        let ceiling = {
            let raw = Raw::new(&machine, HomeArg::Host, bytes)?;
            raw.fetch(&raw.pages(PAGE_BYTES, true)?, run.repeat)?
                .times(PAGE_BYTES as f64 / 1e9)
        };
        let random = shuffled(pages, 7);
        for told in Told::ALL {
            for (name, order) in [
                ("every page, ascending", &(0..pages as u32).collect::<Vec<_>>()[..]),
                ("every page, random", &random),
                ("some pages, random", &random[..run.sparse as usize]),
            ] {
                let row = uvm.touch(name, order, told)?;
                report.rows.push(row.ceiling("bare page reads", &ceiling));
            }
            if told != Told::Prefetch {
                report.rows.push(uvm.serial(told)?);
            }
        }
        Ok(())
    }
}

struct Uvm<'a> {
    machine: &'a Machine,
    module: Module,
    fill: Kernel,
    tally: Tally,
    door: &'a Door,
    run: &'a Run<'a, UvmArgs>,
    bytes: u64,
}

impl Uvm<'_> {
    /// New managed memory whose pages are all on the host, with the driver told; and the seconds that a prefetch took.
    /// New for each run: what the driver learned or duplicated is gone.
    fn cold(&self, told: Told) -> Result<(Managed, f64), CliError> {
        let memory = self.door.managed(self.bytes)?;
        let words = self.bytes / 8;
        let (config, _) = self.machine.many_warps();
        let args = (memory.addr(), words, self.tally.arg());
        self.tally.run(&self.fill, config, args, words)?;
        move_to(&memory, Side::Host)?;
        let seconds = match told {
            Told::Nothing => 0.0,
            Told::Advice(advice) => memory.advise(advice).map(|()| 0.0)?,
            Told::Prefetch => move_to(&memory, Side::Gpu)?,
        };
        Ok((memory, seconds))
    }

    fn touch(&self, name: &str, order: &[u32], told: Told) -> Result<Row, CliError> {
        let kernel = self.module.kernel("touch_managed")?;
        let count = order.len() as u64;
        let order = self.machine.upload(order)?;
        let rates = self.run.times(|| {
            let (memory, before) = self.cold(told)?;
            let (config, _) = self.machine.many_warps();
            let args = (memory.addr(), &order, count, PAGE_BYTES / 8, self.tally.arg());
            let (seconds, _) = self.tally.run(&kernel, config, args, count)?;
            Ok((count * PAGE_BYTES) as f64 / (before + seconds) / 1e9)
        })?;
        Ok(Row::new(name, Unit::GigaBytes, rates)
            .with("data", size(self.bytes))
            .with("advice", told.name())
            .with("touched", count)
            .verified(count, "pages"))
    }

    fn serial(&self, told: Told) -> Result<Row, CliError> {
        let kernel = self.module.kernel("time_managed")?;
        let faults = self.run.faults;
        // As far apart as the data allows: the driver moves neighbours too.
        let stride = self.bytes / faults / PAGE_BYTES * PAGE_BYTES / 8;
        let took = self.machine.vm.buffer::<u64>(faults)?;
        let times = self.run.spread(|| {
            let (memory, _) = self.cold(told)?;
            let args = (memory.addr(), faults, stride, &took, self.tally.arg());
            let (_, said) = self.tally.run(&kernel, LaunchConfig::new(1, 1), args, faults)?;
            microseconds(self.machine, &took, said)
        })?;
        Ok(times
            .row("one fault at a time, p50")
            .with("data", size(self.bytes))
            .with("advice", told.name())
            .verified(faults, "words"))
    }
}
