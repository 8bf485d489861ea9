//! What the parts of one simulated GPU share: memory, launches that run, watchers of register stores.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::events::Event;
use super::launch::{LaunchState, Launches};
use super::memory::Memory;
use super::observer::Observer;
use super::options::SimOptions;
use super::races::Race;
use gpuvm_gpu::{Actor, IsOver, NoteFormatter, OnStore};
use parking_lot::{Condvar, Mutex, RwLock};

/// What a simulated GPU was built with.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) workers: u32,
    pub(crate) lanes_per_worker: u32,
    pub(crate) has_room_for_all: bool,
    /// The seed of the seeded mode, none in the fast mode.
    pub(crate) seed: Option<u64>,
    pub(crate) simulation: SimOptions,
    pub(crate) neighbours: u32,
    pub(crate) neighbour_use: Arc<AtomicU64>,
    pub(crate) shared_as: Option<String>,
    pub(crate) skip_exited: bool,
    pub(crate) preempt_after: Duration,
}

/// Launches at the heads of their streams.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) launches: Vec<Arc<LaunchState>>,
    pub(crate) shut_down: bool,
    /// What host threads wait for: while one of these is not fulfilled, the seeded scheduler runs.
    targets: Vec<Target>,
    tickets: u64,
}

/// What a host thread waits for.
struct Target {
    ticket: u64,
    /// Whether it has come.
    fulfilled: Box<dyn Fn() -> bool + Send>,
    /// The thread goes on at this virtual time in any case.
    until_ns: u64,
    /// The scheduler has seen that it has come.
    seen: bool,
}

impl Running {
    /// Whether the seeded scheduler, which calls this alone, has to run at this virtual time.
    pub(crate) fn wanted(&mut self, now_ns: u64) -> bool {
        for target in &mut self.targets {
            target.seen |= now_ns >= target.until_ns || (target.fulfilled)();
        }
        self.targets.iter().any(|target| !target.seen)
    }

    /// When the scheduler is to look again whether it has to run, though no launch has begun or ended.
    pub(crate) fn next_stop_ns(&self) -> u64 {
        let stops = self.targets.iter().filter(|target| !target.seen);
        stops.map(|target| target.until_ns).min().unwrap_or(u64::MAX)
    }

    fn has_seen(&self, ticket: u64) -> bool {
        self.targets.iter().any(|target| target.ticket == ticket && target.seen)
    }
}

/// The shared part of a simulated GPU.
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) memory: Arc<Memory>,
    /// Numbers for launches.
    pub(crate) launches: AtomicU64,
    /// Numbers for warp slots.
    pub(crate) slots: AtomicU32,
    pub(crate) running: Mutex<Running>,
    /// Moves with every change of `running`, so that workers see changes without the lock.
    generation: AtomicU64,
    /// Workers and the ticker wait here for launches.
    pub(crate) changed: Condvar,
    /// Who waits for a virtual time waits here.
    pub(crate) looked: Condvar,
    shut_down: AtomicBool,
    watchers: RwLock<Vec<(u64, u64, OnStore)>>,
    pub(crate) actors: Mutex<Vec<Arc<dyn Actor>>>,
    /// Watches the seeded mode.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    formatter: Mutex<Option<NoteFormatter>>,
    /// Hash of the seeded mode's interleaving so far.
    pub(crate) trace: AtomicU64,
    /// Virtual time of the seeded mode, ns.
    pub(crate) virtual_ns: AtomicU64,
    /// Races that the seeded mode found, and how often.
    pub(crate) races: Mutex<(Vec<Race>, u64)>,
    /// The last events of the seeded mode.
    pub(crate) events: Mutex<VecDeque<Event>>,
}

/// While it lives, the seeded scheduler may run: a host thread waits.
pub(crate) struct Driving<'a>(&'a Core, u64);

impl Core {
    /// A core with nothing running.
    pub(crate) fn new(options: Options, memory: Arc<Memory>, observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            options,
            memory,
            launches: AtomicU64::new(0),
            slots: AtomicU32::new(0),
            running: Mutex::default(),
            generation: AtomicU64::new(0),
            changed: Condvar::new(),
            looked: Condvar::new(),
            shut_down: AtomicBool::new(false),
            watchers: RwLock::default(),
            actors: Mutex::default(),
            observer,
            formatter: Mutex::default(),
            trace: AtomicU64::new(0),
            virtual_ns: AtomicU64::new(0),
            races: Mutex::default(),
            events: Mutex::default(),
        }
    }

    /// Lets workers run a launch, or ends it at once when the GPU is gone or it was stopped while it waited.
    pub(crate) fn activate(&self, launch: Arc<LaunchState>) {
        launch.start();
        let gone = {
            let mut running = self.running.lock();
            if !running.shut_down {
                running.launches.push(Arc::clone(&launch));
                self.bump();
            }
            running.shut_down
        };
        if gone {
            if launch.claim_end() {
                launch.end(Err(launch.abandoned("its GPU was shut down")));
            }
        } else if launch.stopped() {
            launch.try_finish();
        }
    }

    /// Tells workers that `running` has changed. The caller holds its lock.
    fn bump(&self) {
        // Release, paired with the load in `generation`: who sees the number and takes the lock sees the change.
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// A number that moves when `running` does.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether nothing can run any more.
    pub(crate) fn is_shut_down(&self) -> bool {
        // Relaxed: `activate` decides under the lock; this only gives the error earlier.
        self.shut_down.load(Ordering::Relaxed)
    }

    /// Stops everything; workers end soon after.
    pub(crate) fn shut_down(&self) {
        let launches = {
            let mut running = self.running.lock();
            running.shut_down = true;
            self.shut_down.store(true, Ordering::Relaxed);
            self.bump();
            self.looked.notify_all();
            running.launches.clone()
        };
        for launch in launches {
            launch.fail(launch.abandoned("its GPU was shut down"));
            launch.try_finish();
        }
        self.actors.lock().clear();
        self.watchers.write().clear();
    }

    /// Lets the seeded scheduler run until `fulfilled`, which is asked whenever a launch has ended, or until the value is dropped. So it stops
    /// at the same point of the interleaving however fast the waiting thread is.
    pub(crate) fn drive(&self, fulfilled: impl Fn() -> bool + Send + 'static) -> Driving<'_> {
        if self.options.seed.is_none() {
            return Driving(self, 0);
        }
        self.drive_until(u64::MAX, Box::new(fulfilled))
    }

    fn drive_until(&self, until_ns: u64, fulfilled: Box<dyn Fn() -> bool + Send>) -> Driving<'_> {
        let mut running = self.running.lock();
        running.tickets += 1;
        let ticket = running.tickets;
        running.targets.push(Target {
            ticket,
            fulfilled,
            until_ns,
            seen: false,
        });
        self.bump();
        Driving(self, ticket)
    }

    /// Lets the seeded scheduler run until its virtual time is `at_ns`, or the launch has ended. It rests when this returns, unless others
    /// wait as well.
    pub(crate) fn run_until(&self, at_ns: u64, has_ended: IsOver) {
        if self.options.seed.is_none() {
            return;
        }
        let driving = self.drive_until(at_ns, has_ended);
        let mut running = self.running.lock();
        while !(running.shut_down || running.has_seen(driving.1)) {
            self.looked.wait(&mut running);
        }
        // In this order: dropping `driving` takes the lock.
        drop(running);
        drop(driving);
    }

    /// Adds a watcher of register stores.
    pub(crate) fn watch(&self, pages: &[(u64, u64)], on_store: &OnStore) {
        let mut watchers = self.watchers.write();
        watchers.extend(pages.iter().map(|&(start, bytes)| (start, bytes, Arc::clone(on_store))));
    }

    /// A register store to `address` has happened.
    pub(crate) fn stored(&self, address: u64) {
        let watchers = self.watchers.read();
        let hit = watchers
            .iter()
            .find(|(start, bytes, _)| address.wrapping_sub(*start) < *bytes);
        let on_store = hit.map(|(_, _, on_store)| Arc::clone(on_store));
        // The callback may add watchers itself.
        drop(watchers);
        if let Some(on_store) = on_store {
            // A panic of the watcher is its owner's mistake; it is printed by the panic hook and must not unwind into a kernel.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_store(address)));
        }
    }

    /// Sets how wait notes are put into words.
    pub(crate) fn set_note_formatter(&self, formatter: NoteFormatter) {
        *self.formatter.lock() = Some(formatter);
    }
}

impl Launches for Core {
    fn remove(&self, id: u64) {
        let mut running = self.running.lock();
        running.launches.retain(|launch| launch.id != id);
        self.bump();
    }

    fn note_formatter(&self) -> NoteFormatter {
        let own = self.formatter.lock().clone();
        own.unwrap_or_else(|| Arc::new(|code, a, b| format!("waits for {code} ({a:#x}, {b:#x})")))
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        if self.0.options.seed.is_some() {
            let mut running = self.0.running.lock();
            running.targets.retain(|target| target.ticket != self.1);
            self.0.bump();
        }
    }
}
