//! The structures of libmlx5 that the mlx5 back end uses against `<infiniband/mlx5dv.h>`.
//!
//! `mlx5dv_layouts_reference.txt` records sizes, offsets and codes: what a C program said of the header.

use std::mem::{offset_of, size_of};

use crate::reference::{Program, Reference};
use gpuvm_nic::mlx5::dv;

const REFERENCE: Reference = Reference {
    // It grows with the library's versions.
    program: Program::FromNames(&[("mlx5dv_obj.fits", "sizeof(struct mlx5dv_obj) <= 128")]),
    record: include_str!("../mlx5dv_layouts_reference.txt"),
    headers: &["infiniband/mlx5dv.h"],
    package: "libibverbs-dev",
};

#[test]
fn record_is_what_the_headers_say() {
    REFERENCE.check_record("record_is_what_the_headers_say");
}

/// Compares what the record has of one header with what is here, and finds what the record has and is not here.
fn check(ours: &[(&str, u64)], prefixes: &[&str]) {
    for (name, value) in ours {
        assert_eq!(REFERENCE.number(name), *value, "{name}");
    }
    let facts = REFERENCE.facts();
    let forgotten: Vec<_> = facts
        .keys()
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|name| ours.iter().all(|(known, _)| known != *name))
        .collect();
    assert_eq!(forgotten, [&""; 0]);
}

type Out = dv::InOut<(), ()>;
const SQ: usize = offset_of!(dv::Qp, sq);
const RQ: usize = offset_of!(dv::Qp, rq);
const BF: usize = offset_of!(dv::Qp, bf);
const QP: usize = offset_of!(dv::Obj, qp);
const CQ: usize = offset_of!(dv::Obj, cq);

/// Sizes and offsets of libmlx5's structures.
const OF_LIBMLX5: &[(&str, usize)] = &[
    ("mlx5dv_qp", size_of::<dv::Qp>()),
    ("mlx5dv_qp.dbrec", offset_of!(dv::Qp, dbrec)),
    ("mlx5dv_qp.sq.buf", SQ + offset_of!(dv::Ring, buf)),
    ("mlx5dv_qp.sq.wqe_cnt", SQ + offset_of!(dv::Ring, wqe_cnt)),
    ("mlx5dv_qp.sq.stride", SQ + offset_of!(dv::Ring, stride)),
    ("mlx5dv_qp.rq.buf", RQ + offset_of!(dv::Ring, buf)),
    ("mlx5dv_qp.rq.wqe_cnt", RQ + offset_of!(dv::Ring, wqe_cnt)),
    ("mlx5dv_qp.rq.stride", RQ + offset_of!(dv::Ring, stride)),
    ("mlx5dv_qp.bf.reg", BF + offset_of!(dv::Register, reg)),
    ("mlx5dv_qp.bf.size", BF + offset_of!(dv::Register, size)),
    ("mlx5dv_qp.comp_mask", offset_of!(dv::Qp, comp_mask)),
    ("mlx5dv_qp.uar_mmap_offset", offset_of!(dv::Qp, uar_mmap_offset)),
    ("mlx5dv_qp.tirn", offset_of!(dv::Qp, tirn)),
    ("mlx5dv_qp.tisn", offset_of!(dv::Qp, tisn)),
    ("mlx5dv_qp.rqn", offset_of!(dv::Qp, rqn)),
    ("mlx5dv_qp.sqn", offset_of!(dv::Qp, sqn)),
    ("mlx5dv_qp.tir_icm_addr", offset_of!(dv::Qp, tir_icm_addr)),
    ("mlx5dv_cq", size_of::<dv::Cq>()),
    ("mlx5dv_cq.buf", offset_of!(dv::Cq, buf)),
    ("mlx5dv_cq.dbrec", offset_of!(dv::Cq, dbrec)),
    ("mlx5dv_cq.cqe_cnt", offset_of!(dv::Cq, cqe_cnt)),
    ("mlx5dv_cq.cqe_size", offset_of!(dv::Cq, cqe_size)),
    ("mlx5dv_cq.cq_uar", offset_of!(dv::Cq, cq_uar)),
    ("mlx5dv_cq.cqn", offset_of!(dv::Cq, cqn)),
    ("mlx5dv_cq.comp_mask", offset_of!(dv::Cq, comp_mask)),
    ("mlx5dv_obj.qp.in", QP + offset_of!(Out, input)),
    ("mlx5dv_obj.qp.out", QP + offset_of!(Out, out)),
    ("mlx5dv_obj.cq.in", CQ + offset_of!(Out, input)),
    ("mlx5dv_obj.cq.out", CQ + offset_of!(Out, out)),
    ("mlx5dv_pd", size_of::<dv::Pd>()),
    ("mlx5dv_pd.pdn", offset_of!(dv::Pd, pdn)),
    ("mlx5dv_pd.comp_mask", offset_of!(dv::Pd, comp_mask)),
    ("mlx5_wqe_av", size_of::<dv::AddressVector>()),
    ("mlx5_wqe_av.dqp_dct", offset_of!(dv::AddressVector, dqp_dct)),
    ("mlx5_wqe_av.stat_rate_sl", offset_of!(dv::AddressVector, stat_rate_sl)),
    ("mlx5_wqe_av.fl_mlid", offset_of!(dv::AddressVector, fl_mlid)),
    ("mlx5_wqe_av.rlid", offset_of!(dv::AddressVector, rlid)),
    ("mlx5_wqe_av.rmac", offset_of!(dv::AddressVector, rmac)),
    ("mlx5_wqe_av.tclass", offset_of!(dv::AddressVector, tclass)),
    ("mlx5_wqe_av.hop_limit", offset_of!(dv::AddressVector, hop_limit)),
    ("mlx5_wqe_av.grh_gid_fl", offset_of!(dv::AddressVector, grh_gid_fl)),
    ("mlx5_wqe_av.rgid", offset_of!(dv::AddressVector, rgid)),
    ("mlx5dv_ah", size_of::<dv::Ah>()),
    ("mlx5dv_ah.av", offset_of!(dv::Ah, av)),
    ("mlx5dv_ah.comp_mask", offset_of!(dv::Ah, comp_mask)),
    ("mlx5dv_context_attr", size_of::<dv::ContextAttr>()),
    ("mlx5dv_context_attr.flags", offset_of!(dv::ContextAttr, flags)),
    ("mlx5dv_context_attr.comp_mask", offset_of!(dv::ContextAttr, comp_mask)),
    ("mlx5dv_devx_umem", size_of::<dv::Umem>()),
    ("mlx5dv_devx_umem.umem_id", offset_of!(dv::Umem, umem_id)),
    ("mlx5dv_devx_umem_in", size_of::<dv::UmemIn>()),
    ("mlx5dv_devx_umem_in.addr", offset_of!(dv::UmemIn, addr)),
    ("mlx5dv_devx_umem_in.size", offset_of!(dv::UmemIn, size)),
    ("mlx5dv_devx_umem_in.access", offset_of!(dv::UmemIn, access)),
    ("mlx5dv_devx_umem_in.pgsz_bitmap", offset_of!(dv::UmemIn, pgsz_bitmap)),
    ("mlx5dv_devx_umem_in.comp_mask", offset_of!(dv::UmemIn, comp_mask)),
    ("mlx5dv_devx_umem_in.dmabuf_fd", offset_of!(dv::UmemIn, dmabuf_fd)),
    ("mlx5dv_devx_uar", size_of::<dv::Uar>()),
    ("mlx5dv_devx_uar.reg_addr", offset_of!(dv::Uar, reg_addr)),
    ("mlx5dv_devx_uar.base_addr", offset_of!(dv::Uar, base_addr)),
    ("mlx5dv_devx_uar.page_id", offset_of!(dv::Uar, page_id)),
    ("mlx5dv_devx_uar.mmap_off", offset_of!(dv::Uar, mmap_off)),
    ("mlx5dv_devx_uar.comp_mask", offset_of!(dv::Uar, comp_mask)),
    ("mlx5dv_obj.fits", (size_of::<dv::Obj>() == 128) as usize),
];

#[test]
fn structures_of_libmlx5_are_the_headers() {
    let codes = [
        ("MLX5DV_OBJ_QP", dv::OBJ_QP),
        ("MLX5DV_OBJ_CQ", dv::OBJ_CQ),
        ("MLX5DV_OBJ_AH", dv::OBJ_AH),
        ("MLX5DV_OBJ_PD", dv::OBJ_PD),
        ("MLX5DV_CONTEXT_FLAGS_DEVX", dv::CONTEXT_DEVX.into()),
        ("MLX5DV_UMEM_MASK_DMABUF", dv::UMEM_DMA_BUF),
        ("MLX5DV_UAR_ALLOC_TYPE_BF", dv::UAR_BLUE_FLAME.into()),
        ("MLX5DV_UAR_ALLOC_TYPE_NC", dv::UAR_NOT_CACHED.into()),
        ("MLX5DV_RES_TYPE_QP", dv::RESOURCE_QP),
        ("MLX5DV_RES_TYPE_DBR", dv::RESOURCE_DBR),
        ("MLX5DV_RES_TYPE_CQ", dv::RESOURCE_CQ),
        // The send half is the second word of the record.
        ("MLX5_SND_DBR", 1),
    ];
    let offsets = OF_LIBMLX5.iter().map(|&(name, at)| (name, at as u64));
    let all: Vec<_> = offsets.chain(codes).collect();
    check(&all, &["mlx5dv_", "mlx5_", "MLX5"]);
}
