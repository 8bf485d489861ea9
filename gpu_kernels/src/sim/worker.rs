//! The fast mode: worker threads, each with several resident blocks whose lanes it switches between.

use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Duration;

use super::block::{Block, WarpUnit};
use super::core::Core;
use super::hooks::monotonic_ns;
use super::launch::{LaunchState, lock};
use super::trap::{self, WorkerSignals};
use crate::error::GpuError;

/// Collectives a warp completes before it lets other warps run.
const FUEL: i32 = 256;
/// Passes over a block's warps before other blocks run.
const PASSES: u32 = 16;
/// Rounds of mere polling before a worker sleeps instead of only yielding its core.
const FRUITLESS_MAX: u32 = 100;
/// How long it sleeps then. Engines of NICs need the core; their work takes about this long.
const NAP: Duration = Duration::from_micros(30);

/// One worker thread's state.
pub(crate) struct Worker {
    core: Arc<Core>,
    number: u32,
    signals: Arc<WorkerSignals>,
    launches: Vec<Arc<LaunchState>>,
    generation: Option<u64>,
    resident: Vec<Box<Block>>,
    spare: Vec<Box<WarpUnit>>,
    /// The block whose static shared memory is in place, for each module that has such a block.
    in_place: Vec<*mut Block>,
    first_launch: usize,
}

/// Why a warp stopped running.
enum Turn {
    Done,
    /// The launch was stopped or a lane faulted.
    Stopped,
}

impl Worker {
    /// Worker `number`, reachable for signals through `signals`.
    pub(crate) fn new(core: Arc<Core>, number: u32, signals: Arc<WorkerSignals>) -> Self {
        Self {
            core,
            number,
            signals,
            launches: Vec::new(),
            generation: None,
            resident: Vec::new(),
            spare: Vec::new(),
            in_place: Vec::new(),
            first_launch: 0,
        }
    }

    /// Runs blocks until the GPU is shut down.
    pub(crate) fn run(mut self) {
        let _signals = trap::enter(&self.signals);
        let mut fruitless = 0;
        loop {
            if self.refresh() {
                break;
            }
            let took = self.take_blocks();
            if self.resident.is_empty() {
                if !took {
                    self.park();
                }
                continue;
            }
            let progressed = self.round();
            fruitless = if progressed || took { 0 } else { fruitless + 1 };
            if fruitless > FRUITLESS_MAX {
                std::thread::sleep(NAP);
            } else if fruitless > 0 {
                std::thread::yield_now();
            }
        }
        for block in std::mem::take(&mut self.resident) {
            self.drop_block(block, false);
        }
    }

    /// Takes note of launches that came or went; true when the GPU is shut down.
    fn refresh(&mut self) -> bool {
        let generation = self.core.generation();
        if self.generation == Some(generation) {
            return false;
        }
        let running = lock(&self.core.running);
        self.launches.clone_from(&running.launches);
        // Read again under the lock: it moves only while the lock is held.
        self.generation = Some(self.core.generation());
        running.shut_down
    }

    /// Waits until launches come or go.
    fn park(&mut self) {
        self.launches.clear();
        let mut running = lock(&self.core.running);
        while self.generation == Some(self.core.generation()) && !running.shut_down {
            running = self.core.changed.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        // What was cleared above must come back even if nothing else changed.
        self.generation = None;
    }

    /// Takes blocks while there is room; whether it took any.
    fn take_blocks(&mut self) -> bool {
        let mut took = false;
        let count = self.launches.len();
        for turn in 0..count {
            let launch = Arc::clone(&self.launches[(self.first_launch + turn) % count]);
            while launch.has_blocks() && self.has_room(&launch) {
                let Some(number) = launch.take_block() else { break };
                took |= self.start(&launch, number);
            }
        }
        self.first_launch = self.first_launch.wrapping_add(1);
        took
    }

    /// One block of each launch always has room, so that launches which wait for each other cannot shut each other out.
    fn has_room(&self, launch: &LaunchState) -> bool {
        let (mut lanes, mut blocks) = (0, 0);
        for block in &self.resident {
            lanes += block.units.len() as u64 * 32;
            blocks += u64::from(block.launch.id == launch.id);
        }
        let fair = launch.blocks.div_ceil(u64::from(self.core.options.workers));
        let wanted = launch.warps_per_block() as u64 * 32;
        blocks == 0 || (blocks < fair && lanes + wanted <= u64::from(self.core.options.lanes_per_worker))
    }

    fn start(&mut self, launch: &Arc<LaunchState>, number: u64) -> bool {
        let mut units = Vec::with_capacity(launch.warps_per_block());
        while units.len() < launch.warps_per_block() {
            match self.spare.pop().map_or_else(|| WarpUnit::new(&self.core.slots), Ok) {
                Ok(unit) => units.push(unit),
                Err(error) => {
                    self.spare.append(&mut units);
                    launch.fail(error);
                    launch.retired(false);
                    return false;
                }
            }
        }
        self.resident
            .push(Block::new(Arc::clone(launch), number, self.number, units));
        true
    }

    /// Lets every resident block run; whether any got on with its work.
    fn round(&mut self) -> bool {
        let mut progressed = false;
        let mut index = 0;
        while index < self.resident.len() {
            let block: *mut Block = &raw mut *self.resident[index];
            // SAFETY: the block is boxed and stays in `resident` until it is removed below; lanes run inside `run_block` only.
            let keep = unsafe {
                let before = (*block).progress();
                let keep = self.visit(block);
                progressed |= !keep || (*block).progress() != before;
                keep
            };
            if keep {
                index += 1;
            } else {
                let block = self.resident.swap_remove(index);
                let completed = block.live == 0 && !block.launch.stopped();
                self.drop_block(block, completed);
            }
        }
        progressed
    }

    /// Runs one block for a while; false when it is to be dropped.
    ///
    /// # Safety
    /// `block` is resident on this worker.
    unsafe fn visit(&mut self, block: *mut Block) -> bool {
        // SAFETY: nobody else uses the block while its lanes are suspended; references end before lanes run.
        unsafe {
            if Block::launch_of(block).stopped() {
                return false;
            }
            if !(*block).wake(&mut monotonic_ns) {
                if (*block).can_run() {
                    return true;
                }
                let error = super::report::deadlock(&*block);
                Block::launch_of(block).fail(error);
                return false;
            }
            self.put_in_place(block);
            self.signals.set_text(&Block::launch_of(block).kernel.module.text);
            for _ in 0..PASSES {
                let mut ran = false;
                for index in 0..(*block).units.len() {
                    let unit: *mut WarpUnit = &raw mut **(&mut (*block).units)[index..].as_mut_ptr();
                    if (*unit).warp.ready | (*unit).warp.gathering == 0 {
                        continue;
                    }
                    ran = true;
                    if matches!(self.run_warp(block, unit), Turn::Stopped) {
                        return false;
                    }
                }
                if (*block).live == 0 {
                    return false;
                }
                if !ran {
                    break;
                }
            }
            true
        }
    }

    /// Runs a warp until none of its lanes can.
    ///
    /// # Safety
    /// As for [`Worker::visit`], with `unit` one of the block's.
    unsafe fn run_warp(&mut self, block: *mut Block, unit: *mut WarpUnit) -> Turn {
        // SAFETY: raw pointers all along: hooks use warp and block while a lane runs; references here end before that.
        unsafe {
            (*unit).warp.fuel = FUEL;
            loop {
                if (*unit).warp.ready == 0 {
                    if (*unit).warp.gathering == 0 {
                        return Turn::Done;
                    }
                    (*unit).warp.answer_all_gathering();
                }
                let lane = (*unit).warp.ready.trailing_zeros() as usize;
                self.signals.enter_lane(unit, lane);
                let returned = Block::resume(unit, lane);
                self.signals.leave_lane();
                if returned && !self.lane_ended(block, unit, lane) {
                    return Turn::Stopped;
                }
                if Block::launch_of(block).stopped() {
                    return Turn::Stopped;
                }
            }
        }
    }

    /// A lane has returned or faulted; false when that ends the launch.
    ///
    /// # Safety
    /// As for [`Worker::run_warp`].
    unsafe fn lane_ended(&mut self, block: *mut Block, unit: *mut WarpUnit, lane: usize) -> bool {
        // SAFETY: the lane is gone, so nothing but this thread uses the block.
        unsafe {
            let (kernel, index) = (Block::launch_of(block).kernel.info.name.clone(), (*block).index());
            let thread = (*(*unit).lane(lane)).thread;
            if let Some((address, what)) = self.signals.take_fault() {
                Block::launch_of(block).fail(GpuError::KernelFault {
                    kernel,
                    block: index,
                    thread,
                    address,
                    what,
                });
                return false;
            }
            (*block).live -= 1;
            if let Err(cause) = (*unit).warp.exit(lane) {
                Block::launch_of(block).fail(GpuError::Collective {
                    kernel,
                    block: index,
                    thread,
                    cause,
                });
                return false;
            }
            (*block).try_release_barrier();
            true
        }
    }

    /// Makes the module's thread-local image that block's shared memory.
    ///
    /// # Safety
    /// As for [`Worker::visit`].
    unsafe fn put_in_place(&mut self, block: *mut Block) {
        // SAFETY: the blocks in `in_place` are resident (they leave it in `drop_block`); the image belongs to this thread and no lane runs.
        unsafe {
            let bytes = (*block).image.len();
            if bytes == 0 || self.in_place.contains(&block) {
                return;
            }
            let module = &Block::launch_of(block).kernel.module;
            let image = module.image();
            let same = |other: &*mut Block| Arc::ptr_eq(&Block::launch_of(*other).kernel.module, module);
            if let Some(position) = self.in_place.iter().position(same) {
                let other = self.in_place.swap_remove(position);
                std::ptr::copy_nonoverlapping(image, (&mut (*other).image).as_mut_ptr(), bytes);
            }
            std::ptr::copy_nonoverlapping((&(*block).image).as_ptr(), image, bytes);
            self.in_place.push(block);
        }
    }

    /// Takes a block off this worker.
    fn drop_block(&mut self, block: Box<Block>, completed: bool) {
        let address: *const Block = &raw const *block;
        self.in_place.retain(|other| !std::ptr::eq(*other, address));
        let launch = Arc::clone(&block.launch);
        if !completed && launch.timed_out() {
            lock(&launch.report).add(&block);
        }
        self.spare.append(&mut block.retire());
        launch.retired(completed);
    }
}
