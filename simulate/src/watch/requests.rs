//! Changes of request records and of ring indexes.

use gpuvm_layouts as layout;
use layout::RequestRecord;

use super::event::What;
use super::memory::{Kind, index_of, is_stale, phase_of};
use super::page_id::{is_same_page, page_name, page_of, replica_of};
use super::{Frame, Source, WatchState};
use crate::words;

impl WatchState {
    /// Whether a WRITE of the page is posted and not yet claimed.
    pub(super) fn write_under_way(&self, page_id: u64) -> bool {
        (0..self.queues.len() as u32).any(|queue| {
            (0..=self.queues[queue as usize].mask).any(|slot| {
                let record = self.record(queue, slot);
                phase_of(record.state) == layout::RECORD_POSTED
                    && is_same_page(record.page_id, page_id)
                    && record.kind != layout::REQUEST_FETCH
            })
        })
    }

    pub(super) fn record_changed(&mut self, queue: u32, slot: u32, old: u64, new: u64) {
        self.looks.requests += 1;
        let entries = u64::from(self.queues[queue as usize].mask) + 1;
        let (index, phase) = (index_of(new), phase_of(new));
        let legal = match (phase_of(old), phase) {
            (layout::RECORD_FREE, layout::RECORD_POSTED)
            | (layout::RECORD_POSTED, layout::RECORD_CLAIMED)
            | (layout::RECORD_CLAIMED, layout::RECORD_DONE) => index == index_of(old),
            // The free slot itself may never show: who frees it may write it next, and its stores become visible together.
            (layout::RECORD_CLAIMED | layout::RECORD_DONE, layout::RECORD_FREE | layout::RECORD_POSTED) => {
                index == index_of(old) + entries
            }
            _ => false,
        };
        let record = self.record(queue, slot);
        let place = (Some(record.page_id), Some(record.frame), Some(queue));
        const PHASES: [&str; 4] = ["free", "posted", "claimed", "done"];
        if !legal {
            let (before, was, is) = (index_of(old), PHASES[phase_of(old) as usize], PHASES[phase as usize]);
            let what =
                format!("queue pair {queue}: slot {slot} went from request {before} {was} to request {index} {is}");
            self.find(what, place);
        }
        self.tell(What::Request {
            queue,
            index,
            phase,
            kind: record.kind,
            page_id: record.page_id,
            frame: record.frame,
        });
        match (phase, record.kind) {
            (layout::RECORD_POSTED, layout::REQUEST_FETCH) => self.fetch_posted(queue, &record),
            (layout::RECORD_POSTED, layout::REQUEST_CLEAN | layout::REQUEST_FLUSH) => {
                let word = self.word_of(record.page_id).unwrap_or(0);
                let marked = word & layout::WRITE_BACK_BIT != 0;
                if !(words::is_resident(word) && marked && words::frame(word) == record.frame) {
                    let (name, frame, word) = (page_name(record.page_id), record.frame, words::describe(word));
                    let what = format!("a WRITE of {name} from frame {frame} was written while the page is {word}");
                    self.find(what, place);
                }
            }
            (layout::RECORD_CLAIMED, layout::REQUEST_FETCH) if self.is_pooled(record.page_id) => {
                self.set_target(record.frame, None);
                let region = self.region_of(record.page_id);
                let stale = region.is_some_and(|region| {
                    let page = record.page_id & (layout::REGION_PAGES_MAX - 1);
                    region.flags & layout::REGION_REPLICATED != 0 && is_stale(region, page, replica_of(record.page_id))
                });
                if let Some(source) = self.sources.get_mut(record.frame as usize) {
                    *source = Some(Source {
                        page_id: record.page_id,
                        stale,
                    });
                }
            }
            _ => {}
        }
    }

    fn fetch_posted(&mut self, queue: u32, record: &RequestRecord) {
        let place = (Some(record.page_id), Some(record.frame), Some(queue));
        let word = self.word_of(record.page_id).unwrap_or(0);
        if !words::is_fetching(word) {
            let (name, word) = (page_name(record.page_id), words::describe(word));
            self.find(format!("a READ of {name} was written, which is {word}"), place);
        }
        if !self.is_pooled(record.page_id) {
            return;
        }
        let held = self.frames.get(record.frame as usize).copied();
        let target = self.targets.get(record.frame as usize).copied().flatten();
        if held != Some(Frame::InHand) || target.is_some() {
            let (name, frame) = (page_name(record.page_id), record.frame);
            let with = format!("which is {held:?}, with a READ under way for {target:?}");
            self.find(format!("a READ of {name} goes into frame {frame}, {with}"), place);
        }
        self.set_target(record.frame, Some(page_of(record.page_id)));
    }

    /// The page of a record never changes between its hand-over and its claim. A thread that claimed it may write it over before the free slot shows.
    pub(super) fn page_id_changed(&mut self, queue: u32, slot: u32, state_before: u64) {
        let record = self.record(queue, slot);
        if phase_of(state_before) == layout::RECORD_POSTED {
            let what =
                format!("queue pair {queue}: the record of slot {slot} was written over while its request is live");
            self.find(what, (Some(record.page_id), None, Some(queue)));
        }
    }

    pub(super) fn index_changed(&mut self, queue: u32, kind: Kind, old: u64, new: u64) {
        self.looks.indexes += 1;
        let index = new & !layout::RESERVED_CLOSED;
        let place = (None, None, Some(queue));
        if index < old & !layout::RESERVED_CLOSED {
            let what = format!("queue pair {queue}: {kind:?} stepped back from {old} to {new}");
            self.find(what, place);
        }
        let state = self.queue_state(queue);
        let reserved = state.reserved & !layout::RESERVED_CLOSED;
        if !(reserved >= state.written && state.written >= state.posted) {
            let (written, posted) = (state.written, state.posted);
            let what = format!("reserved {reserved}, written {written} and posted {posted} are out of order");
            self.find(format!("queue pair {queue}: {what}"), place);
        }
        self.tell(match kind {
            Kind::Reserved { .. } => What::Reserved { queue, index },
            Kind::Written { .. } => What::Written { queue, index },
            _ => What::Posted { queue, index },
        });
        if let Kind::Posted { .. } = kind {
            let mask = self.queues[queue as usize].mask;
            let under_way = (0..=mask).map(|slot| self.record(queue, slot)).filter(|record| {
                phase_of(record.state) == layout::RECORD_POSTED && record.kind == layout::REQUEST_FETCH
            });
            self.looks.in_flight_max = self.looks.in_flight_max.max(under_way.count() as u64);
        }
    }
}
