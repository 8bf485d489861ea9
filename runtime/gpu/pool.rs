//! The frames of a GPU, and the pool of those that are free.

use std::{
    mem::offset_of,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{self as layout, FillState, PoolDesc, PoolState};
use parking_lot::Mutex;

use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Result},
    frames::FrameMemory,
    launch::InFlight,
};

/// The pool is refilled while it holds fewer frames than this for each warp that can be resident, so that a fault
/// finds one; more would only keep pages out of memory.
const LOW_WATER_PER_WARP: u32 = 2;
/// The pool never keeps more than this share of the frames from the pages.
const LOW_WATER_SHARE: u32 = 8;
/// Large pages that lanes may fill together at one time, where lanes copy pages themselves.
const FILLS: u32 = 512;
const _: () = assert!(FILLS <= layout::FILLS_MAX);
/// A page id and a slot of the ring.
pub(super) const BYTES_A_FRAME: u64 = 16;

/// Frames that come back, by lanes that look for one and by a kernel, which may find no place on the GPU yet.
pub(super) struct Returning {
    pub frames: Range<u32>,
    /// None where it could not be started.
    pub launch: Option<Arc<InFlight>>,
}

impl Returning {
    /// Whether no kernel works on it, or waits for a place.
    pub fn is_left_alone(&self) -> bool {
        self.launch.as_ref().is_none_or(|launch| launch.is_done())
    }
}

/// Frames and who has them.
pub(super) struct FramePool {
    memory: FrameMemory,
    /// Most that there may be.
    capacity: u32,
    /// Those that are not withdrawn. Changed by who holds the GPU's state.
    count: AtomicU32,
    resident_warps: u32,
    pub frame_pages: DeviceArray<u64>,
    pub free: FreeList,
    /// Held by who changes the number of frames: the change that an earlier one left behind.
    pub changing: Mutex<Option<Returning>>,
    /// Where warps fill a large page together.
    fills: Option<DeviceArray<FillState>>,
}

impl FramePool {
    /// `count` of up to `capacity` frames, all of them free. With `filled_by_lanes` where pages are so large that lanes fill them
    /// together.
    pub fn new(
        gpu: &dyn Gpu,
        memory: FrameMemory,
        (count, capacity): (u32, u32),
        filled_by_lanes: bool,
    ) -> Result<Self> {
        let doing = || "allocating the frames' bookkeeping".to_owned();
        let able = gpu.capabilities();
        let fills = match filled_by_lanes {
            true => Some(DeviceArray::zeroed(gpu, u64::from(FILLS)).doing(doing)?),
            false => None,
        };
        let pool = Self {
            memory,
            capacity,
            count: AtomicU32::new(count),
            resident_warps: able.max_resident_lanes / able.warp_size,
            frame_pages: DeviceArray::zeroed(gpu, u64::from(capacity)).doing(doing)?,
            free: FreeList::new(gpu, capacity).doing(doing)?,
            changing: Mutex::default(),
            fills,
        };
        pool.rebuild(gpu, vec![0; capacity as usize])?;
        Ok(pool)
    }

    pub fn memory(&self) -> &FrameMemory {
        &self.memory
    }

    /// Frames that are there, or about to be.
    pub fn count(&self) -> u32 {
        // Relaxed: an amount. What it is about is under the state's lock.
        self.count.load(Ordering::Relaxed)
    }

    /// There are more frames from now on, or fewer. The caller holds the GPU's state.
    pub fn set_count(&self, count: u32) {
        self.count.store(count, Ordering::Relaxed);
    }

    /// Most frames that there may be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Frames below the end of the last unit that is there: what the clock goes over.
    pub fn limit(&self) -> u32 {
        match self.memory.units() {
            None => self.capacity,
            Some(units) => units.present().last().map_or(1, |last| units.frames(*last).end),
        }
    }

    /// Address and length of the table of large pages that are filled; zeros without.
    pub fn fills(&self) -> (u64, u32) {
        self.fills.as_ref().map_or((0, 0), |fills| (fills.addr(), FILLS))
    }

    /// How many frames to keep free with `pages` pages that may need one: none while all of them find one.
    pub fn low_water(&self, pages: u64) -> u32 {
        let count = self.count();
        match pages <= u64::from(count) {
            true => 0,
            false => (count / LOW_WATER_SHARE).min(LOW_WATER_PER_WARP * self.resident_warps),
        }
    }

    /// Rebuilds all of it from the page ids of all frames, 0 for a frame that has no page. No kernel may run.
    pub fn rebuild(&self, gpu: &dyn Gpu, mut frame_pages: Vec<u64>) -> Result<()> {
        if let Some(units) = self.memory.units() {
            let mut there = vec![false; frame_pages.len()];
            for unit in units.present() {
                let frames = units.frames(unit);
                there[frames.start as usize..frames.end as usize].fill(true);
            }
            for (page, _) in frame_pages.iter_mut().zip(there).filter(|(_, there)| !there) {
                *page = layout::PAGE_WITHDRAWN;
            }
        }
        if let Some(fills) = &self.fills {
            // Places that lanes had taken when they were stopped.
            let none = vec![zero(); FILLS as usize];
            fills
                .write(gpu, 0, &none)
                .doing(|| "clearing the table of large pages".into())?;
        }
        self.frame_pages
            .write(gpu, 0, &frame_pages)
            .doing(|| "rebuilding the table of frames".into())?;
        let free = (0..self.capacity).filter(|&frame| frame_pages[frame as usize] == 0);
        self.free.fill(gpu, free).doing(filling)?;
        self.free.set_limit(gpu, self.limit()).doing(filling)
    }
}

fn filling() -> String {
    "filling the frame pool".into()
}

/// Numbers below a count that are free: frames, or slots at neighbours. The device library's `pool.cuh` takes and gives them.
pub(super) struct FreeList {
    count: u32,
    /// Changes so far. Relaxed: who begins one holds the lock of changes.
    changes: AtomicU32,
    /// As it was told last. Relaxed, likewise.
    limit: AtomicU32,
    ring: DeviceArray<u64>,
    state: DeviceArray<PoolState>,
}

impl FreeList {
    /// With none.
    pub fn new(gpu: &dyn Gpu, count: u32) -> Result<Self, GpuError> {
        Ok(Self {
            count,
            changes: AtomicU32::default(),
            limit: AtomicU32::default(),
            ring: DeviceArray::zeroed(gpu, u64::from(count))?,
            state: DeviceArray::zeroed(gpu, 1)?,
        })
    }

    /// As lanes find it.
    pub fn describe(&self) -> PoolDesc {
        PoolDesc::new(self.state.addr(), self.ring.addr(), self.count)
    }

    /// How many are free. Kernels may run.
    pub fn available(&self, gpu: &dyn Gpu) -> Result<u64, GpuError> {
        Ok(self.state.read(gpu, 0, 1)?[0].available)
    }

    /// Holds `free` and nothing else, in lap 0. The hand stays: ages of counts follow from it. No kernel may run.
    pub fn fill(&self, gpu: &dyn Gpu, free: impl Iterator<Item = u32>) -> Result<(), GpuError> {
        let mut slots: Vec<u64> = free.map(|number| 1 << 32 | u64::from(number)).collect();
        let there = slots.len() as u64;
        slots.resize(self.count as usize, 0);
        self.ring.write(gpu, 0, &slots)?;
        let before = self.state.read(gpu, 0, 1)?;
        let state = PoolState {
            available: there,
            tail: there,
            hand: before[0].hand,
            limit: before[0].limit,
            frames_low: before[0].frames_low,
            ..zero()
        };
        self.state.write(gpu, 0, &[state])
    }

    /// Has the clock go over the numbers below `limit` alone. Kernels may run.
    pub fn set_limit(&self, gpu: &dyn Gpu, limit: u32) -> Result<(), GpuError> {
        self.limit.store(limit, Ordering::Relaxed);
        self.put(gpu, offset_of!(PoolState, limit), &[u64::from(limit)])
    }

    /// Has who looks for a frame work on the change that is under way, until it is over. Kernels may run.
    pub fn call_lanes(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        let limit = u64::from(self.limit.load(Ordering::Relaxed)) | layout::POOL_CHANGING_BIT;
        self.put(gpu, offset_of!(PoolState, limit), &[limit])
    }

    /// The pool is refilled while it has fewer frames. Kernels may run.
    pub fn set_low_water(&self, gpu: &dyn Gpu, frames: u32) -> Result<(), GpuError> {
        self.put(gpu, offset_of!(PoolState, frames_low), &[u64::from(frames)])
    }

    /// Begins a change of `frames`, `left` of which are not done yet, and says how lanes know it. There is none, and kernels may run.
    pub fn begin_change(&self, gpu: &dyn Gpu, frames: &Range<u32>, kind: u64, left: u32) -> Result<u64, GpuError> {
        const { assert!(offset_of!(PoolState, change_hand) == offset_of!(PoolState, change_left) + 8) };
        self.put(gpu, offset_of!(PoolState, change_left), &[u64::from(left), 0])?;
        // Behind the others: a lane that sees it uses them.
        let number = self.changes.fetch_add(1, Ordering::Relaxed) % layout::POOL_CHANGE_NUMBERS;
        let number = u64::from(number) << layout::POOL_CHANGE_NUMBER_SHIFT;
        let change = kind | number | u64::from(frames.end) << layout::POOL_CHANGE_END_SHIFT | u64::from(frames.start);
        self.put(gpu, offset_of!(PoolState, change), &[change])?;
        Ok(change)
    }

    /// Nothing begins to work on the change any more, or looks for one: `helpers` falls to 0. Kernels may run.
    pub fn end_change(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        self.put(gpu, offset_of!(PoolState, change), &[0])?;
        self.set_limit(gpu, self.limit.load(Ordering::Relaxed))
    }

    /// What is left of the change, and how many lanes work on it.
    pub fn change(&self, gpu: &dyn Gpu) -> Result<(i64, u64), GpuError> {
        let state = self.state.read(gpu, 0, 1)?[0];
        Ok((state.change_left as i64, state.helpers))
    }

    fn put(&self, gpu: &dyn Gpu, offset: usize, words: &[u64]) -> Result<(), GpuError> {
        gpu.write(self.state.addr() + offset as u64, bytemuck::cast_slice(words))
    }
}
