//! Each operation does what it says, to the byte.

use std::sync::atomic::Ordering;

use crate::common::{BOUND, BYTES, Bed, pattern};
use gpuvm_nic::SoftNic;
use gpuvm_nic::poster::Flags;
use gpuvm_nic::wire::mlx5::{Completion, CompletionDetail, CqeOpcode, Opcode, Operation};
use proptest::prelude::*;

fn bytes_of(completion: &Completion) -> u32 {
    match completion.detail {
        CompletionDetail::Success { bytes, .. } => bytes,
        CompletionDetail::Error { .. } => panic!("{completion}"),
    }
}

#[test]
fn read_fills_a_frame_and_nothing_else() {
    for bed in [Bed::manual(), Bed::new(SoftNic::builder())] {
        let mut poster = bed.poster(8);
        let done = bed.run(&mut poster, bed.read(8192), &[bed.local(4096, 4096)]);
        assert_eq!(
            (done.kind, done.opcode, bytes_of(&done)),
            (CqeOpcode::Request, Opcode::Read, 4096)
        );
        assert_eq!((done.queue_pair, done.index, done.owner), (poster.number(), 0, false));
        for i in 0..BYTES / 8 {
            let inside = (512..1024).contains(&i);
            let expected = if inside {
                pattern(1024 + i - 512)
            } else {
                0xa5a5_a5a5_a5a5_a5a5
            };
            assert_eq!(bed.frames.word(i).load(Ordering::Relaxed), expected, "word {i}");
        }
        bed.assert_clean();
    }
}

#[test]
fn write_reaches_the_home() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    bed.frames.fill(|i| !pattern(i));
    assert_eq!(
        bytes_of(&bed.run(&mut poster, bed.write(4096), &[bed.local(8192, 65536)])),
        65536
    );
    for i in 0..BYTES / 8 {
        let expected = if (512..8704).contains(&i) {
            !pattern(i + 512)
        } else {
            pattern(i)
        };
        assert_eq!(bed.home.word(i).load(Ordering::Relaxed), expected, "word {i}");
    }
    assert_eq!(bed.nic.stats().bytes_written, 65536);
}

#[test]
fn scatter_lists_are_one_span_to_the_other_side() {
    let bed = Bed::manual();
    let mut poster = bed.poster(16);
    // Five pieces: a request of two blocks.
    let pieces = [(100_000, 8), (0, 1), (50, 4096), (200_000, 3), (300_000, 100)];
    let list: Vec<_> = pieces.iter().map(|(at, bytes)| bed.local(*at, *bytes)).collect();
    let done = bed.run(&mut poster, bed.read(333), &list);
    assert_eq!(bytes_of(&done), 4208);
    assert_eq!(poster.written(), 2, "two blocks");
    let gathered: Vec<u8> = pieces
        .iter()
        .flat_map(|(at, bytes)| bed.frames.bytes(*at, *bytes))
        .collect();
    assert_eq!(gathered, bed.home.bytes(333, 4208));
    // And back, to another place.
    bed.run(&mut poster, bed.write(500_001), &list);
    assert_eq!(bed.home.bytes(500_001, 4208), gathered);
    assert_eq!(bed.frames.byte(49), 0xa5);
    assert_eq!(bed.frames.byte(50 + 4096), 0xa5);
}

#[test]
fn nop_and_dump_move_nothing() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    assert_eq!(bytes_of(&bed.run(&mut poster, Operation::Nop, &[])), 0);
    let done = bed.run(&mut poster, Operation::Dump, &[bed.local(0, 4096)]);
    assert_eq!((done.opcode, bytes_of(&done)), (Opcode::Dump, 4096));
    assert_eq!(bed.frames.bytes(0, 4096), [0xa5; 4096]);
    // A NOP of two units, as some libraries write it: the second is ignored.
    let mut block = [0u8; 64];
    block[..4].copy_from_slice(&(u32::from(poster.written() as u16) << 8).to_be_bytes());
    block[4..8].copy_from_slice(&(poster.number() << 8 | 2).to_be_bytes());
    block[11] = 0x08;
    poster.write_raw(&block);
    poster.ring();
    assert!(poster.wait(BOUND).expect("a completion").is_success());
    let stats = bed.nic.stats();
    assert_eq!((stats.nops, stats.dumps, stats.completions), (2, 1, 3));
    bed.assert_clean();
}

#[test]
fn empty_requests_succeed_without_a_key() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    for operation in [
        Operation::Read { remote: 1, rkey: 0 },
        Operation::Write { remote: 1, rkey: 0 },
    ] {
        assert_eq!(bytes_of(&bed.run(&mut poster, operation, &[])), 0);
    }
}

#[test]
fn silent_requests_complete_with_the_next_signalled_one() {
    let bed = Bed::manual();
    let mut poster = bed.poster(8);
    for i in 0..5 {
        let flags = if i == 4 { Flags::SIGNALLED } else { Flags::SILENT };
        poster
            .post(bed.read(i * 64), &[bed.local(i * 64, 64)], flags)
            .expect("room");
    }
    poster.ring();
    assert_eq!(bed.settle(), 5);
    assert_eq!(poster.poll().expect("one completion").index, 4);
    assert!(poster.poll().is_none());
    assert_eq!(poster.in_flight(), 0);
    assert_eq!(bed.frames.bytes(0, 320), bed.home.bytes(0, 320));
}

proptest! {
    /// Any alignment of both sides and any length, to the byte.
    #[test]
    fn spans_of_any_alignment(from in 0u64..200, to in 0u64..200, bytes in 1u64..700, back in 0u64..200) {
        let bed = Bed::manual();
        let mut poster = bed.poster(8);
        bed.run(&mut poster, bed.read(from), &[bed.local(to, bytes)]);
        prop_assert_eq!(bed.frames.bytes(to, bytes), bed.home.bytes(from, bytes));
        prop_assert_eq!(bed.frames.bytes(0, to), vec![0xa5; to as usize]);
        prop_assert_eq!(bed.frames.bytes(to + bytes, 200), vec![0xa5; 200]);
        bed.run(&mut poster, bed.write(back + 4096), &[bed.local(to, bytes)]);
        prop_assert_eq!(bed.home.bytes(back + 4096, bytes), bed.frames.bytes(to, bytes));
    }
}
