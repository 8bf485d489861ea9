//! The SoftRoCE codecs against the kernel's public headers `<rdma/rdma_user_rxe.h>` and `<rdma/ib_user_verbs.h>`.
//!
//! `rxe_reference.txt` records sizes, offsets and codes: what a C program said of the headers.

use crate::reference::{Program, Reference, check_fields};
use gpuvm_nic::wire::rxe::{CompletionEntry, SendEntry, Status, flags, opcodes};

const REFERENCE: Reference = Reference {
    // An answer of the driver stands behind that of the core.
    program: Program::FromNames(&[(
        "rxe_create_",
        "sizeof(struct ib_uverbs_create_{}) + sizeof(struct rxe_create_{})",
    )]),
    record: include_str!("../rxe_reference.txt"),
    headers: &[
        "infiniband/verbs.h",
        "linux/types.h",
        "rdma/ib_user_verbs.h",
        "rdma/rdma_user_rxe.h",
    ],
    package: "libibverbs-dev and linux-libc-dev",
};

#[test]
fn record_is_what_the_headers_say() {
    REFERENCE.check_record("record_is_what_the_headers_say");
}

#[test]
fn requests_have_the_headers_offsets() {
    check_fields! { REFERENCE, SendEntry, "rxe_send_wqe" {
        set_id(u64) = "wr.wr_id"
        set_opcode(u32) = "wr.opcode"
        set_send_flags(u32) = "wr.send_flags"
        set_remote_address(u64) = "wr.wr.rdma.remote_addr"
        set_remote_address(u64) = "wr.wr.atomic.remote_addr"
        set_rdma_key(u32) = "wr.wr.rdma.rkey"
        set_compare_add(u64) = "wr.wr.atomic.compare_add"
        set_swap(u64) = "wr.wr.atomic.swap"
        set_atomic_key(u32) = "wr.wr.atomic.rkey"
        set_status(u32) = "status"
        set_state(u32) = "state"
        set_iova(u64) = "iova"
        set_length(u32) = "dma.length"
        set_left(u32) = "dma.resid"
        set_current_segment(u32) = "dma.cur_sge"
        set_segments(u32) = "dma.num_sge"
        set_segment_offset(u32) = "dma.sge_offset"
    } }
    // The one segment lies behind the entry.
    let first = REFERENCE.number("rxe_send_wqe.dma.sge") as usize;
    assert_eq!(first as u64, REFERENCE.number("rxe_send_wqe"));
    let segment = |name| (first + REFERENCE.number(name) as usize..).next();
    let start = |set: fn(&mut SendEntry<&mut [u8]>)| {
        let touched =
            crate::reference::touched(
                256,
                |buffer| set(&mut SendEntry::new_checked(buffer).expect("its size")),
            );
        touched.first().copied()
    };
    assert_eq!(start(|entry| entry.set_local_address(0)), segment("rxe_sge.addr"));
    assert_eq!(start(|entry| entry.set_local_length(0)), segment("rxe_sge.length"));
    assert_eq!(start(|entry| entry.set_local_key(0)), segment("rxe_sge.lkey"));
    assert_eq!(first as u64 + REFERENCE.number("rxe_sge"), 224, "what `emit` fills");
}

#[test]
fn completions_have_the_headers_offsets() {
    assert_eq!(REFERENCE.number("ib_uverbs_wc"), 48);
    check_fields! { REFERENCE, CompletionEntry, "ib_uverbs_wc" {
        set_id(u64) = "wr_id"
        set_status(u32) = "status"
        set_opcode(u32) = "opcode"
        set_vendor_error(u32) = "vendor_err"
        set_byte_count(u32) = "byte_len"
        set_queue_pair(u32) = "qp_num"
    } }
}

#[test]
fn codes_are_the_headers() {
    let codes = [
        ("IB_UVERBS_WR_RDMA_WRITE", opcodes::RDMA_WRITE),
        ("IB_UVERBS_WR_RDMA_READ", opcodes::RDMA_READ),
        ("IB_UVERBS_WR_ATOMIC_CMP_AND_SWP", opcodes::CMP_AND_SWP),
        ("IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD", opcodes::FETCH_AND_ADD),
        ("IBV_SEND_FENCE", flags::FENCE),
        ("IBV_SEND_SIGNALED", flags::SIGNALED),
        ("IBV_WC_WR_FLUSH_ERR", u8::from(Status::Flushed).into()),
        ("IBV_WC_REM_ACCESS_ERR", u8::from(Status::RemoteAccess).into()),
        ("IBV_WC_RETRY_EXC_ERR", u8::from(Status::RetriesExceeded).into()),
        ("IBV_WC_RNR_RETRY_EXC_ERR", u8::from(Status::ReceiverNotReady).into()),
    ];
    for (name, code) in codes {
        assert_eq!(REFERENCE.number(name), u64::from(code), "{name}");
    }
}
