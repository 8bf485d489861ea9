//! Homes that have returned are caught up: first nothing that they hold counts, then kernels of the runtime have every
//! stale copy written again, from the good one.
//!
//! A memory node that was lost is called from time to time. When it serves again it gets a new session, new memory for each
//! replicated region, and new connections of its queue pairs, all while the pairs are closed to lanes.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use gpuvm_memory_node::{NodeClient, NodeError};

use crate::{
    backoff::{self, Backoff},
    error::{Doing, Error, Result},
    gpu::PagedGpu,
    node::Node,
    queues::{Queues, Returned},
    region::{Moved, RegionInner, Regions},
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
/// Memory nodes that are lost and called at the same time, at most.
pub const NODES_CALLED_AT_ONCE: usize = 32;
/// Pages that are caught up while launches which name the region wait to begin.
const SLICE_PAGES: u64 = 4096;

/// Keeps the first error of several steps that do not need each other.
fn keep_first(first: &mut Result<()>, next: Result<()>) {
    if first.is_ok() {
        *first = next;
    }
}

/// One GPU, and the regions that may have copies to catch up with.
pub(crate) struct Catching<'a> {
    pub gpu: &'a PagedGpu,
    pub regions: &'a Regions,
}

/// Whether memory nodes that were lost are taken back: where regions may have replicas, whose kernels know that others
/// have lost their pages.
fn takes_nodes_back(gpu: &PagedGpu) -> bool {
    !gpu.nodes.is_empty() && gpu.settings.reliable
}

/// The lost nodes, and with `due` those alone that it is time to call.
fn nodes_to_call(gpu: &PagedGpu, due: bool) -> Vec<Arc<Node>> {
    let queues = gpu.queues().filter(|_| takes_nodes_back(gpu)).into_iter();
    let lost = queues.flat_map(|queues| queues.lost_nodes());
    let lost = lost.filter(|(_, node)| !due || node.is_due());
    lost.map(|(_, node)| Arc::clone(node)).collect()
}

/// Calls each, this many at once that those which do not answer keep others waiting for a few time limits only. Answers in their order.
fn at_once<T: Sync, R: Send>(each: &[T], call: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let call = &call;
    let some_at_once = |some: &[T]| -> Vec<R> {
        let [rest @ .., last] = some else { return Vec::new() };
        thread::scope(|scope| {
            let begin = |one| {
                thread::Builder::new()
                    .name("gpuvm-call".into())
                    .spawn_scoped(scope, move || call(one))
            };
            let calls: Vec<_> = rest.iter().map(|one| (one, begin(one))).collect();
            // One is called by this thread, and so are those for which there is none.
            let last = call(last);
            let ended = calls.into_iter().map(|(one, begun)| match begun {
                Ok(begun) => begun.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => call(one),
            });
            ended.collect::<Vec<_>>().into_iter().chain([last]).collect()
        })
    };
    each.chunks(NODES_CALLED_AT_ONCE).flat_map(some_at_once).collect()
}

impl Catching<'_> {
    /// On behalf of a caller who waits.
    pub fn catch_up_now(&self, repair: bool) -> Result<()> {
        let mut first = Ok(());
        let nodes = nodes_to_call(self.gpu, false);
        let never = AtomicBool::new(false);
        for (node, called) in nodes.iter().zip(at_once(&nodes, |node| node.call(&never))) {
            keep_first(&mut first, called.doing(|| taking_back(node)));
        }
        keep_first(&mut first, self.catch_up(repair, &|| true));
        first
    }

    /// Takes back the homes that have returned, and with `repair` has their copies written, as long as somebody wants it.
    fn catch_up(&self, repair: bool, wanted: &dyn Fn() -> bool) -> Result<()> {
        let Some(queues) = self.gpu.queues() else { return Ok(()) };
        // One at a time: the background's, or a caller's.
        let _turn = self.gpu.catching_up.turn.lock();
        let mut first = Ok(());
        for home in queues.returned() {
            let taken = match home {
                Returned::Local(place) => self.take_back_local(queues, place),
                Returned::Node(place) => self.take_back_node(queues, place, wanted),
            };
            keep_first(&mut first, taken);
        }
        if repair {
            let mut repaired = Ok(());
            for region in self.regions() {
                if let (true, Some(region)) = (wanted(), live(&region)) {
                    keep_first(&mut repaired, repair_copies_of(&region));
                }
            }
            // Relaxed: a hint to the thread that tries again.
            self.gpu.catching_up.behind.store(repaired.is_err(), Ordering::Relaxed);
            keep_first(&mut first, repaired);
        }
        first
    }

    fn regions(&self) -> Vec<Weak<RegionInner>> {
        self.regions.of(self.gpu)
    }

    /// Closes the queue pairs of a home that has returned, and waits until no request is in flight on them.
    fn bring_to_rest(&self, queues: &Queues, home: Returned) -> Result<()> {
        let (first, count) = queues.pairs_of(home);
        queues.give_up_home(&*self.gpu.device, home)?;
        let since = Instant::now();
        loop {
            self.gpu.reap(first, count)?;
            if queues.are_idle(&*self.gpu.device, home)? {
                return Ok(());
            }
            if since.elapsed() > self.gpu.settings.wait_limit.max(REST_LIMIT) {
                return Err(Error::Unavailable {
                    what: "a home that has returned".into(),
                    reason: "requests are still in flight on its queue pairs; try again".into(),
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
        let regions = regions
            .iter()
            .filter_map(live)
            .filter(|region| region.own.is_replicated());
        for region in regions {
            // Not beside the region's end, which takes its tables.
            let _launches = region.lock();
            if !region.has_ended() && region.pages.count() != 0 && !region.own.is_at_nodes() {
                let (at, pages) = (place as u32, 0..region.pages.count());
                self.gpu.mark_stale(&region.own.view, at, pages)?;
            }
        }
        queues.reopen_local(&*self.gpu.device, place, epoch)
    }

    /// Opens the way to a memory node that has returned, which gets a new session, with everything stale that it holds.
    fn take_back_node(&self, queues: &Queues, place: usize, wanted: &dyn Fn() -> bool) -> Result<()> {
        let node = &self.gpu.nodes[place];
        let Some(session) = node.returned() else { return Ok(()) };
        let taken = self.go_on_with(queues, place, &session, wanted);
        node.forget_return();
        match &taken {
            Ok(()) => {
                node.try_worked();
                tracing::info!("{} is back; all copies that it holds are stale", node.name());
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
        let node = &self.gpu.nodes[place];
        let go_on = || match wanted() {
            true => Ok(()),
            false => Err(NodeError::Cancelled {
                address: node.address().to_owned(),
            })
            .doing(|| taking_back(node)),
        };
        self.bring_to_rest(queues, Returned::Node(place))?;
        // Everything that the node may refuse comes first, so that it takes part with all regions or with none.
        let mut memory: HashMap<*const RegionInner, (Weak<RegionInner>, Vec<Moved>)> = HashMap::new();
        loop {
            for weak in self.regions() {
                go_on()?;
                let asked = memory.contains_key(&weak.as_ptr());
                let region = live(&weak).filter(|region| region.own.is_replicated() && region.own.is_at_nodes());
                if let (Some(region), false) = (region, asked) {
                    // The weak handle is kept with it, so that no other region comes to that address.
                    let moved = region.own.ask_for_memory(place, session)?;
                    memory.insert(weak.as_ptr(), (weak, moved));
                }
            }
            let asked = |weak: &Weak<RegionInner>| memory.contains_key(&weak.as_ptr());
            let all_asked = self.regions.with_all(|mut regions| {
                let new = |weak: &Weak<RegionInner>| {
                    let region = live(weak).filter(|region| std::ptr::eq(&raw const *region.own.gpu, self.gpu));
                    region.is_some_and(|region| region.own.is_replicated() && region.own.is_at_nodes()) && !asked(weak)
                };
                let all_asked = !regions.any(new);
                if all_asked {
                    // With the regions locked: one that is made from here on has its memory of this session.
                    node.go_on_with(session);
                }
                all_asked
            });
            if all_asked {
                break;
            }
        }
        for weak in self.regions() {
            let Some(region) = live(&weak).filter(|region| region.own.is_at_nodes()) else {
                continue;
            };
            // Not beside the region's end, which takes its tables and gives its memory back.
            let _launches = region.lock();
            if region.has_ended() || region.pages.count() == 0 {
                continue;
            }
            let moved = memory
                .remove(&weak.as_ptr())
                .map(|(_, moved)| moved)
                .unwrap_or_default();
            region.own.move_to_session(place, moved)?;
        }
        go_on()?;
        let resets = queues.join_anew(&*self.gpu.device, place, &go_on)?;
        queues.reopen_node(&*self.gpu.device, place, session, resets)
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

/// Repairs the stale copies at homes that can be reached.
fn repair_copies_of(region: &RegionInner) -> Result<()> {
    if !region.own.is_behind()? {
        return Ok(());
    }
    let (mut page, mut first) = (0, Ok(()));
    if region.kind.read_only {
        // Each slice looks at all stale bits.
        let slice = SLICE_PAGES.max(region.pages.count() / 64);
        while page < region.pages.count() {
            let end = (page + slice).min(region.pages.count());
            let _launches = region.quiesce();
            // SAFETY: no launch that names the region runs or begins, and kernels never write it.
            unsafe { region.own.copy_to_stale(page..end) }?;
            page = end;
        }
        return Ok(());
    }
    while page < region.pages.count() {
        let end = (page + SLICE_PAGES).min(region.pages.count());
        // Launches that name the region begin between the slices, and it does not end meanwhile. The stores of a
        // never-evicted region take no pin, so that it is flushed only when no launch uses it.
        let _launches = match region.kind.never_evicted {
            true => region.quiesce(),
            false => region.lock(),
        };
        if region.has_ended() {
            return Ok(());
        }
        region.expect_stores();
        region.own.view.expect_pages();
        region.own.view.expect_writes();
        let repaired = region
            .own
            .gpu
            .repair_copies(&region.own.view, |vm| region.array(&region.own, vm), page..end);
        // A page that cannot be read keeps no other from being repaired.
        let goes_on = matches!(repaired, Ok(()) | Err(Error::Fault { .. }));
        keep_first(&mut first, repaired);
        if !goes_on {
            break;
        }
        page = end;
    }
    first
}

/// What the thread knows of its tries.
#[derive(Default)]
struct Turns {
    backoff: Backoff,
    /// The homes that had returned at the last look.
    seen: Vec<Returned>,
    /// When copies were looked for that are stale for other reasons.
    looked: Option<Instant>,
    /// How many had been found when all were repaired last.
    missed: u64,
    /// A home that was silent is asked again.
    spoke_again: bool,
}

impl Turns {
    /// Calls the nodes that are lost, and catches up. Whether there is anything left to do it for.
    fn take_one(&mut self, gpu: &Weak<PagedGpu>, regions: &Regions, (now, told): (Instant, &AtomicBool)) -> bool {
        let Some(nodes) = gpu.upgrade().map(|gpu| nodes_to_call(&gpu, true)) else {
            return false;
        };
        // Nothing of the virtual memory is held meanwhile: its end stops the call.
        for (node, called) in nodes.iter().zip(at_once(&nodes, |node| node.call(told))) {
            match called.doing(|| taking_back(node)) {
                Err(_) if told.load(Ordering::Acquire) => return false,
                Err(error) => say_not_back(node, &error),
                Ok(()) => {}
            }
        }
        let Some(gpu) = gpu.upgrade() else { return false };
        // What it was for is gone.
        if gpu.device.lost().is_some() {
            return false;
        }
        self.take(&gpu, regions, (now, told));
        true
    }

    /// Catches up where there is something to be done, and it is time for it.
    fn take(&mut self, gpu: &Arc<PagedGpu>, regions: &Regions, (now, stop): (Instant, &AtomicBool)) {
        let returned = gpu.queues().map(|queues| queues.returned()).unwrap_or_default();
        if returned.iter().any(|home| !self.seen.contains(home)) {
            // What failed before may work now.
            self.backoff.hurry();
        }
        self.seen.clone_from(&returned);
        let mut missed = self.missed;
        if gpu.settings.reliable && self.looked.is_none_or(|looked| now >= looked + LOOK_PERIOD) {
            self.looked = Some(now);
            // What cannot be read is told by the next launch.
            missed = gpu.meters.replicas_missed(&*gpu.device).unwrap_or(missed);
        }
        self.spoke_again |= gpu.queues().is_some_and(|queues| queues.spoke_again());
        // Relaxed: see `catch_up`.
        let behind = gpu.catching_up.behind.load(Ordering::Relaxed) || missed != self.missed || self.spoke_again;
        if (returned.is_empty() && !behind) || !self.backoff.is_due(now) {
            return;
        }
        // Nothing but this thread has it when the last handle is gone. Relaxed: to be late with it costs a slice of work.
        let wanted = || Arc::strong_count(gpu) > 1 && !stop.load(Ordering::Relaxed);
        let catching = Catching { gpu, regions };
        match catching.catch_up(true, &wanted) {
            Ok(()) => {
                self.backoff.worked();
                // What was missed meanwhile is for the next look.
                self.missed = missed;
                self.spoke_again = false;
                match returned.is_empty() {
                    true => tracing::debug!("stale copies are written again"),
                    false => tracing::info!("the homes that have returned are up to date"),
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                let longest = match returned.is_empty() {
                    true => LONGEST,
                    false => backoff::LONGEST,
                };
                let why = gpuvm_nic::with_causes(error);
                match self.backoff.failed_up_to(gpu.turns.now(), why, longest) {
                    true => tracing::warn!(error, "copies are not up to date yet; it is tried again"),
                    false => tracing::debug!(error, "copies are not up to date yet"),
                }
            }
        }
    }
}

/// Starts what catches up with the homes of a GPU, where some may return.
///
/// # Errors
/// [`Error::Thread`].
pub(crate) fn start(gpu: &Arc<PagedGpu>, regions: &Arc<Regions>) -> Result<()> {
    let Some(queues) = gpu.queues() else { return Ok(()) };
    let some_return = !queues.local_homes().is_empty() || takes_nodes_back(gpu);
    if !some_return {
        return Ok(());
    }
    let (weak, regions) = (Arc::downgrade(gpu), Arc::clone(regions));
    let mut turns = Turns::default();
    let turn = move |now, told: &_| turns.take_one(&weak, &regions, (now, told));
    gpu.take_turns("gpuvm-catch-up", PERIOD, Box::new(turn))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn calls_go_out_together_and_answers_keep_their_order() {
        let together = Barrier::new(NODES_CALLED_AT_ONCE);
        let numbers: Vec<usize> = (0..2 * NODES_CALLED_AT_ONCE).collect();
        // Each waits for as many as are called at once.
        let answers = at_once(&numbers, |number| {
            together.wait();
            number * 3
        });
        assert!(answers.iter().enumerate().all(|(at, answer)| *answer == at * 3));
        assert_eq!(answers.len(), numbers.len());
        assert_eq!(at_once(&[7], |number| number + 1), [8]);
        assert!(at_once(&[], |number: &u8| *number).is_empty());
    }
}
