//! The rules of a page's entry: which single accesses may turn one value into another.

use gpuvm_layouts as layout;
use layout::{
    DIRTY_BIT, FRAME_MASK, FRAME_SHIFT, PIN_SHIFT, REFERENCED_BIT, STATE_MASK, STATE_SHIFT, VERSION_MASK,
    VERSION_SHIFT, WRITE_BACK_BIT,
};

const ABSENT: u64 = layout::STATE_ABSENT << STATE_SHIFT;
const FETCHING: u64 = layout::STATE_FETCHING << STATE_SHIFT;
const RESIDENT: u64 = layout::STATE_RESIDENT << STATE_SHIFT;
const ERROR: u64 = layout::STATE_ERROR << STATE_SHIFT;

/// Pins of a word.
pub fn pins(word: u64) -> u64 {
    word >> PIN_SHIFT
}

/// The frame field of a word.
pub fn frame(word: u64) -> u32 {
    ((word & FRAME_MASK) >> FRAME_SHIFT) as u32
}

/// Whether the page's data is in its frame.
pub fn is_resident(word: u64) -> bool {
    word & STATE_MASK == RESIDENT
}

/// Whether a fetch owns the page.
pub fn is_fetching(word: u64) -> bool {
    word & STATE_MASK == FETCHING
}

/// A word in words.
pub fn describe(word: u64) -> String {
    let state = match word & STATE_MASK {
        ABSENT if frame(word) != 0 => format!("absent (count, or slot + 1: {:#x})", frame(word)),
        ABSENT => "absent".to_owned(),
        FETCHING => format!("fetching (token {:#x})", frame(word)),
        RESIDENT => format!("resident in frame {}", frame(word)),
        _ => format!("failed (code {:#x})", frame(word)),
    };
    let mut text = format!("{state}, version {}", (word & VERSION_MASK) >> VERSION_SHIFT);
    if pins(word) != 0 {
        text.push_str(&format!(", pins {}", pins(word)));
    }
    for (bit, name) in [
        (DIRTY_BIT, ", dirty"),
        (WRITE_BACK_BIT, ", write-back"),
        (REFERENCED_BIT, ", referenced"),
    ] {
        if word & bit != 0 {
            text.push_str(name);
        }
    }
    text
}

/// What one access did to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Only hints, pins that come and go, or a request's token.
    Nothing,
    /// A fetch claimed the page.
    Claimed,
    /// The page is in its frame, perhaps written already.
    Published,
    /// The fetch failed.
    Failed,
    /// The claim was taken back, or an error forgotten.
    Reverted,
    /// The page left its frame.
    Evicted,
    /// The slot of an absent page, whose home is to change, is free.
    VictimDropped,
    /// The slot of an absent page is another page's from now on.
    VictimDisplaced,
    /// A store is to follow.
    Dirtied,
    /// A write-back began that makes the page clean.
    CleanBegun,
    /// A write-back began beside holders.
    SnapshotBegun,
    /// A write-back ended; the page is clean unless it was written since.
    WriteBackEnded,
}

/// The rule that a change of a word breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

/// Names the change from `old` to `new`, which one access made, or the rule that it breaks. A page that is not `evictable` has a
/// frame of its own, and is written without a pin.
///
/// # Errors
/// The rule.
pub fn transition(old: u64, new: u64, evictable: bool) -> Result<Transition, Broken> {
    let changed = old ^ new;
    let moved = changed & FRAME_MASK != 0;
    let version = changed & VERSION_MASK != 0;
    let dirtied = changed & new & DIRTY_BIT != 0;
    match (old & STATE_MASK, new & STATE_MASK) {
        (RESIDENT, RESIDENT) if moved || version => Err(Broken("a resident page changed its frame or version")),
        (RESIDENT, RESIDENT) => while_resident(old, new, evictable),
        (RESIDENT, ABSENT) => eviction(old, new),
        (RESIDENT, _) => Err(Broken("a resident page became something else without an eviction")),
        (ABSENT, FETCHING) if version || dirtied || pins(old) != pins(new) => {
            Err(Broken("a claim changed more than the state of its page"))
        }
        (ABSENT, FETCHING) if new & FRAME_MASK != 0 => {
            Err(Broken("a claim left the count of reads in place of the token"))
        }
        (ABSENT, FETCHING) => Ok(Transition::Claimed),
        (FETCHING, RESIDENT) if version => Err(Broken("a publication changed the version")),
        (FETCHING, RESIDENT) if pins(new) < pins(old) => Err(Broken("a publication lost pins of others")),
        (FETCHING, RESIDENT) => Ok(Transition::Published),
        (FETCHING, ABSENT | ERROR) if version || dirtied || pins(old) != pins(new) => {
            Err(Broken("the end of a fetch changed pins or version of its page"))
        }
        (FETCHING, ABSENT) if new & FRAME_MASK != 0 => {
            Err(Broken("a fetch that ended left its token in place of a count"))
        }
        (FETCHING, ABSENT) => Ok(Transition::Reverted),
        (FETCHING, ERROR) => Ok(Transition::Failed),
        (ERROR, ABSENT) => Ok(Transition::Reverted),
        (ABSENT, ABSENT) | (FETCHING, FETCHING) | (ERROR, ERROR) => {
            // An absent page counts the reads at its home there.
            let (absent, token) = (new & STATE_MASK == ABSENT, new & STATE_MASK == FETCHING);
            if version || (moved && !token && !absent) {
                Err(Broken("a page without a frame changed its frame or version"))
            } else if dirtied {
                Err(Broken("a page without a frame was made dirty"))
            } else {
                Ok(Transition::Nothing)
            }
        }
        _ => Err(Broken("a page without a frame became something else without a claim")),
    }
}

/// [`transition`] of a page whose word, while it is absent, may name a slot at a neighbour.
///
/// # Errors
/// The rule.
pub fn transition_with_victim(old: u64, new: u64, evictable: bool) -> Result<Transition, Broken> {
    let plain = |word: u64| word & !FRAME_MASK;
    let counts = |word: u64| frame(word) & layout::USE_BIT != 0;
    let next_version = (old & VERSION_MASK).wrapping_add(1 << VERSION_SHIFT) & VERSION_MASK;
    match (old & STATE_MASK, new & STATE_MASK) {
        (RESIDENT, ABSENT) if victim(new).is_some() && old & WRITE_BACK_BIT == 0 => {
            Err(Broken("a page left its frame for a slot without the mark of its copy"))
        }
        // Under the evictor's own mark, which it has made also where no slot is free.
        (RESIDENT, ABSENT) => transition(old & !WRITE_BACK_BIT, plain(new), evictable),
        // A claim takes the slot out of the word, and one that is taken back puts it in again.
        (FETCHING, ABSENT) => transition(old, plain(new), evictable),
        (ABSENT, ABSENT) if victim(old) == victim(new) => transition(old, new, evictable),
        (ABSENT, ABSENT) if victim(old).is_some() && pins(old) == 0 && new == next_version => {
            Ok(Transition::VictimDropped)
        }
        // The field counts fetches then.
        (ABSENT, ABSENT) if victim(old).is_some() && counts(new) && plain(old) == plain(new) => {
            Ok(Transition::VictimDisplaced)
        }
        (ABSENT, ABSENT) => Err(Broken("an absent page changed its slot")),
        _ => transition(old, new, evictable),
    }
}

/// The slot at a neighbour that an absent page's entry names.
pub fn victim(word: u64) -> Option<u32> {
    (word & STATE_MASK == ABSENT).then(|| frame(word)).and_then(slot)
}

/// The slot that a frame field names, which may count fetches instead.
pub fn slot(field: u32) -> Option<u32> {
    let counts = field & layout::USE_BIT != 0;
    field.checked_sub(1).filter(|_| !counts)
}

/// Names the change of the pins and marks of a page that stays in its frame.
fn while_resident(old: u64, new: u64, evictable: bool) -> Result<Transition, Broken> {
    let changed = old ^ new;
    let (dirtied, cleaned) = (changed & new & DIRTY_BIT != 0, changed & old & DIRTY_BIT != 0);
    let (marked, unmarked) = (changed & new & WRITE_BACK_BIT != 0, changed & old & WRITE_BACK_BIT != 0);
    let pinned = pins(old) != pins(new);
    match (dirtied, cleaned, marked, unmarked) {
        (false, false, false, false) => Ok(Transition::Nothing),
        _ if pinned => Err(Broken("one access changed pins and marks of a page")),
        (true, false, false, false) if pins(old) != 0 => Ok(Transition::Dirtied),
        // The write-back failed: dirty again, before its mark goes.
        (true, false, false, false) if old & WRITE_BACK_BIT != 0 => Ok(Transition::Dirtied),
        (true, false, false, false) if !evictable => Ok(Transition::Dirtied),
        (true, false, false, false) => Err(Broken("a page was made dirty without a pin")),
        (false, true, true, false) if pins(old) == 0 => Ok(Transition::CleanBegun),
        (false, true, true, false) => Err(Broken("a page was cleaned while it was pinned")),
        (false, true, ..) => Err(Broken("a dirty page became clean although no write-back began")),
        (false, false, true, false) => Ok(Transition::SnapshotBegun),
        (false, false, false, true) => Ok(Transition::WriteBackEnded),
        _ => Err(Broken("one access changed several marks of a page")),
    }
}

/// Names the change of a resident page's entry to an absent one's.
fn eviction(old: u64, new: u64) -> Result<Transition, Broken> {
    let next_version = (old & VERSION_MASK).wrapping_add(1 << VERSION_SHIFT) & VERSION_MASK;
    if pins(old) != 0 {
        Err(Broken("a pinned page was evicted"))
    } else if old & DIRTY_BIT != 0 {
        Err(Broken("a dirty page was evicted"))
    } else if old & WRITE_BACK_BIT != 0 {
        Err(Broken("a page was evicted while it is written back"))
    } else if new & VERSION_MASK != next_version {
        Err(Broken("an eviction did not count the version up by one"))
    } else if new & !(VERSION_MASK | REFERENCED_BIT) != 0 {
        Err(Broken("an evicted page keeps a frame, pins or marks"))
    } else {
        Ok(Transition::Evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: u64 = 1 << PIN_SHIFT;

    fn resident(frame: u64) -> u64 {
        RESIDENT | frame << FRAME_SHIFT | 5 << VERSION_SHIFT
    }

    #[test]
    fn the_protocols_own_changes_are_named() {
        let at = resident(3);
        let absent = 6 << VERSION_SHIFT;
        for (old, new, name) in [
            (absent, absent | FETCHING, Transition::Claimed),
            (
                absent | FETCHING,
                absent | RESIDENT | 9 << FRAME_SHIFT | PIN,
                Transition::Published,
            ),
            (absent | FETCHING, absent | ERROR | 9 << FRAME_SHIFT, Transition::Failed),
            (absent | FETCHING, absent, Transition::Reverted),
            (at, at + PIN, Transition::Nothing),
            (at + PIN, (at + PIN) | DIRTY_BIT, Transition::Dirtied),
            (at | DIRTY_BIT, at | WRITE_BACK_BIT, Transition::CleanBegun),
            (
                (at + PIN) | DIRTY_BIT,
                (at + PIN) | DIRTY_BIT | WRITE_BACK_BIT,
                Transition::SnapshotBegun,
            ),
            (
                at | WRITE_BACK_BIT,
                at | DIRTY_BIT | WRITE_BACK_BIT,
                Transition::Dirtied,
            ),
            (at | WRITE_BACK_BIT, at, Transition::WriteBackEnded),
            (at, absent, Transition::Evicted),
            (at, at | REFERENCED_BIT, Transition::Nothing),
        ] {
            assert_eq!(
                transition(old, new, true),
                Ok(name),
                "{} -> {}",
                describe(old),
                describe(new)
            );
        }
    }

    #[test]
    fn an_absent_page_has_its_slot_until_it_is_claimed_or_dropped() {
        let (at, absent) = (resident(3), 6 << VERSION_SHIFT);
        let kept = absent | 5 << FRAME_SHIFT;
        let counting = absent | u64::from(layout::USE_BIT | 5) << FRAME_SHIFT;
        assert_eq!((victim(kept), victim(absent), victim(at)), (Some(4), None, None));
        assert_eq!(victim(counting), None);
        for (old, new, name) in [
            (at | WRITE_BACK_BIT, kept, Transition::Evicted),
            (at, absent, Transition::Evicted),
            (kept, absent | FETCHING, Transition::Claimed),
            (absent | FETCHING, kept, Transition::Reverted),
            (kept, kept + PIN, Transition::Nothing),
            (kept, absent + (1 << VERSION_SHIFT), Transition::VictimDropped),
            (at | WRITE_BACK_BIT, counting, Transition::Evicted),
            (counting, absent | FETCHING, Transition::Claimed),
            (absent | FETCHING, counting, Transition::Reverted),
            (kept, counting, Transition::VictimDisplaced),
        ] {
            assert_eq!(transition_with_victim(old, new, true), Ok(name), "{}", describe(old));
        }
        for (old, new, rule) in [
            (at, kept, "without the mark"),
            (at | WRITE_BACK_BIT | DIRTY_BIT, kept, "dirty page was evicted"),
            (kept, absent, "changed its slot"),
            (absent, kept, "changed its slot"),
            (counting, kept, "changed its slot"),
            (kept, kept | FETCHING, "in place of the token"),
        ] {
            let broken = transition_with_victim(old, new, true).expect_err(rule);
            assert!(broken.0.contains(rule), "{} for {rule}", broken.0);
        }
    }

    #[test]
    fn every_rule_can_be_broken() {
        let at = resident(3);
        let absent = 6 << VERSION_SHIFT;
        for (old, new, rule) in [
            (at, at + (1 << FRAME_SHIFT), "changed its frame"),
            (at, at | DIRTY_BIT, "without a pin"),
            (at, (at + PIN) | DIRTY_BIT, "pins and marks"),
            (
                (at + PIN) | DIRTY_BIT,
                (at + PIN) | WRITE_BACK_BIT,
                "while it was pinned",
            ),
            (at | DIRTY_BIT, at, "no write-back began"),
            (at | DIRTY_BIT | WRITE_BACK_BIT, at, "no write-back began"),
            (at + PIN, absent, "pinned page was evicted"),
            (at | DIRTY_BIT, absent, "dirty page was evicted"),
            (at | WRITE_BACK_BIT, absent, "written back"),
            (at, 5 << VERSION_SHIFT, "version up by one"),
            (at, absent | 1 << FRAME_SHIFT, "keeps a frame"),
            (at, at ^ RESIDENT ^ FETCHING, "without an eviction"),
            (absent, absent | RESIDENT, "without a claim"),
            (absent, absent + (1 << VERSION_SHIFT), "changed its frame or version"),
            ((absent + PIN) | FETCHING, absent | RESIDENT, "lost pins"),
            (absent, absent | DIRTY_BIT, "made dirty"),
            ((absent | FETCHING) + PIN, absent | FETCHING | DIRTY_BIT, "made dirty"),
        ] {
            let broken = transition(old, new, true).expect_err(rule);
            assert!(broken.0.contains(rule), "{} for {rule}", broken.0);
        }
    }
}
