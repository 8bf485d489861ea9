//! The fast mode: worker threads, each with several resident blocks whose lanes it switches between.

use std::sync::Arc;
use std::time::Duration;

use super::block::{Block, WarpUnit};
use super::core::Core;
use super::hooks::monotonic_ns;
use super::launch::LaunchState;
use super::resident::Residents;
use super::trap::{self, WorkerSignals};
use super::waits;

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
    residents: Residents,
    launches: Vec<Arc<LaunchState>>,
    generation: Option<u64>,
    first_launch: usize,
}

/// Why a warp stopped running.
enum Turn {
    Done,
    /// A lane that never yields had its time: other warps and blocks are next.
    Preempted,
    /// The launch was stopped or a lane faulted.
    Stopped,
}

impl Worker {
    /// Worker `number`, reachable for signals through `signals`.
    pub(crate) fn new(core: Arc<Core>, number: u32, signals: Arc<WorkerSignals>) -> Self {
        let residents = Residents::new(core, number, signals, std::ptr::null_mut());
        Self {
            residents,
            launches: Vec::new(),
            generation: None,
            first_launch: 0,
        }
    }

    /// Runs blocks until the GPU is shut down.
    pub(crate) fn run(mut self) {
        let _signals = trap::enter(&self.residents.signals);
        let mut fruitless = 0;
        loop {
            if self.refresh() {
                break;
            }
            let took = self.take_blocks();
            if self.residents.blocks.is_empty() {
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
        self.residents.drop_all();
    }

    /// Takes note of launches that came or went; true when the GPU is shut down.
    fn refresh(&mut self) -> bool {
        let generation = self.residents.core.generation();
        if self.generation == Some(generation) {
            return false;
        }
        let running = self.residents.core.running.lock();
        self.launches.clone_from(&running.launches);
        // Read again under the lock: it moves only while the lock is held.
        self.generation = Some(self.residents.core.generation());
        running.shut_down
    }

    /// Waits until launches come or go.
    fn park(&mut self) {
        self.launches.clear();
        let mut running = self.residents.core.running.lock();
        while self.generation == Some(self.residents.core.generation()) && !running.shut_down {
            self.residents.core.changed.wait(&mut running);
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
            while launch.has_blocks() && self.residents.has_room(&launch) {
                let Some(number) = launch.take_block() else { break };
                took |= self.residents.start(&launch, number);
            }
        }
        self.first_launch = self.first_launch.wrapping_add(1);
        took
    }

    /// Lets every resident block run; whether any got on with its work.
    fn round(&mut self) -> bool {
        let mut progressed = false;
        let mut index = 0;
        while index < self.residents.blocks.len() {
            let block: *mut Block = &raw mut *self.residents.blocks[index];
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
                let block = self.residents.blocks.swap_remove(index);
                let completed = block.live == 0 && !block.launch.stopped();
                self.residents.drop_block(block, completed);
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
                let error = waits::deadlock(&*block);
                Block::launch_of(block).fail(error);
                return false;
            }
            self.residents.put_in_place(block);
            self.residents
                .signals
                .set_text(&Block::launch_of(block).kernel.module.text);
            for _ in 0..PASSES {
                let (mut ran, mut preempted) = (false, false);
                for index in 0..(*block).units.len() {
                    let unit: *mut WarpUnit = &raw mut **(&mut (*block).units)[index..].as_mut_ptr();
                    if (*unit).warp.ready | (*unit).warp.gathering == 0 {
                        continue;
                    }
                    ran = true;
                    match self.run_warp(block, unit) {
                        Turn::Done => {}
                        Turn::Preempted => preempted = true,
                        Turn::Stopped => return false,
                    }
                }
                if (*block).live == 0 {
                    return false;
                }
                if !ran || preempted {
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
            // Both live longer than this turn: the worker holds the one, the resident block the other.
            let signals: &WorkerSignals = &*Arc::as_ptr(&self.residents.signals);
            let launch: &LaunchState = Block::launch_of(block);
            loop {
                if (*unit).warp.ready == 0 {
                    if (*unit).warp.gathering == 0 || (*unit).warp.fuel <= 0 {
                        return Turn::Done;
                    }
                    (*unit).warp.fuel -= 1;
                    (*unit).warp.answer_some_gathering();
                }
                // After one that was preempted the lanes behind it come first: else those would never run.
                let behind = (*unit).warp.ready & (*unit).warp.behind_preempted;
                let ready = if behind == 0 { (*unit).warp.ready } else { behind };
                let lane = ready.trailing_zeros() as usize;
                let preempted = signals.preempted();
                signals.enter_lane(unit, lane);
                let returned = Block::resume(unit, lane);
                signals.leave_lane();
                let was_preempted = !returned && signals.preempted() != preempted;
                if returned && !self.residents.lane_ended(block, unit, lane) {
                    return Turn::Stopped;
                }
                if launch.stopped() {
                    return Turn::Stopped;
                }
                if was_preempted {
                    (*unit).warp.behind_preempted = !1 << lane;
                    // Lanes that gather get their answer when no other can run: then all of them have their turn.
                    if (*unit).warp.gathering == 0 {
                        return Turn::Preempted;
                    }
                }
            }
        }
    }
}
