//! RDMA to memory nodes over whichever NIC leads there.

use std::sync::Arc;

use gpuvm_memory_node::NodeClient;
use gpuvm_nic::devices::{DeviceKind, Machine};

use crate::{
    settings::{MemoryNodes, Mlx5, Queues, Retransmission, Rxe},
    stored::stored,
};

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
