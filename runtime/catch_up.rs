//! Homes that have returned are caught up: first nothing that they hold counts, then kernels of the runtime have every
//! stale copy written again, from the good one.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    queues::{Queues, Returned},
    region::RegionInner,
    vm::{Vm, VmInner},
};

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(50);
/// How long queue pairs of a home that has returned may take to come to rest, at least: a wait limit may be one of a seeded
/// GPU's own time.
const REST_LIMIT: Duration = Duration::from_secs(10);
/// Pages that are caught up while launches which name the region wait to begin.
const SLICE_PAGES: u64 = 4096;

impl Vm {
    /// Catches up with homes that have returned, and with copies that are stale for other reasons, and waits for it. A thread
    /// does the same in the background, but for a virtual memory with a seed.
    ///
    /// # Errors
    /// [`Error::Fault`] when a page cannot be read or written; [`Error::Unavailable`] when a home's queue pairs do not come
    /// to rest within the wait limit. It may be tried again.
    pub fn catch_up(&self) -> Result<()> {
        self.inner.or_lost(self.inner.catch_up(true))
    }

    /// Lets homes that have returned take part again, and catches up with nothing: what they hold is stale until kernels write
    /// it back, or [`catch_up`](Self::catch_up) does.
    ///
    /// # Errors
    /// [`Error::Unavailable`] as for [`catch_up`](Self::catch_up).
    #[doc(hidden)]
    pub fn readmit_homes(&self) -> Result<()> {
        self.inner.or_lost(self.inner.catch_up(false))
    }

    /// The homes in this host's memory, in order; none unless there are several.
    pub fn host_homes(&self) -> Vec<crate::HostHome> {
        let locals = self.inner.queues.iter().flat_map(|queues| queues.local_homes());
        locals.cloned().map(crate::HostHome).collect()
    }
}

impl VmInner {
    /// Takes back the homes that have returned, and with `mend` has their copies written.
    fn catch_up(&self, mend: bool) -> Result<()> {
        let Some(queues) = &self.queues else { return Ok(()) };
        // One at a time: the background's, or a caller's.
        let _turn = self
            .catching_up
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some(home) = queues.returned() {
            self.take_back(queues, home)?;
        }
        if mend {
            self.replicated().iter().try_for_each(|region| region.catch_up())?;
        }
        Ok(())
    }

    fn replicated(&self) -> Vec<Arc<RegionInner>> {
        let regions = self.lock().regions.clone();
        let regions = regions.iter().flatten().filter_map(Weak::upgrade);
        regions.filter(|region| region.is_replicated()).collect()
    }

    /// Opens the way to a home that has returned, with everything stale that it holds.
    fn take_back(&self, queues: &Queues, home: Returned) -> Result<()> {
        let (first, count) = queues.pairs_of(home);
        // Before its copies count as stale: a loss after this is another one.
        let epoch = queues.epoch_of(home);
        queues.give_up_home(&*self.gpu, home)?;
        let since = Instant::now();
        loop {
            self.support.reap(self, first, count)?;
            if queues.are_at_rest(&*self.gpu, home)? {
                break;
            }
            if since.elapsed() > self.settings.wait_limit.max(REST_LIMIT) {
                return Err(Error::Unavailable {
                    what: "a home that has returned".into(),
                    reason: "requests are in flight on its queue pairs still".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let Returned::Local(place) = home;
        for region in self.replicated() {
            // Not beside the region's end, which takes its tables.
            let _launches = region.lock();
            if !region.has_ended() && region.pages != 0 {
                let at = place as u32;
                self.support.age(self, region.id, at, region.pages, &region.name)?;
            }
        }
        queues.reopen(&*self.gpu, home, epoch)
    }
}

impl RegionInner {
    /// Mends the stale copies at homes that can be reached.
    fn catch_up(&self) -> Result<()> {
        if !self.is_behind()? {
            return Ok(());
        }
        if self.read_only {
            let _launches = self.quiesce();
            // SAFETY: no launch that names the region runs or begins, and kernels never write it.
            return unsafe { self.copy_to_stale() };
        }
        let mut page = 0;
        while page < self.pages {
            let end = (page + SLICE_PAGES).min(self.pages);
            // Launches that name the region begin between the slices, and it does not end meanwhile. The stores of a
            // never-evicted region take no pin, so that it is flushed only when no launch uses it.
            let _launches = match self.never_evicted {
                true => self.quiesce(),
                false => self.lock(),
            };
            if self.has_ended() {
                return Ok(());
            }
            self.expect_writes();
            self.vm
                .support
                .catch_up(&self.vm, &self.array(), page..end, &self.name)?;
            page = end;
        }
        Ok(())
    }
}

/// The thread that catches up.
pub(crate) struct CatchUp {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CatchUp {
    /// Starts it.
    ///
    /// # Errors
    /// The system's.
    pub fn start(vm: &Arc<VmInner>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, vm) = (Arc::clone(&stop), Arc::downgrade(vm));
        let body = move || {
            // Acquire: pairs with the release in `drop`.
            while !told.load(Ordering::Acquire) {
                std::thread::park_timeout(PERIOD);
                let Some(vm) = vm.upgrade() else { return };
                if vm.queues.as_ref().and_then(|queues| queues.returned()).is_none() {
                    continue;
                }
                match vm.catch_up(true) {
                    Ok(()) => tracing::info!("a home that was lost is caught up"),
                    Err(error) => tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a home that has returned is not caught up yet"
                    ),
                }
            }
        };
        let thread = std::thread::Builder::new().name("gpuvm-catch-up".into()).spawn(body)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The last handle may have been this thread's own.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}
