//! The state of a region's homes.

use super::{OnGpu, Region};
use crate::error::Result;

/// How a region's homes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHealth {
    /// Each home that holds copies of the region's pages.
    pub homes: Vec<HomeHealth>,
    /// Pages of which no home that can be reached has a good copy. Those that are dirty in GPU memory are no loss yet: see
    /// [`Region::salvage`].
    pub pages_without_copy: u64,
}

impl RegionHealth {
    /// Whether every home is there and holds what it should.
    pub fn is_whole(&self) -> bool {
        self.pages_without_copy == 0 && self.homes.iter().all(|home| !home.is_lost && home.stale_pages == 0)
    }
}

/// One of a region's homes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeHealth {
    /// Its name, as messages have it.
    pub name: String,
    /// It cannot be reached, or, of a region without replicas at a memory node, the session that held its pages is over:
    /// what was there is gone, also when the node serves again.
    pub is_lost: bool,
    /// Pages whose copy there is not what was written back last. They are never read there.
    pub stale_pages: u64,
}

fn health(own: &OnGpu) -> Result<RegionHealth> {
    let stale = own.read_stale()?;
    let mut homes: Vec<HomeHealth> = Vec::new();
    let mut pages_without_copy = 0;
    for page in 0..own.view.pages().count() {
        let mut good = false;
        for (row, home) in own.rows() {
            let (is_lost, is_stale) = match own.is_replicated() {
                true => (own.is_away(row, page), stale.has(row, page)),
                // Of a session that is over, a node has nothing any more.
                false => (own.is_lost(row, page), false),
            };
            good |= !is_lost && !is_stale;
            let name = home.name(page);
            let place = match homes.iter().position(|home| home.name == name) {
                Some(place) => {
                    homes[place].is_lost |= is_lost;
                    place
                }
                None => {
                    homes.push(HomeHealth {
                        name,
                        is_lost,
                        stale_pages: 0,
                    });
                    homes.len() - 1
                }
            };
            homes[place].stale_pages += u64::from(is_stale);
        }
        pages_without_copy += u64::from(!good);
    }
    homes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(RegionHealth {
        homes,
        pages_without_copy,
    })
}

impl<E> Region<E> {
    /// How the region's homes are: which are lost, and how many of their copies are stale. Exact when no launch runs.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) when GPU memory cannot be read.
    pub fn health(&self) -> Result<RegionHealth> {
        let own = &self.inner.own;
        own.gpu.map_device_lost(health(own))
    }
}
