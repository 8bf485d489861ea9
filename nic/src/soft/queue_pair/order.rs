//! Whether a poster kept the order that hardware needs: request, record, doorbell, and no slot used twice at a time.
//!
//! The NIC cannot see what a poster has read. It does see what the poster could not have read: a completion that was not
//! written when the doorbell was rung. All checks are of that kind, so they never accuse a poster that waited.

use std::sync::atomic::Ordering;

use super::super::completion_queue::word;
use super::super::moving::{Moving, Way};
use super::super::report::ViolationKind;
use super::super::shared::Context;
use super::QueuePairEngine;
use super::parts::{Crowd, Doubt, Landing};
use crate::wire::mlx5::{BLOCK_BYTES, Completion, Doorbell, UNIT_BYTES, UNITS_MAX};

impl QueuePairEngine {
    /// Checks what a doorbell has announced, from block `from` on. `record` is the doorbell record's index.
    pub(super) fn check_announced(&mut self, context: &Context<'_>, from: u64, doorbell: Doorbell, record: u16) {
        if !context.violations.strict() {
            return;
        }
        let note = |kind, text: String| context.violations.note(kind, self.shared.number, || text);
        let ahead = record.wrapping_sub(doorbell.index);
        if (ahead as i16) < 0 {
            note(
                ViolationKind::DoorbellAheadOfRecord,
                format!("{doorbell}, record #{record}"),
            );
        } else if let Some(index) = self.find_unwritten(self.target, self.target + u64::from(ahead)) {
            note(
                ViolationKind::RecordAheadOfRequest,
                format!("record #{record}, request #{} is not in its slot", index as u16),
            );
        }
        if self.order.unwritten.is_none() {
            self.order.unwritten = self.find_unwritten(from, self.target);
        }
        if self.target - self.order.completed <= u64::from(self.memory.sq_entries.min(self.memory.cq_entries)) {
            return;
        }
        if context.shared.moved {
            let (end, looks) = (self.target, self.order.looks);
            self.order.doubtful = Some(Doubt { end, looks });
        } else {
            self.check_room(context, self.target);
        }
    }

    /// Whether a doorbell waits to be judged: what it announced does not start before.
    #[inline]
    pub(super) fn in_doubt(&self) -> bool {
        self.order.doubtful.is_some()
    }

    /// Checks the room that requests up to block `end` had when they were announced.
    #[cold]
    fn check_room(&mut self, context: &Context<'_>, end: u64) {
        let in_flight = end - self.order.completed;
        if in_flight > u64::from(self.memory.cq_entries) && !self.memory.collapsed {
            let completions = self.order.readable;
            self.order.crowded.push_back(Crowd { end, completions });
        }
        let (entries, completed) = (self.memory.sq_entries, self.order.completed);
        if in_flight > u64::from(entries) {
            let text = || {
                format!(
                    "requests up to #{} in a ring of {entries}, completed up to #{}",
                    end as u16, completed as u16
                )
            };
            context
                .violations
                .note(ViolationKind::SendSlotReused, self.shared.number, text);
        }
    }

    /// The first block of `from..end` where the request that belongs there does not start, though it should. Requests of
    /// several blocks are stepped over.
    fn find_unwritten(&self, from: u64, end: u64) -> Option<u64> {
        let mut index = from;
        while index < end {
            let slot = index & u64::from(self.memory.sq_entries - 1);
            let address = self.memory.sq + slot * BLOCK_BYTES as u64;
            // SAFETY: within the ring, which is valid while the queue pair lives. Relaxed: the acquire loads of doorbell
            // and record order what was written before them.
            let control = u64::from_be(unsafe { word(address) }.load(Ordering::Relaxed));
            let (found, units) = ((control >> 40) as u16, (control & 0xff) as usize);
            if found != index as u16 || units == 0 || units > UNITS_MAX {
                return Some(index);
            }
            index += (units * UNIT_BYTES).div_ceil(BLOCK_BYTES) as u64;
        }
        None
    }

    /// Notes that the request at the head, which takes `blocks` blocks and makes sense now, was written after its doorbell.
    #[inline]
    pub(super) fn check_head(&mut self, context: &Context<'_>, blocks: usize, sound: bool) {
        let Some(index) = self.order.unwritten else { return };
        if index > self.head {
            return;
        }
        self.order.unwritten = self.find_unwritten(self.head + blocks as u64, self.target);
        if sound && index == self.head {
            let text = || format!("request #{} was not in its slot at its doorbell", index as u16);
            context
                .violations
                .note(ViolationKind::DoorbellAheadOfRequest, self.shared.number, text);
        }
    }

    /// The requests before block `end` have completed.
    #[inline]
    pub(super) fn completed_up_to(&mut self, end: u64) {
        self.order.completed = end;
    }

    /// The requests before this block have completed.
    #[inline]
    pub(super) fn completed(&self) -> u64 {
        self.order.completed
    }

    /// Counts the completion of a request that ends before block `end`, and checks whose entry it takes.
    #[inline]
    pub(super) fn check_entry(&mut self, context: &Context<'_>, end: u64, completion: &Completion) {
        let number = self.order.completions;
        self.order.completions += 1;
        if !context.shared.moved {
            self.order.readable = self.order.completions;
        }
        while self.order.crowded.front().is_some_and(|crowd| crowd.end < end) {
            self.order.crowded.pop_front();
        }
        // What the poster can have read is what was there when it announced this request.
        if let Some(crowd) = self.order.crowded.front()
            && number >= crowd.completions + u64::from(self.memory.cq_entries)
        {
            context
                .violations
                .note(ViolationKind::CompletionSlotReused, self.shared.number, || {
                    completion.to_string()
                });
        }
    }

    /// Counts a completion that is never written.
    pub(super) fn skip_entry(&mut self) {
        self.order.completions += 1;
    }

    /// A mover has the request that ends at the head.
    pub(super) fn lands_with(&mut self, way: Way, batch: u64) {
        let (end, completions) = (self.head, self.order.completions);
        match self.order.landing.back_mut() {
            Some(last) if (last.way, last.batch) == (way, batch) => {
                (last.end, last.completions) = (end, completions);
            }
            _ => self.order.landing.push_back(Landing {
                way,
                batch,
                end,
                completions,
            }),
        }
    }

    /// Judges a doorbell after the mover has been asked what has arrived: what has not, the poster cannot have read.
    pub(super) fn judge(&mut self, context: &Context<'_>, moving: &Moving) {
        while let Some(landing) = self.order.landing.front()
            && moving.has_arrived(landing.way, landing.batch)
        {
            (self.order.completed, self.order.readable) = (landing.end, landing.completions);
            self.order.landing.pop_front();
        }
        self.order.looks = moving.looks;
        if let Some(Doubt { end, looks }) = self.order.doubtful
            && looks != moving.looks
        {
            self.order.doubtful = None;
            self.check_room(context, end);
        }
    }
}
