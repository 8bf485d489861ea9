//! The bindings of libibverbs and librdmacm against `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`.
//!
//! `rdma_sys_reference.txt` records sizes, alignments, offsets and codes: what a C program said of the headers.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{align_of, offset_of, size_of};

use gpuvm_nic::QueueAttributes;
use gpuvm_nic::rdma_sys as sys;

use crate::reference::{Program, Reference};

const REFERENCE: Reference = Reference {
    program: Program::FromNames(&[
        // It grows at its beginning: from the end.
        (
            "verbs_context.",
            "sizeof(struct verbs_context) - offsetof(struct verbs_context, {})",
        ),
        // Older headers have no active_speed_ex, the last field.
        (
            "ibv_port_attr.fits",
            "sizeof(struct ibv_port_attr) == 52 || sizeof(struct ibv_port_attr) == 56",
        ),
    ]),
    record: include_str!("../rdma_sys_reference.txt"),
    headers: &["rdma/rdma_cma.h"],
    package: "librdmacm-dev",
};

/// The bindings' text.
const SOURCES: [&str; 3] = [
    include_str!("../../src/rdma_sys/verbs.rs"),
    include_str!("../../src/rdma_sys/cm.rs"),
    include_str!("../../src/rdma_sys/constants.rs"),
];

#[test]
fn record_is_what_the_headers_say() {
    REFERENCE.check_record("record_is_what_the_headers_say");
}

/// Names, and what the record says of them.
type Facts = BTreeMap<String, String>;

/// Bytes of a field.
fn bytes_of<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Size and alignment of structures, offsets and sizes of their fields. A field that is left out does not compile.
macro_rules! structures {
    ($($name:ident { $($field:ident),* })*) => {
        fn structures() -> Facts {
            let mut facts = Facts::new();
            $(
                facts.insert(
                    stringify!($name).to_owned(),
                    format!("{} {}", size_of::<sys::$name>(), align_of::<sys::$name>()),
                );
                let _ = |value: &sys::$name| {
                    let sys::$name { $($field: _),* } = value;
                };
                $(facts.insert(
                    concat!(stringify!($name), ".", stringify!($field)).to_owned(),
                    format!("{} {}", offset_of!(sys::$name, $field), bytes_of(|value: &sys::$name| &value.$field)),
                );)*
            )*
            facts
        }
    };
}

structures! {
    ibv_device { unused_ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    ibv_context_ops { unused_first, poll_cq, req_notify_cq, unused_second, post_send, post_recv, unused_third }
    ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, unused, max_pkeys, local_ca_ack_delay, phys_port_cnt }
    ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2, active_speed_ex }
    ibv_gid { raw }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_pd { context, handle }
    ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_comp_channel { context, fd, refcnt }
    ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
    ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
    ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
    ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, unused_rx_hash_conf, source_qpn, send_ops_flags }
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_ah { context, pd, handle }
    ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
    ibv_sge { addr, length, lkey }
    ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, unused_qp_type, unused_bind_mw }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    rdma_event_channel { fd }
    rdma_addr { src_storage, dst_storage, unused }
    rdma_route { addr, path_rec, num_paths }
    rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, unused, qp_type }
    rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
    rdma_cm_event { id, listen_id, event, status, param }
}

/// The distance of a field from the end of a context with later calls.
macro_rules! from_the_end {
    ($($field:ident),*) => {
        [$((
            concat!("verbs_context.", stringify!($field)),
            size_of::<sys::verbs_context>() - offset_of!(sys::verbs_context, $field),
        )),*]
    };
}

/// What the structures are, as the record says it.
fn shapes() -> Facts {
    let mut facts = structures();
    facts.retain(|name, _| !name.contains(".unused"));
    let mut fact = |name: &str, value: String| facts.insert(name.to_owned(), value);
    let wr = offset_of!(sys::ibv_send_wr, wr);
    let address = wr + offset_of!(sys::ibv_send_wr_rdma, remote_addr);
    let key = wr + offset_of!(sys::ibv_send_wr_rdma, rkey);
    fact("ibv_send_wr.wr.rdma.remote_addr", format!("{address} 8"));
    fact("ibv_send_wr.wr.rdma.rkey", format!("{key} 4"));
    let param = offset_of!(sys::rdma_cm_event, param) + offset_of!(sys::rdma_cm_event_param, conn);
    let bytes = size_of::<sys::rdma_conn_param>();
    fact("rdma_cm_event.param.conn", format!("{param} {bytes}"));
    let cqe = offset_of!(sys::ibv_cq_ex, cq) + offset_of!(sys::ibv_cq, cqe);
    fact("ibv_cq_ex.cqe", format!("{cqe} 4"));
    // The first field that a plain queue has not.
    fact("ibv_cq_ex.comp_mask", format!("{} 4", size_of::<sys::ibv_cq_ex>()));
    for (name, distance) in from_the_end!(query_port, alloc_parent_domain, create_cq_ex, create_qp_ex, sz, context) {
        fact(name, distance.to_string());
    }
    // The last field is new, and the record's headers do not have it.
    fact("ibv_port_attr.fits", "1".to_owned());
    facts.remove("ibv_port_attr");
    let new = facts.remove("ibv_port_attr.active_speed_ex");
    assert_eq!((new.as_deref(), size_of::<sys::ibv_port_attr>()), (Some("52 4"), 56));
    facts
}

macro_rules! codes {
    ($($name:ident),*) => {
        /// Constants, as the record has them.
        fn codes() -> Facts {
            let all = [$((stringify!($name), i128::from(sys::$name))),*];
            all.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
        }
    };
}

codes! {
    IBV_NODE_CA, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER, IBV_LINK_LAYER_ETHERNET, IBV_QPF_GRH_REQUIRED, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_QPT_RC, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_RDMA_READ, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN, IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, IBV_SEND_INLINE, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RECV, RDMA_PS_TCP, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_ACK_TIMEOUT
}

/// Names in the bindings' text that follow `before`.
fn declared(before: &str) -> BTreeSet<&'static str> {
    let lines = SOURCES.iter().flat_map(|text| text.lines());
    let names = lines.filter_map(|line| line.trim_start().strip_prefix(before));
    let end = |rest: &'static str| {
        rest.find(|c: char| !c.is_alphanumeric() && c != '_')
            .map(|at| &rest[..at])
    };
    names.filter_map(end).collect()
}

#[test]
fn bindings_are_the_headers() {
    let mut ours = shapes();
    ours.extend(codes());
    for (name, value) in [
        ("IBV_ALLOCATOR_USE_DEFAULT", sys::IBV_ALLOCATOR_USE_DEFAULT),
        ("__VERBS_ABI_IS_EXTENDED", sys::__VERBS_ABI_IS_EXTENDED),
    ] {
        ours.insert(name.to_owned(), (value.addr() as i64).to_string());
    }
    let recorded: Facts = REFERENCE
        .facts()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(ours, recorded);
}

#[test]
fn everything_in_the_bindings_is_compared() {
    let known: BTreeSet<_> = REFERENCE.facts().into_keys().collect();
    // By their fields alone: those that are not whole, and the parts of others.
    let by_parts = [
        "verbs_context",
        "_compat_ibv_port_attr",
        "ibv_port_attr",
        "ibv_cq_ex",
        "ibv_send_wr_rdma",
    ];
    let structures = declared("pub struct ");
    assert!(structures.len() > 30, "{structures:?}");
    for name in structures {
        assert!(
            known.contains(name) || by_parts.contains(&name),
            "{name} is not compared with the headers"
        );
    }
    let mut constants = declared("IBV_");
    constants.extend(declared("RDMA_"));
    assert!(constants.len() > 60, "{constants:?}");
    for name in constants {
        let there = ["IBV_", "RDMA_"]
            .iter()
            .any(|prefix| known.contains(&*format!("{prefix}{name}")));
        assert!(there, "{name} is not compared with the headers");
    }
}

#[test]
fn masks_of_attributes_are_the_headers() {
    for (ours, theirs) in [
        (QueueAttributes::STATE, sys::IBV_QP_STATE),
        (QueueAttributes::ACCESS_FLAGS, sys::IBV_QP_ACCESS_FLAGS),
        (QueueAttributes::PKEY_INDEX, sys::IBV_QP_PKEY_INDEX),
        (QueueAttributes::PORT, sys::IBV_QP_PORT),
        (QueueAttributes::MAX_RD_ATOMIC, sys::IBV_QP_MAX_QP_RD_ATOMIC),
        (QueueAttributes::MAX_DEST_RD_ATOMIC, sys::IBV_QP_MAX_DEST_RD_ATOMIC),
        (QueueAttributes::DEST_QP_NUM, sys::IBV_QP_DEST_QPN),
    ] {
        assert_eq!(ours, theirs as u32);
    }
    let states = [
        (QueueAttributes::RESET, sys::IBV_QPS_RESET),
        (QueueAttributes::INIT, sys::IBV_QPS_INIT),
        (QueueAttributes::READY_TO_RECEIVE, sys::IBV_QPS_RTR),
        (QueueAttributes::READY_TO_SEND, sys::IBV_QPS_RTS),
        (QueueAttributes::ERROR, sys::IBV_QPS_ERR),
    ];
    for (ours, theirs) in states {
        assert_eq!(ours, theirs);
    }
}
