//! What goes on beside kernels, where the GPU follows a seed. No thread does it there: the thread that waits for a launch lets the GPU run for a while,
//! takes a turn, and waits on. So the seed decides at which points of a kernel the turns fall, and a turn may take locks, launch kernels and
//! wait for them as the threads of other GPUs do.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, Launch};
use parking_lot::Mutex;

use crate::{
    background::Background,
    error::{Error, Result},
};

/// How much faster time goes by for the turns than for kernels. Simulated kernels last for a millisecond, and homes are lost, return and are
/// tried again within it.
const TIMES: u64 = 1000;
/// How long the GPU runs between two looks of who waits for something that lanes do, ns.
const LOOK_NS: u64 = 1_000;

/// A turn: it is given the time, and a flag that is set when it is to end early. False when no other one is to follow.
pub(crate) type Turn = Box<dyn FnMut(Instant, &AtomicBool) -> bool + Send>;

/// What takes turns.
struct Loop {
    period: Duration,
    next_ns: u64,
    turn: Turn,
}

/// All that goes on beside the kernels of one GPU: threads, or turns of the thread that waits.
pub(crate) struct Turns {
    device: Arc<dyn Gpu>,
    /// When the GPU's time began.
    began: Instant,
    loops: Mutex<Vec<Loop>>,
    /// They join the others at the next turn: the thread that takes one holds those.
    new: Mutex<Vec<Loop>>,
    /// Nothing ends a turn early that is his own.
    never: AtomicBool,
}

impl Turns {
    /// None yet.
    pub fn new(device: Arc<dyn Gpu>) -> Self {
        Self {
            device,
            began: Instant::now(),
            loops: Mutex::default(),
            new: Mutex::default(),
            never: AtomicBool::new(false),
        }
    }

    /// The time that turns go by.
    pub fn now(&self) -> Instant {
        match self.ns() {
            Some(ns) => self.began + Duration::from_nanos(ns.saturating_mul(TIMES)),
            None => Instant::now(),
        }
    }

    /// The time of a GPU that follows a seed.
    fn ns(&self) -> Option<u64> {
        now_of(&*self.device)
    }

    /// Has turns taken every `period`: by a thread, which is given back, or by the thread that waits for a launch.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn start(&self, name: &str, period: Duration, mut turn: Turn) -> Result<Option<Background>> {
        if let Some(now_ns) = self.ns() {
            let next_ns = now_ns + pause_ns(period, now_ns);
            self.new.lock().push(Loop { period, next_ns, turn });
            return Ok(None);
        }
        let thread = Background::start(name, period, move |stop| turn(Instant::now(), stop));
        thread.map(Some).map_err(|source| Error::Thread { source })
    }

    /// Takes the turns that fall beside a launch, until it has ended. The caller holds no lock of this virtual memory. Nothing where threads
    /// take them.
    pub fn take_beside(&self, launch: &Arc<dyn Launch>) {
        let Some(simulation) = self.device.simulation().filter(|_| self.ns().is_some()) else {
            return;
        };
        // Another thread takes them.
        let Some(mut loops) = self.loops.try_lock() else { return };
        while !launch.is_done() {
            loops.append(&mut self.new.lock());
            let Some(next_ns) = loops.iter().map(|one| one.next_ns).min() else {
                return;
            };
            {
                let launch = Arc::clone(launch);
                simulation.run_until(next_ns, Box::new(move || launch.is_done()));
            }
            if launch.is_done() {
                return;
            }
            loops.retain_mut(|one| {
                if one.next_ns > simulation.now_ns() {
                    return true;
                }
                let goes_on = (one.turn)(self.now(), &self.never);
                let now_ns = simulation.now_ns();
                one.next_ns = now_ns + pause_ns(one.period, now_ns);
                goes_on
            });
            if self.device.lost().is_some() {
                return;
            }
        }
    }
}

/// Between one period and two of them, so that turns fall anywhere.
fn pause_ns(period: Duration, now_ns: u64) -> u64 {
    let period = (period.as_nanos() as u64 / TIMES).max(1);
    period + (now_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % period
}

fn now_of(gpu: &dyn Gpu) -> Option<u64> {
    let simulation = gpu.simulation().filter(|_| gpu.capabilities().deterministic)?;
    Some(simulation.now_ns())
}

/// Waits by looks for something that lanes do: in the GPU's time, where it follows a seed, whose lanes run while the host waits alone.
pub(crate) struct Looks<'a> {
    gpu: &'a dyn Gpu,
    began: Instant,
    began_ns: Option<u64>,
}

impl<'a> Looks<'a> {
    /// The first look is now.
    pub fn begin(gpu: &'a dyn Gpu) -> Self {
        Self {
            gpu,
            began: Instant::now(),
            began_ns: now_of(gpu),
        }
    }

    /// Since then.
    pub fn elapsed(&self) -> Duration {
        match (self.began_ns, now_of(self.gpu)) {
            (Some(began_ns), Some(now_ns)) => Duration::from_nanos(now_ns - began_ns),
            _ => self.began.elapsed(),
        }
    }

    /// Time passes, `pause` of the host's.
    pub fn rest(&self, pause: Duration) {
        match (self.gpu.simulation(), now_of(self.gpu)) {
            (Some(simulation), Some(now_ns)) => simulation.run_until(now_ns + LOOK_NS, Box::new(|| false)),
            _ => std::thread::sleep(pause),
        }
    }
}
