//! The memory node: options, start, stop.

mod challenges;
mod completions;
mod node;
mod options;
mod session;
mod shared;
mod shares;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::error::NodeError;
use crate::memory::Mapping;
use crate::metrics::Metrics;
use crate::pool::{PAGE_BYTES, Pool};
use crate::verbs::{
    Channel, Context, Domain, Id, Region, RegionAccess, Waker, device_addresses, devices, locked_memory_max,
    need_libraries, no_device,
};
use node::Node;
use parking_lot::Mutex;
use shared::Shared;

pub use options::{EventSink, ServeOptions};

/// Connection requests that may wait for the node's thread, at least and at most: Linux takes no more (`net.rdma_ucm.max_backlog`).
const BACKLOG: (u32, u32) = (128, 1024);

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
    // SAFETY: the slice outlives the region, and nothing else uses it.
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
    use std::time::Duration;

    use super::*;
    use crate::memory::Backing;

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
