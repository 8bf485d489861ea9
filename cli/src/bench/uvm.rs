//! The access patterns of `faults` through CUDA's managed memory.

use gpuvm::{Kernel, LaunchConfig, Module};
use gpuvm_gpu::cuda::{Advice, Managed, Side};

use crate::bench::args::{HomeArg, UvmArgs};
use crate::bench::door::{Door, move_to};
use crate::bench::machine::{Machine, Tally, shuffled, size};
use crate::bench::raw::{Raw, microseconds, quantile};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("uvm.cu");
const KERNELS: [&str; 3] = ["fill_managed", "touch_managed", "time_managed"];
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

/// Measures.
pub fn measure(args: &UvmArgs) -> Result<Report, CliError> {
    let machine = Machine::probe(&args.machine)?;
    let door = Door::open(&machine, &args.machine, "managed memory")?;
    let bytes = args.data / PAGE_BYTES * PAGE_BYTES;
    let pages = bytes / PAGE_BYTES;
    if pages < args.sparse.max(args.faults) || pages > u64::from(u32::MAX) {
        return Err(CliError::Options(format!(
            "--data of {pages} pages of 4 KiB; it must hold --sparse ({}) and --faults ({}) pages, and at most 2^32",
            args.sparse, args.faults
        )));
    }
    let uvm = Uvm {
        module: machine.compile("bench/uvm.cu", SOURCE, &KERNELS)?,
        tally: Tally::new(&machine)?,
        door: &door,
        machine: &machine,
        args,
        bytes,
    };
    let mut report = Report::new("uvm", machine.facts(&args.machine));
    let ceiling = {
        let raw = Raw::new(&machine, HomeArg::Host, bytes)?;
        let rates = raw.fetch(&raw.pages(PAGE_BYTES, true)?, args.output.repeat)?;
        Runs(rates.0.iter().map(|rate| rate * PAGE_BYTES as f64 / 1e9).collect())
    };
    for told in Told::ALL {
        for (name, order) in [
            ("every page, ascending", (0..pages as u32).collect()),
            ("every page, random", shuffled(pages, 7)),
            (
                "some pages, random",
                shuffled(pages, 7)[..args.sparse as usize].to_vec(),
            ),
        ] {
            let row: Row = uvm.touch(name, &order, told)?;
            report.rows.push(row.ceiling("bare page reads", &ceiling));
        }
        if told != Told::Prefetch {
            report.rows.push(uvm.serial(told)?);
        }
    }
    Ok(report)
}

struct Uvm<'a> {
    machine: &'a Machine,
    module: Module,
    tally: Tally,
    door: &'a Door,
    args: &'a UvmArgs,
    bytes: u64,
}

impl Uvm<'_> {
    fn kernel(&self, name: &str) -> Result<Kernel, CliError> {
        self.module.kernel(name).map_err(CliError::Vm)
    }

    /// New managed memory whose pages are all on the host, with the driver told; and the seconds that a prefetch took.
    /// New for each run: what the driver learned or duplicated is gone.
    fn cold(&self, told: Told) -> Result<(Managed, f64), CliError> {
        let memory = self.door.managed(self.bytes)?;
        let words = self.bytes / 8;
        let (config, _) = self.machine.many_warps();
        let args = (memory.addr(), words, self.tally.arg());
        self.tally.run(&self.kernel("fill_managed")?, config, args, words)?;
        move_to(&memory, Side::Host)?;
        let seconds = match told {
            Told::Nothing => 0.0,
            Told::Advice(advice) => memory.advise(advice).map(|()| 0.0)?,
            Told::Prefetch => move_to(&memory, Side::Gpu)?,
        };
        Ok((memory, seconds))
    }

    fn touch(&self, name: &str, order: &[u32], told: Told) -> Result<Row, CliError> {
        let kernel = self.kernel("touch_managed")?;
        let count = order.len() as u64;
        let order = self.machine.upload(order)?;
        let mut rates = Vec::new();
        for _ in 0..self.args.output.repeat {
            let (memory, before) = self.cold(told)?;
            let (config, _) = self.machine.many_warps();
            let args = (memory.addr(), &order, count, PAGE_BYTES / 8, self.tally.arg());
            let (seconds, _) = self.tally.run(&kernel, config, args, count)?;
            rates.push((count * PAGE_BYTES) as f64 / (before + seconds) / 1e9);
        }
        Ok(Row::new(name, Unit::GigaBytes, rates)
            .with("data", size(self.bytes))
            .with("advice", told.name())
            .with("touched", count)
            .verified(count, "pages"))
    }

    fn serial(&self, told: Told) -> Result<Row, CliError> {
        let kernel = self.kernel("time_managed")?;
        let faults = self.args.faults;
        // As far apart as the data allows: the driver moves neighbours too.
        let stride = self.bytes / faults / PAGE_BYTES * PAGE_BYTES / 8;
        let took = self.machine.vm.buffer::<u64>(faults)?;
        let (mut medians, mut all) = (Vec::new(), Vec::new());
        for _ in 0..self.args.output.repeat {
            let (memory, _) = self.cold(told)?;
            let args = (memory.addr(), faults, stride, &took, self.tally.arg());
            let (_, said) = self.tally.run(&kernel, LaunchConfig::new(1, 1), args, faults)?;
            let times = microseconds(self.machine, &took, said)?;
            medians.push(quantile(&times, 0.5));
            all.extend(times);
        }
        all.sort_by(f64::total_cmp);
        Ok(Row::new("one fault at a time, p50", Unit::Microseconds, medians)
            .with("data", size(self.bytes))
            .with("advice", told.name())
            .and("min", quantile(&all, 0.0))
            .and("p99", quantile(&all, 0.99))
            .verified(faults, "words"))
    }
}
