//! How a node serves.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::access::Network;
use crate::error::NodeError;
use crate::limits::CLIENTS_MAX;
use crate::memory::Backing;
use crate::metrics::NodeEvent;
use crate::pool::PAGE_BYTES;

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

    pub(super) fn check(&self) -> Result<(), NodeError> {
        let wrong = |option, why: &str| {
            Err(NodeError::Option {
                option,
                why: why.to_owned(),
            })
        };
        if self.memory.bytes() < PAGE_BYTES {
            return wrong("memory", "it must be at least one page of 4096 bytes");
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
