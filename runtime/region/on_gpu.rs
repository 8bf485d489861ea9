//! A region on one of its GPUs.

use std::sync::Arc;

use gpuvm_layouts as layout;

use super::{Plan, placement};
use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
    gpu::{GuardAddresses, Guards, PageTable, PagedGpu, ReadCosts, RegionTables, RegionView},
    home::{Home, ReachedHome},
    pages::Pages,
};

/// What a region is on one GPU: its words and tables there, and how that GPU reaches the homes.
pub(crate) struct OnGpu {
    /// Dropped first: queue pairs go before the memory that they reach.
    pub gpu: Arc<PagedGpu>,
    pub view: Arc<RegionView>,
    /// One, or of a replicated region two of the same kind, each with a copy of every page.
    pub(super) homes: Vec<ReachedHome>,
    /// Addresses of what replicas and checksums need; each 0 without.
    pub(super) guards: GuardAddresses,
    /// Address of the frame 0 that the words count from.
    pub(super) frames_addr: u64,
    /// Where placement weighs them.
    pub(super) read_costs: Option<ReadCosts>,
}

/// Frames for every page of one region.
fn own_frames(gpu: &PagedGpu, name: &str, pages: u64) -> Result<FrameMemory> {
    if pages > layout::FRAMES_MAX {
        return Err(Error::Region {
            region: name.to_owned(),
            reason: format!("{pages} pages are too many for frames of its own: at most 2^28 - 1; use larger pages"),
        });
    }
    let access = gpu.frames().access();
    let page_size = 1 << gpu.page_shift();
    let take = || FrameMemory::new(&**gpu.device(), gpu.nics(), pages, page_size, access);
    let doing = format!("frames of region `{name}`");
    gpu.handles().make_room(pages.saturating_mul(page_size), &doing, take)
}

impl OnGpu {
    /// Takes the memory that a region needs on a GPU, and lets that GPU reach the homes. It has no place in the region table yet.
    pub fn create(gpu: &Arc<PagedGpu>, plan: &Plan, pages: Pages, homes: Vec<Arc<dyn Home>>) -> Result<Self> {
        let device = &**gpu.device();
        let frames = match plan.never_evicted && pages.count() > 0 {
            true => Some(own_frames(gpu, &plan.name, pages.count())?),
            false => None,
        };
        let frames_addr = match &frames {
            Some(frames) => frames.addr(),
            None if plan.never_evicted => 0,
            None => gpu.frames().addr(),
        };
        let reached = homes.into_iter().map(|home| {
            let reach = home.register(&gpu.ways(), plan.read_only)?;
            Ok(ReachedHome { reach, home })
        });
        let homes: Vec<_> = reached.collect::<Result<_>>()?;
        let kind = (plan.never_evicted, plan.read_only);
        let home = homes[0].direct_addr();
        // Absent pages' words name slots there, and count nothing: such a region is not used in place, whatever it is advised.
        let mut array_flags = plan.placement.flags_for(kind, home, pages.count());
        if array_flags == 0 && home != 0 && gpu.victims().is_some() {
            array_flags = layout::ARRAY_VICTIMS;
        }
        let (read_costs, head) = placement::begin(gpu, array_flags, &pages, home)?;
        let words = PageTable::absent(device, pages.count(), head)
            .doing(|| format!("allocating the page table of region `{}`", plan.name))?;
        let guards = Guards::create(device, pages.count(), homes.len() > 1, plan.checksums.as_deref())
            .doing(|| format!("allocating what guards region `{}`", plan.name))?;
        let addresses = guards.addresses();
        let tables = RegionTables {
            words,
            guards,
            frames,
            page_chunks: None,
        };
        let home = Arc::clone(&homes[0].home);
        let view = RegionView::new(&plan.name, pages, (plan.read_only, array_flags), home, tables);
        // From here on dropping it gives the key back.
        Ok(Self {
            gpu: Arc::clone(gpu),
            view: Arc::new(view),
            homes,
            guards: addresses,
            frames_addr,
            read_costs,
        })
    }

    /// Its home; of two the first.
    pub(super) fn home(&self) -> &dyn Home {
        &*self.homes[0].home
    }

    /// Device address of page 0 where lanes copy pages themselves, else 0.
    pub(super) fn direct_addr(&self) -> u64 {
        self.homes[0].direct_addr()
    }

    /// Takes the homes away from the GPU's NICs, or its lanes. What can be taken back is, whatever becomes of the other home.
    pub(super) fn withdraw(&self) -> Result<()> {
        let mut gone = Ok(());
        for reached in self.homes.iter().rev() {
            gone = gone.and(reached.reach.withdraw(&**self.gpu.device(), self.view.name()));
        }
        gone
    }
}
