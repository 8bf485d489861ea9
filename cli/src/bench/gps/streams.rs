//! Loads and stores of broadcast arrays alone, beside bare pointers to the same memory.

use gpuvm::{CompileOptions, Kernel, Launch, LaunchConfig, Vm};

use super::Bench;
use crate::bench::machine::must_be_right;
use crate::bench::report::{Row, Runs, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("streams.cu");
const KERNELS: [&str; 6] = [
    "load_bare",
    "load_broadcast",
    "store_bare",
    "store_broadcast",
    "near_plain",
    "near_merged",
];
/// Lanes of a block.
const THREADS: u32 = 256;
/// Elements of 16 bytes, on NVIDIA GPUs and on simulated ones.
const LARGE: u64 = 1 << 26;
const SMALL: u64 = 1 << 14;
/// Further figures of rows about lines.
const LINES: &str = "M lines";
const LINE_BYTES: &str = "bytes a line";

/// The rows of one virtual memory.
struct Streams<'a> {
    vm: &'a Vm,
    kernels: [Kernel; 6],
    /// Elements.
    length: u64,
    repeat: u32,
    config: LaunchConfig,
}

impl Bench<'_> {
    /// Rows of loads and, where there is a second GPU, of stores.
    pub(super) fn streams(&mut self) -> Result<(), CliError> {
        let gpus = self.gpus.len().min(2);
        let vm = self.vm(gpus)?;
        let kernels = vm.kernels("streams.cu", SOURCE, KERNELS, &CompileOptions::default());
        let multiprocessors = vm.device().capabilities().sm_count;
        let streams = Streams {
            kernels: kernels.map_err(CliError::BackEnd)?,
            length: self.run.usual(LARGE, SMALL),
            repeat: self.plan.repeat,
            config: LaunchConfig::new(multiprocessors * 8, THREADS),
            vm: &vm,
        };
        self.report.rows.push(streams.loads()?);
        if gpus < 2 {
            self.report.skip("stores", "there is one GPU");
            return Ok(());
        }
        self.report.rows.push(streams.stores()?);
        self.report.rows.extend(streams.near_stores()?);
        Ok(())
    }
}

/// What lanes store at an element.
fn quad(i: u64, round: u32) -> [u32; 4] {
    let low = (i as u32).wrapping_mul(4).wrapping_add(round);
    [0, 1, 2, 3].map(|k| low.wrapping_add(k))
}

impl Streams<'_> {
    fn kernel(&self, name: &str) -> &Kernel {
        // One of the list.
        &self.kernels[KERNELS.iter().position(|known| *known == name).unwrap_or_default()]
    }

    /// GB/s of launches that move this many bytes each: the rounds 1 to `repeat`, behind one that is not measured.
    fn runs(&self, bytes: u64, launch: impl Fn(u32) -> gpuvm::Result<Launch>) -> Result<Runs, CliError> {
        let rounds = (0..=self.repeat).map(|round| {
            let took = launch(round)?.sync()?.elapsed();
            Ok(bytes as f64 / took.as_secs_f64().max(1e-9) / 1e9)
        });
        let rounds: gpuvm::Result<Vec<f64>> = rounds.collect();
        Ok(Runs(rounds?.split_off(1)))
    }

    /// All loads of an array that holds `quad(i, 0)`.
    fn loads(&self) -> Result<Row, CliError> {
        let array = self.vm.broadcast::<[u32; 4]>().name("loads");
        let array = array.from_iter((0..self.length).map(|i| quad(i, 0)))?;
        let sum = || self.vm.buffer::<u64>(1).map_err(CliError::Vm);
        let (bare, ours) = (sum()?, sum()?);
        let bytes = self.length * 16;
        let by_pointer = self.runs(bytes, |_| {
            let kernel = self.kernel("load_bare");
            kernel.launch(self.config.clone(), (array.pointer(0), self.length, &bare))
        })?;
        let runs = self.runs(bytes, |_| {
            let kernel = self.kernel("load_broadcast");
            kernel.launch(self.config.clone(), (&array, &ours))
        })?;
        let rounds = u64::from(self.repeat) + 1;
        let sum: u64 = (0..self.length).flat_map(|i| quad(i, 0)).map(u64::from).sum();
        for (found, what) in [(bare, "load_bare"), (ours, "load_broadcast")] {
            let right = found.to_vec()?[0] == sum.wrapping_mul(rounds);
            must_be_right(u64::from(!right), rounds, what)?;
        }
        Ok(Row::new("loads", Unit::GigaBytes, runs.0)
            .with("element", "16 B")
            .ceiling("raw pointer", &by_pointer)
            .verified(2 * rounds, "sums"))
    }

    /// Stores by whole warps, side by side, to both GPUs' copies.
    fn stores(&self) -> Result<Row, CliError> {
        let array = self.vm.broadcast::<[u32; 4]>().name("stores");
        let array = array.zeroed(self.length)?;
        let bytes = self.length * 16;
        let bare = self.runs(bytes, |round| {
            let kernel = self.kernel("store_bare");
            kernel.launch(self.config.clone(), (array.pointer(1), self.length, round))
        })?;
        let stored = |i| quad(i, self.repeat);
        check(&array.copies()?[1..], stored, "store_bare")?;
        let runs = self.runs(bytes, |round| {
            let kernel = self.kernel("store_broadcast");
            kernel.launch(self.config.clone(), (&array, round))
        })?;
        let verified = check(&array.copies()?, stored, "store_broadcast")?;
        Ok(Row::new("stores", Unit::GigaBytes, runs.0)
            .with("element", "16 B")
            .ceiling("bare peer stores", &bare)
            .verified(verified, "elements"))
    }

    /// Stores of 4 bytes by lanes that are 128 bytes apart: as they are, and merged in shared memory.
    fn near_stores(&self) -> Result<Vec<Row>, CliError> {
        let words = self.length * 4;
        let kinds = [("near stores", "near_plain"), ("near stores, merged", "near_merged")];
        let row = |(name, kernel)| {
            let array = self.vm.broadcast::<u32>().name(name);
            let array = array.zeroed(words)?;
            let runs = self.runs(words * 4, |round| {
                let kernel = self.kernel(kernel);
                kernel.launch(self.config.clone(), (&array, round))
            })?;
            let stored = |i: u64| (i as u32).wrapping_add(self.repeat);
            let verified = check(&array.copies()?, stored, kernel)?;
            let sent = array.traffic()?.swap_remove(0);
            Ok(Row::new(name, Unit::GigaBytes, runs.0)
                .with("element", "4 B")
                .verified(verified, "elements")
                .and(LINES, sent.lines as f64 / 1e6)
                .and(LINE_BYTES, sent.bytes_a_line().unwrap_or_default()))
        };
        kinds.into_iter().map(row).collect()
    }
}

/// Compares each element of copies with what was stored there: how many those were.
fn check<T: PartialEq>(copies: &[Vec<T>], stored: impl Fn(u64) -> T, what: &str) -> Result<u64, CliError> {
    let all = copies.iter().map(Vec::len).sum::<usize>() as u64;
    let wrong = |copy: &Vec<T>| (0..).zip(copy).filter(|(i, found)| **found != stored(*i)).count() as u64;
    must_be_right(copies.iter().map(wrong).sum(), all, what)?;
    Ok(all)
}
