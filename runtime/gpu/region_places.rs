//! Which places of a GPU's region table are taken, and what of ended regions waits for launches that may look at it still.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::{Arc, Weak},
};

use super::{RegionTables, RegionView};

/// The regions of a GPU by their places.
pub(super) struct RegionPlaces {
    /// Up to the last place that was ever taken.
    views: Vec<Option<Weak<RegionView>>>,
    /// Most places.
    count: usize,
    /// Those below that no lane can look at.
    free: BinaryHeap<Reverse<u32>>,
    /// Page tables of ended regions, which lanes of launches in flight may look at still: they walk the table of frames, not only
    /// their own regions. The first to end comes first.
    retired: VecDeque<Retired>,
    /// Pages of the regions that have not ended and have no frames of their own.
    evictable_pages: u64,
}

/// An ended region's place in the region table, and its page table.
struct Retired {
    id: u32,
    /// Launches that had been put on streams by then.
    launches: u64,
    _tables: RegionTables,
}

fn evictable(view: &RegionView) -> u64 {
    match view.is_never_evicted() {
        true => 0,
        false => view.pages().count(),
    }
}

impl RegionPlaces {
    /// This many places, all free.
    pub fn new(count: u32) -> Self {
        Self {
            views: Vec::new(),
            count: count as usize,
            free: BinaryHeap::new(),
            retired: VecDeque::new(),
            evictable_pages: 0,
        }
    }

    /// The lowest place that no lane can look at.
    pub fn free_place(&self) -> Option<u32> {
        let fresh = (self.views.len() < self.count).then_some(self.views.len() as u32);
        self.free.peek().map(|Reverse(id)| *id).or(fresh)
    }

    /// Gives a region the place that [`free_place`](Self::free_place) says.
    pub fn take(&mut self, id: u32, view: &Arc<RegionView>) {
        if self.free.pop().is_none() {
            self.views.push(None);
        }
        self.views[id as usize] = Some(Arc::downgrade(view));
        self.evictable_pages += evictable(view);
    }

    /// The region at a place.
    pub fn at(&self, id: u32) -> Option<Arc<RegionView>> {
        self.views.get(id as usize)?.as_ref()?.upgrade()
    }

    /// The regions that have not ended.
    pub fn live(&self) -> impl Iterator<Item = Arc<RegionView>> {
        let views = self.views.iter().flatten().filter_map(Weak::upgrade);
        views.filter(|region| !region.has_ended())
    }

    /// Pages of the regions that have not ended and have no frames of their own.
    pub fn evictable_pages(&self) -> u64 {
        self.evictable_pages
    }

    /// A region has ended, after this many launches were put on streams: once those have ended, its place is free.
    pub fn retire(&mut self, view: &RegionView, launches: u64) {
        let Some(tables) = view.end() else { return };
        self.evictable_pages -= evictable(view);
        self.retired.push_back(Retired {
            id: view.id(),
            launches,
            _tables: tables,
        });
    }

    /// Gives back what no lane looks at any more, where the first launches in flight had this many others before them.
    pub fn free_retired(&mut self, first_in_flight: u64) {
        let over = |retired: &Retired| retired.launches <= first_in_flight;
        while self.retired.front().is_some_and(over)
            && let Some(retired) = self.retired.pop_front()
        {
            self.views[retired.id as usize] = None;
            self.free.push(Reverse(retired.id));
        }
    }
}
