//! Random requests, right and wrong, to both engines of the software NIC: the engine that threads of the processor run is the model. What they
//! leave in completion rings and in memory is compared byte for byte.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm::{CompileOptions, KernelNic, KernelNicStats, NicLimits, Serving, SoftNic, sim::SimGpu};
use gpuvm_gpu::{DeviceMemory, Gpu};
use gpuvm_nic::{
    Access, MemoryKey, Nic, NicError, QueueMemory, QueuePairState, QueueRings,
    soft::{Clock, Fault, FaultMix, FaultPlan, FaultTally, VirtualClock},
    wire::mlx5::{BLOCK_BYTES, Doorbell, Opcode, Operation, Segment, Segments, WorkRequest},
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::common::planted;
use crate::mock_gpu::MockGpu;
use crate::program::{rng, seeds};

/// Bytes of the home, and of the frames.
const BYTES: u64 = 1 << 16;
/// Entries of the largest rings.
const ENTRIES: u64 = 64;
/// Where what lies in the memory of a side begins: home, frames, send ring, completion ring, records.
const PARTS: [u64; 5] = [0, BYTES, 2 * BYTES, 2 * BYTES + ENTRIES * 64, 2 * BYTES + ENTRIES * 128];

/// The ways to name a key that is right, or is not.
#[derive(Clone, Copy, Debug)]
enum Named {
    Right,
    OtherSide,
    Dead,
    Guarded,
    Nobody,
}

/// A request, whose addresses are offsets.
#[derive(Clone, Debug)]
struct Wanted {
    opcode: u8,
    remote: (u64, Named),
    /// Offset, length, key; none: this many bytes in the request.
    local: Vec<(u64, u32, Option<Named>)>,
    signalled: bool,
    fence: bool,
    /// Bytes of the first block that are wrong: where, and what is added to them.
    wrong: Option<(usize, u8)>,
}

/// A NIC and all memory that it reaches.
struct Side {
    nic: Arc<dyn Nic>,
    memory: DeviceMemory,
    /// Of home and frames: all rights, dead, and read alone.
    keys: [[MemoryKey; 3]; 2],
    number: u32,
    doorbell: u64,
}

fn at<'a, T>(address: u64) -> &'a T {
    // SAFETY: only atomics in the memory of a side and its doorbell are asked for, which outlive what is made of them.
    unsafe { &*std::ptr::with_exposed_provenance(address as usize) }
}

impl Side {
    fn new(nic: Arc<dyn Nic>, gpu: &SimGpu) -> Self {
        let memory = gpu.allocate(PARTS[4] + 64, 4096).expect("memory");
        let register = |first: u64, access| {
            // SAFETY: the memory outlives the NIC's use of it: the queue pairs are destroyed first.
            unsafe { nic.register(memory.addr() + first, BYTES, access) }.expect("a key")
        };
        let keys = [0, BYTES].map(|first| {
            let guarded = if first == 0 { Access::LOCAL_WRITE } else { Access::NONE };
            let keys = [
                register(first, Access::ALL),
                register(first, Access::ALL),
                register(first, guarded),
            ];
            nic.deregister(keys[1]).expect("a key");
            keys
        });
        Self {
            nic,
            memory,
            keys,
            number: 0,
            doorbell: 0,
        }
    }

    fn part(&self, part: usize) -> u64 {
        self.memory.addr() + PARTS[part]
    }

    fn fill(&self, seed: u64) {
        for n in 0..2 * BYTES / 8 {
            let word = (n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            at::<AtomicU64>(self.memory.addr() + n * 8).store(word, Ordering::Relaxed);
        }
    }

    fn connect(&mut self, entries: (u32, u32), collapsed: bool, answers: bool) {
        let memory = QueueMemory {
            sq: self.part(2),
            sq_entries: entries.0,
            cq: self.part(3),
            cq_entries: entries.1,
            dbrec: self.part(4),
            cq_dbrec: self.part(4) + 8,
            collapsed,
        };
        // SAFETY: the memory outlives the queue pair and is accessed by atomics alone.
        let create = || unsafe { self.nic.create_queue_pair(QueueRings::Given(memory)) }.expect("a queue pair");
        let pair = create();
        let remote = if answers { pair.number } else { create().number };
        self.nic.connect(pair.number, remote).expect("a queue pair in reset");
        if !answers {
            self.nic.destroy_queue_pair(remote).expect("a queue pair");
        }
        (self.number, self.doorbell) = (pair.number, pair.doorbell);
    }

    fn key(&self, of: usize, named: Named) -> u32 {
        let [all, dead, guarded] = self.keys[of];
        let (right, other) = if of == 0 {
            (all.rkey, all.lkey)
        } else {
            (all.lkey, all.rkey)
        };
        match named {
            Named::Right => right,
            Named::OtherSide => other,
            Named::Dead if of == 0 => dead.rkey,
            Named::Dead => dead.lkey,
            Named::Guarded if of == 0 => guarded.rkey,
            Named::Guarded => guarded.lkey,
            Named::Nobody => 0xffff_ff00,
        }
    }

    /// Writes a request to block `index` and the next ones, and returns the blocks that its emitter gave it.
    fn write(&self, wanted: &Wanted, index: u64, entries: u32) -> u64 {
        let (remote, rkey) = (self.part(0).wrapping_add(wanted.remote.0), self.key(0, wanted.remote.1));
        let operation = match Opcode::from(wanted.opcode) {
            Opcode::Nop => Operation::Nop,
            Opcode::Write => Operation::Write { remote, rkey },
            Opcode::WriteImmediate => Operation::WriteImmediate {
                remote,
                rkey,
                immediate: 7,
            },
            Opcode::Read => Operation::Read { remote, rkey },
            Opcode::CompareSwap => Operation::CompareSwap {
                remote,
                rkey,
                compare: 1,
                swap: 2,
            },
            Opcode::FetchAdd => Operation::FetchAdd { remote, rkey, add: 3 },
            Opcode::Dump => Operation::Dump,
            other => Operation::Other(other),
        };
        let inline = [0x5a; 64];
        let segment = |&(offset, bytes, named): &(u64, u32, Option<Named>)| match named {
            Some(named) => Segment::Data {
                bytes,
                lkey: self.key(1, named),
                address: self.part(1).wrapping_add(offset),
            },
            None => Segment::Inline(&inline[..bytes as usize]),
        };
        let segments: Vec<Segment<'_>> = wanted.local.iter().map(segment).collect();
        let request = WorkRequest {
            index: index as u16,
            queue_pair: self.number,
            fence: wanted.fence,
            signalled: wanted.signalled,
            solicited: false,
            operation,
            segments: Segments::List(&segments),
        };
        let mut bytes = [0; 1024];
        let filled = request.emit(&mut bytes).expect("a request that can be written");
        if let Some((place, by)) = wanted.wrong {
            bytes[place] = bytes[place].wrapping_add(by);
        }
        for (n, word) in bytes[..filled].as_chunks::<8>().0.iter().enumerate() {
            let place = (index * 8 + n as u64) & (u64::from(entries) * 8 - 1);
            at::<AtomicU64>(self.part(2) + place * 8).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        (filled / BLOCK_BYTES) as u64
    }

    /// Announces 32 requests, a whole ring of 64 blocks, each of which reads all of the home.
    fn read_much(&self) {
        let read = Wanted {
            opcode: 0x10,
            remote: (0, Named::Right),
            local: (0..4).map(|n| (n * 16_384, 16_384, Some(Named::Right))).collect(),
            signalled: true,
            fence: false,
            wrong: None,
        };
        (0..64).step_by(2).for_each(|index| _ = self.write(&read, index, 64));
        self.ring(64, 0);
    }

    fn ring(&self, index: u64, wrong: u32) {
        let record = (index as u32 & 0xffff).to_be();
        at::<std::sync::atomic::AtomicU32>(self.part(4) + 4).store(record, Ordering::Release);
        let doorbell = Doorbell {
            index: index as u16,
            queue_pair: self.number ^ wrong,
        };
        at::<AtomicU64>(self.doorbell).store(u64::from_ne_bytes(doorbell.emit()), Ordering::Release);
        self.nic.doorbell_written(self.doorbell);
    }

    /// Home, frames, and completions without the time at which each was.
    fn seen(&self) -> Vec<u8> {
        let byte = |n: u64| at::<AtomicU8>(self.memory.addr() + n).load(Ordering::Acquire);
        let entries = (PARTS[3]..PARTS[4]).collect::<Vec<_>>();
        let (entries, _) = entries.as_chunks::<64>();
        let completions = entries.iter().flat_map(|entry| {
            let mut entry = entry.map(byte);
            // Of an error this is the syndrome's place.
            if entry[63] >> 4 == 0 {
                entry[48..56].fill(0);
            }
            entry
        });
        (0..2 * BYTES).map(byte).chain(completions).collect()
    }
}

fn named(rng: &mut ChaCha8Rng) -> Named {
    match rng.random_range(0..60) {
        0 => Named::OtherSide,
        1 => Named::Dead,
        2 => Named::Guarded,
        3 => Named::Nobody,
        _ => Named::Right,
    }
}

/// An offset for this many bytes; now and then they end past the memory, or begin before it.
fn offset(rng: &mut ChaCha8Rng, bytes: u64) -> u64 {
    let align = [1, 1, 2, 4, 8, 16, 16, 64][rng.random_range(0..8)];
    match rng.random_range(0..60) {
        0 => BYTES - bytes + 1,
        1 => 0u64.wrapping_sub(align),
        2 => BYTES - bytes,
        _ => rng.random_range(0..=BYTES - bytes) / align * align,
    }
}

fn wanted(rng: &mut ChaCha8Rng) -> Wanted {
    let others = [0x00, 0x01, 0x09, 0x0a, 0x11, 0x12, 0x14, 0x23, 0x23, 0x25, 0x77];
    let opcode = match rng.random_range(0..30) {
        0..14 => 0x10,
        14..28 => 0x08,
        _ => others[rng.random_range(0..others.len())],
    };
    let mut local = Vec::new();
    let has_data = !matches!(opcode, 0x00 | 0x01 | 0x0a | 0x14 | 0x25 | 0x77);
    let count = if has_data { rng.random_range(0..40usize) / 8 } else { 0 };
    for _ in 0..count {
        let bytes = match rng.random_range(0..4) {
            0 => rng.random_range(1..64),
            1 => 16 * rng.random_range(1..64),
            2 => 4096,
            _ => rng.random_range(1..9000),
        };
        local.push(match rng.random_range(0..60) {
            0 => (0, rng.random_range(0..60), None),
            // Stands for 2^31.
            1 => (0, 0, Some(Named::Right)),
            _ => (offset(rng, bytes.into()), bytes, Some(named(rng))),
        });
    }
    let all: u64 = local.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
    Wanted {
        opcode,
        remote: (offset(rng, all.clamp(1, BYTES)), named(rng)),
        local,
        signalled: rng.random_bool(0.7),
        fence: rng.random_bool(0.2),
        // Index, queue pair, length.
        wrong: rng
            .random_bool(0.04)
            .then(|| ([1, 2, 4, 6, 7][rng.random_range(0..5)], rng.random_range(1..=255))),
    }
}

/// Both sides.
struct Pair {
    cpu: Side,
    kernel: Side,
    soft: Arc<SoftNic>,
    /// Of that one.
    clock: Arc<VirtualClock>,
    own: Arc<KernelNic>,
    serving: Option<Serving>,
    /// Doorbells that broke a rule.
    broken: u64,
}

impl Pair {
    fn new(blocks: u32, options: &CompileOptions) -> Self {
        let gpu = Arc::new(
            SimGpu::builder()
                .memory_bytes(64 << 20)
                .workers(1)
                .build()
                .expect("a simulated GPU"),
        );
        let clock = Arc::new(VirtualClock::new(1));
        let soft = SoftNic::builder()
            .engines(0)
            .strict(false)
            .clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let soft = Arc::new(soft.build().expect("a NIC"));
        let kernel = KernelNic::compiled(Arc::clone(&gpu) as Arc<dyn Gpu>, blocks, 4, options).expect("a NIC");
        let own = Arc::new(kernel);
        let serving = own.serve().expect("room for an engine");
        let sides =
            [Arc::clone(&soft) as Arc<dyn Nic>, Arc::clone(&own) as Arc<dyn Nic>].map(|nic| Side::new(nic, &gpu));
        let [cpu, kernel] = sides;
        Self {
            cpu,
            kernel,
            soft,
            clock,
            own,
            serving: Some(serving),
            broken: 0,
        }
    }

    fn both<T>(&mut self, act: impl FnMut(&mut Side) -> T) -> [T; 2] {
        [&mut self.cpu, &mut self.kernel].map(act)
    }

    /// Waits until both have done the same, and says so.
    fn compare(&self, what: &str) -> Result<(), String> {
        loop {
            while self.soft.step() {}
            match self.soft.next_due_ns() {
                Some(due_ns) => self.clock.advance_to(due_ns),
                None => break,
            }
        }
        let expected = self.cpu.seen();
        let soft = self.soft.stats();
        let done = KernelNicStats {
            reads: soft.reads,
            writes: soft.writes,
            others: soft.nops + soft.dumps,
            bytes: soft.bytes_read + soft.bytes_written,
            completions: soft.completions,
            errors: soft.errors,
            flushed: soft.flushed,
            doorbells_broken: self.broken,
        };
        let (begun, mut is_over) = (Instant::now(), false);
        loop {
            let found = self.kernel.seen();
            let counted = self.own.stats().map_err(|error| error.to_string())?;
            if found == expected && counted == done {
                return Ok(());
            }
            if is_over {
                let first = found
                    .iter()
                    .zip(&expected)
                    .position(|(found, expected)| found != expected)
                    .unwrap_or(0);
                let part = first.saturating_sub(2 * BYTES as usize) / 64 * 64 + 2 * BYTES as usize;
                let part = if first < 2 * BYTES as usize {
                    first..first + 1
                } else {
                    part..part + 64
                };
                return Err(format!(
                    "{what}, byte {first}: {:x?} in place of {:x?}, {counted:?} in place of {done:?}",
                    &found[part.clone()],
                    &expected[part]
                ));
            }
            if begun.elapsed() > Duration::from_millis(300) {
                // A machine that is busy is no bug: each pass executes one request of a queue pair at least.
                for _ in 0..2 * ENTRIES {
                    self.own.pass().map_err(|error| error.to_string())?;
                }
                is_over = true;
            }
            std::thread::yield_now();
        }
    }

    /// One queue pair from its creation to its end.
    fn round(&mut self, rng: &mut ChaCha8Rng, seed: u64) -> Result<(), String> {
        let entries = (16 << rng.random_range(0..3), 4 << rng.random_range(0..5));
        let (collapsed, answers) = (rng.random_bool(0.3), rng.random_bool(0.95));
        let [(), ()] = self.both(|side| {
            side.fill(seed);
            side.connect(entries, collapsed, answers);
        });
        let mut index = 0;
        let mut posted = Vec::new();
        for _ in 0..rng.random_range(1..8) {
            let first = index;
            while index + 16 < first + u64::from(entries.0) && rng.random_bool(0.9) {
                let wanted = wanted(rng);
                let blocks = self.both(|side| side.write(&wanted, index, entries.0));
                posted.push((index, wanted));
                index += blocks[0];
            }
            if rng.random_bool(0.1) {
                // Of another queue pair, or past the ring: ignored.
                self.broken += 1;
                let (past, wrong) = [(0, 8), (u64::from(entries.0) + 1, 0)][rng.random_range(0..2)];
                let [(), ()] = self.both(|side| side.ring(index + past, wrong));
                self.compare(&format!("seed {seed}, a doorbell to ignore after {posted:?}"))?;
            }
            if rng.random_bool(0.05) {
                let failed = self.both(|side| side.nic.fail(side.number).map_err(|error| error.to_string()));
                failed.into_iter().collect::<Result<Vec<_>, _>>()?;
            }
            let [(), ()] = self.both(|side| side.ring(index, 0));
            self.compare(&format!("seed {seed}, {entries:?} after {posted:?}"))?;
        }
        let states = self.both(|side| side.nic.state(side.number).expect("a queue pair"));
        if states[0] != states[1] || !matches!(states[0], QueuePairState::Error | QueuePairState::ReadyToSend) {
            return Err(format!("seed {seed}: {states:?}"));
        }
        if rng.random_bool(0.3) {
            let [(), ()] = self.both(|side| side.nic.reset(side.number).expect("a queue pair"));
            self.compare(&format!("seed {seed}, reset"))?;
        }
        let [(), ()] = self.both(|side| side.nic.destroy_queue_pair(side.number).expect("a queue pair"));
        self.compare(&format!("seed {seed}, after all"))
    }
}

#[test]
fn both_engines_do_the_same() {
    for blocks in [1, 2] {
        let mut pair = Pair::new(blocks, &CompileOptions::default());
        for seed in seeds(0, 150) {
            pair.round(&mut rng(seed), seed)
                .unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
}

/// Rules of the kernel, each broken once: the comparison finds it.
#[test]
fn a_broken_rule_is_found() {
    let [engine, request, moves] = ["engine", "request", "move"].map(|name| format!("gpuvm/detail/nic_{name}.cuh"));
    let broken = [
        (&engine, "if (state_ == layout::NIC_ERROR) {", "if (false) {"),
        (&engine, "state_ = layout::NIC_ERROR;", ""),
        (&engine, "|| ahead > send_mask() + 1", ""),
        (&engine, "high(raw) >> 8 != number_ ||", ""),
        (&engine, "&& found.blocks <= target_ - place", ""),
        (&engine, "request.index != found.at", "false"),
        (
            &engine,
            "head_ += refused || !found.whole ? 1 : found.blocks;",
            "head_ += found.blocks;",
        ),
        (&engine, "} else if (!request.signalled) {", "} else if (false) {"),
        (&engine, "flags_ & layout::QUEUE_COLLAPSED ? 0 :", ""),
        (&engine, "(static_cast<u32>(produced_) & (mask + 1)) != 0;", "0;"),
        (
            &request,
            "bytes > span.lo - offset ||",
            "bytes > span.lo - offset + 1 ||",
        ),
        (&request, "|| (rights & access) != access", ""),
        (&request, "(key & layout::NIC_KEY_REMOTE) != side", "false"),
        (&moves, "if (move.left >= 4) move_one<u32>(&move);", ""),
    ];
    for (header, from, to) in broken {
        let mut pair = Pair::new(1, &planted(header, from, to));
        let found = (0..150).find_map(|seed| pair.round(&mut rng(seed), seed).err());
        assert!(found.is_some(), "nothing found `{to}` in place of `{from}`");
    }
}

/// Mixes of faults. Late ones stand apart from those that break a queue pair by chance: which of two comes first is then a matter of time.
const MIXES: [&str; 5] = [
    "late:1/4@30us,lost:1/6,remote-operation:1/20",
    "qp-error:1/15,lost:1/5",
    "revoke:1/12,short:1/12,slow:1/12@20us,local-length:1/10",
    "die:1/20@3600s,bad-response:1/12",
    "late:1/3@60us,rnr:1/20",
];

impl Pair {
    /// Two whose kernel asks the host.
    fn judged(blocks: u32, options: &CompileOptions) -> Self {
        let mut pair = Self::new(blocks, options);
        pair.serving = None;
        pair.own.mix_faults(&FaultMix::new(), 0).expect("no launch in flight");
        pair.serving = Some(pair.own.serve().expect("room for an engine"));
        pair
    }

    /// One round, in which both meet the faults that `mix` draws by its seed.
    fn faulty_round(&mut self, mix: &FaultMix, seed: u64) -> Result<(), String> {
        self.soft.mix_faults(mix, seed).map_err(|error| error.to_string())?;
        self.own.mix_faults(mix, seed).map_err(|error| error.to_string())?;
        self.round(&mut rng(seed), seed)
    }
}

#[test]
fn both_engines_meet_the_same_faults() {
    let mut pair = Pair::judged(2, &CompileOptions::default());
    for mix in MIXES {
        let mix: FaultMix = mix.parse().expect("a mix");
        let mut tally = FaultTally::default();
        for seed in seeds(0, 60) {
            pair.faulty_round(&mix, seed)
                .unwrap_or_else(|wrong| panic!("{mix}: {wrong}"));
            tally.merge(&pair.own.fault_tally());
        }
        let bitten = |kind| {
            tally
                .counts()
                .iter()
                .any(|count| count.rate.kind == kind && count.bitten > 0)
        };
        assert!(mix.rates().iter().all(|rate| bitten(rate.kind)), "{tally}");
    }
}

/// What the host says is heeded: each rule broken once, the comparison finds it.
#[test]
fn an_engine_that_ignores_a_fault_is_found() {
    let [engine, judged] = ["engine", "judged"].map(|name| format!("gpuvm/detail/nic_{name}.cuh"));
    for (header, from, to, mix) in [
        (&engine, "sentence.failure.syndrome ? sentence.failure :", "", MIXES[3]),
        (&engine, "} else if (sentence.loses) {", "} else if (false) {", MIXES[1]),
        (
            &judged,
            "if (plan.hi & layout::NIC_ANSWER_BREAKS) {",
            "if (false) {",
            MIXES[1],
        ),
        (
            &judged,
            "started_ += found.refused.syndrome ? 1 : found.blocks;",
            "started_ += 1;",
            MIXES[0],
        ),
    ] {
        let mut pair = Pair::judged(1, &planted(header, from, to));
        let mix = mix.parse().expect("a mix");
        let found = (0..60).find_map(|seed| pair.faulty_round(&mix, seed).err());
        assert!(found.is_some(), "nobody found `{to}` in place of `{from}`");
    }
}

#[test]
fn planted_faults_bite_and_others_are_refused() {
    let mut pair = Pair::new(1, &CompileOptions::default());
    // It runs, and asks nobody.
    let refused = pair.own.inject(FaultPlan::new(Fault::LoseCompletion));
    assert!(matches!(refused, Err(NicError::Unsupported { .. })), "{refused:?}");
    pair.serving = None;
    let delay_ns = 40_000_000;
    let plans = [
        FaultPlan::new(Fault::LoseCompletion).skip(2),
        FaultPlan::new(Fault::Delay { ns: delay_ns }).skip(4),
        FaultPlan::new(Fault::Fail(gpuvm_nic::wire::mlx5::Syndrome::RemoteOperation)).skip(6),
    ];
    let planted = plans.map(|plan| {
        pair.soft.inject(plan.clone());
        pair.own.inject(plan).expect("a fault")
    });
    for text in ["doorbell:1", "pieces:1", "reorder:1", "unflushed:1"] {
        let error = pair.own.mix_faults(&text.parse().expect("a mix"), 1).expect_err(text);
        assert!(error.to_string().contains(&text[..text.len() - 2]), "{error}");
    }
    pair.serving = Some(pair.own.serve().expect("room for an engine"));
    let begun = Instant::now();
    let [(), ()] = pair.both(|side| {
        side.fill(1);
        side.connect((64, 64), false, true);
        side.read_much();
    });
    pair.compare("faults").unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(
        begun.elapsed() >= Duration::from_nanos(delay_ns),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(planted.map(|fault| pair.own.bitten(fault)), [1; 3]);
    let counts = pair.own.stats().expect("counts");
    assert_eq!((counts.errors, counts.completions + 1), (1, 32), "{counts:?}");
}

/// Rounds of as many READs as the limits let be in flight, each as long as their latency.
#[test]
fn limits_are_kept() {
    let gpu = Arc::new(
        SimGpu::builder()
            .memory_bytes(64 << 20)
            .workers(1)
            .build()
            .expect("a simulated GPU"),
    );
    let limits = NicLimits {
        latency_ns: 100_000_000,
        reads_per_queue_pair: 8,
        ..NicLimits::connectx7()
    };
    let nic = KernelNic::new(Arc::clone(&gpu) as Arc<dyn Gpu>, 1, 1).expect("a NIC");
    let nic = Arc::new(nic.limited(limits).expect("limits"));
    let _serving = nic.serve().expect("room for an engine");
    let mut side = Side::new(Arc::clone(&nic) as Arc<dyn Nic>, &gpu);
    side.fill(1);
    side.connect((64, 64), false, true);
    let begun = Instant::now();
    side.read_much();
    while nic.stats().expect("counts").completions < 32 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", nic.stats());
        std::thread::yield_now();
    }
    assert!(
        begun.elapsed() >= 4 * Duration::from_nanos(limits.latency_ns),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        begun.elapsed() < 32 * Duration::from_nanos(limits.latency_ns),
        "one at a time: {:?}",
        begun.elapsed()
    );
    nic.destroy_queue_pair(side.number).expect("a queue pair");
}

/// A key dies while requests that name it are under way: once the call has returned nothing moves a byte by it, and what was announced has ended.
#[test]
fn nobody_moves_bytes_under_a_dead_key() {
    let mut pair = Pair::new(2, &CompileOptions::default());
    let mut ended = [false; 2];
    for turn in 0..60 {
        let (own, side) = (Arc::clone(&pair.own), &mut pair.kernel);
        // SAFETY: the memory outlives the key, and is accessed by atomics alone.
        let key = unsafe { own.register(side.part(1), BYTES, Access::LOCAL_WRITE) }.expect("a key");
        side.keys[1][0] = key;
        side.connect((64, 64), false, true);
        let done = own.stats().expect("counts").completions;
        side.read_much();
        std::thread::sleep(Duration::from_micros(10 * (turn % 20)));
        own.deregister(key).expect("a key");
        side.fill(turn);
        let before = side.seen()[BYTES as usize..2 * BYTES as usize].to_vec();
        let begun = Instant::now();
        while own.stats().expect("counts").completions < done + 32 {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "turn {turn}: {:?}",
                own.stats()
            );
        }
        assert!(
            side.seen()[BYTES as usize..2 * BYTES as usize] == before[..],
            "turn {turn}: bytes were moved by a dead key"
        );
        let state = own.state(side.number).expect("a queue pair");
        ended[usize::from(state == QueuePairState::Error)] = true;
        own.destroy_queue_pair(side.number).expect("a queue pair");
    }
    assert!(ended[1], "no request met the dead key");
}

/// A queue pair is reset, or destroyed, while its requests are under way: once the call has returned nothing moves a byte for it, or completes.
#[test]
fn nobody_touches_a_queue_pair_that_was_reset() {
    let mut pair = Pair::new(2, &CompileOptions::default());
    let own = Arc::clone(&pair.own);
    let mut cut = 0;
    for turn in 0..60 {
        let side = &mut pair.kernel;
        side.connect((64, 64), false, true);
        let before = own.stats().expect("counts").reads;
        side.read_much();
        std::thread::sleep(Duration::from_micros(10 * (turn % 20)));
        let (number, resets) = (side.number, turn % 2 == 0);
        if resets {
            own.reset(number).expect("a queue pair");
        } else {
            own.destroy_queue_pair(number).expect("a queue pair");
        }
        side.fill(turn);
        let (seen, counts) = (side.seen(), own.stats().expect("counts"));
        own.pass().expect("it runs");
        own.pass().expect("it runs");
        assert!(side.seen() == seen, "turn {turn}: something was written");
        assert_eq!(own.stats().expect("counts"), counts, "turn {turn}");
        cut += usize::from(counts.reads < before + 32);
        if resets {
            own.destroy_queue_pair(number).expect("a queue pair");
        }
    }
    assert!(cut > 0, "all requests had ended before");
}

/// Kernels end without waiting for what they have announced: the engine ends behind it.
#[test]
fn what_was_announced_is_done_before_the_engine_ends() {
    let mut pair = Pair::new(2, &CompileOptions::default());
    for turn in 0..5 {
        let [(), ()] = pair.both(|side| {
            side.fill(turn);
            side.connect((64, 64), false, true);
            side.read_much();
        });
        pair.serving = None;
        pair.compare("the last requests")
            .unwrap_or_else(|wrong| panic!("turn {turn}, {wrong}"));
        let [(), ()] = pair.both(|side| side.nic.destroy_queue_pair(side.number).expect("a queue pair"));
        pair.serving = Some(pair.own.serve().expect("room for an engine"));
    }
}

/// A queue pair that was never connected fails: what is rung then is flushed.
#[test]
fn a_queue_pair_that_fails_in_reset_flushes() {
    let mut pair = Pair::new(1, &CompileOptions::default());
    let [(), ()] = pair.both(|side| {
        side.fill(1);
        side.connect((64, 64), false, true);
        side.nic.reset(side.number).expect("a queue pair");
        side.nic.fail(side.number).expect("a queue pair");
        side.read_much();
    });
    pair.compare("after it failed")
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(pair.own.stats().expect("counts").flushed, 32);
}

/// Memory of the host is registered for each key, though it is pinned for another one; memory of the GPU is not.
#[test]
fn memory_of_the_host_is_registered_for_each_key() {
    let gpu = MockGpu::new(None);
    let nic = KernelNic::new(Arc::clone(&gpu) as Arc<dyn Gpu>, 1, 1).expect("a NIC");
    let host = gpu.allocate_host(BYTES).expect("memory");
    let own = gpu.allocate(BYTES, 4096).expect("memory");
    let before = gpu.registered().len();
    for addr in [host.device_addr(), own.addr(), host.device_addr()] {
        // SAFETY: the memory outlives the NIC, which is never asked to use it.
        unsafe { nic.register(addr, BYTES, Access::ALL) }.expect("a key");
    }
    let registered: Vec<_> = gpu.registered()[before..].iter().map(|(addr, ..)| *addr).collect();
    assert_eq!(registered, [host.device_addr(); 2]);
}
