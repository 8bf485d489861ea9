//! The SoftRoCE codecs against the kernel's public headers `<rdma/rdma_user_rxe.h>` and `<rdma/ib_user_verbs.h>`.
//!
//! `rxe_reference.c` prints sizes, offsets and codes; `rxe_reference.txt` is its recorded output.

use crate::reference::{Reference, check_field};
use gpuvm_nic::wire::rxe::{CompletionEntry, SendEntry, Status, flags, opcodes};

const REFERENCE: Reference = Reference {
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rxe_reference.c"),
    record: include_str!("../rxe_reference.txt"),
    header: "infiniband/verbs.h",
    package: "libibverbs-dev and linux-libc-dev",
};

#[test]
fn record_is_what_the_headers_say() {
    REFERENCE.check_record("record_is_what_the_headers_say");
}

#[test]
fn requests_have_the_headers_offsets() {
    let r = REFERENCE;
    check_field!(r, SendEntry, set_id, u64, "rxe_send_wqe", "wr.wr_id");
    check_field!(r, SendEntry, set_opcode, u32, "rxe_send_wqe", "wr.opcode");
    check_field!(r, SendEntry, set_send_flags, u32, "rxe_send_wqe", "wr.send_flags");
    check_field!(
        r,
        SendEntry,
        set_remote_address,
        u64,
        "rxe_send_wqe",
        "wr.wr.rdma.remote_addr"
    );
    check_field!(
        r,
        SendEntry,
        set_remote_address,
        u64,
        "rxe_send_wqe",
        "wr.wr.atomic.remote_addr"
    );
    check_field!(r, SendEntry, set_rdma_key, u32, "rxe_send_wqe", "wr.wr.rdma.rkey");
    check_field!(
        r,
        SendEntry,
        set_compare_add,
        u64,
        "rxe_send_wqe",
        "wr.wr.atomic.compare_add"
    );
    check_field!(r, SendEntry, set_swap, u64, "rxe_send_wqe", "wr.wr.atomic.swap");
    check_field!(r, SendEntry, set_atomic_key, u32, "rxe_send_wqe", "wr.wr.atomic.rkey");
    check_field!(r, SendEntry, set_status, u32, "rxe_send_wqe", "status");
    check_field!(r, SendEntry, set_state, u32, "rxe_send_wqe", "state");
    check_field!(r, SendEntry, set_iova, u64, "rxe_send_wqe", "iova");
    check_field!(r, SendEntry, set_length, u32, "rxe_send_wqe", "dma.length");
    check_field!(r, SendEntry, set_left, u32, "rxe_send_wqe", "dma.resid");
    check_field!(r, SendEntry, set_current_segment, u32, "rxe_send_wqe", "dma.cur_sge");
    check_field!(r, SendEntry, set_segments, u32, "rxe_send_wqe", "dma.num_sge");
    check_field!(r, SendEntry, set_segment_offset, u32, "rxe_send_wqe", "dma.sge_offset");
    // The one segment lies behind the entry.
    let first = r.number("rxe_send_wqe.dma.sge") as usize;
    assert_eq!(first as u64, r.number("rxe_send_wqe"));
    let segment = |name| (first + r.number(name) as usize..).next();
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
    assert_eq!(first as u64 + r.number("rxe_sge"), 224, "what `emit` fills");
}

#[test]
fn completions_have_the_headers_offsets() {
    let r = REFERENCE;
    assert_eq!(r.number("ib_uverbs_wc"), 48);
    check_field!(r, CompletionEntry, set_id, u64, "ib_uverbs_wc", "wr_id");
    check_field!(r, CompletionEntry, set_status, u32, "ib_uverbs_wc", "status");
    check_field!(r, CompletionEntry, set_opcode, u32, "ib_uverbs_wc", "opcode");
    check_field!(r, CompletionEntry, set_vendor_error, u32, "ib_uverbs_wc", "vendor_err");
    check_field!(r, CompletionEntry, set_byte_count, u32, "ib_uverbs_wc", "byte_len");
    check_field!(r, CompletionEntry, set_queue_pair, u32, "ib_uverbs_wc", "qp_num");
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
