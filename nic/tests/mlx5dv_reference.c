/* Prints what the public header says of the mlx5 layouts: sizes, offsets, codes, and requests made by its helpers. */
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define NUMBER(name, value) printf("%s %llu\n", name, (unsigned long long)(value))
#define OFFSET(type, field) NUMBER(#type "." #field, offsetof(struct type, field))
#define CODE(name) NUMBER(#name, name)

static void bytes(const char* name, const void* data, size_t count) {
    printf("%s ", name);
    for (size_t i = 0; i < count; i++) printf("%02x", ((const unsigned char*)data)[i]);
    printf("\n");
}

static void layouts(void) {
    NUMBER("mlx5_wqe_ctrl_seg", sizeof(struct mlx5_wqe_ctrl_seg));
    OFFSET(mlx5_wqe_ctrl_seg, opmod_idx_opcode);
    OFFSET(mlx5_wqe_ctrl_seg, qpn_ds);
    OFFSET(mlx5_wqe_ctrl_seg, signature);
    OFFSET(mlx5_wqe_ctrl_seg, fm_ce_se);
    OFFSET(mlx5_wqe_ctrl_seg, imm);
    NUMBER("mlx5_wqe_raddr_seg", sizeof(struct mlx5_wqe_raddr_seg));
    OFFSET(mlx5_wqe_raddr_seg, raddr);
    OFFSET(mlx5_wqe_raddr_seg, rkey);
    NUMBER("mlx5_wqe_atomic_seg", sizeof(struct mlx5_wqe_atomic_seg));
    OFFSET(mlx5_wqe_atomic_seg, swap_add);
    OFFSET(mlx5_wqe_atomic_seg, compare);
    NUMBER("mlx5_wqe_data_seg", sizeof(struct mlx5_wqe_data_seg));
    NUMBER("mlx5_wqe_inl_data_seg", sizeof(struct mlx5_wqe_inl_data_seg));
    NUMBER("mlx5_cqe64", sizeof(struct mlx5_cqe64));
    OFFSET(mlx5_cqe64, wqe_id);
    OFFSET(mlx5_cqe64, flags_rqpn);
    OFFSET(mlx5_cqe64, srqn_uidx);
    OFFSET(mlx5_cqe64, imm_inval_pkey);
    OFFSET(mlx5_cqe64, byte_cnt);
    OFFSET(mlx5_cqe64, timestamp);
    OFFSET(mlx5_cqe64, sop_drop_qpn);
    OFFSET(mlx5_cqe64, wqe_counter);
    OFFSET(mlx5_cqe64, signature);
    OFFSET(mlx5_cqe64, op_own);
    NUMBER("mlx5_err_cqe", sizeof(struct mlx5_err_cqe));
    OFFSET(mlx5_err_cqe, vendor_err_synd);
    OFFSET(mlx5_err_cqe, syndrome);
    OFFSET(mlx5_err_cqe, s_wqe_opcode_qpn);
    OFFSET(mlx5_err_cqe, wqe_counter);
    OFFSET(mlx5_err_cqe, op_own);
}

static void codes(void) {
    CODE(MLX5_OPCODE_NOP);
    CODE(MLX5_OPCODE_SEND_INVAL);
    CODE(MLX5_OPCODE_RDMA_WRITE);
    CODE(MLX5_OPCODE_RDMA_WRITE_IMM);
    CODE(MLX5_OPCODE_SEND);
    CODE(MLX5_OPCODE_SEND_IMM);
    CODE(MLX5_OPCODE_RDMA_READ);
    CODE(MLX5_OPCODE_ATOMIC_CS);
    CODE(MLX5_OPCODE_ATOMIC_FA);
    CODE(MLX5_OPCODE_ATOMIC_MASKED_CS);
    CODE(MLX5_OPCODE_ATOMIC_MASKED_FA);
    CODE(MLX5_OPCODE_UMR);
    CODE(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    CODE(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    CODE(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    CODE(MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    CODE(MLX5_CQE_SYNDROME_MW_BIND_ERR);
    CODE(MLX5_CQE_SYNDROME_BAD_RESP_ERR);
    CODE(MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
    CODE(MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
    CODE(MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    CODE(MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
    CODE(MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    CODE(MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
    CODE(MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
    CODE(MLX5_CQE_REQ);
    CODE(MLX5_CQE_RESP_WR_IMM);
    CODE(MLX5_CQE_RESP_SEND);
    CODE(MLX5_CQE_RESP_SEND_IMM);
    CODE(MLX5_CQE_RESP_SEND_INV);
    CODE(MLX5_CQE_RESIZE_CQ);
    CODE(MLX5_CQE_REQ_ERR);
    CODE(MLX5_CQE_RESP_ERR);
    CODE(MLX5_CQE_INVALID);
    CODE(MLX5_WQE_CTRL_CQ_UPDATE);
    CODE(MLX5_WQE_CTRL_SOLICITED);
    CODE(MLX5_WQE_CTRL_FENCE);
    CODE(MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE);
    CODE(MLX5_SEND_WQE_BB);
    CODE(MLX5_RCV_DBR);
    CODE(MLX5_SND_DBR);
}

/* Control and remote address segment at the start of `wqe`. */
static void head(unsigned char* wqe, uint8_t opcode, uint8_t flags, uint8_t ds, uint32_t imm) {
    struct mlx5_wqe_ctrl_seg* ctrl = (struct mlx5_wqe_ctrl_seg*)wqe;
    struct mlx5_wqe_raddr_seg* remote = (struct mlx5_wqe_raddr_seg*)(wqe + 16);

    memset(wqe, 0, 128);
    mlx5dv_set_ctrl_seg(ctrl, 0xbeef, opcode, 0, 0x123456, flags, ds, 0, htobe32(imm));
    remote->raddr = htobe64(0x7f0102030400ull);
    remote->rkey = htobe32(0x2101);
}

static void requests(void) {
    _Alignas(64) unsigned char wqe[128];
    struct mlx5_wqe_atomic_seg* atomic = (struct mlx5_wqe_atomic_seg*)(wqe + 32);

    head(wqe, MLX5_OPCODE_RDMA_READ, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_FENCE, 3, 0);
    mlx5dv_set_data_seg((struct mlx5_wqe_data_seg*)(wqe + 32), 4096, 0x2200, 0x7e0a0b0c0d00ull);
    bytes("read", wqe, 64);
    head(wqe, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED, 5, 0xdeadbeef);
    for (int i = 0; i < 3; i++)
        mlx5dv_set_data_seg((struct mlx5_wqe_data_seg*)(wqe + 32 + 16 * i), 100 + i, 0x2200, 0x7e0a0b0c0d00ull + i);
    bytes("write_imm", wqe, 128);
    head(wqe, MLX5_OPCODE_RDMA_WRITE, 0, 4, 0);
    ((struct mlx5_wqe_inl_data_seg*)(wqe + 32))->byte_count = htobe32(13 | MLX5_INLINE_SEG);
    memcpy(wqe + 36, "hello, inline", 13);
    bytes("inline", wqe, 64);
    head(wqe, MLX5_OPCODE_ATOMIC_CS, MLX5_WQE_CTRL_CQ_UPDATE, 4, 0);
    atomic->swap_add = htobe64(0x1122334455667788ull);
    atomic->compare = htobe64(0x99aabbccddeeff00ull);
    mlx5dv_set_data_seg((struct mlx5_wqe_data_seg*)(wqe + 48), 8, 0x2200, 0x7e0a0b0c0d00ull);
    bytes("compare_swap", wqe, 64);
    head(wqe, MLX5_OPCODE_ATOMIC_FA, MLX5_WQE_CTRL_CQ_UPDATE, 4, 0);
    atomic->swap_add = htobe64(5);
    mlx5dv_set_data_seg((struct mlx5_wqe_data_seg*)(wqe + 48), 8, 0x2200, 0x7e0a0b0c0d00ull);
    bytes("fetch_add", wqe, 64);
}

static void completions(void) {
    union {
        struct mlx5_cqe64 done;
        struct mlx5_err_cqe error;
    } cqe;

    memset(&cqe, 0, sizeof(cqe));
    cqe.done.byte_cnt = htobe32(4096);
    cqe.done.imm_inval_pkey = htobe32(7);
    cqe.done.timestamp = htobe64(9);
    cqe.done.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | 0x123456);
    cqe.done.wqe_counter = htobe16(0xbeef);
    cqe.done.op_own = MLX5_CQE_REQ << 4;
    mlx5dv_set_cqe_owner(&cqe.done, 1);
    bytes("cqe", &cqe, 64);
    memset(&cqe, 0, sizeof(cqe));
    cqe.error.vendor_err_synd = 0x88;
    cqe.error.syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
    cqe.error.s_wqe_opcode_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | 0x123456);
    cqe.error.wqe_counter = htobe16(0xbeef);
    cqe.error.op_own = MLX5_CQE_REQ_ERR << 4;
    bytes("cqe_error", &cqe, 64);
}

int main(void) {
    layouts();
    codes();
    requests();
    completions();
    return 0;
}
