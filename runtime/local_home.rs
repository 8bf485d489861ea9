//! Homes in this host's memory that can be lost one by one, as memory nodes are: for regions with replicas where there is no
//! memory node, and for tests of what happens then.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use gpuvm_nic::{Nic, NicError};
use parking_lot::{Mutex, MutexGuard};

/// What a lost home holds afterwards.
const GARBAGE: u8 = 0xee;

/// One of several homes in this host's memory.
pub(crate) struct LocalHome {
    place: u32,
    failure: Mutex<Option<String>>,
    /// Times that it was lost: what was connected to it before is connected to nothing.
    epoch: AtomicU64,
    /// Memory of replicated regions, which goes with the home.
    spans: Mutex<Spans>,
    /// The queue pairs that reach it.
    pairs: Mutex<Vec<(Arc<dyn Nic>, u32)>>,
}

/// Each with how many regions lie over it.
pub(crate) type Spans = HashMap<Span, u32>;

/// Memory of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub base: *mut u8,
    pub bytes: u64,
}

// SAFETY: the address is dereferenced only by `LocalHome::lose`, under the lock on the spans, and a region takes its span
// away under that lock before it gives the memory back.
unsafe impl Send for Span {}

impl LocalHome {
    /// `count` of them, or none where there is but one home, which cannot be lost by itself.
    pub fn several(count: u32) -> Vec<Arc<Self>> {
        match count {
            1 => Vec::new(),
            several => (0..several).map(|place| Arc::new(Self::new(place))).collect(),
        }
    }

    fn new(place: u32) -> Self {
        Self {
            place,
            failure: Mutex::default(),
            epoch: AtomicU64::new(0),
            spans: Mutex::default(),
            pairs: Mutex::default(),
        }
    }

    pub fn name(&self) -> String {
        format!("home {} of this host", self.place)
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Times that it was lost. It changes only while the memory is held.
    pub fn epoch(&self) -> u64 {
        // Acquire: pairs with the release in `lose`, after which nothing reaches the memory.
        self.epoch.load(Ordering::Acquire)
    }

    pub fn add_pairs(&self, pairs: impl Iterator<Item = (Arc<dyn Nic>, u32)>) {
        self.pairs.lock().extend(pairs);
    }

    pub fn add(&self, span: Span) {
        *self.spans.lock().entry(span).or_default() += 1;
    }

    pub fn remove(&self, span: Span) {
        let mut spans = self.spans.lock();
        if let Entry::Occupied(mut known) = spans.entry(span) {
            *known.get_mut() -= 1;
            if *known.get() == 0 {
                known.remove();
            }
        }
    }

    /// The home's memory, for the host's own accesses: it is not lost while the guard lives.
    pub fn hold(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock()
    }

    fn lose(&self) -> Result<(), NicError> {
        let spans = self.spans.lock();
        // From here on no request reaches it: those that wait are flushed, and nothing recovers a pair without the lock.
        for (nic, pair) in &*self.pairs.lock() {
            nic.fail(*pair)?;
        }
        *self.failure.lock() = Some("it was taken away".into());
        self.epoch.fetch_add(1, Ordering::Release);
        for span in spans.keys() {
            // SAFETY: the span is a region's memory, valid while it is listed; the NIC does not reach it any more, and the
            // host does so only with the lock.
            unsafe { std::ptr::write_bytes(span.base, GARBAGE, span.bytes as usize) };
        }
        Ok(())
    }
}

/// A home in this host's memory that can be lost, and return: see [`Queues::host_homes`](crate::Queues::host_homes).
#[derive(Clone)]
pub struct HostHome(pub(crate) Arc<LocalHome>);

impl HostHome {
    /// Takes the home away, as a memory node that dies does: requests in flight and later ones fail, and what replicated
    /// regions had there is overwritten.
    ///
    /// # Errors
    /// [`Error::Nic`](crate::Error::Nic) where the NIC cannot fail a queue pair on demand.
    pub fn lose(&self) -> crate::Result<()> {
        self.0.lose().map_err(|source| crate::Error::Nic {
            doing: format!("taking {} away", self.0.name()),
            source,
        })
    }

    /// Lets the home return, with garbage in place of what it held. It is caught up in the background, or by
    /// [`Vm::catch_up`](crate::Vm::catch_up).
    pub fn restore(&self) {
        *self.0.failure.lock() = None;
    }

    /// Whether it is away.
    pub fn is_lost(&self) -> bool {
        self.0.failure().is_some()
    }
}

impl std::fmt::Debug for HostHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostHome({}, lost: {})", self.0.place, self.is_lost())
    }
}
