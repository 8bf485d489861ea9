//! Faults drawn by seed: each kind does what it says, is counted, ends when it is told to, and repeats with its seed.

use std::sync::Arc;

use crate::common::{BYTES, Bed, Sure as _, assert_failed, pattern};
use gpuvm_nic::poster::{Flags, Poster};
use gpuvm_nic::soft::{Clock, FaultKind, FaultMix, VirtualClock};
use gpuvm_nic::wire::mlx5::{Completion, Operation, Syndrome};
use gpuvm_nic::{Nic, NicError, QueuePairState, SoftNic};

const PAGE: u64 = 4096;

struct Rig {
    bed: Bed,
    clock: Arc<VirtualClock>,
}

impl Rig {
    fn new(mix: &str, seed: u64) -> Self {
        let (bed, clock) = Bed::with_clock(SoftNic::builder());
        let mix: FaultMix = mix.parse().expect("a mix");
        bed.nic.mix_faults(&mix, seed).expect("no mover");
        Rig { bed, clock }
    }

    /// Posts a READ of page `page` into frame `frame`.
    fn post(&self, poster: &mut Poster, page: u64, frame: u64) {
        let (read, segments) = (self.bed.read(page * PAGE), [self.bed.local(frame * PAGE, PAGE)]);
        poster.submit(read, &segments, Flags::SIGNALLED).expect("room");
    }

    /// Moves time on until nothing is left to do, and collects what completes.
    fn finish(&self, poster: &mut Poster) -> Vec<Completion> {
        for _ in 0..100_000 {
            self.bed.settle();
            match self.bed.nic.next_due_ns() {
                None => break,
                Some(due_ns) => self.clock.advance_to(due_ns),
            }
        }
        assert_eq!(self.bed.nic.next_due_ns(), None, "it never ends");
        std::iter::from_fn(|| poster.poll()).collect()
    }

    fn one(&self, poster: &mut Poster, operation: Operation) -> Completion {
        let segments = [self.bed.local(0, PAGE)];
        poster.submit(operation, &segments, Flags::SIGNALLED).expect("room");
        let done = self.finish(poster);
        assert_eq!(done.len(), 1);
        done[0]
    }

    fn has(&self, page: u64, frame: u64) -> bool {
        let words = PAGE / 8;
        (0..words).all(|word| {
            let found = self.bed.frames.word(frame * words + word);
            found.load(std::sync::atomic::Ordering::Relaxed) == pattern(page * words + word)
        })
    }

    fn bitten(&self, kind: FaultKind) -> u64 {
        self.bed.nic.fault_tally().bitten(kind)
    }
}

#[test]
fn every_syndrome_can_be_drawn() {
    for syndrome in Syndrome::KNOWN {
        let kind = FaultKind::Fail(*syndrome);
        let rig = Rig::new(&format!("{kind}:1/1x1"), 5);
        let mut poster = rig.bed.poster(8);
        assert_eq!(
            rig.bed.nic.fault_tally().check().unwrap_err().kinds,
            [kind],
            "nothing has happened yet"
        );
        assert_failed(&rig.one(&mut poster, rig.bed.read(0)), *syndrome);
        assert_eq!(rig.bed.nic.state(poster.number()).unwrap(), QueuePairState::Error);
        poster.restart(&rig.bed);
        assert!(rig.one(&mut poster, rig.bed.read(0)).is_success(), "once only");
        assert_eq!(rig.bed.nic.fault_tally().check(), Ok(()));
        rig.bed.assert_clean();
    }
}

#[test]
fn a_lost_completion_leaves_its_entry_and_its_data_is_there() {
    let rig = Rig::new("lost:1/1x1", 5);
    let mut poster = rig.bed.poster(8);
    let before = poster.entry(0);
    rig.post(&mut poster, 3, 1);
    rig.post(&mut poster, 4, 2);
    rig.finish(&mut poster);
    assert!(rig.has(3, 1) && rig.has(4, 2));
    assert_eq!(poster.entry(0), before);
    assert_ne!(poster.entry(1), before);
    assert_eq!(rig.bitten(FaultKind::Lost), 1);
}

#[test]
fn late_requests_keep_their_order_and_take_their_time() {
    let rig = Rig::new("late:1/2@3us", 9);
    let mut poster = rig.bed.poster(64);
    (0..16).for_each(|page| rig.post(&mut poster, page, page));
    rig.bed.settle();
    assert!(rig.bed.nic.next_due_ns().is_some(), "nothing was late");
    let done = rig.finish(&mut poster);
    let order: Vec<u16> = done.iter().map(|completion| completion.index).collect();
    assert_eq!(order, (0..16).collect::<Vec<_>>());
    assert!((0..16).all(|page| rig.has(page, page)) && rig.bitten(FaultKind::Late) > 2);
    // Sixteen delays at most, none behind another.
    assert!(rig.clock.now_ns() <= 1000 + 3_000);
}

#[test]
fn data_lands_before_that_of_earlier_requests() {
    // Of some seed the second request's page is whole while the first one's has not begun.
    let overtaken = (0..50).filter(|seed| {
        let rig = Rig::new("reorder:1/1", *seed);
        let mut poster = rig.bed.poster(8);
        rig.post(&mut poster, 3, 1);
        rig.post(&mut poster, 4, 2);
        let mut overtook = false;
        // By chance there is nothing to do in a step: time does not move.
        for _ in 0..64 {
            rig.bed.nic.step();
            overtook |= rig.has(4, 2) && !rig.has(3, 1);
            assert!(poster.poll().is_none(), "completed before its time");
        }
        assert_eq!(rig.finish(&mut poster).len(), 2);
        assert!(rig.has(3, 1) && rig.has(4, 2));
        overtook
    });
    assert!((5..50).contains(&overtaken.count()));
}

#[test]
fn data_lands_in_pieces_in_any_order() {
    let mut backwards = 0;
    for seed in 0..20 {
        let rig = Rig::new("pieces:1/1", seed);
        let mut poster = rig.bed.poster(8);
        rig.post(&mut poster, 3, 1);
        let has = |byte: u64| rig.bed.frames.byte(PAGE + byte) == rig.bed.home.byte(3 * PAGE + byte);
        let mut some = 0;
        for _ in 0..64 {
            rig.bed.nic.step();
            let there: Vec<bool> = (0..8).map(|piece| has(piece * 512)).collect();
            some += usize::from(there.contains(&true) && there.contains(&false));
            backwards += usize::from(there[7] && !there[0]);
        }
        assert!(some > 0, "seed {seed}: it came in one piece");
        assert!(rig.finish(&mut poster)[0].is_success() && rig.has(3, 1));
    }
    assert!(backwards > 0);
}

#[test]
fn a_write_in_pieces_leaves_the_home_whole_when_it_completes() {
    for seed in 0..20 {
        let rig = Rig::new("pieces:1/2,reorder:1/2", seed);
        let mut poster = rig.bed.poster(8);
        rig.bed.frames.fill(|word| !pattern(word));
        for page in 0..4 {
            let segments = [rig.bed.local(page * PAGE, PAGE - 100)];
            let write = rig.bed.write(page * PAGE + 28);
            poster.submit(write, &segments, Flags::SIGNALLED).unwrap();
        }
        assert_eq!(
            rig.finish(&mut poster).iter().filter(|done| done.is_success()).count(),
            4
        );
        for page in 0..4 {
            let (at, bytes) = (page * PAGE, PAGE - 100);
            assert_eq!(rig.bed.home.bytes(at + 28, bytes), rig.bed.frames.bytes(at, bytes));
        }
    }
}

#[test]
fn unflushed_data_lands_after_its_completion_and_a_dump_flushes_it() {
    let missing = |dump: bool| {
        let mut missing = 0;
        for seed in 0..20 {
            let rig = Rig::new("unflushed:1/1", seed);
            let mut poster = rig.bed.poster(8);
            rig.post(&mut poster, 3, 1);
            if dump {
                let segments = [rig.bed.local(PAGE, 4)];
                let flags = Flags::FENCED;
                poster.submit(Operation::Dump, &segments, flags).unwrap();
            }
            rig.bed.settle();
            assert_eq!(std::iter::from_fn(|| poster.poll()).count(), 1 + usize::from(dump));
            missing += usize::from(!rig.has(3, 1));
            rig.finish(&mut poster);
            assert!(rig.has(3, 1), "it lands in the end");
        }
        missing
    };
    assert!(missing(false) > 0);
    assert_eq!(missing(true), 0);
}

#[test]
fn a_home_is_slow_until_faults_end() {
    let rig = Rig::new("slow:1/1x1@7us", 5);
    let mut poster = rig.bed.poster(8);
    let timed = |poster: &mut Poster| {
        let start_ns = rig.clock.now_ns();
        assert!(rig.one(poster, rig.bed.read(0)).is_success());
        rig.clock.now_ns() - start_ns
    };
    assert_eq!((timed(&mut poster), timed(&mut poster)), (7_000, 7_000));
    rig.bed.nic.calm();
    assert_eq!((timed(&mut poster), rig.bitten(FaultKind::Slow)), (0, 2));
}

#[test]
fn a_home_dies_and_returns() {
    let rig = Rig::new("die:1/1x1@9us", 5);
    let mut poster = rig.bed.poster(8);
    let mut failed = 0;
    loop {
        let done = rig.one(&mut poster, rig.bed.read(0));
        if done.is_success() {
            break;
        }
        assert_failed(&done, Syndrome::TransportRetryExceeded);
        failed += 1;
        rig.clock.advance(1000);
        poster.restart(&rig.bed);
    }
    assert_eq!((failed, rig.bitten(FaultKind::Die)), (9, 9));
}

#[test]
fn a_queue_pair_fails_with_requests_in_flight() {
    let rig = Rig::new("qp-error:1/6x1,late:1/1", 7);
    let mut poster = rig.bed.poster(32);
    (0..20).for_each(|page| rig.post(&mut poster, page, page));
    let done = rig.finish(&mut poster);
    assert_eq!((done.len(), rig.bitten(FaultKind::QueuePair)), (20, 1));
    assert!(done.iter().all(|done| done.syndrome() == Some(Syndrome::Flushed)));
    assert_eq!(rig.bed.nic.state(poster.number()).unwrap(), QueuePairState::Error);
    rig.bed.assert_clean();
}

#[test]
fn doorbells_are_seen_late_and_together() {
    let rig = Rig::new("doorbell:1/1x1@5us", 5);
    let mut poster = rig.bed.poster(8);
    rig.post(&mut poster, 0, 0);
    assert_eq!(rig.bed.settle(), 0);
    rig.post(&mut poster, 1, 1);
    assert_eq!(rig.finish(&mut poster).len(), 2);
    assert_eq!((rig.bed.nic.stats().doorbells, rig.bitten(FaultKind::Doorbell)), (1, 1));
    rig.bed.assert_clean();
}

#[test]
fn a_revoked_key_and_a_short_registration_stay_so_until_faults_end() {
    for (mix, kind, syndrome) in [
        ("revoke:1/1x1", FaultKind::Revoke, Syndrome::RemoteAccess),
        ("short:1/1x1", FaultKind::Short, Syndrome::LocalProtection),
    ] {
        let rig = Rig::new(mix, 5);
        let mut poster = rig.bed.poster(8);
        for turn in 1..4 {
            assert_failed(&rig.one(&mut poster, rig.bed.read(0)), syndrome);
            assert_eq!(rig.bitten(kind), turn);
            poster.restart(&rig.bed);
        }
        if kind == FaultKind::Short {
            // The half below the end is covered.
            let segments = [rig.bed.local(0, PAGE / 2)];
            poster.submit(rig.bed.read(0), &segments, Flags::SIGNALLED).unwrap();
            assert!(rig.finish(&mut poster)[0].is_success());
        }
        rig.bed.nic.calm();
        assert!(rig.one(&mut poster, rig.bed.read(BYTES - PAGE)).is_success());
    }
}

#[test]
fn a_seed_draws_the_same_faults() {
    let all = "late:1/3,reorder:1/3,pieces:1/3,slow:1,doorbell:1/4,retries:1/40,lost:1/9";
    let run = |seed| {
        let rig = Rig::new(all, seed);
        let mut poster = rig.bed.poster(64);
        (0..32).for_each(|page| rig.post(&mut poster, page, page));
        let done = rig.finish(&mut poster);
        (done, rig.clock.now_ns(), rig.bed.nic.fault_tally())
    };
    let first: Vec<_> = (0..8).map(run).collect();
    assert_eq!(first, (0..8).map(run).collect::<Vec<_>>());
    assert!((1..8).any(|other| first[other] != first[0]));
}

#[test]
fn planted_faults_end_with_the_drawn_ones() {
    use gpuvm_nic::soft::{Fault, FaultPlan};
    let rig = Rig::new("none", 5);
    let mut poster = rig.bed.poster(8);
    let planted = FaultPlan::new(Fault::Fail(Syndrome::RemoteAborted)).times(u64::MAX);
    let planted = rig.bed.nic.inject(planted);
    assert_failed(&rig.one(&mut poster, rig.bed.read(0)), Syndrome::RemoteAborted);
    rig.bed.nic.calm();
    poster.restart(&rig.bed);
    assert!(rig.one(&mut poster, rig.bed.read(0)).is_success());
    assert_eq!(rig.bed.nic.bitten(planted), 1);
    assert!(rig.bed.nic.fault_tally().counts().is_empty());
}

#[test]
fn a_mover_is_not_disturbed() {
    let nic = crate::common::mover::TestMover::default().manual().nic;
    let refused = nic.mix_faults(&FaultMix::new(), 1);
    assert!(matches!(refused, Err(NicError::Unsupported { .. })));
}
