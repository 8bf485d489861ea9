//! Calls of a slot cache, beside lanes that look up what it has: ids that come several times and that stand for none, more records than
//! slots, records that are held, fetched ahead, and stored to between calls.

use std::collections::{BTreeMap, BTreeSet};

use bytemuck::Zeroable;
use gpuvm::{Buffer, Error, Launch, LaunchConfig, Region, SlotCache, SlotFault, SlotPolicy, StreamHandle, Value};
use gpuvm_layouts as layout;
use gpuvm_nic::with_causes;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Wrong, compare, pattern};
use crate::program::rng;
use crate::room::{Needs, Room};

/// Calls of a seed.
const CALLS: u32 = 8;
/// Most ids of a call.
const IDS: u32 = 40;
/// How often each lane beside a call looks at a record of it, at most.
const LOOKS: u64 = 2000;

/// A cache and what it must hold.
struct Cached<'a> {
    bench: &'a Bench,
    cache: SlotCache,
    /// Each with the words of a record.
    tables: Vec<(Region<u64>, u64)>,
    models: Vec<Vec<u64>>,
    records: u32,
    beside: StreamHandle,
    /// Slots that are held, as often as they are, with their records.
    held: Vec<(Buffer<i32>, BTreeMap<i64, i32>)>,
    /// Those of the last call.
    last: BTreeMap<i64, i32>,
}

/// Compiles the kernels of slot caches.
pub(super) fn compile(bench: &Bench) -> Result<(), Wrong> {
    let region = bench.vm.region::<u64>().zeroed(2)?;
    bench.vm.slot_cache(1).table(&region, 16).build()?;
    Ok(())
}

pub(super) fn slots(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let bench = room.open(Needs::few(seed, 1))?;
    let mut cached = Cached::draw(&bench, &mut rng, seed)?;
    for call in 0..CALLS {
        cached
            .turn(room, &mut rng)
            .map_err(|wrong| wrong.of(&format!("call {call}")))?;
    }
    for (region, _) in std::mem::take(&mut cached.tables) {
        region.close()?;
    }
    Ok(())
}

impl<'a> Cached<'a> {
    fn draw(bench: &'a Bench, rng: &mut ChaCha8Rng, seed: u64) -> Result<Self, Wrong> {
        let records = rng.random_range(12..60u32);
        let slots = u64::from(rng.random_range(6..30u32));
        // Of one part and of several, of which lanes share some badly.
        let words: Vec<u64> = (0..1 + seed / 2 % 2)
            .map(|_| [2, 4, 10, 520][rng.random_range(0..4usize)])
            .collect();
        let models: Vec<Vec<u64>> = (0..)
            .zip(&words)
            .map(|(n, words)| {
                (0..u64::from(records) * words)
                    .map(|i| pattern(seed ^ n << 40, i))
                    .collect()
            })
            .collect();
        let region = |words: &Vec<u64>| bench.vm.region::<u64>().name("table").from_slice(words);
        let regions: Vec<Region<u64>> = models.iter().map(region).collect::<Result<_, _>>()?;
        let policy = [SlotPolicy::LeastRecent, SlotPolicy::Frequency, SlotPolicy::FirstCome][(seed % 3) as usize];
        let tables: Vec<(Region<u64>, u64)> = regions.into_iter().zip(words).collect();
        let builder = bench
            .vm
            .slot_cache(slots)
            .policy(policy)
            .by_blocks(seed.is_multiple_of(2));
        let add =
            |builder: gpuvm::SlotCacheBuilder, (region, words): &(Region<u64>, u64)| builder.table(region, 8 * words);
        let cache = tables.iter().fold(builder, add).build()?;
        if seed % 4 > 1 {
            // Numbers of calls become larger than 32 bits.
            cache.begin_at((1 << 32) - 3)?;
        }
        Ok(Self {
            bench,
            cache,
            tables,
            models,
            records,
            beside: bench.vm.stream()?,
            held: Vec::new(),
            last: BTreeMap::new(),
        })
    }

    /// A call, or something else that happens to a cache.
    fn turn(&mut self, room: &Room<'_>, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        match rng.random_range(0..8u32) {
            0 => self.store(rng)?,
            1 if !self.held.is_empty() => {
                let (slots, _) = self.held.swap_remove(rng.random_range(0..self.held.len()));
                self.cache.release(&slots)?;
            }
            2 => {
                let ids = self.ids(rng);
                let ids = given(self.bench, &ids)?;
                let beside = self.look(rng, &ids)?;
                self.cache.prefetch(&ids)?;
                self.looked(beside)?;
                self.check_bytes(&self.last)
                    .map_err(|wrong| wrong.of("the last call"))?;
            }
            _ => {}
        }
        let ids = self.ids(rng);
        let slots = self.bench.vm.buffer::<i32>(ids.len() as u64)?;
        let on_gpu = given(self.bench, &ids)?;
        let beside = self.look(rng, &on_gpu)?;
        self.cache.ensure(&on_gpu, &slots)?;
        self.looked(beside)?;
        let found = self.check_call(&ids, &slots.to_vec()?)?;
        self.check_index()?;
        self.last = found;
        self.check_held()?;
        if self.held.len() < 2 && rng.random_range(0..4u32) == 0 {
            self.cache.hold(&slots)?;
            self.held.push((slots, self.last.clone()));
        }
        if room.finds_races() {
            // The description of a race has all that is to be known.
            return Ok(());
        }
        self.check_counts()
    }

    /// Ids of few records, some several times, some of none.
    fn ids(&self, rng: &mut ChaCha8Rng) -> Vec<i64> {
        let some = rng.random_range(1..=self.records.min(IDS));
        let first = rng.random_range(0..self.records);
        let count = rng.random_range(1..=IDS);
        let draw = |_| match rng.random_range(0..8u32) {
            0 => -1,
            _ => i64::from((first + rng.random_range(0..some)) % self.records),
        };
        (0..count).map(draw).collect()
    }

    /// The host, or somebody of whom it tells, stores to a table.
    fn store(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let at = rng.random_range(0..self.tables.len());
        let ((region, words), model) = (&self.tables[at], &mut self.models[at]);
        let first = u64::from(rng.random_range(0..self.records)) * words;
        let part = &mut model[first as usize..];
        part.iter_mut().for_each(|word| *word = word.wrapping_mul(3) | 1);
        region.write(first, part)?;
        Ok(())
    }

    /// Lanes look at what the index has of some ids, beside the next call: not where that begins with what was stored.
    fn look(&self, rng: &mut ChaCha8Rng, ids: &Buffer<i64>) -> Result<Option<(Launch, Buffer<u64>)>, Wrong> {
        if rng.random() {
            return Ok(None);
        }
        // What is to be fetched anew is by now.
        self.cache.prefetch(&given(self.bench, &[-1])?)?;
        let wrong = self.bench.vm.buffer::<u64>(2)?;
        let config = LaunchConfig::new(1, 8);
        let desc = Value(self.cache.description());
        let kernel = self.bench.kernel("look")?;
        let launch = kernel.launch_on(&self.beside, config, (desc, ids, ids.len(), LOOKS, &wrong))?;
        Ok(Some((launch, wrong)))
    }

    fn looked(&self, beside: Option<(Launch, Buffer<u64>)>) -> Result<(), Wrong> {
        let Some((launch, wrong)) = beside else { return Ok(()) };
        launch.sync().map_err(|error| Wrong::from(error).of("look"))?;
        match wrong.to_vec()?[..] {
            [0, _] => Ok(()),
            [wrong, found] => Err(Wrong::Differs(format!(
                "{wrong} of {found} looks beside a call found a slot without the bytes of its record"
            ))),
            _ => Ok(()),
        }
    }

    /// Each record of a call has one slot with all of its bytes, unless there were too many.
    fn check_call(&self, ids: &[i64], slots: &[i32]) -> Result<BTreeMap<i64, i32>, Wrong> {
        let wanted: BTreeSet<i64> = ids.iter().copied().filter(|id| *id >= 0).collect();
        let missing = match self.cache.wait() {
            Ok(()) => 0,
            Err(Error::Slots {
                fault: SlotFault::TooManyRecords { missing, .. },
                ..
            }) => missing,
            Err(error) => return Err(Wrong::Differs(with_causes(&error))),
        };
        let (mut of, mut none) = (BTreeMap::new(), BTreeSet::new());
        for (&id, &slot) in ids.iter().zip(slots) {
            match (id, slot) {
                (-1, -1) => {}
                (0.., -1) => drop(none.insert(id)),
                (0.., 0..) if *of.entry(id).or_insert(slot) == slot => {}
                _ => return Err(Wrong::Differs(format!("id {id} has slot {slot}, and has another one"))),
            }
        }
        let distinct: BTreeSet<i32> = of.values().copied().collect();
        if distinct.len() != of.len() || none.iter().any(|id| of.contains_key(id)) {
            return Err(Wrong::Differs(format!(
                "records share slots: {of:?}, and none for {none:?}"
            )));
        }
        let held: BTreeSet<i64> = self.held.iter().flat_map(|(_, held)| held.keys().copied()).collect();
        let fits = wanted.union(&held).count() <= self.cache.slots() as usize;
        if none.len() as u64 != missing || (fits && missing != 0) {
            return Err(Wrong::Differs(format!(
                "{missing} records got no slot, and {none:?} have none, of {} in {} slots",
                wanted.union(&held).count(),
                self.cache.slots()
            )));
        }
        self.check_bytes(&of)?;
        Ok(of)
    }

    /// Slots hold their records.
    fn check_bytes(&self, of: &BTreeMap<i64, i32>) -> Result<(), Wrong> {
        for (n, ((_, words), model)) in self.tables.iter().zip(&self.models).enumerate() {
            let mut frames = vec![0u64; (*words * u64::from(self.cache.slots())) as usize];
            self.cache.frames(n).read_bytes(bytemuck::cast_slice_mut(&mut frames))?;
            let words = *words as usize;
            for (&id, &slot) in of {
                let (found, wanted) = (
                    &frames[slot as usize * words..][..words],
                    &model[id as usize * words..][..words],
                );
                compare(found, wanted).map_err(|wrong| format!("slot {slot}, record {id} of table {n}: {wrong}"))?;
            }
        }
        Ok(())
    }

    /// Records that are held are where they were, with what their homes hold.
    fn check_held(&self) -> Result<(), Wrong> {
        let held = self.held.iter().map(|(_, held)| held);
        held.clone()
            .try_for_each(|held| self.check_bytes(held))
            .map_err(|wrong| wrong.of("a hold"))
    }

    /// No call runs: each entry names a slot that has the record, and each slot with a record is named by its entry.
    fn check_index(&self) -> Result<(), Wrong> {
        let (desc, device) = (self.cache.description(), self.bench.vm.device());
        let (mut index, mut of) = (vec![0u32; self.records as usize], vec![0u32; desc.slot_count as usize]);
        let read = device
            .read(desc.index, bytemuck::cast_slice_mut(&mut index))
            .and_then(|()| device.read(desc.records, bytemuck::cast_slice_mut(&mut of)));
        read.map_err(|error| Wrong::Refused(with_causes(&error)))?;
        let named = |record: u32| index.get(record as usize - 1).copied().unwrap_or_default();
        let entries = (1..).zip(&index).filter(|(_, entry)| **entry != layout::SLOT_NONE);
        for (record, &entry) in entries {
            if of.get(entry as usize - 1) != Some(&record) {
                return Err(Wrong::Differs(format!(
                    "record {} has entry {entry:#x}, and no such slot",
                    record - 1
                )));
            }
        }
        match (1u32..)
            .zip(&of)
            .find(|(slot, record)| **record != 0 && named(**record) != *slot)
        {
            None => Ok(()),
            Some((slot, record)) => Err(Wrong::Differs(format!(
                "slot {} has record {}, whose entry is {:#x}",
                slot - 1,
                record - 1,
                named(*record)
            ))),
        }
    }

    /// What calls have counted can be, and nothing is left of them.
    fn check_counts(&self) -> Result<(), Wrong> {
        let stats = self.cache.stats()?;
        let mut state = [layout::SlotCacheState::zeroed()];
        let read = self
            .bench
            .vm
            .device()
            .read(self.cache.description().state, bytemuck::cast_slice_mut(&mut state));
        read.map_err(|error| Wrong::Refused(with_causes(&error)))?;
        let [state] = state;
        let bytes: u64 = self.tables.iter().map(|(_, words)| 8 * words).sum();
        let fetched = stats.misses + stats.prefetched;
        let idle = state.busy == 0 && bytemuck::bytes_of(&state.counts).iter().all(|byte| *byte == 0);
        match idle
            && stats.bytes == fetched * bytes
            && stats.evictions <= fetched
            && state.histogram.iter().all(|n| *n == 0)
        {
            true => Ok(()),
            false => Err(Wrong::Differs(format!("counts that cannot be: {stats:?}, {state:?}"))),
        }
    }
}

fn given(bench: &Bench, ids: &[i64]) -> Result<Buffer<i64>, Wrong> {
    let given = bench.vm.buffer::<i64>(ids.len() as u64)?;
    given.write(ids)?;
    Ok(given)
}
