//! A neighbour GPU that lends memory: how much of it is lent, what backs it, and when it grows or shrinks.

use std::time::{Duration, Instant};

use gpuvm_gpu::{DeviceMemory, Gpu, GpuError, MemoryLeft};

/// Chunks that are allocated together, and freed together.
const LUMP_CHUNKS: u32 = 16;
/// One part of this many of a neighbour's memory stays free where a loan follows from what is free.
const RESERVE_SHARE: u64 = 16;
/// A loan grows by one part of this many of itself, a lump at least.
const GROWTH_SHARE: u32 = 4;
/// Two steps of growth are so far apart at least.
const GROWTH_PERIOD: Duration = Duration::from_millis(20);

/// One lender. Its chunks are `first` and those behind it; the first `lent` of them are lent.
pub(super) struct Lender {
    pub ordinal: u32,
    pub first: u32,
    /// Chunks that it may lend.
    pub most: u32,
    pub lent: u32,
    /// Those up to here have slots that places of pages name, lent or not.
    pub named: u32,
    /// Whether the loan follows from the memory that is free there.
    pub auto: bool,
    /// What backs the chunks, [`LUMP_CHUNKS`] each.
    lumps: Vec<DeviceMemory>,
    grown: Option<Instant>,
}

impl Lender {
    /// Who may lend this many chunks, and lends none yet.
    pub fn new(ordinal: u32, first: u32, most: u32, auto: bool) -> Self {
        Self {
            ordinal,
            first,
            most,
            lent: 0,
            named: 0,
            auto,
            lumps: Vec::new(),
            grown: None,
        }
    }

    /// Chunks that have memory: those that are lent and, until [`free`](Self::free), those that were before.
    pub fn backed(&self) -> u32 {
        (self.lumps.len() as u32 * LUMP_CHUNKS).min(self.most)
    }

    /// Backs `chunks` chunks, as many of them as there is memory for: a lump that is not available ends it.
    pub fn back(&mut self, gpu: &dyn Gpu, chunks: u32, chunk_bytes: u64) -> Result<(), GpuError> {
        while self.backed() < chunks.min(self.most) {
            let count = LUMP_CHUNKS.min(self.most - self.backed());
            let lump = gpu.allocate_on(self.ordinal, u64::from(count) * chunk_bytes)?;
            self.lumps.push(lump);
        }
        Ok(())
    }

    /// Frees the lumps none of whose chunks is lent, or read by launches to come. No kernel may run that knows them.
    pub fn free(&mut self) {
        let used = self.lent.max(self.named);
        self.lumps.truncate(used.div_ceil(LUMP_CHUNKS) as usize);
    }

    /// Whether there is something to free.
    pub fn has_unused(&self) -> bool {
        self.lumps.len() as u32 > self.lent.div_ceil(LUMP_CHUNKS)
    }

    /// Address of a backed chunk, counted from 0 at `first`.
    pub fn address(&self, chunk: u32, chunk_bytes: u64) -> u64 {
        let lump = self.lumps[(chunk / LUMP_CHUNKS) as usize].addr();
        lump + u64::from(chunk % LUMP_CHUNKS) * chunk_bytes
    }

    /// Chunks that the owner wants back by now: those without which its reserve would not be free.
    pub fn wanted_back(&self, left: MemoryLeft, chunk_bytes: u64) -> u32 {
        let missing = (left.total / RESERVE_SHARE).saturating_sub(left.free);
        // What was given back and is not free yet will be, but for chunks of a lump that is lent in part.
        let used = self.lent.next_multiple_of(LUMP_CHUNKS);
        let coming = u64::from(self.backed().saturating_sub(used)) * chunk_bytes;
        let chunks = missing.saturating_sub(coming).div_ceil(chunk_bytes);
        chunks.min(u64::from(self.lent)) as u32
    }

    /// Chunks of the first step of a loan that grows.
    pub fn first_step(&self) -> u32 {
        LUMP_CHUNKS.min(self.most)
    }

    /// Whether the time has come to ask whether it grows.
    pub fn may_grow(&self) -> bool {
        let rests = self.grown.is_some_and(|then| then.elapsed() < GROWTH_PERIOD);
        self.auto && self.lent < self.most && !rests
    }

    /// Chunks that the loan grows to when borrowers find no slot: slowly, and never into the owner's reserve.
    pub fn grows_to(&mut self, left: MemoryLeft, chunk_bytes: u64) -> u32 {
        if !self.may_grow() {
            return self.lent;
        }
        let spare = left.free.saturating_sub(left.total / RESERVE_SHARE) / chunk_bytes;
        // In whole lumps, or each step would be one.
        let step = (self.lent / GROWTH_SHARE).max(1).next_multiple_of(LUMP_CHUNKS);
        let step = u64::from(step).min(spare) as u32;
        // Also where nothing is to spare: the owner's memory is not asked for before every launch.
        self.grown = Some(Instant::now());
        (self.lent + step).min(self.most)
    }
}

/// Chunks of `chunk_bytes` bytes that an owner with so much memory may lend at most.
pub(super) fn most_of(left: MemoryLeft, chunk_bytes: u64) -> u64 {
    left.free.saturating_sub(left.total / RESERVE_SHARE) / chunk_bytes
}

#[cfg(test)]
mod tests {
    use gpuvm_sim_gpu::SimGpu;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn mock() -> SimGpu {
        SimGpu::builder().neighbours(1).memory_bytes(64 << 20).build().unwrap()
    }

    const CHUNK: u64 = 1 << 20;

    fn left(free: u64, total: u64) -> MemoryLeft {
        MemoryLeft {
            free: free * CHUNK,
            total: total * CHUNK,
        }
    }

    fn lending(lent: u32) -> Lender {
        Lender {
            lent,
            ..Lender::new(1, 0, 1000, true)
        }
    }

    #[test]
    fn a_loan_grows_slowly_and_leaves_the_owner_its_reserve() {
        assert_eq!(lending(0).grows_to(left(900, 1600), CHUNK), LUMP_CHUNKS);
        assert_eq!(lending(256).grows_to(left(900, 1600), CHUNK), 256 + 64);
        assert_eq!(lending(256).grows_to(left(110, 1600), CHUNK), 256 + 10);
        assert_eq!(lending(256).grows_to(left(90, 1600), CHUNK), 256);
        assert_eq!(lending(996).grows_to(left(900, 1600), CHUNK), 1000);
        let mut twice = lending(0);
        twice.lent = twice.grows_to(left(900, 1600), CHUNK);
        assert_eq!(twice.grows_to(left(900, 1600), CHUNK), twice.lent, "at once");
        let fixed = &mut Lender::new(1, 0, 1000, false);
        assert_eq!(fixed.grows_to(left(900, 1600), CHUNK), 0);
    }

    #[test]
    fn an_owner_under_pressure_gets_back_what_its_reserve_lacks() {
        assert_eq!(lending(256).wanted_back(left(100, 1600), CHUNK), 0);
        assert_eq!(lending(256).wanted_back(left(30, 1600), CHUNK), 70);
        assert_eq!(lending(20).wanted_back(left(30, 1600), CHUNK), 20);
    }

    #[test]
    fn any_loan_keeps_its_bounds_whatever_is_on_its_way_back() {
        let (mut rng, gpu) = (ChaCha8Rng::seed_from_u64(1), mock());
        for _ in 0..300 {
            let (most, chunk) = (rng.random_range(1..100), 4096 << rng.random_range(0..3));
            let lender = &mut Lender::new(1, 0, most, true);
            for _ in 0..12 {
                let total = rng.random_range(64..4000) * chunk;
                let memory = MemoryLeft {
                    free: rng.random_range(0..=total / 8),
                    total,
                };
                let (lent, backed, reserve) = (lender.lent, lender.backed(), total / RESERVE_SHARE);
                assert!(lent <= backed && backed <= most);
                // Whatever is on its way: the owner comes to its reserve, and takes back less than a lump too much for it.
                let (mut owner, mut took) = (memory, 0);
                for turn in 0.. {
                    assert!(turn < 1000, "what was given back is never freed");
                    let back = lender.wanted_back(owner, chunk);
                    assert!(back <= lender.lent && took <= lent);
                    lender.lent -= back;
                    took += back;
                    // Not each time: launches may run on.
                    if rng.random() {
                        let freed = lender.backed();
                        lender.free();
                        owner.free += u64::from(freed - lender.backed()) * chunk;
                    }
                    if back == 0 && !lender.has_unused() {
                        break;
                    }
                }
                assert!(
                    owner.free >= reserve || lender.lent == 0,
                    "{took} of {lent} back, {owner:?}"
                );
                let most_free = reserve + u64::from(LUMP_CHUNKS) * chunk;
                assert!(took == 0 || owner.free < most_free, "{took} of {lent} back, {owner:?}");
                let lent = lender.lent;
                lender.grown = None;
                let grown = lender.grows_to(memory, chunk);
                let into = memory.free.saturating_sub(u64::from(grown - lent) * chunk);
                assert!((lent..=most).contains(&grown) && (grown == lent || into >= reserve));
                let wholly = lent == most || memory.free < reserve + chunk;
                assert_eq!(grown == lent, wholly, "{lent} of {most}, {memory:?}");
                match rng.random_range(0..4) {
                    0 | 1 => lender.lent = rng.random_range(0..=lent),
                    2 => lender.free(),
                    _ => {
                        lender.back(&gpu, grown, chunk).unwrap();
                        assert!(lender.backed() >= grown && lender.backed() < grown.max(lent) + LUMP_CHUNKS);
                        lender.lent = grown;
                        let taken: u64 = lender.lumps.iter().map(DeviceMemory::bytes).sum();
                        assert!(taken <= u64::from(most) * chunk);
                    }
                }
                let used = lender.lent.next_multiple_of(LUMP_CHUNKS).min(most);
                assert_eq!(lender.has_unused(), lender.backed() > used);
                let addresses: Vec<u64> = (0..lender.backed()).map(|n| lender.address(n, chunk)).collect();
                let mut apart = addresses.clone();
                apart.sort_unstable();
                assert!(apart.windows(2).all(|pair| pair[1] - pair[0] >= chunk));
            }
        }
    }

    #[test]
    fn what_may_be_lent_at_most() {
        assert_eq!(most_of(left(900, 1600), CHUNK), 800);
        assert_eq!(most_of(left(90, 1600), CHUNK), 0);
    }
}
