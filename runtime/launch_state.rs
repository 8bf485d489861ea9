//! The states of launches, in GPU memory: lanes look at the abort flag in their slow paths, and over the bus a look costs
//! more than a microsecond.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bytemuck::Zeroable;
use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{FaultRecord, LaunchState};
use parking_lot::{Mutex, MutexGuard};

use crate::device::DeviceArray;

/// States that are allocated at a time.
const CHUNK: u64 = 64;

/// Launches come often and allocations are slow: states that are kept for the next launch.
pub(crate) struct StatePool {
    inner: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    chunks: Vec<DeviceArray<LaunchState>>,
    /// Address, and whether it holds zeros.
    free: Vec<(u64, bool)>,
}

impl StatePool {
    pub fn new() -> Arc<Self> {
        let inner = Mutex::default();
        Arc::new(Self { inner })
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.inner.lock()
    }

    /// A zeroed state, but for whether faults end what did not meet them.
    pub fn take(self: &Arc<Self>, gpu: &dyn Gpu, continues: bool) -> Result<StateSlot, GpuError> {
        let (addr, clean) = {
            let mut slots = self.lock();
            match slots.free.pop() {
                Some(slot) => slot,
                None => {
                    let chunk = DeviceArray::zeroed(gpu, CHUNK)?;
                    let addr = |n| chunk.addr() + n * size_of::<LaunchState>() as u64;
                    let first = addr(0);
                    slots.free.extend((1..CHUNK).rev().map(|n| (addr(n), true)));
                    slots.chunks.push(chunk);
                    (first, true)
                }
            }
        };
        let slot = StateSlot {
            addr,
            pool: Arc::clone(self),
            aborted: AtomicBool::new(false),
            last: OnceLock::new(),
        };
        if !clean || continues {
            let state = LaunchState {
                continues: continues.into(),
                ..LaunchState::zeroed()
            };
            gpu.write(addr, bytemuck::bytes_of(&state))?;
        }
        Ok(slot)
    }
}

/// One launch's state. It goes back to the pool when it is dropped, which must not be before the launch has ended.
pub(crate) struct StateSlot {
    addr: u64,
    pool: Arc<StatePool>,
    aborted: AtomicBool,
    /// What the state was when the launch had ended.
    last: OnceLock<LaunchState>,
}

impl StateSlot {
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Makes the launch's slow paths end: lanes look at the flag again and again.
    pub fn abort(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        // Before the write, for `drop`: the slot is not clean then, whatever was read of it. Relaxed: whoever drops the
        // slot has synchronised with every other holder.
        self.aborted.store(true, Ordering::Relaxed);
        let flag = self.addr + core::mem::offset_of!(LaunchState, abort) as u64;
        gpu.write(flag, &1u32.to_ne_bytes())
    }

    /// Whether `abort` was called.
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// The first fault of the ended launch, and the number of later ones. It is copied from the GPU once.
    pub fn fault(&self, gpu: &dyn Gpu) -> Result<Option<(FaultRecord, u32)>, GpuError> {
        let state = match self.last.get() {
            Some(state) => state,
            None => {
                let mut state = LaunchState::zeroed();
                gpu.read(self.addr, bytemuck::bytes_of_mut(&mut state))?;
                self.last.get_or_init(|| state)
            }
        };
        // A claim that is not complete is that of a lane that was stopped while it wrote the record.
        Ok((state.fault.claim == 2).then_some((state.fault, state.later_faults)))
    }
}

impl Drop for StateSlot {
    fn drop(&mut self) {
        let zeros = |state: &LaunchState| bytemuck::bytes_of(state).iter().all(|&byte| byte == 0);
        let clean = self.last.get().is_some_and(zeros) && !*self.aborted.get_mut();
        self.pool.lock().free.push((self.addr, clean));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_sim_gpu::SimGpu;

    #[test]
    fn a_state_is_zero_when_it_is_taken_whatever_happened_to_it_before() {
        let gpu = SimGpu::builder().memory_bytes(4 << 20).workers(1).build().unwrap();
        let pool = StatePool::new();
        let word = |slot: &StateSlot, at: u64| {
            let mut word = [0; 4];
            gpu.read(slot.addr() + at, &mut word).unwrap();
            u32::from_ne_bytes(word)
        };
        let claim = core::mem::offset_of!(LaunchState, fault) as u64;
        let slot = pool.take(&gpu, false).unwrap();
        let addr = slot.addr();
        // A fault; then an abort after the state was read; then one that nobody ever read.
        gpu.write(addr + claim, &2u32.to_ne_bytes()).unwrap();
        assert!(slot.fault(&gpu).unwrap().is_some());
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.addr(), word(&slot, claim)), (addr, 0));
        assert!(slot.fault(&gpu).unwrap().is_none());
        slot.abort(&gpu).unwrap();
        assert_eq!(word(&slot, 0), 1);
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.addr(), word(&slot, 0)), (addr, 0));
        gpu.write(addr + claim, &1u32.to_ne_bytes()).unwrap();
        drop(slot);
        let slot = pool.take(&gpu, false).unwrap();
        assert_eq!((slot.addr(), word(&slot, claim)), (addr, 0));
        // More than a chunk holds at once are all different.
        let many: Vec<_> = (0..100).map(|_| pool.take(&gpu, false).unwrap()).collect();
        let mut addrs: Vec<_> = many.iter().map(StateSlot::addr).chain([addr]).collect();
        addrs.sort_unstable();
        addrs.dedup();
        assert_eq!(addrs.len(), 101);
    }
}
