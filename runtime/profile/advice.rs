//! Which advice would have helped. The rules are few and each has its figures; docs/PROFILE.md states them for users.

use super::{Profile, RegionProfile};

/// Fewer samples say nothing of use and order.
const SAMPLES_MIN: u32 = 8;
/// A region is small if this many of its size fit into the frames.
const SMALL: u64 = 4;
/// Neighbours whose first fetches have to be told apart before their order says anything.
const NEIGHBOURS_MIN: u64 = 16;

/// Advice for a region, in the words of `Region::advise`, or `Placement::Auto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    /// The region's name.
    pub region: String,
    /// `KeepResident`, `ReadOnce`, `Sequential`, `InPlace`, `Fetch`, or `Placement::Auto`.
    pub advice: &'static str,
    /// The figures that speak for it.
    pub because: String,
}

/// What the rules look at.
struct Figures {
    frames: u64,
    page_bytes: u64,
    samples: u64,
    /// Whether any page of any region had to leave: else the clock did not turn, and used pages look used for ever.
    scarce: bool,
    pages: u64,
    fetches: u64,
    /// Pages that were fetched.
    fetched: u64,
    evictions: u64,
    referenced: u64,
    written: bool,
}

/// A rule: the figures that speak for its advice, if they do.
type Rule = fn(&RegionProfile, &Figures) -> Option<(&'static str, String)>;

/// Each rule is asked about each region.
const RULES: [Rule; 5] = [keep_resident, read_once, sequential, leave_at_home, fetch];

/// Much used, and small: its frames are worth keeping.
fn keep_resident(region: &RegionProfile, f: &Figures) -> Option<(&'static str, String)> {
    (is_small_and_hot(f) && !region.never_evicted).then(|| {
        let because = format!(
            "its {} pages are at most a quarter of the frames, and were there and in use in {:.0} % of all samples",
            f.pages,
            share(f.referenced, f.fetched * f.samples)
        );
        ("KeepResident", because)
    })
}

fn is_small_and_hot(f: &Figures) -> bool {
    f.scarce && f.fetched > 0 && f.pages * SMALL <= f.frames && f.referenced * 2 >= f.fetched * f.samples
}

/// Fetched once, read, and gone: each page had a frame for longer than it was of use.
fn read_once(region: &RegionProfile, f: &Figures) -> Option<(&'static str, String)> {
    let once = f.fetched > 0 && f.fetches * 10 <= f.fetched * 11;
    let left = f.evictions * 2 >= f.fetched;
    (once && left && !f.written && !region.never_evicted).then(|| {
        let because = format!(
            "{} pages were fetched {} times and left their frames {} times: they are not needed again",
            f.fetched, f.fetches, f.evictions
        );
        ("ReadOnce", because)
    })
}

/// First fetched in ascending order: what comes next is known before it is missed.
fn sequential(region: &RegionProfile, _: &Figures) -> Option<(&'static str, String)> {
    let order = |pair: &[super::PageProfile]| Some((pair[0].first_fetch?, pair[1].first_fetch?));
    let told_apart = || {
        region
            .pages
            .windows(2)
            .filter_map(order)
            .filter(|(one, next)| one != next)
    };
    let (all, up) = (
        told_apart().count() as u64,
        told_apart().filter(|(one, next)| one < next).count() as u64,
    );
    (all >= NEIGHBOURS_MIN && up * 10 >= all * 9).then(|| {
        let because = format!("of {all} neighbours that came in different samples {up} came in ascending order");
        ("Sequential", because)
    })
}

/// Fetched again and again: a fetch costs more than it brings, or a part that stays would do better.
fn leave_at_home(region: &RegionProfile, f: &Figures) -> Option<(&'static str, String)> {
    let again = f.fetched > 0 && f.fetches >= f.fetched * 2;
    if !(again && region.read_only && region.placement == "fetch" && !region.never_evicted) || is_small_and_hot(f) {
        return None;
    }
    let (seen, used) = (region.stays_seen(), region.stays_used());
    // Where samples miss most stays they do not tell.
    let little = seen * 2 >= f.fetches && used * 4 <= seen;
    let because = format!(
        "each of {} pages was fetched {:.1} times, and used beyond that in {:.0} % of the stays that samples saw",
        f.fetched,
        f.fetches as f64 / f.fetched as f64,
        share(used, seen)
    );
    Some((if little { "InPlace" } else { "Placement::Auto" }, because))
}

/// Read in place more than fetching all of it would have cost, and there would be room.
fn fetch(region: &RegionProfile, f: &Figures) -> Option<(&'static str, String)> {
    let in_place = region.bytes_in_place();
    let costly = region.placement == "in-place" && in_place >= region.bytes.saturating_mul(2);
    costly.then(|| {
        let because = format!(
            "{in_place} bytes were read in place of a region of {}, in {} frames of {}",
            region.bytes, f.frames, f.page_bytes
        );
        (
            if f.pages <= f.frames {
                "Fetch"
            } else {
                "Placement::Auto"
            },
            because,
        )
    })
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64 * 100.0
}

impl Profile {
    /// The advice that would have helped, by rules: none where nothing speaks for any. `None`: there are too few samples to say, and a
    /// longer run or a shorter interval gives more.
    pub fn suggestions(&self) -> Option<Vec<Suggestion>> {
        let scarce = self.regions.iter().any(|region| region.evictions() > 0);
        let of_region = |region: &RegionProfile| {
            let figures = Figures {
                frames: self.frames,
                page_bytes: self.page_bytes,
                samples: u64::from(self.samples),
                scarce,
                pages: region.pages.len() as u64,
                fetches: region.fetches(),
                fetched: region.pages_fetched(),
                evictions: region.evictions(),
                referenced: region.referenced(),
                written: region.stays_written() > 0,
            };
            let told = RULES.iter().filter_map(|rule| rule(region, &figures));
            let told = told.map(|(advice, because)| Suggestion {
                region: region.name.clone(),
                advice,
                because,
            });
            told.collect::<Vec<_>>()
        };
        (self.samples >= SAMPLES_MIN).then(|| self.regions.iter().flat_map(of_region).collect())
    }
}
