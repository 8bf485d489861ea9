//! How kernels will use a region, as the program says.

use std::str::FromStr;

use crate::placement::Placement;

/// How kernels will use a region: [`Region::advise`](super::Region::advise).
///
/// Where queue pairs bring the pages, a warp whose faults come a stride apart, three times in a row and up to 512 pages each, *reads
/// ahead*: it begins to fetch the pages to which the stride leads, as many as it walks in the time of two fetches, up to 16 and up to
/// 1 MiB, a page at least. They take free frames and those of pages that were not used since the clock saw them last, and no other.
/// Over [`Transport::Direct`](crate::Transport::Direct) nothing is read ahead: the warp would copy those pages itself, and wait for
/// them.
///
/// [`Sequential`](Self::Sequential), [`Random`](Self::Random), [`ReadOnce`](Self::ReadOnce), [`KeepResident`](Self::KeepResident) and
/// [`WriteOnce`](Self::WriteOnce) replace each other, and so do [`InPlace`](Self::InPlace) and [`Fetch`](Self::Fetch);
/// [`Normal`](Self::Normal) takes both kinds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Advice {
    /// Nothing is known: whatever was advised before is taken back, and pages are placed as the region was made
    /// ([`RegionBuilder::placement`](super::RegionBuilder::placement)).
    #[default]
    Normal,
    /// Pages are used in ascending order, each for a short time: as [`ReadOnce`](Self::ReadOnce), and the first fault of a warp reads
    /// ahead.
    Sequential,
    /// Pages are used in no order: nothing is read ahead.
    Random,
    /// Each page is used for a short time, and not again: its use does not protect it from leaving its frame. The clock takes such pages
    /// as soon as it meets them, and for a page of such a region it takes another of that kind if one is near, so that a stream passes
    /// through few frames and leaves other regions theirs. Wrong for pages that are used again: they are fetched again.
    ReadOnce,
    /// Pages leave when no others can: as those of a region whose priority is above all, see
    /// [`Region::set_priority`](super::Region::set_priority).
    KeepResident,
    /// Elements are stored once, and not used again soon: a store (`a[i] = v`) to a page without a frame goes to the page's home, past
    /// the frames, which fetches and writes back nothing. All other accesses of the region, and stores to a page that has a frame, are
    /// what they were. Right for results that are scattered over more pages than there are frames, or stored in full and in order.
    /// Wrong for elements that are stored again and again. Ignored where reads in place are
    /// ([`Placement::InPlace`]), and by a region that is [read-only](super::RegionBuilder::read_only).
    WriteOnce,
    /// Later launches read the elements of pages without a frame where the pages live, as [`Placement::InPlace`] says. Ignored where that
    /// is ignored.
    InPlace,
    /// Later launches fetch the pages that they use, as [`Placement::Fetch`] says.
    Fetch,
}

impl FromStr for Advice {
    type Err = String;

    /// The variant's name in lower case, with `-` or `_` between its words: `read-once`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match &*text.replace('_', "-") {
            "normal" => Self::Normal,
            "sequential" => Self::Sequential,
            "random" => Self::Random,
            "read-once" => Self::ReadOnce,
            "keep-resident" => Self::KeepResident,
            "write-once" => Self::WriteOnce,
            "in-place" => Self::InPlace,
            "fetch" => Self::Fetch,
            _ => {
                return Err(format!(
                    "`{text}` is none of normal, sequential, random, read-once, keep-resident, write-once, in-place, fetch"
                ));
            }
        })
    }
}

/// What was advised last of each kind.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Advised {
    pub usage: Advice,
    /// In place of what the region was made with.
    pub placement: Option<Placement>,
}

impl Advised {
    pub fn after(self, advice: Advice) -> Self {
        match advice {
            Advice::Normal => Self::default(),
            Advice::InPlace => Self {
                placement: Some(Placement::InPlace),
                ..self
            },
            Advice::Fetch => Self {
                placement: Some(Placement::Fetch),
                ..self
            },
            usage => Self { usage, ..self },
        }
    }

    /// Whether pages stay as long as pages of other regions can leave, whatever those regions' priorities.
    pub fn keeps_resident(self) -> bool {
        self.usage == Advice::KeepResident
    }

    /// Whether elements are stored where pages without a frame live, if lanes can.
    pub fn stores_in_place(self) -> bool {
        self.usage == Advice::WriteOnce
    }
}
