//! Clean pages that leave their frames for a neighbour's memory, which the neighbour takes back at any time.

use gpuvm::{Buffer, Launch, LaunchConfig, Region, StreamHandle};
use gpuvm_gpu::{DeviceMemory, GpuError};
use gpuvm_layouts::PoolState;
use gpuvm_nic::with_causes;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, close, compare, fold, launch, pattern};
use crate::program::rng;
use crate::room::{Borrowed, Needs, PAGE_WORDS, Room};

/// Regions, each with a short page at its end.
const REGIONS: usize = 3;
/// Words of a short page: one for each lane and some that nothing writes.
const SHORT: u64 = 24;
/// Words of a page of which some are read and none is written, by any lane.
const KEPT: std::ops::Range<u64> = 16..SHORT;
/// Launches of a seed.
const LAUNCHES: u32 = 3;
/// What a lender stores: the data has no such word.
const MARK: u64 = 0xdddd_0000_dddd_0000;

/// Kinds of an operation of the kernel `use_pages`.
const READ: u64 = 0;
const UPDATE: u64 = 1;
const OVERWRITE: u64 = 2;

/// The kernel's name for the moment when a page is on its way.
const WHEN_ONE_FETCHES: u32 = 3;

/// Both sides: lanes that use pages, and a lender.
struct Victims<'a> {
    bench: &'a Bench,
    regions: Vec<Region<u64>>,
    model: Vec<Vec<u64>>,
    beside: StreamHandle,
    /// How far the lender is with each chunk.
    turns: DeviceMemory,
    borrowed: Borrowed,
    /// Chunks that are lent still.
    lent: u64,
}

pub(super) fn victims(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let borrowed = Borrowed {
        chunk_pages: 1 << (seed / 2 % 3),
        chunks: 1 + seed / 6 % 6,
    };
    let bench = room.open(Needs {
        borrowed,
        ..Needs::few(seed, 1 + seed % 2)
    })?;
    // Short pages come and go often; long ones meet lenders within a copy.
    let lengths: Vec<u64> = (0..REGIONS as u64)
        .map(|_| SHORT + PAGE_WORDS * u64::from(rng.random_range(0..4u32) == 0))
        .collect();
    let model: Vec<Vec<u64>> = (0u64..)
        .zip(&lengths)
        .map(|(n, length)| (0..*length).map(|i| pattern(seed ^ n << 40, i)).collect())
        .collect();
    let region = |words: &Vec<u64>| bench.vm.region::<u64>().name("kept").from_slice(words);
    let regions = model.iter().map(region).collect::<Result<_, _>>()?;
    let doing = |error: GpuError| Wrong::Refused(format!("memory for a lender: {}", with_causes(&error)));
    let turns = bench.vm.device().allocate(borrowed.chunks * 8, 8).map_err(doing)?;
    let none = vec![0; borrowed.chunks as usize * 8];
    bench.vm.device().write(turns.addr(), &none).map_err(doing)?;
    room.watcher().lender_begins(turns.addr(), MARK, SHORT);
    let mut both = Victims {
        bench: &bench,
        regions,
        model,
        beside: bench.vm.stream()?,
        turns,
        borrowed,
        lent: borrowed.chunks,
    };
    let _calm = Calm(&bench.vm);
    let ran = (0..LAUNCHES).try_for_each(|round| both.round(room, &mut rng, round));
    // Also after an error: the words that it tells of go with this workload.
    let ended = room.watcher().lender_ends();
    ran?;
    ended?;
    both.close()
}

impl Victims<'_> {
    /// One launch beside a lender that may take some chunks back, and what the host does then.
    fn round(&mut self, room: &Room<'_>, rng: &mut ChaCha8Rng, round: u32) -> Result<(), Wrong> {
        let (blocks, threads, steps) = (2u32, rng.random_range(2..=6u32), rng.random_range(6..=14u32));
        let lanes = u64::from(blocks * threads);
        let (ops, hashes) = self.operations(rng, lanes, steps);
        let given = self.bench.vm.buffer::<u64>(ops.len() as u64)?;
        given.write(&ops)?;
        let found = self.bench.vm.buffer::<u64>(lanes)?;
        let [a, b, c] = &self.regions[..] else {
            return Err(Wrong::Differs("there are not three regions".to_owned()));
        };
        // One lane holds a page, and waits for nothing meanwhile: no span is declared.
        let config = LaunchConfig::new(blocks, threads);
        let using = launch(self.bench, "use_pages", config, (a, b, c, &given, steps, &found))?;
        // The first launch fills slots.
        let lender = match round == 0 && rng.random() {
            true => None,
            false => self.take_back(room, rng)?,
        };
        let used = using.sync().map_err(|error| Wrong::from(error).of("use_pages"));
        if let Some((lender, _given)) = lender {
            lender.sync().map_err(|error| Wrong::from(error).of("the lender"))?;
        }
        used?;
        compare(&found.to_vec()?, &hashes).map_err(|wrong| format!("what lanes read: {wrong}"))?;
        self.between(rng)
    }

    /// A lender that takes back one chunk or more, if any is lent, at a time that the seed draws.
    fn take_back(&mut self, room: &Room<'_>, rng: &mut ChaCha8Rng) -> Result<Option<(Launch, Buffer<u64>)>, Wrong> {
        let (Some(desc), 1..) = (room.watcher().borrowed(), self.lent) else {
            return Ok(None);
        };
        let end = self.lent;
        self.lent -= rng.random_range(1..=end);
        let together = rng.random_range(1..=2u32);
        let when = rng.random_range(0..4u32);
        // Within a page's copy, or soon after a slot was taken.
        let looks = match when {
            WHEN_ONE_FETCHES => rng.random_range(0..48u32),
            _ => rng.random_range(0..5u32),
        };
        // Short times as likely as long ones.
        let scale = rng.random_range(4..19u32);
        let after_ns = rng.random::<u32>() & ((1 << scale) - 1);
        let word = room.watcher().first_word(rng.random_range(0..REGIONS as u32));
        let where_all_is = [
            desc.lent,
            desc.writers,
            desc.chunks,
            desc.free.state + std::mem::offset_of!(PoolState, head) as u64,
            desc.free.ring,
            self.turns.addr(),
            word.ok_or_else(|| "a region has no words".to_owned())?,
            desc.free.count.into(),
            self.borrowed.chunk_pages,
            PAGE_WORDS,
            SHORT,
        ];
        let given = self.bench.vm.buffer::<u64>(where_all_is.len() as u64)?;
        given.write(&where_all_is)?;
        let kernel = self.bench.kernel("take_back")?;
        let chunks = (self.lent as u32, end as u32);
        let args = (&given, chunks.0, chunks.1, together, when, after_ns, looks, MARK);
        let launched = kernel.launch_on(&self.beside, LaunchConfig::new(1, 1), args)?;
        Ok(Some((launched, given)))
    }

    /// What each lane does, and what it makes of what it reads.
    fn operations(&mut self, rng: &mut ChaCha8Rng, lanes: u64, steps: u32) -> (Vec<u64>, Vec<u64>) {
        // In some launches one lane has a short region for itself, whose only page it overwrites.
        let short = |n: usize, model: &Vec<Vec<u64>>| model[n].len() as u64 == SHORT;
        let own = rng.random_range(0..2 * REGIONS as u32) as usize;
        let own = (own < REGIONS && short(own, &self.model)).then_some(own);
        let (mut ops, mut hashes) = (Vec::new(), Vec::new());
        for lane in 0..lanes {
            let mut hash = 0;
            for _ in 0..steps {
                let mut n = rng.random_range(0..REGIONS as u32) as usize;
                if lane != 0 && own == Some(n) {
                    n = (n + 1) % REGIONS;
                }
                let words = &mut self.model[n];
                let page = rng.random_range(0..words.len().div_ceil(PAGE_WORDS as usize) as u32);
                let first = u64::from(page) * PAGE_WORDS;
                let value = rng.random_range(1..0x1_0000u64);
                let kind = match rng.random_range(0..8u32) {
                    0..3 => READ,
                    3..6 => UPDATE,
                    _ if own == Some(n) => OVERWRITE,
                    _ => READ,
                };
                let i = first
                    + match kind {
                        UPDATE => lane,
                        OVERWRITE => 0,
                        _ => rng.random_range(KEPT),
                    };
                ops.push(kind << 56 | value << 40 | (n as u64) << 32 | i);
                match kind {
                    OVERWRITE => (0..).zip(words.iter_mut()).for_each(|(k, word)| *word = fold(value, k)),
                    _ => hash = fold(hash, words[i as usize]),
                }
                if kind == UPDATE {
                    words[i as usize] = words[i as usize].wrapping_mul(5).wrapping_add(value);
                }
            }
            hashes.push(hash);
        }
        (ops, hashes)
    }

    /// What the host does between launches: nothing, a flush, a look, or a write, before which copies at the neighbour go.
    fn between(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let n = rng.random_range(0..REGIONS as u32) as usize;
        let (region, words) = (&self.regions[n], &mut self.model[n]);
        match rng.random_range(0..4u32) {
            0 => {}
            1 => region.flush()?,
            2 => compare(&region.to_vec()?, words).map_err(|wrong| format!("the host: {wrong}"))?,
            _ => {
                let first = rng.random_range(0..words.len() as u32) as usize;
                let new: Vec<u64> = (first..words.len()).map(|_| rng.random()).collect();
                region.write(first as u64, &new)?;
                words[first..].copy_from_slice(&new);
            }
        }
        Ok(())
    }

    fn close(self) -> Result<(), Wrong> {
        let regions = self.regions.into_iter().zip(&self.model);
        regions
            .into_iter()
            .try_for_each(|(region, model)| close(self.bench, region, model))
    }
}
