//! The software NIC whose engine is a kernel: a few multiprocessors of the GPU read the requests that kernels post, move the bytes and write
//! the completions. No thread of the processor is on a request's way. docs/PROTOCOL.md, section 9, has the rules.
//!
//! The engine runs while launches are in flight that may post. So what waits for all kernels to end (a driver that loads a module or frees
//! memory) waits for those of the program, as without it: the engine ends behind the last of them.

mod cases;
mod keys;
mod words;

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{CompileOptions, Gpu, GpuError, Kernel, Launch, LaunchConfig, LaunchOutcome, Source, Stream, Watch};
use gpuvm_layouts::{self as layout, NicEngine, NicQueue};
use gpuvm_nic::{
    Access, Backing, MemoryKey, Nic, NicCapabilities, NicError, NicLimits, QueueAttributes, QueueMemory, QueuePair,
    QueuePairState, QueueRings, check_span,
    soft::{self, FaultId, FaultMix, FaultPlan, FaultTally, Judge},
    wire::mlx5::{CQE_BYTES, CQE_INVALID, MESSAGE_BYTES_MAX, QUEUE_BLOCKS_MAX},
};
use parking_lot::Mutex;

use crate::device::{DeviceArray, zero};

use cases::Cases;
use keys::{KEYS, Keys};
use words::Words;

pub use words::Serving;

const NAME: &str = "software";
/// Source and kernel: of the engine that executes requests as it finds them, and of the one that asks the host about each.
const PLAIN: (&str, &str) = (include_str!("gpu/nic_engine.cu"), "gpuvm_nic_engine");
const JUDGED: (&str, &str) = (include_str!("gpu/nic_engine_judged.cu"), "gpuvm_nic_engine_judged");
/// How long calls wait for the engine.
const BOUND_MS: u64 = 10_000;
const BOUND: Duration = Duration::from_millis(BOUND_MS);
const NO_ROOM: NicError = NicError::NoRoom { waited_ms: BOUND_MS };
const STARTING: &str = "starting the engine";
const BRINGING_UP: &str = "bringing up an engine that is a kernel";
/// Threads of a block on a simulated multiprocessor, whose lanes share a processor.
const THREADS_SIMULATED: u32 = 64;
/// Bytes between the blocks' copies of the host's word.
const TOLD_BYTES: u64 = 128;

/// An entry that holds no completion.
const INVALID: [u8; CQE_BYTES] = {
    let mut entry = [0; CQE_BYTES];
    entry[CQE_BYTES - 1] = CQE_INVALID;
    entry
};

/// The NIC. Rings, records and registers are the GPU's memory; what is registered is that, or host memory that its lanes reach.
///
/// With [limits](Self::limited), or once faults were [planted](Self::inject) or [drawn](Self::mix_faults), a thread of the host says of each request
/// when it completes and how: by the rules and the code of [`SoftNic`](gpuvm_nic::SoftNic). Then a processor is on its way, and the rates that such an
/// engine reaches are not those of the engine alone.
pub struct KernelNic {
    gpu: Arc<dyn Gpu>,
    stream: Arc<dyn Stream>,
    words: Arc<Words>,
    queues: DeviceArray<NicQueue>,
    engine: NicEngine,
    shape: LaunchConfig,
    tables: Mutex<Tables>,
    /// Held while an engine starts.
    engines: Mutex<Engines>,
    options: CompileOptions,
    limits: Option<NicLimits>,
    judge: Arc<Judge>,
    cases: Arc<Cases>,
    _told: DeviceArray<u64>,
    _plans: DeviceArray<u64>,
}

/// The kernel that is the engine, and its launches.
struct Engines {
    kernel: Arc<dyn Kernel>,
    /// It asks the host about each request.
    is_judged: bool,
    /// The one that was started last.
    last: Option<Arc<dyn Launch>>,
}

/// What the host alone changes.
struct Tables {
    /// A queue pair for each place.
    pairs: Vec<Option<Pair>>,
    created: u32,
    keys: Keys,
    /// The last change that the engine was told of.
    change: u32,
    /// What it did for queue pairs that are no more.
    past: [u64; 8],
}

#[derive(Clone, Copy)]
struct Pair {
    number: u32,
    memory: QueueMemory,
}

/// What the engine has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelNicStats {
    /// READs that did well.
    pub reads: u64,
    /// WRITEs that did well.
    pub writes: u64,
    /// Other requests that did well.
    pub others: u64,
    /// Bytes that READs and WRITEs moved.
    pub bytes: u64,
    /// Completions, of any kind.
    pub completions: u64,
    /// Requests that failed, flushed ones not counted.
    pub errors: u64,
    /// Requests that were flushed.
    pub flushed: u64,
    /// Doorbells that broke a rule: of another queue pair or for more than the ring has, which are ignored, or ahead of their record.
    pub doorbells_broken: u64,
}

fn failed(what: &'static str) -> impl FnOnce(GpuError) -> NicError {
    move |error| NicError::Mover {
        what,
        source: Box::new(error),
    }
}

fn compile(
    gpu: &dyn Gpu,
    (source, kernel): (&'static str, &str),
    options: &CompileOptions,
) -> Result<Arc<dyn Kernel>, GpuError> {
    let source = Source::new(format!("{kernel}.cu"), source);
    gpu.compile(&source, &[kernel], options)?.kernel(kernel)
}

fn unsupported<T>(what: &'static str) -> Result<T, NicError> {
    Err(NicError::Unsupported { nic: NAME, what })
}

impl KernelNic {
    /// One on `blocks` multiprocessors of `gpu`, with room for so many queue pairs. Nothing runs before [`serve`](Self::serve).
    ///
    /// # Errors
    /// [`NicError::Mover`] with the GPU's error: memory, or a compiler that is missing.
    pub fn new(gpu: Arc<dyn Gpu>, blocks: u32, queue_pairs: u32) -> Result<Self, NicError> {
        Self::compiled(gpu, blocks, queue_pairs, &CompileOptions::default())
    }

    /// [`new`](Self::new), compiled with options: for tests, whose headers have a bug planted.
    #[doc(hidden)]
    pub fn compiled(
        gpu: Arc<dyn Gpu>,
        blocks: u32,
        queue_pairs: u32,
        options: &CompileOptions,
    ) -> Result<Self, NicError> {
        let able = gpu.capabilities();
        let threads = able
            .compute_capability
            .map_or(THREADS_SIMULATED, |_| layout::NIC_ENGINE_THREADS);
        let made = || {
            let warps = (blocks * threads / able.warp_size) as usize;
            let words = Words::new(&*gpu, warps)?;
            let cases = Cases::new(&*gpu, warps)?;
            let plans = u64::from(queue_pairs) * u64::from(layout::NIC_IN_FLIGHT) * 2;
            let plans = DeviceArray::<u64>::zeroed(&*gpu, plans)?;
            let queues = DeviceArray::<NicQueue>::zeroed(&*gpu, queue_pairs.into())?;
            let keys = Keys::new(&*gpu)?;
            let told = DeviceArray::<u64>::zeroed(&*gpu, u64::from(blocks) * TOLD_BYTES / 8)?;
            let engine = NicEngine {
                queues: queues.addr(),
                keys: keys.table_addr(),
                control: words.control_addr(),
                told: told.addr(),
                heard: words.heard_addr(),
                plans: plans.addr(),
                cases: cases.addr(),
                queue_count: queue_pairs,
                key_count: KEYS,
                reads_max: NicLimits::connectx7().reads_per_queue_pair,
                pad0: 0,
            };
            Ok(Self {
                // Before kernels that wait for multiprocessors.
                stream: gpu.urgent_stream()?,
                words: Arc::new(words),
                queues,
                engine,
                shape: LaunchConfig {
                    watch: Watch {
                        serves: true,
                        ..Watch::default()
                    },
                    ..LaunchConfig::linear(blocks, threads)
                },
                tables: Mutex::new(Tables {
                    pairs: vec![None; queue_pairs as usize],
                    created: 0,
                    keys,
                    change: 1,
                    past: [0; 8],
                }),
                engines: Mutex::new(Engines {
                    kernel: compile(&*gpu, PLAIN, options)?,
                    is_judged: false,
                    last: None,
                }),
                options: options.clone(),
                limits: None,
                judge: Arc::new(Judge::new(NAME, None)),
                cases: Arc::new(cases),
                _told: told,
                _plans: plans,
                gpu: Arc::clone(&gpu),
            })
        };
        made().map_err(failed(BRINGING_UP))
    }

    /// Has it keep to limits, before anything else is asked of it. Of a queue pair at most 64 requests are in flight.
    ///
    /// # Errors
    /// Limits that let nothing through, or more READs in flight; [`NicError::Mover`] with the GPU's error.
    pub fn limited(mut self, limits: NicLimits) -> Result<Self, NicError> {
        limits.check()?;
        if limits.reads_per_queue_pair > layout::NIC_IN_FLIGHT {
            return Err(NicError::BadArgument {
                what: "max_rd_atomic",
                value: limits.reads_per_queue_pair.into(),
                expected: "at most 64 with an engine that is a kernel",
            });
        }
        self.engine.reads_max = limits.reads_per_queue_pair;
        self.judge = Arc::new(Judge::new(NAME, Some(limits)));
        self.limits = Some(limits);
        self.be_judged()?;
        Ok(self)
    }

    /// Has the engines that are started from now on ask the host.
    fn be_judged(&self) -> Result<(), NicError> {
        let mut engines = self.engines.lock();
        if engines.is_judged {
            return Ok(());
        }
        // One that was told to end is followed by another.
        if !self.words.is_ending() && engines.last.as_ref().is_some_and(|last| !last.is_done()) {
            return unsupported("begin to inject faults while launches are in flight: do so before them");
        }
        engines.kernel = compile(&*self.gpu, JUDGED, &self.options).map_err(failed(BRINGING_UP))?;
        engines.is_judged = true;
        Ok(())
    }

    /// Plants a fault for requests that are posted from now on, as [`SoftNic::inject`](gpuvm_nic::SoftNic::inject) does. The first one comes before
    /// launches are in flight.
    ///
    /// # Errors
    /// A [`Fault::Flip`](soft::Fault::Flip); the first one while launches are in flight; [`NicError::Mover`] with the GPU's error.
    pub fn inject(&self, plan: FaultPlan) -> Result<FaultId, NicError> {
        self.be_judged()?;
        self.judge.inject(plan)
    }

    /// Draws faults of `mix` by `seed` for requests that are posted from now on, as [`SoftNic::mix_faults`](gpuvm_nic::SoftNic::mix_faults) does. Requests
    /// of several queue pairs meet each other by chance.
    ///
    /// # Errors
    /// As [`inject`](Self::inject), for the kinds `reorder`, `pieces`, `unflushed` and `doorbell`.
    pub fn mix_faults(&self, mix: &FaultMix, seed: u64) -> Result<(), NicError> {
        self.be_judged()?;
        self.judge.mix_faults(mix, seed)
    }

    /// How many requests a planted fault has bitten.
    pub fn bitten(&self, fault: FaultId) -> u64 {
        self.judge.bitten(fault)
    }

    /// Ends all faults: none begins any more, and those that last are over.
    pub fn calm(&self) {
        self.judge.calm();
    }

    /// What the mix of faults has done so far. Empty without a mix.
    pub fn fault_tally(&self) -> FaultTally {
        self.judge.fault_tally()
    }

    /// Has the engine run until what this returns is dropped. It has its multiprocessors when this returns.
    ///
    /// # Errors
    /// [`NicError::NoRoom`] when other kernels have all multiprocessors, the GPU's.
    pub fn serve(&self) -> Result<Serving, NicError> {
        // From here on nobody tells an engine to end. Who drops one waits for none that starts.
        let serving = Words::need(&self.words);
        let mut engines = self.engines.lock();
        let last = engines.last.as_ref();
        // One that was stopped in the midst of launches is followed by another; of a lost GPU the launch says so.
        if self.words.is_ending() || last.is_none_or(|last| last.is_done()) {
            if last.is_some_and(|last| last.wait(Some(BOUND)).is_none()) {
                return Err(NO_ROOM);
            }
            let number = self.words.begin();
            let started = self.start(&engines, number)?;
            let started = engines.last.insert(started);
            // Its warps have said something, or it is over.
            let up = self.await_warps(None, || started.is_done());
            up.inspect_err(|_| self.words.end(number)).or(Err(NO_ROOM))?;
            if let Some(Err(error)) = started.wait(Some(Duration::ZERO)) {
                return Err(failed(STARTING)(error));
            }
        }
        Ok(serving)
    }

    fn start(&self, engines: &Engines, number: u32) -> Result<Arc<dyn Launch>, NicError> {
        let is_over = Arc::new(AtomicBool::new(false));
        if engines.is_judged {
            let answers = self.cases.answer_until(&self.judge, &is_over);
            answers.inspect_err(|_| self.words.end(number))?;
        }
        let args = [bytemuck::bytes_of(&self.engine), &number.to_ne_bytes()];
        // It reads and writes them until then.
        let words = Arc::clone(&self.words);
        let answers_end = Arc::clone(&is_over);
        let on_done = Box::new(move |outcome: &LaunchOutcome| {
            drop(words);
            // Release: the engine asks no more.
            answers_end.store(true, Ordering::Release);
            if let Err(error) = outcome {
                tracing::warn!(
                    "the NIC's engine has ended; requests of launches in flight get no answer from now on: {error}"
                );
            }
        });
        let stop = self.words.stop_addr(number);
        let started = self.stream.launch(&engines.kernel, &self.shape, &args, stop, on_done);
        started.map_err(|error| {
            is_over.store(true, Ordering::Release);
            self.words.end(number);
            failed(STARTING)(error)
        })
    }

    /// The numbers of its queue pairs, for tests that fail them.
    #[doc(hidden)]
    pub fn queue_pairs(&self) -> Vec<u32> {
        self.tables
            .lock()
            .pairs
            .iter()
            .flatten()
            .map(|pair| pair.number)
            .collect()
    }

    /// Waits until all warps have heard that something has changed: since the last time each of them has looked at all its queue pairs. For
    /// tests that wait for what would be done by now.
    ///
    /// # Errors
    /// [`NicError::TimedOut`].
    #[doc(hidden)]
    pub fn pass(&self) -> Result<(), NicError> {
        self.settle("pass", &mut self.tables.lock())
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// The GPU's.
    pub fn stats(&self) -> Result<KernelNicStats, NicError> {
        let tables = self.tables.lock();
        let queues = self.queues.read(&*self.gpu, 0, tables.pairs.len());
        let queues = queues.map_err(failed("reading the engine's counts"))?;
        let past = tables.past;
        let sum = |what: u32| {
            queues
                .iter()
                .fold(past[what as usize], |sum, queue| sum + queue.counts[what as usize])
        };
        Ok(KernelNicStats {
            reads: sum(layout::NIC_COUNT_READS),
            writes: sum(layout::NIC_COUNT_WRITES),
            others: sum(layout::NIC_COUNT_OTHERS),
            bytes: sum(layout::NIC_COUNT_BYTES),
            completions: sum(layout::NIC_COUNT_COMPLETIONS),
            errors: sum(layout::NIC_COUNT_ERRORS),
            flushed: sum(layout::NIC_COUNT_FLUSHED),
            doorbells_broken: sum(layout::NIC_COUNT_DOORBELLS),
        })
    }

    /// Waits until all warps have said this, or anything, or until the engine is over. With an error the block that has not.
    fn await_warps(&self, change: Option<u32>, is_over: impl Fn() -> bool) -> Result<(), usize> {
        let begun = Instant::now();
        while let Some(warp) = self.words.deaf(change) {
            if is_over() {
                return Ok(());
            }
            if begun.elapsed() >= BOUND {
                return Err(warp % self.shape.grid[0] as usize);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until no warp does anything by what the tables said before.
    fn settle(&self, what: &'static str, tables: &mut Tables) -> Result<(), NicError> {
        // 0 is nothing at all.
        tables.change = tables.change.wrapping_add(1).max(1);
        self.words.tell(tables.change);
        let is_over = || {
            // Who has the lock is starting one.
            let engines = self.engines.try_lock();
            engines.is_some_and(|engines| engines.last.as_ref().is_none_or(|last| last.is_done()))
        };
        let settled = self.await_warps(Some(tables.change), is_over);
        settled.map_err(|engine| NicError::TimedOut {
            what,
            engine,
            waited_ms: BOUND_MS,
        })
    }

    /// The place of a queue pair.
    fn find(tables: &Tables, number: u32) -> Result<(usize, Pair), NicError> {
        let mut pairs = tables.pairs.iter().enumerate();
        let found = pairs.find_map(|(place, pair)| Some((place, (*pair)?)).filter(|(_, pair)| pair.number == number));
        found.ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }

    fn read_queue(&self, what: &'static str, place: usize) -> Result<NicQueue, NicError> {
        let read = self.queues.read(&*self.gpu, place as u64, 1);
        Ok(read.map_err(failed(what))?[0])
    }

    fn write_queue(&self, what: &'static str, place: usize, queue: NicQueue) -> Result<(), NicError> {
        let written = self.queues.write(&*self.gpu, place as u64, &[queue]);
        written.map_err(failed(what))
    }

    /// Says whether its warp serves a queue pair.
    fn set_served(&self, what: &'static str, place: usize, served: u32) -> Result<(), NicError> {
        let at = self.queues.addr() + (place * size_of::<NicQueue>()) as u64;
        self.gpu.write(at, &served.to_ne_bytes()).map_err(failed(what))
    }

    /// Has its warp leave a queue pair alone, and returns what it is like. With an error it is served as before.
    fn take(&self, what: &'static str, tables: &mut Tables, place: usize) -> Result<NicQueue, NicError> {
        let served = self.read_queue(what, place)?.served;
        self.set_served(what, place, 0)?;
        let settled = self.settle(what, tables);
        settled.or_else(|error| self.set_served(what, place, served).and(Err(error)))?;
        self.read_queue(what, place)
    }

    /// Lets its warp serve a queue pair.
    fn give(&self, what: &'static str, place: usize, queue: NicQueue) -> Result<(), NicError> {
        self.write_queue(what, place, NicQueue { served: 0, ..queue })?;
        // Behind the rest: whoever finds it served finds that.
        self.set_served(what, place, 1)
    }

    /// Sets a queue pair that nobody serves to its start, with its rings.
    fn clear(&self, what: &'static str, place: usize, pair: &Pair, counts: [u64; 8]) -> Result<(), NicError> {
        let Pair { number, memory } = pair;
        let entries = INVALID.repeat(memory.cq_entries as usize);
        let cleared = self.gpu.write(memory.cq, &entries);
        let cleared = cleared.and_then(|()| self.gpu.zero(memory.dbrec, 8));
        let cleared = cleared.and_then(|()| self.gpu.zero(memory.cq_dbrec, 8));
        cleared.map_err(failed(what))?;
        let queue = NicQueue {
            number: *number,
            flags: if memory.collapsed { layout::QUEUE_COLLAPSED } else { 0 },
            send_ring: memory.sq,
            completion_ring: memory.cq,
            doorbell_record: memory.dbrec + 4,
            send_mask: memory.sq_entries - 1,
            completion_mask: memory.cq_entries - 1,
            counts,
            ..zero()
        };
        self.write_queue(what, place, queue)
    }

    fn send_entries_max(&self) -> u32 {
        let limit = self.limits.map_or(QUEUE_BLOCKS_MAX, |limits| limits.send_queue_entries);
        limit.min(QUEUE_BLOCKS_MAX)
    }

    fn described(&self, place: usize, pair: &Pair) -> QueuePair {
        let doorbell =
            self.queues.addr() + (place * size_of::<NicQueue>() + std::mem::offset_of!(NicQueue, doorbell)) as u64;
        soft::describe(pair.number, doorbell, &pair.memory, 0)
    }
}

fn state_of(queue: &NicQueue) -> QueuePairState {
    match queue.state {
        layout::NIC_READY_TO_RECEIVE => QueuePairState::ReadyToReceive,
        layout::NIC_READY_TO_SEND => QueuePairState::ReadyToSend,
        layout::NIC_ERROR => QueuePairState::Error,
        _ => QueuePairState::Reset,
    }
}

impl Nic for KernelNic {
    fn capabilities(&self) -> NicCapabilities {
        NicCapabilities {
            name: format!("soft, engine gpu:{}", self.shape.grid[0]),
            max_rd_atomic: self.limits.map_or(1, |limits| limits.reads_per_queue_pair),
            sq_entries_max: self.send_entries_max(),
            cq_entries_max: soft::CQ_ENTRIES_MAX,
            queue_pairs_max: self.engine.queue_count,
            memory_regions_max: KEYS,
            message_bytes_max: MESSAGE_BYTES_MAX,
            needs_doorbell_call: false,
            link_bits_per_second: self.limits.and_then(|limits| limits.link_bits_per_second()),
            makes_rings: false,
            has_mover: false,
            on_gpu: true,
        }
    }

    unsafe fn register(&self, addr: u64, bytes: u64, access: Access) -> Result<MemoryKey, NicError> {
        let what = "registering memory";
        check_span(addr, bytes, access)?;
        let registration = match self.gpu.is_device_memory(addr, bytes) {
            true => None,
            false => {
                let host = std::ptr::with_exposed_provenance_mut(addr as usize);
                // SAFETY: the caller's promise: mapped until the key is gone, and accessed as by relaxed atomics alone.
                let registered = unsafe {
                    self.gpu
                        .register_host(host, bytes, !access.contains(Access::LOCAL_WRITE))
                };
                Some(registered.map_err(failed(what))?)
            }
        };
        let mut tables = self.tables.lock();
        let key = tables.keys.insert(&*self.gpu, (addr, bytes), access, registration);
        key.map_err(failed(what))?.ok_or(NicError::Exhausted {
            what: "memory registrations",
            limit: KEYS.into(),
        })
    }

    fn register_dma_buf(&self, _: BorrowedFd<'_>, _: u64, _: u64, _: u64, _: Access) -> Result<MemoryKey, NicError> {
        unsupported("register a dma-buf: its engine reaches its GPU's memory by address")
    }

    fn register_backed(&self, _: u64, _: u64, _: Access, _: Arc<dyn Backing>) -> Result<MemoryKey, NicError> {
        unsupported(
            "serve addresses that are no memory, such as files': its engine is a kernel, which reads memory alone",
        )
    }

    fn deregister(&self, key: MemoryKey) -> Result<(), NicError> {
        let what = "deregister";
        let mut tables = self.tables.lock();
        if !tables.keys.kill(&*self.gpu, key).map_err(failed(what))? {
            return Err(NicError::UnknownKey { key });
        }
        self.settle(what, &mut tables)?;
        tables.keys.forget(key);
        Ok(())
    }

    unsafe fn create_queue_pair(&self, rings: QueueRings) -> Result<QueuePair, NicError> {
        let what = "create queue pair";
        let QueueRings::Given(memory) = rings else {
            return unsupported("make rings: give it some");
        };
        soft::check_queue_memory(&memory, self.send_entries_max())?;
        let mut tables = self.tables.lock();
        let place = tables
            .pairs
            .iter()
            .position(Option::is_none)
            .ok_or(NicError::Exhausted {
                what: "queue pairs",
                limit: self.engine.queue_count.into(),
            })?;
        let is_free = |number: &u32| Self::find(&tables, *number).is_err();
        let mut created = tables.created;
        let number = std::iter::repeat_with(|| {
            created = created.wrapping_add(1);
            soft::queue_pair_number(created)
        });
        let number = number.flatten().find(is_free).unwrap_or_default();
        tables.created = created;
        let pair = Pair { number, memory };
        self.clear(what, place, &pair, [0; 8])?;
        tables.pairs[place] = Some(pair);
        Ok(self.described(place, &pair))
    }

    fn queue_pair(&self, qp: u32) -> Result<QueuePair, NicError> {
        let (place, pair) = Self::find(&self.tables.lock(), qp)?;
        Ok(self.described(place, &pair))
    }

    fn connect(&self, qp: u32, remote: u32) -> Result<(), NicError> {
        let what = "connect";
        let tables = self.tables.lock();
        let ((place, _), (responder, _)) = (Self::find(&tables, qp)?, Self::find(&tables, remote)?);
        let queue = self.read_queue(what, place)?;
        let state = state_of(&queue);
        if state != QueuePairState::Reset {
            return Err(NicError::WrongState {
                queue_pair: qp,
                state,
                operation: what,
                needed: QueuePairState::Reset,
            });
        }
        // What was rung in reset does not count.
        let queue = NicQueue {
            state: layout::NIC_READY_TO_SEND,
            responder: responder as u32,
            responder_number: remote,
            doorbell: 0,
            ..queue
        };
        self.give(what, place, queue)
    }

    fn modify(&self, _qp: u32, _attributes: &QueueAttributes) -> Result<(), NicError> {
        unsupported("be connected to another machine")
    }

    fn fail(&self, qp: u32) -> Result<(), NicError> {
        let what = "fail";
        let mut tables = self.tables.lock();
        let (place, _) = Self::find(&tables, qp)?;
        self.take(what, &mut tables, place)?;
        // Its warp serves it, to flush what is rung. The poster's register is as it is now: it may have rung since.
        let state = self.queues.addr() + (place * size_of::<NicQueue>()) as u64;
        let words = u64::from(layout::NIC_ERROR) << 32 | 1;
        self.gpu.write(state, &words.to_ne_bytes()).map_err(failed(what))
    }

    fn use_doorbell_proxy(&self, _qp: u32) -> Result<QueuePair, NicError> {
        unsupported("ring by a doorbell proxy: its registers are the GPU's memory")
    }

    fn doorbell_calls(&self) -> u64 {
        // It has no proxy.
        0
    }

    fn state(&self, qp: u32) -> Result<QueuePairState, NicError> {
        let (place, _) = Self::find(&self.tables.lock(), qp)?;
        Ok(state_of(&self.read_queue("state", place)?))
    }

    fn reset(&self, qp: u32) -> Result<(), NicError> {
        let what = "reset";
        let mut tables = self.tables.lock();
        let (place, pair) = Self::find(&tables, qp)?;
        let queue = self.take(what, &mut tables, place)?;
        self.clear(what, place, &pair, queue.counts)
    }

    fn destroy_queue_pair(&self, qp: u32) -> Result<(), NicError> {
        let what = "destroy queue pair";
        let mut tables = self.tables.lock();
        let (place, _) = Self::find(&tables, qp)?;
        let queue = self.take(what, &mut tables, place)?;
        // Nobody answers by its number.
        self.write_queue(what, place, zero())?;
        tables.pairs[place] = None;
        (0..)
            .zip(queue.counts)
            .for_each(|(what, count): (usize, u64)| tables.past[what] += count);
        Ok(())
    }

    fn doorbell_pages(&self) -> Vec<(u64, u64)> {
        // They are the GPU's memory, which nobody has to map.
        Vec::new()
    }

    fn doorbell_written(&self, _addr: u64) {}

    fn advance_to(&self, _now_ns: u64) {}

    fn step(&self) -> bool {
        false
    }
}

impl Drop for KernelNic {
    fn drop(&mut self) {
        self.words.end(u32::MAX);
        let launch = self.engines.get_mut().last.take();
        if let Some(launch) = launch.filter(|launch| launch.wait(Some(BOUND)).is_none()) {
            tracing::error!("the NIC's engine does not end; it is stopped where it stands");
            launch.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stops launches asks it to end while it is needed; the next launch has another one.
    #[test]
    fn an_engine_that_is_asked_to_end_ends_and_another_one_follows() {
        let gpu = gpuvm_sim_gpu::SimGpu::builder()
            .memory_bytes(64 << 20)
            .workers(1)
            .build();
        let nic = KernelNic::new(Arc::new(gpu.expect("a simulated GPU")), 2, 1).expect("a NIC");
        let first = nic.serve().expect("an engine");
        let launch = || nic.engines.lock().last.clone().expect("it was started");
        let one = launch();
        nic.words.ask_to_end(1);
        assert!(one.wait(Some(BOUND)).is_some_and(|outcome| outcome.is_ok()));
        let second = nic.serve().expect("an engine");
        // Late.
        nic.words.ask_to_end(1);
        nic.pass().expect("it runs");
        assert!(!launch().is_done());
        drop(first);
        nic.pass().expect("it runs still");
        assert!(!launch().is_done());
        drop(second);
        assert!(launch().wait(Some(BOUND)).is_some_and(|outcome| outcome.is_ok()));
    }
}
