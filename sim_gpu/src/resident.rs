//! The blocks that one thread holds: taking them, putting their shared memory in place, ending them.

use std::sync::Arc;

use super::block::{Block, Units, WarpUnit};
use super::core::Core;
use super::launch::LaunchState;
use super::seeded::Chance;
use super::trap::WorkerSignals;
use gpuvm_gpu::GpuError;

/// Resident blocks. Boxed, because lanes hold their addresses.
type Blocks = Vec<Box<Block>>;

/// A thread's resident blocks and what it needs to run them.
pub(crate) struct Residents {
    pub(crate) core: Arc<Core>,
    number: u32,
    pub(crate) signals: Arc<WorkerSignals>,
    pub(crate) blocks: Blocks,
    spare: Units,
    /// The block whose static shared memory is in place, for each module that has such a block.
    in_place: Vec<*mut Block>,
    /// The chance of the seeded mode, which outlives the blocks; null in the fast mode.
    chance: *mut Chance,
}

impl Residents {
    /// Nothing resident on thread `number`, whose signals go through `signals`.
    pub(crate) fn new(core: Arc<Core>, number: u32, signals: Arc<WorkerSignals>, chance: *mut Chance) -> Self {
        Self {
            core,
            number,
            signals,
            blocks: Vec::new(),
            spare: Vec::new(),
            in_place: Vec::new(),
            chance,
        }
    }

    /// One block of each launch always has room, so that launches which wait for each other cannot shut each other out, unless that is not
    /// wanted: then one of them has on a thread that holds no other.
    pub(crate) fn has_room(&self, launch: &LaunchState) -> bool {
        let (mut lanes, mut blocks) = (0, 0);
        for block in &self.blocks {
            lanes += block.units.len() as u64 * 32;
            blocks += u64::from(block.launch.id == launch.id);
        }
        let fair = launch.blocks.div_ceil(u64::from(self.core.options.workers));
        let wanted = launch.warps_per_block() as u64 * 32;
        let always = self.core.options.has_room_for_all;
        (if always { blocks == 0 } else { self.blocks.is_empty() })
            || (blocks < fair && lanes + wanted <= u64::from(self.core.options.lanes_per_worker))
    }

    /// Sets up block `number`, just taken from `launch`; false when that failed, which also fails the launch.
    pub(crate) fn start(&mut self, launch: &Arc<LaunchState>, number: u64) -> bool {
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
        self.blocks.push(Block::new(
            Arc::clone(&self.core),
            Arc::clone(launch),
            number,
            self.number,
            units,
            self.chance,
        ));
        true
    }

    /// A lane has returned or faulted; false when that ends the launch.
    ///
    /// # Safety
    /// As for [`Residents::put_in_place`], with `unit` one of the block's.
    pub(crate) unsafe fn lane_ended(&mut self, block: *mut Block, unit: *mut WarpUnit, lane: usize) -> bool {
        // SAFETY: the lane is gone, so nothing but this thread uses the block.
        unsafe {
            let launch = Block::launch_of(block);
            let kernel = || launch.kernel.info.name.clone();
            let (block_index, thread) = ((*block).index(), (*(*unit).lane(lane)).thread);
            if let Some((address, what)) = self.signals.take_fault() {
                launch.fail(GpuError::KernelFault {
                    kernel: kernel(),
                    block: block_index,
                    thread,
                    address,
                    what,
                });
                return false;
            }
            (*block).live -= 1;
            if let Err(cause) = (*unit).warp.exit(lane) {
                launch.fail(GpuError::Collective {
                    kernel: kernel(),
                    block: block_index,
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
    /// `block` is resident on this thread, and none of its lanes runs.
    pub(crate) unsafe fn put_in_place(&mut self, block: *mut Block) {
        // SAFETY: the blocks in `in_place` are resident (they leave it in `drop_block`); the image belongs to this thread and no lane runs.
        unsafe {
            let bytes = (*block).image.len();
            if bytes == 0 || self.in_place.contains(&block) {
                return;
            }
            let module = &Block::launch_of(block).kernel.module;
            let image = module.image();
            let saved = |block: *mut Block| {
                let image: &mut Vec<u8> = &mut (*block).image;
                image.as_mut_ptr()
            };
            let same = |other: &*mut Block| Arc::ptr_eq(&Block::launch_of(*other).kernel.module, module);
            if let Some(position) = self.in_place.iter().position(same) {
                let other = self.in_place.swap_remove(position);
                std::ptr::copy_nonoverlapping(image, saved(other), bytes);
            }
            std::ptr::copy_nonoverlapping(saved(block), image, bytes);
            self.in_place.push(block);
        }
    }

    /// Takes a block off this worker.
    pub(crate) fn drop_block(&mut self, block: Box<Block>, completed: bool) {
        let address: *const Block = &raw const *block;
        self.in_place.retain(|other| !std::ptr::eq(*other, address));
        let launch = Arc::clone(&block.launch);
        if !completed && launch.timed_out() {
            launch.report.lock().add(&block);
        }
        self.spare.append(&mut block.retire());
        launch.retired(completed);
    }

    /// Drops every block where it stands.
    pub(crate) fn drop_all(&mut self) {
        for block in std::mem::take(&mut self.blocks) {
            self.drop_block(block, false);
        }
    }
}
