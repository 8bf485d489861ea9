//! Launches: what they are to be, and what is known of them while they run.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{Gpu, LaunchOutcome};
use gpuvm_layouts::{self as layout, FaultRecord};
use parking_lot::Mutex;

use crate::{
    coherence::Coherence,
    error::{Doing, Result},
    launch_state::StateSlot,
};

mod config;

pub use config::LaunchConfig;

/// The launches on one GPU, for the one that must stop the others.
#[derive(Default)]
pub(crate) struct Peers {
    pub launches: Vec<Weak<Flight>>,
    /// This many of them are looked through for those that are gone.
    crowd: usize,
    /// Why the virtual memory must be recovered before anything else runs on that GPU.
    pub broken: Option<String>,
}

impl Peers {
    /// One more. Those that are gone are let go of now and then: a look at each for every launch would cost as much as all of them are many.
    pub fn add(&mut self, flight: &Arc<Flight>) {
        if self.launches.len() >= self.crowd {
            self.launches.retain(|peer| peer.strong_count() > 0);
            self.crowd = 2 * self.launches.len() + 16;
        }
        self.launches.push(Arc::downgrade(flight));
    }
}

/// What other launches may do to one: stop it. It keeps no memory alive, so that any thread may let go of it last.
pub(crate) struct Flight {
    pub launch: OnceLock<Arc<dyn gpuvm_gpu::Launch>>,
    pub stopped: Mutex<Option<String>>,
    /// It has ended, perhaps before its waiters know: what became of it is its own doing.
    ended: AtomicBool,
}

impl Flight {
    /// Whether its GPU has said that it ended.
    pub fn has_ended(&self) -> bool {
        // Acquire: pairs with `stop_peers`.
        self.ended.load(Ordering::Acquire)
    }

    pub fn stop(&self, reason: &str) {
        let Some(launch) = self.launch.get() else { return };
        // Who has read that the virtual memory is broken reads here whose doing it was.
        if !self.has_ended() && !launch.is_done() {
            let mut stopped = self.stopped.lock();
            stopped.get_or_insert_with(|| reason.to_owned());
            drop(stopped);
            launch.abandon();
        }
    }
}

/// Called when a launch has ended: one that was stopped where it stood may have left a lock or a claim that others
/// would wait for, so they end with it. The host recovers everything before the next launch.
pub(crate) fn stop_peers(peers: &Mutex<Peers>, own: &Weak<Flight>, kernel: &str, outcome: &LaunchOutcome) {
    if let Some(own) = own.upgrade() {
        own.ended.store(true, Ordering::Release);
    }
    if outcome.is_ok() {
        return;
    }
    let reason = format!("{kernel}, in flight over the same Vm, was aborted");
    let launches = {
        let mut peers = peers.lock();
        peers.broken.get_or_insert_with(|| reason.clone());
        std::mem::take(&mut peers.launches)
    };
    let others = launches.iter().filter(|flight| !flight.ptr_eq(own));
    for flight in others.filter_map(Weak::upgrade) {
        flight.stop(&reason);
    }
}

/// A launch that was enqueued, for the thread that waits for it. It keeps alive what the kernel reaches.
pub(crate) struct InFlight {
    pub flight: Arc<Flight>,
    /// A region that it reaches and that is not among its memories, with its index.
    pub region: Option<(u32, String)>,
    /// Frames that its declared spans can hold at once.
    pub span_frames: u64,
    pub state: StateSlot,
    memories: Mutex<Vec<Arc<dyn Memory>>>,
    /// What the region of its first fault is called, since the memories may be gone when that is asked again.
    fault_region: OnceLock<String>,
    pub label: Arc<str>,
    /// Whether it calls for recovery has been looked at.
    pub examined: AtomicBool,
    /// How many launches were put on streams of its GPU before it, once it is on one.
    number: OnceLock<u64>,
    /// Whether it looks up where pages are; none for the runtime's own kernels.
    pub looks_up: Option<bool>,
    /// It brings pages beside others, and ends when this was called.
    pub gives_way: Option<Ask>,
    /// Called when it has ended.
    pub then: Option<Ask>,
}

/// What has a launch end soon.
pub(crate) type Ask = Arc<dyn Fn() + Send + Sync>;

impl InFlight {
    /// A launch that names no memory and holds no spans.
    pub fn new(state: StateSlot, label: &Arc<str>) -> Self {
        Self {
            flight: Arc::new(Flight {
                launch: OnceLock::new(),
                stopped: Mutex::default(),
                ended: AtomicBool::new(false),
            }),
            region: None,
            span_frames: 0,
            state,
            memories: Mutex::default(),
            fault_region: OnceLock::new(),
            label: Arc::clone(label),
            examined: AtomicBool::new(false),
            number: OnceLock::new(),
            looks_up: None,
            gives_way: None,
            then: None,
        }
    }

    /// It is put on a stream, after this many others of its GPU.
    pub fn set_number(&self, number: u64) {
        // It is put once.
        let _ = self.number.set(number);
    }

    /// How many launches were put on streams of its GPU before it.
    pub fn number(&self) -> u64 {
        self.number.get().copied().unwrap_or_default()
    }

    /// What it names, which stays as long as it runs.
    pub fn keep(&mut self, memories: Vec<Arc<dyn Memory>>) {
        *self.memories.get_mut() = memories;
    }

    /// It has ended and its outcome was looked at: what it named goes with its owners, even if a caller keeps the launch's handle.
    pub fn let_go(&self) {
        let memories = std::mem::take(&mut *self.memories.lock());
        // Not under the lock: an owner's end is anybody's code.
        drop(memories);
    }

    /// What the region of its first fault is called, which has this index on the GPU at `place`.
    pub fn fault_region(&self, place: usize, region: u32) -> String {
        let name = || {
            let own = self.region.iter().find(|(id, _)| *id == region);
            let named = || {
                let memories = self.memories.lock();
                memories.iter().find_map(|memory| memory.region_name(place, region))
            };
            own.map(|(_, name)| name.clone())
                .or_else(named)
                .unwrap_or_else(|| format!("#{region}"))
        };
        self.fault_region.get_or_init(name).clone()
    }

    /// Whether it has ended. Until it is on its stream it has not.
    pub fn is_done(&self) -> bool {
        self.flight.launch.get().is_some_and(|launch| launch.is_done())
    }

    /// Waits for its end. Bounded by the launch's deadline.
    pub fn wait_done(&self) {
        if let Some(ask) = &self.gives_way {
            ask();
        }
        if let Some(launch) = self.flight.launch.get() {
            launch.wait(None);
        }
    }

    /// Asks one that brings pages beside others to end, and waits no longer than that. Whether it has.
    pub fn gives_way_within(&self, timeout: Option<Duration>) -> bool {
        if let Some(ask) = &self.gives_way {
            ask();
        }
        self.is_done() || self.wait(timeout).is_some()
    }

    pub fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        self.flight.launch.get().and_then(|launch| launch.wait(timeout))
    }

    /// Makes the launch's slow paths end.
    pub fn abort(&self, gpu: &dyn Gpu) {
        if self.is_done() {
            return;
        }
        if let Err(error) = self.state.abort(gpu) {
            tracing::error!(%error, "{} could not be told to stop", self.label);
        }
    }

    /// The first fault of the launch, once it has ended, and the number of later ones.
    pub fn fault(&self, gpu: &dyn Gpu) -> Result<Option<(FaultRecord, u32)>> {
        let stopped = matches!(self.wait(Some(Duration::ZERO)), Some(Err(_)));
        let fault = self.state.fault(gpu, stopped);
        fault.doing(|| format!("reading how {} ended", self.label))
    }

    /// Whether the host must recover the virtual memory after this ended launch: it was stopped in the middle, or pins were all
    /// that there can be, perhaps of lanes that never gave them back. Lanes that meet another fault leave nothing behind that
    /// others could not go on with.
    pub fn needs_recovery(&self, gpu: &dyn Gpu) -> bool {
        let stopped = matches!(self.wait(Some(Duration::ZERO)), Some(Err(_)));
        // A state that cannot be read says nothing good.
        let pinned = self.fault(gpu).map_or(true, |fault| {
            fault.is_some_and(|(record, _)| {
                matches!(record.code, layout::FAULT_FRAMES_PINNED | layout::FAULT_TOO_MANY_PINS)
            })
        });
        stopped || pinned
    }
}

/// Whose pages leave first, those of the lowest: whether pages stay as advised, which counts more, and the priority.
pub(crate) type Standing = (bool, i32);

/// Memory that a launch names.
pub(crate) trait Memory: Send + Sync {
    /// The launches that host accesses to this memory wait for.
    fn launches(&self) -> &Mutex<LaunchTracker>;

    /// Its name, if it is the region that has this index on the GPU at `place`.
    fn region_name(&self, place: usize, region: u32) -> Option<String> {
        let _ = (place, region);
        None
    }

    /// Makes the memory fit for a launch that is about to begin. It may wait for launches on other GPUs, each no longer than that
    /// launch's deadline, and runs kernels of the runtime. Called with the launches locked, before the launch's arguments are made.
    ///
    /// # Errors
    /// What another GPU holds could not be written back: the launch must not begin.
    fn make_coherent(&self, launches: &mut LaunchTracker, to_begin: LaunchKind) -> Result<()>;

    /// Whether a launch on the GPU at `place` that was to look its pages up can. Called behind [`make_coherent`](Self::make_coherent).
    fn can_be_looked_up(&self, place: usize) -> bool {
        let _ = place;
        true
    }

    /// Lets its pages leave their frames again on the GPU at `place`, unless launches use it there. False where they do. It waits for who uses
    /// it otherwise.
    ///
    /// # Errors
    /// The kernel's that does it.
    fn let_go(&self, place: usize) -> Result<bool> {
        let _ = place;
        Ok(true)
    }

    /// As [`let_go`](Self::let_go), and waits for nothing.
    ///
    /// # Errors
    /// As there.
    fn let_go_unless_used(&self, place: usize) -> Result<bool> {
        self.let_go(place)
    }

    /// Has its pages on the GPU at `place` leave what neighbours lent and were given back, unless launches or the host use it. It waits for nothing.
    ///
    /// # Errors
    /// As [`let_go`](Self::let_go).
    fn leave_unlent(&self, place: usize) -> Result<()> {
        let _ = place;
        Ok(())
    }

    /// Gives the frames of its pages on the GPU at `place` back, unless launches or the host use it. False where they do.
    ///
    /// # Errors
    /// As [`let_go`](Self::let_go).
    fn give_frames(&self, place: usize) -> Result<bool> {
        let _ = place;
        Ok(true)
    }

    /// Whose pages leave their frames first.
    fn standing(&self) -> Standing {
        Standing::default()
    }

    /// Whether pages of it that launches look up found no frame on the GPU at `place`.
    fn is_short(&self, place: usize) -> bool {
        let _ = place;
        false
    }

    /// Notes that frames are free for it there.
    fn relieve(&self, place: usize) {
        let _ = place;
    }

    /// Gives up to `most` frames of its pages on the GPU at `place` back, as [`give_frames`](Self::give_frames). False where it gives none.
    ///
    /// # Errors
    /// As there.
    fn give_some(&self, place: usize, most: u64) -> Result<bool> {
        let _ = (place, most);
        Ok(false)
    }

    /// What a region that it is has on the GPU at `place`: the GPU's own view of its pages, of which nothing is known here.
    fn view(&self, place: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = place;
        None
    }

    /// The launch begins. Called with the launches locked, before its first write can be.
    fn expect(&self, launches: &mut LaunchTracker, to_begin: LaunchKind);
}

/// A launch, as the memory knows it that it names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchKind {
    /// The place of its GPU in the virtual memory.
    pub gpu: usize,
    /// Whether it may write the memory.
    pub writes: bool,
    /// Whether it looks up where pages are, and none may come or go beside it.
    pub looks_up: bool,
    /// By what it finds them.
    pub by: Table,
}

/// By what launches that look pages up find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Table {
    /// The region's own table of places.
    #[default]
    Places,
    /// Entries in the window: of kernels whose PTX was rewritten.
    Entries,
    /// Nothing: all pages are at their home, and the kernel has its address.
    Home,
    /// Nothing: it reads what the home holds, whatever frames hold besides, and pages come and go beside it.
    HomeAlone,
}

/// The launches that name one piece of memory, and what they make of its copies on several GPUs.
#[derive(Default)]
pub(crate) struct LaunchTracker {
    in_flight: Vec<(LaunchKind, Weak<InFlight>)>,
    /// This many of them are looked through for those that have ended.
    crowd: usize,
    pub coherence: Coherence,
}

impl LaunchTracker {
    /// One more. Those that have ended are forgotten now and then.
    pub fn push(&mut self, kind: LaunchKind, launch: &Arc<InFlight>) {
        if self.in_flight.len() >= self.crowd {
            self.forget_ended();
            self.crowd = 2 * self.in_flight.len() + 16;
        }
        self.in_flight.push((kind, Arc::downgrade(launch)));
    }

    /// Waits for all of them. Bounded by their deadlines.
    pub fn wait_idle(&mut self) {
        self.wait_for(|_| true);
    }

    /// Waits for those of a kind.
    pub fn wait_for(&mut self, which: impl Fn(LaunchKind) -> bool) {
        let (awaited, others) = self.in_flight.drain(..).partition(|(kind, _)| which(*kind));
        self.in_flight = others;
        let awaited: Vec<(LaunchKind, Weak<InFlight>)> = awaited;
        for launch in awaited.iter().filter_map(|(_, launch)| launch.upgrade()) {
            launch.wait_done();
        }
    }

    /// Has those end on a GPU that bring pages beside others, where no other uses pages there any more. One that waits for a multiprocessor is not waited for.
    pub fn end_beside(&self, gpu: usize, timeout: Option<Duration>) {
        let those = self.in_flight.iter();
        let those = those.filter(|(kind, _)| kind.gpu == gpu && kind.by != Table::HomeAlone);
        let (bring, others): (Vec<_>, Vec<_>) = those
            .filter_map(|(_, launch)| launch.upgrade().filter(|launch| !launch.is_done()))
            .partition(|launch| launch.gives_way.is_some());
        if others.is_empty() {
            bring.iter().for_each(|launch| _ = launch.gives_way_within(timeout));
        }
    }

    /// Waits for those on a GPU that bring pages beside others.
    pub fn wait_beside(&self, gpu: usize) {
        let those = self.in_flight.iter().filter(|(kind, _)| kind.gpu == gpu);
        let those = those.filter_map(|(_, launch)| launch.upgrade());
        those
            .filter(|launch| launch.gives_way.is_some())
            .for_each(|launch| launch.wait_done());
    }

    /// Whether one of them that uses pages runs on a GPU, or may yet.
    pub fn any_on(&self, gpu: usize) -> bool {
        self.any(|kind| kind.gpu == gpu && kind.by != Table::HomeAlone)
    }

    /// Whether none of them that may write runs, or may yet.
    pub fn none_writes(&self) -> bool {
        !self.any(|kind| kind.writes)
    }

    /// Whether none of them runs, or may yet.
    pub fn is_idle(&self) -> bool {
        !self.any(|_| true)
    }

    /// Whether one of those of a kind has not ended.
    fn any(&self, which: impl Fn(LaunchKind) -> bool) -> bool {
        // The last first: as long as one runs it is most often that one.
        let mut those = self.in_flight.iter().rev().filter(|(kind, _)| which(*kind));
        those.any(|(_, launch)| is_in_flight(launch))
    }

    fn forget_ended(&mut self) {
        self.in_flight.retain(|(_, launch)| is_in_flight(launch));
    }
}

fn is_in_flight(launch: &Weak<InFlight>) -> bool {
    launch.upgrade().is_some_and(|launch| !launch.is_done())
}

/// What messages call launches of a kernel.
pub(crate) fn label(kernel: &str) -> Arc<str> {
    format!("kernel `{kernel}`").into()
}
