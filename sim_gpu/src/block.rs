//! A resident block: its warps, their coroutines and stacks, its shared memory and barrier.

use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use corosensei::{Coroutine, CoroutineResult};

use super::abi::{BlockConstants, Lane, barrier};
use super::core::Core;
use super::launch::LaunchState;
use super::races::Racer;
use super::seeded::Chance;
use super::stacks::{LaneStack, WarpStacks};
use super::warp::{LANES, Warp, lanes_of};
use super::weak_memory::MULTIPROCESSORS;
use gpuvm_gpu::{Coordinates, GpuError};

/// What shared memory holds before a kernel writes it; CUDA promises nothing, so zeros would hide mistakes.
const POISON: u8 = 0xa5;

type LaneCoroutine = Coroutine<(), (), (), LaneStack>;

/// A warp with the stacks its lanes run on; reused from block to block.
pub(crate) struct WarpUnit {
    pub(crate) warp: Warp,
    coroutines: [Option<LaneCoroutine>; LANES],
    stacks: WarpStacks,
}

impl WarpUnit {
    /// A unit with fresh stacks, numbered by `slots`.
    pub(crate) fn new(slots: &AtomicU32) -> Result<Box<Self>, GpuError> {
        Ok(Box::new(Self {
            warp: Warp::new(),
            coroutines: [const { None }; LANES],
            stacks: WarpStacks::map(slots)?,
        }))
    }

    /// The lane's constants; valid while the unit lives.
    pub(crate) fn lane(&self, lane: usize) -> *mut Lane {
        self.stacks.lane(lane)
    }
}

/// Warps of a block. Boxed, because lanes hold their addresses.
pub(crate) type Units = Vec<Box<WarpUnit>>;

/// One block on a worker. It does not move while lanes run: they hold its address.
pub(crate) struct Block {
    pub(crate) constants: BlockConstants,
    pub(crate) core: Arc<Core>,
    pub(crate) launch: Arc<LaunchState>,
    pub(crate) units: Units,
    /// Dynamic shared memory, 16-byte aligned.
    dynamic: Vec<u128>,
    /// Static shared memory while another block's is in place.
    pub(crate) image: Vec<u8>,
    /// Position in the grid's linear order.
    pub(crate) number: u64,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) arrived: u32,
    pub(crate) barrier_kind: u32,
    pub(crate) barrier_votes: u32,
    pub(crate) barrier_result: u32,
    pub(crate) progress: u64,
    /// The seeded scheduler that runs this block, null in the fast mode.
    pub(crate) seeded: *mut Chance,
}

impl Block {
    /// Sets up block `number` of `launch` on the given units; there is one for each warp. `seeded` is null in the fast mode.
    pub(crate) fn new(
        core: Arc<Core>,
        launch: Arc<LaunchState>,
        number: u64,
        sm: u32,
        units: Units,
        seeded: *mut Chance,
    ) -> Box<Self> {
        let sm = match seeded.is_null() {
            true => sm,
            // One thread, but several multiprocessors, whose caches differ.
            false => (number % u64::from(MULTIPROCESSORS)) as u32,
        };
        let config = &launch.config;
        let [gx, gy, _] = config.grid.map(u64::from);
        let block_idx = [
            (number % gx) as u32,
            (number / gx % gy) as u32,
            (number / gx / gy) as u32,
        ];
        let words = (config.dynamic_shared_bytes as usize).div_ceil(16);
        let constants = BlockConstants {
            block_idx,
            block_dim: config.block,
            grid_dim: config.grid,
            sm,
            seeded: u32::from(!seeded.is_null()),
            dynamic_bytes: config.dynamic_shared_bytes,
            shared: ptr::null_mut(),
            variant: core.options.simulation.variant,
        };
        let image = vec![POISON; launch.kernel.module.shared_bytes()];
        let live = config.block.iter().product();
        let mut block = Box::new(Self {
            constants,
            core,
            launch,
            units,
            dynamic: vec![u128::from_ne_bytes([POISON; 16]); words],
            image,
            number,
            live,
            arrived: 0,
            barrier_kind: 0,
            barrier_votes: 0,
            barrier_result: 0,
            progress: 0,
            seeded,
        });
        block.constants.shared = block.dynamic.as_mut_ptr().cast();
        block.start_lanes();
        block
    }

    fn start_lanes(&mut self) {
        let this: *mut Self = self;
        let [dx, dy, _] = self.constants.block_dim;
        let threads = self.live;
        let skip_exited = self.launch.skip_exited;
        let (entry, arguments) = (self.launch.kernel.entry, self.launch.arguments.pointers());
        for (index, unit) in self.units.iter_mut().enumerate() {
            let first = index as u32 * LANES as u32;
            let here = (threads - first).min(LANES as u32);
            let existing = if here == 32 { u32::MAX } else { (1 << here) - 1 };
            unit.warp.reset(existing, index as u32, skip_exited);
            let warp: *mut Warp = &raw mut unit.warp;
            for lane in 0..here as usize {
                let number = first + lane as u32;
                let place = unit.stacks.lane(lane);
                let constants = Lane {
                    // SAFETY: only the address is taken; the block is boxed and outlives its lanes.
                    block: unsafe { &raw const (*this).constants },
                    thread: [number % dx, number / dx % dy, number / dx / dy],
                    lane: lane as u32,
                    warp_slot: unit.stacks.slot(),
                    note_code: 0,
                    warp,
                    yielder: ptr::null(),
                    note: [0; 2],
                    id: (self.launch.id << 48) ^ (self.number << 10) ^ u64::from(number),
                    wake_ns: 0,
                };
                // SAFETY: `place` is the lane's reserved room in its own stack mapping, aligned, and no coroutine runs there yet.
                unsafe { place.write(constants) };
                // SAFETY: what the closure captures (the kernel's code, the arguments, the lane's room) is kept by `self.launch` and by
                // the unit; the coroutine is reset before either goes, in `retire` and `stop`.
                let coroutine = unsafe {
                    Coroutine::with_stack_unchecked(unit.stacks.stack(lane), move |yielder, ()| {
                        (*place).yielder = yielder;
                        entry(arguments);
                    })
                };
                unit.coroutines[lane] = Some(coroutine);
            }
        }
    }

    /// Runs a lane until it suspends or returns; true when it returned.
    ///
    /// # Safety
    /// `unit` is a live unit of a block that is in place on this thread (its shared memory too), `lane` has not exited, and no reference
    /// into the unit or its block is held.
    pub(crate) unsafe fn resume(unit: *mut WarpUnit, lane: usize) -> bool {
        // SAFETY: the element is reached through a raw pointer, so that hooks which run inside may use the rest of the unit.
        let coroutine = unsafe { &mut (*unit).coroutines[lane] };
        match coroutine {
            Some(coroutine) => matches!(coroutine.resume(()), CoroutineResult::Return(())),
            None => true,
        }
    }

    /// The block of a lane.
    ///
    /// # Safety
    /// `lane` is one of a block that is resident.
    pub(crate) unsafe fn of(lane: *const Lane) -> *mut Self {
        // SAFETY: `start_lanes` took the address of the constants from the block's own.
        unsafe { (*lane).block.byte_sub(offset_of!(Self, constants)).cast_mut().cast() }
    }

    /// Its lanes, as the race checker knows them.
    pub(crate) fn racers(&self) -> Vec<Racer> {
        // SAFETY: the lane's constants live in the unit's stacks, and are not written while it lives.
        let racer = |unit: &WarpUnit, lane| unsafe { (*unit.lane(lane)).racer() };
        let units = self.units.iter();
        units
            .flat_map(|unit| lanes_of(unit.warp.existing).map(move |lane| racer(unit, lane)))
            .collect()
    }

    /// The launch of a block that lanes are using.
    ///
    /// # Safety
    /// `block` is resident and stays so for as long as the answer is used; `launch` is never written after construction.
    pub(crate) unsafe fn launch_of<'a>(block: *const Self) -> &'a Arc<LaunchState> {
        // SAFETY: as the caller promises.
        unsafe { &(*block).launch }
    }

    /// The GPU of such a block.
    ///
    /// # Safety
    /// As for [`launch_of`](Self::launch_of).
    pub(crate) unsafe fn core_of<'a>(block: *const Self) -> &'a Arc<Core> {
        // SAFETY: as the caller promises.
        unsafe { &(*block).core }
    }

    /// How a trap handler leaves the lane; none when the lane does not exist.
    pub(crate) fn trap_handler(unit: &WarpUnit, lane: usize) -> Option<corosensei::trap::CoroutineTrapHandler<()>> {
        unit.coroutines[lane].as_ref().map(Coroutine::trap_handler)
    }

    /// Drops every lane where it stands and gives the units back for reuse.
    pub(crate) fn retire(mut self) -> Units {
        for unit in &mut self.units {
            for slot in &mut unit.coroutines {
                if let Some(mut coroutine) = slot.take() {
                    // SAFETY: a lane's frames are C++ kernel code, whose abandonment is the documented meaning of stopping a launch, and hooks,
                    // which hold nothing to drop while they are suspended.
                    unsafe { coroutine.force_reset() };
                }
            }
        }
        self.units
    }

    /// Block index in the grid.
    pub(crate) fn index(&self) -> Coordinates {
        self.constants.block_idx
    }

    /// Whether any lane may run now or after some time.
    pub(crate) fn can_run(&self) -> bool {
        self.units
            .iter()
            .any(|u| u.warp.ready | u.warp.polling | u.warp.gathering != 0)
    }

    /// Lets every lane at the barrier go on once all live lanes have arrived; true when it did.
    pub(crate) fn try_release_barrier(&mut self) -> bool {
        if self.arrived == 0 || self.arrived != self.live {
            return false;
        }
        self.barrier_result = match self.barrier_kind {
            barrier::COUNT => self.barrier_votes,
            barrier::AND => u32::from(self.barrier_votes == self.arrived),
            _ => u32::from(self.barrier_votes != 0),
        };
        (self.arrived, self.barrier_votes) = (0, 0);
        // SAFETY: the chance outlives all blocks, and only this thread uses it.
        if let Some(chance) = unsafe { self.seeded.as_mut() } {
            chance.met(&self.racers().iter().map(|racer| racer.lane).collect::<Vec<_>>());
        }
        self.progress += 1;
        for unit in &mut self.units {
            unit.warp.ready |= std::mem::take(&mut unit.warp.at_barrier);
        }
        true
    }

    /// Work done so far: collectives, barriers, exits.
    pub(crate) fn progress(&self) -> u64 {
        self.units
            .iter()
            .fold(self.progress, |sum, unit| sum.wrapping_add(unit.warp.progress))
    }

    /// Makes polling lanes whose time has come ready; whether any lane is ready then. `now_ns` is asked for only when a lane sleeps.
    pub(crate) fn wake(&mut self, now_ns: &mut dyn FnMut() -> u64) -> bool {
        let mut any = false;
        for unit in &mut self.units {
            let warp = &unit.warp;
            let mut asleep = 0;
            if warp.sleeping != 0 {
                let now = now_ns();
                for lane in lanes_of(warp.sleeping) {
                    // SAFETY: the lane's constants live in the unit's stacks; the lane is suspended, so nobody else touches them.
                    if unsafe { (*unit.lane(lane)).wake_ns } > now {
                        asleep |= 1 << lane;
                    }
                }
            }
            let warp = &mut unit.warp;
            warp.ready |= warp.polling & !asleep;
            warp.polling = asleep;
            warp.sleeping = asleep;
            any |= warp.ready | warp.gathering != 0;
        }
        any
    }
}
