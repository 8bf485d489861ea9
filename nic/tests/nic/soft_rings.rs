//! Rings: doorbells, wrap-around, owner bits, collapsed queues, and garbage.

use std::collections::HashSet;

use crate::common::{BOUND, Bed, Sure as _, assert_failed};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig, PosterError};
use gpuvm_nic::soft::{ViolationKind, vendor};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Doorbell, Operation, Syndrome};
use gpuvm_nic::{Nic, NicError, QueueRings, SoftNic};
use proptest::prelude::*;

#[test]
fn entries_are_invalid_until_written() {
    let bed = Bed::manual();
    let poster = bed.poster(8);
    (0..8).for_each(|slot| assert_eq!(poster.entry(slot)[63], 0xf0));
}

#[test]
fn request_i_completes_in_slot_i_past_two_wraps() {
    // 150,000 requests: the 16-bit index wraps twice, the ring of 8 some 18,750 times.
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    for i in 0u64..150_000 {
        poster
            .submit(bed.read(i % 1000 * 8), &[bed.local(0, 8)], Flags::SIGNALLED)
            .expect("room");
        assert!(bed.nic.step());
        let entry = poster.entry(i & 7);
        assert_eq!(u16::from_be_bytes([entry[60], entry[61]]), i as u16);
        assert_eq!(entry[63], u8::from(i & 8 != 0), "owner bit of request {i}");
        assert!(poster.poll().expect("its completion").is_success());
    }
    assert_eq!(bed.nic.stats().reads, 150_000);
    bed.assert_clean();
}

#[test]
fn requests_of_several_blocks_wrap_in_the_ring() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    // Requests of 1 to 3 blocks start at every slot of the ring.
    for i in 0..200u64 {
        let pieces: Vec<_> = (0..1 + i % 9).map(|piece| bed.local(piece * 16, 16)).collect();
        let done = bed.run(&mut poster, bed.read(i * 8), &pieces);
        let CompletionDetail::Success { bytes, .. } = done.detail else {
            panic!("{done}")
        };
        let bytes = u64::from(bytes);
        assert_eq!(bytes, pieces.len() as u64 * 16);
        assert_eq!(bed.frames.bytes(0, bytes), bed.home.bytes(i * 8, bytes));
    }
    bed.assert_clean();
}

#[test]
fn longest_request_and_largest_ring() {
    let bed = Bed::manual();
    let mut poster = bed.poster(32_768);
    // 61 segments: 63 units, 16 blocks. 2,100 of them pass the end of the largest ring.
    let pieces: Vec<_> = (0..61).map(|piece| bed.local(piece * 4, 4)).collect();
    for i in 0..2_100 {
        assert!(bed.run(&mut poster, bed.read(i), &pieces).is_success());
    }
    assert_eq!(poster.written(), 33_600);
    assert_eq!(bed.frames.bytes(0, 244), bed.home.bytes(2_099, 244));
    let mut full = bed.poster(4);
    assert!(matches!(
        full.post(bed.read(0), &pieces, Flags::SIGNALLED),
        Err(PosterError::Full { .. })
    ));
    bed.assert_clean();
}

#[test]
fn a_full_ring_is_announced_by_one_doorbell() {
    for entries in [1, 2, 64, 32_768] {
        let bed = Bed::manual();
        let mut poster = bed.poster(entries);
        for _ in 0..3 {
            (0..entries).for_each(|_| {
                poster.put(Operation::Nop, &[]);
            });
            poster.ring();
            assert_eq!(bed.settle(), entries as usize);
            (0..entries).for_each(|_| assert!(poster.poll().expect("a completion").is_success()));
        }
        bed.assert_clean();
    }
}

#[test]
fn collapsed_queue_keeps_the_last_completion() {
    let bed = Bed::manual();
    let mut poster = bed.poster_with(PosterConfig {
        sq_entries: 16,
        cq_entries: 1,
        collapsed: true,
    });
    for round in 0..9000u64 {
        for i in 0..8 {
            poster.put(bed.read(i * 8), &[bed.local(i * 8, 8)]);
        }
        poster.ring();
        bed.settle();
        let done = poster.poll().expect("the last one");
        assert_eq!(done.index, (round * 8 + 7) as u16);
        assert_eq!(poster.in_flight(), 0, "one completion stands for all before it");
        assert!(poster.poll().is_none());
    }
    bed.assert_clean();
}

#[test]
fn collapsed_queue_shows_an_error_at_the_end() {
    let bed = Bed::manual();
    let mut poster = bed.poster_with(PosterConfig {
        sq_entries: 16,
        cq_entries: 4,
        collapsed: true,
    });
    for operation in [bed.read(0), Operation::Read { remote: 0, rkey: 0 }, bed.read(0)] {
        poster.post(operation, &[bed.local(0, 8)], Flags::SILENT).expect("room");
    }
    poster.ring();
    bed.settle();
    let done = poster.poll().expect("an error");
    assert_failed(&done, Syndrome::Flushed);
    assert_eq!(done.index, 2);
    assert_eq!(poster.entry(1)[63], 0xf0, "only the first entry is used");
}

#[test]
fn overrun_is_ignored_and_told() {
    let bed = Bed::manual();
    let mut poster = bed.poster_with(PosterConfig {
        sq_entries: 16,
        cq_entries: 4,
        collapsed: false,
    });
    let post = |poster: &mut Poster, count| {
        (0..count).for_each(|_| {
            poster.put(Operation::Nop, &[]);
        });
        poster.ring();
        bed.settle();
    };
    // No consumer index is kept, and who posts two at a time may have read all before them.
    (0..3).for_each(|_| post(&mut poster, 2));
    let counters: Vec<_> = (0..4).map(|slot| poster.entry(slot)[61]).collect();
    assert_eq!(counters, [4, 5, 2, 3]);
    bed.assert_clean();
    // A consumer that says it has read 6: four more fit, the fifth does not.
    poster.store_consumer(6);
    post(&mut poster, 4);
    bed.assert_clean();
    post(&mut poster, 1);
    assert_eq!(bed.broken(), [(ViolationKind::CompletionOverrun, 1)]);
}

#[test]
fn nothing_starts_before_the_doorbell() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    poster.put(bed.read(0), &[bed.local(0, 8)]);
    poster.store_record(1);
    assert_eq!(bed.settle(), 0);
    poster.ring_for(1);
    assert_eq!(bed.settle(), 1);
    // A repeated doorbell changes nothing.
    poster.ring();
    assert_eq!(bed.settle(), 0);
    bed.assert_clean();
}

#[test]
fn a_doorbell_covers_only_what_it_names() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    for _ in 0..4 {
        poster.put(Operation::Nop, &[]);
    }
    poster.store_record(4);
    poster.ring_for(3);
    assert_eq!(bed.settle(), 3);
    poster.ring_for(4);
    assert_eq!(bed.settle(), 1);
    bed.assert_clean();
}

#[test]
fn doorbells_that_step_back_or_too_far_are_ignored() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    for _ in 0..3 {
        poster.put(Operation::Nop, &[]);
    }
    poster.ring();
    assert_eq!(bed.settle(), 3);
    let ring = |index| {
        poster.store_record(index);
        poster.ring_for(index);
        assert_eq!(bed.settle(), 0);
    };
    ring(2);
    ring(12);
    assert_eq!(bed.broken(), [(ViolationKind::DoorbellOutOfRange, 2)]);
    poster.store_doorbell(Doorbell {
        index: 4,
        queue_pair: poster.number() ^ 4,
    });
    assert_eq!(bed.settle(), 0);
    assert_eq!(bed.broken()[1], (ViolationKind::DoorbellWrongQueuePair, 1));
}

#[test]
fn a_lax_nic_holds_nothing_against_anyone() {
    let bed = Bed::new(SoftNic::builder().engines(0).strict(false));
    let mut poster = bed.poster(8);
    poster.put(Operation::Nop, &[]);
    poster.ring_for(1);
    assert_eq!(bed.settle(), 1);
    bed.assert_clean();
}

/// A slot that was not rewritten, or a request for another queue pair, must not be executed.
#[test]
fn stale_and_foreign_requests_are_refused() {
    type Spoil = fn(&mut [u8]);
    let spoil: [(Spoil, _, _); 5] = [
        (|block| block[2] = 0, ViolationKind::WrongIndex, vendor::WRONG_INDEX),
        (
            |block| block[6] ^= 1,
            ViolationKind::WrongQueuePair,
            vendor::WRONG_QUEUE_PAIR,
        ),
        (|block| block[7] = 0, ViolationKind::Malformed, vendor::MALFORMED),
        (|block| block[7] = 64, ViolationKind::Malformed, vendor::MALFORMED),
        (|block| block[7] = 5, ViolationKind::BeyondDoorbell, vendor::MALFORMED),
    ];
    for (case, (spoil, kind, vendor)) in spoil.into_iter().enumerate() {
        let bed = Bed::manual();
        let mut poster = bed.poster(4);
        for _ in 0..4 {
            assert!(bed.run(&mut poster, bed.read(0), &[bed.local(0, 8)]).is_success());
        }
        let mut block = poster.block(0);
        block[1..3].copy_from_slice(&4u16.to_be_bytes());
        spoil(&mut block);
        poster.write_raw(&block);
        poster.ring();
        let done = poster.wait(BOUND).expect("a completion");
        let syndrome = Syndrome::LocalQueuePairOperation;
        let detail = CompletionDetail::Error { syndrome, vendor };
        assert_eq!(done.detail, detail, "case {case}");
        assert_eq!(done.index, 4, "the ring's index, whatever the request says");
        bed.settle();
        assert!(poster.poll().is_none(), "it completes once");
        assert_eq!(bed.broken(), [(kind, 1)], "case {case}");
    }
}

#[test]
fn numbers_do_not_follow_each_other() {
    let bed = Bed::manual();
    let posters: Vec<_> = (0..64).map(|_| bed.poster(1)).collect();
    let numbers: Vec<_> = posters.iter().map(Poster::number).collect();
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 64);
    assert!(numbers.iter().all(|number| *number > 1 && *number < 0xff_ffff));
    for pair in numbers.windows(2) {
        assert!(pair[0].abs_diff(pair[1]) > 64, "{:#x} and {:#x}", pair[0], pair[1]);
    }
    let doorbells: HashSet<_> = posters.iter().map(Poster::doorbell).collect();
    assert_eq!(doorbells.len(), 64, "a register each");
    let pages = bed.nic.doorbell_pages();
    for doorbell in doorbells {
        assert!(doorbell.is_multiple_of(8));
        assert!(
            pages
                .iter()
                .any(|(base, bytes)| (*base..base + bytes).contains(&doorbell))
        );
    }
}

#[test]
fn queue_pairs_run_out_with_an_error_and_come_back() {
    let bed = Bed::manual();
    let first = bed.poster(1);
    let number = first.number();
    let max = bed.nic.capabilities().queue_pairs_max;
    // All share the memory of one poster; none is connected.
    let memory = first.memory();
    // SAFETY: `first` lives to the end of the test.
    let create = || unsafe { bed.nic.create_queue_pair(QueueRings::Given(memory)) };
    let created: Vec<_> = (1..max).map(|_| create().expect("room").number).collect();
    let error = create().expect_err("none left");
    assert!(
        matches!(error, NicError::Exhausted { limit, .. } if limit == u64::from(max)),
        "{error}"
    );
    created
        .iter()
        .for_each(|number| bed.nic.destroy_queue_pair(*number).expect("it lives"));
    let again = create().expect("room").number;
    assert!(
        again != number && !created.contains(&again),
        "numbers are not reused at once"
    );
    bed.nic.destroy_queue_pair(again).expect("it lives");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever lies in the ring and the register: no panic, no byte outside the keys, the engine comes to rest, and
    /// the queue pair works after a reset.
    #[test]
    fn garbage_rings(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 64), 1..8),
        tame in proptest::collection::vec(any::<[bool; 4]>(), 8),
        doorbell: (u16, bool),
    ) {
        let bed = Bed::manual();
        let mut poster = bed.poster(8);
        let opcodes = [0x00, 0x08, 0x10, 0x11, 0x12, 0x09, 0x23];
        for (i, (mut block, tame)) in blocks.into_iter().zip(tame).enumerate() {
            // Some fields are made right, so that garbage gets past the first checks.
            if tame[0] {
                block[1..3].copy_from_slice(&(i as u16).to_be_bytes());
                block[4..7].copy_from_slice(&poster.number().to_be_bytes()[1..]);
            }
            if tame[1] {
                block[3] = opcodes[usize::from(block[3]) % opcodes.len()];
                block[7] %= 5;
            }
            if tame[2] {
                block[24..28].copy_from_slice(&bed.home.key.rkey.to_be_bytes());
                block[36..40].copy_from_slice(&bed.frames.key.lkey.to_be_bytes());
                block[32] &= 0x80;
                block[33] = 0;
            }
            if tame[3] {
                let home = bed.home.address() + u64::from(block[22]);
                let frames = bed.frames.address() + u64::from(block[46]);
                block[16..24].copy_from_slice(&home.to_be_bytes());
                block[40..48].copy_from_slice(&frames.to_be_bytes());
            }
            poster.write_raw(&block);
        }
        poster.ring();
        bed.settle();
        let queue_pair = if doorbell.1 { poster.number() } else { u32::from(doorbell.0) };
        poster.store_doorbell(Doorbell { index: doorbell.0, queue_pair });
        bed.settle();
        poster.restart(&bed);
        let done = bed.run(&mut poster, bed.read(0), &[bed.local(0, 8)]);
        prop_assert!(done.is_success(), "{}", done);
    }
}
