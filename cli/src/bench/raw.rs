//! Bare page kernels over memory where the home is: the ceilings.

use gpuvm::{Buffer, Kernel, KernelArgs, LaunchConfig, Module};

use crate::bench::args::HomeArg;
use crate::bench::machine::{Machine, RawMemory, Said, Tally, shuffled};
use crate::bench::report::Runs;
use crate::error::CliError;

const SOURCE: &str = include_str!("raw.cu");
const KERNELS: &str = "fill_pattern clear_words copy_pages copy_parts copy_both check_pages check_words time_pages time_crowd time_loads \
                       time_round_trips";

/// Some of the kernels: of words that are filled with the pattern, cleared or compared, of pages that are copied.
pub fn compile(machine: &Machine, kernels: &str) -> Result<Module, CliError> {
    machine.compile("bench/raw.cu", SOURCE, kernels)
}

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
        let home = machine.memory(home, bytes)?;
        Self::over(machine, home, machine.device_memory(bytes)?, bytes)
    }

    /// Memory of `bytes`, twice, all of it in the GPU.
    pub fn inside(machine: &'a Machine, bytes: u64) -> Result<Self, CliError> {
        let home = machine.device_memory(bytes)?;
        Self::over(machine, home, machine.device_memory(bytes)?, bytes)
    }

    /// Bare kernels over memory that is there already; both parts hold `bytes`.
    pub fn over(machine: &'a Machine, home: RawMemory, frames: RawMemory, bytes: u64) -> Result<Self, CliError> {
        let raw = Self {
            module: compile(machine, KERNELS)?,
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
        self.clear(self.frames(), self.bytes)
    }

    /// Zeroes the first `bytes` of the frames.
    pub fn clear_frames_below(&self, bytes: u64) -> Result<(), CliError> {
        self.clear(self.frames(), bytes)
    }

    /// Zeroes the home.
    pub fn clear_home(&self) -> Result<(), CliError> {
        self.clear(self.home(), self.bytes)
    }

    /// Zeroes the home from byte `first` on.
    pub fn clear_home_from(&self, first: u64) -> Result<(), CliError> {
        self.clear(self.home() + first, self.bytes - first)
    }

    /// Compares all frames with the home's pattern, where they hold it word for word.
    pub fn check_frames(&self) -> Result<(), CliError> {
        self.check_words(self.frames())
    }

    /// Compares the home with its pattern.
    pub fn check_home(&self) -> Result<(), CliError> {
        self.check_words(self.home())
    }

    /// Compares the first `count` slots with the pages that belong there.
    pub fn check_slots(&self, pages: &Pages, count: u64) -> Result<(), CliError> {
        self.check(self.frames(), pages, 0, count, true)
    }

    fn check_words(&self, memory: u64) -> Result<(), CliError> {
        self.words("check_words", memory, self.bytes)
    }

    fn fill(&self, memory: u64) -> Result<(), CliError> {
        self.words("fill_pattern", memory, self.bytes)
    }

    fn clear(&self, memory: u64, bytes: u64) -> Result<(), CliError> {
        self.words("clear_words", memory, bytes)
    }

    /// Runs a kernel over all words of memory.
    fn words(&self, kernel: &str, memory: u64, bytes: u64) -> Result<(), CliError> {
        let words = bytes / 8;
        self.run(kernel, (memory, words, self.tally.arg()), words)?;
        Ok(())
    }

    /// Runs a kernel by many warps; the seconds that it took.
    fn run(&self, kernel: &str, args: impl KernelArgs, done: u64) -> Result<f64, CliError> {
        let (config, _) = self.machine.many_warps();
        Ok(self.tally.run(&self.kernel(kernel)?, config, args, done)?.0)
    }

    /// All pages of that size, in a random order or in theirs.
    pub fn pages(&self, page_bytes: u64, random: bool) -> Result<Pages, CliError> {
        let count = self.bytes / page_bytes;
        let order = if random {
            shuffled(count, 7)
        } else {
            (0..count as u32).collect()
        };
        self.ordered(page_bytes, &order)
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
        let (order, words, tally) = (&pages.order, pages.words, self.tally.arg());
        let args = (memory, order, first, count, words, u32::from(in_slots), tally);
        self.run("check_pages", args, count)?;
        Ok(())
    }

    /// Pages a second from the home into frames, once for each run. Every word is verified.
    pub fn fetch(&self, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        let rates = (0..runs).map(|_| self.copy_once(pages, false));
        Ok(Runs(rates.collect::<Result<_, _>>()?))
    }

    /// Pages a second of one copy, to the frames or back to the home, into memory that was cleared before.
    fn copy_once(&self, pages: &Pages, back: bool) -> Result<f64, CliError> {
        let (home, frames, count) = (self.home(), self.frames(), pages.count);
        let target = if back { home } else { frames };
        self.clear(target, self.bytes)?;
        let (order, words, tally) = (&pages.order, pages.words, self.tally.arg());
        let args = (home, frames, order, count, words, u32::from(back), tally);
        let seconds = self.run("copy_pages", args, count)?;
        self.check(target, pages, 0, count, !back)?;
        Ok(count as f64 / seconds)
    }

    /// Pages a second from frames to the home. The home holds the pattern again afterwards.
    pub fn write_back(&self, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        self.fetch(pages, 1)?;
        let rates = (0..runs).map(|_| self.copy_once(pages, true));
        let rates = rates.collect::<Result<_, _>>()?;
        self.fill(self.home())?;
        Ok(Runs(rates))
    }

    /// Pages a second into frames while `share` times as many flow back from other frames to other pages.
    pub fn both(&self, pages: &Pages, share: f64, runs: u32) -> Result<Runs, CliError> {
        let (home, frames) = (self.home(), self.frames());
        let reads = (pages.count / 2).max(1);
        let writes = ((reads as f64 * share) as u64).min(pages.count - reads);
        let mut rates = Vec::new();
        for _ in 0..runs {
            self.fill(home)?;
            // The pages to be written are in their frames, and nowhere else; those that are read at home alone.
            self.fetch(pages, 1)?;
            self.clear(home, self.bytes)?;
            self.copy_both(pages, [0, 0, reads])?;
            self.clear(frames, reads * pages.words * 8)?;
            let seconds = self.copy_both(pages, [reads, reads, writes])?;
            self.check(frames, pages, 0, reads, true)?;
            self.check(home, pages, reads, writes, false)?;
            rates.push(reads as f64 / seconds);
        }
        self.fill(home)?;
        Ok(Runs(rates))
    }

    /// Reads this many pages from the first one of the order on while this many are written back from another one on; the seconds.
    fn copy_both(&self, pages: &Pages, [reads, split, writes]: [u64; 3]) -> Result<f64, CliError> {
        let (home, frames, tally) = (self.home(), self.frames(), self.tally.arg());
        let (order, words) = (&pages.order, pages.words);
        let args = (home, frames, order, reads, split, writes, words, tally);
        self.run("copy_both", args, reads + writes)
    }

    /// Microseconds that one warp takes for one page: those of each page, ascending.
    pub fn one_page(&self, pages: &Pages) -> Result<Vec<f64>, CliError> {
        let took = self.machine.vm.buffer::<u64>(pages.count)?;
        let (home, frames, tally) = (self.home(), self.frames(), self.tally.arg());
        let (order, count, words) = (&pages.order, pages.count, pages.words);
        let args = (home, frames, order, count, words, &took, tally);
        let (kernel, config) = (self.kernel("time_pages")?, LaunchConfig::new(1, 32));
        let (_, said) = self.tally.run(&kernel, config, args, count)?;
        self.check(frames, pages, 0, count, true)?;
        microseconds(self.machine, &took, said)
    }

    /// Microseconds until `warps` warps together have brought one page, for each of the pages.
    pub fn crowd(&self, pages: &Pages, warps: u32, said: Said) -> Result<Vec<f64>, CliError> {
        let (kernel, words) = (self.kernel("time_crowd")?, pages.words);
        let mut times = Vec::new();
        for offset in (0..pages.count).map(|page| page * words * 8) {
            let took = self.machine.upload(&[0u64])?;
            let (home, frame) = (self.home() + offset, self.frames() + offset);
            let args = (home, frame, words, &took, self.tally.arg());
            self.tally
                .run(&kernel, LaunchConfig::new(warps, 32), args, u64::from(warps))?;
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
        let memory = homes.iter().map(|&home| self.machine.memory(home, each));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<u64> = memory.iter().map(RawMemory::addr).collect();
        let parts = Parts {
            addresses: self.machine.upload(&addresses)?,
            count: homes.len() as u32,
            _memory: memory,
        };
        self.fill(self.frames())?;
        self.copy_parts(&parts, &self.pages(page_bytes, false)?, true)?;
        Ok(parts)
    }

    /// Pages a second from several neighbours into frames, once for each run. Every word is verified.
    pub fn fetch_parts(&self, parts: &Parts, pages: &Pages, runs: u32) -> Result<Runs, CliError> {
        let once = |_| {
            self.clear_frames()?;
            let seconds = self.copy_parts(parts, pages, false)?;
            self.check(self.frames(), pages, 0, pages.count, true)?;
            Ok(pages.count as f64 / seconds)
        };
        Ok(Runs((0..runs).map(once).collect::<Result<_, CliError>>()?))
    }

    /// Copies pages to frames or back; the seconds that it took.
    fn copy_parts(&self, parts: &Parts, pages: &Pages, back: bool) -> Result<f64, CliError> {
        let (addresses, of, frames) = (&parts.addresses, parts.count, self.frames());
        let (order, count, words) = (&pages.order, pages.count, pages.words);
        let (back, tally) = (u32::from(back), self.tally.arg());
        let args = (addresses, of, frames, order, count, words, back, tally);
        self.run("copy_parts", args, count)
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
