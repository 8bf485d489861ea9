//! A queue pair whose data a mover moves.

use super::super::backed::{Far, Kept};
use super::super::completion_queue::Entry;
use super::super::execute::plan;
use super::super::failure::Failure;
use super::super::faults::Fault;
use super::super::moving::{Lane, Moving, Taken, Way};
use super::super::report::{ViolationKind, describe};
use super::super::shared::Context;
use super::super::vendor;
use super::{QueuePairEngine, RequestBuffer, Step, opcode_of};
use crate::QueuePairState;
use crate::wire::mlx5::{
    BLOCK_BYTES, Completion, CompletionDetail, CqeOpcode, Opcode, Operation, Segment, Syndrome, WorkRequest,
};

/// Remote and local key of a request of one span.
fn keys_of(request: &WorkRequest<'_>) -> Option<(u32, u32)> {
    let (_, rkey) = request.operation.remote()?;
    let mut segments = request.segments.iter();
    match (segments.next(), segments.next()) {
        (Some(Segment::Data { lkey, .. }), None) => Some((rkey, lkey)),
        _ => None,
    }
}

impl QueuePairEngine {
    /// Takes one request into a batch, as `step` does without a mover. `place` is this queue pair's among the engine's.
    pub fn step_moving(
        &mut self,
        place: usize,
        context: &Context<'_>,
        buffer: &mut RequestBuffer,
        moving: &mut Moving,
    ) -> Step {
        self.judge(context, moving);
        if let Some((opcode, index, failure)) = self.under_way.failed {
            if self.is_under_way(moving) || !moving.lane(Way::Fetch).has_room() {
                return Step::Idle;
            }
            self.under_way.failed = None;
            self.shared.set_state(QueuePairState::Error);
            context.counters.errors.add(1);
            self.take_error(place, context, opcode, index, failure, moving);
            return Step::Did(0);
        }
        if self.head == self.target && !self.look_at_doorbell(context) {
            return Step::Idle;
        }
        if self.in_doubt() {
            // The next round asks the mover first.
            return Step::Until(0);
        }
        if self.shared.state() == QueuePairState::Error {
            if !moving.lane(Way::Fetch).has_room() {
                return Step::Idle;
            }
            let blocks = self.fetch(buffer).unwrap_or(1);
            let index = self.head as u16;
            self.head += blocks as u64;
            context.counters.flushed.add(1);
            let failure = Failure {
                syndrome: Syndrome::Flushed,
                vendor: vendor::FLUSHED,
            };
            self.take_error(place, context, opcode_of(&buffer[..]), index, failure, moving);
            return Step::Did(0);
        }
        if self.waiting.is_some() && self.still_waits(context) {
            return Step::Until(0);
        }
        self.start_moving(place, context, buffer, moving)
    }

    fn start_moving(
        &mut self,
        place: usize,
        context: &Context<'_>,
        buffer: &mut RequestBuffer,
        moving: &mut Moving,
    ) -> Step {
        let blocks = match self.fetch(buffer) {
            Ok(blocks) => blocks,
            Err(kind) => return self.refuse_moving(context, kind, &buffer[..BLOCK_BYTES]),
        };
        let bytes = &buffer[..blocks * BLOCK_BYTES];
        let request = match self.check(WorkRequest::parse(bytes)) {
            Ok(request) => request,
            Err(kind) => return self.refuse_moving(context, kind, bytes),
        };
        self.check_head(context, blocks, true);
        let way = match request.operation {
            Operation::Write { .. } => Way::WriteBack,
            _ => Way::Fetch,
        };
        let fenced = request.fence && !moving.lanes[0].has_arrived(self.under_way.last[0]);
        if fenced || !moving.lane(way).has_room() {
            return Step::Idle;
        }
        let fault = self.strike(context, &request);
        if self.under_way.not_before_ns > context.now_ns() {
            return Step::Until(self.under_way.not_before_ns);
        }
        let far = self.far_side(context, &request);
        if let Far::Waits(waiting) = far {
            self.waiting = Some(waiting);
            return Step::Until(0);
        }
        self.head += blocks as u64;
        self.take_moving(place, context, &request, way, (fault, far), moving)
    }

    /// Puts the request that was just taken from the ring into a batch, or its failure aside.
    fn take_moving(
        &mut self,
        place: usize,
        context: &Context<'_>,
        request: &WorkRequest<'_>,
        way: Way,
        (fault, far): (Option<Fault>, Far),
        moving: &mut Moving,
    ) -> Step {
        let index = request.index;
        let lane = moving.lane(way);
        let collected = lane.data.len();
        let opcode = request.operation.opcode();
        let (kept, refused) = match far {
            Far::Kept(kept) => (Some(kept), None),
            Far::Failed(failure) => (None, Some(failure)),
            Far::Memory | Far::Waits(_) => (None, None),
        };
        let pieces = kept.as_ref().map(Kept::pieces);
        let outcome = match (fault, refused) {
            (Some(Fault::Fail(syndrome)), _) => Err(Failure::injected(syndrome)),
            (_, Some(failure)) => Err(failure),
            _ => plan(
                request,
                context.memory,
                self.responder.as_deref(),
                pieces,
                &mut lane.data,
            ),
        };
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(failure) => {
                tracing::debug!(%request, syndrome = %failure.syndrome, vendor = failure.vendor, "request failed");
                lane.data.truncate(collected);
                self.under_way.failed = Some((opcode, index, failure));
                return Step::Did(0);
            }
        };
        moving.lane(way).join_last(collected, keys_of(request));
        let completion = self.completion_of(context, request, fault, bytes);
        self.join(way, moving.lane(way));
        moving.lane(way).take(Taken {
            place,
            opcode,
            index,
            bytes,
            completion,
            executed: true,
            kept,
        });
        Step::Did(bytes)
    }

    /// The completion of a request that moves `bytes` bytes, and its entry; none where it is not signalled or to be lost.
    fn completion_of(
        &mut self,
        context: &Context<'_>,
        request: &WorkRequest<'_>,
        fault: Option<Fault>,
        bytes: u64,
    ) -> Option<(Completion, u64, bool)> {
        if !request.signalled {
            return None;
        }
        if let Some(Fault::LoseCompletion) = fault {
            self.skip_entry();
            self.shared.ends.lock().cq.skip();
            return None;
        }
        let detail = CompletionDetail::Success {
            bytes: bytes as u32,
            immediate: 0,
            timestamp: context.now_ns(),
        };
        let opcode = request.operation.opcode();
        Some(self.claim(context, CqeOpcode::Request, opcode, request.index, detail))
    }

    /// The fault that was planted for the request at the head, looked for once.
    fn strike(&mut self, context: &Context<'_>, request: &WorkRequest<'_>) -> Option<Fault> {
        match self.under_way.struck {
            Some((head, fault)) if head == self.head => return fault,
            _ => {}
        }
        if !context.faults.armed() {
            return None;
        }
        let fault = context.faults.strike(request);
        self.under_way.struck = Some((self.head, fault));
        // What is behind it waits as well, since requests start in order.
        if let Some(Fault::Delay { ns }) = fault {
            self.under_way.not_before_ns = context.now_ns().saturating_add(ns);
        }
        fault
    }

    fn refuse_moving(&mut self, context: &Context<'_>, kind: ViolationKind, bytes: &[u8]) -> Step {
        let index = self.head as u16;
        context.violations.note(kind, self.shared.number, || {
            format!("ring index #{index}: {}", describe(bytes))
        });
        self.check_head(context, 1, false);
        self.head += 1;
        self.under_way.failed = Some((opcode_of(bytes), index, Failure::of_violation(kind)));
        Step::Did(0)
    }

    /// Whether batches with requests of this queue pair have not arrived.
    pub fn is_under_way(&self, moving: &Moving) -> bool {
        let lanes = moving.lanes.iter().zip(self.under_way.last);
        lanes.into_iter().any(|(lane, last)| !lane.has_arrived(last))
    }

    fn join(&mut self, way: Way, lane: &Lane) {
        self.under_way.last[way as usize] = lane.collecting();
        self.lands_with(way, lane.collecting());
    }

    /// Puts an error's completion into a batch.
    fn take_error(
        &mut self,
        place: usize,
        context: &Context<'_>,
        opcode: Opcode,
        index: u16,
        failure: Failure,
        moving: &mut Moving,
    ) {
        let detail = CompletionDetail::Error {
            syndrome: failure.syndrome,
            vendor: failure.vendor,
        };
        let completion = Some(self.claim(context, CqeOpcode::RequestError, opcode, index, detail));
        let lane = moving.lane(Way::Fetch);
        self.join(Way::Fetch, lane);
        lane.take(Taken {
            place,
            opcode,
            index,
            bytes: 0,
            completion,
            executed: false,
            kept: None,
        });
    }

    /// Takes the next entry of the completion queue.
    fn claim(
        &mut self,
        context: &Context<'_>,
        kind: CqeOpcode,
        opcode: Opcode,
        index: u16,
        detail: CompletionDetail,
    ) -> (Completion, u64, bool) {
        let completion = self.completion(kind, opcode, index, detail);
        context.counters.completions.add(1);
        self.check_entry(context, self.head, &completion);
        let Entry {
            address,
            owner,
            overrun,
        } = self.shared.ends.lock().cq.claim();
        if overrun {
            let number = self.shared.number;
            context
                .violations
                .note(ViolationKind::CompletionOverrun, number, || completion.to_string());
        }
        (completion, address, owner)
    }

    /// The error completion of a request whose batch the mover refused, and its entry's address and owner bit.
    pub fn refused(&mut self, context: &Context<'_>, taken: &Taken) -> (Completion, u64, bool) {
        let kind = CqeOpcode::RequestError;
        let flushed = self.shared.state() == QueuePairState::Error;
        self.shared.set_state(QueuePairState::Error);
        // An error stays what it was.
        if let Some(error @ (completion, ..)) = taken.completion
            && completion.kind == kind
        {
            return error;
        }
        let (syndrome, vendor) = if flushed {
            context.counters.flushed.add(1);
            (Syndrome::Flushed, vendor::FLUSHED)
        } else {
            context.counters.errors.add(1);
            (Syndrome::LocalQueuePairOperation, vendor::MOVER)
        };
        let detail = CompletionDetail::Error { syndrome, vendor };
        match taken.completion {
            Some((completion, address, owner)) => (
                Completion {
                    kind,
                    detail,
                    ..completion
                },
                address,
                owner,
            ),
            None => self.claim(context, kind, taken.opcode, taken.index, detail),
        }
    }

    /// The batch that was being collected in a lane is gone, unless its errors took its number.
    pub fn forget(&mut self, lane: usize, started: u64) {
        let last = &mut self.under_way.last[lane];
        *last = (*last).min(started);
    }

    /// What was under way in a lane after batch `arrived` is lost.
    pub fn lose(&mut self, lane: usize, arrived: u64) {
        if self.under_way.last[lane] > arrived {
            self.shared.set_state(QueuePairState::Error);
            self.forget(lane, arrived);
        }
    }
}
