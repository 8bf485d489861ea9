//! Queue pairs through reset, while no kernel runs.

use std::sync::atomic::Ordering;

use gpuvm_gpu::Gpu;

use super::{FAILED_BY_HOST, Group, Queues};
use crate::error::Result;

impl Queues {
    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped. Queue pairs
    /// whose node is lost stay in the error state: what they reach cannot be served, everything else can.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        let _resetting = self.lock_resetting();
        for group in &self.groups {
            match group.is_kept() {
                false => {
                    for index in group.indexes() {
                        self.pairs[index as usize].reset()?;
                        self.clear_pair(gpu, index, 0)?;
                    }
                    self.connect(gpu, group)?;
                    // Relaxed: see `say_lost`. This host's memory is there again once its pairs are.
                    group.lost.store(false, Ordering::Relaxed);
                }
                true => self.reset_kept(gpu, group)?,
            }
        }
        Ok(())
    }

    fn reset_kept(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        let _held = group.local.as_ref().map(|local| local.hold());
        // Relaxed: a count of whoever holds `resetting`.
        group.resets.fetch_add(1, Ordering::Relaxed);
        for turn in 0..group.count {
            self.clear_pair(gpu, group.first + turn, 0)?;
            // Relaxed: see `say_lost`.
            while !group.lost.load(Ordering::Relaxed) {
                if let Some(why) = group.failure() {
                    group.say_lost(&why);
                } else if self.mend(gpu, group, turn, 0).is_ok() {
                    break;
                }
            }
        }
        if group.lost.load(Ordering::Relaxed) {
            for index in group.indexes() {
                self.pairs[index as usize].reset()?;
                self.clear_pair(gpu, index, FAILED_BY_HOST)?;
            }
        }
        Ok(())
    }
}
