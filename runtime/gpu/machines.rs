//! The machines of one GPU: it and what moves its pages.

use std::sync::{Arc, Weak};

use gpuvm_gpu::{Actor, Gpu, OnCopy};
use gpuvm_layouts as layout;
use gpuvm_memory_node::NodeClient;
use gpuvm_nic::{Nic, RxeNic, SoftNic, mlx5::Mlx5Nic};

use crate::{arena::RingArena, kernel_nic::KernelNic, plan::TransportKind};

/// A GPU, the NICs that fill its frames, and the memory nodes that it has joined.
pub(crate) struct Machines {
    pub gpu: Arc<dyn Gpu>,
    pub nics: TransportNics,
    pub nodes: Vec<Arc<NodeClient>>,
}

/// The NICs that a transport drives.
pub(crate) enum TransportNics {
    /// None: lanes copy the pages.
    Direct,
    Soft(Vec<Arc<SoftNic>>),
    /// The software NIC whose engine is a kernel.
    Kernel(Arc<KernelNic>),
    Rxe(Arc<RxeNic>),
    /// With the memory of their rings.
    Mlx5(Vec<Arc<Mlx5Nic>>, Arc<RingArena>),
}

impl TransportNics {
    pub(super) fn transport(&self) -> TransportKind {
        match self {
            Self::Direct => TransportKind::Direct,
            Self::Soft(_) | Self::Kernel(_) => TransportKind::Soft,
            Self::Rxe(_) => TransportKind::Rxe,
            Self::Mlx5(..) => TransportKind::Mlx5,
        }
    }

    /// As every NIC.
    pub(super) fn all(&self) -> Vec<Arc<dyn Nic>> {
        fn each<N: Nic + 'static>(nics: &[Arc<N>]) -> Vec<Arc<dyn Nic>> {
            nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Nic>).collect()
        }
        match self {
            Self::Direct => Vec::new(),
            Self::Soft(nics) => each(nics),
            Self::Kernel(nic) => each(std::slice::from_ref(nic)),
            Self::Rxe(nic) => each(std::slice::from_ref(nic)),
            Self::Mlx5(nics, _) => each(nics),
        }
    }

    /// What only software NICs can do.
    pub(super) fn soft(&self) -> Vec<Arc<SoftNic>> {
        match self {
            Self::Soft(nics) => nics.clone(),
            _ => Vec::new(),
        }
    }

    /// The software NIC whose engine is a kernel, if that is what moves the pages.
    pub(super) fn kernel(&self) -> Option<Arc<KernelNic>> {
        match self {
            Self::Kernel(nic) => Some(Arc::clone(nic)),
            _ => None,
        }
    }

    pub(super) fn arena(&self) -> Option<Arc<RingArena>> {
        match self {
            Self::Mlx5(_, arena) => Some(Arc::clone(arena)),
            _ => None,
        }
    }
}

/// Doorbell stores of the simulated GPU wake the NICs; in seeded mode the GPU's scheduler steps them.
pub(super) fn connect(gpu: &dyn Gpu, nics: &[Arc<dyn Nic>]) {
    struct Engine {
        nic: Weak<dyn Nic>,
        on_copy: OnCopy,
    }
    impl Actor for Engine {
        fn step(&self, now_ns: u64) -> bool {
            // Its data may come late; the memory model says when.
            gpuvm_nic::soft::witness_copies(Some(self.on_copy));
            self.nic.upgrade().is_some_and(|nic| {
                // One time for both machines.
                nic.advance_to(now_ns);
                nic.step()
            })
        }
    }
    let Some(simulation) = gpu.simulation() else { return };
    // One whose engine is on the GPU is stepped by nothing.
    for nic in nics.iter().filter(|nic| !nic.capabilities().on_gpu) {
        // A NIC with a mover looks for stores itself, since a GPU's come without a word.
        if !nic.capabilities().has_mover {
            let woken = Arc::downgrade(nic);
            simulation.watch_stores(
                &nic.doorbell_pages(),
                Arc::new(move |address| {
                    if let Some(nic) = woken.upgrade() {
                        nic.doorbell_written(address);
                    }
                }),
            );
        }
        simulation.attach(Arc::new(Engine {
            nic: Arc::downgrade(nic),
            on_copy: simulation.on_copy(),
        }));
    }
    simulation.set_note_formatter(Arc::new(|code, a, b| match code {
        layout::WAIT_COMPLETION => format!("completion of request {b} on queue pair {a}"),
        layout::WAIT_PAGE => format!("page {} of region {}", page_of(a), region_of(a)),
        layout::WAIT_FRAME => format!("a frame for page {} of region {}", page_of(a), region_of(a)),
        layout::WAIT_QUEUE => format!("a slot of queue pair {a} or its neighbours"),
        layout::WAIT_WRITE_BACK => format!("the write-back of page {} of region {}", page_of(a), region_of(a)),
        _ => format!("wait {code} ({a:#x}, {b:#x})"),
    }));
}

fn page_of(page_id: u64) -> u64 {
    page_id & (layout::REGION_PAGES_MAX - 1)
}

fn region_of(page_id: u64) -> u64 {
    page_id >> layout::PAGE_ID_REGION_SHIFT & u64::from(layout::REGIONS_MAX - 1)
}
