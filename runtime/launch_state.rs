//! The states of launches, in GPU memory, each with a copy of the virtual memory's description, by which lanes find it: they look at the abort flag in their slow paths, and over the bus a look costs
//! more than a microsecond. Whether a launch has met a fault is told in host memory: of most launches the host reads nothing else.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use bytemuck::Zeroable;
use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use gpuvm_layouts::{self as layout, FaultRecord, LaunchState, VmDesc};
use parking_lot::Mutex;

use crate::{device::DeviceArray, fault::NO_MULTIPROCESSOR};

/// States that are allocated at a time.
const CHUNK: u64 = 64;

/// Launches come often and allocations are slow: states that are kept for the next launch.
pub(crate) struct StatePool {
    vm: VmDesc,
    /// Address of the `TimelineDesc`, 0 for none.
    timeline: u64,
    /// Each with whether it is as [`Place::initial`] says.
    free: Mutex<Vec<(Place, bool)>>,
}

/// States that were allocated at once, and [`TOLD`] words each in host memory: whether a fault is told, and from the third on by twos the
/// indexes past the end of arrays that are looked up.
struct Chunk {
    states: DeviceArray<LaunchState>,
    told: HostMemory,
}

/// Words in host memory of a state: a line.
const TOLD: u64 = 32;
/// Arrays whose accesses past the end are told apart.
const WATCHED: usize = (TOLD as usize - 2) / 2;
/// What the place for such an index holds before. No index is it of an array that has elements; of empty ones nothing uses it.
const fn nothing(length: u64) -> u64 {
    if length > 0 { 0 } else { u64::MAX / 3 }
}

/// One state of a chunk.
#[derive(Clone)]
struct Place {
    chunk: Arc<Chunk>,
    number: u64,
}

/// The bytes of a state that launches change.
const CHANGED: usize = core::mem::offset_of!(LaunchState, abort);

impl Place {
    fn addr(&self) -> u64 {
        self.chunk.states.addr() + self.number * size_of::<LaunchState>() as u64
    }

    /// The host's word. There is one for each state.
    fn told(&self) -> Option<&AtomicU32> {
        self.told_word(0)
    }

    fn told_word(&self, n: u64) -> Option<&AtomicU32> {
        self.chunk.told.word((TOLD * self.number + n) as usize)
    }

    /// Where they lie for lanes.
    fn told_addr(&self) -> u64 {
        self.chunk.told.device_addr() + 4 * TOLD * self.number
    }

    /// The index that an access past the end of a watched array has left.
    fn past(&self, n: usize) -> [Option<&AtomicU32>; 2] {
        let word = 2 + 2 * n as u64;
        [self.told_word(word), self.told_word(word + 1)]
    }

    /// What a state of the pool is before a launch.
    fn initial(&self, pool: &StatePool) -> LaunchState {
        LaunchState {
            vm: pool.vm,
            timeline: pool.timeline,
            told: self.told_addr(),
            ..LaunchState::zeroed()
        }
    }
}

impl StatePool {
    /// Of launches over `vm`, with the timeline described at that address, if it is not 0.
    pub fn new(vm: VmDesc, timeline: u64) -> Arc<Self> {
        let free = Mutex::default();
        Arc::new(Self { vm, timeline, free })
    }

    /// The state of a launch to come: `continues` says whether faults end only what met them.
    pub fn take(self: &Arc<Self>, gpu: &dyn Gpu, continues: bool) -> Result<StateSlot, GpuError> {
        let free = self.free.lock().pop();
        let (place, clean) = match free {
            Some(free) => free,
            None => self.more(gpu)?,
        };
        let slot = StateSlot {
            place,
            pool: Arc::clone(self),
            continues,
            aborted: AtomicBool::new(false),
            untouched: AtomicBool::new(false),
            last: OnceLock::new(),
            watched: Mutex::default(),
        };
        if continues || !clean {
            let state = LaunchState {
                continues: continues.into(),
                ..slot.place.initial(self)
            };
            gpu.write(slot.stop_addr(), &bytemuck::bytes_of(&state)[CHANGED..])?;
            // Relaxed: no launch has it yet.
            slot.place.told().inspect(|told| told.store(0, Ordering::Relaxed));
        }
        Ok(slot)
    }

    /// One of a new chunk, of which the others are kept.
    fn more(&self, gpu: &dyn Gpu) -> Result<(Place, bool), GpuError> {
        let chunk = Arc::new(Chunk {
            states: DeviceArray::zeroed(gpu, CHUNK)?,
            told: gpu.allocate_host(4 * TOLD * CHUNK)?,
        });
        let place = |number| Place {
            chunk: Arc::clone(&chunk),
            number,
        };
        let states: Vec<LaunchState> = (0..CHUNK).map(|number| place(number).initial(self)).collect();
        chunk.states.write(gpu, 0, &states)?;
        let others = (1..CHUNK).rev().map(|number| (place(number), true));
        self.free.lock().extend(others);
        Ok((place(0), true))
    }
}

/// One launch's state. It goes back to the pool when it is dropped, which must not be before the launch has ended.
pub(crate) struct StateSlot {
    place: Place,
    pool: Arc<StatePool>,
    /// Faults end only what met them.
    continues: bool,
    aborted: AtomicBool,
    /// The launch has ended well and told no fault.
    untouched: AtomicBool,
    /// What the state was when the launch had ended, where it was read.
    last: OnceLock<Box<LaunchState>>,
    /// Arrays that are looked up: the region's index, and the length.
    watched: Mutex<Vec<(u32, u64)>>,
}

impl StateSlot {
    /// The launch's [`VmDesc`], with which the state begins.
    pub fn vm_addr(&self) -> u64 {
        self.place.addr()
    }

    /// The word that asks the launch to stop.
    pub fn stop_addr(&self) -> u64 {
        self.place.addr() + CHANGED as u64
    }

    /// Where the launch leaves an index past the end of an array of this many elements that it looks up, of the region with that index. More
    /// arrays than are told apart share the last place.
    pub fn watch_past(&self, region: u32, length: u64) -> u64 {
        let mut watched = self.watched.lock();
        watched.truncate(WATCHED - 1);
        let n = watched.len();
        watched.push((region, length));
        let halves = [nothing(length) as u32, (nothing(length) >> 32) as u32];
        for (word, half) in self.place.past(n).into_iter().zip(halves) {
            // Relaxed: the launch has not begun.
            word.inspect(|word| word.store(half, Ordering::Relaxed));
        }
        self.place.told_addr() + 8 * (1 + n as u64)
    }

    /// The first access past the end of an array that the ended launch looked up, and the number of other arrays with one.
    fn past_the_end(&self) -> Option<(FaultRecord, u32)> {
        let watched = self.watched.lock();
        let mut told = watched.iter().enumerate().filter_map(|(n, &(region, length))| {
            // Relaxed, as in `fault`.
            let [low, high] = self
                .place
                .past(n)
                .map(|word| word.map_or(0, |word| word.load(Ordering::Relaxed)));
            let index = u64::from(high) << 32 | u64::from(low);
            (index != nothing(length)).then_some(FaultRecord {
                claim: 2,
                code: layout::FAULT_OUT_OF_RANGE,
                region,
                index,
                size: length,
                multiprocessor: NO_MULTIPROCESSOR,
                ..FaultRecord::zeroed()
            })
        });
        told.next().map(|first| (first, told.count() as u32))
    }

    /// Makes the launch's slow paths end: lanes look at the flag again and again.
    pub fn abort(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        // Before the write, for `drop`: the slot is not clean then, whatever was read of it. Relaxed: the thread that drops the
        // slot has synchronised with every other holder.
        self.aborted.store(true, Ordering::Relaxed);
        gpu.write(self.stop_addr(), &1u32.to_ne_bytes())
    }

    /// Whether `abort` was called.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// The first fault of the ended launch, and the number of later ones. It is copied from the GPU once, and only where there may be
    /// one. A launch that was `stopped` where it stood may have recorded one and not told it.
    pub fn fault(&self, gpu: &dyn Gpu, stopped: bool) -> Result<Option<(FaultRecord, u32)>, GpuError> {
        // Relaxed: the launch has ended, and the thread that learnt of that is ordered behind its last store.
        let told = self.place.told().is_none_or(|told| told.load(Ordering::Relaxed) != 0);
        if !told && !stopped {
            self.untouched.store(true, Ordering::Relaxed);
            return Ok(self.past_the_end());
        }
        let state = match self.last.get() {
            Some(state) => state,
            None => {
                let mut state = LaunchState::zeroed();
                gpu.read(self.vm_addr(), bytemuck::bytes_of_mut(&mut state))?;
                self.last.get_or_init(|| Box::new(state))
            }
        };
        // A claim that is not complete is that of a lane that was stopped while it wrote the record.
        let past = self.past_the_end();
        Ok(
            match (state.fault.claim == 2).then_some((state.fault, state.later_faults)) {
                Some((fault, later)) => Some((fault, later + past.map_or(0, |(_, others)| 1 + others))),
                None => past,
            },
        )
    }
}

impl Drop for StateSlot {
    fn drop(&mut self) {
        let as_before =
            |state: &LaunchState| bytemuck::bytes_of(state) == bytemuck::bytes_of(&self.place.initial(&self.pool));
        let clean = *self.untouched.get_mut() || self.last.get().is_some_and(|last| as_before(last));
        let clean = clean && !self.continues && !*self.aborted.get_mut();
        self.pool.free.lock().push((self.place.clone(), clean));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_sim_gpu::SimGpu;

    #[test]
    fn a_state_is_zero_when_it_is_taken_whatever_happened_to_it_before() {
        let gpu = SimGpu::builder().memory_bytes(4 << 20).workers(1).build().unwrap();
        let pool = StatePool::new(VmDesc::zeroed(), 0);
        let word = |slot: &StateSlot, at: u64| {
            let mut word = [0; 4];
            gpu.read(slot.vm_addr() + at, &mut word).unwrap();
            u32::from_ne_bytes(word)
        };
        let claim = core::mem::offset_of!(LaunchState, fault) as u64;
        let slot = pool.take(&gpu, false).unwrap();
        let addr = slot.vm_addr();
        // A launch that told of nothing is believed, unless it was stopped.
        assert!(slot.fault(&gpu, false).unwrap().is_none());
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!(slot.vm_addr(), addr);
        // A fault; then an abort after the state was read; then one that nothing ever read.
        gpu.write(addr + claim, &2u32.to_ne_bytes()).unwrap();
        assert!(slot.fault(&gpu, true).unwrap().is_some());
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.vm_addr(), word(&slot, claim)), (addr, 0));
        assert!(slot.fault(&gpu, true).unwrap().is_none());
        slot.abort(&gpu).unwrap();
        assert_eq!(word(&slot, CHANGED as u64), 1);
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.vm_addr(), word(&slot, CHANGED as u64)), (addr, 0));
        gpu.write(addr + claim, &1u32.to_ne_bytes()).unwrap();
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.vm_addr(), word(&slot, claim)), (addr, 0));
        // More than a chunk holds at once are all different.
        let many: Vec<_> = (0..100).map(|_| pool.take(&gpu, false).unwrap()).collect();
        let mut addrs: Vec<_> = many.iter().map(StateSlot::vm_addr).chain([addr]).collect();
        addrs.sort_unstable();
        addrs.dedup();
        assert_eq!(addrs.len(), 101);
    }

    #[test]
    fn an_index_past_the_end_is_told_with_its_array() {
        let gpu = SimGpu::builder().memory_bytes(4 << 20).workers(1).build().unwrap();
        let pool = StatePool::new(VmDesc::zeroed(), 0);
        let slot = pool.take(&gpu, false).unwrap();
        let (first, empty) = (slot.watch_past(3, 10), slot.watch_past(4, 0));
        assert_eq!(empty, first + 8);
        assert!(slot.fault(&gpu, false).unwrap().is_none());
        let leave = |slot: &StateSlot, n: usize, index: u64| {
            for (word, half) in slot.place.past(n).into_iter().zip([index as u32, (index >> 32) as u32]) {
                word.unwrap().store(half, Ordering::Relaxed);
            }
        };
        // An empty array has no index at all, and the largest is one of none.
        leave(&slot, 1, 0);
        let told = |slot: &StateSlot| {
            slot.fault(&gpu, false)
                .unwrap()
                .map(|(record, later)| (record.region, record.index, later))
        };
        assert_eq!(told(&slot), Some((4, 0, 0)));
        leave(&slot, 0, u64::MAX);
        assert_eq!(told(&slot), Some((3, u64::MAX, 1)));
        drop(slot);
        // The next launch begins with nothing, and arrays without a place of their own share one.
        let slot = pool.take(&gpu, false).unwrap();
        let mut places: Vec<u64> = (0..20).map(|region| slot.watch_past(region, 5)).collect();
        assert_eq!(told(&slot), None);
        places.dedup();
        assert_eq!(places.len(), WATCHED);
        leave(&slot, WATCHED - 1, 7);
        assert_eq!(told(&slot), Some((19, 7, 0)));
    }
}
