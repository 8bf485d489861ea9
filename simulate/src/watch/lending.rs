//! Changes of slots in memory that neighbours lend: whose each is, what it holds, and what a lender finds there after reclaiming it.

use std::collections::HashMap;

use gpuvm_layouts as layout;
use layout::{RegionDesc, VictimsDesc};

use super::event::What;
use super::memory::{Kind, differ, home_of, load, page_span, read};
use super::page_id::{page_name, region_number};
use super::slots::{HAS_IT_BACK, Lender, Slot, Slots};
use super::{WatchState, Watcher};
use crate::words::{self, Transition};

/// What a lender tells: somebody has written there for too long.
const STILL_WRITTEN: u64 = 3;

impl Watcher {
    /// The memory that is borrowed, once a region uses it.
    pub fn borrowed(&self) -> Option<VictimsDesc> {
        let mut state = self.lock();
        state.rebuild();
        state.slots.as_ref().map(|slots| slots.desc)
    }

    /// Address of the word of a region's first page.
    pub fn first_word(&self, region: u32) -> Option<u64> {
        let state = self.lock();
        let found = state.regions.iter().find(|(id, _)| *id == region);
        found.map(|(_, region)| region.words)
    }

    /// A lender will tell at `turns`, a word a chunk, how far it is with each: 1 when the loan ends, 2 before it stores `mark` into
    /// the first `used` words of every page and others, 3 when it gives up. Until [`lender_ends`](Self::lender_ends).
    pub fn lender_begins(&self, turns: u64, mark: u64, used: u64) {
        let mut state = self.lock();
        state.rebuild();
        if let Some(slots) = &mut state.slots {
            let seen = vec![None; slots.chunk_count() as usize];
            slots.lender = Some(Lender {
                turns,
                mark,
                used,
                seen,
                next: 0,
            });
        }
        state.rebuild();
    }

    /// All lenders are done: what they have back holds what they stored. How many chunks those are.
    ///
    /// # Errors
    /// Something else is there.
    pub fn lender_ends(&self) -> Result<u64, String> {
        let mut state = self.lock();
        for _ in 0..state.slots.as_ref().map_or(0, |slots| slots.desc.free.count) {
            state.look_at_lenders_memory();
        }
        if let Some(finding) = state.findings.first() {
            self.first.get_or_init(|| finding.clone());
        }
        let Some(slots) = &mut state.slots else { return Ok(0) };
        let Some(lender) = slots.lender.take() else {
            return Ok(0);
        };
        slots.back = lender.seen.iter().map(Option::is_some).collect();
        let mut back = 0;
        for (chunk, _) in (0..).zip(&lender.seen).filter(|(_, seen)| seen.is_some()) {
            back += 1;
            for slot in chunk << slots.desc.chunk_shift..(chunk + 1) << slots.desc.chunk_shift {
                let mut words = (0..lender.used).map(|n| load(slots.address(slot) + n * 8));
                if let Some(word) = words.position(|word| word != lender.mark) {
                    let what = format!("word {word} of slot {slot} is not what its lender stored there");
                    return Err(what);
                }
            }
        }
        state.looks.taken_back += back;
        state.rebuild();
        Ok(back)
    }
}

impl WatchState {
    pub(super) fn has_victims(&self, page_id: u64) -> bool {
        self.slots.is_some() && self.region_of(page_id).is_some_and(|region| region.victims != 0)
    }

    /// Takes the description of borrowed memory in, by the first region that uses it.
    pub(super) fn find_slots(&mut self) {
        let Some(desc) = self.desc else { return };
        let named = self.regions.iter().find(|(_, region)| region.victims != 0);
        if let (None, Some((_, region))) = (&self.slots, named) {
            self.slots = Some(Slots {
                desc: read(region.victims),
                page_bytes: 1 << desc.page_shift,
                frames: desc.pool.count,
                slots: Vec::new(),
                claimed: HashMap::new(),
                lender: None,
                back: Vec::new(),
            });
        }
    }

    /// Whose each slot is, from memory alone.
    pub(super) fn recount_slots(&mut self) {
        let Some(slots) = &mut self.slots else { return };
        slots.slots = vec![Slot::InHand; slots.desc.free.count as usize];
        let has_victims = |page_id| {
            let mut regions = self.regions.iter();
            let number = region_number(page_id);
            regions.any(|(id, region): &(u32, RegionDesc)| *id == number && region.victims != 0)
        };
        let mut twice = None;
        for frame in 0..slots.frames {
            let kept = slots.kept(frame);
            if let Some(held) = kept.and_then(|slot| slots.slots.get_mut(slot as usize)) {
                *held = Slot::Beside(frame);
            }
        }
        for (cell, kind) in self.cells.iter().zip(&self.kinds) {
            let (slot, becomes) = match *kind {
                Kind::SlotPlace if cell.seen >> 32 & 1 != 0 => (cell.seen as u32, Slot::Free),
                Kind::Word { page_id } if has_victims(page_id) => match words::victim(cell.seen) {
                    Some(slot) => (slot, Slot::Of(page_id)),
                    None => continue,
                },
                _ => continue,
            };
            let Some(held) = slots.slots.get_mut(slot as usize) else {
                continue;
            };
            // A page that leaves has its slot in its word before its frame forgets it.
            let leaves = matches!((*held, becomes), (Slot::Beside(_), Slot::Of(_)));
            if *held != Slot::InHand && !leaves {
                twice = Some((slot, *held, becomes));
            }
            *held = becomes;
        }
        if let Some((slot, one, other)) = twice {
            self.find(format!("slot {slot} is {one:?} and {other:?}"), (None, None, None));
        }
    }

    pub(super) fn slot_taken(&mut self, slot: u32) {
        if let Some(held) = self.slots.as_mut().and_then(|slots| slots.slots.get_mut(slot as usize)) {
            *held = Slot::InHand;
        }
    }

    /// What two frames keep changed.
    pub(super) fn slots_kept_changed(&mut self, first: u32, old: u64, new: u64) {
        for (frame, shift) in [(first, 0), (first + 1, 32)] {
            let (old, new) = (words::slot((old >> shift) as u32), words::slot((new >> shift) as u32));
            if old != new {
                self.slot_kept_changed(frame, old, new);
            }
        }
    }

    fn slot_kept_changed(&mut self, frame: u32, old: Option<u32>, new: Option<u32>) {
        let Some(slots) = &mut self.slots else { return };
        let mut wrong = None;
        // A page that has left with its slot has it in its word. A lane's two stores, which forget the one and keep another, may show together.
        let before = old.and_then(|slot| Some((slot, slots.slots.get_mut(slot as usize)?)));
        if let Some((slot, held)) = before.filter(|(_, held)| **held == Slot::Beside(frame)) {
            *held = Slot::InHand;
            wrong = new.is_some().then(|| format!("and forgets slot {slot}"));
        }
        let Some(slot) = new else { return };
        match slots.slots.get_mut(slot as usize) {
            Some(held @ Slot::InHand) => *held = Slot::Beside(frame),
            held => wrong = Some(format!("which is {held:?}")),
        }
        if let Some(wrong) = wrong {
            let what = format!("frame {frame} keeps slot {slot}, {wrong}");
            self.find(what, (None, Some(frame), None));
        }
    }

    /// The frame goes to the pool.
    pub(super) fn frame_leaves_slot(&mut self, frame: u32) {
        let Some(slot) = self.slots.as_ref().and_then(|slots| slots.kept(frame)) else {
            return;
        };
        let what = format!("frame {frame} went to the pool and keeps slot {slot}");
        self.find(what, (None, Some(frame), None));
    }

    pub(super) fn slot_list_changed(&mut self, old: u64, new: u64) {
        self.looks.slots += 1;
        if new >> 32 <= old >> 32 {
            let what = format!("a place for free slots went from lap {} to {}", old >> 32, new >> 32);
            self.find(what, (None, None, None));
        }
        if old >> 32 & 1 != 0 {
            self.tell(What::SlotTaken { slot: old as u32 });
        }
        let Some(slots) = self.slots.as_mut().filter(|_| new >> 32 & 1 != 0) else {
            return;
        };
        let slot = new as u32;
        slots.claimed.retain(|_, claimed| *claimed != slot);
        let held = slots.slots.get_mut(slot as usize);
        match held.map(|held| std::mem::replace(held, Slot::Free)) {
            Some(Slot::InHand) => {}
            Some(Slot::Of(page_id)) => self.find(
                format!("slot {slot} became free while {} is in it", page_name(page_id)),
                (Some(page_id), None, None),
            ),
            Some(Slot::Beside(frame)) => self.find(
                format!("slot {slot} became free while frame {frame} keeps it"),
                (None, Some(frame), None),
            ),
            Some(Slot::Free) => self.find(format!("slot {slot} became free twice"), (None, None, None)),
            None => self.find(format!("slot {slot}, which is none, became free"), (None, None, None)),
        }
        self.tell(What::SlotGiven { slot });
    }

    /// A page's entry changed, which may name a slot.
    pub(super) fn victim_changed(&mut self, page_id: u64, old: u64, new: u64, transition: Transition) {
        let Some(slots) = &mut self.slots else { return };
        match (words::victim(old), words::victim(new)) {
            // The lane that has claimed the page has the slot.
            (Some(slot), None) => {
                if let Some(held) = slots.slots.get_mut(slot as usize) {
                    *held = Slot::InHand;
                }
                // Else it is the lane's that has displaced the page.
                if transition != Transition::VictimDisplaced {
                    slots.claimed.insert(page_id, slot);
                }
                self.same_in_slot(page_id, slot, "left its slot");
            }
            (None, Some(slot)) => self.kept_in(page_id, old, slot),
            (None, None) if matches!(transition, Transition::Published | Transition::Reverted) => {
                let left = slots.claimed.remove(&page_id);
                let frame = words::frame(new);
                let kept = match transition {
                    Transition::Published => slots.kept(frame),
                    _ => None,
                };
                if let Some(slot) = left.filter(|&slot| slots.is_lent(slot) && kept != left) {
                    let what = format!("the slot {slot} of {} was not given back", page_name(page_id));
                    self.find(what, (Some(page_id), None, None));
                }
                if let Some(slot) = kept.filter(|_| kept != left) {
                    let what = format!("{} came to frame {frame}, which keeps slot {slot}", page_name(page_id));
                    self.find(what, (Some(page_id), Some(frame), None));
                }
            }
            _ => {}
        }
    }

    /// The page's entry names the slot from now on.
    fn kept_in(&mut self, page_id: u64, old: u64, slot: u32) {
        let Some(slots) = &mut self.slots else { return };
        slots.claimed.remove(&page_id);
        let held = slots.slots.get_mut(slot as usize);
        let wrong = match held.map(|held| std::mem::replace(held, Slot::Of(page_id))) {
            Some(Slot::InHand) => None,
            Some(Slot::Beside(frame)) if words::is_resident(old) && words::frame(old) == frame => None,
            Some(Slot::Beside(frame)) => Some(format!("which frame {frame} keeps")),
            Some(Slot::Of(other)) => Some(format!("where {} is", page_name(other))),
            Some(Slot::Free) => Some("which is free".to_owned()),
            None => Some("which is none".to_owned()),
        };
        if let Some(wrong) = wrong {
            let what = format!("{} was kept in slot {slot}, {wrong}", page_name(page_id));
            self.find(what, (Some(page_id), None, None));
        }
        self.same_in_slot(page_id, slot, "was kept");
    }

    /// A slot whose memory is lent holds what the page's home holds.
    fn same_in_slot(&mut self, page_id: u64, slot: u32, event: &str) {
        let (Some(desc), Some(slots), Some(region)) = (self.desc, &self.slots, self.region_of(page_id)) else {
            return;
        };
        let Some(home) = home_of(region, 0).filter(|_| slot < slots.desc.free.count && !slots.is_back(slot)) else {
            return;
        };
        // Another GPU may have written the home: what is old is dropped before the next launch here. What was given back holds anything, but where
        // launches look pages up.
        let is_ended = !slots.is_lent(slot) && region.flags & layout::REGION_PLACES == 0;
        if self.others || is_ended {
            return;
        }
        let (start, bytes) = page_span(&desc, region, page_id & (layout::REGION_PAGES_MAX - 1));
        let byte = differ(slots.address(slot), home + start, bytes);
        self.looks.victims += 1;
        if let Some(byte) = byte {
            let page = page_name(page_id);
            let what = format!("{page} {event}, but its slot {slot} and its home differ from byte {byte} on");
            self.find(what, (Some(page_id), None, None));
        }
    }

    /// A lender tells how far it is with a chunk.
    pub(super) fn lender_went_on(&mut self, chunk: u32, turn: u64) {
        self.tell(What::TakenBack { chunk, turn });
        let Some(slots) = &mut self.slots else { return };
        if turn == STILL_WRITTEN {
            let what = format!("chunk {chunk} has writers long after its loan has ended");
            return self.find(what, (None, None, None));
        }
        let words = u64::from(slots.chunk_slots()) * slots.page_bytes / 8;
        let first = slots.address(chunk << slots.desc.chunk_shift);
        if let Some(lender) = slots.lender.as_mut().filter(|_| turn == HAS_IT_BACK) {
            lender.seen[chunk as usize] = Some((0..words).map(|n| load(first + n * 8)).collect());
        }
    }

    /// A lender's memory changes by its own stores alone: one slot is looked at each time.
    pub(super) fn look_at_lenders_memory(&mut self) {
        let Some(slots) = &mut self.slots else { return };
        let (shift, count) = (slots.desc.chunk_shift, slots.desc.free.count);
        let Some(lender) = &mut slots.lender else { return };
        let slot = lender.next % count;
        lender.next = slot + 1;
        if lender.seen[(slot >> shift) as usize].is_none() {
            return;
        }
        let page_words = slots.page_bytes as usize / 8;
        let (at, mark) = (
            slots.address(slot),
            slots.lender.as_ref().map_or(0, |lender| lender.mark),
        );
        let Some(seen) = slots
            .lender
            .as_mut()
            .and_then(|l| l.seen[(slot >> shift) as usize].as_mut())
        else {
            return;
        };
        let begin = (slot as usize & ((1 << shift) - 1)) * page_words;
        let mut wrong = None;
        for (word, seen) in seen[begin..begin + page_words].iter_mut().enumerate() {
            let now = load(at + word as u64 * 8);
            if now != *seen && now != mark {
                wrong = Some(word);
            }
            *seen = now;
        }
        if let Some(word) = wrong {
            let what = format!("word {word} of slot {slot} was written after its lender had it back");
            self.find(what, (None, None, None));
        }
    }
}
