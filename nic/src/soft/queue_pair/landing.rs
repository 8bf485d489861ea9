//! Data that moves by itself: early, in pieces, or after its completion. Only a mix of faults asks for it.

use super::super::copy::copy;
use super::super::execute::plan;
use super::super::failure::Failure;
use super::super::mix::FaultKind;
use super::super::shared::Context;
use super::parts::{Adrift, Pending, Scattered};
use super::{QueuePairEngine, opcode_of};
use crate::Move;
use crate::wire::mlx5::WorkRequest;

impl QueuePairEngine {
    /// Moves a piece of some request's data, by chance: any request in flight, any piece of it. `None` when there is none, or
    /// none now.
    pub(super) fn land_something(&mut self, context: &Context<'_>) -> Option<u64> {
        if let Some(due) = self.adrift.iter().position(|adrift| adrift.due_ns <= context.now_ns()) {
            let adrift = self.adrift.swap_remove(due);
            return Some(self.land(context, &adrift.bytes, &adrift.pieces));
        }
        let scattered = |pending: &Pending| {
            let left = pending.scattered.as_ref();
            left.is_some_and(|scattered| !scattered.pieces.is_empty())
        };
        let count = self.pending.iter().filter(|pending| scattered(pending)).count() as u64;
        if count == 0 {
            return None;
        }
        // One in two steps, so that requests go on starting and completing in between.
        let chosen = context.faults.with_mix(|mix| mix.below(2 * count))?;
        let place = (0..self.pending.len()).filter(|place| scattered(&self.pending[*place]));
        let place = place.into_iter().nth(usize::try_from(chosen).ok()?)?;
        let ahead = self.pending.iter().take(place).any(|earlier| match &earlier.scattered {
            Some(scattered) => !scattered.pieces.is_empty(),
            None => true,
        });
        let scattered = self.pending[place].scattered.as_mut()?;
        let pieces = &mut scattered.pieces;
        let chosen = context.faults.with_mix(|mix| mix.below(pieces.len() as u64))?;
        let piece = pieces.swap_remove(usize::try_from(chosen).ok()?);
        // Each counts once for a request.
        if ahead && std::mem::take(&mut scattered.reorders) {
            context.faults.bit(FaultKind::Reorder);
        }
        if !scattered.pieces.is_empty() && std::mem::take(&mut scattered.splits) {
            context.faults.bit(FaultKind::Pieces);
        }
        let bytes = std::mem::take(&mut self.pending[place].bytes);
        let moved = self.land(context, &bytes, &[piece]);
        self.pending[place].bytes = bytes;
        Some(moved)
    }

    /// Completes a request whose data moves by itself: the rest of it moves now, or is adrift.
    pub(super) fn retire_scattered(&mut self, context: &Context<'_>, pending: &Pending, scattered: &Scattered) -> u64 {
        let Ok(request) = WorkRequest::parse(&pending.bytes) else {
            // It was parsed when it started, and the copy of it has not changed.
            return 0;
        };
        let mut moves = Vec::new();
        let outcome = plan(&request, context.memory, self.responder.as_deref(), None, &mut moves);
        if outcome.is_ok() && !scattered.pieces.is_empty() {
            if scattered.adrift_ns == 0 {
                // SAFETY: planned just now, under the lock of the engine that `self` lives behind.
                unsafe { move_pieces(&moves, &scattered.pieces) };
            } else {
                context.faults.bit(FaultKind::Unflushed);
                self.adrift.push(Adrift {
                    bytes: pending.bytes.clone(),
                    pieces: scattered.pieces.clone(),
                    due_ns: context.now_ns().saturating_add(scattered.adrift_ns),
                });
            }
        }
        self.complete(context, &request, pending.index, outcome, pending.lose_completion);
        outcome.unwrap_or(0)
    }

    /// Lands all that is adrift: the NIC reads the memory that it lies before, which pushes its writes there, or the queue pair
    /// is done.
    pub fn land_adrift(&mut self, context: &Context<'_>) {
        for adrift in std::mem::take(&mut self.adrift) {
            self.land(context, &adrift.bytes, &adrift.pieces);
        }
    }

    /// Moves pieces of a request's data, as far as its keys allow it now.
    fn land(&self, context: &Context<'_>, bytes: &[u8], pieces: &[(u64, u64)]) -> u64 {
        let mut moves = Vec::new();
        let planned: Result<u64, Failure> = match WorkRequest::parse(bytes) {
            Ok(request) => plan(&request, context.memory, self.responder.as_deref(), None, &mut moves),
            Err(_) => return 0,
        };
        match planned {
            // SAFETY: as in `retire_scattered`.
            Ok(_) => unsafe { move_pieces(&moves, pieces) },
            Err(failure) => {
                // The request itself says so when it completes.
                tracing::debug!(opcode = %opcode_of(bytes), syndrome = %failure.syndrome, "data of a request does not move");
                0
            }
        }
    }

    /// Whether the doorbell that was just found is overlooked for now.
    pub(super) fn overlooks_doorbell(&mut self, context: &Context<'_>) -> bool {
        let now_ns = context.now_ns();
        if self.doorbell_held_ns == 0 {
            let hold_ns = context.faults.with_mix(|mix| mix.hold_doorbell()).unwrap_or(0);
            if hold_ns != 0 {
                self.doorbell_held_ns = now_ns.saturating_add(hold_ns);
            }
            return hold_ns != 0;
        }
        if self.doorbell_held_ns > now_ns {
            return true;
        }
        self.doorbell_held_ns = 0;
        false
    }
}

/// Moves pieces of the data that `moves` are, one after the other, and returns their bytes.
///
/// # Safety
/// `plan` gave the moves under one hold of the engine's lock, which lasts: deregistering takes it after clearing the key.
unsafe fn move_pieces(moves: &[Move], pieces: &[(u64, u64)]) -> u64 {
    let mut moved = 0;
    for (offset, length) in pieces {
        let mut start = 0;
        for Move { to, from, bytes } in moves {
            // The part of this span that lies in the piece.
            let first = offset.saturating_sub(start).min(*bytes);
            let last = (offset + length).saturating_sub(start).min(*bytes);
            if first < last {
                // SAFETY: within spans that the caller vouches for.
                unsafe { copy(to + first, from + first, last - first) };
                moved += last - first;
            }
            start += bytes;
        }
    }
    moved
}
