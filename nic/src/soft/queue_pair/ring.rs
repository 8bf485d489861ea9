//! What a poster wrote: the doorbell register and the send ring, read.

use std::sync::atomic::Ordering;

use super::{QueuePairEngine, RequestBuffer};
use crate::QueuePairState;
use crate::soft::completion_queue::{half, word};
use crate::soft::copy::Ahead;
use crate::soft::report::ViolationKind;
use crate::soft::shared::Context;
use crate::wire::mlx5::{BLOCK_BYTES, ControlSegment, Doorbell, Opcode, UNIT_BYTES, UNITS_MAX};

impl QueuePairEngine {
    /// Reads the doorbell register; returns whether there are blocks to start.
    #[inline]
    pub(super) fn look_at_doorbell(&mut self, context: &Context<'_>) -> bool {
        // SAFETY: the register belongs to this queue pair. Acquire: pairs with the poster's fence before its doorbell
        // store, so that the requests and the record it stored before are seen.
        let raw = unsafe { word(self.register) }.load(Ordering::Acquire);
        if raw == self.seen || context.faults.mixed() && self.overlooks_doorbell(context) {
            return false;
        }
        self.take_doorbell(raw, context)
    }

    pub(super) fn take_doorbell(&mut self, raw: u64, context: &Context<'_>) -> bool {
        self.seen = raw;
        context.counters.doorbells.add(1);
        let number = self.shared.number;
        let note = |kind, text: String| context.violations.note(kind, number, || text);
        let doorbell = Doorbell::parse(raw.to_ne_bytes());
        if doorbell.queue_pair != number {
            note(ViolationKind::DoorbellWrongQueuePair, doorbell.to_string());
            return false;
        }
        if matches!(self.shared.state(), QueuePairState::Reset | QueuePairState::Init) {
            note(ViolationKind::DoorbellNotReady, doorbell.to_string());
            return false;
        }
        let ahead = doorbell.index.wrapping_sub(self.target as u16);
        if u32::from(ahead) > self.memory.sq_entries {
            let text = format!(
                "{doorbell} after #{}, ring of {}",
                self.target as u16, self.memory.sq_entries
            );
            note(ViolationKind::DoorbellOutOfRange, text);
            return false;
        }
        let from = self.target;
        self.target += u64::from(ahead);
        // SAFETY: the record is valid while the queue pair lives. Acquire: the record was stored before the doorbell.
        let record = u32::from_be(unsafe { half(self.memory.dbrec + 4) }.load(Ordering::Acquire)) as u16;
        self.check_announced(context, from, doorbell, record);
        self.head != self.target
    }

    /// Copies the request at the head of the ring into `buffer` and returns its blocks, or the rule it breaks.
    #[inline]
    pub(super) fn fetch(&self, buffer: &mut RequestBuffer) -> Result<usize, ViolationKind> {
        self.fetch_block(self.head, &mut buffer[..BLOCK_BYTES]);
        let units = ControlSegment::new_checked(&buffer[..]).map_or(0, |control| usize::from(control.units()));
        if units == 0 || units > UNITS_MAX {
            return Err(ViolationKind::Malformed);
        }
        let blocks = (units * UNIT_BYTES).div_ceil(BLOCK_BYTES);
        if blocks as u64 > self.target - self.head {
            return Err(ViolationKind::BeyondDoorbell);
        }
        for block in 1..blocks {
            let place = &mut buffer[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES];
            self.fetch_block(self.head + block as u64, place);
        }
        Ok(blocks)
    }

    #[inline]
    pub(super) fn fetch_block(&self, index: u64, place: &mut [u8]) {
        let slot = index & u64::from(self.memory.sq_entries - 1);
        let address = self.memory.sq + slot * BLOCK_BYTES as u64;
        for (i, bytes) in place.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: within the ring, which is valid while the queue pair lives. Relaxed: ordered by the acquire
            // load of the doorbell; a poster that rewrites the slot now gives garbage, which is checked.
            *bytes = unsafe { word(address + i as u64 * 8) }
                .load(Ordering::Relaxed)
                .to_ne_bytes();
        }
    }

    /// Where the next request will copy from and to, as far as that can be told without trusting it: a hint.
    #[inline]
    pub(super) fn peek(&self) -> Option<Ahead> {
        if self.head == self.target {
            return None;
        }
        let slot = self.head & u64::from(self.memory.sq_entries - 1);
        let block = self.memory.sq + slot * BLOCK_BYTES as u64;
        // SAFETY: within the ring, which is valid while the queue pair lives. Relaxed: the request is fetched anew
        // and checked when its turn comes.
        let field = |offset| u64::from_be(unsafe { word(block + offset) }.load(Ordering::Relaxed));
        // Remote and first local address, where READs and WRITEs of registered memory have them.
        let (remote, local) = (field(16), field(40));
        match Opcode::from((field(0) >> 32) as u8) {
            Opcode::Read => Some(Ahead {
                src: remote,
                dst: local,
            }),
            Opcode::Write => Some(Ahead {
                src: local,
                dst: remote,
            }),
            _ => None,
        }
    }
}
