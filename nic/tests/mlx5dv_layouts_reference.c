/* Prints what the public headers say of structures that libmlx5 fills, and of codes. */
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

int main(void) {
    direct();
    return 0;
}
