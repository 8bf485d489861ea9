//! The codecs against the public header `<infiniband/mlx5dv.h>`.
//!
//! `mlx5_wire_reference.txt` records sizes, offsets and codes of the header; `mlx5dv_reference.txt` what `mlx5dv_reference.c`
//! prints, requests made by its inline helpers. The codecs are always compared with the records; the records are compared
//! with the header where the header and a C compiler are there.

use crate::reference::{Program, Reference, check_fields};
use gpuvm_nic::wire::mlx5::{
    AtomicSegment, BLOCK_BYTES, Completion, CompletionDetail, ControlSegment, Cqe, CqeOpcode, DataSegment,
    InlineHeader, Opcode, Operation, RemoteAddressSegment, Segment, Segments, Syndrome, WorkRequest, control_flags,
};

const REFERENCE: Reference = Reference {
    program: Program::FromNames(&[]),
    record: include_str!("../mlx5_wire_reference.txt"),
    headers: &["infiniband/mlx5dv.h"],
    package: "libibverbs-dev",
};
/// Requests and completions in bytes.
const MADE: Reference = Reference {
    program: Program::File(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mlx5dv_reference.c")),
    record: include_str!("../mlx5dv_reference.txt"),
    ..REFERENCE
};

fn number(name: &str) -> u64 {
    REFERENCE.number(name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn record_is_what_the_header_says() {
    REFERENCE.check_record("record_is_what_the_header_says");
    MADE.check_record("record_is_what_the_header_says");
}

#[test]
fn offsets_in_control_segments_are_the_headers() {
    check_fields! { REFERENCE, ControlSegment, "mlx5_wqe_ctrl_seg" {
        set_opmod_index_opcode(u32) = "opmod_idx_opcode"
        set_qpn_ds(u32) = "qpn_ds"
        set_signature(u8) = "signature"
        set_flags(u8) = "fm_ce_se"
        set_immediate(u32) = "imm"
    } }
}

#[test]
fn offsets_in_segments_are_the_headers() {
    check_fields! { REFERENCE, RemoteAddressSegment, "mlx5_wqe_raddr_seg" {
        set_address(u64) = "raddr"
        set_rkey(u32) = "rkey"
    } }
    check_fields! { REFERENCE, AtomicSegment, "mlx5_wqe_atomic_seg" {
        set_swap_add(u64) = "swap_add"
        set_compare(u64) = "compare"
    } }
}

#[test]
fn offsets_in_completions_are_the_headers() {
    check_fields! { REFERENCE, Cqe, "mlx5_cqe64" {
        set_wqe_id(u16) = "wqe_id"
        set_flags_rqpn(u32) = "flags_rqpn"
        set_srqn_uidx(u32) = "srqn_uidx"
        set_immediate(u32) = "imm_inval_pkey"
        set_byte_count(u32) = "byte_cnt"
        set_timestamp(u64) = "timestamp"
        set_opcode_qpn(u32) = "sop_drop_qpn"
        set_wqe_counter(u16) = "wqe_counter"
        set_signature(u8) = "signature"
        set_op_own(u8) = "op_own"
    } }
    check_fields! { REFERENCE, Cqe, "mlx5_err_cqe" {
        set_vendor_syndrome(u8) = "vendor_err_synd"
        set_syndrome(u8) = "syndrome"
        set_opcode_qpn(u32) = "s_wqe_opcode_qpn"
        set_wqe_counter(u16) = "wqe_counter"
        set_op_own(u8) = "op_own"
    } }
}

#[test]
fn sizes_are_the_headers() {
    let needs = |new: fn(&[u8]) -> bool| (0..100).find(|n| new(&vec![0; *n])).expect("some size is enough") as u64;
    assert_eq!(
        needs(|b| ControlSegment::new_checked(b).is_ok()),
        number("mlx5_wqe_ctrl_seg")
    );
    assert_eq!(
        needs(|b| RemoteAddressSegment::new_checked(b).is_ok()),
        number("mlx5_wqe_raddr_seg")
    );
    assert_eq!(
        needs(|b| AtomicSegment::new_checked(b).is_ok()),
        number("mlx5_wqe_atomic_seg")
    );
    assert_eq!(
        needs(|b| DataSegment::new_checked(b).is_ok()),
        number("mlx5_wqe_data_seg")
    );
    assert_eq!(
        needs(|b| InlineHeader::new_checked(b).is_ok()),
        number("mlx5_wqe_inl_data_seg")
    );
    assert_eq!(needs(|b| Cqe::new_checked(b).is_ok()), number("mlx5_cqe64"));
    assert_eq!(BLOCK_BYTES as u64, number("MLX5_SEND_WQE_BB"));
}

#[test]
fn codes_are_the_headers() {
    let opcodes = [
        (Opcode::Nop, "NOP"),
        (Opcode::SendInvalidate, "SEND_INVAL"),
        (Opcode::Write, "RDMA_WRITE"),
        (Opcode::WriteImmediate, "RDMA_WRITE_IMM"),
        (Opcode::Send, "SEND"),
        (Opcode::SendImmediate, "SEND_IMM"),
        (Opcode::Read, "RDMA_READ"),
        (Opcode::CompareSwap, "ATOMIC_CS"),
        (Opcode::FetchAdd, "ATOMIC_FA"),
        (Opcode::MaskedCompareSwap, "ATOMIC_MASKED_CS"),
        (Opcode::MaskedFetchAdd, "ATOMIC_MASKED_FA"),
        (Opcode::Umr, "UMR"),
    ];
    for (opcode, name) in opcodes {
        assert_eq!(u64::from(u8::from(opcode)), number(&format!("MLX5_OPCODE_{name}")));
    }
    // All but DUMP, which the header does not have.
    assert_eq!(opcodes.len() + 1, Opcode::KNOWN.len());
    let syndromes = [
        (Syndrome::LocalLength, "LOCAL_LENGTH"),
        (Syndrome::LocalQueuePairOperation, "LOCAL_QP_OP"),
        (Syndrome::LocalProtection, "LOCAL_PROT"),
        (Syndrome::Flushed, "WR_FLUSH"),
        (Syndrome::WindowBind, "MW_BIND"),
        (Syndrome::BadResponse, "BAD_RESP"),
        (Syndrome::LocalAccess, "LOCAL_ACCESS"),
        (Syndrome::RemoteInvalidRequest, "REMOTE_INVAL_REQ"),
        (Syndrome::RemoteAccess, "REMOTE_ACCESS"),
        (Syndrome::RemoteOperation, "REMOTE_OP"),
        (Syndrome::TransportRetryExceeded, "TRANSPORT_RETRY_EXC"),
        (Syndrome::ReceiverNotReady, "RNR_RETRY_EXC"),
        (Syndrome::RemoteAborted, "REMOTE_ABORTED"),
    ];
    for (syndrome, name) in syndromes {
        assert_eq!(
            u64::from(u8::from(syndrome)),
            number(&format!("MLX5_CQE_SYNDROME_{name}_ERR"))
        );
    }
    assert_eq!(syndromes.len(), Syndrome::KNOWN.len());
    let kinds = [
        (CqeOpcode::Request, "REQ"),
        (CqeOpcode::ResponderWriteImmediate, "RESP_WR_IMM"),
        (CqeOpcode::ResponderSend, "RESP_SEND"),
        (CqeOpcode::ResponderSendImmediate, "RESP_SEND_IMM"),
        (CqeOpcode::ResponderSendInvalidate, "RESP_SEND_INV"),
        (CqeOpcode::Resize, "RESIZE_CQ"),
        (CqeOpcode::RequestError, "REQ_ERR"),
        (CqeOpcode::ResponderError, "RESP_ERR"),
        (CqeOpcode::Invalid, "INVALID"),
    ];
    for (kind, name) in kinds {
        assert_eq!(u64::from(u8::from(kind)), number(&format!("MLX5_CQE_{name}")));
    }
    assert_eq!(kinds.len(), CqeOpcode::KNOWN.len());
    let flags = [
        (control_flags::CQ_UPDATE, "CQ_UPDATE"),
        (control_flags::SOLICITED, "SOLICITED"),
        (control_flags::FENCE, "FENCE"),
        (control_flags::INITIATOR_SMALL_FENCE, "INITIATOR_SMALL_FENCE"),
    ];
    for (flag, name) in flags {
        assert_eq!(u64::from(flag), number(&format!("MLX5_WQE_CTRL_{name}")));
    }
    assert_eq!((number("MLX5_RCV_DBR"), number("MLX5_SND_DBR")), (0, 1));
}

#[test]
fn requests_are_the_headers() {
    let (remote, rkey, lkey, address) = (0x7f01_0203_0400, 0x2101, 0x2200, 0x7e0a_0b0c_0d00);
    let data = |bytes, i: u64| Segment::Data {
        bytes,
        lkey,
        address: address + i,
    };
    let (four_kib, eight) = ([data(4096, 0)], [data(8, 0)]);
    let list = [data(100, 0), data(101, 1), data(102, 2)];
    let inline = [Segment::Inline(b"hello, inline")];
    let base = WorkRequest {
        index: 0xbeef,
        queue_pair: 0x12_3456,
        fence: false,
        signalled: true,
        solicited: false,
        operation: Operation::Read { remote, rkey },
        segments: Segments::List(&four_kib),
    };
    let immediate = 0xdead_beef;
    let (compare, swap) = (0x99aa_bbcc_ddee_ff00, 0x1122_3344_5566_7788);
    let write_immediate = WorkRequest {
        solicited: true,
        operation: Operation::WriteImmediate {
            remote,
            rkey,
            immediate,
        },
        segments: Segments::List(&list),
        ..base
    };
    let write_inline = WorkRequest {
        signalled: false,
        operation: Operation::Write { remote, rkey },
        segments: Segments::List(&inline),
        ..base
    };
    let atomic = |operation| WorkRequest {
        operation,
        segments: Segments::List(&eight),
        ..base
    };
    let compare_swap = Operation::CompareSwap {
        remote,
        rkey,
        compare,
        swap,
    };
    let cases = [
        ("read", WorkRequest { fence: true, ..base }),
        ("write_imm", write_immediate),
        ("inline", write_inline),
        ("compare_swap", atomic(compare_swap)),
        ("fetch_add", atomic(Operation::FetchAdd { remote, rkey, add: 5 })),
    ];
    for (name, request) in cases {
        let mut buffer = [0xa5; 1024];
        let bytes = request.emit(&mut buffer).expect("a request with a wire form");
        assert_eq!(hex(&buffer[..bytes]), MADE.facts()[name], "{name}");
        assert_eq!(WorkRequest::parse(&buffer), Ok(request), "{name}");
    }
}

#[test]
fn completions_are_the_headers() {
    let detail = CompletionDetail::Success {
        bytes: 4096,
        immediate: 7,
        timestamp: 9,
    };
    let done = Completion {
        kind: CqeOpcode::Request,
        opcode: Opcode::Read,
        queue_pair: 0x12_3456,
        index: 0xbeef,
        solicited: false,
        owner: true,
        detail,
    };
    let detail = CompletionDetail::Error {
        syndrome: Syndrome::RemoteAccess,
        vendor: 0x88,
    };
    let error = Completion {
        kind: CqeOpcode::RequestError,
        owner: false,
        detail,
        ..done
    };
    for (name, completion) in [("cqe", done), ("cqe_error", error)] {
        let mut buffer = [0xa5; 64];
        completion.emit(&mut buffer).expect("64 bytes");
        assert_eq!(hex(&buffer), MADE.facts()[name], "{name}");
        assert_eq!(Completion::parse(&buffer), Ok(completion), "{name}");
    }
}
