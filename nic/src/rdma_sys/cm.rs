//! Structures and functions of <rdma/rdma_cma.h>.
#![allow(missing_docs, reason = "man pages describe the fields")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use libc::sockaddr;

use super::load::{CONNECTION_MANAGER, functions};
use super::verbs::*;

/// `struct rdma_event_channel`, see rdma_create_event_channel(3).
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// `struct rdma_addr`, see rdma_resolve_addr(3). Addresses begin with their family, which is 0 where there is none.
#[repr(C)]
pub struct rdma_addr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    pub unused: [u64; 5],
}

/// `struct rdma_route`, see rdma_resolve_route(3).
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// `struct rdma_cm_id`, see rdma_create_id(3).
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub unused: [usize; 6],
    pub qp_type: u32,
}

/// `struct rdma_conn_param`, see rdma_connect(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `param` of [`rdma_cm_event`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub unused: [u64; 7],
}

/// `struct rdma_cm_event`, see rdma_get_cm_event(3).
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: u32,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

functions! { CONNECTION_MANAGER;
    /// rdma_create_event_channel(3).
    fn rdma_create_event_channel() -> *mut rdma_event_channel = null_mut();
    /// rdma_destroy_event_channel(3).
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) = ();
    /// rdma_create_id(3).
    fn rdma_create_id(
        channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: u32,
    ) -> c_int = -1;
    /// rdma_destroy_id(3).
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int = -1;
    /// rdma_bind_addr(3).
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int = -1;
    /// rdma_listen(3).
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int = -1;
    /// rdma_resolve_addr(3).
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int,
    ) -> c_int = -1;
    /// rdma_resolve_route(3).
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int = -1;
    /// rdma_set_option(3).
    fn rdma_set_option(
        id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize,
    ) -> c_int = -1;
    /// rdma_connect(3).
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int = -1;
    /// rdma_accept(3).
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int = -1;
    /// rdma_establish(3).
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int = -1;
    /// rdma_reject(3).
    fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int = -1;
    /// rdma_disconnect(3).
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int = -1;
    /// rdma_get_cm_event(3).
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int = -1;
    /// rdma_ack_cm_event(3).
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int = -1;
    /// rdma_init_qp_attr(3).
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int = -1;
}
