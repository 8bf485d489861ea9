// Prints where the fields of firmware commands lie that gpuvm uses: structure, field, first bit, bits.
// Built by hand against the kernel's header, which is GPL and not part of this repository:
//   gcc -w -I HEADERS/include/linux/mlx5 mlx5_ifc_reference.c && ./a.out
// The header describes a bit by a byte, so offsets and sizes in bytes are those in bits.
#include <stddef.h>
#include <stdio.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
#define BIT(n) (1u << (n))
#define BIT_ULL(n) (1ull << (n))
#define DECLARE_FLEX_ARRAY(type, name) \
    struct {                           \
        struct {                       \
        } empty_##name;                \
        type name[];                   \
    }
#include "mlx5_ifc.h"

#define SIZE(s, name) printf(#name " * 0 %zu\n", sizeof(struct mlx5_ifc_##s##_bits))
#define FIELD(s, f) \
    printf(#s " " #f " %zu %zu\n", offsetof(struct mlx5_ifc_##s##_bits, f), sizeof(((struct mlx5_ifc_##s##_bits*)0)->f))

int main(void) {
    SIZE(cqc, cqc);
    FIELD(cqc, dbr_umem_valid);
    FIELD(cqc, cqe_sz);
    FIELD(cqc, cc);
    FIELD(cqc, oi);
    FIELD(cqc, log_cq_size);
    FIELD(cqc, uar_page);
    FIELD(cqc, c_eqn_or_apu_element);
    FIELD(cqc, log_page_size);
    FIELD(cqc, dbr_addr);
    SIZE(ads, ads);
    FIELD(ads, pkey_index);
    FIELD(ads, grh);
    FIELD(ads, mlid);
    FIELD(ads, rlid);
    FIELD(ads, ack_timeout);
    FIELD(ads, src_addr_index);
    FIELD(ads, stat_rate);
    FIELD(ads, hop_limit);
    FIELD(ads, tclass);
    FIELD(ads, flow_label);
    FIELD(ads, rgid_rip);
    FIELD(ads, dscp);
    FIELD(ads, udp_sport);
    FIELD(ads, eth_prio);
    FIELD(ads, sl);
    FIELD(ads, vhca_port_num);
    FIELD(ads, rmac_47_32);
    FIELD(ads, rmac_31_0);
    SIZE(qpc, qpc);
    FIELD(qpc, state);
    FIELD(qpc, st);
    FIELD(qpc, pm_state);
    FIELD(qpc, pd);
    FIELD(qpc, mtu);
    FIELD(qpc, log_msg_max);
    FIELD(qpc, log_sq_size);
    FIELD(qpc, ts_format);
    FIELD(qpc, uar_page);
    FIELD(qpc, user_index);
    FIELD(qpc, log_page_size);
    FIELD(qpc, remote_qpn);
    FIELD(qpc, primary_address_path);
    FIELD(qpc, log_sra_max);
    FIELD(qpc, retry_count);
    FIELD(qpc, rnr_retry);
    FIELD(qpc, next_send_psn);
    FIELD(qpc, cqn_snd);
    FIELD(qpc, log_rra_max);
    FIELD(qpc, atomic_mode);
    FIELD(qpc, rre);
    FIELD(qpc, rwe);
    FIELD(qpc, rae);
    FIELD(qpc, min_rnr_nak);
    FIELD(qpc, next_rcv_psn);
    FIELD(qpc, cqn_rcv);
    FIELD(qpc, dbr_addr);
    FIELD(qpc, rq_type);
    FIELD(qpc, cs_req);
    FIELD(qpc, cs_res);
    FIELD(qpc, dbr_umem_valid);
    SIZE(create_cq_in, create_cq_in);
    FIELD(create_cq_in, opcode);
    FIELD(create_cq_in, op_mod);
    FIELD(create_cq_in, cq_context);
    FIELD(create_cq_in, cq_umem_valid);
    SIZE(create_cq_out, create_cq_out);
    FIELD(create_cq_out, status);
    FIELD(create_cq_out, syndrome);
    FIELD(create_cq_out, cqn);
    SIZE(create_qp_in, create_qp_in);
    FIELD(create_qp_in, opcode);
    FIELD(create_qp_in, op_mod);
    FIELD(create_qp_in, opt_param_mask);
    FIELD(create_qp_in, qpc);
    FIELD(create_qp_in, wq_umem_offset);
    FIELD(create_qp_in, wq_umem_id);
    FIELD(create_qp_in, wq_umem_valid);
    SIZE(create_qp_out, create_qp_out);
    FIELD(create_qp_out, status);
    FIELD(create_qp_out, syndrome);
    FIELD(create_qp_out, qpn);
    SIZE(rst2init_qp_in, rst2init_qp_in);
    FIELD(rst2init_qp_in, opcode);
    FIELD(rst2init_qp_in, op_mod);
    FIELD(rst2init_qp_in, qpn);
    FIELD(rst2init_qp_in, opt_param_mask);
    FIELD(rst2init_qp_in, qpc);
    SIZE(init2rtr_qp_in, init2rtr_qp_in);
    FIELD(init2rtr_qp_in, opcode);
    FIELD(init2rtr_qp_in, op_mod);
    FIELD(init2rtr_qp_in, qpn);
    FIELD(init2rtr_qp_in, opt_param_mask);
    FIELD(init2rtr_qp_in, qpc);
    SIZE(rtr2rts_qp_in, rtr2rts_qp_in);
    FIELD(rtr2rts_qp_in, opcode);
    FIELD(rtr2rts_qp_in, op_mod);
    FIELD(rtr2rts_qp_in, qpn);
    FIELD(rtr2rts_qp_in, opt_param_mask);
    FIELD(rtr2rts_qp_in, qpc);
    SIZE(qp_2rst_in, qp_2rst_in);
    FIELD(qp_2rst_in, opcode);
    FIELD(qp_2rst_in, op_mod);
    FIELD(qp_2rst_in, qpn);
    SIZE(qp_2err_in, qp_2err_in);
    FIELD(qp_2err_in, opcode);
    FIELD(qp_2err_in, op_mod);
    FIELD(qp_2err_in, qpn);
    SIZE(qp_2err_out, qp_2err_out);
    FIELD(qp_2err_out, status);
    FIELD(qp_2err_out, syndrome);
    SIZE(query_qp_in, query_qp_in);
    FIELD(query_qp_in, opcode);
    FIELD(query_qp_in, op_mod);
    FIELD(query_qp_in, qpn);
    SIZE(query_qp_out, query_qp_out);
    FIELD(query_qp_out, status);
    FIELD(query_qp_out, syndrome);
    FIELD(query_qp_out, opt_param_mask);
    FIELD(query_qp_out, qpc);
    return 0;
}
