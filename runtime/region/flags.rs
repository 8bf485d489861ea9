//! The flags by which lanes know what a region is: `ARRAY_*` of a kernel's argument, and `REGION_*` of the region table. All follow from
//! [`Traits`] and from advice, here alone.

use gpuvm_layouts as layout;

use super::{
    advice::{Advice, Advised},
    placement::Placement,
};

/// How kernels use a region, as it was made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    /// They never write it.
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    pub placement: Placement,
}

/// What the flags on one GPU follow from, besides advice.
#[derive(Clone, Copy)]
pub(super) struct Traits {
    pub kind: Kind,
    pub pages: u64,
    /// Device address of page 0 at the home, 0 if lanes do not reach it.
    pub home: u64,
    /// The GPU borrows memory of neighbours, where clean pages may go.
    pub borrows: bool,
    pub replicated: bool,
    pub checked: bool,
}

impl Traits {
    /// `ARRAY_*` of the kernel argument under such advice.
    pub fn array_flags(&self, advised: Advised) -> u32 {
        let Kind {
            read_only,
            never_evicted,
            placement,
        } = self.kind;
        // Absent pages' words name slots there, and count nothing: such a region is not used in place, whatever it is advised.
        if self.borrows && self.home != 0 && self.placed(placement) == 0 {
            return layout::ARRAY_VICTIMS;
        }
        let stores = advised.stores_in_place() && !read_only && !never_evicted && self.is_reached();
        self.placed(advised.placement.unwrap_or(placement)) | flag(stores, layout::ARRAY_STORES_IN_PLACE)
    }

    /// Those of them that say where pages are read.
    fn placed(&self, placement: Placement) -> u32 {
        let rules = match placement {
            _ if self.kind.never_evicted => return layout::ARRAY_NEVER_EVICTED,
            _ if !self.is_reached() => return 0,
            Placement::Fetch => return 0,
            Placement::InPlace => 0,
            // Samples are drawn by 32 bits of a page's number.
            Placement::Auto if self.pages >> 32 == 0 => layout::ARRAY_FETCH_WHILE_FREE | layout::ARRAY_DUELS,
            Placement::Auto | Placement::WhileFree => layout::ARRAY_FETCH_WHILE_FREE,
            // What is written home by lanes has neither a checksum nor a second copy.
            Placement::LookUp if self.borrows || self.checked || self.replicated => layout::ARRAY_FETCH_WHILE_FREE,
            Placement::LookUp => layout::ARRAY_FETCH_WHILE_FREE | layout::ARRAY_LOOKED_UP,
        };
        layout::ARRAY_IN_PLACE | rules | flag(!self.kind.read_only, layout::ARRAY_HOME_CHANGES)
    }

    /// Whether lanes can use elements at the home.
    fn is_reached(&self) -> bool {
        self.home != 0 && self.home.is_multiple_of(16)
    }

    /// `REGION_*` under such advice.
    pub fn region_flags(&self, advised: Advised, rank: u32) -> u32 {
        let array = self.array_flags(advised);
        let usage = match advised.usage {
            Advice::Sequential => layout::REGION_READ_ONCE | layout::REGION_ASCENDING,
            Advice::Random => layout::REGION_RANDOM,
            Advice::ReadOnce => layout::REGION_READ_ONCE,
            _ => 0,
        };
        layout::REGION_LIVE
            | usage
            | rank << layout::REGION_RANK_SHIFT
            | flag(self.kind.read_only, layout::REGION_READ_ONLY)
            | flag(self.kind.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.replicated, layout::REGION_REPLICATED)
            | flag(self.checked, layout::REGION_CHECKED)
            | flag(array & layout::ARRAY_DUELS != 0, layout::REGION_DUELS)
            | flag(
                array & layout::ARRAY_FETCH_WHILE_FREE != 0,
                layout::REGION_FETCH_WHILE_FREE,
            )
    }
}

fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

/// The placement that such `ARRAY_*` come to.
pub(crate) fn placement_of(array_flags: u32) -> Placement {
    let has = |flag| array_flags & flag != 0;
    match (
        has(layout::ARRAY_IN_PLACE),
        has(layout::ARRAY_FETCH_WHILE_FREE),
        has(layout::ARRAY_DUELS),
    ) {
        _ if has(layout::ARRAY_LOOKED_UP) => Placement::LookUp,
        (false, ..) => Placement::Fetch,
        (true, false, _) => Placement::InPlace,
        (true, true, false) => Placement::WhileFree,
        (true, true, true) => Placement::Auto,
    }
}
