//! What RDMA transports have in common: packets that are sent again, and memory nodes.

use std::{sync::Arc, time::Duration};

use gpuvm_memory_node::{ClientOptions, NodeClient};
use gpuvm_nic::{
    devices::{DeviceKind, Machine},
    rxe::RxeOptions,
};

use crate::{
    error::{Doing, Result},
    settings::{Mlx5, Queues, Rxe, refuse},
    stored::stored,
};

/// What an RDMA device does about packets that are not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Retransmission {
    pub(super) retries: u8,
    pub(super) ack_timeout: u8,
}

impl Default for Retransmission {
    fn default() -> Self {
        let options = RxeOptions::default();
        Self {
            retries: options.retry_count,
            ack_timeout: options.ack_timeout,
        }
    }
}

impl Retransmission {
    /// 6 retries after 67 ms each.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// How often a request that was not answered is sent again, 0 to 6; 7 is for ever, and only the wait limit ends it.
        /// Default: 6.
        retries(count: u8) => retries = count;

        /// How long an answer may take before the request is sent again: 4.096 us doubled this many times, 1 to 31. Default: 14
        /// (67 ms).
        ack_timeout(code: u8) => ack_timeout = code;
    }
}

/// Memory nodes: the pages of regions live there, striped over all of them, and not in this host's memory.
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryNodes {
    addresses: Vec<String>,
    secret: Option<String>,
    timeout: Duration,
}

impl MemoryNodes {
    /// The longest of a step where nobody says.
    pub const TIMEOUT_BY_DEFAULT: Duration = Duration::from_secs(10);

    /// By their addresses, each `host:port`.
    pub fn at(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            secret: None,
            timeout: Self::TIMEOUT_BY_DEFAULT,
        }
    }

    stored! {
        /// The secret that they ask for. It is proved, not sent.
        secret(secret: impl Into<String>) => secret = Some(secret.into());

        /// Longest that one step with a node may take, such as joining it. Default: 10 s.
        timeout(limit: Duration) => timeout = limit;
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.addresses.is_empty() {
            true => refuse("memory nodes", "an empty list".into(), "name one at least"),
            false => Ok(()),
        }
    }

    /// Joins them.
    pub(super) fn join(&self, again: Retransmission, traffic_class: u8) -> Result<Vec<Arc<NodeClient>>> {
        let options = ClientOptions {
            secret: self.secret.clone(),
            timeout: self.timeout,
            retry_count: again.retries,
            ack_timeout: again.ack_timeout,
            traffic_class,
            ..ClientOptions::default()
        };
        let join = |address: &String| {
            let joined = NodeClient::connect(address, &options);
            joined.doing(|| format!("joining {address}"))
        };
        self.addresses.iter().map(join).collect()
    }
}

/// RDMA to memory nodes over the NIC that leads to them: `mlx5` where a ConnectX does or an NVIDIA GPU was named, else `rxe`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Rdma {
    pub(super) nodes: MemoryNodes,
    pub(super) queues: Queues,
    pub(super) retransmission: Retransmission,
}

impl Rdma {
    /// To these nodes.
    pub fn to(nodes: MemoryNodes) -> Self {
        Self {
            nodes,
            queues: Queues::default(),
            retransmission: Retransmission::default(),
        }
    }

    stored! {
        /// The queue pairs. Default: [`Queues::new`], as many as the transport takes or its measured latency asks for.
        queues(queues: Queues) => queues = queues;

        /// What is done about packets that are lost. Default: [`Retransmission::new`].
        retransmission(again: Retransmission) => retransmission = again;
    }

    /// These settings over `mlx5`.
    pub(super) fn over_mlx5(&self) -> Mlx5 {
        let mlx5 = Mlx5::new().memory_nodes(self.nodes.clone());
        mlx5.queues(self.queues).retransmission(self.retransmission)
    }

    /// These settings over `rxe`.
    pub(super) fn over_rxe(&self) -> Rxe {
        let rxe = Rxe::new().memory_nodes(self.nodes.clone());
        rxe.queues(self.queues).retransmission(self.retransmission)
    }
}

/// Whether a ConnectX device leads to a node.
pub(super) fn lead_over_mlx5(nodes: &[Arc<NodeClient>]) -> bool {
    let machine = Machine::default();
    let kind = |node: &Arc<NodeClient>| machine.rdma_device(node.device()).map(|found| found.kind);
    nodes.iter().any(|node| kind(node) == Some(DeviceKind::Mlx5))
}
