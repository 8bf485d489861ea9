//! One queue pair: its doorbell, its ring, the requests it has in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::backed::{Far, Waiting, is_backed};
use super::completion_queue::word;
use super::copy::Ahead;
use super::execute::{execute, flip};
use super::failure::Failure;
use super::mix::{FaultKind, Verdict, pieces_of};
use super::report::{InFlight, ViolationKind, describe};
use super::shared::Context;
use super::timing::sentence;
use super::vendor;
use crate::wire::WireError;
use crate::wire::mlx5::{
    BLOCK_BYTES, BLOCKS_MAX, Completion, CompletionDetail, ControlSegment, CqeOpcode, Opcode, Syndrome, WorkRequest,
};
use crate::{QueueMemory, QueuePairState};

mod ahead;
mod landing;
mod moving;
mod order;
mod parts;
mod ring;
mod shared;

pub(super) use shared::QueuePairShared;

use parts::{Adrift, Order, Pending, Scattered, UnderWay};

/// Room for the longest request.
pub(super) type RequestBuffer = [u8; BLOCKS_MAX * BLOCK_BYTES];

/// What one call of [`QueuePairEngine::step`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to do.
    Idle,
    /// Nothing to do before this time.
    Until(u64),
    /// Did one unit and moved so many bytes.
    Did(u64),
}

/// The engine's side of a queue pair. Lives behind the engine's lock.
pub(super) struct QueuePairEngine {
    pub shared: Arc<QueuePairShared>,
    memory: QueueMemory,
    register: u64,
    responder: Option<Arc<QueuePairShared>>,
    /// Value of the doorbell register at the last look.
    seen: u64,
    /// Blocks started so far; the low 16 bits are the index.
    head: u64,
    /// Blocks announced by the doorbell so far.
    target: u64,
    pending: VecDeque<Pending>,
    reads_in_flight: u32,
    /// Those of the whole NIC.
    in_flight: Arc<InFlight>,
    /// Requests complete in order, so none is due before the one ahead of it.
    last_due_ns: u64,
    /// Where a mover moves the data.
    under_way: UnderWay,
    order: Order,
    /// Data of completed READs that has not landed.
    adrift: Vec<Adrift>,
    /// A doorbell is overlooked until then; 0: none is.
    doorbell_held_ns: u64,
    /// What is behind requests before this block was told of them.
    expected: u64,
    /// The far side of the oldest request in flight, once it was asked for.
    front: Option<Far>,
    /// What the next request to be executed waits for.
    waiting: Option<Waiting>,
}

impl QueuePairEngine {
    /// A queue pair in reset over memory that stays valid until this value is dropped and `shared` buried.
    pub fn new(shared: Arc<QueuePairShared>, memory: QueueMemory, register: u64, in_flight: Arc<InFlight>) -> Self {
        let mut queue_pair = QueuePairEngine {
            shared,
            memory,
            register,
            responder: None,
            seen: 0,
            head: 0,
            target: 0,
            pending: VecDeque::new(),
            reads_in_flight: 0,
            in_flight,
            last_due_ns: 0,
            under_way: UnderWay::default(),
            order: Order::default(),
            adrift: Vec::new(),
            doorbell_held_ns: 0,
            expected: 0,
            front: None,
            waiting: None,
        };
        queue_pair.reset();
        queue_pair
    }

    /// To state reset, from any.
    pub fn reset(&mut self) {
        self.shared.set_state(QueuePairState::Reset);
        self.pending.clear();
        self.under_way = UnderWay::default();
        self.order = Order::default();
        self.adrift.clear();
        (self.doorbell_held_ns, self.expected) = (0, 0);
        (self.front, self.waiting) = (None, None);
        self.responder = None;
        self.in_flight.end(self.reads_in_flight.into());
        (
            self.seen,
            self.head,
            self.target,
            self.reads_in_flight,
            self.last_due_ns,
        ) = (0, 0, 0, 0, 0);
        // SAFETY: the register belongs to this queue pair. Relaxed: nobody rings a queue pair in reset.
        unsafe { word(self.register).store(0, Ordering::Relaxed) };
        self.shared.clear();
    }

    /// From reset to ready-to-send.
    pub fn connect(&mut self, responder: Arc<QueuePairShared>, context: &Context<'_>) {
        self.shared.set_state(QueuePairState::Init);
        // What was rung in reset does not count.
        self.look_at_doorbell(context);
        // SAFETY: as in `reset`. Relaxed: posting follows the return of `connect`.
        unsafe { word(self.register).store(0, Ordering::Relaxed) };
        self.seen = 0;
        self.responder = Some(responder);
        self.shared.set_state(QueuePairState::ReadyToReceive);
        self.shared.set_state(QueuePairState::ReadyToSend);
    }

    /// Completes a due request or starts a new one.
    #[inline]
    pub fn step(&mut self, context: &Context<'_>, buffer: &mut RequestBuffer) -> Step {
        if context.faults.mixed()
            && let Some(bytes) = self.land_something(context)
        {
            return Step::Did(bytes);
        }
        if self.waiting.is_some() && self.shared.state() != QueuePairState::Error && self.still_waits(context) {
            return Step::Until(0);
        }
        if let Some(front) = self.pending.front()
            && (front.due_ns <= context.now_ns() || self.shared.state() == QueuePairState::Error)
        {
            if self.front_waits(context) {
                return Step::Until(0);
            }
            return Step::Did(self.retire(context));
        }
        if self.head == self.target && !self.look_at_doorbell(context) {
            return self.wait();
        }
        if self.shared.state() == QueuePairState::Error {
            self.flush_one(context, buffer);
            return Step::Did(0);
        }
        self.start(context, buffer)
    }

    /// Address of the doorbell register.
    pub fn doorbell(&self) -> u64 {
        self.register
    }

    /// The caller's rings.
    pub fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// When the oldest request in flight is due.
    pub fn due_ns(&self) -> Option<u64> {
        let adrift = self.adrift.iter().map(|adrift| adrift.due_ns).min();
        let doorbell = Some(self.doorbell_held_ns).filter(|held_ns| *held_ns != 0);
        let front = self.pending.front().map(|front| front.due_ns);
        front.into_iter().chain(adrift).chain(doorbell).min()
    }

    fn wait(&self) -> Step {
        self.due_ns().map_or(Step::Idle, Step::Until)
    }

    /// Starts the request at the head: executes it at once, or queues it until it is due.
    #[inline]
    fn start(&mut self, context: &Context<'_>, buffer: &mut RequestBuffer) -> Step {
        let index = self.head as u16;
        let blocks = match self.fetch(buffer) {
            Ok(blocks) => blocks,
            Err(kind) => return self.refuse(context, kind, &buffer[..BLOCK_BYTES]),
        };
        let bytes = &buffer[..blocks * BLOCK_BYTES];
        let request = match self.check(WorkRequest::parse(bytes)) {
            Ok(request) => request,
            Err(kind) => return self.refuse(context, kind, bytes),
        };
        self.check_head(context, blocks, true);
        if self.pending.is_empty() && !context.shaped() && !context.faults.armed() {
            let far = self.far_side(context, &request);
            if let Far::Waits(waiting) = far {
                self.waiting = Some(waiting);
                return Step::Until(0);
            }
            self.head += blocks as u64;
            let outcome = self.execute(context, &request, self.peek(), &far, None);
            // Before anybody is told of the completion.
            drop(far);
            self.completed_up_to(self.head);
            self.complete(context, &request, index, outcome, false);
            return Step::Did(outcome.unwrap_or(0));
        }
        if context.memory.is_backed() {
            // It may come after the request was started, and before it is due.
            self.look_ahead(context);
        }
        let waits_for_data = request.operation.is_read_or_atomic();
        if self.reads_in_flight > 0
            && (request.fence || waits_for_data && self.reads_in_flight >= context.shared.limits.reads_per_queue_pair)
        {
            return self.wait();
        }
        let verdict = context.faults.judge(&request, context.now_ns());
        if verdict.breaks {
            // Nobody is told but by what is flushed.
            self.shared.set_state(QueuePairState::Error);
            return Step::Did(0);
        }
        self.head += blocks as u64;
        let pending = self.sentenced(context, &request, bytes, verdict);
        self.queue(pending);
        context.counters.read_depth_max.raise(u64::from(self.reads_in_flight));
        Step::Did(0)
    }

    /// The request that was just taken from the head of the ring, with what a verdict makes of it.
    fn sentenced(&self, context: &Context<'_>, request: &WorkRequest<'_>, bytes: &[u8], verdict: Verdict) -> Pending {
        let timing = context.shared.shape.as_ref();
        let (due_ns, failure) = sentence(timing, request, &verdict, context.now_ns(), || self.is_answered());
        // What is to flip has to have moved: it goes in one piece.
        let whole = verdict.flip.is_some() || is_backed(request, context.memory);
        let in_pieces = verdict.pieces > 0 && failure.is_none() && !whole;
        Pending {
            bytes: bytes.to_vec(),
            index: request.index,
            end: self.head,
            due_ns,
            waits_for_data: request.operation.is_read_or_atomic(),
            failure,
            lose_completion: verdict.lose,
            scattered: in_pieces.then(|| Scattered {
                pieces: pieces_of(request.segments.len_bytes(), verdict.pieces),
                adrift_ns: verdict.adrift_ns,
                reorders: verdict.reorders,
                splits: verdict.splits,
            }),
            flip: verdict.flip,
        }
    }

    /// Whether its responder answers now.
    fn is_answered(&self) -> bool {
        self.responder.as_deref().is_some_and(QueuePairShared::answers)
    }

    fn check<'a>(&self, parsed: Result<WorkRequest<'a>, WireError>) -> Result<WorkRequest<'a>, ViolationKind> {
        let request = parsed.map_err(|_| ViolationKind::Malformed)?;
        if request.index != self.head as u16 {
            return Err(ViolationKind::WrongIndex);
        }
        if request.queue_pair != self.shared.number {
            return Err(ViolationKind::WrongQueuePair);
        }
        Ok(request)
    }

    fn queue(&mut self, mut pending: Pending) {
        self.last_due_ns = self.last_due_ns.max(pending.due_ns);
        pending.due_ns = self.last_due_ns;
        if pending.waits_for_data {
            self.reads_in_flight += 1;
            self.in_flight.start();
        }
        self.pending.push_back(pending);
    }

    /// Queues a failure for a request that cannot be told from garbage; it takes one block.
    #[cold]
    fn refuse(&mut self, context: &Context<'_>, kind: ViolationKind, bytes: &[u8]) -> Step {
        let index = self.head as u16;
        let found = describe(bytes);
        context
            .violations
            .note(kind, self.shared.number, || format!("ring index #{index}: {found}"));
        self.check_head(context, 1, false);
        self.head += 1;
        let failure = Some(Failure::of_violation(kind));
        let (bytes, due_ns) = (bytes.to_vec(), context.now_ns());
        self.queue(Pending {
            bytes,
            index,
            end: self.head,
            due_ns,
            waits_for_data: false,
            failure,
            lose_completion: false,
            scattered: None,
            flip: None,
        });
        Step::Did(0)
    }

    /// Completes the oldest request in flight; returns the bytes moved.
    fn retire(&mut self, context: &Context<'_>) -> u64 {
        let Some(pending) = self.pending.pop_front() else {
            return 0;
        };
        let far = self.front.take().unwrap_or(Far::Memory);
        if pending.waits_for_data {
            self.reads_in_flight -= 1;
            self.in_flight.end(1);
        }
        self.completed_up_to(pending.end);
        let opcode = opcode_of(&pending.bytes);
        if self.shared.state() == QueuePairState::Error {
            self.push_flushed(context, opcode, pending.index);
            return 0;
        }
        if let (Some(scattered), None) = (&pending.scattered, pending.failure) {
            return self.retire_scattered(context, &pending, scattered);
        }
        if opcode == Opcode::Dump {
            self.land_adrift(context);
        }
        let request = match (pending.failure, WorkRequest::parse(&pending.bytes)) {
            (None, Ok(request)) => request,
            (failure, _) => {
                let failure = failure.unwrap_or(Failure {
                    syndrome: Syndrome::LocalQueuePairOperation,
                    vendor: vendor::MALFORMED,
                });
                self.fail(context, opcode, pending.index, failure);
                return 0;
            }
        };
        let outcome = self.execute(context, &request, None, &far, pending.flip);
        drop(far);
        self.complete(context, &request, pending.index, outcome, pending.lose_completion);
        outcome.unwrap_or(0)
    }

    /// Executes a request now, and turns a bit of what it has moved over if that was planted.
    #[inline]
    fn execute(
        &self,
        context: &Context<'_>,
        request: &WorkRequest<'_>,
        ahead: Option<Ahead>,
        far: &Far,
        bit: Option<u64>,
    ) -> Result<u64, Failure> {
        let pieces = match far {
            Far::Failed(failure) => return Err(*failure),
            Far::Kept(kept) => Some(kept.pieces()),
            Far::Memory | Far::Waits(_) => None,
        };
        // SAFETY: the engine's lock is held: `self` lives behind it.
        let outcome = unsafe { execute(request, context.memory, self.responder.as_deref(), ahead, pieces) };
        if let (Some(bit), Ok(_)) = (bit, outcome) {
            // SAFETY: as above: the request was just allowed to write there.
            unsafe { flip(request, bit, pieces) };
        }
        outcome
    }

    #[inline]
    fn complete(
        &mut self,
        context: &Context<'_>,
        request: &WorkRequest<'_>,
        index: u16,
        outcome: Result<u64, Failure>,
        lose: bool,
    ) {
        let opcode = request.operation.opcode();
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(failure) => {
                tracing::debug!(%request, syndrome = %failure.syndrome, vendor = failure.vendor, "request failed");
                return self.fail(context, opcode, index, failure);
            }
        };
        context.counters.executed(opcode, bytes);
        if lose && request.signalled {
            self.skip_entry();
            self.shared.ends.lock().cq.skip();
            context.faults.bit(FaultKind::Lost);
        } else if request.signalled {
            let detail = CompletionDetail::Success {
                bytes: bytes as u32,
                immediate: 0,
                timestamp: context.now_ns(),
            };
            self.push(context, CqeOpcode::Request, opcode, index, detail);
        }
    }

    /// Writes an error completion and goes to state error. Failures complete whether signalled or not.
    #[cold]
    fn fail(&mut self, context: &Context<'_>, opcode: Opcode, index: u16, failure: Failure) {
        self.shared.set_state(QueuePairState::Error);
        context.counters.errors.add(1);
        let detail = CompletionDetail::Error {
            syndrome: failure.syndrome,
            vendor: failure.vendor,
        };
        self.push(context, CqeOpcode::RequestError, opcode, index, detail);
    }

    fn push_flushed(&mut self, context: &Context<'_>, opcode: Opcode, index: u16) {
        // Nothing of the queue pair moves after its error is told.
        self.land_adrift(context);
        context.counters.flushed.add(1);
        let detail = CompletionDetail::Error {
            syndrome: Syndrome::Flushed,
            vendor: vendor::FLUSHED,
        };
        self.push(context, CqeOpcode::RequestError, opcode, index, detail);
    }

    /// Flushes the request at the head of the ring. One that makes no sense takes one block.
    fn flush_one(&mut self, context: &Context<'_>, buffer: &mut RequestBuffer) {
        let blocks = self.fetch(buffer).unwrap_or(1);
        let index = self.head as u16;
        self.head += blocks as u64;
        self.completed_up_to(self.head);
        self.push_flushed(context, opcode_of(&buffer[..]), index);
    }

    #[inline]
    fn completion(&self, kind: CqeOpcode, opcode: Opcode, index: u16, detail: CompletionDetail) -> Completion {
        Completion {
            kind,
            opcode,
            queue_pair: self.shared.number,
            index,
            solicited: false,
            owner: false,
            detail,
        }
    }

    #[inline]
    fn push(&mut self, context: &Context<'_>, kind: CqeOpcode, opcode: Opcode, index: u16, detail: CompletionDetail) {
        let number = self.shared.number;
        let completion = self.completion(kind, opcode, index, detail);
        context.counters.completions.add(1);
        self.check_entry(context, self.completed(), &completion);
        if self.shared.ends.lock().push(completion) {
            context
                .violations
                .note(ViolationKind::CompletionOverrun, number, || completion.to_string());
        }
    }
}

impl Drop for QueuePairEngine {
    fn drop(&mut self) {
        self.in_flight.end(self.reads_in_flight.into());
    }
}

fn opcode_of(bytes: &[u8]) -> Opcode {
    ControlSegment::new_checked(bytes).map_or(Opcode::Nop, |control| control.opcode().into())
}
