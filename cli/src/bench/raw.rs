//! Bare page kernels over memory where the home is: the ceilings.

use gpuvm::{Buffer, Kernel, LaunchConfig, Module};

use crate::bench::args::HomeArg;
use crate::bench::machine::{Machine, RawMemory, Said, Tally, shuffled};
use crate::bench::report::Runs;
use crate::error::CliError;

const SOURCE: &str = include_str!("raw.cu");
const KERNELS: [&str; 11] = [
    "fill_pattern",
    "clear_words",
    "copy_pages",
    "copy_parts",
    "copy_both",
    "check_pages",
    "check_words",
    "time_pages",
    "time_crowd",
    "time_loads",
    "time_round_trips",
];

/// A home that holds the pattern, frames for all of it, and the kernels that copy between them.
pub struct Raw<'a> {
    machine: &'a Machine,
    module: Module,
    tally: Tally,
    home: RawMemory,
    frames: RawMemory,
    bytes: u64,
}

/// What kernels need to know of pages.
pub struct Pages {
    /// Words of a page.
    words: u64,
    /// How many there are.
    pub count: u64,
    order: Buffer<u32>,
}

impl<'a> Raw<'a> {
    /// Memory of `bytes`, twice.
    pub fn new(machine: &'a Machine, home: HomeArg, bytes: u64) -> Result<Self, CliError> {
        Self::over(
            machine,
            machine.memory(home, bytes)?,
            machine.device_memory(bytes)?,
            bytes,
        )
    }

    /// Memory of `bytes`, twice, all of it in the GPU.
    pub fn inside(machine: &'a Machine, bytes: u64) -> Result<Self, CliError> {
        Self::over(
            machine,
            machine.device_memory(bytes)?,
            machine.device_memory(bytes)?,
            bytes,
        )
    }

    /// Bare kernels over memory that is there already; both parts hold `bytes`.
    pub fn over(machine: &'a Machine, home: RawMemory, frames: RawMemory, bytes: u64) -> Result<Self, CliError> {
        let raw = Self {
            module: machine.compile("bench/raw.cu", SOURCE, &KERNELS)?,
            tally: Tally::new(machine)?,
            home,
            frames,
            machine,
            bytes,
        };
        raw.fill(raw.home.addr())?;
        Ok(raw)
    }

    /// One of `raw.cu`'s kernels.
    pub fn kernel(&self, name: &str) -> Result<Kernel, CliError> {
        self.module.kernel(name).map_err(CliError::Vm)
    }

    /// The home's address for kernels.
    pub fn home(&self) -> u64 {
        self.home.addr()
    }

    /// The frames' address.
    pub fn frames(&self) -> u64 {
        self.frames.addr()
    }

    /// What launches say of themselves.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Zeroes the frames.
    pub fn clear_frames(&self) -> Result<(), CliError> {
        self.clear(self.frames.addr(), self.bytes)
    }

    /// Zeroes the first `bytes` of the frames.
    pub fn clear_frames_below(&self, bytes: u64) -> Result<(), CliError> {
        self.clear(self.frames.addr(), bytes)
    }

    /// Zeroes the home.
    pub fn clear_home(&self) -> Result<(), CliError> {
        self.clear(self.home.addr(), self.bytes)
    }

    /// Zeroes the home from byte `first` on.
    pub fn clear_home_from(&self, first: u64) -> Result<(), CliError> {
        self.clear(self.home.addr() + first, self.bytes - first)
    }

    /// Compares all frames with the home's pattern, where they hold it word for word.
    pub fn check_frames(&self) -> Result<(), CliError> {
        self.check_words(self.frames.addr())
    }

    /// Compares the home with its pattern.
    pub fn check_home(&self) -> Result<(), CliError> {
        self.check_words(self.home.addr())
    }

    /// Compares the first `count` slots with the pages that belong there.
    pub fn check_slots(&self, pages: &Pages, count: u64) -> Result<(), CliError> {
        self.check(self.frames.addr(), pages, 0, count, true)
    }

    fn check_words(&self, memory: u64) -> Result<(), CliError> {
        let words = self.bytes / 8;
        let (config, _) = self.machine.many_warps();
        let args = (memory, words, self.tally.arg());
        self.tally.run(&self.kernel("check_words")?, config, args, words)?;
        Ok(())
    }

    fn fill(&self, memory: u64) -> Result<(), CliError> {
        let words = self.bytes / 8;
        let (config, _) = self.machine.many_warps();
        let args = (memory, words, self.tally.arg());
        self.tally.run(&self.kernel("fill_pattern")?, config, args, words)?;
        Ok(())
    }

    fn clear(&self, memory: u64, bytes: u64) -> Result<(), CliError> {
        let words = bytes / 8;
        let (config, _) = self.machine.many_warps();
        let args = (memory, words, self.tally.arg());
        self.tally.run(&self.kernel("clear_words")?, config, args, words)?;
        Ok(())
    }

    /// All pages of that size, in a random order or in theirs.
    pub fn pages(&self, page_bytes: u64, random: bool) -> Result<Pages, CliError> {
        let count = self.bytes / page_bytes;
        self.ordered(
            page_bytes,
            &if random {
                shuffled(count, 7)
            } else {
                (0..count as u32).collect()
            },
        )
    }

    /// Pages in that order; none outside the memory.
    pub fn ordered(&self, page_bytes: u64, order: &[u32]) -> Result<Pages, CliError> {
        Ok(Pages {
            words: page_bytes / 8,
            count: order.len() as u64,
            order: self.machine.upload(order)?,
        })
    }

    fn check(&self, memory: u64, pages: &Pages, first: u64, count: u64, in_slots: bool) -> Result<(), CliError> {
        let (config, _) = self.machine.many_warps();
        let args = (
            memory,
            &pages.order,
            first,
            count,
            pages.words,
            u32::from(in_slots),
            self.tally.arg(),
        );
        self.tally.run(&self.kernel("check_pages")?, config, args, count)?;
        Ok(())
    }

    /// Pages a second from the home into frames, once for each run. Every word is verified.
    pub fn fetch(&self, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        let rates = (0..runs).map(|_| self.copy_once(pages, false));
        Ok(Runs(rates.collect::<Result<_, _>>()?))
    }

    /// Pages a second of one copy, to the frames or back to the home, into memory that was cleared before.
    fn copy_once(&self, pages: &Pages, back: bool) -> Result<f64, CliError> {
        let kernel = self.kernel("copy_pages")?;
        let (home, frames) = (self.home.addr(), self.frames.addr());
        let target = if back { home } else { frames };
        self.clear(target, self.bytes)?;
        let (config, _) = self.machine.many_warps();
        let args = (
            home,
            frames,
            &pages.order,
            pages.count,
            pages.words,
            u32::from(back),
            self.tally.arg(),
        );
        let (seconds, _) = self.tally.run(&kernel, config, args, pages.count)?;
        self.check(target, pages, 0, pages.count, !back)?;
        Ok(pages.count as f64 / seconds)
    }

    /// Pages a second from frames to the home. The home holds the pattern again afterwards.
    pub fn write_back(&self, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        self.fetch(pages, 1)?;
        let rates = (0..runs).map(|_| self.copy_once(pages, true));
        let rates = rates.collect::<Result<_, _>>()?;
        self.fill(self.home.addr())?;
        Ok(Runs(rates))
    }

    /// Pages a second into frames while `share` times as many flow back from other frames to other pages.
    pub fn both(&self, pages: &Pages, share: f64, runs: u32) -> Result<Runs, CliError> {
        let kernel = self.kernel("copy_both")?;
        let (home, frames) = (self.home.addr(), self.frames.addr());
        let split = (pages.count / 2).max(1);
        let reads = split;
        let writes = ((split as f64 * share) as u64).min(pages.count - split);
        let mut rates = Vec::new();
        for _ in 0..runs {
            self.fill(home)?;
            // The pages to be written are in their frames, and nowhere else.
            self.fetch(pages, 1)?;
            self.clear(home, self.bytes)?;
            self.refill(pages, &kernel, split)?;
            self.clear(frames, split * pages.words * 8)?;
            let (config, _) = self.machine.many_warps();
            let args = (
                home,
                frames,
                &pages.order,
                reads,
                split,
                writes,
                pages.words,
                self.tally.arg(),
            );
            let (seconds, _) = self.tally.run(&kernel, config, args, reads + writes)?;
            self.check(frames, pages, 0, reads, true)?;
            self.check(home, pages, split, writes, false)?;
            rates.push(reads as f64 / seconds);
        }
        self.fill(home)?;
        Ok(Runs(rates))
    }

    /// Writes the first `count` pages of the order home.
    fn refill(&self, pages: &Pages, both: &Kernel, count: u64) -> Result<(), CliError> {
        let (config, _) = self.machine.many_warps();
        let args = (
            self.home.addr(),
            self.frames.addr(),
            &pages.order,
            0u64,
            0u64,
            count,
            pages.words,
            self.tally.arg(),
        );
        self.tally.run(both, config, args, count)?;
        Ok(())
    }

    /// Microseconds that one warp takes for one page: those of each page, ascending.
    pub fn one_page(&self, pages: &Pages) -> Result<Vec<f64>, CliError> {
        let took = self.machine.vm.buffer::<u64>(pages.count)?;
        let args = (
            self.home.addr(),
            self.frames.addr(),
            &pages.order,
            pages.count,
            pages.words,
            &took,
            self.tally.arg(),
        );
        let config = LaunchConfig::new(1, 32);
        let (_, said) = self.tally.run(&self.kernel("time_pages")?, config, args, pages.count)?;
        self.check(self.frames.addr(), pages, 0, pages.count, true)?;
        microseconds(self.machine, &took, said)
    }

    /// Microseconds until `warps` warps together have brought one page, for each of the pages.
    pub fn crowd(&self, pages: &Pages, warps: u32, said: Said) -> Result<Vec<f64>, CliError> {
        let kernel = self.kernel("time_crowd")?;
        let mut times = Vec::new();
        for page in 0..pages.count {
            let took = self.machine.upload(&[0u64])?;
            let offset = page * pages.words * 8;
            let args = (
                self.home.addr() + offset,
                self.frames.addr() + offset,
                pages.words,
                &took,
                self.tally.arg(),
            );
            let config = LaunchConfig::new(warps, 32);
            self.tally.run(&kernel, config, args, u64::from(warps))?;
            times.extend(microseconds(self.machine, &took, said)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

/// The same pages in the memory of several neighbours, page by page in turn.
pub struct Parts {
    /// Held for the kernels alone.
    _memory: Vec<RawMemory>,
    addresses: Buffer<u64>,
    count: u32,
}

impl Raw<'_> {
    /// The pages with those neighbours. What frames hold is lost.
    pub fn parts(&self, homes: &[HomeArg], page_bytes: u64) -> Result<Parts, CliError> {
        let each = self.bytes.div_ceil(page_bytes).div_ceil(homes.len() as u64) * page_bytes;
        let memory: Result<Vec<_>, _> = homes.iter().map(|&home| self.machine.memory(home, each)).collect();
        let memory = memory?;
        let addresses: Vec<u64> = memory.iter().map(RawMemory::addr).collect();
        let parts = Parts {
            addresses: self.machine.upload(&addresses)?,
            count: homes.len() as u32,
            _memory: memory,
        };
        self.fill(self.frames.addr())?;
        self.copy_parts(&parts, &self.pages(page_bytes, false)?, true)?;
        Ok(parts)
    }

    /// Pages a second from several neighbours into frames, once for each run. Every word is verified.
    pub fn fetch_parts(&self, parts: &Parts, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        let once = |_| {
            self.clear_frames()?;
            let seconds = self.copy_parts(parts, pages, false)?;
            self.check(self.frames.addr(), pages, 0, pages.count, true)?;
            Ok(pages.count as f64 / seconds)
        };
        Ok(Runs((0..runs).map(once).collect::<Result<_, CliError>>()?))
    }

    /// Copies pages to frames or back; the seconds that it took.
    fn copy_parts(&self, parts: &Parts, pages: &Pages, back: bool) -> Result<f64, CliError> {
        let (config, _) = self.machine.many_warps();
        let args = (
            &parts.addresses,
            parts.count,
            self.frames.addr(),
            &pages.order,
            pages.count,
            pages.words,
            u32::from(back),
            self.tally.arg(),
        );
        let (seconds, _) = self.tally.run(&self.kernel("copy_parts")?, config, args, pages.count)?;
        Ok(seconds)
    }
}

/// Ticks as microseconds, ascending.
pub fn microseconds(machine: &Machine, took: &Buffer<u64>, said: Said) -> Result<Vec<f64>, CliError> {
    let ticks_per_us = machine.ticks_per_us(said);
    let took = took.to_vec()?;
    let mut times: Vec<f64> = took.iter().map(|ticks| *ticks as f64 / ticks_per_us).collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The value that the share `quantile` of ascending `times` does not exceed.
pub fn quantile(times: &[f64], quantile: f64) -> f64 {
    match times.len() {
        0 => f64::NAN,
        count => times[((count - 1) as f64 * quantile).round() as usize],
    }
}
