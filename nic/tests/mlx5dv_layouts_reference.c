/* Prints what the public headers say of structures that libmlx5 fills, of those that verbs exchange, and of codes. */
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <stdio.h>

#define NUMBER(name, value) printf("%s %llu\n", name, (unsigned long long)(value))
#define SIZE(type) NUMBER(#type, sizeof(struct type))
#define OFFSET(type, field) NUMBER(#type "." #field, offsetof(struct type, field))
#define CODE(name) NUMBER(#name, name)

static void direct(void) {
    SIZE(mlx5dv_qp);
    OFFSET(mlx5dv_qp, dbrec);
    OFFSET(mlx5dv_qp, sq.buf);
    OFFSET(mlx5dv_qp, sq.wqe_cnt);
    OFFSET(mlx5dv_qp, sq.stride);
    OFFSET(mlx5dv_qp, rq.buf);
    OFFSET(mlx5dv_qp, rq.wqe_cnt);
    OFFSET(mlx5dv_qp, rq.stride);
    OFFSET(mlx5dv_qp, bf.reg);
    OFFSET(mlx5dv_qp, bf.size);
    OFFSET(mlx5dv_qp, comp_mask);
    OFFSET(mlx5dv_qp, uar_mmap_offset);
    OFFSET(mlx5dv_qp, tirn);
    OFFSET(mlx5dv_qp, tisn);
    OFFSET(mlx5dv_qp, rqn);
    OFFSET(mlx5dv_qp, sqn);
    OFFSET(mlx5dv_qp, tir_icm_addr);
    SIZE(mlx5dv_cq);
    OFFSET(mlx5dv_cq, buf);
    OFFSET(mlx5dv_cq, dbrec);
    OFFSET(mlx5dv_cq, cqe_cnt);
    OFFSET(mlx5dv_cq, cqe_size);
    OFFSET(mlx5dv_cq, cq_uar);
    OFFSET(mlx5dv_cq, cqn);
    OFFSET(mlx5dv_cq, comp_mask);
    OFFSET(mlx5dv_obj, qp.in);
    OFFSET(mlx5dv_obj, qp.out);
    OFFSET(mlx5dv_obj, cq.in);
    OFFSET(mlx5dv_obj, cq.out);
    SIZE(mlx5dv_pd);
    OFFSET(mlx5dv_pd, pdn);
    OFFSET(mlx5dv_pd, comp_mask);
    SIZE(mlx5_wqe_av);
    OFFSET(mlx5_wqe_av, dqp_dct);
    OFFSET(mlx5_wqe_av, stat_rate_sl);
    OFFSET(mlx5_wqe_av, fl_mlid);
    OFFSET(mlx5_wqe_av, rlid);
    OFFSET(mlx5_wqe_av, rmac);
    OFFSET(mlx5_wqe_av, tclass);
    OFFSET(mlx5_wqe_av, hop_limit);
    OFFSET(mlx5_wqe_av, grh_gid_fl);
    OFFSET(mlx5_wqe_av, rgid);
    SIZE(mlx5dv_ah);
    OFFSET(mlx5dv_ah, av);
    OFFSET(mlx5dv_ah, comp_mask);
    SIZE(mlx5dv_context_attr);
    OFFSET(mlx5dv_context_attr, flags);
    OFFSET(mlx5dv_context_attr, comp_mask);
    SIZE(mlx5dv_devx_umem);
    OFFSET(mlx5dv_devx_umem, umem_id);
    SIZE(mlx5dv_devx_umem_in);
    OFFSET(mlx5dv_devx_umem_in, addr);
    OFFSET(mlx5dv_devx_umem_in, size);
    OFFSET(mlx5dv_devx_umem_in, access);
    OFFSET(mlx5dv_devx_umem_in, pgsz_bitmap);
    OFFSET(mlx5dv_devx_umem_in, comp_mask);
    OFFSET(mlx5dv_devx_umem_in, dmabuf_fd);
    SIZE(mlx5dv_devx_uar);
    OFFSET(mlx5dv_devx_uar, reg_addr);
    OFFSET(mlx5dv_devx_uar, base_addr);
    OFFSET(mlx5dv_devx_uar, page_id);
    OFFSET(mlx5dv_devx_uar, mmap_off);
    OFFSET(mlx5dv_devx_uar, comp_mask);
    /* It grows with the library's versions. */
    NUMBER("mlx5dv_obj.fits", sizeof(struct mlx5dv_obj) <= 128);
    CODE(MLX5DV_OBJ_QP);
    CODE(MLX5DV_OBJ_CQ);
    CODE(MLX5DV_OBJ_AH);
    CODE(MLX5DV_OBJ_PD);
    CODE(MLX5DV_CONTEXT_FLAGS_DEVX);
    CODE(MLX5DV_UMEM_MASK_DMABUF);
    CODE(MLX5DV_UAR_ALLOC_TYPE_BF);
    CODE(MLX5DV_UAR_ALLOC_TYPE_NC);
    CODE(MLX5DV_RES_TYPE_QP);
    CODE(MLX5DV_RES_TYPE_DBR);
    CODE(MLX5DV_RES_TYPE_CQ);
    CODE(MLX5_SND_DBR);
}

/* The bindings' structures that are handed to the libraries or filled by them. */
static void verbs(void) {
    SIZE(ibv_parent_domain_init_attr);
    OFFSET(ibv_parent_domain_init_attr, comp_mask);
    OFFSET(ibv_parent_domain_init_attr, alloc);
    OFFSET(ibv_parent_domain_init_attr, free);
    OFFSET(ibv_parent_domain_init_attr, pd_context);
    SIZE(ibv_cq_init_attr_ex);
    OFFSET(ibv_cq_init_attr_ex, comp_mask);
    OFFSET(ibv_cq_init_attr_ex, flags);
    OFFSET(ibv_cq_init_attr_ex, parent_domain);
    OFFSET(ibv_qp_init_attr_ex, cap.max_send_wr);
    OFFSET(ibv_qp_init_attr_ex, qp_type);
    OFFSET(ibv_qp_init_attr_ex, sq_sig_all);
    OFFSET(ibv_qp_init_attr_ex, comp_mask);
    OFFSET(ibv_qp_init_attr_ex, pd);
    OFFSET(ibv_qp_init_attr_ex, send_ops_flags);
    SIZE(ibv_qp_attr);
    OFFSET(ibv_qp_attr, path_mtu);
    OFFSET(ibv_qp_attr, dest_qp_num);
    OFFSET(ibv_qp_attr, ah_attr);
    OFFSET(ibv_qp_attr, pkey_index);
    OFFSET(ibv_qp_attr, max_rd_atomic);
    OFFSET(ibv_qp_attr, timeout);
    SIZE(ibv_ah_attr);
    OFFSET(ibv_ah_attr, grh.sgid_index);
    OFFSET(ibv_ah_attr, grh.traffic_class);
    OFFSET(ibv_ah_attr, dlid);
    OFFSET(ibv_ah_attr, is_global);
    OFFSET(ibv_ah_attr, port_num);
    SIZE(ibv_gid_entry);
    OFFSET(ibv_gid_entry, gid_index);
    OFFSET(ibv_gid_entry, port_num);
    OFFSET(ibv_gid_entry, gid_type);
    OFFSET(ibv_port_attr, active_mtu);
    OFFSET(ibv_port_attr, max_msg_sz);
    OFFSET(ibv_port_attr, lid);
    OFFSET(ibv_port_attr, active_width);
    OFFSET(ibv_port_attr, active_speed);
    OFFSET(ibv_port_attr, link_layer);
    OFFSET(ibv_port_attr, flags);
    OFFSET(ibv_mr, lkey);
    OFFSET(ibv_mr, rkey);
    OFFSET(ibv_qp, qp_num);
    CODE(IBV_LINK_LAYER_ETHERNET);
    CODE(IBV_QPF_GRH_REQUIRED);
    CODE(IBV_GID_TYPE_ROCE_V1);
    CODE(IBV_GID_TYPE_ROCE_V2);
    CODE(IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
}

int main(void) {
    direct();
    verbs();
    return 0;
}
