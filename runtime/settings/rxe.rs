//! What only SoftRoCE has.

use std::sync::Arc;

use gpuvm_memory_node::NodeClient;
use gpuvm_nic::{Nic, RxeNic, rxe::RxeOptions};

use crate::{
    error::Result,
    settings::{MemoryNodes, QueuePlan, Queues, Retransmission, common::opened, refuse},
    stored::stored,
};

/// Linux SoftRoCE: GPU threads write into the kernel driver's rings, a doorbell proxy makes the system call. On the simulated
/// GPU alone: an NVIDIA GPU cannot reach those rings.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Rxe {
    pub(super) device: Option<String>,
    pub(super) queues: Queues,
    pub(super) retransmission: Retransmission,
    pub(super) nodes: Option<MemoryNodes>,
}

impl Rxe {
    /// The first SoftRoCE device, to this host's memory.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// The device, such as `rxe0`. Default: the one that leads to the memory nodes, else the first one.
        device(name: impl Into<String>) => device = Some(name.into());

        /// The queue pairs. Default: [`Queues::new`], as many as the transport takes or its measured latency asks for.
        queues(queues: Queues) => queues = queues;

        /// What is done about packets that are lost. Default: [`Retransmission::new`].
        retransmission(again: Retransmission) => retransmission = again;

        /// Memory nodes as homes. Default: this host's memory.
        memory_nodes(nodes: MemoryNodes) => nodes = Some(nodes);
    }

    pub(super) fn check(&self) -> Result<()> {
        self.nodes.as_ref().map_or(Ok(()), MemoryNodes::check)?;
        self.queues.check(1, self.nodes.as_ref().map_or(0, MemoryNodes::len))
    }

    pub(super) fn plan(&self) -> QueuePlan {
        self.queues.plan()
    }

    /// The device that the nodes are reached through, else the one that was asked for.
    pub(super) fn open(&self, nodes: &[Arc<NodeClient>]) -> Result<RxeNic> {
        let mut device = self.device.clone();
        for node in nodes {
            match &device {
                Some(device) if device != node.device() => {
                    let (address, through) = (node.address(), node.device());
                    let reason = format!("{address} is reached through {through}, other homes through {device}");
                    return refuse("memory node", address.to_owned(), reason);
                }
                _ => device = Some(node.device().to_owned()),
            }
        }
        let nic = RxeNic::open(RxeOptions {
            device,
            ack_timeout: self.retransmission.ack_timeout,
            retry_count: self.retransmission.retries,
        });
        let nic = opened(nic, "rxe", "opening the SoftRoCE device")?;
        let limits = nic.capabilities();
        self.queues.check_depth(&limits.name, limits.sq_entries_max)?;
        Ok(nic)
    }
}
