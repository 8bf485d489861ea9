//! What the threads of a block wait for.

use super::block::{Block, WarpUnit};
use super::launch::Launches as _;
use super::report::{Report, Wait};
use super::warp::{LANES, lanes_of};
use gpuvm_gpu::GpuError;

impl Report {
    /// Adds the threads of `block`, whose lanes are all suspended.
    pub(crate) fn add(&mut self, block: &Block) {
        for unit in &block.units {
            self.exited += u64::from(unit.warp.exited.count_ones());
            for lane in lanes_of(unit.warp.existing & !unit.warp.exited) {
                self.add_lane(block.index(), unit.warp.index, lane, wait_of(block, unit, lane));
            }
        }
    }
}

fn wait_of(block: &Block, unit: &WarpUnit, lane: usize) -> Wait {
    let warp = &unit.warp;
    let bit = 1u32 << (lane % LANES);
    if let Some(r) = warp.waiting().iter().find(|r| r.arrived & bit != 0) {
        return Wait::Collective {
            kind: r.kind,
            mask: r.mask,
            missing: r.mask & !r.arrived,
        };
    }
    if warp.at_barrier & bit != 0 {
        return Wait::Barrier {
            kind: block.barrier_kind,
            arrived: block.arrived,
            live: block.live,
        };
    }
    if warp.gathering & bit != 0 {
        return Wait::Gathering;
    }
    // SAFETY: the lane's constants live in the unit's stacks, and the lane is suspended.
    let (code, [a, b]) = unsafe { ((*unit.lane(lane)).note_code, (*unit.lane(lane)).note) };
    if code != 0 {
        return Wait::Note { code, a, b };
    }
    if warp.sleeping & bit != 0 {
        Wait::Sleeping
    } else {
        Wait::Running
    }
}

/// The error for a block of which no thread can ever run again.
pub(crate) fn deadlock(block: &Block) -> GpuError {
    let mut report = Report::default();
    report.add(block);
    let launch = &block.launch;
    let text = report.text(launch.blocks, 0, &block.core.note_formatter());
    let text = text
        .split_once('\n')
        .map_or(text.as_str(), |(_, lines)| lines)
        .to_owned();
    GpuError::Deadlock {
        kernel: launch.kernel.info.name.clone(),
        report: text,
    }
}
