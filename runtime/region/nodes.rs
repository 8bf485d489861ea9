//! Where a region's pages live, as the device sees it, and what of it a memory node has, which may be lost and come back empty.

use std::{ops::Range, sync::Arc};

use gpuvm_layouts::StripeDesc;
use gpuvm_memory_node::{Grant, GrantAccess, NodeClient, NodeError};

use super::OnGpu;
use crate::{
    error::{Doing, Result},
    home::{NodeMemory, ReachedHome, Striped},
};

/// New memory for what a node held of a region.
pub(crate) struct Moved {
    row: usize,
    stripe: usize,
    grant: Grant,
}

/// How a region lies over nodes: stripe `s` of row `r` at node `s + r`, modulo the nodes.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    /// Of each row: as many as there are nodes, or pages where these are fewer.
    pub stripes: usize,
    pub nodes: usize,
}

impl Spread {
    /// What lies at a node: the replica, and the stripe.
    pub fn stripes_at(self, place: usize, replicas: usize) -> impl Iterator<Item = (usize, usize)> {
        let all = (0..replicas).flat_map(move |row| (0..self.stripes).map(move |stripe| (row, stripe)));
        all.filter(move |(row, stripe)| (stripe + row) % self.nodes.max(1) == place)
    }

    /// The runs of the ageing kernel, which counts homes as if there were no more nodes than stripes: the home's number there,
    /// and the pages.
    fn to_mark_stale(self, place: usize, pages: u64) -> Vec<(u32, Range<u64>)> {
        if self.stripes == 1 || self.stripes == self.nodes {
            return vec![(place as u32, 0..pages)];
        }
        // Each page is a stripe of its own.
        let single = |(row, stripe)| {
            let page = stripe as u64;
            (((stripe + row) % self.stripes) as u32, page..page + 1)
        };
        self.stripes_at(place, 2).map(single).collect()
    }
}

impl OnGpu {
    /// Where the pages of a replica live, as the device sees it.
    pub(super) fn stripes_of(&self, home: &ReachedHome) -> Vec<Vec<StripeDesc>> {
        let tables = self.view.tables();
        let own_frames = tables.as_ref().and_then(|tables| tables.frames.as_ref());
        home.stripes(&self.gpu.data_paths(), own_frames)
    }

    /// Tells the device where the pages live.
    pub(super) fn write_stripes(&self) -> Result<()> {
        let stripes: Vec<_> = self.homes.iter().flat_map(|home| self.stripes_of(home)).collect();
        self.gpu.write_stripes(&self.view, 0, &stripes.concat())
    }

    /// Tells it of the stripes at one node, while no request can be posted that needs them. Those of other nodes are in use.
    pub(super) fn write_stripes_at(&self, place: usize) -> Result<()> {
        let mut first = 0;
        for (row, home) in self.homes.iter().enumerate() {
            for (stripe, stripes) in self.stripes_of(home).into_iter().enumerate() {
                if (stripe + row) % self.gpu.nodes.len().max(1) == place {
                    self.gpu.write_stripes(&self.view, first, &stripes)?;
                }
                first += stripes.len() as u64;
            }
        }
        Ok(())
    }

    /// The stripes at a node: their replica, and their place in it.
    fn stripes_at(&self, place: usize) -> impl Iterator<Item = (usize, usize)> {
        Spread {
            stripes: self.stripe_count(),
            nodes: self.gpu.nodes.len(),
        }
        .stripes_at(place, self.replicas() as usize)
    }

    pub(super) fn stripe_count(&self) -> usize {
        self.home().at_nodes().map_or(0, Striped::stripe_count)
    }

    /// Asks about a replica's memory at nodes; none where it has none.
    fn with_grants<R>(&self, row: usize, ask: impl FnOnce(&mut NodeMemory) -> R) -> Option<R> {
        self.homes.get(row)?.home.at_nodes()?.with(ask)
    }

    /// Asks about its memory at nodes; none where it lies elsewhere.
    pub fn node_memory<R>(&self, ask: impl FnOnce(&mut NodeMemory) -> R) -> Option<R> {
        self.home().at_nodes()?.with(ask)
    }

    pub fn is_at_nodes(&self) -> bool {
        self.home().at_nodes().is_some()
    }

    /// Refuses memory of a session that is no node's any more.
    pub(super) fn check_sessions(&self) -> Result<()> {
        for (place, node) in self.gpu.nodes.iter().enumerate() {
            for (row, stripe) in self.stripes_at(place) {
                let ours = self.with_grants(row, |memory| node.is_in(memory.grants[stripe].client()));
                if ours == Some(false) {
                    let over = Err(NodeError::Dead {
                        address: node.address().to_owned(),
                        why: "the node was lost, and has returned".into(),
                    });
                    return over.doing(|| format!("making region `{}`", self.name()));
                }
            }
        }
        Ok(())
    }

    /// Memory in a node's new session for what a replicated region lacks there.
    ///
    /// # Errors
    /// The node's.
    pub fn ask_for_memory(&self, place: usize, session: &Arc<NodeClient>) -> Result<Vec<Moved>> {
        let access = match self.view.is_read_only() {
            true => GrantAccess::ReadOnly,
            false => GrantAccess::ReadWrite,
        };
        let mut moved = Vec::new();
        for (row, stripe) in self.stripes_at(place) {
            let lacks = self.with_grants(row, |memory| {
                let ours = Arc::ptr_eq(memory.grants[stripe].client(), session);
                (!ours).then(|| memory.stripe_bytes(stripe, self.pages().count()))
            });
            if let Some(bytes) = lacks.flatten() {
                let grant = session.grant(bytes, access);
                let grant = grant.doing(|| format!("getting memory for region `{}` once more", self.name()))?;
                moved.push(Moved { row, stripe, grant });
            }
        }
        Ok(moved)
    }

    /// Goes on with what a node has of the region in its new session: memory where nothing counts until it is written. What is
    /// not replicated is lost with the session before. No request for the node's queue pairs may be posted; the launches are
    /// locked.
    pub fn move_to_session(&self, place: usize, moved: Vec<Moved>) -> Result<()> {
        if self.is_replicated() && (!self.view.is_read_only() || !moved.is_empty()) {
            self.age_at(place)?;
        }
        let mut old = Vec::new();
        for Moved { row, stripe, grant } in moved {
            old.push(self.with_grants(row, |memory| std::mem::replace(&mut memory.grants[stripe], grant)));
        }
        self.write_stripes_at(place)
    }

    /// Marks the copies at a node as stale.
    fn age_at(&self, place: usize) -> Result<()> {
        let spread = Spread {
            stripes: self.stripe_count(),
            nodes: self.gpu.nodes.len(),
        };
        for (home, pages) in spread.to_mark_stale(place, self.pages().count()) {
            self.gpu.mark_stale(&self.view, home, pages)?;
        }
        Ok(())
    }

    /// Ends the filling of what nodes gave anew for a read-only region: of each stripe of which `is_whole` says that every
    /// page is there.
    pub(super) fn seal_filled(&self, is_whole: impl Fn(usize, usize) -> bool) -> Result<()> {
        for place in 0..self.gpu.nodes.len() {
            for (row, stripe) in self.stripes_at(place) {
                let sealed = self.with_grants(row, |memory| {
                    let grant = &memory.grants[stripe];
                    (!grant.is_sealed() && is_whole(row, stripe)).then(|| grant.seal())
                });
                if let Some(sealed) = sealed.flatten() {
                    sealed.doing(|| format!("sealing region `{}`", self.name()))?;
                    self.write_stripes_at(place)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `mark_page_stale` of the device library has it: whether the copy of a page in a row is marked.
    fn marks(homes: u64, (home, pages): &(u32, Range<u64>), row: u64, page: u64) -> bool {
        let at = if homes == 1 { row } else { (page + row) % homes };
        pages.contains(&page) && at == u64::from(*home)
    }

    #[test]
    fn exactly_the_copies_at_a_node_are_marked_as_stale() {
        for nodes in 2..6 {
            for pages in 1..13u64 {
                let stripes = pages.min(nodes as u64) as usize;
                let spread = Spread { stripes, nodes };
                for place in 0..nodes {
                    let at_it: Vec<_> = spread.stripes_at(place, 2).collect();
                    let runs = spread.to_mark_stale(place, pages);
                    for (row, page) in (0..2).flat_map(|row| (0..pages).map(move |page| (row, page))) {
                        let stripe = page as usize % stripes;
                        let marked = runs.iter().any(|run| marks(stripes as u64, run, row as u64, page));
                        assert_eq!(
                            marked,
                            at_it.contains(&(row, stripe)),
                            "row {row}, page {page} of {pages}, node {place} of {nodes}: {runs:?}"
                        );
                        assert_eq!(marked, (stripe + row) % nodes == place);
                    }
                }
            }
        }
    }
}
