//! Each thing that can be wrong has its syndrome; the queue pair then flushes, and works again after a reset.

use crate::common::{BOUND, BYTES, Bed, Sure as _, assert_failed};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig, PosterError};
use gpuvm_nic::soft::{Fault, FaultPlan, ViolationKind, vendor};
use gpuvm_nic::wire::mlx5::{CompletionDetail, CqeOpcode, Opcode, Operation, Segment, Syndrome};
use gpuvm_nic::{Access, MemoryKey, Nic, NicError, NicLimits, QueueMemory, QueuePairState, QueueRings, SoftNic};

/// The errors of keys.
const OF_LOCAL_KEY: (Syndrome, u8) = (Syndrome::LocalProtection, vendor::LOCAL_KEY);
const OF_REMOTE_KEY: (Syndrome, u8) = (Syndrome::RemoteAccess, vendor::REMOTE_KEY);

/// Runs one request on a queue pair of its own; asserts the failure and that no byte moved.
#[track_caller]
fn fails(bed: &Bed, operation: Operation, segments: &[Segment<'_>], (syndrome, vendor): (Syndrome, u8)) {
    let (frames, home) = (bed.frames.bytes(0, 8192), bed.home.bytes(0, 8192));
    let mut poster = bed.poster(8);
    let done = bed.run(&mut poster, operation, segments);
    assert_eq!(done.detail, CompletionDetail::Error { syndrome, vendor });
    assert_eq!((done.kind, done.opcode), (CqeOpcode::RequestError, operation.opcode()));
    assert_eq!(bed.nic.state(poster.number()).expect("it lives"), QueuePairState::Error);
    assert_eq!(bed.frames.bytes(0, 8192), frames);
    assert_eq!(bed.home.bytes(0, 8192), home);
}

fn at(bed: &Bed, offset: u64, rkey: u32) -> Operation {
    Operation::Read {
        remote: bed.home.address().wrapping_add(offset),
        rkey,
    }
}

#[test]
fn remote_side_is_checked() {
    let bed = Bed::manual();
    let check = |operation| fails(&bed, operation, &[bed.local(0, 64)], OF_REMOTE_KEY);
    let rkey = bed.home.key.rkey;
    check(at(&bed, BYTES - 63, rkey));
    check(at(&bed, u64::MAX, rkey));
    check(at(&bed, 0, rkey ^ 2));
    check(at(&bed, 0, bed.home.key.lkey));
    check(at(&bed, 0, 0));
    check(at(&bed, 0, u32::MAX));
    // The last 64 bytes are fine.
    let mut poster = bed.poster(8);
    assert!(
        bed.run(&mut poster, at(&bed, BYTES - 64, rkey), &[bed.local(0, 64)])
            .is_success()
    );
}

#[test]
fn remote_rights_are_checked() {
    let bed = Bed::manual();
    let (remote, rkey) = (bed.frames.address(), bed.frames.key.rkey);
    let segments = [Segment::Data {
        bytes: 8,
        lkey: bed.home.key.lkey,
        address: bed.home.address(),
    }];
    for operation in [Operation::Read { remote, rkey }, Operation::Write { remote, rkey }] {
        fails(&bed, operation, &segments, OF_REMOTE_KEY);
    }
}

#[test]
fn local_side_is_checked() {
    let bed = Bed::manual();
    let data = |bytes, lkey, address| [Segment::Data { bytes, lkey, address }];
    let (base, lkey) = (bed.frames.address(), bed.frames.key.lkey);
    let check = |segments: [Segment<'_>; 1]| {
        for operation in [bed.read(0), bed.write(0), Operation::Dump] {
            fails(&bed, operation, &segments, OF_LOCAL_KEY);
        }
    };
    check(data(65, lkey, base + BYTES - 64));
    check(data(64, lkey, base - 1));
    check(data(64, lkey ^ 2, base));
    check(data(64, bed.frames.key.rkey, base));
    check(data(64, 0x100, base));
    // A stored length of zero is no empty segment.
    fails(&bed, bed.write(0), &[bed.local(0, 0)], OF_LOCAL_KEY);
    // A right that only READ needs: memory without local write access.
    // SAFETY: the frames outlive the NIC.
    let key = unsafe { bed.nic.register(base, BYTES, Access::NONE) }.expect("room for a key");
    fails(&bed, bed.read(0), &data(64, key.lkey, base), OF_LOCAL_KEY);
    let mut poster = bed.poster(8);
    assert!(
        bed.run(&mut poster, bed.write(0), &data(64, key.lkey, base))
            .is_success()
    );
}

#[test]
fn one_bad_segment_stops_all() {
    let bed = Bed::manual();
    let list = [
        bed.local(0, 64),
        Segment::Data {
            bytes: 64,
            lkey: 0,
            address: bed.frames.address(),
        },
    ];
    fails(&bed, bed.read(0), &list, OF_LOCAL_KEY);
    fails(&bed, bed.write(0), &list, OF_LOCAL_KEY);
}

#[test]
fn what_the_nic_does_not_do_is_refused() {
    let bed = Bed::manual();
    let refused = (Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED);
    for code in [0x0a, 0x0b, 0x01, 0x14, 0x25, 0x7f, 0xff] {
        fails(&bed, Operation::Other(Opcode::from(code)), &[], refused);
    }
    let (remote, rkey) = (bed.home.address(), bed.home.key.rkey);
    let compare_swap = Operation::CompareSwap {
        remote,
        rkey,
        compare: 0,
        swap: 1,
    };
    let immediate = Operation::WriteImmediate {
        remote,
        rkey,
        immediate: 1,
    };
    let before = bed.home.bytes(0, 8);
    for operation in [Operation::FetchAdd { remote, rkey, add: 1 }, compare_swap, immediate] {
        fails(&bed, operation, &[bed.local(0, 8)], refused);
    }
    for operation in [bed.read(0), bed.write(0)] {
        let inline = [Segment::Inline(&[0; 8])];
        fails(&bed, operation, &inline, refused);
    }
    assert_eq!(bed.home.bytes(0, 8), before);
}

#[test]
fn a_responder_that_does_not_answer() {
    let bed = Bed::manual();
    let mut sender = Poster::new(bed.nic.clone(), PosterConfig::default()).expect("a queue pair");
    let silent = Poster::new(bed.nic.clone(), PosterConfig::default()).expect("a queue pair");
    bed.nic.connect(sender.number(), silent.number()).expect("both live");
    // Not connected yet: in reset it does not answer.
    let done = bed.run(&mut sender, bed.read(0), &[bed.local(0, 64)]);
    assert_failed(&done, Syndrome::TransportRetryExceeded);
    sender.reset().expect("it lives");
    bed.nic.connect(sender.number(), silent.number()).expect("both live");
    bed.nic.connect(silent.number(), silent.number()).expect("both live");
    assert!(bed.run(&mut sender, bed.read(0), &[bed.local(0, 64)]).is_success());
    // Destroyed: the same, and its memory is not touched.
    drop(silent);
    assert_failed(
        &bed.run(&mut sender, bed.read(0), &[bed.local(0, 64)]),
        Syndrome::TransportRetryExceeded,
    );
}

#[test]
fn everything_behind_a_failure_is_flushed() {
    for bed in [Bed::manual(), Bed::new(SoftNic::builder())] {
        let mut poster = bed.poster(16);
        let bad = at(&bed, 0, 0);
        let list = [bed.local(0, 64); 5];
        poster.put(bed.read(0), &list[..1]);
        // A failure completes although it is silent.
        poster.post(bad, &list[..1], Flags::SILENT).expect("room");
        // A silent request and one of two blocks are flushed as well, each with one completion.
        poster.post(bed.read(0), &list[..1], Flags::SILENT).expect("room");
        poster.put(bed.read(4096), &list);
        poster.put(bed.read(0), &list[..1]);
        poster.ring();
        let done: Vec<_> = (0..5).map(|_| poster.wait(BOUND).expect("a completion")).collect();
        let indexes: Vec<_> = done.iter().map(|done| done.index).collect();
        assert_eq!(indexes, [0, 1, 2, 3, 5]);
        assert!(done[0].is_success());
        assert_failed(&done[1], Syndrome::RemoteAccess);
        done[2..].iter().for_each(|done| assert_failed(done, Syndrome::Flushed));
        assert_eq!(bed.frames.bytes(64, 64), [0xa5; 64], "a flushed request moves nothing");
        // What is posted in state error is flushed too.
        assert_failed(&bed.run(&mut poster, bed.read(0), &list[..1]), Syndrome::Flushed);
        assert_eq!(bed.nic.stats().flushed, 4);
        assert_eq!(bed.nic.stats().errors, 1);
        bed.assert_clean();
    }
}

#[test]
fn reset_starts_over() {
    let bed = Bed::manual();
    let mut poster = bed.poster(4);
    for _ in 0..6 {
        assert!(bed.run(&mut poster, bed.read(0), &[bed.local(0, 64)]).is_success());
    }
    assert_failed(
        &bed.run(&mut poster, at(&bed, 0, 0), &[bed.local(0, 64)]),
        Syndrome::RemoteAccess,
    );
    let number = poster.number();
    let refused = bed.nic.connect(number, number).expect_err("it is in error");
    assert!(
        matches!(
            refused,
            NicError::WrongState {
                state: QueuePairState::Error,
                ..
            }
        ),
        "{refused}"
    );
    poster.reset().expect("it lives");
    assert_eq!(bed.nic.state(number).expect("it lives"), QueuePairState::Reset);
    (0..4).for_each(|slot| assert_eq!(poster.entry(slot)[63], 0xf0, "entry {slot} is invalid again"));
    // Rung in reset: nothing happens, now or later.
    poster.put(bed.read(64), &[bed.local(0, 64)]);
    poster.ring();
    assert_eq!(bed.settle(), 0);
    bed.nic.connect(number, number).expect("it is in reset");
    assert_eq!(
        bed.settle(),
        0,
        "hardware forgets doorbells of a queue pair that was not ready"
    );
    assert_eq!(bed.nic.violations()[0].kind, ViolationKind::DoorbellNotReady);
    poster.ring();
    let done = poster.wait(BOUND).expect("a completion");
    assert!(done.is_success() && done.index == 0 && !done.owner);
    assert_eq!(bed.frames.bytes(0, 64), bed.home.bytes(64, 64));
}

#[test]
fn a_dead_key_is_refused_and_stays_dead() {
    let bed = Bed::manual();
    let base = bed.frames.address();
    // SAFETY: the frames outlive the NIC.
    let register = || unsafe { bed.nic.register(base, 4096, Access::LOCAL_WRITE) }.expect("room for a key");
    let key = register();
    let data = |key: MemoryKey| {
        [Segment::Data {
            bytes: 64,
            lkey: key.lkey,
            address: base,
        }]
    };
    let mut poster = bed.poster(8);
    assert!(bed.run(&mut poster, bed.read(0), &data(key)).is_success());
    bed.nic.deregister(key).expect("a live key");
    assert!(
        matches!(bed.nic.deregister(key), Err(NicError::UnknownKey { .. })),
        "once only"
    );
    fails(&bed, bed.read(0), &data(key), OF_LOCAL_KEY);
    // Its slot is reused at last, but not its key.
    for _ in 0..20_000 {
        let other = register();
        assert_ne!(other, key);
        bed.nic.deregister(other).expect("a live key");
    }
    fails(&bed, bed.read(0), &data(key), OF_LOCAL_KEY);
}

#[test]
fn keys_run_out_with_an_error() {
    let bed = Bed::manual();
    let max = bed.nic.capabilities().memory_regions_max;
    // SAFETY: the frames outlive the NIC.
    let register = || unsafe { bed.nic.register(bed.frames.address(), 4096, Access::NONE) };
    let keys: Vec<_> = (2..max).map(|_| register().expect("room for a key")).collect();
    let mut seen: Vec<_> = keys.iter().flat_map(|key| [key.lkey, key.rkey]).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), keys.len() * 2, "keys are distinct");
    let error = register().expect_err("none left");
    assert!(
        matches!(error, NicError::Exhausted { limit, .. } if limit == u64::from(max)),
        "{error}"
    );
    bed.nic.deregister(keys[5]).expect("a live key");
    register().expect("one is free again");
}

#[test]
fn planted_failures_bite_and_are_counted() {
    let bed = Bed::manual();
    let page = bed.home.address() + 8192;
    let plan = FaultPlan::new(Fault::Fail(Syndrome::TransportRetryExceeded))
        .opcode(Opcode::Read)
        .remote(page..page + 4096)
        .skip(1);
    let fault = bed.nic.inject(plan);
    let mut poster = bed.poster(8);
    let local = [bed.local(0, 64)];
    assert!(bed.run(&mut poster, bed.read(0), &local).is_success(), "another page");
    assert!(
        bed.run(&mut poster, bed.write(8192), &local).is_success(),
        "another operation"
    );
    assert!(bed.run(&mut poster, bed.read(8192), &local).is_success(), "spared");
    assert_eq!(bed.nic.bitten(fault), 0);
    let done = bed.run(&mut poster, bed.read(8192), &[bed.local(64, 64)]);
    assert_failed(&done, Syndrome::TransportRetryExceeded);
    assert_eq!(bed.frames.bytes(64, 64), [0xa5; 64]);
    assert_eq!(bed.nic.bitten(fault), 1);
    let mut other = bed.poster(8);
    assert!(bed.run(&mut other, bed.read(8192), &local).is_success(), "spent");
    assert_eq!(bed.nic.bitten(fault), 1);
}

#[test]
fn a_lost_completion_is_missed_by_its_waiter_only() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    let fault = bed.nic.inject(
        FaultPlan::new(Fault::LoseCompletion)
            .queue_pair(poster.number())
            .skip(1),
    );
    for i in 0..4 {
        poster.put(bed.read(i * 64), &[bed.local(i * 64, 64)]);
    }
    poster.ring();
    bed.settle();
    assert_eq!(bed.nic.bitten(fault), 1);
    let op_own: Vec<_> = (0..4).map(|slot| poster.entry(slot)[63]).collect();
    assert_eq!(op_own, [0, 0xf0, 0, 0]);
    assert_eq!(
        poster.entry(2)[60..62],
        2u16.to_be_bytes(),
        "request i completes in slot i all the same"
    );
    assert_eq!(bed.frames.bytes(0, 256), bed.home.bytes(0, 256), "the data came");
    assert!(poster.wait(BOUND).expect("the first").is_success());
    let error = poster.wait(std::time::Duration::from_millis(20)).expect_err("lost");
    assert!(matches!(error, PosterError::TimedOut { .. }), "{error}");
}

#[test]
fn calls_refuse_what_cannot_be() {
    let bed = Bed::manual();
    let nic = &*bed.nic;
    // SAFETY: what is refused is never used.
    let register = |addr, bytes, access| unsafe { nic.register(addr, bytes, access) };
    for (addr, bytes, access) in [
        (0, 4096, Access::NONE),
        (4096, 0, Access::NONE),
        (u64::MAX - 10, 4096, Access::NONE),
        (4096, u64::MAX, Access::NONE),
        (4096, 4096, Access::REMOTE_WRITE),
        (4096, 4096, Access::REMOTE_ATOMIC | Access::REMOTE_READ),
    ] {
        let error = register(addr, bytes, access).expect_err("it cannot be");
        assert!(matches!(error, NicError::BadArgument { .. }), "{error}");
    }
    let poster = bed.poster(8);
    let good = poster.memory();
    for bad in [
        QueueMemory {
            sq: good.sq + 8,
            ..good
        },
        QueueMemory { sq: 0, ..good },
        QueueMemory {
            cq: good.cq + 32,
            ..good
        },
        QueueMemory {
            dbrec: good.dbrec + 4,
            ..good
        },
        QueueMemory { cq_dbrec: 0, ..good },
        QueueMemory { sq_entries: 0, ..good },
        QueueMemory { sq_entries: 12, ..good },
        QueueMemory {
            sq_entries: 65_536,
            ..good
        },
        QueueMemory { cq_entries: 3, ..good },
    ] {
        // SAFETY: what is refused is never used.
        let error = unsafe { nic.create_queue_pair(QueueRings::Given(bad)) }.expect_err("it cannot be");
        assert!(matches!(error, NicError::BadArgument { .. }), "{error}");
    }
    let nobody = poster.number() ^ 1;
    let unknown = |result: Result<(), NicError>| {
        let error = result.expect_err("nothing has this number");
        assert!(error.to_string().contains(&format!("{nobody:#x}")), "{error}");
    };
    unknown(nic.connect(nobody, poster.number()));
    unknown(nic.connect(poster.number(), nobody));
    unknown(nic.reset(nobody));
    unknown(nic.destroy_queue_pair(nobody));
    unknown(nic.state(nobody).map(drop));
    let key = MemoryKey { lkey: 7, rkey: 7 };
    assert!(matches!(nic.deregister(key), Err(NicError::UnknownKey { .. })));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let limited = |change: fn(&mut NicLimits)| {
        let mut limits = NicLimits::connectx7();
        change(&mut limits);
        SoftNic::builder().limits(limits)
    };
    for builder in [
        SoftNic::builder().engines(65),
        SoftNic::builder().max_rd_atomic(0),
        SoftNic::builder().bandwidth(0),
        limited(|limits| limits.messages_per_second = Some(0)),
        limited(|limits| limits.path_mtu = 0),
        limited(|limits| limits.send_queue_entries = 0),
        SoftNic::builder().clock(std::sync::Arc::new(gpuvm_nic::soft::VirtualClock::new(0))),
    ] {
        assert!(matches!(builder.build().err(), Some(NicError::BadArgument { .. })));
    }
}
