/* Prints work requests, doorbells and completions made by the public header's helpers and structures from random
 * fields, one a line, all numbers in hexadecimal: mlx5dv_cases [seed [requests [completions]]]. */
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not in the header: reads local memory and drops it. Control segment, then data segments. */
#define OPCODE_DUMP 0x23

static uint64_t state;

/* SplitMix64. */
static uint64_t next(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void hex(const char* name, const void* data, size_t count) {
    printf(" %s=", name);
    for (size_t i = 0; i < count; i++) printf("%02x", ((const unsigned char*)data)[i]);
}

static void number(const char* name, uint64_t value) { printf(" %s=%llx", name, (unsigned long long)value); }

static const struct {
    const char* name;
    uint8_t opcode;
} kinds[] = {
    {"nop", MLX5_OPCODE_NOP},
    {"read", MLX5_OPCODE_RDMA_READ},
    {"write", MLX5_OPCODE_RDMA_WRITE},
    {"write_inline", MLX5_OPCODE_RDMA_WRITE},
    {"write_imm", MLX5_OPCODE_RDMA_WRITE_IMM},
    {"compare_swap", MLX5_OPCODE_ATOMIC_CS},
    {"fetch_add", MLX5_OPCODE_ATOMIC_FA},
    {"dump", OPCODE_DUMP},
};

static void request(size_t kind) {
    static const uint8_t flag[] = {MLX5_WQE_CTRL_CQ_UPDATE, MLX5_WQE_CTRL_SOLICITED, MLX5_WQE_CTRL_FENCE};
    _Alignas(64) unsigned char wqe[256];
    struct mlx5_wqe_ctrl_seg ctrl;
    uint32_t record[2] = {0, 0};
    uint8_t opcode = kinds[kind].opcode, flags = 0, bits = (uint8_t)next();
    uint16_t index = (uint16_t)next();
    uint32_t qpn = next() & 0xffffff, imm = 0;
    size_t at = 16, segments = 1 + next() % 3;

    memset(wqe, 0, sizeof(wqe));
    for (size_t i = 0; i < sizeof(flag); i++)
        if (bits >> i & 1) flags |= flag[i];
    printf("request kind=%s", kinds[kind].name);
    number("index", index);
    number("qpn", qpn);
    number("flags", flags);
    if (opcode != MLX5_OPCODE_NOP && opcode != OPCODE_DUMP) {
        struct mlx5_wqe_raddr_seg* remote = (struct mlx5_wqe_raddr_seg*)(wqe + at);
        uint64_t raddr = next();
        uint32_t rkey = (uint32_t)next();

        remote->raddr = htobe64(raddr);
        remote->rkey = htobe32(rkey);
        at += sizeof(*remote);
        number("remote", raddr);
        number("rkey", rkey);
    }
    if (opcode == MLX5_OPCODE_ATOMIC_CS || opcode == MLX5_OPCODE_ATOMIC_FA) {
        struct mlx5_wqe_atomic_seg* atomic = (struct mlx5_wqe_atomic_seg*)(wqe + at);
        uint64_t swap_add = next(), compare = opcode == MLX5_OPCODE_ATOMIC_CS ? next() : 0;

        atomic->swap_add = htobe64(swap_add);
        atomic->compare = htobe64(compare);
        at += sizeof(*atomic);
        segments = 1;
        number("swap_add", swap_add);
        number("compare", compare);
    }
    if (opcode == MLX5_OPCODE_RDMA_WRITE_IMM) {
        imm = (uint32_t)next();
        number("immediate", imm);
    }
    if (opcode == MLX5_OPCODE_NOP) {
    } else if (!strcmp(kinds[kind].name, "write_inline")) {
        uint32_t length = 1 + next() % 100;
        struct mlx5_wqe_inl_data_seg* head = (struct mlx5_wqe_inl_data_seg*)(wqe + at);

        head->byte_count = htobe32(length | MLX5_INLINE_SEG);
        for (uint32_t i = 0; i < length; i++) wqe[at + sizeof(*head) + i] = (unsigned char)next();
        hex("data", wqe + at + sizeof(*head), length);
        at = (at + sizeof(*head) + length + 15) / 16 * 16;
    } else {
        for (size_t i = 0; i < segments; i++) {
            uint32_t length = next() & 0x7fffffff, lkey = (uint32_t)next();
            uint64_t address = next();

            mlx5dv_set_data_seg((struct mlx5_wqe_data_seg*)(wqe + at), length, lkey, address);
            printf("%s%x:%x:%llx", i ? "," : " local=", length, lkey, (unsigned long long)address);
            at += sizeof(struct mlx5_wqe_data_seg);
        }
    }
    mlx5dv_set_ctrl_seg((struct mlx5_wqe_ctrl_seg*)wqe, index, opcode, 0, qpn, flags, (uint8_t)(at / 16), 0,
                        htobe32(imm));
    hex("wqe", wqe, at);
    index += (uint16_t)((at + MLX5_SEND_WQE_BB - 1) / MLX5_SEND_WQE_BB);
    record[MLX5_SND_DBR] = htobe32(index);
    hex("record", record, sizeof(record));
    /* The register takes the first 8 bytes of a control segment, of which index and queue pair count. */
    memset(&ctrl, 0, sizeof(ctrl));
    mlx5dv_set_ctrl_seg(&ctrl, index, 0, 0, qpn, 0, 0, 0, 0);
    hex("doorbell", &ctrl, 8);
    printf("\n");
}

static void completion(void) {
    static const uint8_t opcodes[] = {MLX5_CQE_REQ,         MLX5_CQE_REQ,      MLX5_CQE_REQ_ERR, MLX5_CQE_REQ_ERR,
                                      MLX5_CQE_RESP_WR_IMM, MLX5_CQE_RESP_ERR, MLX5_CQE_INVALID};
    union {
        struct mlx5_cqe64 done;
        struct mlx5_err_cqe error;
    } cqe;
    uint8_t opcode = opcodes[next() % sizeof(opcodes)], owner = next() & 1, solicited = next() & 1;
    uint32_t qpn = next() & 0xffffff, wqe_opcode = next() & 0xff;
    uint16_t counter = (uint16_t)next();
    /* How many completions came before it, and the ring's entries: which lap it is. */
    uint64_t before = next() >> (24 + next() % 40), entries = 1ull << next() % 16;
    int valid;

    memset(&cqe, 0, sizeof(cqe));
    printf("completion opcode=%x", opcode);
    number("qpn", qpn);
    number("wqe_opcode", wqe_opcode);
    number("counter", counter);
    number("solicited", solicited);
    number("owner", owner);
    if (opcode == MLX5_CQE_REQ_ERR || opcode == MLX5_CQE_RESP_ERR) {
        cqe.error.vendor_err_synd = (uint8_t)next();
        cqe.error.syndrome = (uint8_t)next();
        cqe.error.s_wqe_opcode_qpn = htobe32(wqe_opcode << 24 | qpn);
        cqe.error.wqe_counter = htobe16(counter);
        cqe.error.op_own = opcode << 4;
        number("vendor", cqe.error.vendor_err_synd);
        number("syndrome", cqe.error.syndrome);
    } else {
        uint32_t count = (uint32_t)next(), imm = (uint32_t)next();
        uint64_t timestamp = next();

        cqe.done.byte_cnt = htobe32(count);
        cqe.done.imm_inval_pkey = htobe32(imm);
        cqe.done.timestamp = htobe64(timestamp);
        cqe.done.sop_drop_qpn = htobe32(wqe_opcode << 24 | qpn);
        cqe.done.wqe_counter = htobe16(counter);
        cqe.done.op_own = opcode << 4;
        number("bytes", count);
        number("immediate", imm);
        number("timestamp", timestamp);
    }
    cqe.done.op_own |= solicited << 1;
    mlx5dv_set_cqe_owner(&cqe.done, owner);
    number("before", before);
    number("entries", entries);
    valid =
        mlx5dv_get_cqe_opcode(&cqe.done) != MLX5_CQE_INVALID && mlx5dv_get_cqe_owner(&cqe.done) == !!(before & entries);
    number("valid", valid);
    if (mlx5dv_get_cqe_opcode(&cqe.done) != opcode || mlx5dv_get_cqe_owner(&cqe.done) != owner ||
        mlx5dv_get_cqe_se(&cqe.done) != solicited || mlx5dv_get_cqe_format(&cqe.done) != 0)
        printf(" header_disagrees=1");
    hex("cqe", &cqe, 64);
    printf("\n");
}

int main(int argc, char** argv) {
    size_t kind_count = sizeof(kinds) / sizeof(kinds[0]);
    size_t requests = argc > 2 ? strtoull(argv[2], 0, 10) : 4 * kind_count;
    size_t completions = argc > 3 ? strtoull(argv[3], 0, 10) : 24;

    state = argc > 1 ? strtoull(argv[1], 0, 10) : 1;
    for (size_t i = 0; i < requests; i++) request(i % kind_count);
    for (size_t i = 0; i < completions; i++) completion();
    return 0;
}
