//! Where a region's pages live, as the device sees it.

use std::sync::PoisonError;

use gpuvm_layouts::{self as layout, StripeDesc};

use super::RegionInner;
use crate::{
    error::{Doing, Result},
    home::{Home, Reach},
    queues::Reached,
};

impl RegionInner {
    /// Where the pages of a replica live, as the device sees it: at least one home, each with a stripe for every NIC that
    /// reaches it.
    pub(super) fn homes(&self, replica: usize, home: &Home) -> Vec<Vec<StripeDesc>> {
        let tables = self.lock_tables();
        let own_frames = tables.as_ref().and_then(|tables| tables.frames.as_ref());
        let stripe = |home, rkey, reached: Reached| StripeDesc {
            home,
            frame_keys: own_frames.map_or(0, |frames| frames.keys_of(reached.nic)),
            rkey,
            queue_first: reached.first,
            queue_count: reached.count,
            flags: 0,
        };
        // Nobody looks at its queue pairs: no page, or none that a NIC moves.
        let unmoved = |home| {
            vec![vec![StripeDesc {
                home,
                ..bytemuck::Zeroable::zeroed()
            }]]
        };
        let queues = self.vm.queues.as_ref();
        match (home, queues) {
            (Home::Host(memory, Reach::Nics(keys, _)), Some(queues)) => {
                let keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                let with_key = keys.iter().zip(queues.of_host(replica));
                vec![
                    with_key
                        .map(|(key, reached)| stripe(memory.base as u64, key.rkey, reached))
                        .collect(),
                ]
            }
            (Home::Nodes(memory), Some(queues)) => match &*memory.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(memory) if !memory.grants.is_empty() => (0..)
                    .zip(&memory.grants)
                    .map(|(node, grant): (usize, _)| {
                        // The second row is moved on by one node.
                        let node = (node + replica) % self.vm.nodes.len();
                        vec![match self.vm.nodes[node].is_in(grant.client()) {
                            true => stripe(grant.address(), grant.rkey(), queues.of_node(node)),
                            // A session that is over took it along. A lane may have found the node's queue pairs before
                            // this was written: the node refuses what has no key.
                            false => StripeDesc {
                                flags: layout::STRIPE_LOST,
                                ..stripe(0, 0, queues.nowhere())
                            },
                        }]
                    })
                    .collect(),
                _ => unmoved(0),
            },
            (home, _) => unmoved(home.direct_addr()),
        }
    }

    /// Tells the device where the pages live.
    pub(super) fn write_stripes(&self) -> Result<()> {
        self.vm
            .stripes
            .write(&*self.vm.gpu, self.first_stripe(), &self.all_stripes())
            .doing(|| format!("describing region `{}`", self.name))
    }

    /// The same of the stripes at one node, while no request can be posted that needs them. Those of other nodes are in use.
    pub(super) fn write_stripes_at(&self, place: usize) -> Result<()> {
        let mut first = self.first_stripe();
        for (row, home) in std::iter::once(&self.home).chain(&self.mirror).enumerate() {
            for (stripe, stripes) in self.homes(row, home).into_iter().enumerate() {
                if (stripe + row) % self.vm.nodes.len().max(1) == place {
                    let written = self.vm.stripes.write(&*self.vm.gpu, first, &stripes);
                    written.doing(|| format!("describing region `{}`", self.name))?;
                }
                first += stripes.len() as u64;
            }
        }
        Ok(())
    }

    fn all_stripes(&self) -> Vec<StripeDesc> {
        let mut stripes = self.homes(0, &self.home).concat();
        if let Some(mirror) = &self.mirror {
            stripes.extend(self.homes(1, mirror).concat());
        }
        stripes
    }

    /// Its place in the table of stripes.
    pub(super) fn first_stripe(&self) -> u64 {
        u64::from(self.id) * self.vm.stripes_a_region
    }
}
