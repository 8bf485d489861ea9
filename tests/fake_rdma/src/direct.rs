//! The functions of libmlx5.

use std::ffi::c_int;

use gpuvm_nic::mlx5::dv;
use gpuvm_nic::rdma_sys as sys;

use crate::config::config;
use crate::control::{breach, called, enter};
use crate::devx::DOMAIN;
use crate::objects::{Kind, find, objects};
use crate::verbs::is_mlx5;
use crate::{Outcome, status};

/// `mlx5dv_is_supported`.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_is_supported(device: *mut sys::ibv_device) -> bool {
    called("mlx5dv_is_supported");
    is_mlx5(device)
}

/// `mlx5dv_init_obj`.
///
/// # Safety
/// `object` is a `struct mlx5dv_obj` whose pairs for `which` are filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_init_obj(object: *mut dv::Obj, which: u64) -> c_int {
    status(|| {
        enter("mlx5dv_init_obj")?;
        if which & !(dv::OBJ_QP | dv::OBJ_CQ | dv::OBJ_AH | dv::OBJ_PD) != 0 {
            breach(format!("mlx5dv_init_obj of {which:#x}"));
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { &mut *object };
        if which & dv::OBJ_QP != 0 {
            // SAFETY: the caller's promise.
            fill_queue_pair(object.qp.input, unsafe { &mut *object.qp.out })?;
        }
        if which & dv::OBJ_CQ != 0 {
            // SAFETY: the caller's promise.
            fill_completion_queue(object.cq.input, unsafe { &mut *object.cq.out })?;
        }
        if which & dv::OBJ_AH != 0 {
            // SAFETY: the caller's promise.
            fill_address(object.ah.input, unsafe { &mut *object.ah.out })?;
        }
        if which & dv::OBJ_PD != 0 {
            let mut objects = objects();
            let Kind::Domain = find(&mut objects, "mlx5dv_init_obj", object.pd.input.addr())?.kind else {
                return Err(libc::EINVAL);
            };
            // SAFETY: the caller's promise.
            unsafe { (*object.pd.out).pdn = DOMAIN };
        }
        Ok(())
    })
}

fn fill_queue_pair(qp: *mut sys::ibv_qp, out: &mut dv::Qp) -> Outcome<()> {
    let mut objects = objects();
    let Kind::QueuePair(found) = &find(&mut objects, "mlx5dv_init_obj", qp.addr())?.kind else {
        return Err(libc::EINVAL);
    };
    if out.comp_mask != 0 {
        breach(format!("mlx5dv_init_obj with comp_mask {:#x}", out.comp_mask));
    }
    out.dbrec = std::ptr::with_exposed_provenance_mut(found.record.address() as usize);
    out.sq = dv::Ring {
        buf: std::ptr::with_exposed_provenance_mut(found.ring.address() as usize),
        wqe_cnt: found.blocks,
        stride: 64,
    };
    out.rq.wqe_cnt = 0;
    out.bf = dv::Register {
        reg: std::ptr::with_exposed_provenance_mut(found.register as usize),
        size: 0,
    };
    Ok(())
}

fn fill_address(address: *mut sys::ibv_ah, out: &mut dv::Ah) -> Outcome<()> {
    let mut objects = objects();
    let Kind::Address(vector) = &mut find(&mut objects, "mlx5dv_init_obj", address.addr())?.kind else {
        return Err(libc::EINVAL);
    };
    out.av = &raw mut **vector;
    Ok(())
}

fn fill_completion_queue(cq: *mut sys::ibv_cq, out: &mut dv::Cq) -> Outcome<()> {
    let mut objects = objects();
    let Kind::CompletionQueue(found) = &find(&mut objects, "mlx5dv_init_obj", cq.addr())?.kind else {
        return Err(libc::EINVAL);
    };
    out.buf = std::ptr::with_exposed_provenance_mut(found.ring.address() as usize);
    out.dbrec = std::ptr::with_exposed_provenance_mut(found.record.address() as usize);
    out.cqe_cnt = found.entries;
    out.cqe_size = config().entry_bytes;
    out.cqn = 1;
    Ok(())
}
