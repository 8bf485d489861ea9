//! The launches that name some memory.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::InFlight;
use crate::{coherence::Coherence, error::Result};

/// Memory that a launch names.
pub(crate) trait Memory: Send + Sync {
    /// The launches that host accesses to this memory wait for.
    fn launches(&self) -> &Mutex<Naming>;

    /// Its name, if it is the region that has this index on the GPU at `place`.
    fn region_name(&self, place: usize, region: u32) -> Option<String> {
        let _ = (place, region);
        None
    }

    /// Makes the memory fit for a launch that is about to begin. It may wait for launches on other GPUs, each no longer than that
    /// launch's deadline, and runs kernels of the runtime. Called with the launches locked, before the launch's arguments are made.
    ///
    /// # Errors
    /// What another GPU holds could not be brought home: the launch must not begin.
    fn make_coherent(&self, launches: &mut Naming, to_begin: LaunchKind) -> Result<()>;

    /// The launch begins. Called with the launches locked, before its first write can be.
    fn expect(&self, launches: &mut Naming, to_begin: LaunchKind);
}

/// A launch, as the memory knows it that it names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchKind {
    /// The place of its GPU in the virtual memory.
    pub gpu: usize,
    /// Whether it may write the memory.
    pub writes: bool,
}

/// The launches that name one piece of memory, and what they make of its copies on several GPUs.
#[derive(Default)]
pub(crate) struct Naming {
    in_flight: Vec<(LaunchKind, Weak<InFlight>)>,
    /// So many of them are looked through for those that have ended.
    crowd: usize,
    pub coherence: Coherence,
}

impl Naming {
    /// One more. Those that have ended are forgotten now and then.
    pub fn push(&mut self, kind: LaunchKind, launch: &Arc<InFlight>) {
        if self.in_flight.len() >= self.crowd {
            self.forget_ended();
            self.crowd = 2 * self.in_flight.len() + 16;
        }
        self.in_flight.push((kind, Arc::downgrade(launch)));
    }

    /// Waits for all of them. Bounded by their deadlines.
    pub fn settle(&mut self) {
        self.settle_those(|_| true);
    }

    /// Waits for those of a kind.
    pub fn settle_those(&mut self, which: impl Fn(LaunchKind) -> bool) {
        let (awaited, others) = self.in_flight.drain(..).partition(|(kind, _)| which(*kind));
        self.in_flight = others;
        let awaited: Vec<(LaunchKind, Weak<InFlight>)> = awaited;
        for launch in awaited.iter().filter_map(|(_, launch)| launch.upgrade()) {
            launch.settle();
        }
    }

    /// Whether one of them runs on a GPU, or may yet.
    pub fn any_on(&self, gpu: usize) -> bool {
        self.any(|kind| kind.gpu == gpu)
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
