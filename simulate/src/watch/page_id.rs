//! Page ids: the page, its region and replica, and its name.

use gpuvm_layouts as layout;

/// Where a page id names its replica.
const REPLICA_BITS: u64 = (layout::REPLICAS_MAX as u64 - 1) << layout::PAGE_ID_REPLICA_SHIFT;

/// The page of a page id, whichever replica that names.
pub(super) fn page_of(page_id: u64) -> u64 {
    page_id & !REPLICA_BITS
}

/// The replica that a page id names.
pub(super) fn replica_of(page_id: u64) -> u32 {
    ((page_id & REPLICA_BITS) >> layout::PAGE_ID_REPLICA_SHIFT) as u32
}

/// The region of a page id.
pub(crate) fn region_number(page_id: u64) -> u32 {
    (page_id >> layout::PAGE_ID_REGION_SHIFT) as u32 & (layout::REGIONS_MAX - 1)
}

/// A page in words, with the replica where that is not the first.
pub fn page_name(page_id: u64) -> String {
    let (page, region) = (page_id & (layout::REGION_PAGES_MAX - 1), region_number(page_id));
    match replica_of(page_id) {
        0 => format!("page {page} of region {region}"),
        replica => format!("page {page} of region {region} in replica {replica}"),
    }
}

/// Whether two page ids are about one page.
pub(crate) fn is_same_page(one: u64, other: u64) -> bool {
    page_of(one) == page_of(other)
}
