//! Settings of tests, whose GPU and transport somebody else has chosen, such as the environment: what these have is set.

use std::sync::Arc;

use gpuvm::{Gpu, Queues, SimulatedGpu, Soft, SoftNic, Transport, VmBuilder, sim::SimOptions};

/// Changes one setting of the GPU or the transport, and leaves its others.
pub trait Adjust: Sized {
    /// Changes the queues of a transport that has some.
    fn queues(self, change: impl FnOnce(Queues) -> Queues) -> Self;

    /// Changes the GPU, if it is simulated.
    fn simulated_gpu(self, change: impl FnOnce(SimulatedGpu) -> SimulatedGpu) -> Self;

    /// Changes the software NIC, which becomes the transport where none was named.
    ///
    /// # Panics
    /// Another transport was named.
    fn soft(self, change: impl FnOnce(Soft) -> Soft) -> Self;

    /// Queue pairs for each home and NIC.
    fn queue_pairs(self, count: u32) -> Self {
        self.queues(|queues| queues.pairs(count))
    }

    /// Requests that a queue pair holds.
    fn queue_depth(self, requests: u32) -> Self {
        self.queues(|queues| queues.depth(requests))
    }

    /// Homes in this host's memory.
    fn host_homes(self, count: u32) -> Self {
        self.queues(|queues| queues.host_homes(count))
    }

    /// Workers of the simulated GPU.
    fn workers(self, count: u32) -> Self {
        self.simulated_gpu(|gpu| gpu.workers(count))
    }

    /// Lanes of one of them.
    fn lanes_per_worker(self, lanes: u32) -> Self {
        self.simulated_gpu(|gpu| gpu.lanes_per_worker(lanes))
    }

    /// Memory of the simulated GPU in bytes.
    fn device_memory(self, bytes: u64) -> Self {
        self.simulated_gpu(|gpu| gpu.memory(bytes))
    }

    /// The seed of the simulated GPU.
    fn seed(self, seed: u64) -> Self {
        self.simulated_gpu(|gpu| gpu.seed(seed))
    }

    /// What a run that follows a seed does besides.
    fn sim_options(self, options: SimOptions) -> Self {
        self.simulated_gpu(|gpu| match gpu.seed_asked() {
            Some(seed) => gpu.seeded(seed, options),
            None => gpu,
        })
    }

    /// Over the software NIC.
    fn over_soft(self) -> Self {
        self.soft(|soft| soft)
    }

    /// A software NIC of the test's making.
    fn soft_nic(self, nic: Arc<SoftNic>) -> Self {
        self.soft(|soft| soft.nic(nic))
    }

    /// Several of them.
    fn soft_nics(self, nics: impl IntoIterator<Item = Arc<SoftNic>>) -> Self {
        self.soft(|soft| soft.nics(nics))
    }

    /// Whether READs over the software NIC are flushed.
    fn flush_reads(self, always: bool) -> Self {
        self.soft(|soft| soft.flush_reads(always))
    }

    /// Whether completions of the software NIC are collapsed.
    fn collapsed_completions(self, collapsed: bool) -> Self {
        self.soft(|soft| soft.collapsed_completions(collapsed))
    }
}

impl Adjust for VmBuilder {
    fn queues(self, change: impl FnOnce(Queues) -> Queues) -> Self {
        let transport = self.transport_asked().clone();
        match transport.queues() {
            Some(queues) => self.transport(transport.with_queues(change(queues))),
            None => self,
        }
    }

    fn simulated_gpu(self, change: impl FnOnce(SimulatedGpu) -> SimulatedGpu) -> Self {
        match self.gpus_asked() {
            [Gpu::Simulated(gpu)] => {
                let gpu = change(gpu.clone());
                self.gpu(gpu)
            }
            _ => self,
        }
    }

    fn soft(self, change: impl FnOnce(Soft) -> Soft) -> Self {
        let soft = match self.transport_asked() {
            Transport::Soft(soft) => soft.clone(),
            Transport::Auto(queues) => Soft::new().queues(*queues),
            other => panic!(
                "this is a setting of the software NIC, and transport {} was named",
                other.name()
            ),
        };
        self.transport(change(soft))
    }
}
