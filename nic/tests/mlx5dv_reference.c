/* Prints what the public header says of mlx5 requests and completions, made by its helpers. */
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <string.h>

static void bytes(const char* name, const void* data, size_t count) {
    printf("%s ", name);
    for (size_t i = 0; i < count; i++) printf("%02x", ((const unsigned char*)data)[i]);
    printf("\n");
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
    requests();
    completions();
    return 0;
}
