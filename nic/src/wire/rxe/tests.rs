//! Golden bytes and garbage. `tests/nic/rxe_header.rs` compares with the kernel's headers.

use proptest::prelude::*;

use super::*;
use crate::wire::mlx5::Syndrome;

fn read() -> WorkRequest {
    WorkRequest {
        id: 0x1122_3344_5566_7788,
        operation: Operation::Read,
        signalled: true,
        fence: false,
        remote: 0x7f00_1234_5000,
        rkey: 0xabcd,
        local: 0x7e00_0000_1000,
        lkey: 0x77,
        bytes: 4096,
    }
}

#[test]
fn a_read_has_its_golden_words() {
    let mut buffer = [0xa5; 256];
    read().emit(&mut buffer).expect("room");
    let mut expected = [0u8; 224];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0x1122_3344_5566_7788u64.to_le_bytes());
    put(12, &4u32.to_le_bytes());
    put(16, &2u32.to_le_bytes());
    put(24, &0x7f00_1234_5000u64.to_le_bytes());
    put(32, &0xabcdu32.to_le_bytes());
    put(152, &0x7f00_1234_5000u64.to_le_bytes());
    put(184, &4096u32.to_le_bytes());
    put(188, &4096u32.to_le_bytes());
    put(196, &1u32.to_le_bytes());
    put(208, &0x7e00_0000_1000u64.to_le_bytes());
    put(216, &4096u32.to_le_bytes());
    put(220, &0x77u32.to_le_bytes());
    assert_eq!(buffer[..224], expected);
    assert_eq!(buffer[224..], [0xa5; 32], "what follows the entry is not touched");
}

#[test]
fn requests_survive_a_round_trip() {
    let operations = [
        Operation::Read,
        Operation::Write,
        Operation::CompareSwap { compare: 1, swap: 2 },
        Operation::FetchAdd { add: u64::MAX },
    ];
    for operation in operations {
        let request = WorkRequest {
            operation,
            fence: true,
            ..read()
        };
        let mut buffer = [0xa5; 224];
        request.emit(&mut buffer).expect("room");
        assert_eq!(WorkRequest::parse(&buffer), Ok(request));
    }
    assert!(read().emit(&mut [0; 223]).is_err());
}

#[test]
fn statuses_have_mlx5s_numbers() {
    let expected = [
        (Status::Success, None),
        (Status::LocalLength, Some(Syndrome::LocalLength)),
        (Status::LocalOperation, Some(Syndrome::LocalQueuePairOperation)),
        (Status::LocalProtection, Some(Syndrome::LocalProtection)),
        (Status::Flushed, Some(Syndrome::Flushed)),
        (Status::MemoryWindow, Some(Syndrome::WindowBind)),
        (Status::BadResponse, Some(Syndrome::BadResponse)),
        (Status::LocalAccess, Some(Syndrome::LocalAccess)),
        (Status::RemoteInvalidRequest, Some(Syndrome::RemoteInvalidRequest)),
        (Status::RemoteAccess, Some(Syndrome::RemoteAccess)),
        (Status::RemoteOperation, Some(Syndrome::RemoteOperation)),
        (Status::RetriesExceeded, Some(Syndrome::TransportRetryExceeded)),
        (Status::ReceiverNotReady, Some(Syndrome::ReceiverNotReady)),
    ];
    for (status, syndrome) in expected {
        assert_eq!(status.syndrome(), syndrome, "{status}");
    }
}

#[test]
fn a_completion_is_read() {
    let mut bytes = [0; 64];
    let mut entry = CompletionEntry::new_checked(&mut bytes[..]).expect("64 bytes");
    entry.set_id(9);
    entry.set_status(10);
    entry.set_queue_pair(0x11);
    entry.set_byte_count(8);
    let completion = Completion::parse(&bytes).expect("a completion");
    assert_eq!(
        completion,
        Completion {
            id: 9,
            status: Status::RemoteAccess,
            bytes: 8,
            queue_pair: 0x11
        }
    );
    assert!(Completion::parse(&bytes[..47]).is_err());
}

#[test]
fn a_ring_must_lie_within_its_mapping() {
    let mut header = [0; 384];
    let mut view = RingHeader::new_checked(&mut header[..]).expect("384 bytes");
    view.set_slot_shift(8);
    view.set_index_mask(511);
    let view = RingHeader::new_checked(&header[..]).expect("384 bytes");
    assert_eq!(view.shape(384 + 512 * 256, 224), Ok((512, 8)));
    assert!(view.shape(384 + 512 * 256 - 1, 224).is_err(), "beyond the mapping");
    assert!(view.shape(1 << 20, 257).is_err(), "slots too short");
    header[4] = 0xfe;
    let view = RingHeader::new_checked(&header[..]).expect("384 bytes");
    assert!(view.shape(1 << 20, 224).is_err(), "not a power of two");
}

proptest! {
    #[test]
    fn garbage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Completion::parse(&bytes);
        if let Ok(request) = WorkRequest::parse(&bytes) {
            let mut again = [0; 224];
            request.emit(&mut again).expect("room");
            prop_assert_eq!(WorkRequest::parse(&again), Ok(request));
        }
        if let Ok(header) = RingHeader::new_checked(&bytes) {
            let _ = header.shape(bytes.len() as u64, 224);
        }
    }
}
