//! Golden bytes, round trips, garbage.

use proptest::prelude::*;

use super::*;
use crate::wire::WireError;

/// A READ as `mlx5dv_set_ctrl_seg`, `struct mlx5_wqe_raddr_seg` and `mlx5dv_set_data_seg` of rdma-core lay it out;
/// `tests/mlx5_header.rs` compares with the header itself.
const READ: [u8; 48] = [
    0x00, 0xbe, 0xef, 0x10, 0x12, 0x34, 0x56, 0x03, 0x00, 0x00, 0x00, 0x88, 0x00, 0x00, 0x00, 0x00, // control
    0x00, 0x00, 0x7f, 0x01, 0x02, 0x03, 0x04, 0x00, 0x00, 0x00, 0x21, 0x01, 0x00, 0x00, 0x00, 0x00, // remote
    0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x22, 0x00, 0x00, 0x00, 0x7e, 0x0a, 0x0b, 0x0c, 0x0d, 0x00, // data
];

fn read_request() -> WorkRequest<'static> {
    WorkRequest {
        index: 0xbeef,
        queue_pair: 0x12_3456,
        fence: true,
        signalled: true,
        solicited: false,
        operation: Operation::Read {
            remote: 0x7f01_0203_0400,
            rkey: 0x2101,
        },
        segments: Segments::List(&[Segment::Data {
            bytes: 4096,
            lkey: 0x2200,
            address: 0x7e0a_0b0c_0d00,
        }]),
    }
}

#[test]
fn read_has_its_golden_bytes() {
    let mut buffer = [0xa5; 128];
    assert_eq!(read_request().emit(&mut buffer), Ok(64));
    assert_eq!(buffer[..48], READ);
    assert_eq!(buffer[48..64], [0; 16], "the rest of the block is cleared");
    assert_eq!(buffer[64..], [0xa5; 64], "what follows is not touched");
    assert_eq!(WorkRequest::parse(&buffer), Ok(read_request()));
}

#[test]
fn printer_tells_all_of_a_request() {
    assert_eq!(
        read_request().to_string(),
        "RDMA_READ qp 0x123456 #48879 remote 0x7f0102030400 rkey 0x2101 \
         local 0x7e0a0b0c0d00+4096 lkey 0x2200 fence signalled"
    );
}

#[test]
fn atomics_fill_one_block() {
    let segments = [Segment::Data {
        bytes: 8,
        lkey: 1 << 8,
        address: 0x1000,
    }];
    let operation = Operation::CompareSwap {
        remote: 0x2000,
        rkey: 0x301,
        compare: 1,
        swap: 2,
    };
    let request = WorkRequest {
        operation,
        segments: Segments::List(&segments),
        ..read_request()
    };
    let mut buffer = [0xa5; 64];
    assert_eq!(request.emit(&mut buffer), Ok(64));
    assert_eq!(buffer[7], 4, "ds");
    assert_eq!(buffer[32..40], 2u64.to_be_bytes(), "swap comes first");
    assert_eq!(buffer[40..48], 1u64.to_be_bytes());
    assert_eq!(WorkRequest::parse(&buffer), Ok(request));
}

#[test]
fn doorbell_has_its_golden_bytes() {
    let doorbell = Doorbell {
        index: 0xbeef,
        queue_pair: 0x12_3456,
    };
    let bytes = [0x00, 0xbe, 0xef, 0x00, 0x12, 0x34, 0x56, 0x00];
    assert_eq!(doorbell.emit(), bytes);
    assert_eq!(Doorbell::parse(bytes), doorbell);
    // The first 8 bytes of a control segment are a doorbell as well: opcode, modifier and ds are not looked at.
    assert_eq!(
        Doorbell::parse([0x77, 0xbe, 0xef, 0x10, 0x12, 0x34, 0x56, 0x03]),
        doorbell
    );
}

#[test]
fn records_are_two_words() {
    let mut bytes = [0xa5; 8];
    let mut record = DoorbellRecord::new_checked(&mut bytes[..]).expect("8 bytes");
    record.set_receive(1);
    record.set_send(0xffff);
    assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0xff, 0xff]);
    let mut record = CqDoorbellRecord::new_checked(&mut bytes[..]).expect("8 bytes");
    record.set_consumer(0x00ab_cdef);
    record.set_arm(0);
    assert_eq!(bytes, [0, 0xab, 0xcd, 0xef, 0, 0, 0, 0]);
}

#[test]
fn completions_have_their_golden_bytes() {
    let mut buffer = [0xa5; 64];
    let detail = CompletionDetail::Error {
        syndrome: Syndrome::RemoteAccess,
        vendor: 0x88,
    };
    let error = Completion {
        kind: CqeOpcode::RequestError,
        opcode: Opcode::Read,
        queue_pair: 0x12_3456,
        index: 0xbeef,
        solicited: false,
        owner: true,
        detail,
    };
    error.emit(&mut buffer).expect("64 bytes");
    assert_eq!(buffer[..54], [0; 54]);
    assert_eq!(buffer[54..], [0x88, 0x13, 0x10, 0x12, 0x34, 0x56, 0xbe, 0xef, 0, 0xd1]);
    assert_eq!(Completion::parse(&buffer), Ok(error));
    let detail = CompletionDetail::Success {
        bytes: 4096,
        immediate: 7,
        timestamp: 9,
    };
    let done = Completion {
        kind: CqeOpcode::Request,
        owner: false,
        detail,
        ..error
    };
    buffer = [0xa5; 64];
    done.emit(&mut buffer).expect("64 bytes");
    assert_eq!(
        buffer[36..60],
        [
            0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0x10, 0x12, 0x34, 0x56
        ]
    );
    assert_eq!(buffer[60..], [0xbe, 0xef, 0, 0x00]);
    assert_eq!(Completion::parse(&buffer), Ok(done));
}

#[test]
fn owner_bit_tells_the_lap() {
    let mut entry = [0u8; 64];
    let valid = |entry: &[u8], consumed| Cqe::new_checked(entry).expect("64 bytes").is_valid(consumed, 8);
    entry[63] = CQE_INVALID;
    assert!(!valid(&entry, 3), "never written");
    entry[63] = 0;
    assert!(valid(&entry, 3) && !valid(&entry, 11) && valid(&entry, 19));
    entry[63] = 1;
    assert!(!valid(&entry, 3) && valid(&entry, 11) && !valid(&entry, 19));
}

#[test]
fn errors_name_field_value_and_offset() {
    let error = WorkRequest::parse(&READ[..32]).expect_err("a third of the request is missing");
    assert_eq!((error.field, error.value, error.offset), ("ControlSegment.ds", 3, 7));
    let mut bytes = READ;
    bytes[7] = 1;
    let error = WorkRequest::parse(&bytes).expect_err("a READ without remote side");
    assert_eq!((error.field, error.value), ("ControlSegment.ds", 1));
    // An inline segment that says it is longer than the request.
    bytes = READ;
    bytes[3] = 0x08;
    bytes[32..36].copy_from_slice(&0x8000_0100u32.to_be_bytes());
    let error = WorkRequest::parse(&bytes).expect_err("inline data past the end");
    assert_eq!(
        (error.field, error.value, error.offset),
        ("InlineHeader.byte_count", 0x8000_0100, 32)
    );
    assert_eq!(
        error.to_string(),
        "InlineHeader.byte_count at byte 32 is 0x80000100, expected data within the request"
    );
}

#[test]
fn emit_refuses_what_has_no_wire_form() {
    let mut buffer = [0xa5; 1024];
    let refused = |request: WorkRequest<'_>, buffer: &mut [u8]| {
        let error: WireError = request.emit(buffer).expect_err("no wire form");
        assert!(
            buffer.iter().all(|byte| *byte == 0xa5),
            "a refused request writes nothing"
        );
        error.field
    };
    let long = [Segment::Inline(&[1; 1000])];
    let request = WorkRequest {
        segments: Segments::List(&long),
        ..read_request()
    };
    assert_eq!(refused(request, &mut buffer), "WorkRequest.bytes");
    let request = WorkRequest {
        queue_pair: 1 << 24,
        ..read_request()
    };
    assert_eq!(refused(request, &mut buffer), "WorkRequest.queue_pair");
    let huge = [Segment::Data {
        bytes: 1 << 31,
        lkey: 0,
        address: 0,
    }];
    let request = WorkRequest {
        segments: Segments::List(&huge),
        ..read_request()
    };
    assert_eq!(refused(request, &mut buffer), "DataSegment.byte_count");
    assert_eq!(refused(read_request(), &mut buffer[..63]), "WorkRequest.buffer");
}

#[test]
fn a_stored_length_of_zero_is_two_gigabytes() {
    assert_eq!(
        Segment::Data {
            bytes: 0,
            lkey: 0,
            address: 0
        }
        .len_bytes(),
        1 << 31
    );
    assert_eq!(Segment::Inline(&[]).len_bytes(), 0);
}

/// A segment that owns its bytes.
#[derive(Debug, Clone)]
enum Owned {
    Data(u32, u32, u64),
    Inline(Vec<u8>),
}

impl Owned {
    fn borrow(&self) -> Segment<'_> {
        match self {
            Owned::Data(bytes, lkey, address) => Segment::Data {
                bytes: *bytes,
                lkey: *lkey,
                address: *address,
            },
            Owned::Inline(data) => Segment::Inline(data),
        }
    }
}

fn any_segments() -> impl Strategy<Value = Vec<Owned>> {
    let data = (0..1u32 << 31, any::<u32>(), any::<u64>()).prop_map(|(b, l, a)| Owned::Data(b, l, a));
    let inline = proptest::collection::vec(any::<u8>(), 0..100).prop_map(Owned::Inline);
    proptest::collection::vec(prop_oneof![data, inline], 0..8)
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let side = (any::<u64>(), any::<u32>());
    prop_oneof![
        Just(Operation::Nop),
        Just(Operation::Dump),
        side.prop_map(|(remote, rkey)| Operation::Write { remote, rkey }),
        (side, any::<u32>()).prop_map(|((remote, rkey), immediate)| Operation::WriteImmediate {
            remote,
            rkey,
            immediate
        }),
        side.prop_map(|(remote, rkey)| Operation::Read { remote, rkey }),
        (side, any::<u64>(), any::<u64>()).prop_map(|((remote, rkey), compare, swap)| Operation::CompareSwap {
            remote,
            rkey,
            compare,
            swap
        }),
        (side, any::<u64>()).prop_map(|((remote, rkey), add)| Operation::FetchAdd { remote, rkey, add }),
        any::<u8>().prop_map(|code| match Opcode::from(code) {
            Opcode::Nop | Opcode::Write | Opcode::WriteImmediate | Opcode::Read => Operation::Nop,
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::Dump => Operation::Dump,
            other => Operation::Other(other),
        }),
    ]
}

proptest! {
    #[test]
    fn codes_survive(code: u8) {
        prop_assert_eq!(u8::from(Opcode::from(code)), code);
        prop_assert_eq!(u8::from(Syndrome::from(code)), code);
        prop_assert_eq!(u8::from(CqeOpcode::from(code)), code);
    }

    #[test]
    fn requests_round_trip(
        index: u16,
        queue_pair in 0..1u32 << 24,
        flags: (bool, bool, bool),
        operation in any_operation(),
        owned in any_segments(),
        garbage: u8,
    ) {
        let list: Vec<_> = match operation {
            Operation::Nop | Operation::Other(_) => vec![],
            _ => owned.iter().map(Owned::borrow).collect(),
        };
        let request = WorkRequest {
            index,
            queue_pair,
            fence: flags.0,
            signalled: flags.1,
            solicited: flags.2,
            operation,
            segments: Segments::List(&list),
        };
        let mut buffer = [garbage; 1024];
        let filled = request.emit(&mut buffer).expect("8 segments of 116 bytes fit");
        prop_assert_eq!(filled, request.blocks() * 64);
        prop_assert_eq!(WorkRequest::parse(&buffer[..filled]), Ok(request));
        let mut again = [!garbage; 1024];
        WorkRequest::parse(&buffer).expect("parsed before").emit(&mut again).expect("emitted before");
        prop_assert_eq!(&buffer[..filled], &again[..filled], "no byte depends on what was there");
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
        if let Ok(request) = WorkRequest::parse(&bytes) {
            let _ = request.to_string();
            prop_assert!(request.wire_bytes() <= 1008);
            // Segments fill the request, so their sum in wire bytes is known.
            let known = !matches!(request.operation, Operation::Nop | Operation::Other(_));
            prop_assert!(!known || request.wire_bytes() == usize::from(bytes[7]) * 16);
        }
        if let Ok(completion) = Completion::parse(&bytes) {
            let _ = completion.to_string();
        }
    }

    #[test]
    fn likely_garbage_never_panics(
        opcode in prop::sample::select(vec![0u8, 8, 9, 0x10, 0x11, 0x12, 0x23, 0x0a]),
        units in 0u8..70,
        mut bytes in proptest::collection::vec(any::<u8>(), 16..1100),
    ) {
        bytes[3] = opcode;
        bytes[7] = units;
        if let Ok(request) = WorkRequest::parse(&bytes) {
            prop_assert!(request.segments.iter().count() <= 63);
            let mut again = [0; 1024];
            prop_assert!(request.segments.iter().all(|segment| segment.len_bytes() <= 1 << 31));
            request.emit(&mut again).expect("what was parsed can be written");
        }
    }

    #[test]
    fn completions_round_trip(
        kind in 0u8..15,
        opcode: u8,
        queue_pair in 0..1u32 << 24,
        index: u16,
        bits: (bool, bool),
        values: (u32, u32, u64, u8, u8),
        garbage: u8,
    ) {
        let kind = CqeOpcode::from(kind);
        let detail = match kind {
            CqeOpcode::RequestError | CqeOpcode::ResponderError => {
                CompletionDetail::Error { syndrome: values.3.into(), vendor: values.4 }
            }
            _ => CompletionDetail::Success { bytes: values.0, immediate: values.1, timestamp: values.2 },
        };
        let opcode = Opcode::from(opcode);
        let completion = Completion { kind, opcode, queue_pair, index, solicited: bits.0, owner: bits.1, detail };
        let mut buffer = [garbage; 64];
        completion.emit(&mut buffer).expect("64 bytes");
        prop_assert_eq!(Completion::parse(&buffer), Ok(completion));
    }

    #[test]
    fn doorbells_round_trip(index: u16, queue_pair in 0..1u32 << 24) {
        let doorbell = Doorbell { index, queue_pair };
        prop_assert_eq!(Doorbell::parse(doorbell.emit()), doorbell);
    }
}
