//! Where a region's pages are read.

use std::{fmt, str::FromStr};

/// What a kernel's access to an element does with a page that has no frame. It never changes results; prefetches fetch the page under each.
///
/// Unless told otherwise, regions are looked up ([`LookUp`](Self::LookUp)) where lanes reach their home by loads
/// ([`Transport::Direct`](crate::Transport::Direct)), the home begins at a multiple of 16 bytes, and nothing else keeps pages: neighbours that lend
/// memory, checksums, a second copy, frames of their own. All others are fetched ([`Fetch`](Self::Fetch)), whatever is asked. Of those whose home lanes do not
/// reach (memory nodes, NICs, files larger than memory), and for which `LookUp` was asked, or on an NVIDIA GPU nothing, launches look pages up all the same while all pages of all arrays of
/// the launch have frames ([`Effective::while_resident`]).
///
/// Under [`InPlace`](Self::InPlace), [`WhileFree`](Self::WhileFree) and [`Auto`](Self::Auto) stores and atomics
/// fetch their page always, but for stores under [`Advice::WriteOnce`](crate::Advice::WriteOnce). Reads in place go through the L1 cache where the region is
/// [read-only](crate::RegionBuilder::read_only). In one that kernels write each goes to the home, with two looks at the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The GPU decides for each page. It is fetched while frames are free. Then three rules compete, each on a sample of the pages: that
    /// no page displaces another, that each page is fetched, and that a page is fetched whose reads in place have cost as much as a
    /// fetch and displaces one that was not used of late. All other pages follow the rule that has cost least of late. A page above
    /// 4 KiB is read in place by the first lane, and fetched for the next one.
    Auto,
    /// The page is fetched, and another one leaves its frame when none is free. Right for data that is used again soon.
    Fetch,
    /// The element is read at the page's home, and the page stays there. Right for scattered reads of which each page sees few.
    InPlace,
    /// The page is fetched while frames are free, and read in place from then on. What came first stays: right for cycles that are
    /// larger than the frames, such as a graph that is searched level by level.
    WhileFree,
    /// The page is looked up, and the element is used where it is: in its frame, or at its home, stores and atomics too. Within a launch
    /// no page goes, and none comes but to arrays that it only reads ([`VmBuilder::bring_beside`](crate::VmBuilder::bring_beside)); between launches those that were used at home come into frames that are free, and displace some of those that are
    /// used less. Where all arrays of a launch
    /// are placed so, `a[i]` is a reference to plain memory, and costs little more. Otherwise, and in kernels that their user compiled,
    /// as [`WhileFree`](Self::WhileFree). Where an array's pages all have frames that follow each other, launches use it as plain memory, and what
    /// such a launch may write counts as written as a whole. A kernel is compiled again for arrays that frames do not hold together, for the first launch that finds all
    /// pages in frames, for plain memory, and for the first that fetches. An index past the end does not stop a launch, and is told when it has ended;
    /// not so a load of plain memory on an NVIDIA GPU, unless `GPUVM_CHECK_LOADS` is defined: it reads anything, or is an error of the GPU. Launches on one GPU that look pages up and
    /// those that fetch them wait for each other, and uses at home are not counted in [`Stats::bytes_in_place`](crate::Stats::bytes_in_place).
    LookUp,
}

/// Where pages of a region are used, once it was decided: [`Region::effective`](crate::Region::effective).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effective {
    /// What was asked: of the region's builder, or by the last advice. None: pages are looked up where they can be, and fetched otherwise.
    pub asked: Option<Placement>,
    /// What launches do.
    pub placement: Placement,
    /// Why that is not what was asked, if it is not.
    pub because: Option<&'static str>,
    /// Whether launches look its pages up, as under [`Placement::LookUp`], while all pages of all their arrays have frames, and do as `placement` says else.
    pub while_resident: bool,
    /// Whether stores to pages without a frame go to their home ([`Advice::WriteOnce`](crate::Advice::WriteOnce)).
    pub stores_in_place: bool,
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.placement.fmt(f)?;
        if let (Some(asked), Some(because)) = (self.asked, self.because) {
            write!(f, ", and not {asked}: {because}")?;
        }
        match self.while_resident {
            true => f.write_str("; looked up while all pages have frames"),
            false => Ok(()),
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
