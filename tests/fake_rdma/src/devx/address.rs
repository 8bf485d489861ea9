//! Addresses of peers, resolved.

use std::ffi::c_int;

use gpuvm_nic::mlx5::dv;
use gpuvm_nic::rdma_sys as sys;

use super::{MAC, UDP_SOURCE};
use crate::control::enter;
use crate::objects::{self, Kind};
use crate::verbs::gids;
use crate::{pointer, set_errno, status};

/// `ibv_create_ah`.
///
/// # Safety
/// `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut sys::ibv_pd, wanted: *mut sys::ibv_ah_attr) -> *mut sys::ibv_ah {
    pointer(|| {
        enter("ibv_create_ah")?;
        let context = crate::verbs::domain_of("ibv_create_ah", pd)?;
        // SAFETY: the caller's promise.
        let wanted = unsafe { &*wanted };
        if wanted.port_num != 1 || wanted.is_global == 0 || usize::from(wanted.grh.sgid_index) >= gids().len() {
            return Err(libc::EINVAL);
        }
        if !gids().iter().any(|(gid, _)| *gid == wanted.grh.dgid.raw) {
            return Err(libc::ETIMEDOUT);
        }
        // SAFETY: all zero bytes are a valid ibv_ah: null pointers and numbers.
        let mut made: Box<sys::ibv_ah> = Box::new(unsafe { std::mem::zeroed() });
        made.pd = pd;
        let made = Box::into_raw(made);
        let vector = Box::new(dv::AddressVector {
            rmac: MAC,
            rlid: UDP_SOURCE.to_be_bytes(),
            ..Default::default()
        });
        objects::add(made.addr(), Kind::Address(vector), context, &[context, pd.addr()]);
        Ok(made)
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// `address` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(address: *mut sys::ibv_ah) -> c_int {
    let ended = status(|| {
        enter("ibv_destroy_ah")?;
        drop(objects::remove("ibv_destroy_ah", address.addr())?);
        // SAFETY: it was among the objects, so `ibv_create_ah` made it, and it is freed once.
        drop(unsafe { Box::from_raw(address) });
        Ok(())
    });
    if ended != 0 {
        set_errno(ended);
    }
    ended
}
