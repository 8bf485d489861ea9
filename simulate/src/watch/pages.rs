//! Changes of pages' entries and of the pool's slots: which frame is whose, and what it holds.

use gpuvm_layouts as layout;
use layout::{FillState, VmDesc};

use super::event::What;
use super::memory::{load, read};
use super::page_id::{is_same_page, page_name};
use super::{Frame, WatchState};
use crate::words::{self, Transition};

/// Pins that no small run comes near: what is more came from an underflow.
const PINS_PLAUSIBLE: u64 = 1 << 16;

impl WatchState {
    pub(super) fn word_changed(&mut self, page_id: u64, old: u64, new: u64) {
        self.looks.words += 1;
        let page = (Some(page_id), None, None);
        let transition = self.named(page_id, old, new);
        self.tell(What::Word {
            page_id,
            old,
            new,
            transition,
        });
        if words::pins(new) > PINS_PLAUSIBLE {
            let (name, word) = (page_name(page_id), words::describe(new));
            self.find(format!("{name}: pins are out of balance ({word})"), page);
        }
        if self.has_victims(page_id) {
            self.victim_changed(page_id, old, new, transition);
        }
        match transition {
            Transition::Claimed if words::pins(old) != 0 && self.is_copied(page_id) => {
                let (name, word) = (page_name(page_id), words::describe(old));
                self.find(format!("{name} was claimed while it is used in place ({word})"), page);
            }
            Transition::Published => {
                self.filled(page_id, words::frame(old));
                self.published(page_id, new);
            }
            Transition::Evicted => {
                let frame = words::frame(old);
                if !self.others {
                    self.looks.evicted += u64::from(self.same_as_home(page_id, frame, "left its frame clean"));
                }
                if self.is_pooled(page_id) {
                    self.frame_becomes(frame, Frame::InHand);
                }
            }
            Transition::WriteBackEnded => {
                if self.write_under_way(page_id) {
                    let name = page_name(page_id);
                    let what = format!("{name}: its write-back's mark went before the WRITE had completed");
                    self.find(what, page);
                }
                if new & layout::DIRTY_BIT == 0 && words::is_resident(new) {
                    self.ended_everywhere(page_id);
                    let same = self.same_as_home(page_id, words::frame(new), "became clean");
                    self.looks.cleaned += u64::from(same);
                }
            }
            _ => {}
        }
    }

    /// What the change is. One that breaks a rule is told, and taken for none.
    fn named(&mut self, page_id: u64, old: u64, new: u64) -> Transition {
        let rules = match self.has_victims(page_id) {
            true => words::transition_with_victim,
            false => words::transition,
        };
        rules(old, new, self.is_pooled(page_id)).unwrap_or_else(|broken| {
            let (old, new) = (words::describe(old), words::describe(new));
            let what = format!("{}: {} ({old} -> {new})", page_name(page_id), broken.0);
            self.find(what, (Some(page_id), None, None));
            Transition::Nothing
        })
    }

    /// A page that lanes have filled by chunks, by the token that its word held while they did, has all of them.
    fn filled(&mut self, page_id: u64, token: u32) {
        let Some(desc) = self.desc else { return };
        if desc.queue_count != 0 || token == 0 || token > desc.fill_count {
            return;
        }
        let at = desc.fills + u64::from(token - 1) * size_of::<FillState>() as u64;
        let fill: FillState = read(at);
        // Its place may be another page's already.
        if fill.page_id != page_id || fill.head as u32 >= layout::FILL_CLOSED {
            return;
        }
        self.looks.filled += 1;
        if fill.done != fill.chunks {
            let (name, done, chunks) = (page_name(page_id), fill.done, fill.chunks);
            let what = format!("{name} was published with {done} of its {chunks} chunks");
            self.find(what, (Some(page_id), None, None));
        }
    }

    fn published(&mut self, page_id: u64, new: u64) {
        let frame = words::frame(new);
        let place = (Some(page_id), Some(frame), None);
        if self.is_pooled(page_id) {
            self.published_in(frame, page_id);
        }
        let source = self.sources.get_mut(frame as usize).and_then(Option::take);
        if let Some(source) = source.filter(|source| source.stale && is_same_page(source.page_id, page_id)) {
            let name = page_name(source.page_id);
            self.find(format!("{name} was published although that copy was stale"), place);
        }
        let replicated = self.region_of(page_id).is_some_and(|region| region.replicas > 1);
        if new & layout::DIRTY_BIT == 0 {
            self.looks.published += u64::from(self.same_as_home(page_id, frame, "was published clean"));
        } else if replicated {
            // Dirty to repair the other copy: nothing has written it yet.
            self.looks.published += u64::from(self.same_as_home(page_id, frame, "was published to be repaired"));
        }
    }

    /// In a frame of the pool, which must be in nothing else's use.
    fn published_in(&mut self, frame: u32, page_id: u64) {
        let place = (Some(page_id), Some(frame), None);
        let named = |what: String| format!("{} was published in frame {frame}, {what}", page_name(page_id));
        let wrong = match self.frames.get(frame as usize).copied() {
            Some(Frame::InHand) => None,
            Some(Frame::Of(other)) => Some(format!("where {} is", page_name(other))),
            Some(Frame::Free) => Some("which the pool has".to_owned()),
            None => Some("which is none".to_owned()),
        };
        if let Some(wrong) = wrong {
            self.find(named(wrong), place);
        }
        let target = self.targets.get(frame as usize).copied().flatten();
        if target.is_some_and(|other| other != page_id) {
            self.find(named("into which a READ is under way".to_owned()), place);
        }
        self.set_target(frame, None);
        self.frame_becomes(frame, Frame::Of(page_id));
        let entry = |desc: VmDesc| load(desc.frame_pages + u64::from(frame) * 8);
        let held = self.desc.map_or(0, entry);
        if held != page_id {
            let wrong = format!("whose entry in the table of frames says {held:#x}");
            self.find(named(wrong), place);
        }
    }

    pub(super) fn frame_becomes(&mut self, frame: u32, what: Frame) {
        if let Some(held) = self.frames.get_mut(frame as usize) {
            *held = what;
        }
    }

    pub(super) fn word_of(&self, page_id: u64) -> Option<u64> {
        let region = self.region_of(page_id)?;
        Some(load(region.words + (page_id & (layout::REGION_PAGES_MAX - 1)) * 8))
    }

    pub(super) fn pool_changed(&mut self, old: u64, new: u64) {
        self.looks.frames += 1;
        // Several steps at once: a lane's own stores may become visible together.
        if new >> 32 <= old >> 32 {
            let what = format!("a slot of the pool went from lap {} to {}", old >> 32, new >> 32);
            self.find(what, (None, None, None));
        }
        if old >> 32 & 1 != 0 {
            let frame = old as u32;
            self.tell(What::Taken { frame });
        }
        if new >> 32 & 1 == 0 {
            return;
        }
        let frame = new as u32;
        self.frame_leaves_slot(frame);
        let place = (self.targets.get(frame as usize).copied().flatten(), Some(frame), None);
        match self.frames.get(frame as usize).copied() {
            Some(Frame::InHand) => {}
            Some(Frame::Of(page_id)) => self.find(
                format!("frame {frame} went to the pool while {} is in it", page_name(page_id)),
                (Some(page_id), Some(frame), None),
            ),
            Some(Frame::Free) => self.find(format!("frame {frame} went to the pool twice"), place),
            None => self.find(format!("frame {frame}, which is none, went to the pool"), place),
        }
        if let Some(page_id) = place.0 {
            let name = page_name(page_id);
            let what = format!("frame {frame} went to the pool while a READ of {name} into it is under way");
            self.find(what, place);
        }
        self.frame_becomes(frame, Frame::Free);
        self.tell(What::Given { frame });
    }
}
