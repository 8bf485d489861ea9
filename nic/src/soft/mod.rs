//! A NIC in software that executes mlx5 work requests from queue-pair memory of this process, as a ConnectX would.
//!
//! What it does: READ, WRITE, NOP and DUMP; scatter lists, fences, signalled and unsignalled requests of one or more
//! blocks; collapsed and ring completion queues with overrun ignored; key, bound and access checks; error completions, the
//! error state and flushing; a limit of READs in flight. It refuses what paging does not use: SEND, immediates, atomics,
//! inline data, memory windows, events.
//!
//! How it differs from hardware, so that posters do not lean on it:
//! - requests are executed when they complete, in order, so a READ's data never arrives before its turn, unless a
//!   [mix of faults](SoftNic::mix_faults) has it move early, in pieces, or late;
//! - it starts only what the doorbell *register* announced, and never more, whatever the record says;
//! - a refused request moves no byte, and the responder stays as it is (hardware takes it to error);
//! - an rkey is not equal to its lkey, queue pair numbers do not follow each other;
//! - without [limits](SoftNicBuilder::limits) requests complete as fast as they can be copied.
//!
//! With a [mover](SoftNicBuilder::mover), such as a GPU's copy engines, the processor reads requests and checks them, and
//! moves nothing: engines collect what is announced into batches, and each completion follows its data in the mover's
//! order. READs and WRITEs then run beside each other, so completions of one queue pair are in order within a direction
//! only; an error comes after everything before it.
//!
//! ```
//! use gpuvm_nic::{Access, Nic, SoftNic};
//!
//! let nic = SoftNic::builder().engines(1).build()?;
//! let home = vec![7u64; 512];
//! // SAFETY: `home` outlives the registration and is only read.
//! let key = unsafe { nic.register(home.as_ptr() as u64, 4096, Access::REMOTE_READ)? };
//! nic.deregister(key)?;
//! # Ok::<(), gpuvm_nic::NicError>(())
//! ```

mod backed;
mod batches;
mod builder;
mod clock;
mod completion_queue;
pub(crate) mod copy;
mod engine;
mod execute;
mod failure;
mod faults;
mod judge;
mod limits;
mod memory;
mod mix;
mod moving;
mod queue_pair;
mod registry;
mod report;
mod rings;
mod shared;
mod timing;
pub mod vendor;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Core, Engine, Owners, Round};
use memory::MemoryTable;
use moving::{Lane, Moving, STAGING_BYTES};
use parking_lot::Mutex;
use queue_pair::{QueuePairEngine, QueuePairShared};
use registry::Registry;
use report::Violations;
use shared::{Context, Shared};

pub use builder::SoftNicBuilder;
pub use clock::{Clock, RealClock, VirtualClock};
pub use copy::{CopyWitness, witness_copies};
pub use faults::{Fault, FaultId, FaultPlan};
pub use judge::{Judge, Sentence};
pub use limits::{CQ_ENTRIES_MAX, ENGINES_MAX, QUEUE_PAIRS_MAX};
pub use memory::{KEY_INDEX_FIRST, KEY_REMOTE_BIT, REGIONS_MAX};
pub use mix::{FaultCount, FaultKind, FaultMix, FaultMixError, FaultRate, FaultTally, Unbitten};
pub use registry::queue_pair_number;
pub use report::{SoftNicStats, Violation, ViolationKind};
pub use rings::{check_queue_memory, describe};

use crate::wire::mlx5::{MESSAGE_BYTES_MAX, QUEUE_BLOCKS_MAX};
use crate::{
    Access, Backing, MemoryKey, Nic, NicCapabilities, NicError, Pages, QueueAttributes, QueueMemory, QueuePair,
    QueuePairState, QueueRings,
};

/// What errors call it.
const NAME: &str = "software";

/// Bytes from one doorbell register to the next: a cache line, so that posters of different queue pairs do not meet.
const REGISTER_STRIDE: usize = 64;

/// The software NIC. Dropping it stops its engines after the request they execute, and touches no memory afterwards.
pub struct SoftNic {
    shared: Arc<Shared>,
    engines: Arc<[Engine]>,
    registry: Mutex<Registry>,
    /// The doorbell registers, one every [`REGISTER_STRIDE`] bytes.
    registers: Pages,
    owners: Owners,
    threads: Vec<JoinHandle<()>>,
    /// Keys that are dead already while an engine may be at work on their memory still.
    dying: Mutex<Vec<(MemoryKey, u32)>>,
    manual: bool,
    bound: Duration,
}

impl SoftNicBuilder {
    /// Makes the NIC and starts its engines.
    ///
    /// # Errors
    /// A setting that cannot be; an engine thread that cannot be started.
    pub fn build(self) -> Result<SoftNic, NicError> {
        self.check()?;
        SoftNic::start(self)
    }
}

impl SoftNic {
    /// A NIC with one engine thread, no modelled latency and strict checks, unless told otherwise.
    pub fn builder() -> SoftNicBuilder {
        SoftNicBuilder::default()
    }

    fn start(mut settings: SoftNicBuilder) -> Result<Self, NicError> {
        let manual = settings.engines == 0;
        let mover = settings.mover.take();
        let failed = |source| NicError::Mover {
            what: "starting the software NIC",
            source,
        };
        let engine = |_| {
            let Some(mover) = &mover else {
                return Ok(Engine::new(None));
            };
            let lane = || mover.lane(STAGING_BYTES).map(Lane::new).map_err(failed);
            let lanes = [lane()?, lane()?];
            Ok(Engine::new(Some(Moving { lanes, looks: 0 })))
        };
        let engines = (0..settings.engines.max(1)).map(engine);
        let engines = engines.collect::<Result<_, NicError>>()?;
        let shared = Arc::new(Shared {
            memory: MemoryTable::new(),
            faults: faults::Faults::default(),
            violations: Violations::new(settings.strict),
            clock: settings.take_clock(),
            shape: settings.shape(),
            limits: settings.limits,
            in_flight: Arc::default(),
            spin: settings.spin,
            yields_max: settings.yields_max,
            stop: AtomicBool::new(false),
            moved: mover.is_some(),
            watches: settings.watches,
            completions_go_on: settings.completions_go_on,
            mover_failure: Mutex::default(),
        });
        let mut nic = SoftNic {
            shared,
            engines,
            registry: Mutex::new(Registry::new()),
            registers: Pages::new(QUEUE_PAIRS_MAX * REGISTER_STRIDE),
            owners: Owners::new(QUEUE_PAIRS_MAX),
            dying: Mutex::default(),
            threads: Vec::new(),
            manual,
            bound: settings.bound,
        };
        for index in 0..settings.engines {
            // On an error `nic` is dropped and stops the threads that were started.
            nic.threads.push(engine::spawn(&nic.engines, &nic.shared, index)?);
        }
        Ok(nic)
    }

    /// What the NIC has done so far. Counts of a request may lag its completion by a moment.
    pub fn stats(&self) -> SoftNicStats {
        let mut sum = SoftNicStats::default();
        self.engines.iter().for_each(|engine| engine.counters.add_to(&mut sum));
        // No sum: what engines have at one time only the NIC as a whole knows.
        sum.reads_in_flight_max = self.shared.in_flight.max();
        sum
    }

    /// The rules of the queues that posters broke so far; empty when the NIC is not strict.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.violations.list()
    }

    /// Plants a fault for requests that are posted from now on. A [`Fault::Flip`] bites nobody where a mover moves the data.
    pub fn inject(&self, plan: FaultPlan) -> FaultId {
        let cannot = self.shared.moved && matches!(plan.fault, Fault::Flip { .. });
        self.shared.faults.plant(if cannot { plan.times(0) } else { plan })
    }

    /// How many requests a planted fault has bitten.
    pub fn bitten(&self, fault: FaultId) -> u64 {
        self.shared.faults.bitten(fault)
    }

    /// Draws faults of `mix` by `seed` for requests that are posted from now on, in place of an earlier mix. In manual mode
    /// the same seed and the same requests meet the same faults.
    ///
    /// # Errors
    /// The NIC has a mover, whose copies are not the NIC's to disturb.
    pub fn mix_faults(&self, mix: &FaultMix, seed: u64) -> Result<(), NicError> {
        if self.shared.moved {
            return Err(NicError::Unsupported {
                nic: NAME,
                what: "draw faults by seed while a mover moves its data; plant them with `inject`",
            });
        }
        self.shared.faults.mix(mix, seed);
        Ok(())
    }

    /// Ends all faults: none begins any more, planted or drawn, and those that last are over. Requests that were bitten stay
    /// so.
    pub fn calm(&self) {
        self.shared.faults.calm();
    }

    /// What the mix of faults has done so far; [`FaultTally::check`] tells what never happened. Empty without a mix.
    pub fn fault_tally(&self) -> FaultTally {
        self.shared.faults.tally()
    }

    /// Whether a mover moves its data, instead of the processor.
    pub fn has_mover(&self) -> bool {
        self.shared.moved
    }

    /// What the mover said when it first failed since a queue pair was last reset: requests since then failed with
    /// [`vendor::MOVER`], were flushed, or never complete.
    pub fn mover_failure(&self) -> Option<String> {
        let failure = self.shared.mover_failure.lock();
        failure.what.clone().filter(|_| !failure.over)
    }

    /// What the mover said when it failed, also where a queue pair was reset since: for a request that failed with
    /// [`vendor::MOVER`], which may be looked at later.
    pub fn last_mover_failure(&self) -> Option<String> {
        self.shared.mover_failure.lock().what.clone()
    }

    /// When the next request in flight completes, in the NIC's clock, if nothing is to be done before: where a
    /// simulation may move its virtual clock to once [`step`](Nic::step) has returned false. `None` when nothing is
    /// in flight.
    pub fn next_due_ns(&self) -> Option<u64> {
        let due = |engine: &Engine| {
            let core = engine.core.lock();
            core.queue_pairs.iter().filter_map(QueuePairEngine::due_ns).min()
        };
        self.engines.iter().filter_map(due).min()
    }

    fn find(&self, number: u32) -> Result<Arc<QueuePairShared>, NicError> {
        let registry = self.registry.lock();
        registry
            .queue_pairs
            .get(&number)
            .cloned()
            .ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }

    /// Waits until the mover of an engine moves nothing. The caller holds the engine's lock.
    fn drain(&self, what: &'static str, engine: usize, core: &mut Core) -> Result<(), NicError> {
        let drained = core.with_mover(|moving, queue_pairs| moving.drain(queue_pairs, &self.shared, self.bound));
        match drained {
            None | Some(true) => Ok(()),
            Some(false) => Err(self.timed_out(what, engine)),
        }
    }

    fn timed_out(&self, what: &'static str, engine: usize) -> NicError {
        NicError::TimedOut {
            what,
            engine,
            waited_ms: self.bound.as_millis() as u64,
        }
    }

    /// Sets the entries of a completion queue to invalid, where that is a mover's work. After [`drain`](Self::drain).
    fn invalidate(
        &self,
        what: &'static str,
        engine: usize,
        core: &mut Core,
        memory: &QueueMemory,
    ) -> Result<(), NicError> {
        match core.with_mover(|moving, _| moving.invalidate(memory, self.bound)) {
            None | Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(self.timed_out(what, engine)),
            Some(Err(source)) => Err(NicError::Mover { what, source }),
        }
    }

    /// Runs `change` on a queue pair while its engine stands still.
    fn with_engine<R>(
        &self,
        what: &'static str,
        number: u32,
        change: impl FnOnce(&mut QueuePairEngine, &Context<'_>) -> R,
    ) -> Result<R, NicError> {
        let index = self.find(number)?.engine;
        let engine = &self.engines[index];
        let mut core = engine.lock_for_caller(what, index, self.bound)?;
        let context = engine.context(&self.shared);
        core.queue_pairs
            .iter_mut()
            .find(|queue_pair| queue_pair.shared.number == number)
            .map(|queue_pair| change(queue_pair, &context))
            .ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }
}

impl Core {
    /// Where a queue pair stands.
    fn place(&self, number: u32) -> Result<usize, NicError> {
        let mut queue_pairs = self.queue_pairs.iter();
        queue_pairs
            .position(|queue_pair| queue_pair.shared.number == number)
            .ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }
}

impl Nic for SoftNic {
    fn capabilities(&self) -> NicCapabilities {
        NicCapabilities {
            name: "soft".to_string(),
            max_rd_atomic: self.shared.limits.reads_per_queue_pair,
            sq_entries_max: QUEUE_BLOCKS_MAX.min(self.shared.limits.send_queue_entries),
            cq_entries_max: CQ_ENTRIES_MAX,
            queue_pairs_max: QUEUE_PAIRS_MAX as u32,
            memory_regions_max: memory::REGIONS_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX,
            needs_doorbell_call: !self.manual && !self.shared.moved && !self.shared.watches,
            link_bits_per_second: self.shared.limits.link_bits_per_second(),
            makes_rings: false,
            has_mover: self.shared.moved,
            on_gpu: false,
        }
    }

    unsafe fn register(&self, addr: u64, bytes: u64, access: Access) -> Result<MemoryKey, NicError> {
        self.shared.memory.insert(addr, bytes, access, None)
    }

    fn register_dma_buf(&self, _: BorrowedFd<'_>, _: u64, _: u64, _: u64, _: Access) -> Result<MemoryKey, NicError> {
        Err(NicError::Unsupported {
            nic: NAME,
            what: "register a dma-buf: its engines reach memory of this process alone",
        })
    }

    fn register_backed(
        &self,
        addr: u64,
        bytes: u64,
        access: Access,
        backing: Arc<dyn Backing>,
    ) -> Result<MemoryKey, NicError> {
        self.shared.memory.insert(addr, bytes, access, Some(backing))
    }

    fn deregister(&self, key: MemoryKey) -> Result<(), NicError> {
        let slot = {
            let mut dying = self.dying.lock();
            match dying.iter().find(|(earlier, _)| *earlier == key) {
                // An earlier call killed the key and ran out of time: this one waits on.
                Some((_, slot)) => *slot,
                None => {
                    let slot = self.shared.memory.clear(key)?;
                    dying.push((key, slot));
                    slot
                }
            }
        };
        for (index, engine) in self.engines.iter().enumerate() {
            // Held once, every later request of the engine finds the key cleared.
            let mut core = engine.lock_for_caller("deregister", index, self.bound)?;
            // Earlier ones of it may be under way.
            self.drain("deregister", index, &mut core)?;
        }
        let mut dying = self.dying.lock();
        if let Some(position) = dying.iter().position(|(earlier, _)| *earlier == key) {
            dying.swap_remove(position);
            self.shared.memory.release(slot);
        }
        Ok(())
    }

    unsafe fn create_queue_pair(&self, rings: QueueRings) -> Result<QueuePair, NicError> {
        let QueueRings::Given(memory) = rings else {
            return Err(NicError::Unsupported {
                nic: NAME,
                what: "make rings: give it some",
            });
        };
        check_queue_memory(&memory, self.shared.limits.send_queue_entries)?;
        let mut registry = self.registry.lock();
        let exhausted = NicError::Exhausted {
            what: "queue pairs",
            limit: QUEUE_PAIRS_MAX as u64,
        };
        let register = registry.free_registers.pop().ok_or(exhausted)?;
        let index = registry.idlest_engine(self.engines.len());
        let engine = &self.engines[index];
        let mut core = match engine.lock_for_caller("create queue pair", index, self.bound) {
            Ok(core) => core,
            Err(error) => {
                registry.free_registers.push(register);
                return Err(error);
            }
        };
        let prepared = self.drain("create queue pair", index, &mut core);
        let prepared = prepared.and_then(|()| self.invalidate("create queue pair", index, &mut core, &memory));
        if let Err(error) = prepared {
            registry.free_registers.push(register);
            return Err(error);
        }
        let number = registry.next_number();
        let doorbell = self.registers.address() + (register * REGISTER_STRIDE) as u64;
        let shared = Arc::new(QueuePairShared::new(
            number,
            register,
            index,
            &memory,
            self.shared.moved,
            self.shared.completions_go_on,
        ));
        self.owners.set(register, index);
        core.queue_pairs.push(QueuePairEngine::new(
            Arc::clone(&shared),
            memory,
            doorbell,
            Arc::clone(&self.shared.in_flight),
        ));
        registry.queue_pairs.insert(number, shared);
        Ok(describe(number, doorbell, &memory, 0))
    }

    fn queue_pair(&self, qp: u32) -> Result<QueuePair, NicError> {
        self.with_engine("queue pair", qp, |queue_pair, _| {
            let start = queue_pair.shared.completions_start();
            describe(qp, queue_pair.doorbell(), queue_pair.memory(), start)
        })
    }

    fn connect(&self, qp: u32, remote: u32) -> Result<(), NicError> {
        let responder = self.find(remote)?;
        self.with_engine("connect", qp, |queue_pair, context| {
            let state = queue_pair.shared.state();
            if state != QueuePairState::Reset {
                let needed = QueuePairState::Reset;
                return Err(NicError::WrongState {
                    queue_pair: qp,
                    state,
                    operation: "connect",
                    needed,
                });
            }
            queue_pair.connect(responder, context);
            Ok(())
        })?
    }

    fn modify(&self, _qp: u32, _attributes: &QueueAttributes) -> Result<(), NicError> {
        Err(NicError::Unsupported {
            nic: NAME,
            what: "be connected to another machine",
        })
    }

    fn use_doorbell_proxy(&self, _qp: u32) -> Result<QueuePair, NicError> {
        Err(NicError::Unsupported {
            nic: NAME,
            what: "ring by a doorbell proxy: every thread of this process reaches its registers",
        })
    }

    fn doorbell_calls(&self) -> u64 {
        // It has no proxy.
        0
    }

    fn fail(&self, qp: u32) -> Result<(), NicError> {
        if self.shared.moved {
            return Err(NicError::Unsupported {
                nic: NAME,
                what: "fail a queue pair on demand while a mover moves its data",
            });
        }
        let engine = self.find(qp)?.engine;
        self.with_engine("fail", qp, |queue_pair, _| {
            queue_pair.shared.set_state(QueuePairState::Error);
        })?;
        // What waits for its time is flushed now.
        self.engines[engine].sleeper.wake();
        Ok(())
    }

    fn state(&self, qp: u32) -> Result<QueuePairState, NicError> {
        Ok(self.find(qp)?.state())
    }

    fn reset(&self, qp: u32) -> Result<(), NicError> {
        let what = "reset";
        let index = self.find(qp)?.engine;
        let mut core = self.engines[index].lock_for_caller(what, index, self.bound)?;
        let place = core.place(qp)?;
        self.drain(what, index, &mut core)?;
        core.queue_pairs[place].land_adrift(&self.engines[index].context(&self.shared));
        core.queue_pairs[place].reset();
        let memory = *core.queue_pairs[place].memory();
        self.shared.mover_failure.lock().over = true;
        self.invalidate(what, index, &mut core, &memory)
    }

    fn destroy_queue_pair(&self, qp: u32) -> Result<(), NicError> {
        let shared = self.find(qp)?;
        let engine = &self.engines[shared.engine];
        let mut core = engine.lock_for_caller("destroy queue pair", shared.engine, self.bound)?;
        let place = core.place(qp)?;
        self.drain("destroy queue pair", shared.engine, &mut core)?;
        core.queue_pairs[place].land_adrift(&engine.context(&self.shared));
        core.queue_pairs.swap_remove(place);
        // Other engines reach its memory through `ends` only, as a responder.
        shared.bury();
        shared.set_state(QueuePairState::Reset);
        drop(core);
        let mut registry = self.registry.lock();
        registry.queue_pairs.remove(&qp);
        registry.free_registers.push(shared.register);
        Ok(())
    }

    fn doorbell_pages(&self) -> Vec<(u64, u64)> {
        vec![(self.registers.address(), self.registers.bytes())]
    }

    #[inline]
    fn doorbell_written(&self, addr: u64) {
        let offset = addr.wrapping_sub(self.registers.address()) as usize;
        if let Some(engine) = self.owners.get(offset / REGISTER_STRIDE) {
            self.engines[engine].sleeper.rung();
        }
    }

    fn advance_to(&self, now_ns: u64) {
        self.shared.clock.advance_to(now_ns);
    }

    fn step(&self) -> bool {
        self.engines.iter().any(|engine| {
            let core = if self.manual {
                Some(engine.core.lock())
            } else {
                engine.core.try_lock()
            };
            core.is_some_and(|mut core| engine.round(&mut core, &self.shared, 1) == Round::Worked)
        })
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        // Release: pairs with the acquire loads in `Engine::run` and `sleep`.
        self.shared.stop.store(true, Ordering::Release);
        for thread in &self.threads {
            // Unparked whether asleep or not: a thread that is about to park returns at once.
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            // An engine that panicked has ended as well; there is nobody to tell in a drop.
            let _ = thread.join();
        }
        // Lanes of a mover are dropped with the engines, and wait for what is under way.
    }
}
