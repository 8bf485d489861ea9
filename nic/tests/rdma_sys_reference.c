/* Prints what the public headers say of the structures and constants that nic/src/rdma_sys has. */
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>

#define TYPE(type) printf("%s %zu %zu\n", #type, sizeof(struct type), _Alignof(struct type))
#define PART(type, part) \
    printf("%s.%s %zu %zu\n", #type, #part, offsetof(struct type, part), sizeof(((struct type*)0)->part))
/* It grows at its beginning: from the end. */
#define EXTENDED(call) \
    printf("verbs_context.%s %zu\n", #call, sizeof(struct verbs_context) - offsetof(struct verbs_context, call))
#define CODE(name) printf("%s %lld\n", #name, (long long)(name))

static void devices(void) {
    TYPE(ibv_device);
    PART(ibv_device, node_type);
    PART(ibv_device, transport_type);
    PART(ibv_device, name);
    PART(ibv_device, dev_name);
    PART(ibv_device, dev_path);
    PART(ibv_device, ibdev_path);
    TYPE(ibv_context_ops);
    PART(ibv_context_ops, poll_cq);
    PART(ibv_context_ops, req_notify_cq);
    PART(ibv_context_ops, post_send);
    PART(ibv_context_ops, post_recv);
    TYPE(ibv_context);
    PART(ibv_context, device);
    PART(ibv_context, ops);
    PART(ibv_context, cmd_fd);
    PART(ibv_context, async_fd);
    PART(ibv_context, num_comp_vectors);
    PART(ibv_context, mutex);
    PART(ibv_context, abi_compat);
    TYPE(ibv_device_attr);
    PART(ibv_device_attr, fw_ver);
    PART(ibv_device_attr, node_guid);
    PART(ibv_device_attr, sys_image_guid);
    PART(ibv_device_attr, max_mr_size);
    PART(ibv_device_attr, page_size_cap);
    PART(ibv_device_attr, vendor_id);
    PART(ibv_device_attr, vendor_part_id);
    PART(ibv_device_attr, hw_ver);
    PART(ibv_device_attr, max_qp);
    PART(ibv_device_attr, max_qp_wr);
    PART(ibv_device_attr, device_cap_flags);
    PART(ibv_device_attr, max_sge);
    PART(ibv_device_attr, max_sge_rd);
    PART(ibv_device_attr, max_cq);
    PART(ibv_device_attr, max_cqe);
    PART(ibv_device_attr, max_mr);
    PART(ibv_device_attr, max_pd);
    PART(ibv_device_attr, max_qp_rd_atom);
    PART(ibv_device_attr, max_ee_rd_atom);
    PART(ibv_device_attr, max_res_rd_atom);
    PART(ibv_device_attr, max_qp_init_rd_atom);
    PART(ibv_device_attr, max_ee_init_rd_atom);
    PART(ibv_device_attr, max_pkeys);
    PART(ibv_device_attr, local_ca_ack_delay);
    PART(ibv_device_attr, phys_port_cnt);
}

static void ports(void) {
    PART(ibv_port_attr, state);
    PART(ibv_port_attr, max_mtu);
    PART(ibv_port_attr, active_mtu);
    PART(ibv_port_attr, gid_tbl_len);
    PART(ibv_port_attr, port_cap_flags);
    PART(ibv_port_attr, max_msg_sz);
    PART(ibv_port_attr, bad_pkey_cntr);
    PART(ibv_port_attr, qkey_viol_cntr);
    PART(ibv_port_attr, pkey_tbl_len);
    PART(ibv_port_attr, lid);
    PART(ibv_port_attr, sm_lid);
    PART(ibv_port_attr, lmc);
    PART(ibv_port_attr, max_vl_num);
    PART(ibv_port_attr, sm_sl);
    PART(ibv_port_attr, subnet_timeout);
    PART(ibv_port_attr, init_type_reply);
    PART(ibv_port_attr, active_width);
    PART(ibv_port_attr, active_speed);
    PART(ibv_port_attr, phys_state);
    PART(ibv_port_attr, link_layer);
    PART(ibv_port_attr, flags);
    PART(ibv_port_attr, port_cap_flags2);
    TYPE(ibv_gid_entry);
    PART(ibv_gid_entry, gid);
    PART(ibv_gid_entry, gid_index);
    PART(ibv_gid_entry, port_num);
    PART(ibv_gid_entry, gid_type);
    PART(ibv_gid_entry, ndev_ifindex);
    /* Older headers have no active_speed_ex, the last field. */
    printf("ibv_port_attr.fits %d\n", sizeof(struct ibv_port_attr) == 52 || sizeof(struct ibv_port_attr) == 56);
    printf("ibv_gid %zu %zu\n", sizeof(union ibv_gid), _Alignof(union ibv_gid));
    printf("ibv_gid.raw %zu %zu\n", offsetof(union ibv_gid, raw), sizeof(((union ibv_gid*)0)->raw));
}

static void memory(void) {
    TYPE(ibv_pd);
    PART(ibv_pd, context);
    PART(ibv_pd, handle);
    TYPE(ibv_parent_domain_init_attr);
    PART(ibv_parent_domain_init_attr, pd);
    PART(ibv_parent_domain_init_attr, td);
    PART(ibv_parent_domain_init_attr, comp_mask);
    PART(ibv_parent_domain_init_attr, alloc);
    PART(ibv_parent_domain_init_attr, free);
    PART(ibv_parent_domain_init_attr, pd_context);
    TYPE(ibv_mr);
    PART(ibv_mr, context);
    PART(ibv_mr, pd);
    PART(ibv_mr, addr);
    PART(ibv_mr, length);
    PART(ibv_mr, handle);
    PART(ibv_mr, lkey);
    PART(ibv_mr, rkey);
}

static void completions(void) {
    TYPE(ibv_comp_channel);
    PART(ibv_comp_channel, context);
    PART(ibv_comp_channel, fd);
    PART(ibv_comp_channel, refcnt);
    TYPE(ibv_cq);
    PART(ibv_cq, context);
    PART(ibv_cq, channel);
    PART(ibv_cq, cq_context);
    PART(ibv_cq, handle);
    PART(ibv_cq, cqe);
    PART(ibv_cq, mutex);
    PART(ibv_cq, cond);
    PART(ibv_cq, comp_events_completed);
    PART(ibv_cq, async_events_completed);
    TYPE(ibv_cq_init_attr_ex);
    PART(ibv_cq_init_attr_ex, cqe);
    PART(ibv_cq_init_attr_ex, cq_context);
    PART(ibv_cq_init_attr_ex, channel);
    PART(ibv_cq_init_attr_ex, comp_vector);
    PART(ibv_cq_init_attr_ex, wc_flags);
    PART(ibv_cq_init_attr_ex, comp_mask);
    PART(ibv_cq_init_attr_ex, flags);
    PART(ibv_cq_init_attr_ex, parent_domain);
    TYPE(ibv_wc);
    PART(ibv_wc, wr_id);
    PART(ibv_wc, status);
    PART(ibv_wc, opcode);
    PART(ibv_wc, vendor_err);
    PART(ibv_wc, byte_len);
    PART(ibv_wc, imm_data);
    PART(ibv_wc, qp_num);
    PART(ibv_wc, src_qp);
    PART(ibv_wc, wc_flags);
    PART(ibv_wc, pkey_index);
    PART(ibv_wc, slid);
    PART(ibv_wc, sl);
    PART(ibv_wc, dlid_path_bits);
    /* It grows at its end: where a plain one ends. */
    PART(ibv_cq_ex, cqe);
    PART(ibv_cq_ex, comp_mask);
}

static void queue_pairs(void) {
    TYPE(ibv_qp);
    PART(ibv_qp, context);
    PART(ibv_qp, qp_context);
    PART(ibv_qp, pd);
    PART(ibv_qp, send_cq);
    PART(ibv_qp, recv_cq);
    PART(ibv_qp, srq);
    PART(ibv_qp, handle);
    PART(ibv_qp, qp_num);
    PART(ibv_qp, state);
    PART(ibv_qp, qp_type);
    PART(ibv_qp, mutex);
    PART(ibv_qp, cond);
    PART(ibv_qp, events_completed);
    TYPE(ibv_qp_cap);
    PART(ibv_qp_cap, max_send_wr);
    PART(ibv_qp_cap, max_recv_wr);
    PART(ibv_qp_cap, max_send_sge);
    PART(ibv_qp_cap, max_recv_sge);
    PART(ibv_qp_cap, max_inline_data);
    TYPE(ibv_qp_init_attr);
    PART(ibv_qp_init_attr, qp_context);
    PART(ibv_qp_init_attr, send_cq);
    PART(ibv_qp_init_attr, recv_cq);
    PART(ibv_qp_init_attr, srq);
    PART(ibv_qp_init_attr, cap);
    PART(ibv_qp_init_attr, qp_type);
    PART(ibv_qp_init_attr, sq_sig_all);
    TYPE(ibv_qp_init_attr_ex);
    PART(ibv_qp_init_attr_ex, qp_context);
    PART(ibv_qp_init_attr_ex, send_cq);
    PART(ibv_qp_init_attr_ex, recv_cq);
    PART(ibv_qp_init_attr_ex, srq);
    PART(ibv_qp_init_attr_ex, cap);
    PART(ibv_qp_init_attr_ex, qp_type);
    PART(ibv_qp_init_attr_ex, sq_sig_all);
    PART(ibv_qp_init_attr_ex, comp_mask);
    PART(ibv_qp_init_attr_ex, pd);
    PART(ibv_qp_init_attr_ex, xrcd);
    PART(ibv_qp_init_attr_ex, create_flags);
    PART(ibv_qp_init_attr_ex, max_tso_header);
    PART(ibv_qp_init_attr_ex, rwq_ind_tbl);
    PART(ibv_qp_init_attr_ex, source_qpn);
    PART(ibv_qp_init_attr_ex, send_ops_flags);
}

static void attributes(void) {
    TYPE(ibv_global_route);
    PART(ibv_global_route, dgid);
    PART(ibv_global_route, flow_label);
    PART(ibv_global_route, sgid_index);
    PART(ibv_global_route, hop_limit);
    PART(ibv_global_route, traffic_class);
    TYPE(ibv_ah_attr);
    PART(ibv_ah_attr, grh);
    PART(ibv_ah_attr, dlid);
    PART(ibv_ah_attr, sl);
    PART(ibv_ah_attr, src_path_bits);
    PART(ibv_ah_attr, static_rate);
    PART(ibv_ah_attr, is_global);
    PART(ibv_ah_attr, port_num);
    TYPE(ibv_ah);
    PART(ibv_ah, context);
    PART(ibv_ah, pd);
    PART(ibv_ah, handle);
    TYPE(ibv_qp_attr);
    PART(ibv_qp_attr, qp_state);
    PART(ibv_qp_attr, cur_qp_state);
    PART(ibv_qp_attr, path_mtu);
    PART(ibv_qp_attr, path_mig_state);
    PART(ibv_qp_attr, qkey);
    PART(ibv_qp_attr, rq_psn);
    PART(ibv_qp_attr, sq_psn);
    PART(ibv_qp_attr, dest_qp_num);
    PART(ibv_qp_attr, qp_access_flags);
    PART(ibv_qp_attr, cap);
    PART(ibv_qp_attr, ah_attr);
    PART(ibv_qp_attr, alt_ah_attr);
    PART(ibv_qp_attr, pkey_index);
    PART(ibv_qp_attr, alt_pkey_index);
    PART(ibv_qp_attr, en_sqd_async_notify);
    PART(ibv_qp_attr, sq_draining);
    PART(ibv_qp_attr, max_rd_atomic);
    PART(ibv_qp_attr, max_dest_rd_atomic);
    PART(ibv_qp_attr, min_rnr_timer);
    PART(ibv_qp_attr, port_num);
    PART(ibv_qp_attr, timeout);
    PART(ibv_qp_attr, retry_cnt);
    PART(ibv_qp_attr, rnr_retry);
    PART(ibv_qp_attr, alt_port_num);
    PART(ibv_qp_attr, alt_timeout);
    PART(ibv_qp_attr, rate_limit);
}

static void requests(void) {
    TYPE(ibv_sge);
    PART(ibv_sge, addr);
    PART(ibv_sge, length);
    PART(ibv_sge, lkey);
    TYPE(ibv_send_wr);
    PART(ibv_send_wr, wr_id);
    PART(ibv_send_wr, next);
    PART(ibv_send_wr, sg_list);
    PART(ibv_send_wr, num_sge);
    PART(ibv_send_wr, opcode);
    PART(ibv_send_wr, send_flags);
    PART(ibv_send_wr, imm_data);
    PART(ibv_send_wr, wr);
    TYPE(ibv_recv_wr);
    PART(ibv_recv_wr, wr_id);
    PART(ibv_recv_wr, next);
    PART(ibv_recv_wr, sg_list);
    PART(ibv_recv_wr, num_sge);
    PART(ibv_send_wr, wr.rdma.remote_addr);
    PART(ibv_send_wr, wr.rdma.rkey);
}

static void extended(void) {
    EXTENDED(query_port);
    EXTENDED(alloc_parent_domain);
    EXTENDED(create_cq_ex);
    EXTENDED(create_qp_ex);
    EXTENDED(sz);
    EXTENDED(context);
}

static void connection_manager(void) {
    TYPE(rdma_event_channel);
    PART(rdma_event_channel, fd);
    TYPE(rdma_addr);
    PART(rdma_addr, src_storage);
    PART(rdma_addr, dst_storage);
    TYPE(rdma_route);
    PART(rdma_route, addr);
    PART(rdma_route, path_rec);
    PART(rdma_route, num_paths);
    TYPE(rdma_cm_id);
    PART(rdma_cm_id, verbs);
    PART(rdma_cm_id, channel);
    PART(rdma_cm_id, context);
    PART(rdma_cm_id, qp);
    PART(rdma_cm_id, route);
    PART(rdma_cm_id, ps);
    PART(rdma_cm_id, port_num);
    PART(rdma_cm_id, event);
    PART(rdma_cm_id, qp_type);
    TYPE(rdma_conn_param);
    PART(rdma_conn_param, private_data);
    PART(rdma_conn_param, private_data_len);
    PART(rdma_conn_param, responder_resources);
    PART(rdma_conn_param, initiator_depth);
    PART(rdma_conn_param, flow_control);
    PART(rdma_conn_param, retry_count);
    PART(rdma_conn_param, rnr_retry_count);
    PART(rdma_conn_param, srq);
    PART(rdma_conn_param, qp_num);
    TYPE(rdma_cm_event);
    PART(rdma_cm_event, id);
    PART(rdma_cm_event, listen_id);
    PART(rdma_cm_event, event);
    PART(rdma_cm_event, status);
    PART(rdma_cm_event, param);
    PART(rdma_cm_event, param.conn);
}

static void codes_of_verbs(void) {
    CODE(IBV_NODE_CA);
    CODE(IBV_PORT_DOWN);
    CODE(IBV_PORT_INIT);
    CODE(IBV_PORT_ARMED);
    CODE(IBV_PORT_ACTIVE);
    CODE(IBV_PORT_ACTIVE_DEFER);
    CODE(IBV_LINK_LAYER_ETHERNET);
    CODE(IBV_QPF_GRH_REQUIRED);
    CODE(IBV_GID_TYPE_ROCE_V1);
    CODE(IBV_GID_TYPE_ROCE_V2);
    CODE(IBV_ACCESS_LOCAL_WRITE);
    CODE(IBV_ACCESS_REMOTE_WRITE);
    CODE(IBV_ACCESS_REMOTE_READ);
    CODE(IBV_ACCESS_REMOTE_ATOMIC);
    CODE(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS);
    CODE(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
    CODE(IBV_CQ_INIT_ATTR_MASK_FLAGS);
    CODE(IBV_CQ_INIT_ATTR_MASK_PD);
    CODE(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
    CODE(IBV_QPT_RC);
    CODE(IBV_QP_INIT_ATTR_PD);
    CODE(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    CODE(IBV_QP_EX_WITH_RDMA_WRITE);
    CODE(IBV_QP_EX_WITH_SEND);
    CODE(IBV_QP_EX_WITH_RDMA_READ);
    CODE(IBV_QPS_RESET);
    CODE(IBV_QPS_INIT);
    CODE(IBV_QPS_RTR);
    CODE(IBV_QPS_RTS);
    CODE(IBV_QPS_ERR);
    CODE(IBV_QP_STATE);
    CODE(IBV_QP_ACCESS_FLAGS);
    CODE(IBV_QP_PKEY_INDEX);
    CODE(IBV_QP_PORT);
    CODE(IBV_QP_MAX_QP_RD_ATOMIC);
    CODE(IBV_QP_MAX_DEST_RD_ATOMIC);
    CODE(IBV_QP_DEST_QPN);
    CODE(IBV_WR_RDMA_WRITE);
    CODE(IBV_WR_SEND);
    CODE(IBV_WR_RDMA_READ);
    CODE(IBV_SEND_SIGNALED);
    CODE(IBV_SEND_INLINE);
    CODE(IBV_WC_SUCCESS);
    CODE(IBV_WC_WR_FLUSH_ERR);
    CODE(IBV_WC_REM_INV_REQ_ERR);
    CODE(IBV_WC_REM_ACCESS_ERR);
    CODE(IBV_WC_RETRY_EXC_ERR);
    CODE(IBV_WC_RECV);
    CODE(IBV_ALLOCATOR_USE_DEFAULT);
    CODE(__VERBS_ABI_IS_EXTENDED);
}

static void codes_of_the_connection_manager(void) {
    CODE(RDMA_PS_TCP);
    CODE(RDMA_CM_EVENT_ADDR_RESOLVED);
    CODE(RDMA_CM_EVENT_ADDR_ERROR);
    CODE(RDMA_CM_EVENT_ROUTE_RESOLVED);
    CODE(RDMA_CM_EVENT_ROUTE_ERROR);
    CODE(RDMA_CM_EVENT_CONNECT_REQUEST);
    CODE(RDMA_CM_EVENT_CONNECT_RESPONSE);
    CODE(RDMA_CM_EVENT_CONNECT_ERROR);
    CODE(RDMA_CM_EVENT_UNREACHABLE);
    CODE(RDMA_CM_EVENT_REJECTED);
    CODE(RDMA_CM_EVENT_ESTABLISHED);
    CODE(RDMA_CM_EVENT_DISCONNECTED);
    CODE(RDMA_CM_EVENT_DEVICE_REMOVAL);
    CODE(RDMA_OPTION_ID);
    CODE(RDMA_OPTION_ID_TOS);
    CODE(RDMA_OPTION_ID_ACK_TIMEOUT);
}

int main(void) {
    devices();
    ports();
    memory();
    completions();
    queue_pairs();
    attributes();
    requests();
    extended();
    connection_manager();
    codes_of_verbs();
    codes_of_the_connection_manager();
    return 0;
}
