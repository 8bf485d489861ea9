//! The memory node: options, start, stop.

mod challenges;
mod completions;
mod node;
mod session;
mod shares;
mod worker;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::access::Network;
use crate::error::NodeError;
use crate::limits::CLIENTS_MAX;
use crate::memory::{Backing, Mapping};
use crate::metrics::{Metrics, NodeEvent};
use crate::pool::{PAGE_BYTES, Pool};
use crate::protocol::Reason;
use crate::verbs::{
    Channel, Context, Domain, Id, Region, RegionAccess, Waker, device_addresses, devices, locked_memory_max,
    need_libraries, no_device,
};
use node::Node;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use session::COMPLETIONS as SESSION_COMPLETIONS;

/// Events of the connection manager that are handled in one turn.
pub(crate) const EVENTS_MAX: u32 = 64;
/// Connection requests that may wait for the node's thread, at least and at most: Linux takes no more (`net.rdma_ucm.max_backlog`).
const BACKLOG: (u32, u32) = (128, 1024);

/// Called with what happens, on the node's own thread: it must not wait.
pub type EventSink = Arc<dyn Fn(&NodeEvent) + Send + Sync>;

/// How a node serves.
#[derive(Clone)]
pub struct ServeOptions {
    /// The RDMA device, `rxe0`: the node binds to its address. Without it, to the address in `bind`.
    pub device: Option<String>,
    /// Where to listen; port 0 is any free one. The unspecified address is all devices, or that of `device`.
    pub bind: SocketAddr,
    /// What is served.
    pub memory: Backing,
    /// Most bytes of one client; without it, all there are.
    pub capacity_per_client: Option<u64>,
    /// What clients must know, if anything.
    pub secret: Option<String>,
    /// Where clients may come from; empty: from everywhere.
    pub allow: Vec<Network>,
    /// Most clients at once, up to [`CLIENTS_MAX`]. When there are as many, one that has not said its name for two seconds gives way to the
    /// next that comes.
    pub clients_max: u32,
    /// Most queue pairs of one client.
    pub queues_per_client_max: u32,
    /// Most grants of one client.
    pub grants_per_client_max: u32,
    /// How often the node looks whether its clients are there. One is given up when the device has exhausted the retries
    /// that the client asked for, or after eight intervals without an answer (four seconds at least).
    pub keep_alive: Duration,
    /// Told of clients that come and go.
    pub on_event: Option<EventSink>,
}

impl ServeOptions {
    /// The usual options for this memory: port 7471 of all devices, 64 clients with 256 queue pairs and 1024 grants each,
    /// everybody welcome.
    pub fn new(memory: Backing) -> ServeOptions {
        ServeOptions {
            device: None,
            bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7471)),
            memory,
            capacity_per_client: None,
            secret: None,
            allow: Vec::new(),
            clients_max: 64,
            queues_per_client_max: 256,
            grants_per_client_max: 1024,
            keep_alive: Duration::from_secs(1),
            on_event: None,
        }
    }

    fn check(&self) -> Result<(), NodeError> {
        let wrong = |option, why: &str| {
            Err(NodeError::Option {
                option,
                why: why.to_owned(),
            })
        };
        if self.memory.bytes() < PAGE_BYTES {
            return wrong("memory", "a node serves at least one page of 4096 bytes");
        }
        if self.secret.as_ref().is_some_and(String::is_empty) {
            return wrong("secret", "it is empty");
        }
        if !(1..=CLIENTS_MAX).contains(&self.clients_max) {
            return wrong("clients_max", "from 1 to 65536");
        }
        if !(1..=65_536).contains(&self.queues_per_client_max) {
            return wrong("queues_per_client_max", "from 1 to 65536");
        }
        if !(1..=1_000_000).contains(&self.grants_per_client_max) {
            return wrong("grants_per_client_max", "from 1 to 1000000");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&self.keep_alive) {
            return wrong("keep_alive", "from 10 ms to an hour");
        }
        Ok(())
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ServeOptions")
            .field("device", &self.device)
            .field("bind", &self.bind)
            .field("memory", &self.memory)
            .field("secret", &self.secret.as_ref().map(|_| "..."))
            .field("allow", &self.allow)
            .finish_non_exhaustive()
    }
}

/// What the node's threads and its owner share.
#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    counted: Mutex<Metrics>,
    waker: Waker,
    stop: AtomicBool,
}

impl Shared {
    fn counted(&self) -> MutexGuard<'_, Metrics> {
        // Counters are right after each single change.
        self.counted.lock()
    }

    fn count_grant(&self, bytes: u64) {
        let mut counted = self.counted();
        counted.grants += 1;
        counted.grants_total += 1;
        counted.granted_bytes += bytes;
    }

    fn uncount_grant(&self, bytes: u64) {
        let mut counted = self.counted();
        counted.grants -= 1;
        counted.granted_bytes -= bytes;
    }

    fn count_refusal(&self, reason: Reason) {
        *self.counted().refusals_total.entry(reason.to_string()).or_default() += 1;
    }

    fn is_stopping(&self) -> bool {
        // Relaxed: the flag alone is read; the waker's system call wakes who waits.
        self.stop.load(Ordering::Relaxed)
    }
}

/// A node that serves. Dropping it stops it.
#[derive(Debug)]
pub struct MemoryNode {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    device: Option<String>,
}

impl MemoryNode {
    /// Starts to serve, on threads of its own.
    ///
    /// # Errors
    /// Options that cannot be, no library, device or memory, a port in use, too little lockable memory.
    pub fn start(options: ServeOptions) -> Result<MemoryNode, NodeError> {
        options.check()?;
        need_libraries()?;
        let known = devices()?;
        let missing = options.device.as_ref().is_some_and(|wanted| !known.contains(wanted));
        if known.is_empty() || missing {
            return Err(no_device(options.device.as_deref(), known));
        }
        let channel = Channel::new()?;
        let listener = Id::new(&channel)?;
        let address = bind_address(&options)?;
        listener.bind(address).map_err(|source| NodeError::Listen {
            address: address.to_string(),
            source,
        })?;
        let device = listener.device();
        if let (Some(wanted), Some(found)) = (&options.device, &device)
            && wanted != found
        {
            return Err(NodeError::OtherDevice {
                address: address.to_string(),
                found: found.clone(),
                device: wanted.clone(),
            });
        }
        check_locked_memory(&options)?;
        let pool = Pool::new(Mapping::of(&options.memory)?);
        // What no client could get is said now, not to the first one.
        try_to_register(device.as_deref().unwrap_or(&known[0]), &pool)?;
        let backlog = options.clients_max.clamp(BACKLOG.0, BACKLOG.1);
        listener.listen(backlog as i32).map_err(|source| NodeError::Listen {
            address: address.to_string(),
            source,
        })?;
        let address = listener.local_address().unwrap_or(address);
        let shared = Arc::new(Shared {
            pool,
            counted: Mutex::default(),
            waker: Waker::new()?,
            stop: AtomicBool::new(false),
        });
        let node = Node::new(options, channel, listener, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new().name("memory-node".to_owned());
        let thread = thread.spawn(move || node.run()).map_err(|source| NodeError::System {
            what: "start the node's thread",
            source,
        })?;
        Ok(MemoryNode {
            shared,
            thread: Some(thread),
            address,
            device,
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The device it is bound to; nothing where it listens on all.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Bytes that it serves.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.pool.bytes()
    }

    /// What it has counted.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = self.shared.counted().clone();
        metrics.memory_bytes = self.shared.pool.bytes();
        metrics.free_bytes = self.shared.pool.free();
        metrics
    }

    /// Why it serves no more, if it came to that by itself.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Refuses new clients, says goodbye to those there are, takes their grants back, frees the memory. Takes about a
    /// second at most beyond what the device needs to unpin the memory. What was counted comes back.
    pub fn stop(mut self) -> Metrics {
        self.end();
        self.metrics()
    }

    fn end(&mut self) {
        // Relaxed: see `is_stopping`.
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the memory node's thread has panicked");
        }
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.end();
    }
}

/// The address in the options, or that of the device in them.
fn bind_address(options: &ServeOptions) -> Result<SocketAddr, NodeError> {
    match &options.device {
        Some(device) if options.bind.ip().is_unspecified() => {
            let first = device_addresses(device).into_iter().next();
            let ip = first.ok_or_else(|| NodeError::NoDeviceAddress { device: device.clone() })?;
            Ok(SocketAddr::new(ip, options.bind.port()))
        }
        _ => Ok(options.bind),
    }
}

/// Whether all memory could be granted, and each client's messages have their page.
fn check_locked_memory(options: &ServeOptions) -> Result<(), NodeError> {
    let bytes = options.memory.bytes();
    let needed = bytes.saturating_add(u64::from(options.clients_max) * PAGE_BYTES);
    match locked_memory_max() {
        Some(locked_max) if locked_max < needed => Err(NodeError::LockedMemory {
            bytes,
            needed,
            locked_max,
        }),
        _ => Ok(()),
    }
}

/// Registers a page of the pool and forgets it.
fn try_to_register(device: &str, pool: &Arc<Pool>) -> Result<(), NodeError> {
    let context = Context::open(device)?;
    let domain = Domain::new(&context)?;
    let Some(slice) = pool.take(PAGE_BYTES) else {
        return Ok(());
    };
    // SAFETY: the slice outlives the region, and nobody else uses it.
    let region = unsafe {
        Region::register(
            &domain,
            slice.pointer(),
            slice.bytes() as usize,
            RegionAccess::RemoteAll,
        )
    }?;
    region.deregister()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_be_are_refused_before_anything_else() {
        let usual = ServeOptions::new(Backing::Plain(1 << 20));
        for (options, name) in [
            (ServeOptions::new(Backing::Plain(4095)), "memory"),
            (
                ServeOptions {
                    secret: Some(String::new()),
                    ..usual.clone()
                },
                "secret",
            ),
            (
                ServeOptions {
                    clients_max: 0,
                    ..usual.clone()
                },
                "clients_max",
            ),
            (
                ServeOptions {
                    keep_alive: Duration::ZERO,
                    ..usual.clone()
                },
                "keep_alive",
            ),
        ] {
            match MemoryNode::start(options) {
                Err(NodeError::Option { option, .. }) => assert_eq!(option, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_secret_is_not_printed() {
        let options = ServeOptions {
            secret: Some("open sesame".to_owned()),
            ..ServeOptions::new(Backing::Plain(1 << 20))
        };
        assert!(!format!("{options:?}").contains("sesame"));
    }
}
