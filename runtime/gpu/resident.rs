//! Regions whose homes GPU threads do not reach: launches look their pages up while all of them have frames. The protocol is in docs/PROTOCOL.md, T17.

use std::time::Instant;

use super::{PagedGpu, RegionView, holds::LOOKING_SHARE};
use crate::error::Result;

impl PagedGpu {
    /// Whether all pages of a region seem to have frames, of which launches fetch pages or look them up. It waits for no launch of a program's, unless such are
    /// always in flight: then now and then.
    pub fn seems_resident(&self, region: &RegionView) -> bool {
        if region.is_held() {
            // Nobody fetches what is missing before it was let go.
            return region.is_complete();
        }
        let begun = Instant::now();
        let is_time = self.capabilities().deterministic || region.is_worth_counting(begun);
        if !(region.may_have_pages() && is_time && (self.is_quiet() || region.is_counted_beside())) {
            return false;
        }
        let found = self.survey(region);
        region.set_next_count(Instant::now() + begun.elapsed() * LOOKING_SHARE);
        match found {
            Ok(found) => found.are_all_there(),
            Err(error) => {
                // The launch meets it, too.
                tracing::debug!(error = &error as &dyn std::error::Error, "pages were not counted");
                false
            }
        }
    }

    /// Sees whether all pages of a held region have frames. None comes or goes until it is let go.
    pub fn find_resident(&self, region: &RegionView) -> Result<()> {
        if !region.is_complete() {
            let found = self.survey(region)?;
            region.set_complete(found.are_all_there());
        }
        Ok(())
    }
}
