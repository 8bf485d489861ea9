//! A process among the tenants of a GPU.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Holder;
use crate::entry::Name;
use crate::folder::{Folder, FolderError, GpuKey};
use crate::message;
use crate::peer::{self, DESCRIBE, Peer};
use crate::plan::{Stake, plan};
use crate::server::{self, GIVE_MAX, Shared};
use crate::short::{DriverView, Keeps, Short};
use crate::size::spell_bytes;
use crate::terms::Terms;

/// How often others are asked for one request. What is free after the last time is what there is: somebody else takes what is given.
const ROUNDS: u32 = 3;

/// The GPU that tenants share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpu {
    /// Which one.
    pub key: GpuKey,
    /// Its memory in bytes.
    pub total_bytes: u64,
}

/// This process among the tenants of a GPU. A thread answers the others. Dropping it leaves: a request for memory that is served at
/// that moment is waited for (30 seconds at most), and the holder is not called any more.
pub struct Tenant {
    shared: Arc<Shared>,
    /// Closed when the thread is to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Memory that is there for the first taker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// What others gave up: processes and bytes. None where enough was free.
    pub given: Vec<(u32, u64)>,
}

/// No memory.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// This tenant would hold more than it may.
    #[error(
        "{} more would be above this process's memory limit of {}, of which it holds {}; raise GPUVM_MEMORY_LIMIT, or run `gpuvm tenants set {} --limit SIZE`",
        spell_bytes(*.bytes), spell_bytes(*.limit), spell_bytes(*.holding), std::process::id()
    )]
    OverLimit {
        /// What was asked for, in bytes.
        bytes: u64,
        /// What it holds, in bytes.
        holding: u64,
        /// The most that it may hold, in bytes.
        limit: u64,
    },
    /// Others hold it, and keep it.
    #[error(transparent)]
    Short(Box<Short>),
    /// The others cannot be found.
    #[error("cannot ask the other tenants of the GPU for memory")]
    Folder(#[from] FolderError),
}

/// This process cannot be among the tenants. It can use the GPU all the same; no tenant will ask it for memory.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The registry cannot be used.
    #[error("cannot join the tenants of the GPU {gpu}")]
    Folder {
        /// The GPU.
        gpu: GpuKey,
        /// What is wrong.
        source: FolderError,
    },
    /// There is no thread to answer the others.
    #[error("cannot start the thread that answers other tenants")]
    Thread(#[source] std::io::Error),
}

impl Tenant {
    /// Joins the tenants of a GPU. The holder is asked from other threads until this is dropped; one that owns the tenant would keep
    /// itself alive, so it holds it weakly.
    ///
    /// # Errors
    /// A registry folder that cannot be created or written, or is not the user's alone; no thread.
    pub fn join(folder: &Folder, gpu: &SharedGpu, terms: Terms, holder: Arc<dyn Holder>) -> Result<Self, JoinError> {
        let entry = server::enter(folder, &gpu.key).map_err(|source| JoinError::Folder {
            gpu: gpu.key.clone(),
            source,
        })?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let shared = Arc::new(Shared::new(
            (folder.clone(), gpu.key.clone(), entry.name()),
            gpu.total_bytes,
            program(),
            since.map_or(0, |since| since.as_secs()),
            terms,
            holder,
        ));
        let (stop, stopped) = UnixStream::pair().map_err(JoinError::Thread)?;
        let builder = std::thread::Builder::new().name("gpuvm-tenant".to_owned());
        let thread = {
            let shared = Arc::clone(&shared);
            builder.spawn(move || server::serve(&shared, entry, &stopped))
        };
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread.map_err(JoinError::Thread)?),
        })
    }

    /// The terms now: `gpuvm tenants set` may have changed them.
    pub fn terms(&self) -> Terms {
        *self.shared.terms.lock()
    }

    /// Sees to it that `bytes` of the GPU's memory are free, by asking others to give up some, within `within` and at most
    /// 4 seconds more. Who gives how much is
    /// [`plan`]'s rule. No tenant is asked where all together would not give enough.
    ///
    /// `driver` says what the GPU's driver knows: how much is free, and who holds what. Where it does not know what is free, nothing is
    /// taken to be. What is granted is free, not reserved: who allocates first has it.
    ///
    /// # Errors
    /// [`AskError::OverLimit`] where this tenant would hold more than it may; [`AskError::Short`] where others keep what they hold, with
    /// each of them and why.
    pub fn ask(&self, bytes: u64, within: Duration, driver: impl Fn() -> DriverView) -> Result<Granted, AskError> {
        let mut asking = Asking {
            tenant: self,
            bytes,
            deadline: message::deadline_in(within),
            given: Vec::new(),
            less: HashMap::new(),
        };
        let own = self.stake();
        if let Some(limit) = own.limit.filter(|&limit| own.holding.saturating_add(bytes) > limit) {
            return Err(AskError::OverLimit {
                bytes,
                holding: own.holding,
                limit,
            });
        }
        for _ in 0..ROUNDS {
            let view = driver();
            let Some(missing) = asking.missing(&view) else {
                return Ok(asking.granted());
            };
            let peers = asking.peers()?;
            let planned = asking.plan(&peers, missing);
            let sum: u64 = planned.iter().map(|(_, bytes)| bytes).sum();
            if sum < missing || Instant::now() >= asking.deadline {
                return Err(asking.short(&peers, &planned, view));
            }
            asking.collect(&peers, &planned);
        }
        let view = driver();
        match asking.missing(&view) {
            None => Ok(asking.granted()),
            Some(_) => {
                let peers = asking.peers()?;
                Err(asking.short(&peers, &[], view))
            }
        }
    }

    fn stake(&self) -> Stake {
        let holder = self.shared.holder.read();
        let holding = holder.as_ref().map(|holder| holder.holding()).unwrap_or_default();
        message::stake(&self.shared.terms.lock(), &holding)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // From here on no tenant finds it.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has no panic to report but one that was printed.
            let _ = thread.join();
        }
        // Waits for a call of the holder that is under way; those who come later find none. A holder that drops the tenant within
        // its own call waits for itself, hence the bound.
        match self.shared.holder.try_write_for(GIVE_MAX) {
            Some(mut holder) => drop(holder.take()),
            None => tracing::warn!(
                "a holder has given up memory for longer than {GIVE_MAX:?}, and a tenant leaves without waiting for it"
            ),
        }
    }
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant")
            .field("name", &*self.shared.name.lock())
            .field("terms", &self.terms())
            .finish_non_exhaustive()
    }
}

/// One request for memory on its way.
struct Asking<'a> {
    tenant: &'a Tenant,
    bytes: u64,
    deadline: Instant,
    /// What was given so far.
    given: Vec<(u32, u64)>,
    /// Those who gave less than they were asked for, which are not asked again: what they were asked for, and what they gave.
    less: HashMap<Name, (u64, u64)>,
}

impl Asking<'_> {
    /// What is missing; nothing where enough is free.
    fn missing(&self, view: &DriverView) -> Option<u64> {
        let there = match view.memory {
            Some(memory) => memory.free,
            None => self.given.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add),
        };
        self.bytes.checked_sub(there).filter(|&missing| missing > 0)
    }

    fn granted(self) -> Granted {
        Granted { given: self.given }
    }

    fn peers(&self) -> Result<Vec<Peer>, FolderError> {
        let shared = &self.tenant.shared;
        let own = *shared.name.lock();
        match shared.folder.open(&shared.gpu)? {
            // Also at the deadline: who holds what is part of the answer.
            Some(folder) => peer::described(&folder, Some(own), self.deadline.max(Instant::now() + DESCRIBE)),
            None => Ok(Vec::new()),
        }
    }

    /// Who is asked for how much: indexes of `peers`.
    fn plan(&self, peers: &[Peer], missing: u64) -> Vec<(usize, u64)> {
        let known = peers.iter().enumerate().filter_map(|(index, peer)| {
            let description = peer.answer.as_ref().ok()?;
            (!self.less.contains_key(&peer.name())).then(|| (index, description.stake()))
        });
        let (indexes, stakes): (Vec<usize>, Vec<Stake>) = known.unzip();
        let planned = plan(&stakes, &self.tenant.stake(), missing);
        planned
            .into_iter()
            .map(|(index, bytes)| (indexes[index], bytes))
            .collect()
    }

    /// Asks all of them at once, each until the deadline.
    fn collect(&mut self, peers: &[Peer], planned: &[(usize, u64)]) {
        let (asker, deadline) = (self.tenant.stake(), self.deadline);
        let within = deadline.saturating_duration_since(Instant::now());
        let ask = |peer: &Peer, bytes: u64| {
            peer.give(bytes, &asker, within).unwrap_or_else(|error| {
                tracing::debug!("pid {} was asked for {bytes} bytes: {error}", peer.pid());
                0
            })
        };
        let answers: Vec<(usize, u64, u64)> = std::thread::scope(|scope| {
            let asked: Vec<_> = planned
                .iter()
                .map(|&(index, bytes)| {
                    let builder = std::thread::Builder::new().name("gpuvm-tenant-ask".to_owned());
                    let thread = builder.spawn_scoped(scope, move || ask(&peers[index], bytes));
                    (index, bytes, thread)
                })
                .collect();
            // Who could not be asked, for want of a thread, has given nothing.
            let answers = asked.into_iter().map(|(index, bytes, thread)| {
                let gave = thread.map_or(0, |thread| thread.join().unwrap_or(0));
                (index, bytes, gave)
            });
            answers.collect()
        });
        for (index, bytes, gave) in answers {
            let peer = &peers[index];
            if gave > 0 {
                self.given.push((peer.pid(), gave));
            }
            if gave < bytes {
                self.less.insert(peer.name(), (bytes, gave));
            }
        }
    }

    /// Who holds what, and why it stays there.
    fn short(&self, peers: &[Peer], planned: &[(usize, u64)], view: DriverView) -> AskError {
        let asker = self.tenant.stake();
        let keeps = |index: usize, peer: &Peer| {
            let stake = peer.answer.as_ref().map(|description| description.stake());
            match (stake, self.less.get(&peer.name())) {
                (Err(error), _) => Keeps::Silent { why: error.to_string() },
                (_, Some(&(asked, gave))) => Keeps::GaveLess { asked, gave },
                (Ok(stake), None) => match planned.iter().find(|(planned, _)| *planned == index) {
                    Some(&(_, bytes)) => Keeps::Would { bytes },
                    None => Keeps::by_the_rule(&stake, &asker),
                },
            }
        };
        let holders = peers.iter().enumerate().map(|(index, peer)| (peer, keeps(index, peer)));
        AskError::Short(Box::new(Short::new(self.bytes, &asker, holders, view)))
    }
}

/// What this process's program is called.
fn program() -> String {
    let file = std::env::current_exe().ok();
    let name = file.as_ref().and_then(|file| file.file_name());
    message::plain_text(&name.unwrap_or_default().to_string_lossy())
}
