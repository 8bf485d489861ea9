//! Where a region's pages live, as the device sees it.

use gpuvm_layouts::StripeDesc;

use super::OnGpu;
use crate::{error::Result, home::ReachedHome};

impl OnGpu {
    /// Where the pages of a replica live, as the device sees it.
    pub(super) fn stripes_of(&self, home: &ReachedHome) -> Vec<Vec<StripeDesc>> {
        let tables = self.view.tables();
        let own_frames = tables.as_ref().and_then(|tables| tables.frames.as_ref());
        home.stripes(&self.gpu.ways(), own_frames)
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
                if (stripe + row) % self.gpu.nodes().len().max(1) == place {
                    self.gpu.write_stripes(&self.view, first, &stripes)?;
                }
                first += stripes.len() as u64;
            }
        }
        Ok(())
    }
}
