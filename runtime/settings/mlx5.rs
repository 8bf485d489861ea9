//! What only ConnectX NICs have.

use std::sync::Arc;

use gpuvm_gpu::Gpu as Device;
use gpuvm_memory_node::NodeClient;
use gpuvm_nic::{
    Nic,
    devices::Machine,
    mlx5::{Mlx5Nic, Mlx5Options, QueueMaking, SharedMemory},
};

use crate::{
    arena::RingArena,
    error::Result,
    gpu::TransportNics,
    settings::{MemoryNodes, QueuePlan, Queues, Retransmission, common::opened, refuse},
    stored::stored,
};

/// How packets leave a ConnectX device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPath {
    /// The port, from 1 on. Default: 1.
    pub port: u8,
    /// Which of the port's GIDs. Default: a RoCE v2 one, of an IPv4 address if there is one; on InfiniBand the first. Not with
    /// memory nodes, whose connections take the one of the address that leads there.
    pub gid_index: Option<u8>,
    /// Most bytes of a packet's data: 256 to 4096, a power of two. Default: what the port has. Not with memory nodes, whose
    /// connections take the path's.
    pub mtu: Option<u32>,
    /// Service level, 0 to 15. Default: 0. Not with memory nodes, for whose connections it follows from the traffic class
    /// (RoCE) or the subnet manager (InfiniBand).
    pub service_level: u8,
    /// Traffic class (RoCE: DSCP and ECN). Default: 0.
    pub traffic_class: u8,
}

impl Default for RdmaPath {
    fn default() -> Self {
        let options = Mlx5Options::default();
        Self {
            port: options.port,
            gid_index: options.gid_index,
            mtu: options.mtu,
            service_level: options.service_level,
            traffic_class: options.traffic_class,
        }
    }
}

/// ConnectX NICs (mlx5), whose queues GPU threads drive. Not tested on a ConnectX: see docs/CONNECTX.md.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Mlx5 {
    pub(super) devices: Vec<String>,
    pub(super) path: RdmaPath,
    pub(super) making: QueueMaking,
    pub(super) queues: Queues,
    pub(super) flush_reads: bool,
    pub(super) retransmission: Retransmission,
    pub(super) nodes: Option<MemoryNodes>,
}

impl Mlx5 {
    /// The devices that are nearest to the GPU, to this host's memory.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// The devices, such as `mlx5_0`; of several, each page belongs to one. Default: those that lead to the memory nodes, else
        /// those that are nearest to the GPU on PCIe.
        devices(names: impl IntoIterator<Item = impl Into<String>>) => devices = names.into_iter().map(Into::into).collect();

        /// How packets leave the devices: port, GID, MTU, service level and traffic class.
        path(path: RdmaPath) => path = path;

        /// How the queues are made. By [`QueueMaking::Devx`] they lie in the GPU's own memory where its driver exports that, all
        /// completions of a queue pair come to one entry, and nothing is measured to count them. Default:
        /// [`QueueMaking::Verbs`]. Not tested on a ConnectX.
        queue_making(making: QueueMaking) => making = making;

        /// The queue pairs. Default: [`Queues::new`], as many as the transport takes or its measured latency asks for.
        queues(queues: Queues) => queues = queues;

        /// What is done about packets that are lost. Default: [`Retransmission::new`].
        retransmission(again: Retransmission) => retransmission = again;

        /// Memory nodes as homes. Default: this host's memory.
        memory_nodes(nodes: MemoryNodes) => nodes = Some(nodes);

        /// Follows each READ by a read of the frame behind a fence, and takes that one's completion for the READ's. So it is
        /// done anyway where kernels do not see a NIC's writes in their order; this asks for it everywhere. Default: false.
        flush_reads(always: bool) => flush_reads = always;
    }

    pub(super) fn check(&self) -> Result<()> {
        let nodes = self.nodes.as_ref();
        nodes.map_or(Ok(()), MemoryNodes::check)?;
        self.queues
            .check(self.devices.len(), nodes.map_or(0, MemoryNodes::len))?;
        if nodes.is_some() {
            self.check_path_to_nodes()?;
        }
        Ok(())
    }

    /// What the connection manager decides for both ends of a memory node's connections cannot be asked for at this end.
    fn check_path_to_nodes(&self) -> Result<()> {
        let path = self.path;
        let decided = [
            (
                "GID index",
                path.gid_index.map(|index| index.to_string()),
                "it is the one of the address that leads there; leave it out",
            ),
            (
                "RDMA MTU",
                path.mtu.map(|bytes| bytes.to_string()),
                "both ends take the path's; leave it out, and set the MTU of their network interfaces",
            ),
            (
                "service level",
                (path.service_level != 0).then(|| path.service_level.to_string()),
                "it follows from the traffic class (RoCE) or the subnet manager (InfiniBand); leave it out",
            ),
        ];
        let mut asked = decided.into_iter();
        match asked.find_map(|(setting, value, why)| Some((setting, value?, why))) {
            None => Ok(()),
            Some((setting, value, why)) => refuse(setting, value, format!("of connections to memory nodes {why}")),
        }
    }

    pub(super) fn plan(&self) -> QueuePlan {
        QueuePlan {
            // The processor, which measures, may not reach rings that DEVX made.
            measured: self.making == QueueMaking::Verbs,
            flush_reads: self.flush_reads,
            ..self.queues.plan()
        }
    }

    /// The devices, opened over memory of the GPU's.
    pub(super) fn open(
        &self,
        gpu: &Arc<dyn Device>,
        nodes: &[Arc<NodeClient>],
        plan: &QueuePlan,
    ) -> Result<TransportNics> {
        let arena = Arc::new(RingArena::new(Arc::clone(gpu)));
        let mut nics = Vec::new();
        for device in self.devices_for(&**gpu, nodes) {
            let options = Mlx5Options {
                device,
                port: self.path.port,
                gid_index: self.path.gid_index,
                mtu: self.path.mtu,
                service_level: self.path.service_level,
                traffic_class: self.path.traffic_class,
                ack_timeout: self.retransmission.ack_timeout,
                retry_count: self.retransmission.retries,
                queues: self.making,
            };
            let nic = Mlx5Nic::open(options, Arc::clone(&arena) as Arc<dyn SharedMemory>);
            let nic = Arc::new(opened(nic, "mlx5", "opening a ConnectX device")?);
            plan.check_blocks(&[Arc::clone(&nic) as Arc<dyn Nic>], self.flush_reads)?;
            nics.push(nic);
        }
        Ok(TransportNics::Mlx5(nics, arena))
    }

    /// The devices to open: those that were asked for, then those that lead to the nodes; without any, those nearest to the
    /// GPU. None is the library's first.
    fn devices_for(&self, gpu: &dyn Device, nodes: &[Arc<NodeClient>]) -> Vec<Option<String>> {
        let mut names = self.devices.clone();
        for node in nodes {
            if !names.iter().any(|name| name == node.device()) {
                names.push(node.device().to_owned());
            }
        }
        if names.is_empty()
            && let Some(place) = gpu
                .capabilities()
                .for_nics
                .and_then(|able| able.pci_address.parse().ok())
        {
            let near = Machine::default().nearest_connectx(place).into_iter();
            names = near.map(|nic| nic.name).collect();
        }
        match names.is_empty() {
            true => vec![None],
            false => names.into_iter().map(Some).collect(),
        }
    }
}
