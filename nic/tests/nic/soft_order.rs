//! Posters that break the order that hardware needs are named, whether the processor or a mover moves the data.

use std::sync::Arc;

use crate::common::mover::TestMover;
use crate::common::{BOUND, Bed, Sure as _, assert_failed};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::soft::{Clock, ViolationKind, VirtualClock};
use gpuvm_nic::wire::mlx5::{BLOCK_BYTES, Segments, Syndrome, WorkRequest};
use gpuvm_nic::{Nic, SoftNic};

/// A NIC that a test can keep from completing what it was asked for.
struct Slow {
    bed: Bed,
    clock: Option<Arc<VirtualClock>>,
    mover: TestMover,
}

impl Slow {
    /// One whose requests take (virtual) time, and one whose data a mover moves.
    fn both() -> [Slow; 2] {
        let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
        let mover = TestMover::default();
        [
            Slow {
                bed,
                clock: Some(clock),
                mover: TestMover::default(),
            },
            Slow {
                bed: mover.manual(),
                clock: None,
                mover,
            },
        ]
    }

    fn poster(&self, sq_entries: u32, cq_entries: u32) -> Poster {
        let poster = self.bed.poster_with(PosterConfig {
            sq_entries,
            cq_entries,
            collapsed: false,
        });
        self.mover.hold(true);
        poster
    }

    /// Starts what was rung for; nothing completes.
    fn start(&self) {
        // A doorbell that may be too early is looked at twice.
        (0..2).for_each(|_| _ = self.bed.settle());
    }

    /// Completes what was started.
    fn finish(&self) {
        self.mover.hold(false);
        while {
            self.bed.settle();
            match (&self.clock, self.bed.nic.next_due_ns()) {
                (Some(clock), Some(due)) => {
                    clock.advance_to(due.max(clock.now_ns()));
                    true
                }
                _ => false,
            }
        } {}
        self.mover.hold(true);
    }

    /// A request as its poster would write it to slot `index`, of queue pair `number`.
    fn request(&self, index: u16, number: u32) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let request = WorkRequest {
            index,
            queue_pair: number,
            fence: false,
            signalled: true,
            solicited: false,
            operation: self.bed.read(0),
            segments: Segments::List(&[self.bed.local(0, 64)]),
        };
        request.emit(&mut block).expect("a request with a wire form");
        block
    }

    /// Writes `count` requests after what `poster` wrote, whether there is room or not.
    fn write(&self, poster: &mut Poster, count: u64) {
        for _ in 0..count {
            poster.write_raw(&self.request(poster.written() as u16, poster.number()));
        }
    }
}

#[test]
fn a_doorbell_before_its_record() {
    for slow in Slow::both() {
        let mut poster = slow.poster(8, 8);
        slow.write(&mut poster, 2);
        poster.store_record(1);
        poster.ring_for(2);
        slow.start();
        poster.store_record(2);
        slow.finish();
        assert_eq!(slow.bed.broken(), [(ViolationKind::DoorbellAheadOfRecord, 1)]);
        let text = slow.bed.nic.violations()[0].to_string();
        assert!(text.contains("record #1"), "{text}");
    }
}

#[test]
fn a_record_before_its_requests() {
    for slow in Slow::both() {
        let mut poster = slow.poster(8, 8);
        for lap in 0..3u16 {
            // The record may be ahead of the doorbell, if its requests are there.
            slow.write(&mut poster, 4);
            poster.store_record(poster.written() as u16);
            poster.ring_for(4 * lap + 2);
            slow.start();
            poster.ring();
            slow.finish();
        }
        slow.bed.assert_clean();
        // Slot 4 holds the request of the lap before.
        slow.write(&mut poster, 1);
        poster.store_record(14);
        poster.ring_for(13);
        slow.finish();
        assert_eq!(slow.bed.broken(), [(ViolationKind::RecordAheadOfRequest, 1)]);
        let text = slow.bed.nic.violations()[0].to_string();
        assert!(text.contains("record #14, request #13"), "{text}");
    }
}

#[test]
fn a_doorbell_before_its_requests() {
    for slow in Slow::both() {
        let mut poster = slow.poster(8, 8);
        slow.write(&mut poster, 1);
        poster.store_record(3);
        poster.ring_for(3);
        // One step: the doorbell is seen, the first request starts.
        assert!(slow.bed.nic.step());
        slow.write(&mut poster, 2);
        slow.finish();
        // They came in time for this NIC, which might have fetched them at once. The first of a doorbell is told of.
        assert_eq!(slow.bed.broken(), [(ViolationKind::DoorbellAheadOfRequest, 1)]);
        for _ in 0..3 {
            assert!(poster.wait(BOUND).expect("a completion").is_success());
        }
    }
}

#[test]
fn a_wrong_index_and_a_wrong_number() {
    for (kind, index, other) in [(ViolationKind::WrongIndex, 1, 0), (ViolationKind::WrongQueuePair, 0, 1)] {
        for slow in Slow::both() {
            let mut poster = slow.poster(8, 8);
            poster.write_raw(&slow.request(index, poster.number() ^ other));
            poster.ring();
            slow.finish();
            assert_eq!(slow.bed.broken(), [(kind, 1)]);
            assert_failed(&poster.poll().expect("a completion"), Syndrome::LocalQueuePairOperation);
        }
    }
}

#[test]
fn slots_used_again_before_their_time() {
    // A fifth request of a send ring of four, while none has completed. The last two of six that share four entries for completions,
    // which take those of the first two.
    for (kind, entries, written, count) in [
        (ViolationKind::SendSlotReused, (4, 8), (4, 1), 1),
        (ViolationKind::CompletionSlotReused, (16, 4), (3, 3), 2),
    ] {
        for slow in Slow::both() {
            let mut poster = slow.poster(entries.0, entries.1);
            let mut start = |count| {
                slow.write(&mut poster, count);
                poster.ring();
                slow.start();
            };
            // Full, again and again, by a poster that waits.
            for _ in 0..5 {
                start(4);
                slow.finish();
            }
            slow.bed.assert_clean();
            start(written.0);
            start(written.1);
            slow.finish();
            assert_eq!(slow.bed.broken(), [(kind, count)]);
        }
    }
}

#[test]
fn a_collapsed_queue_has_one_entry_for_all() {
    let slow = &Slow::both()[0];
    let mut poster = slow.bed.poster_with(PosterConfig {
        sq_entries: 16,
        cq_entries: 1,
        collapsed: true,
    });
    slow.write(&mut poster, 16);
    poster.ring();
    slow.finish();
    slow.bed.assert_clean();
}

#[test]
fn requests_of_several_blocks_and_silent_ones_are_no_breach() {
    for slow in Slow::both() {
        let mut poster = slow.poster(16, 16);
        for turn in 0..200u64 {
            // 1 to 3 blocks, every other one signalled.
            let pieces: Vec<_> = (0..1 + turn % 9).map(|piece| slow.bed.local(piece * 16, 16)).collect();
            let flags = if turn % 2 == 0 { Flags::SIGNALLED } else { Flags::SILENT };
            let operation = if turn % 4 < 2 {
                slow.bed.read(turn * 8)
            } else {
                slow.bed.write(turn * 8)
            };
            while poster.post(operation, &pieces, flags).is_err() {
                slow.finish();
                while let Some(done) = poster.poll() {
                    assert!(done.is_success(), "{done}");
                }
            }
            poster.ring();
            slow.start();
        }
        slow.finish();
        slow.bed.assert_clean();
        let stats = slow.bed.nic.stats();
        assert_eq!((stats.reads, stats.writes, stats.completions), (100, 100, 100));
    }
}
