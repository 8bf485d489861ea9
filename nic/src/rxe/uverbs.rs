//! The kernel's uverbs commands, as `write` takes them, for one open device.
//!
//! Source: `<rdma/ib_user_verbs.h>` (commands and structures) and `<rdma/rdma_user_rxe.h>` (what rxe adds to responses).
//! A command is a header, then the command's structure, whose first field is the address of the response.
//! librxe knows nothing of the objects made here, so they are used by these calls alone.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;

use bytemuck::{Pod, Zeroable};

use crate::QueueAttributes;

/// `enum ib_uverbs_write_cmds`.
mod number {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const ALLOC_PD: u32 = 3;
    pub const REG_MR: u32 = 9;
    pub const DEREG_MR: u32 = 13;
    pub const CREATE_CQ: u32 = 18;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
}

/// Reliable connected (`IB_QPT_RC`).
const QP_TYPE_RC: u8 = 2;
/// Least size of a work request that POST_SEND accepts (`sizeof(struct ib_uverbs_send_wr)`).
const SEND_WR_BYTES: u32 = 56;

/// Where a ring can be mapped (`struct mminfo`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct MapInfo {
    pub offset: u64,
    pub bytes: u32,
    reserved: u32,
}

macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Pod, Zeroable)]
        pub(super) struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire_struct! { OnlyResponse, 8 { response: u64 } }
wire_struct! { ContextResponse, 8 { async_fd: u32, completion_vectors: u32 } }
wire_struct! {
    /// `struct ib_uverbs_query_device_resp`, its limits by name.
    DeviceLimits, 176 {
        fw_ver: u64, node_guid: u64, sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64, vendor_id: u32,
        vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32, device_cap_flags: u32, max_sge: u32,
        max_sge_rd: u32, max_cq: u32, max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32, rest: [u32; 21],
    }
}
wire_struct! { PdResponse, 4 { handle: u32 } }
wire_struct! { RegMr, 40 { response: u64, start: u64, length: u64, hca_va: u64, pd: u32, access: u32 } }
wire_struct! {
    /// `struct ib_uverbs_reg_mr_resp`.
    MrResponse, 12 { handle: u32, lkey: u32, rkey: u32 }
}
wire_struct! { Handle, 4 { handle: u32 } }
wire_struct! {
    CreateCq, 32 { response: u64, user_handle: u64, cqe: u32, vector: u32, channel: i32, reserved: u32 }
}
wire_struct! {
    /// `struct ib_uverbs_create_cq_resp` and `struct rxe_create_cq_resp`.
    CqResponse, 24 { handle: u32, cqe: u32, ring: MapInfo }
}
wire_struct! { DestroyCq, 16 { response: u64, handle: u32, reserved: u32 } }
wire_struct! { DestroyCqResponse, 8 { completion_events: u32, async_events: u32 } }
wire_struct! {
    CreateQp, 56 {
        response: u64, user_handle: u64, pd: u32, send_cq: u32, recv_cq: u32, srq: u32, max_send_wr: u32,
        max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline: u32, sq_sig_all: u8, qp_type: u8,
        is_srq: u8, reserved: u8,
    }
}
wire_struct! {
    /// `struct ib_uverbs_create_qp_resp` and `struct rxe_create_qp_resp`.
    QpResponse, 64 {
        handle: u32, number: u32, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline: u32, reserved: u32, recv_ring: MapInfo, send_ring: MapInfo,
    }
}
wire_struct! {
    Destination, 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8, traffic_class: u8,
        service_level: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port: u8,
    }
}
wire_struct! {
    ModifyQp, 112 {
        destination: Destination, alternate: Destination, handle: u32, mask: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, access: u32, pkey_index: u16, alternate_pkey_index: u16, state: u8, current_state: u8,
        path_mtu: u8, path_mig_state: u8, en_sqd: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8,
        port: u8, timeout: u8, retry_count: u8, rnr_retry: u8, alternate_port: u8, alternate_timeout: u8,
        reserved: [u8; 2],
    }
}
wire_struct! { QueryQp, 16 { response: u64, handle: u32, mask: u32 } }
wire_struct! {
    QueryQpResponse, 128 { addresses: [Destination; 2], capabilities: [u32; 5], numbers: [u32; 5], pkeys: [u16; 2], state: u8, rest: [u8; 19] }
}
wire_struct! { DestroyQp, 16 { response: u64, handle: u32, reserved: u32 } }
wire_struct! { DestroyQpResponse, 4 { events: u32 } }
wire_struct! { PostSend, 24 { response: u64, handle: u32, wr_count: u32, sge_count: u32, wqe_bytes: u32 } }
wire_struct! { PostSendResponse, 4 { bad_wr: u32 } }

/// An open device with a context.
pub(super) struct Uverbs {
    file: File,
    /// Asynchronous events arrive here. Nothing reads them: what fails shows in completions.
    _events: OwnedFd,
}

impl Uverbs {
    /// Opens `/dev/infiniband/uverbsN` and makes its context.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let context: ContextResponse = call(&file, number::GET_CONTEXT, OnlyResponse::zeroed())?;
        // SAFETY: the kernel has just made this descriptor for us, and nothing else has it.
        let events = unsafe { OwnedFd::from_raw_fd(context.async_fd as i32) };
        Ok(Self { file, _events: events })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn limits(&self) -> io::Result<DeviceLimits> {
        call(&self.file, number::QUERY_DEVICE, OnlyResponse::zeroed())
    }

    pub fn alloc_pd(&self) -> io::Result<u32> {
        let pd: PdResponse = call(&self.file, number::ALLOC_PD, OnlyResponse::zeroed())?;
        Ok(pd.handle)
    }

    /// # Safety
    /// As [`crate::Nic::register`].
    pub unsafe fn reg_mr(&self, pd: u32, start: u64, length: u64, access: u32) -> io::Result<MrResponse> {
        let command = RegMr {
            response: 0,
            start,
            length,
            hca_va: start,
            pd,
            access,
        };
        call(&self.file, number::REG_MR, command)
    }

    pub fn dereg_mr(&self, handle: u32) -> io::Result<()> {
        send(&self.file, number::DEREG_MR, 0, bytemuck::bytes_of(&Handle { handle }))
    }

    /// A completion queue of at least `entries`, without a completion channel.
    pub fn create_cq(&self, entries: u32) -> io::Result<CqResponse> {
        let command = CreateCq {
            cqe: entries,
            channel: -1,
            ..Zeroable::zeroed()
        };
        call(&self.file, number::CREATE_CQ, command)
    }

    pub fn destroy_cq(&self, handle: u32) -> io::Result<()> {
        let command = DestroyCq {
            handle,
            ..Zeroable::zeroed()
        };
        call::<_, DestroyCqResponse>(&self.file, number::DESTROY_CQ, command).map(drop)
    }

    /// A queue pair for `requests` requests of one segment.
    pub fn create_qp(&self, pd: u32, cq: u32, requests: u32) -> io::Result<QpResponse> {
        let command = CreateQp {
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: requests,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            qp_type: QP_TYPE_RC,
            ..Zeroable::zeroed()
        };
        call(&self.file, number::CREATE_QP, command)
    }

    pub fn query_qp_state(&self, handle: u32) -> io::Result<u8> {
        let command = QueryQp {
            handle,
            mask: 1,
            ..Zeroable::zeroed()
        };
        let response: QueryQpResponse = call(&self.file, number::QUERY_QP, command)?;
        Ok(response.state)
    }

    pub fn modify_qp(&self, handle: u32, attributes: &QueueAttributes) -> io::Result<()> {
        let a = attributes;
        let command = ModifyQp {
            destination: Destination {
                dgid: a.address.dgid,
                flow_label: a.address.flow_label,
                dlid: a.address.dlid,
                sgid_index: a.address.sgid_index,
                hop_limit: a.address.hop_limit,
                traffic_class: a.address.traffic_class,
                service_level: a.address.sl,
                src_path_bits: a.address.src_path_bits,
                static_rate: a.address.static_rate,
                is_global: u8::from(a.address.is_global),
                port: a.address.port,
                ..Zeroable::zeroed()
            },
            handle,
            mask: a.mask,
            qkey: a.qkey,
            rq_psn: a.rq_psn,
            sq_psn: a.sq_psn,
            dest_qp_num: a.dest_qp_num,
            access: a.access_flags,
            pkey_index: a.pkey_index,
            state: a.state as u8,
            path_mtu: a.mtu as u8,
            max_rd_atomic: a.max_rd_atomic,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            port: a.port_num,
            timeout: a.timeout,
            retry_count: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            ..Zeroable::zeroed()
        };
        send(&self.file, number::MODIFY_QP, 0, bytemuck::bytes_of(&command))
    }

    pub fn destroy_qp(&self, handle: u32) -> io::Result<()> {
        let command = DestroyQp {
            handle,
            ..Zeroable::zeroed()
        };
        call::<_, DestroyQpResponse>(&self.file, number::DESTROY_QP, command).map(drop)
    }

    /// The doorbell: no request is handed over, the driver looks at the send ring's producer index.
    pub fn post_send(&self, handle: u32) -> io::Result<()> {
        let command = PostSend {
            handle,
            wqe_bytes: SEND_WR_BYTES,
            ..Zeroable::zeroed()
        };
        call::<_, PostSendResponse>(&self.file, number::POST_SEND, command).map(drop)
    }
}

/// Runs a command whose first field is the response's address, and returns the response.
fn call<C: Pod, R: Pod>(file: &File, number: u32, mut command: C) -> io::Result<R> {
    let mut response = R::zeroed();
    let address = (&raw mut response).expose_provenance() as u64;
    if let Some(field) = bytemuck::bytes_of_mut(&mut command).first_chunk_mut() {
        *field = address.to_ne_bytes();
    }
    send(file, number, size_of::<R>(), bytemuck::bytes_of(&command))?;
    // SAFETY: `response` is a live local of that type. Volatile: the kernel filled it behind the compiler's back.
    Ok(unsafe { (&raw const response).read_volatile() })
}

/// Writes header and command. The kernel takes all of it or nothing.
fn send(mut file: &File, number: u32, response_bytes: usize, command: &[u8]) -> io::Result<()> {
    // The longest command has 112 bytes.
    let mut buffer = [0u8; 128];
    let bytes = 8 + command.len();
    buffer[..4].copy_from_slice(&number.to_ne_bytes());
    buffer[4..6].copy_from_slice(&((bytes / 4) as u16).to_ne_bytes());
    buffer[6..8].copy_from_slice(&((response_bytes / 4) as u16).to_ne_bytes());
    buffer[8..bytes].copy_from_slice(command);
    match file.write(&buffer[..bytes])? {
        written if written == bytes => Ok(()),
        written => Err(io::Error::other(format!(
            "uverbs command {number} took {written} of {bytes} bytes"
        ))),
    }
}
