//! What the head of a region's page table says of reads at the home when no page is resident.

use bytemuck::Zeroable;
use gpuvm_layouts as layout;

use crate::{
    error::Result,
    gpu::{PagedGpu, ReadCosts, measure_reads},
    pages::Pages,
};

/// What reads at the home `home` of such a region cost, where that is weighed, and how its page table begins. `flags`: `ARRAY_*`.
pub(super) fn begin(
    gpu: &PagedGpu,
    flags: u32,
    pages: &Pages,
    home: u64,
) -> Result<(Option<ReadCosts>, layout::TableHead)> {
    let costs = match flags & layout::ARRAY_DUELS {
        0 => None,
        _ => Some(measure_reads(gpu, home, pages.bytes())?),
    };
    let head = table_head(
        flags,
        pages.count(),
        gpu.frame_count(),
        gpu.page_shift(),
        costs.as_ref(),
    );
    Ok((costs, head))
}

/// What the head of a region's page table says of placement when no page is resident. `flags`: `ARRAY_*`.
fn table_head(flags: u32, pages: u64, frames: u32, page_shift: u32, costs: Option<&ReadCosts>) -> layout::TableHead {
    let mut head = layout::TableHead::zeroed();
    if let Some(costs) = costs {
        [head.near_read, head.scattered_read] = costs.weights(pages << page_shift);
        head.chunk_cost = layout::COST_UNIT;
        // Samples of 256 pages and more say enough; a larger part of the pages would cost as much as the worst rule does there.
        let block_shift = (pages / 256).max(1).ilog2().clamp(5, 9);
        head.sampling = u64::from(block_shift) << layout::SAMPLING_BLOCK_SHIFT;
        // The rules are compared each time when their samples have spent together what three quarters of one sample's frames cost to
        // fill, and some pages at least.
        let sampled = (u64::from(frames) * 3 / 4) >> block_shift;
        let chunks = sampled.max(64) << (page_shift - 4);
        head.period_shift = chunks.next_power_of_two().ilog2();
    }
    head.sampling |= u64::from(first_draws(flags, page_shift));
    head
}

/// How many reads at the home ask what to do with their page, at first. `flags`: `ARRAY_*`.
pub(super) fn first_draws(flags: u32, page_shift: u32) -> u32 {
    match flags & (layout::ARRAY_IN_PLACE | layout::ARRAY_FETCH_WHILE_FREE) {
        // Nothing is to be asked about pages that stay at home in any case.
        layout::ARRAY_IN_PLACE => layout::DRAWS_AT_HOME,
        _ => layout::draw_fetch(page_shift) * layout::DRAWS_ALIKE,
    }
}
