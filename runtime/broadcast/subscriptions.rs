//! Which GPUs hold which pages of a broadcast array. Plain data: it touches no GPU.

use std::ops::Range;

use gpuvm_layouts::{BROADCAST_BY_PAGE, BROADCAST_OWNER_SHIFT, BROADCAST_PARTS};

/// Subscribers and owner of each page. A page has one subscriber at least, and its owner is one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscriptions {
    views: usize,
    /// A bit a view.
    subscribers: Vec<u32>,
    owners: Vec<usize>,
}

impl Subscriptions {
    /// Pages that `views` views share out among them as owners, one part side by side after the other. With `all`, every view subscribes
    /// to every page, else owners alone.
    pub fn new(views: usize, pages: usize, all: bool) -> Self {
        let owners: Vec<usize> = (0..pages).map(|page| page * views / pages.max(1)).collect();
        let subscribers = owners.iter().map(|owner| match all {
            true => (1 << views) - 1,
            false => 1 << owner,
        });
        Self {
            views,
            subscribers: subscribers.collect(),
            owners,
        }
    }

    pub fn pages(&self) -> usize {
        self.owners.len()
    }

    pub fn is_subscribed(&self, view: usize, page: usize) -> bool {
        self.subscribers[page] >> view & 1 == 1
    }

    pub fn subscribers(&self, page: usize) -> u32 {
        self.subscribers[page]
    }

    pub fn owner(&self, page: usize) -> usize {
        self.owners[page]
    }

    /// Whose copy a view reaches at its own addresses.
    pub fn behind(&self, view: usize, page: usize) -> usize {
        match self.is_subscribed(view, page) {
            true => view,
            false => self.owners[page],
        }
    }

    pub fn subscribe(&mut self, view: usize, page: usize) {
        self.subscribers[page] |= 1 << view;
    }

    /// False when the view is the page's last subscriber: it stays. Another subscriber becomes the owner if this one was.
    pub fn unsubscribe(&mut self, view: usize, page: usize) -> bool {
        let rest = self.subscribers[page] & !(1 << view);
        if rest == 0 {
            return false;
        }
        self.subscribers[page] = rest;
        if self.owners[page] == view {
            self.owners[page] = rest.trailing_zeros() as usize;
        }
        true
    }

    /// Makes a page's owner one that it had before, who is a subscriber once more.
    pub fn keep_owner(&mut self, page: usize, owner: usize) {
        self.subscribers[page] |= 1 << owner;
        self.owners[page] = owner;
    }

    /// What lanes of a view are told of a page.
    pub fn entry(&self, view: usize, page: usize) -> u32 {
        let behind = self.behind(view, page);
        let owner = self.owners[page];
        // A view that is not subscribed has the owner's copy behind its own addresses; only there does it reach it.
        let by = if behind == owner { view } else { owner };
        self.subscribers[page] & !(1 << behind) | (by as u32) << BROADCAST_OWNER_SHIFT
    }

    /// The entries of some pages.
    pub fn entries(&self, view: usize, pages: Range<usize>) -> Vec<u32> {
        pages.map(|page| self.entry(view, page)).collect()
    }

    /// The views that each page of this one is stored to besides, if all pages have the same; else [`BROADCAST_BY_PAGE`].
    pub fn others(&self, view: usize) -> u32 {
        let mut all = (0..self.pages()).map(|page| self.others_of(view, page));
        let first = all.next().unwrap_or_default();
        match all.all(|other| other == first) {
            true => first,
            false => BROADCAST_BY_PAGE,
        }
    }

    /// A bit for each part of `1 << shift` pages in which a page has others than the view's own: [`BroadcastDesc::held_parts`].
    ///
    /// [`BroadcastDesc::held_parts`]: gpuvm_layouts::BroadcastDesc::held_parts
    pub fn held_parts(&self, view: usize, shift: u32) -> u64 {
        let held = (0..self.pages()).filter(|page| self.others_of(view, *page) != 0);
        held.fold(0, |parts, page| parts | 1 << (page >> shift))
    }

    fn others_of(&self, view: usize, page: usize) -> u32 {
        self.subscribers[page] & !(1 << self.behind(view, page))
    }

    pub fn views(&self) -> usize {
        self.views
    }
}

/// Pages of a part, base-two logarithm, so that [`BROADCAST_PARTS`] parts have all `pages`.
pub(super) fn part_shift(pages: u64) -> u32 {
    let each = pages.div_ceil(u64::from(BROADCAST_PARTS)).max(1);
    each.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_layouts::BROADCAST_OTHERS_MASK;

    /// Through what each view is told, every store reaches every subscriber once, and the owner is reached by one address.
    fn holds(subscriptions: &Subscriptions) {
        for page in 0..subscriptions.pages() {
            let subscribers = subscriptions.subscribers(page);
            assert_ne!(subscribers, 0);
            assert!(subscriptions.is_subscribed(subscriptions.owner(page), page));
            for view in 0..subscriptions.views() {
                let entry = subscriptions.entry(view, page);
                let mut stored = vec![subscriptions.behind(view, page)];
                // Parts of one page and of four: what lanes look at first.
                let held = |shift| subscriptions.held_parts(view, shift) >> (page >> shift) & 1 == 1;
                let others = if held(0) && held(2) {
                    entry & BROADCAST_OTHERS_MASK
                } else {
                    0
                };
                stored.extend((0..16).filter(|other| others >> other & 1 == 1));
                stored.sort_unstable();
                let expected: Vec<usize> = (0..16).filter(|other| subscribers >> other & 1 == 1).collect();
                assert_eq!(stored, expected, "view {view}, page {page}");
                let by = (entry >> BROADCAST_OWNER_SHIFT) as usize;
                let reached = if by == view {
                    subscriptions.behind(view, page)
                } else {
                    by
                };
                assert_eq!(reached, subscriptions.owner(page));
                // Views other than the own are reached at their subscribers' own addresses.
                assert!(by == view || subscriptions.is_subscribed(by, page));
            }
        }
    }

    #[test]
    fn whatever_is_subscribed_and_unsubscribed_each_page_keeps_an_owner_that_all_reach() {
        for all in [true, false] {
            let mut subscriptions = Subscriptions::new(5, 13, all);
            holds(&subscriptions);
            let mut step = 1u64;
            for _ in 0..400 {
                step = step
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let (view, page) = ((step >> 33) as usize % 5, (step >> 40) as usize % 13);
                if step >> 60 & 1 == 0 {
                    subscriptions.subscribe(view, page);
                    assert!(subscriptions.is_subscribed(view, page));
                } else {
                    let last = subscriptions.subscribers(page) == 1 << view;
                    assert_eq!(subscriptions.unsubscribe(view, page), !last);
                }
                holds(&subscriptions);
            }
        }
    }

    #[test]
    fn owners_have_parts_side_by_side_and_stores_need_no_look_where_all_subscribe() {
        let all = Subscriptions::new(2, 5, true);
        assert_eq!((0..5).map(|page| all.owner(page)).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
        assert_eq!((all.others(0), all.others(1)), (2, 1));
        // A view without a copy reaches the owner's, and there is no other.
        let mut few = Subscriptions::new(2, 5, false);
        assert_eq!((few.others(0), few.others(1)), (0, 0));
        few.subscribe(1, 0);
        assert_eq!((few.others(0), few.others(1)), (BROADCAST_BY_PAGE, BROADCAST_BY_PAGE));
        assert_eq!(Subscriptions::new(1, 5, false).others(0), 0);
    }

    #[test]
    fn parts_that_no_other_view_holds_are_told_apart() {
        let mut pages = Subscriptions::new(2, 130, false);
        assert_eq!((pages.held_parts(0, 2), part_shift(130)), (0, 2));
        pages.subscribe(1, 64);
        // The owner stores page 64 to view 1 too; view 1 has no other but the owner's.
        assert_eq!((pages.owner(64), pages.held_parts(0, 2)), (0, 1 << 16));
        assert_eq!(pages.held_parts(1, 2), 1 << 16);
        assert_eq!(Subscriptions::new(2, 130, true).held_parts(0, 2), (1 << 33) - 1);
        for pages in [0, 1, 64, 65, 4096, 4097, u64::MAX >> 30] {
            let parts = ((pages.max(1) - 1) >> part_shift(pages)) + 1;
            assert!((1..=u64::from(BROADCAST_PARTS)).contains(&parts), "{pages} pages");
        }
    }
}
