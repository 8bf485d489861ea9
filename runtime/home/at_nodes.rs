//! Homes at memory nodes.

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, StripeDesc};
use gpuvm_memory_node::Grant;

use super::{DataPaths, FileSpan, Home, HostPages, NodeMemory, Reach, Striped, stripe, unmoved};
use crate::{
    error::{Doing, Result},
    frames::FrameMemory,
};

/// A home at memory nodes.
pub(crate) struct AtNodes {
    region: String,
    /// Which of the region's homes it is: its stripe `s` lies at node `s + row`, modulo the nodes.
    row: usize,
    memory: Striped,
}

impl AtNodes {
    pub fn new(region: String, memory: NodeMemory, row: usize) -> Self {
        Self {
            region,
            row,
            memory: Striped::new(memory),
        }
    }

    /// The place of the node of a page.
    fn node_of(&self, paths: &DataPaths<'_>, page: u64) -> usize {
        let stripe = page % self.memory.stripe_count().max(1) as u64;
        (stripe as usize + self.row) % paths.nodes.len().max(1)
    }
}

impl Home for AtNodes {
    fn name(&self, page: u64) -> String {
        let name = self
            .memory
            .with_grant(page, |grant| format!("memory node {}", grant.client().address()));
        name.unwrap_or_else(|| "memory nodes".into())
    }

    fn holder(&self, page: u64) -> Option<String> {
        // For a message only: who asks does not wait for those who hold the lock.
        let memory = self.memory.0.try_lock()?;
        let memory = memory.as_ref()?;
        let client = memory.grants.get(memory.place_of(page).stripe)?.client();
        Some(match client.failure() {
            Some(why) => format!("memory node {} ({why})", client.address()),
            None => format!("memory node {}", client.address()),
        })
    }

    unsafe fn read(&self, _gpu: &dyn Gpu, offset: u64, out: &mut [u8]) -> Result<()> {
        match &*self.memory.0.lock() {
            Some(memory) if !out.is_empty() => {
                let read = memory.read(offset, out);
                read.doing(|| format!("reading region `{}`", self.region))
            }
            _ => Ok(()),
        }
    }

    unsafe fn write(&self, _gpu: &dyn Gpu, offset: u64, data: &[u8]) -> Result<()> {
        match &*self.memory.0.lock() {
            Some(memory) if !data.is_empty() => {
                let written = memory.write(offset, data);
                written.doing(|| format!("writing region `{}`", self.region))
            }
            _ => Ok(()),
        }
    }

    fn register(&self, _paths: &DataPaths<'_>, _read_only: bool) -> Result<Reach> {
        // The nodes have registered it when they granted it.
        Ok(Reach::None)
    }

    fn stripes(&self, paths: &DataPaths<'_>, _reach: &Reach, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>> {
        let memory = self.memory.0.lock();
        let (Some(queues), Some(memory)) = (paths.queues, &*memory) else {
            return unmoved(0);
        };
        if memory.grants.is_empty() {
            return unmoved(0);
        }
        let of_grant = |(number, grant): (usize, &Grant)| {
            let node = (number + self.row) % paths.nodes.len();
            vec![match paths.nodes[node].is_in(grant.client()) {
                true => stripe(grant.address(), grant.rkey(), &queues.of_node(node), own_frames),
                // A session that is over took it along. A lane may have found the node's queue pairs before
                // this was written: the node refuses what has no key.
                false => StripeDesc {
                    flags: layout::STRIPE_LOST,
                    ..stripe(0, 0, &queues.nowhere(), own_frames)
                },
            }]
        };
        memory.grants.iter().enumerate().map(of_grant).collect()
    }

    fn direct_addr(&self, _reach: &Reach) -> u64 {
        0
    }

    fn is_lost(&self, _paths: &DataPaths<'_>, page: u64) -> bool {
        let failed = self.memory.with_grant(page, |grant| grant.client().failure().is_some());
        failed.unwrap_or(true)
    }

    fn is_away(&self, paths: &DataPaths<'_>, page: u64) -> bool {
        let node = self.node_of(paths, page);
        self.is_lost(paths, page) || paths.queues.is_none_or(|queues| queues.is_node_lost(node))
    }

    fn was_away(&self, paths: &DataPaths<'_>, page: u64) -> bool {
        let node = self.node_of(paths, page);
        paths.queues.is_none_or(|queues| queues.was_node_lost(node))
    }

    fn host_memory(&self) -> Option<&HostPages> {
        None
    }

    fn file_span(&self) -> Option<FileSpan> {
        None
    }

    fn at_nodes(&self) -> Option<&Striped> {
        Some(&self.memory)
    }

    fn retry_writes(&self) {}

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn give_back(&self) {
        drop(self.memory.0.lock().take());
    }
}
