//! How launches are stopped, apart from the driver: a call of the driver may wait for running kernels, and others behind it, so
//! that deadlines are kept by a thread that makes no such call and takes no lock that is held over one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::calls::cu;
use super::core::{Core, Raw, Retired, StreamHandle};
use super::host::pin;
use crate::api::Watch;
use crate::error::GpuError;

/// How long a kernel has to end after it was asked to, unless a tenth of its deadline is longer.
const GRACE: Duration = Duration::from_secs(1);
/// How much later than its deadline a launch is stopped whose start nothing could see, and how late waiters act themselves.
pub(crate) const LATE: Duration = Duration::from_secs(5);
/// How old the watching thread's last look may be before it counts as stuck.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How often deadlines are looked at. The watching thread looks more often while it is free.
const GUARD_PAUSE: Duration = Duration::from_millis(20);

/// Where a kernel reads that it shall end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopWord {
    /// Nowhere: it was launched without a state.
    None,
    /// In host memory.
    Host(Raw<u8>),
    /// In device memory.
    Device(u64),
}

#[derive(Clone)]
pub(crate) enum Why {
    Deadline,
    /// Who stopped it.
    Abandoned(String),
}

#[derive(Default)]
struct Progress {
    /// When its start was seen, or given up to be seen.
    started: Option<Instant>,
    /// Why and when it was asked to end.
    stop: Option<(Why, Instant)>,
    /// How it ends should the GPU be lost.
    last_word: Option<GpuError>,
    /// Its memory may be gone.
    over: bool,
}

/// What stops one launch.
pub(crate) struct Brake {
    pub(crate) number: u64,
    stream: u64,
    kernel: Arc<str>,
    deadline: Option<Duration>,
    /// It ends when another one is stopped.
    serves: bool,
    word: StopWord,
    since: Instant,
    /// Its stream has other work, which nothing here knows: until its start is seen it may not have begun.
    behind_others: bool,
    /// Never held over a call of the driver.
    progress: Mutex<Progress>,
}

struct StopsState {
    last: u64,
    /// In the order of their launches.
    brakes: VecDeque<Arc<Brake>>,
    /// When the last launch ended.
    ended: Instant,
    /// When the watching thread last looked at all streams.
    looked: Instant,
    closed: bool,
}

/// What stops the launches of one GPU.
pub(crate) struct Stops {
    core: Arc<Core>,
    state: Mutex<StopsState>,
    changed: Condvar,
    /// Stop words in device memory that are to be written; none once the GPU is closed.
    letters: Mutex<Option<VecDeque<Arc<Brake>>>>,
    posted: Condvar,
}

impl Brake {
    fn mark(&self, why: Why) -> bool {
        let mut progress = self.progress.lock();
        let first = !progress.over && progress.stop.is_none();
        if first {
            progress.stop = Some((why, Instant::now()));
        }
        first
    }

    /// Whether its start is of interest and was not seen.
    pub(crate) fn wants_start(&self) -> bool {
        let progress = self.progress.lock();
        progress.started.is_none() && (self.deadline.is_some() || progress.stop.is_some())
    }

    /// Its start was seen.
    pub(crate) fn saw_start(&self, now: Instant) {
        self.progress.lock().started.get_or_insert(now);
    }

    /// How it ends, if it was stopped and has ended.
    pub(crate) fn stopped(&self) -> Option<GpuError> {
        let why = self.progress.lock().stop.clone();
        why.map(|(why, _)| self.error(why, "it was asked to end, and did"))
    }

    /// How it ends when the GPU is lost for `cause`.
    pub(crate) fn lost(&self, cause: &GpuError) -> GpuError {
        if let Some(word) = self.progress.lock().last_word.clone() {
            return word;
        }
        match cause {
            GpuError::Lost { .. } => cause.clone(),
            other => self.abandoned(&format!("the GPU was lost beside it: {other}")),
        }
    }

    fn error(&self, why: Why, report: &str) -> GpuError {
        match why {
            Why::Deadline => GpuError::Deadline {
                kernel: self.kernel.to_string(),
                limit: self.deadline.unwrap_or_default(),
                report: format!("{report}; an NVIDIA GPU does not tell where its threads were"),
            },
            Why::Abandoned(cause) => self.abandoned(&cause),
        }
    }

    fn abandoned(&self, cause: &str) -> GpuError {
        GpuError::Abandoned {
            kernel: self.kernel.to_string(),
            cause: cause.to_owned(),
        }
    }

    fn store(&self, word: Raw<u8>) {
        // Until it is over its memory is there, and it cannot be over while this lock is held.
        let progress = self.progress.lock();
        if progress.over {
            return;
        }
        // SAFETY: the caller of `launch` keeps the launch's state alive until its callback, which comes after `over`. It is at
        // least 4-byte aligned: checked at the launch.
        let word = unsafe { AtomicU32::from_ptr(word.0.cast()) };
        // Release: what the stopper did before is before it for a kernel that acquires; the kernel asks with a relaxed load.
        word.store(1, Ordering::Release);
    }
}

impl Stops {
    /// No launches.
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            core,
            state: Mutex::new(StopsState {
                last: 0,
                brakes: VecDeque::new(),
                ended: now,
                looked: now,
                closed: false,
            }),
            changed: Condvar::new(),
            letters: Mutex::new(Some(VecDeque::new())),
            posted: Condvar::new(),
        })
    }

    /// A launch that will be enqueued next.
    pub(crate) fn add(
        &self,
        (stream, behind_others): (u64, bool),
        kernel: &Arc<str>,
        watch: Watch,
        word: StopWord,
    ) -> Arc<Brake> {
        let mut state = self.state.lock();
        state.last += 1;
        let brake = Arc::new(Brake {
            number: state.last,
            stream,
            kernel: Arc::clone(kernel),
            deadline: watch.deadline,
            serves: watch.serves,
            word,
            since: Instant::now(),
            behind_others,
            progress: Mutex::default(),
        });
        state.brakes.push_back(Arc::clone(&brake));
        self.changed.notify_all();
        brake
    }

    /// The launch has ended, or was not enqueued.
    pub(crate) fn remove(&self, brake: &Brake) {
        brake.progress.lock().over = true;
        let mut state = self.state.lock();
        if let Ok(place) = state.place_of(brake.number) {
            state.brakes.remove(place);
        }
        state.ended = Instant::now();
        self.changed.notify_all();
    }

    /// The watching thread has looked at all streams.
    pub(crate) fn looked(&self) {
        self.state.lock().looked = Instant::now();
    }

    /// Asks one launch to end. Those that share its word will end too: each is marked before the word is written, so that
    /// none that starts afterwards seems to have run well. Those that serve others are asked, too: the driver may wait for them in a call that
    /// keeps the end of this one from being seen.
    pub(crate) fn stop(&self, brake: &Brake, why: Why) {
        let serving: Vec<_> = {
            let state = self.state.lock();
            if !brake.mark(why) {
                return;
            }
            let shares = |other: &&Arc<Brake>| brake.word != StopWord::None && other.word == brake.word;
            for other in state.brakes.iter().filter(shares) {
                let cause = format!(
                    "it shares its launch state with kernel `{}`, which was stopped",
                    brake.kernel
                );
                other.mark(Why::Abandoned(cause));
            }
            let cause = format!("kernel `{}`, which it may serve, was stopped", brake.kernel);
            let serves =
                |other: &&Arc<Brake>| other.serves && !brake.serves && other.mark(Why::Abandoned(cause.clone()));
            state.brakes.iter().filter(serves).cloned().collect()
        };
        self.write(brake);
        serving.iter().for_each(|other| self.write(other));
    }

    /// Asks all launches to end.
    pub(crate) fn stop_all(&self, cause: &str) {
        let brakes = {
            let mut brakes = self.state.lock().brakes.clone();
            brakes.retain(|brake| brake.mark(Why::Abandoned(cause.to_owned())));
            brakes
        };
        for brake in brakes {
            self.write(&brake);
        }
    }

    fn write(&self, brake: &Brake) {
        match brake.word {
            StopWord::None => {}
            StopWord::Host(word) => brake.store(word),
            StopWord::Device(_) => {
                // The courier needs one that lives on; a launch that is gone needs no letter.
                let found = self.state.lock().find(brake.number);
                if let (Some(brake), Some(letters)) = (found, self.letters.lock().as_mut()) {
                    letters.push_back(brake);
                    self.posted.notify_all();
                }
            }
        }
    }

    /// Stops the launch if its time was over `allowance` ago, and gives it up when it does not end. Makes no call of the driver.
    pub(crate) fn look(&self, brake: &Brake, now: Instant, allowance: Duration) {
        let (started, stop) = {
            let progress = brake.progress.lock();
            (progress.started, progress.stop.clone())
        };
        let Some(started) = started else { return };
        let Some((why, asked)) = stop else {
            let ran = now.saturating_duration_since(started);
            if brake
                .deadline
                .is_some_and(|limit| ran > limit.saturating_add(allowance))
            {
                self.stop(brake, Why::Deadline);
            }
            return;
        };
        let grace = GRACE.max(brake.deadline.unwrap_or_default() / 10);
        if now.saturating_duration_since(asked.max(started)) < grace.saturating_add(allowance) {
            return;
        }
        let heard = match brake.word {
            StopWord::None => "it was launched without a state through which it could be asked",
            _ => "it was asked to end and did not",
        };
        let report = format!(
            "{heard} within {:.1} s; it cannot be stopped, and the GPU is lost",
            grace.as_secs_f64()
        );
        let why = match why {
            Why::Abandoned(cause) => Why::Abandoned(format!("{cause}; {report}")),
            Why::Deadline => Why::Deadline,
        };
        let word = brake.error(why, &report);
        {
            let mut progress = brake.progress.lock();
            if progress.over || progress.last_word.is_some() {
                return;
            }
            progress.last_word = Some(word.clone());
        }
        // Not as a dead context: what runs on may still reach memory.
        self.core.lose_with(word);
    }

    /// Keeps deadlines while the watching thread is stuck in the driver or busy with a callback.
    pub(crate) fn guard(&self) {
        let mut state = self.state.lock();
        while !state.closed || !state.brakes.is_empty() {
            if state.brakes.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            let now = Instant::now();
            if now.saturating_duration_since(state.looked) > LOOK_MAX {
                state.assume_starts(now);
            }
            let brakes = state.brakes.clone();
            drop(state);
            for brake in &brakes {
                self.look(brake, now, GUARD_PAUSE);
            }
            drop(brakes);
            std::thread::sleep(GUARD_PAUSE);
            state = self.state.lock();
        }
    }

    /// No launch will be added.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Nothing is left to be stopped: the courier ends.
    pub(crate) fn end_courier(&self) {
        *self.letters.lock() = None;
        self.posted.notify_all();
    }

    /// Writes stop words in device memory, by a stream and a buffer of its own that are there before anything runs. The driver may hold a
    /// lock of its own while it waits for a kernel in another call, and then this waits too: such a launch ends when that
    /// call does. A launch state in host memory, as this project's runtime has it, does not depend on that.
    pub(crate) fn carry(&self, tools: &Courier) {
        loop {
            let brake = {
                let mut letters = self.letters.lock();
                loop {
                    match letters.as_mut().map(VecDeque::pop_front) {
                        None => return,
                        Some(Some(brake)) => break brake,
                        Some(None) => self.posted.wait(&mut letters),
                    }
                }
            };
            let StopWord::Device(addr) = brake.word else { continue };
            // The launch's memory leaves the books after `over` only, and not while this is held.
            let _copying = self.core.copying();
            if !brake.progress.lock().over {
                // An error means that the GPU is lost, which ends the launch anyway.
                let _ = tools.write(&self.core, addr);
            }
        }
    }
}

impl StopsState {
    /// Where the launch of a number is among `brakes`.
    fn place_of(&self, number: u64) -> Result<usize, usize> {
        self.brakes.binary_search_by_key(&number, |brake| brake.number)
    }

    fn find(&self, number: u64) -> Option<Arc<Brake>> {
        self.place_of(number)
            .ok()
            .and_then(|place| self.brakes.get(place).cloned())
    }

    /// Takes launches as started that nothing seen keeps from running, once their time would be over by [`LATE`].
    fn assume_starts(&self, now: Instant) {
        for (index, brake) in self.brakes.iter().enumerate() {
            let Some(limit) = brake.deadline else { continue };
            let mut progress = brake.progress.lock();
            let is_head = !self.brakes.iter().take(index).any(|other| other.stream == brake.stream);
            let since = brake.since.max(self.ended);
            let due = now.saturating_duration_since(since) > limit.saturating_add(LATE);
            if progress.started.is_none() && is_head && !brake.behind_others && due {
                progress.started = Some(since);
            }
        }
    }
}

/// A stream and a pinned word that is 1.
pub(crate) struct Courier {
    stream: StreamHandle,
    one: Raw<u8>,
}

impl Courier {
    /// Made before any kernel runs.
    pub(crate) fn new(core: &Core) -> Result<Self, GpuError> {
        let (one, _) = pin(core, 4096)?;
        // SAFETY: the memory is fresh and page aligned.
        unsafe { one.0.cast::<u32>().write(1) };
        let stream = core
            .new_stream(true)
            .inspect_err(|_| core.retire(Retired::Host(Raw(one.0.cast()))))?;
        Ok(Self { stream, one })
    }

    fn write(&self, core: &Core, addr: u64) -> Result<(), GpuError> {
        core.enter()?;
        // SAFETY: the launch's state is live: the caller checked under the guard that keeps memory; the word lives as long as `self`.
        let called = unsafe { cu::cuMemcpyHtoDAsync_v2(addr, self.one.0.cast(), 4, self.stream.0) };
        core.check("ask a kernel to end", called)?;
        core.synchronize(self.stream, "ask a kernel to end")
    }

    /// Gives the stream and the memory back.
    pub(crate) fn retire(self, core: &Core) {
        core.retire(Retired::Stream(self.stream));
        core.retire(Retired::Host(Raw(self.one.0.cast())));
    }
}
