/* Prints what the kernel's public headers say of SoftRoCE's rings, requests and completions. */
#include <infiniband/verbs.h>
#include <linux/types.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <stddef.h>
#include <stdio.h>

#define NUMBER(name, value) printf("%s %llu\n", name, (unsigned long long)(value))
#define OFFSET(type, field) NUMBER(#type "." #field, offsetof(struct type, field))
#define CODE(name) NUMBER(#name, name)

int main(void) {
    NUMBER("rxe_send_wqe", sizeof(struct rxe_send_wqe));
    NUMBER("rxe_sge", sizeof(struct rxe_sge));
    OFFSET(rxe_send_wqe, wr.wr_id);
    OFFSET(rxe_send_wqe, wr.opcode);
    OFFSET(rxe_send_wqe, wr.send_flags);
    OFFSET(rxe_send_wqe, wr.wr.rdma.remote_addr);
    OFFSET(rxe_send_wqe, wr.wr.rdma.rkey);
    OFFSET(rxe_send_wqe, wr.wr.atomic.remote_addr);
    OFFSET(rxe_send_wqe, wr.wr.atomic.compare_add);
    OFFSET(rxe_send_wqe, wr.wr.atomic.swap);
    OFFSET(rxe_send_wqe, wr.wr.atomic.rkey);
    OFFSET(rxe_send_wqe, status);
    OFFSET(rxe_send_wqe, state);
    OFFSET(rxe_send_wqe, iova);
    OFFSET(rxe_send_wqe, dma.length);
    OFFSET(rxe_send_wqe, dma.resid);
    OFFSET(rxe_send_wqe, dma.cur_sge);
    OFFSET(rxe_send_wqe, dma.num_sge);
    OFFSET(rxe_send_wqe, dma.sge_offset);
    OFFSET(rxe_send_wqe, dma.sge);
    OFFSET(rxe_sge, addr);
    OFFSET(rxe_sge, length);
    OFFSET(rxe_sge, lkey);
    NUMBER("ib_uverbs_wc", sizeof(struct ib_uverbs_wc));
    OFFSET(ib_uverbs_wc, wr_id);
    OFFSET(ib_uverbs_wc, status);
    OFFSET(ib_uverbs_wc, opcode);
    OFFSET(ib_uverbs_wc, vendor_err);
    OFFSET(ib_uverbs_wc, byte_len);
    OFFSET(ib_uverbs_wc, qp_num);
    NUMBER("ib_uverbs_send_wr", sizeof(struct ib_uverbs_send_wr));
    NUMBER("ib_uverbs_query_device_resp", sizeof(struct ib_uverbs_query_device_resp));
    OFFSET(ib_uverbs_query_device_resp, max_qp_rd_atom);
    NUMBER("ib_uverbs_query_qp_resp", sizeof(struct ib_uverbs_query_qp_resp));
    OFFSET(ib_uverbs_query_qp_resp, qp_state);
    NUMBER("ib_uverbs_modify_qp", sizeof(struct ib_uverbs_modify_qp));
    OFFSET(ib_uverbs_modify_qp, qp_handle);
    OFFSET(ib_uverbs_modify_qp, qp_state);
    OFFSET(ib_uverbs_modify_qp, rnr_retry);
    NUMBER("rxe_create_cq_resp", sizeof(struct ib_uverbs_create_cq_resp) + sizeof(struct rxe_create_cq_resp));
    NUMBER("rxe_create_qp_resp", sizeof(struct ib_uverbs_create_qp_resp) + sizeof(struct rxe_create_qp_resp));
    CODE(IB_UVERBS_WR_RDMA_WRITE);
    CODE(IB_UVERBS_WR_RDMA_READ);
    CODE(IB_UVERBS_WR_ATOMIC_CMP_AND_SWP);
    CODE(IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD);
    CODE(IBV_SEND_FENCE);
    CODE(IBV_SEND_SIGNALED);
    CODE(IBV_WC_WR_FLUSH_ERR);
    CODE(IBV_WC_REM_ACCESS_ERR);
    CODE(IBV_WC_RETRY_EXC_ERR);
    CODE(IBV_WC_RNR_RETRY_EXC_ERR);
    return 0;
}
