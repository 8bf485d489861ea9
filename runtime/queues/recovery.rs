//! Queue pairs are recovered while kernels run.
//!
//! A network that loses packets can use up a request's retries by chance, and a request that cannot be served takes its queue
//! pair along. The pair is in the error state then, and the driver flushes what it holds; lanes see such requests as to be
//! repeated and go to other queue pairs or wait. The lane that meets the first error closes the pair to reservations. The
//! keeper, a host thread, waits until every request of it is finished, takes both ends through reset, and opens it again.
//! Indexes count on; only the rings' positions change. A GPU that follows a seed steps the keeper, in its own time.
//!
//! A completion that does not come (see [`pair`](super::pair)) fails its pair by the keeper's doing.
//!
//! | lane | keeper |
//! |---|---|
//! | reserves by compare-and-swap on `reserved` | |
//! | meets an error: sets `failed`, then `RESERVED_CLOSED` in `reserved`, then frees its slot | |
//! | reserves no more | sees the bit, `written` at the index beside it, every record free: nothing is in flight, and nothing but the keeper changes the pair |
//! | | reset at both ends, new descriptor, `failed` = 0 |
//! | acquires `reserved`, reads the descriptor | writes `reserved` without the bit |
//!
//! All of it lies in the GPU's memory, which the keeper reads and writes by plain copies: a host's atomics would not be
//! atomic to a real GPU.
//!
//! A node that is lost is told by its session: then the pairs go to the error state at once, so that lanes which wait
//! for an answer get one, and stay there. The same goes for a home in this host's memory that is taken away by itself: what
//! is lost is not recovered, and what is recovered is not lost. See [`returning`](super::returning) for homes that come back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{Actor, Gpu};
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_nic::wire::mlx5::Syndrome;

use super::{
    FAILED_BY_HOST, Group, Queues,
    pair::{FAILED_OVERDUE, Joining, phase_of},
};
use crate::{
    background::Background,
    error::{Doing, Result},
};

/// Searches for overdue requests in the time that one may take.
const SEARCHES: u64 = 4;
/// How often the keeper looks.
const PERIOD: Duration = Duration::from_millis(10);
/// How often it looks in the time of a GPU that follows a seed, where a page takes a few microseconds.
const STEP_PERIOD_NS: u64 = 20_000;
/// How many times as long as one request may take a home may be silent: two of the eight parts of a wait limit.
const SILENT_TIMES: u64 = 2;
/// After how many such times it is asked again: a wait limit.
const ASKED_AGAIN_TIMES: u64 = 8;
/// Tries in a row that may fail before a node counts as lost.
const TRIES_MAX: u32 = 3;

/// How far a pair that failed is from being recovered.
pub(super) enum Rest {
    /// Lanes may reserve of it, or are about to post what they reserved.
    Awake,
    /// It is closed and has not failed: a lane closed it when it had just been recovered.
    Stray,
    /// Nothing posts, and these requests have not been finished.
    Closed(Vec<RequestRecord>),
    /// Nothing is in flight, and nothing but the keeper changes it.
    Complete,
}

impl Queues {
    /// One look at every queue pair, `now_ns` after some fixed moment. Whether one was opened.
    fn keep(&self, gpu: &dyn Gpu, now_ns: u64) -> Result<bool> {
        let _resetting = self.lock_resetting();
        let states = self.read_states(gpu)?;
        self.fail_overdue(gpu, &states, now_ns)?;
        let mut opened = false;
        for group in &self.groups {
            let _held = group.local.as_ref().map(|local| local.hold());
            // Relaxed: see `say_lost`.
            let lost = group.lost.load(Ordering::Relaxed);
            if let (false, Some(why)) = (lost, group.failure()) {
                self.give_up(gpu, group, &why)?;
                continue;
            }
            // What is lost is not silent: nothing asks it.
            if !lost {
                self.look_for_silence(gpu, group, &states, now_ns)?;
            }
            for index in group.indexes() {
                let state = states[index as usize];
                if state.failed == 0 && state.reserved & layout::RESERVED_CLOSED == 0 {
                    continue;
                }
                let (rest, next) = self.rest_of(gpu, index)?;
                match rest {
                    Rest::Awake => continue,
                    Rest::Closed(waiting) => {
                        self.end_waiting(gpu, index, &waiting)?;
                        continue;
                    }
                    // Opened by the thread that takes the home back.
                    _ if lost => continue,
                    // `failed` stays as it is: a lane may store an error of its own at this moment, and closes the pair again.
                    Rest::Stray => self.let_reserve(gpu, index, next)?,
                    Rest::Complete if self.recover(gpu, group, index - group.first, next).is_ok() => {
                        self.open(gpu, index, next)?;
                        // Relaxed: a count.
                        self.recovered.fetch_add(1, Ordering::Relaxed);
                    }
                    Rest::Complete => {
                        if group.lost.load(Ordering::Relaxed) {
                            self.give_up(gpu, group, &"its queue pairs cannot join again")?;
                            break;
                        }
                        continue;
                    }
                }
                opened = true;
            }
        }
        Ok(opened)
    }

    /// Declares pairs failed whose oldest request has had no completion for too long.
    fn fail_overdue(&self, gpu: &dyn Gpu, states: &[QueueState], now_ns: u64) -> Result<()> {
        // Relaxed: the keeper's own, under `resetting`.
        if now_ns < self.next_search_ns.load(Ordering::Relaxed) {
            return Ok(());
        }
        let pause_ns = (self.timeout_ns / SEARCHES).max(1);
        self.next_search_ns
            .store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        for (index, (pair, state)) in (0..).zip(self.pairs.iter().zip(states)) {
            let waits = pair.waits_for(gpu, state, now_ns, || self.desc(gpu, index))?;
            let Some((oldest, since_ns)) = waits.filter(|(_, since_ns)| now_ns - since_ns >= self.timeout_ns) else {
                continue;
            };
            tracing::warn!(
                "request {oldest} of queue pair {:#x} has had no completion for {} us: the pair is recovered",
                pair.number,
                (now_ns - since_ns) / 1000
            );
            // A lane may store its own error at this moment: either stands for the pair.
            self.set_failed(gpu, index, FAILED_OVERDUE)?;
        }
        Ok(())
    }

    /// Has the unfinished requests of a closed pair end.
    pub(super) fn end_waiting(&self, gpu: &dyn Gpu, index: u32, unfinished: &[RequestRecord]) -> Result<()> {
        self.pairs[index as usize].end_waiting(gpu, unfinished, || self.desc(gpu, index))
    }

    fn desc(&self, gpu: &dyn Gpu, index: u32) -> Result<QueueDesc> {
        let read = self.table.read(gpu, index.into(), 1);
        Ok(read.doing(|| "reading the description of a queue pair".to_owned())?[0])
    }

    /// Whether a failed pair can be recovered, and the index of its next request.
    pub(super) fn rest_of(&self, gpu: &dyn Gpu, index: u32) -> Result<(Rest, u64)> {
        let doing = || "reading a queue pair".to_owned();
        // Read after the state in which it was seen to have failed, since a reset may have gone between; the records after it.
        let state = self.states.read(gpu, index.into(), 1).doing(doing)?[0];
        let next = state.reserved & !layout::RESERVED_CLOSED;
        if state.reserved == next {
            return Ok((Rest::Awake, next));
        }
        // Who closes a pair for an error of its own has set `failed` before.
        if state.failed == 0 {
            let again = self.states.read(gpu, index.into(), 1).doing(doing)?[0];
            return Ok((if again.failed == 0 { Rest::Stray } else { Rest::Awake }, next));
        }
        if state.written != next {
            return Ok((Rest::Awake, next));
        }
        let mut records = self.pairs[index as usize].read_records(gpu)?;
        records.retain(|record| phase_of(record) != layout::RECORD_FREE);
        // The NIC has seen a doorbell for everything: also where it flushed up to the doorbell record, and no request is left, a
        // ringer may have yet to store the register.
        let rest = match (state.posted == next, records.is_empty()) {
            (false, _) => Rest::Awake,
            (true, true) => Rest::Complete,
            (true, false) => Rest::Closed(records),
        };
        Ok((rest, next))
    }

    /// A home that has answered nothing over its recovered queue pairs for some time is silent: they can be recovered, and no data comes.
    /// Regions with two homes turn to the other one then; others go on asking. It is asked again when it answers others, or after
    /// some time.
    fn look_for_silence(&self, gpu: &dyn Gpu, group: &Group, states: &[QueueState], now_ns: u64) -> Result<()> {
        if !self.reliable || !group.is_kept() {
            return Ok(());
        }
        let no_answer = |state: &QueueState| {
            let syndrome = Syndrome::from((state.failed >> 8) as u8);
            matches!(syndrome, Syndrome::TransportRetryExceeded | Syndrome::ReceiverNotReady)
        };
        let (mut answered, mut unanswered) = (false, false);
        for index in group.indexes() {
            let state = &states[index as usize];
            answered |= state.answered != 0;
            unanswered |= no_answer(state);
        }
        // Relaxed: of the holder of `resetting`. 0 says that it answers.
        let since_ns = group.silent_since_ns.load(Ordering::Relaxed);
        let until_ns = group.silent_until_ns.load(Ordering::Relaxed);
        if !unanswered && (until_ns == 0 || (!answered && now_ns < until_ns)) {
            return Ok(());
        }
        if answered {
            self.tell(gpu, group, core::mem::offset_of!(QueueState, answered), 0)?;
        }
        if until_ns != 0 && (answered || now_ns >= until_ns) {
            tracing::info!("{} is asked again", group.home_name());
            self.tell(gpu, group, core::mem::offset_of!(QueueState, silent), 0)?;
            group.silent_until_ns.store(0, Ordering::Relaxed);
            group.silent_since_ns.store(0, Ordering::Relaxed);
            self.spoke_again.store(true, Ordering::Relaxed);
        } else if answered {
            group.silent_since_ns.store(0, Ordering::Relaxed);
        } else if since_ns == 0 {
            group.silent_since_ns.store(now_ns.max(1), Ordering::Relaxed);
        } else if until_ns == 0 && now_ns.saturating_sub(since_ns) > SILENT_TIMES.saturating_mul(self.timeout_ns) {
            tracing::warn!(
                "{} does not answer although its queue pairs were recovered: replicas use the other home",
                group.home_name()
            );
            let until_ns = now_ns.saturating_add(ASKED_AGAIN_TIMES.saturating_mul(self.timeout_ns));
            group.silent_until_ns.store(until_ns.max(1), Ordering::Relaxed);
            self.tell(gpu, group, core::mem::offset_of!(QueueState, silent), 1)?;
        }
        Ok(())
    }

    /// What was counted of an earlier stay of a home counts no more. Before its queue pairs are opened.
    pub(super) fn begin_stay(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        // Relaxed: of the holder of `resetting`.
        group.tries.store(0, Ordering::Relaxed);
        group.silent_since_ns.store(0, Ordering::Relaxed);
        group.silent_until_ns.store(0, Ordering::Relaxed);
        self.tell(gpu, group, core::mem::offset_of!(QueueState, silent), 0)
    }

    /// Writes a value into the states of all queue pairs of a home.
    fn tell(&self, gpu: &dyn Gpu, group: &Group, offset: usize, value: u32) -> Result<()> {
        for index in group.indexes() {
            let written = gpu.write(self.state_addr(index) + offset as u64, &value.to_ne_bytes());
            written.doing(|| "telling lanes the state of a queue pair".to_owned())?;
        }
        Ok(())
    }

    /// Whether a home that was silent is asked again since the last call.
    pub fn spoke_again(&self) -> bool {
        // Relaxed: a hint.
        self.spoke_again.swap(false, Ordering::Relaxed)
    }

    /// The next request's index of a closed pair on which nothing is in flight.
    pub(super) fn idle_index(&self, gpu: &dyn Gpu, index: u32) -> Result<Option<u64>> {
        let (rest, next) = self.rest_of(gpu, index)?;
        Ok(matches!(rest, Rest::Complete).then_some(next))
    }

    /// Opens a recovered pair for request `next`.
    pub(super) fn open(&self, gpu: &dyn Gpu, index: u32, next: u64) -> Result<()> {
        self.set_failed(gpu, index, 0)?;
        // After `failed`.
        self.let_reserve(gpu, index, next)
    }

    /// Takes the bit from a closed pair.
    fn let_reserve(&self, gpu: &dyn Gpu, index: u32, next: u64) -> Result<()> {
        self.pairs[index as usize].forget();
        // In one piece: a lane that finds the bit gone may reserve.
        let at = self.state_addr(index) + core::mem::offset_of!(QueueState, reserved) as u64;
        let opened = gpu.write(at, &next.to_ne_bytes());
        opened.doing(|| "opening a recovered queue pair".to_owned())
    }

    pub(super) fn set_failed(&self, gpu: &dyn Gpu, index: u32, value: u32) -> Result<()> {
        let at = self.state_addr(index) + core::mem::offset_of!(QueueState, failed) as u64;
        let written = gpu.write(at, &value.to_ne_bytes());
        written.doing(|| "telling lanes the state of a queue pair".to_owned())
    }

    /// Recovers a pair on which nothing is in flight. After several failures in a row its node counts as lost.
    pub(super) fn recover(&self, gpu: &dyn Gpu, group: &Group, turn: u32, next: u64) -> Result<()> {
        let recovered = self.begin_anew(gpu, group, turn, next);
        match &recovered {
            // Relaxed: a count of the holder of `resetting`.
            Ok(()) => group.tries.store(0, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "a queue pair could not be recovered"
                );
                if group.tries.fetch_add(1, Ordering::Relaxed) + 1 >= TRIES_MAX {
                    group.say_lost(error);
                }
            }
        }
        recovered
    }

    /// Takes a closed pair through reset, and lets it begin anew over its connection; or joins the node again where that
    /// does not work.
    pub(super) fn begin_anew(&self, gpu: &dyn Gpu, group: &Group, turn: u32, next: u64) -> Result<()> {
        let index = group.first + turn;
        let pair = &self.pairs[index as usize];
        let mut links = group.links();
        if links.len() <= turn as usize {
            links.resize_with(group.count as usize, || None);
        }
        let place = &mut links[turn as usize];
        if let Some(link) = place.as_ref().filter(|link| !link.is_over()) {
            pair.reset()?;
            self.describe_one(gpu, group, index, next)?;
            match link.rejoin(&Joining::of(pair)) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::info!(
                        error = &error as &dyn std::error::Error,
                        "queue pair {:#x} joins again",
                        pair.number
                    );
                }
            }
        }
        // The old connection ends first: the node's end of it is of no use any more.
        drop(place.take());
        pair.reset()?;
        *place = self.connect_one(gpu, group, index, next)?;
        Ok(())
    }

    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped. Queue pairs
    /// whose node is lost stay in the error state: what they reach cannot be served, everything else can.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        let _resetting = self.lock_resetting();
        for group in &self.groups {
            match group.is_kept() {
                false => {
                    for index in group.indexes() {
                        self.pairs[index as usize].reset()?;
                        self.clear_pair(gpu, index, 0)?;
                    }
                    self.connect(gpu, group)?;
                    // Relaxed: see `say_lost`. This host's memory is there again once its pairs are.
                    group.lost.store(false, Ordering::Relaxed);
                }
                true => self.reset_kept(gpu, group)?,
            }
        }
        Ok(())
    }

    fn reset_kept(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        let _held = group.local.as_ref().map(|local| local.hold());
        // Relaxed: a count of the holder of `resetting`.
        group.resets.fetch_add(1, Ordering::Relaxed);
        for turn in 0..group.count {
            self.clear_pair(gpu, group.first + turn, 0)?;
            // Relaxed: see `say_lost`.
            while !group.lost.load(Ordering::Relaxed) {
                if let Some(why) = group.failure() {
                    group.say_lost(&why);
                } else if self.recover(gpu, group, turn, 0).is_ok() {
                    break;
                }
            }
        }
        if group.lost.load(Ordering::Relaxed) {
            for index in group.indexes() {
                self.pairs[index as usize].reset()?;
                self.clear_pair(gpu, index, FAILED_BY_HOST)?;
            }
        }
        Ok(())
    }

    /// Ends all requests to a lost node, and keeps lanes from posting others.
    pub(super) fn give_up(&self, gpu: &dyn Gpu, group: &Group, why: &dyn std::fmt::Display) -> Result<()> {
        group.say_lost(why);
        let states = self.read_states(gpu)?;
        for index in group.indexes() {
            // A request's own error stays the one that is told; one that comes at this very moment does not.
            let failed = match states[index as usize].failed {
                0 => FAILED_BY_HOST,
                own => own | layout::QUEUE_LOST,
            };
            self.set_failed(gpu, index, failed)?;
            let pair = &self.pairs[index as usize];
            // Flushes what waits for an answer.
            if let Err(error) = pair.nic.fail(pair.number) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "requests to a lost node end by the wait limit"
                );
            }
        }
        Ok(())
    }
}

/// Starts the thread that keeps a GPU's queue pairs.
///
/// # Errors
/// The system's.
pub(crate) fn start_keeper(queues: Arc<Queues>, gpu: Arc<dyn Gpu>) -> std::io::Result<Background> {
    let started = Instant::now();
    Background::start("gpuvm-keeper", PERIOD, move |_| {
        // 2^64 ns are 584 years.
        if let Err(error) = queues.keep(&*gpu, started.elapsed().as_nanos() as u64) {
            // The GPU is lost: launches say so.
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "queue pairs are not recovered"
            );
        }
        true
    })
}

/// What keeps the queue pairs of a GPU that follows a seed: it steps this.
pub(crate) struct StepKeeper {
    queues: Weak<Queues>,
    gpu: Weak<dyn Gpu>,
    next_ns: AtomicU64,
}

impl StepKeeper {
    /// A keeper that keeps neither alive.
    pub fn new(queues: &Arc<Queues>, gpu: &Arc<dyn Gpu>) -> Self {
        Self {
            queues: Arc::downgrade(queues),
            gpu: Arc::downgrade(gpu),
            next_ns: AtomicU64::new(0),
        }
    }
}

impl Actor for StepKeeper {
    fn step(&self, now_ns: u64) -> bool {
        // Relaxed: one thread steps it.
        if now_ns < self.next_ns.load(Ordering::Relaxed) {
            return false;
        }
        self.next_ns.store(now_ns + STEP_PERIOD_NS, Ordering::Relaxed);
        let (Some(queues), Some(gpu)) = (self.queues.upgrade(), self.gpu.upgrade()) else {
            return false;
        };
        queues.keep(&*gpu, now_ns).unwrap_or_else(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "queue pairs are not recovered"
            );
            false
        })
    }
}
