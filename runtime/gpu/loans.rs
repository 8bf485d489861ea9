//! Memory that a GPU borrows of neighbours, between its launches and beside them.

use std::sync::{Arc, atomic::AtomicBool};
use std::time::Duration;

use gpuvm_nic::with_causes;

use super::{GpuState, PagedGpu, Victims};
use crate::{
    background::Background,
    error::{Error, Result},
};

/// How often owners of borrowed memory are looked at.
const PERIOD: Duration = Duration::from_millis(10);

impl PagedGpu {
    /// Frees borrowed memory that was given back, and borrows more where it has become little, if no launch runs: how many bytes those
    /// are.
    pub(super) fn settle_loans_locked(&self, state: &GpuState, more: u64) -> Result<u64> {
        let idle = state.in_flight.is_empty() && !state.needs_recovery && state.poisoned.is_none();
        match self.victims().filter(|_| idle) {
            Some(victims) => victims.settle(&*self.device, &state.live().collect::<Vec<_>>(), more),
            None => Ok(0),
        }
    }

    /// Frees and borrows likewise, where no launch runs now.
    ///
    /// # Errors
    /// The driver's.
    pub fn settle_loans(&self) -> Result<()> {
        let mut state = self.lock();
        let done = self.prune_locked(&mut state);
        let settled = self.settle_loans_locked(&state, 0);
        drop(state);
        drop(done);
        self.or_lost(settled).map(drop)
    }

    /// Borrows `more` bytes again, after all launches: how many there were.
    ///
    /// # Errors
    /// [`Error::GpuLost`], [`Error::Poisoned`], the driver's.
    pub fn borrow_again(&self, more: u64) -> Result<u64> {
        let mut state = self.lock();
        self.make_ready(&mut state)?;
        for launch in &state.in_flight {
            launch.settle();
        }
        let done = self.prune_locked(&mut state);
        let borrowed = self.settle_loans_locked(&state, more);
        drop(state);
        drop(done);
        self.or_lost(borrowed)
    }

    /// Has owners of borrowed memory looked at while launches run, where a loan follows from what they use.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn keep_loans(self: &Arc<Self>) -> Result<()> {
        let follows = self.victims().is_some_and(Victims::follows_owners);
        // A GPU that follows a seed has no time of its own.
        if !follows || self.capabilities().deterministic {
            return Ok(());
        }
        let gpu = Arc::downgrade(self);
        let mut told = false;
        let look = move |_: &AtomicBool| {
            let Some(gpu) = gpu.upgrade() else { return false };
            let Some(victims) = gpu.victims() else { return false };
            let looked = victims.relieve(&*gpu.device, gpu.settings.wait_limit);
            // What fails now is tried again, unless the GPU is gone, and is told once.
            match looked.and_then(|taken| if taken > 0 { gpu.settle_loans() } else { Ok(()) }) {
                Ok(()) => told = false,
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::warn!("owners of borrowed memory may wait for it: {}", with_causes(&error));
                }
                Err(_) => {}
            }
            gpu.device.lost().is_none()
        };
        let keeper = Background::start("gpuvm loans", PERIOD, look);
        self.keep(keeper.map_err(|source| Error::Thread { source })?);
        Ok(())
    }
}
