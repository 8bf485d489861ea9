//! Where a region's pages are read.

use std::{fmt, str::FromStr};

use bytemuck::Zeroable;
use gpuvm_layouts as layout;

use crate::{
    error::Result,
    gpu::{PagedGpu, ReadCosts, measure_reads},
    pages::Pages,
};

/// What a kernel's read of an element, `a[i]`, by a reader or by a cursor, does with a page that has no frame. It never changes
/// results; spans and prefetches fetch the page under each.
///
/// Pages can be read in place where lanes reach their home by loads ([`Transport::Direct`](crate::Transport::Direct)) and the home
/// begins at a multiple of 16 bytes. In any other region, and in one that is never evicted, each of these fetches. Stores and atomics
/// fetch their page always, but for stores under [`Advice::WriteOnce`](super::Advice::WriteOnce). Reads in place go through the L1 cache where the region is
/// [read-only](super::RegionBuilder::read_only). In one that kernels write each goes to the home, with two looks at the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The GPU decides for each page. It is fetched while frames are free. Then three rules compete, each on a sample of the pages: that
    /// no page displaces another, that each page is fetched, and that a page is fetched whose reads in place have cost as much as a
    /// fetch and displaces one that was not used of late. All other pages follow the rule that has cost least of late. A page above
    /// 4 KiB is read in place by the first lane, and fetched for the next one.
    Auto,
    /// The page is fetched, and another one leaves its frame when none is free. Right for data that is used again soon.
    #[default]
    Fetch,
    /// The element is read at the page's home, and the page stays there. Right for scattered reads of which each page sees few.
    InPlace,
    /// The page is fetched while frames are free, and read in place from then on. What came first stays: right for cycles that are
    /// larger than the frames, such as a graph that is searched level by level.
    WhileFree,
    /// The page is looked up, and the element is used where it is: in its frame, or at its home, stores and atomics too. Within a launch
    /// no page comes or goes; between launches those that were used at home come into frames that are free, and displace some of those that are
    /// used less. Where all arrays of a launch
    /// are placed so, `a[i]` is a reference to plain memory, and costs little more. Otherwise, and in kernels that their user compiled,
    /// as [`WhileFree`](Self::WhileFree). The first such launch compiles the kernel a second time, and the first one that finds all pages in
    /// frames once more. An index past the end does not stop a launch, and is told when it has ended. Launches on one GPU that look pages up and
    /// those that fetch them wait for each other, and uses at home are not counted in [`Stats::bytes_in_place`](crate::Stats::bytes_in_place).
    LookUp,
}

/// Where pages of a region are used, once it was decided: [`Region::effective`](super::Region::effective).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effective {
    /// What was asked: of the region's builder, or by the last advice.
    pub asked: Placement,
    /// What launches do.
    pub placement: Placement,
    /// Why that is not what was asked, if it is not.
    pub because: Option<&'static str>,
    /// Whether stores to pages without a frame go to their home ([`Advice::WriteOnce`](super::Advice::WriteOnce)).
    pub stores_in_place: bool,
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.placement.fmt(f)?;
        match self.because {
            Some(because) => write!(f, ", and not {}: {because}", self.asked),
            None => Ok(()),
        }
    }
}

impl Placement {
    /// Its name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fetch => "fetch",
            Self::InPlace => "in-place",
            Self::WhileFree => "while-free",
            Self::LookUp => "look-up",
        }
    }
}

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

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Placement {
    type Err = String;

    /// Its [`name`](Self::name), with `-` or `_` between the words.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Auto, Self::Fetch, Self::InPlace, Self::WhileFree, Self::LookUp];
        all.into_iter()
            .find(|placement| placement.name() == text.replace('_', "-"))
            .ok_or_else(|| format!("`{text}` is none of auto, fetch, in-place, while-free, look-up"))
    }
}
