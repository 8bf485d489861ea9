//! This process among the tenants of the GPUs that it shares: what it holds there, what it may hold, and how it gives memory up. The registry
//! and the rule of shares are the crate `gpuvm-tenants`; docs/TENANTS.md says how it looks from outside.

mod counted;

use std::{
    cell::Cell,
    collections::BTreeMap,
    mem::ManuallyDrop,
    path::PathBuf,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_tenants::{AskError, DriverView, Folder, GpuKey, Holder, Holding, MemoryLeft, SharedGpu, Tenant, Terms};
use parking_lot::Mutex;

pub(crate) use self::counted::join;
use crate::error::{Error, Result};

use crate::stored::stored;

/// How long others have for giving up memory that is asked for.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether launches have ended that keep memory which was given up.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How a virtual memory's process is a tenant of its GPUs, beside other processes: `gpuvm tenants` lists them. A process is one tenant of
/// each GPU that others may use, which is every NVIDIA GPU, by the settings the first virtual memory that lives there.
///
/// It holds no more of the GPU's memory than its limit. When it finds none, its own frames and buffers give some, then other tenants that
/// have more than their share; and it gives some to those. Memory of neighbour GPUs, which it [borrows](crate::VmBuilder::borrow_from) or
/// where a region has its [home](crate::RegionBuilder::home_on_gpu), is not counted.
#[derive(Debug, Clone, Default)]
pub struct Tenancy {
    folder: Option<PathBuf>,
    terms: Option<Terms>,
    alone: bool,
}

impl Tenancy {
    /// The default: the user's registry and the terms of `GPUVM_MEMORY_LIMIT`, `GPUVM_MEMORY_MIN` and `GPUVM_PRIORITY`.
    pub fn of_environment() -> Self {
        Self::default()
    }

    /// No tenant: it asks no one, nothing asks it, and no limit holds.
    pub fn none() -> Self {
        Self {
            alone: true,
            ..Self::default()
        }
    }

    /// The terms that it was given.
    pub(crate) fn terms_asked(&self) -> Option<Terms> {
        self.terms
    }

    stored! {
        /// Another folder for the registry than the user's.
        #[must_use]
        folder(path: impl Into<PathBuf>) => folder = Some(path.into());

        /// These terms instead of the environment's.
        #[must_use]
        terms(terms: Terms) => terms = Some(terms);
    }
}

/// A GPU of a virtual memory, which holds some of its memory.
pub(crate) trait Occupant: Send + Sync {
    /// Bytes of its frames that are GPU memory.
    fn frame_bytes(&self) -> u64;

    /// Gives back this many bytes by then, rounded up to what it gives at once but to no more than `most`: how many the driver has now, or will
    /// have when the launches in flight have ended.
    fn give_back(&self, bytes: u64, most: u64, until: Instant) -> u64;

    /// Gives back what launches kept that have ended.
    fn release_ended(&self);

    /// Bytes that were given back and that the driver has not yet.
    fn lingering_bytes(&self) -> u64;
}

/// This process as a tenant of a GPU. A process that holds memory there keeps it.
pub(crate) struct Member {
    ledger: Arc<Ledger>,
    /// None where it could not join.
    tenant: Option<Tenant>,
    /// Those on which it wanted to join.
    terms: Terms,
}

/// What the process holds of a GPU.
#[derive(Default)]
struct Ledger {
    /// Bytes. Relaxed: an amount, which orders nothing.
    held: AtomicU64,
    occupants: Mutex<Vec<Weak<dyn Occupant>>>,
    /// Whose it is, once it has joined.
    member: OnceLock<Weak<Member>>,
}

/// A part of what is held, for as long as this lives.
struct Counted {
    member: Arc<Member>,
    bytes: u64,
}

/// The process's tenancies. Taken before any lock of a tenant.
static MEMBERS: Mutex<BTreeMap<GpuKey, Weak<Member>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Whether this thread serves a request of another tenant.
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

impl Member {
    fn of_process(gpu: SharedGpu, tenancy: &Tenancy) -> Result<Arc<Self>> {
        let mut members = MEMBERS.lock();
        if let Some(member) = members.get(&gpu.key).and_then(Weak::upgrade) {
            return Ok(member);
        }
        let terms = match tenancy.terms {
            Some(terms) => terms,
            None => Terms::from_env(gpu.total_bytes).map_err(|source| Error::Terms { source })?,
        };
        let folder = tenancy.folder.clone().map_or_else(Folder::of_user, Folder::at);
        let ledger: Arc<Ledger> = Arc::default();
        let holder: Arc<dyn Holder> = Arc::clone(&ledger) as _;
        let tenant = Tenant::join(&folder, &gpu, terms, holder).map_err(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "this process is not a tenant of the GPU {}", gpu.key);
        });
        let member = Arc::new(Self {
            ledger,
            tenant: tenant.ok(),
            terms,
        });
        // Nothing else sets it.
        let _ = member.ledger.member.set(Arc::downgrade(&member));
        members.retain(|_, member| member.strong_count() > 0);
        members.insert(gpu.key, Arc::downgrade(&member));
        Ok(member)
    }

    /// Somebody who gives memory back when others need it.
    pub fn admit(&self, occupant: Weak<dyn Occupant>) {
        let mut occupants = self.ledger.occupants.lock();
        occupants.retain(|one| one.strong_count() > 0);
        occupants.push(occupant);
    }

    /// Asks other tenants for `bytes` bytes of the GPU. If it says so they are free then, for the first taker. Of what the driver
    /// says to be free, one part in `kept` is not available.
    ///
    /// # Errors
    /// [`AskError`], which says who keeps how much and why.
    pub fn ask(&self, bytes: u64, gpu: &dyn Gpu, kept: Option<u64>) -> Result<bool, AskError> {
        let holding = self.held();
        self.count_more(holding, bytes)
            .map_err(|limit| AskError::OverLimit { bytes, holding, limit })?;
        let Some(tenant) = &self.tenant else { return Ok(false) };
        // Of what is free now: what others give counts in full.
        let not_had = match (kept, gpu.own_memory()) {
            (Some(kept), Ok(left)) => left.free / kept,
            _ => 0,
        };
        let driver = || DriverView {
            memory: gpu.own_memory().ok().map(|left| MemoryLeft {
                free: left.free.saturating_sub(not_had),
                total: left.total,
            }),
            by_pid: gpu.memory_by_process(),
        };
        tenant.ask(bytes, ASK_WITHIN, driver).map(|_| true)
    }

    fn held(&self) -> u64 {
        self.ledger.held.load(Ordering::Relaxed)
    }

    /// The terms now.
    fn terms(&self) -> Terms {
        self.tenant.as_ref().map_or(self.terms, Tenant::terms)
    }

    /// What will be held with this many bytes more, or the limit that it is above.
    fn count_more(&self, held: u64, bytes: u64) -> Result<u64, u64> {
        let limit = self.terms().limit().unwrap_or(u64::MAX);
        held.checked_add(bytes).filter(|all| *all <= limit).ok_or(limit)
    }

    /// Counts bytes that are to be taken from the driver.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] above the limit.
    fn count(self: &Arc<Self>, bytes: u64) -> Result<Counted, GpuError> {
        let held = &self.ledger.held;
        loop {
            let before = self.held();
            let all = self.count_more(before, bytes).map_err(|limit| GpuError::OutOfMemory {
                asked: bytes,
                free: limit.saturating_sub(before),
                capacity: limit,
            })?;
            let counted = held.compare_exchange_weak(before, all, Ordering::Relaxed, Ordering::Relaxed);
            if counted.is_ok() {
                return Ok(Counted {
                    member: Arc::clone(self),
                    bytes,
                });
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.member.ledger.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Some(tenant) = self.tenant.take() else { return };
        if !SERVING.get() {
            return;
        }
        // Leaving waits for the request that this thread serves. Without another thread it stays, and holds nothing.
        let tenant = ManuallyDrop::new(tenant);
        let leaving = std::thread::Builder::new().name("gpuvm-leave".into());
        let _ = leaving.spawn(move || drop(ManuallyDrop::into_inner(tenant)));
    }
}

impl Ledger {
    fn occupants(&self) -> Vec<Arc<dyn Occupant>> {
        self.occupants.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Bytes that the driver does not have.
    fn out(&self, occupants: &[Arc<dyn Occupant>]) -> u64 {
        let lingering: u64 = occupants.iter().map(|one| one.lingering_bytes()).sum();
        self.held.load(Ordering::Relaxed).saturating_add(lingering)
    }

    fn give(&self, bytes: u64, deadline: Instant) -> u64 {
        let occupants = self.occupants();
        let before = self.out(&occupants);
        let member = self.member.get().and_then(Weak::upgrade);
        let minimum = member.map_or(0, |member| member.terms().minimum());
        let spare = self.held.load(Ordering::Relaxed).saturating_sub(minimum);
        let (bytes, mut promised) = (bytes.min(spare), 0u64);
        for occupant in &occupants {
            if promised >= bytes || Instant::now() >= deadline {
                break;
            }
            let given = occupant.give_back(bytes - promised, spare - promised, deadline);
            promised = promised.saturating_add(given).min(spare);
        }
        loop {
            for occupant in &occupants {
                occupant.release_ended();
            }
            let given = before.saturating_sub(self.out(&occupants));
            if given >= promised || Instant::now() >= deadline {
                return given;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Holder for Ledger {
    fn holding(&self) -> Holding {
        let _serving = Serving::begin();
        let held = self.held.load(Ordering::Relaxed);
        let frames: u64 = self.occupants().iter().map(|one| one.frame_bytes()).sum();
        Holding {
            frames: frames.min(held),
            buffers: held.saturating_sub(frames),
            other: 0,
        }
    }

    fn give_up(&self, bytes: u64, deadline: Instant) -> u64 {
        let _serving = Serving::begin();
        self.give(bytes, deadline)
    }
}

/// While it lives, this thread serves another tenant. It knows whether it did before.
struct Serving(bool);

impl Serving {
    fn begin() -> Self {
        Self(SERVING.replace(true))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVING.set(self.0);
    }
}
