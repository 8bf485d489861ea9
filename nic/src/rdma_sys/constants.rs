//! Constants of both headers.

use std::ffi::{c_int, c_void};

/// Constants, by what they are of.
macro_rules! constants {
    ($($of:literal: $type:ty { $($name:ident = $value:expr,)* })*) => {$($(
        #[doc = concat!("Of `", $of, "`.")]
        pub const $name: $type = $value;
    )*)*};
}

constants! {
    "enum ibv_node_type": c_int {
        IBV_NODE_CA = 1,
    }
    "enum ibv_port_state": u32 {
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }
    "struct ibv_port_attr, link_layer": u8 {
        IBV_LINK_LAYER_ETHERNET = 2,
    }
    "struct ibv_port_attr, flags": u8 {
        IBV_QPF_GRH_REQUIRED = 1,
    }
    "enum ibv_gid_type": u32 {
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
    "enum ibv_access_flags": u32 {
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    }
    "enum ibv_parent_domain_init_attr_mask": u32 {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
    "enum ibv_cq_init_attr_mask": u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }
    "enum ibv_create_cq_attr_flags": u32 {
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
    "enum ibv_qp_type": u32 {
        IBV_QPT_RC = 2,
    }
    "enum ibv_qp_init_attr_mask": u32 {
        IBV_QP_INIT_ATTR_PD = 1,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }
    "enum ibv_qp_create_send_ops_flags": u64 {
        IBV_QP_EX_WITH_RDMA_WRITE = 1,
        IBV_QP_EX_WITH_SEND = 1 << 2,
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
    }
    "enum ibv_qp_state": u32 {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_ERR = 6,
    }
    "enum ibv_qp_attr_mask": c_int {
        IBV_QP_STATE = 1,
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        IBV_QP_PKEY_INDEX = 1 << 4,
        IBV_QP_PORT = 1 << 5,
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        IBV_QP_DEST_QPN = 1 << 20,
    }
    "enum ibv_wr_opcode": u32 {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_SEND = 2,
        IBV_WR_RDMA_READ = 4,
    }
    "enum ibv_send_flags": u32 {
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_INLINE = 1 << 3,
    }
    "enum ibv_wc_status": u32 {
        IBV_WC_SUCCESS = 0,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_RETRY_EXC_ERR = 12,
    }
    "enum ibv_wc_opcode": u32 {
        IBV_WC_RECV = 1 << 7,
    }
    "enum rdma_port_space": u32 {
        RDMA_PS_TCP = 0x106,
    }
    "enum rdma_cm_event_type": u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    }
    "rdma_set_option, level": c_int {
        RDMA_OPTION_ID = 0,
    }
    "rdma_set_option, optname": c_int {
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }
}

/// What an allocator of a parent domain returns to leave the memory to the driver.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
/// `abi_compat` of a context with a [`verbs_context`](super::verbs_context) around it.
pub const __VERBS_ABI_IS_EXTENDED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
