//! Requests whose far side is no memory: they wait until it is, and it is told of those behind them meanwhile.

use super::super::backed::{Far, expect, gather};
use super::super::shared::Context;
use super::QueuePairEngine;
use crate::QueuePairState;
use crate::wire::mlx5::{BLOCK_BYTES, ControlSegment, UNIT_BYTES, WorkRequest};

/// Requests that are looked at ahead in one go.
const LOOKED_AT: u32 = 64;

impl QueuePairEngine {
    /// The far side of the request at the head of the ring, which is to be executed now.
    #[inline]
    pub(super) fn far_side(&mut self, context: &Context<'_>, request: &WorkRequest<'_>) -> Far {
        if !context.memory.is_backed() {
            return Far::Memory;
        }
        // More may have been announced while this one waits.
        self.look_at_doorbell(context);
        self.look_ahead(context);
        self.waiting = None;
        gather(request, context.memory, self.responder.as_deref())
    }

    /// Whether the next request was found to wait, and would be again. What was announced meanwhile is told of.
    #[inline]
    pub(super) fn still_waits(&mut self, context: &Context<'_>) -> bool {
        if !self
            .waiting
            .as_ref()
            .is_some_and(|waiting| waiting.goes_on(context.memory))
        {
            return false;
        }
        self.look_at_doorbell(context);
        self.look_ahead(context);
        true
    }

    /// Whether the oldest request in flight, which is due, has to wait for its far side.
    pub(super) fn front_waits(&mut self, context: &Context<'_>) -> bool {
        if !context.memory.is_backed() || self.front.is_some() || self.shared.state() == QueuePairState::Error {
            return false;
        }
        let Some(front) = self.pending.front().filter(|front| front.failure.is_none()) else {
            return false;
        };
        let Ok(request) = WorkRequest::parse(&front.bytes) else {
            return false;
        };
        match gather(&request, context.memory, self.responder.as_deref()) {
            Far::Waits(waiting) => {
                self.waiting = Some(waiting);
                true
            }
            far => {
                self.front = Some(far);
                false
            }
        }
    }

    /// Tells what is behind requests that were announced and are not executed yet.
    pub(super) fn look_ahead(&mut self, context: &Context<'_>) {
        let mut block = [0; BLOCK_BYTES];
        self.expected = self.expected.max(self.head);
        for _ in 0..LOOKED_AT {
            if self.expected >= self.target {
                return;
            }
            self.fetch_block(self.expected, &mut block);
            let units = ControlSegment::new_checked(&block[..]).map_or(1, |control| usize::from(control.units()));
            let blocks = (units * UNIT_BYTES).div_ceil(BLOCK_BYTES).max(1) as u64;
            // Longer requests are not looked at: pages are read by short ones.
            if let (1, Ok(request)) = (blocks, WorkRequest::parse(&block))
                && !expect(&request, context.memory)
            {
                return;
            }
            self.expected += blocks;
        }
    }
}
