//! Homes that have returned are caught up: first nothing that they hold counts, then kernels of the runtime have every
//! stale copy written again, from the good one.
//!
//! A memory node that was lost is called from time to time. When it serves again it gets a new session, new memory for each
//! replicated region, and new connections of its queue pairs, all while the pairs are closed to lanes.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use gpuvm_memory_node::{NodeClient, NodeError};

use crate::{
    backoff::{self, Backoff},
    error::{Doing, Error, Result},
    node::Node,
    queues::{Queues, Returned},
    region::{Moved, RegionInner},
    vm::{Vm, VmInner},
};

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(50);
/// How long queue pairs of a home that has returned may take to come to rest, at least: a wait limit may be one of a seeded
/// GPU's own time.
const REST_LIMIT: Duration = Duration::from_secs(10);
/// How often it looks for copies that are stale though their home never went.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Longest pause between tries that fail though no home has returned: each costs all launches a pass of the host.
const LONGEST: Duration = Duration::from_secs(60);
/// Pages that are caught up while launches which name the region wait to begin.
const SLICE_PAGES: u64 = 4096;

impl Vm {
    /// Takes back homes that were lost and are there again, catches up with them and with copies that are stale for other reasons,
    /// and waits for it. A thread does the same in the background, but for a virtual memory with a seed; it calls a lost memory
    /// node from time to time, and after a failure it tries again, each time later, up to some seconds.
    ///
    /// A memory node that was lost is called at once, where the virtual memory has
    /// [`guarded_regions`](crate::VmBuilder::guarded_regions), without which nothing has replicas: it gets a new session and new
    /// memory for each replicated region. Regions without replicas have lost what they had there. What can be caught up is also
    /// caught up where this returns an error.
    ///
    /// # Errors
    /// [`Error::Node`] when a lost memory node does not answer, refuses, or has too little memory; [`Error::Fault`] when a page
    /// cannot be read or written; [`Error::Unavailable`] when a home's queue pairs do not come to rest within the wait limit.
    /// The first is returned. It may be tried again.
    pub fn catch_up(&self) -> Result<()> {
        self.inner.or_lost(self.inner.catch_up_now(true))
    }

    /// Lets homes that have returned take part again, and catches up with nothing: what they hold is stale until kernels write
    /// it back, or [`catch_up`](Self::catch_up) does.
    ///
    /// # Errors
    /// As for [`catch_up`](Self::catch_up).
    #[doc(hidden)]
    pub fn readmit_homes(&self) -> Result<()> {
        self.inner.or_lost(self.inner.catch_up_now(false))
    }

    /// The homes in this host's memory, in order; none unless there are several.
    pub fn host_homes(&self) -> Vec<crate::HostHome> {
        let locals = self.inner.queues.iter().flat_map(|queues| queues.local_homes());
        locals.cloned().map(crate::HostHome).collect()
    }
}

/// Keeps the first error of several steps that do not need each other.
fn keep_first(first: &mut Result<()>, next: Result<()>) {
    if first.is_ok() {
        *first = next;
    }
}

impl VmInner {
    /// Whether memory nodes that were lost are taken back: where regions may have replicas, whose kernels know that others
    /// have lost their pages.
    pub fn takes_nodes_back(&self) -> bool {
        !self.nodes.is_empty() && self.settings.guarded
    }

    /// The lost nodes, and with `due` those alone that it is time to call.
    fn nodes_to_call(&self, due: bool) -> Vec<Arc<Node>> {
        let queues = self.queues.iter().filter(|_| self.takes_nodes_back());
        let lost = queues.flat_map(|queues| queues.lost_nodes());
        let lost = lost.filter(|(_, node)| !due || node.is_due());
        lost.map(|(_, node)| Arc::clone(node)).collect()
    }

    /// On behalf of a caller who waits.
    fn catch_up_now(&self, mend: bool) -> Result<()> {
        let mut first = Ok(());
        for node in self.nodes_to_call(false) {
            let called = node.call(&AtomicBool::new(false));
            keep_first(&mut first, called.doing(|| taking_back(&node)));
        }
        keep_first(&mut first, self.catch_up(mend, &|| true));
        first
    }

    /// Takes back the homes that have returned, and with `mend` has their copies written, as long as somebody wants it.
    fn catch_up(&self, mend: bool, wanted: &dyn Fn() -> bool) -> Result<()> {
        let Some(queues) = &self.queues else { return Ok(()) };
        // One at a time: the background's, or a caller's.
        let _turn = self
            .catching_up
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut first = Ok(());
        for home in queues.returned() {
            let taken = match home {
                Returned::Local(place) => self.take_back_local(queues, place),
                Returned::Node(place) => self.take_back_node(queues, place, wanted),
            };
            keep_first(&mut first, taken);
        }
        if mend {
            let mut mended = Ok(());
            for region in self.regions() {
                if let (true, Some(region)) = (wanted(), live(&region)) {
                    keep_first(&mut mended, region.catch_up());
                }
            }
            // Relaxed: a hint to the thread that tries again.
            self.behind.store(mended.is_err(), Ordering::Relaxed);
            keep_first(&mut first, mended);
        }
        first
    }

    /// All regions. They are not held, so that what nobody wants any more can be told: see [`Turns::take`].
    fn regions(&self) -> Vec<Weak<RegionInner>> {
        self.lock().regions.iter().flatten().cloned().collect()
    }

    /// Closes the queue pairs of a home that has returned, and waits until no request is in flight on them.
    fn bring_to_rest(&self, queues: &Queues, home: Returned) -> Result<()> {
        let (first, count) = queues.pairs_of(home);
        queues.give_up_home(&*self.gpu, home)?;
        let since = Instant::now();
        loop {
            self.support.reap(self, first, count)?;
            if queues.are_at_rest(&*self.gpu, home)? {
                return Ok(());
            }
            if since.elapsed() > self.settings.wait_limit.max(REST_LIMIT) {
                return Err(Error::Unavailable {
                    what: "a home that has returned".into(),
                    reason: "requests are in flight on its queue pairs still".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Opens the way to a home in this host's memory that has returned, with everything stale that it holds.
    fn take_back_local(&self, queues: &Queues, place: usize) -> Result<()> {
        // Before its copies count as stale: a loss after this is another one.
        let epoch = queues.epoch_of(place);
        self.bring_to_rest(queues, Returned::Local(place))?;
        let regions = self.regions();
        let regions = regions.iter().filter_map(live).filter(|region| region.is_replicated());
        for region in regions {
            // Not beside the region's end, which takes its tables.
            let _launches = region.lock();
            if !region.has_ended() && region.pages.count() != 0 && !region.is_at_nodes() {
                let (at, pages) = (place as u32, 0..region.pages.count());
                self.support.age(self, region.id, at, pages, &region.name)?;
            }
        }
        queues.reopen_local(&*self.gpu, place, epoch)
    }

    /// Takes a memory node back, which gets a new session.
    fn take_back_node(&self, queues: &Queues, place: usize, wanted: &dyn Fn() -> bool) -> Result<()> {
        let node = &self.nodes[place];
        let Some(session) = node.returned() else { return Ok(()) };
        let taken = self.go_on_with(queues, place, &session, wanted);
        node.forget_return();
        match &taken {
            Ok(()) => {
                node.try_worked();
                tracing::info!("{} takes part again, with everything stale that it holds", node.name());
            }
            Err(error) => {
                node.try_failed(gpuvm_nic::with_causes(error));
            }
        }
        taken
    }

    fn go_on_with(
        &self,
        queues: &Queues,
        place: usize,
        session: &Arc<NodeClient>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<()> {
        let node = &self.nodes[place];
        let go_on = || match wanted() {
            true => Ok(()),
            false => Err(NodeError::Cancelled {
                address: node.address().to_owned(),
            })
            .doing(|| taking_back(node)),
        };
        self.bring_to_rest(queues, Returned::Node(place))?;
        // Everything that the node may refuse comes first, so that it takes part with all regions or with none.
        let mut memory: Vec<(Weak<RegionInner>, Vec<Moved>)> = Vec::new();
        loop {
            for weak in self.regions() {
                go_on()?;
                let asked = memory.iter().any(|(known, _)| known.ptr_eq(&weak));
                let region = live(&weak).filter(|region| region.is_replicated() && region.is_at_nodes());
                if let (Some(region), false) = (region, asked) {
                    memory.push((weak, region.ask_for_memory(place, session)?));
                }
            }
            let state = self.lock();
            let asked = |weak: &Weak<RegionInner>| memory.iter().any(|(known, _)| known.ptr_eq(weak));
            let new = state.regions.iter().flatten().find(|weak| {
                let region = live(weak);
                region.is_some_and(|region| region.is_replicated() && region.is_at_nodes()) && !asked(weak)
            });
            if new.is_none() {
                // With the state locked: a region that is made from here on has its memory of this session.
                node.go_on_with(session);
                break;
            }
        }
        for weak in self.regions() {
            let Some(region) = live(&weak).filter(|region| region.is_at_nodes()) else {
                continue;
            };
            // Not beside the region's end, which takes its tables and gives its memory back.
            let _launches = region.lock();
            if region.has_ended() || region.pages.count() == 0 {
                continue;
            }
            let of_it = memory.iter_mut().find(|(known, _)| known.ptr_eq(&weak));
            let moved = of_it.map(|(_, moved)| std::mem::take(moved)).unwrap_or_default();
            region.move_to_session(place, moved)?;
        }
        go_on()?;
        let resets = queues.join_anew(&*self.gpu, place, &go_on)?;
        queues.reopen_node(&*self.gpu, place, session, resets)
    }
}

fn taking_back(node: &Node) -> String {
    format!("taking {} back", node.name())
}

/// A node could not be taken back: it is tried again later.
fn say_not_back(node: &Node, error: &Error) {
    let told = node.try_failed(gpuvm_nic::with_causes(error));
    match told {
        true => tracing::warn!(
            error = error as &dyn std::error::Error,
            "{} is not taken back yet",
            node.name()
        ),
        false => tracing::debug!(
            error = error as &dyn std::error::Error,
            "{} is not taken back yet",
            node.name()
        ),
    }
}

/// A region that has not ended.
fn live(region: &Weak<RegionInner>) -> Option<Arc<RegionInner>> {
    region.upgrade().filter(|region| !region.has_ended())
}

impl RegionInner {
    /// Mends the stale copies at homes that can be reached.
    fn catch_up(&self) -> Result<()> {
        if !self.is_behind()? {
            return Ok(());
        }
        let (mut page, mut first) = (0, Ok(()));
        if self.read_only {
            // Each slice looks at all stale bits.
            let slice = SLICE_PAGES.max(self.pages.count() / 64);
            while page < self.pages.count() {
                let end = (page + slice).min(self.pages.count());
                let _launches = self.quiesce();
                // SAFETY: no launch that names the region runs or begins, and kernels never write it.
                unsafe { self.copy_to_stale(page..end) }?;
                page = end;
            }
            return Ok(());
        }
        while page < self.pages.count() {
            let end = (page + SLICE_PAGES).min(self.pages.count());
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
            let mended = self.vm.support.catch_up(&self.vm, &self.array(), page..end, &self.name);
            // A page that cannot be read keeps no other from being mended.
            let goes_on = matches!(mended, Ok(()) | Err(Error::Fault { .. }));
            keep_first(&mut first, mended);
            if !goes_on {
                break;
            }
            page = end;
        }
        first
    }
}

/// What the thread knows of its tries.
#[derive(Default)]
struct Turns {
    backoff: Backoff,
    /// The homes that had returned at the last look.
    seen: Vec<Returned>,
    /// When copies were looked for that are stale for other reasons.
    looked: Option<Instant>,
    /// How many had been found when all were mended last.
    missed: u64,
    /// A home that was silent is asked again.
    spoke_again: bool,
}

impl Turns {
    /// Catches up where there is something to be done, and it is time for it.
    fn take(&mut self, vm: &Arc<VmInner>, stop: &AtomicBool) {
        let returned = vm.queues.as_ref().map(|queues| queues.returned()).unwrap_or_default();
        if returned.iter().any(|home| !self.seen.contains(home)) {
            // What failed before may work now.
            self.backoff.hurry();
        }
        self.seen.clone_from(&returned);
        let now = Instant::now();
        let mut missed = self.missed;
        if vm.settings.guarded && self.looked.is_none_or(|looked| now >= looked + LOOK_PERIOD) {
            self.looked = Some(now);
            // What cannot be read is told by whoever launches something.
            missed = vm.replicas_missed().unwrap_or(missed);
        }
        self.spoke_again |= vm.queues.as_ref().is_some_and(|queues| queues.spoke_again());
        // Relaxed: see `catch_up`.
        let behind = vm.behind.load(Ordering::Relaxed) || missed != self.missed || self.spoke_again;
        if (returned.is_empty() && !behind) || !self.backoff.is_due(now) {
            return;
        }
        // Nobody but this thread has it when the last handle is gone. Relaxed: to be late with it costs a slice of work.
        let wanted = || Arc::strong_count(vm) > 1 && !stop.load(Ordering::Relaxed);
        match vm.catch_up(true, &wanted) {
            Ok(()) => {
                self.backoff.worked();
                // What was missed meanwhile is for the next look.
                self.missed = missed;
                self.spoke_again = false;
                match returned.is_empty() {
                    true => tracing::debug!("stale copies are written again"),
                    false => tracing::info!("the homes that have returned are caught up"),
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                let longest = match returned.is_empty() {
                    true => LONGEST,
                    false => backoff::LONGEST,
                };
                let why = gpuvm_nic::with_causes(error);
                match self.backoff.failed_up_to(Instant::now(), why, longest) {
                    true => tracing::warn!(error, "copies are not caught up yet; it is tried again"),
                    false => tracing::debug!(error, "copies are not caught up yet"),
                }
            }
        }
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
            let mut turns = Turns::default();
            // Acquire: pairs with the release in `drop`.
            while !told.load(Ordering::Acquire) {
                std::thread::park_timeout(PERIOD);
                let Some(nodes) = vm.upgrade().map(|vm| vm.nodes_to_call(true)) else {
                    return;
                };
                // Nothing of the virtual memory is held meanwhile: its end stops the call.
                for node in nodes {
                    match node.call(&told).doing(|| taking_back(&node)) {
                        Err(_) if told.load(Ordering::Acquire) => return,
                        Err(error) => say_not_back(&node, &error),
                        Ok(()) => {}
                    }
                }
                let Some(vm) = vm.upgrade() else { return };
                // What it was for is gone.
                if vm.gpu.lost().is_some() {
                    return;
                }
                turns.take(&vm, &told);
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
