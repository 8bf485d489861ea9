//! The streams of one GPU and the thread that watches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::core::Core;
use super::launch::InOrder;
use super::queue::LaunchQueue;
use super::stops::Stops;

/// How long the thread sleeps between looks, by how long nothing has happened. Who waits for a launch looks himself at first, and a look
/// keeps others out of the driver.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_millis(1), Duration::from_micros(50)),
    (Duration::from_millis(20), Duration::from_micros(100)),
    (Duration::MAX, Duration::from_micros(500)),
];

/// How long it goes on looking after the last launch has ended.
const LINGER: Duration = Duration::from_millis(2);

/// Why launches end when the GPU's handle goes.
const GONE: &str = "its GPU was dropped";

/// What the watching thread looks at.
pub(crate) struct Engine {
    pub(crate) core: Arc<Core>,
    pub(crate) streams: Mutex<Vec<Arc<LaunchQueue>>>,
    pub(crate) stops: Arc<Stops>,
    last_stream: AtomicU64,
    events: Mutex<Events>,
    woken: Condvar,
}

/// What the thread is told.
#[derive(Default)]
struct Events {
    /// Counts what may need a look.
    count: u64,
    /// The thread sleeps until it is woken; else it looks again by itself, soon.
    asleep: bool,
}

impl Engine {
    /// No streams.
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            stops: Stops::new(Arc::clone(&core)),
            core,
            streams: Mutex::default(),
            last_stream: AtomicU64::new(0),
            events: Mutex::default(),
            woken: Condvar::new(),
        })
    }

    /// A number for a new stream.
    pub(crate) fn stream_number(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        self.last_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// The thread looks again, soon. Waking it takes a call of the system, which a launch need not pay while the thread looks by itself.
    pub(crate) fn wake(&self) {
        let asleep = {
            let mut events = self.events.lock();
            events.count += 1;
            events.asleep
        };
        if asleep {
            self.woken.notify_all();
        }
    }

    /// Ends launches until the GPU is shut down and none is left.
    pub(crate) fn watch(&self) {
        // SAFETY: it sets how late this thread's own sleeps may end, ns.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
        let mut active = Instant::now();
        let mut seen = 0;
        loop {
            let events = self.events.lock().count;
            let streams = self.streams.lock().clone();
            let (mut busy, mut progress) = (false, events != seen);
            seen = events;
            let now = Instant::now();
            let shut_down = self.core.is_shut_down();
            if shut_down {
                self.stops.stop_all(GONE);
            }
            for stream in &streams {
                progress |= stream.advance();
                if let Some(head) = stream.head() {
                    busy = true;
                    head.tick(now);
                }
            }
            self.stops.looked();
            self.drop_closed(&streams);
            if progress {
                active = now;
            }
            if !busy && shut_down && self.core.in_flight() == 0 {
                self.stops.end_courier();
                return;
            }
            let quiet = now.saturating_duration_since(active);
            let pause = PAUSES.iter().find(|(until, _)| quiet < *until).map(|(_, pause)| *pause);
            // Launches that follow each other soon find it awake.
            let awake = busy || self.core.in_flight() > 0 || quiet < LINGER;
            self.sleep(seen, pause.filter(|_| awake));
        }
    }

    /// Sleeps for `pause`, without one until there is something to look at.
    fn sleep(&self, seen: u64, pause: Option<Duration>) {
        let mut events = self.events.lock();
        if events.count != seen {
            return;
        }
        match pause {
            // Spurious wake-ups only cost a look.
            Some(pause) => {
                self.woken.wait_for(&mut events, pause);
            }
            None => {
                events.asleep = true;
                self.woken.wait(&mut events);
                events.asleep = false;
            }
        }
    }

    /// Forgets streams that nothing holds and nothing runs on.
    fn drop_closed(&self, seen: &[Arc<LaunchQueue>]) {
        for stream in seen.iter().filter(|stream| stream.is_closed_and_empty()) {
            self.streams.lock().retain(|other| !Arc::ptr_eq(other, stream));
        }
    }
}
