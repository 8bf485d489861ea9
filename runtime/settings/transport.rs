//! How pages travel between frames and their home.

use std::{str::FromStr, sync::Arc};

use gpuvm_gpu::Gpu as Device;
use gpuvm_memory_node::NodeClient;
use gpuvm_nic::RxeNic;

use crate::{
    error::{Error, Result},
    gpu::TransportNics,
    settings::{Gpu, Mlx5, QueuePlan, Queues, Rdma, Rxe, Soft, TransportKind, refuse},
};

/// How pages travel between frames and their home, and what only that transport has.
#[derive(Debug, Clone)]
pub enum Transport {
    /// The best one for the GPU and this host's memory: [`Direct`](Self::Direct) on an NVIDIA GPU, [`Soft`](Self::Soft) with
    /// these queues on the simulated one.
    Auto(Queues),
    /// The software NIC.
    Soft(Soft),
    /// Linux SoftRoCE.
    Rxe(Rxe),
    /// ConnectX NICs.
    Mlx5(Mlx5),
    /// The faulting warp copies its pages itself, from host memory or from a neighbour GPU's.
    Direct,
    /// `Mlx5` or `Rxe` to memory nodes, whichever leads there.
    Rdma(Rdma),
}

impl Default for Transport {
    fn default() -> Self {
        Self::Auto(Queues::default())
    }
}

impl Transport {
    /// The transport's name, as on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Auto(_) | Self::Rdma(_) => "auto",
            Self::Soft(_) => TransportKind::Soft.name(),
            Self::Rxe(_) => TransportKind::Rxe.name(),
            Self::Mlx5(_) => TransportKind::Mlx5.name(),
            Self::Direct => TransportKind::Direct.name(),
        }
    }

    /// Its queues, if it has some.
    pub fn queues(&self) -> Option<Queues> {
        match self {
            Self::Auto(queues) => Some(*queues),
            Self::Soft(soft) => Some(soft.queues),
            Self::Rxe(rxe) => Some(rxe.queues),
            Self::Mlx5(mlx5) => Some(mlx5.queues),
            Self::Rdma(rdma) => Some(rdma.queues),
            Self::Direct => None,
        }
    }

    /// This transport with these queues, if it has some.
    pub fn with_queues(self, queues: Queues) -> Self {
        match self {
            Self::Auto(_) => Self::Auto(queues),
            Self::Soft(soft) => soft.queues(queues).into(),
            Self::Rxe(rxe) => rxe.queues(queues).into(),
            Self::Mlx5(mlx5) => mlx5.queues(queues).into(),
            Self::Rdma(rdma) => rdma.queues(queues).into(),
            Self::Direct => Self::Direct,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Auto(queues) => queues.check(1, 0),
            Self::Soft(soft) => soft.check(),
            Self::Rxe(rxe) => rxe.check(),
            Self::Mlx5(mlx5) => mlx5.check(),
            Self::Direct => Ok(()),
            Self::Rdma(rdma) => rdma.over_rxe().check(),
        }
    }

    /// Whether [`Gpu::Auto`] is the simulated GPU beside it: an NVIDIA GPU cannot reach the SoftRoCE driver's rings.
    pub(super) fn is_of_the_simulated_gpu(&self) -> bool {
        matches!(self, Self::Rxe(_))
    }

    /// Joins the memory nodes.
    pub(super) fn join_nodes(&self) -> Result<Vec<Arc<NodeClient>>> {
        match self {
            Self::Rdma(rdma) => rdma.nodes.join(rdma.retransmission, 0),
            Self::Rxe(rxe) => match &rxe.nodes {
                Some(nodes) => nodes.join(rxe.retransmission, 0),
                None => Ok(Vec::new()),
            },
            Self::Mlx5(mlx5) => match &mlx5.nodes {
                Some(nodes) => nodes.join(mlx5.retransmission, mlx5.path.traffic_class),
                None => Ok(Vec::new()),
            },
            Self::Auto(_) | Self::Soft(_) | Self::Direct => Ok(Vec::new()),
        }
    }

    /// The transport that it is on this GPU. `over_mlx5`: a ConnectX leads to a memory node.
    pub(super) fn choose(&self, hardware: bool, over_mlx5: bool) -> Chosen {
        match self {
            Self::Auto(_) if hardware => Chosen::Direct,
            Self::Auto(queues) => Chosen::Soft(Soft::new().queues(*queues)),
            // An NVIDIA GPU cannot reach the SoftRoCE driver's rings.
            Self::Rdma(rdma) if over_mlx5 || hardware => Chosen::Mlx5(rdma.over_mlx5()),
            Self::Rdma(rdma) => Chosen::Rxe(rdma.over_rxe()),
            Self::Soft(soft) => Chosen::Soft(soft.clone()),
            Self::Rxe(rxe) => Chosen::Rxe(rxe.clone()),
            Self::Mlx5(mlx5) => Chosen::Mlx5(mlx5.clone()),
            Self::Direct => Chosen::Direct,
        }
    }
}

impl From<Soft> for Transport {
    fn from(soft: Soft) -> Self {
        Self::Soft(soft)
    }
}

impl From<Rxe> for Transport {
    fn from(rxe: Rxe) -> Self {
        Self::Rxe(rxe)
    }
}

impl From<Mlx5> for Transport {
    fn from(mlx5: Mlx5) -> Self {
        Self::Mlx5(mlx5)
    }
}

impl From<Rdma> for Transport {
    fn from(rdma: Rdma) -> Self {
        Self::Rdma(rdma)
    }
}

impl FromStr for Transport {
    type Err = Error;

    /// `auto`, `soft`, `rxe`, `mlx5` or `direct`, each with default settings.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::default()),
            "soft" => Ok(Soft::new().into()),
            "rxe" => Ok(Rxe::new().into()),
            "mlx5" => Ok(Mlx5::new().into()),
            "direct" => Ok(Self::Direct),
            _ => {
                let reason = "expected auto, soft, rxe, mlx5 or direct";
                refuse("transport", format!("`{text}`"), reason)
            }
        }
    }
}

/// A transport with nothing left open.
pub(super) enum Chosen {
    Soft(Soft),
    Rxe(Rxe),
    Mlx5(Mlx5),
    Direct,
}

impl Chosen {
    pub fn kind(&self) -> TransportKind {
        match self {
            Self::Soft(_) => TransportKind::Soft,
            Self::Rxe(_) => TransportKind::Rxe,
            Self::Mlx5(_) => TransportKind::Mlx5,
            Self::Direct => TransportKind::Direct,
        }
    }

    /// Its queues; of a transport without any, those of which there is none.
    pub fn queue_plan(&self) -> QueuePlan {
        match self {
            Self::Soft(soft) => soft.plan(),
            Self::Rxe(rxe) => rxe.plan(),
            Self::Mlx5(mlx5) => mlx5.plan(),
            Self::Direct => Queues::default().plan(),
        }
    }

    /// Whether GPU and transport go together.
    pub fn check_beside(&self, gpu: &Gpu, hardware: bool) -> Result<()> {
        match self {
            Self::Soft(soft) => soft.check_beside(gpu, hardware),
            Self::Rxe(_) | Self::Mlx5(_) => match gpu.seed() {
                Some(seed) => {
                    let reason = format!(
                        "transport {} does not support a seed; use the software NIC",
                        self.kind()
                    );
                    refuse("seed", seed, reason)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The SoftRoCE device, if that is the transport.
    pub fn open_rxe(&self, nodes: &[Arc<NodeClient>]) -> Result<Option<Arc<RxeNic>>> {
        match self {
            Self::Rxe(rxe) => rxe.open(nodes).map(Arc::new).map(Some),
            _ => Ok(None),
        }
    }

    /// The NICs, beside a GPU that is there.
    pub fn open(&self, gpu: &Arc<dyn Device>, nodes: &[Arc<NodeClient>], plan: &QueuePlan) -> Result<TransportNics> {
        match self {
            Self::Direct => Ok(TransportNics::Direct),
            Self::Soft(soft) => soft.open(gpu, plan),
            Self::Rxe(rxe) => rxe.open(nodes).map(Arc::new).map(TransportNics::Rxe),
            Self::Mlx5(mlx5) => mlx5.open(gpu, nodes, plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::MemoryNodes;

    #[test]
    fn the_best_transport_is_taken() {
        let kind = |transport: &Transport, hardware, over_mlx5| transport.choose(hardware, over_mlx5).kind();
        let auto = Transport::default();
        assert_eq!(kind(&auto, true, false), TransportKind::of_gpu(true));
        assert_eq!(kind(&auto, false, false), TransportKind::of_gpu(false));
        let rdma = Transport::from(Rdma::to(MemoryNodes::at(["192.0.2.9:7471"])));
        assert_eq!(kind(&rdma, true, false), TransportKind::Mlx5);
        assert_eq!(kind(&rdma, false, true), TransportKind::Mlx5);
        assert_eq!(kind(&rdma, false, false), TransportKind::Rxe);
    }

    #[test]
    fn mlx5_counts_its_queue_pairs_by_measurement_however_it_was_chosen() {
        let nodes = MemoryNodes::at(["192.0.2.9:7471"]);
        let chosen = Transport::from(Rdma::to(nodes.clone())).choose(true, false);
        let named = Transport::from(Mlx5::new().memory_nodes(nodes.clone())).choose(true, false);
        for plan in [chosen.queue_plan(), named.queue_plan()] {
            assert!(plan.measured && plan.pairs.is_none(), "{plan:?}");
        }
        // The same settings where no ConnectX leads to the node.
        let over_rxe = Transport::from(Rdma::to(nodes.clone()))
            .choose(false, false)
            .queue_plan();
        assert!(!over_rxe.measured && over_rxe.pairs.is_none(), "{over_rxe:?}");
        let counted = Rdma::to(nodes).queues(Queues::new().pairs(3));
        let plan = Transport::from(counted).choose(true, true).queue_plan();
        assert_eq!(plan.pairs, Some(3));
    }

    #[test]
    fn a_transport_is_named_as_it_is_read() {
        for text in ["auto", "soft", "rxe", "mlx5", "direct"] {
            assert_eq!(text.parse::<Transport>().unwrap().name(), text);
        }
        let refused = "tcp".parse::<Transport>().unwrap_err().to_string();
        assert!(refused.starts_with("transport is `tcp`: expected auto"), "{refused}");
    }
}
