//! Registered memory and pages of registers.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};

use gpuvm_nic::Pages;
use gpuvm_nic::mlx5::dv;
use gpuvm_nic::rdma_sys as sys;

use super::made::{Registers, Umem, next_number};
use crate::control::{called, enter};
use crate::mapping::Mapping;
use crate::objects::{self, Kind, objects};
use crate::{Outcome, pointer, status};

/// `mlx5dv_devx_alloc_uar`.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_alloc_uar(context: *mut sys::ibv_context, kind: u32) -> *mut dv::Uar {
    pointer(|| {
        enter("mlx5dv_devx_alloc_uar")?;
        objects::nic_of(&objects(), context.addr())?;
        if ![dv::UAR_DEDICATED, dv::UAR_NOT_CACHED, dv::UAR_BLUE_FLAME].contains(&kind) {
            return Err(libc::EOPNOTSUPP);
        }
        let (page, number) = (Pages::new(4096), next_number());
        let base = std::ptr::with_exposed_provenance_mut::<c_void>(page.address() as usize);
        let made = Box::into_raw(Box::new(dv::Uar {
            reg_addr: base.wrapping_byte_add(0x800),
            base_addr: base,
            page_id: number,
            mmap_off: 0,
            comp_mask: 0,
        }));
        let kind = Kind::Registers(Registers { number, page });
        objects::add(made.addr(), kind, context.addr(), &[context.addr()]);
        Ok(made)
    })
}

/// `mlx5dv_devx_free_uar`.
///
/// # Safety
/// `registers` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_free_uar(registers: *mut dv::Uar) {
    called("mlx5dv_devx_free_uar");
    if objects::remove("mlx5dv_devx_free_uar", registers.addr()).is_ok() {
        // SAFETY: it was among the objects, so this library made it, and it is freed once.
        drop(unsafe { Box::from_raw(registers) });
    }
}

fn add_umem(context: *mut sys::ibv_context, base: u64, bytes: u64, mapping: Option<Mapping>) -> *mut dv::Umem {
    let number = next_number();
    let made = Box::into_raw(Box::new(dv::Umem { umem_id: number }));
    let kind = Kind::Umem(Umem {
        number,
        base,
        bytes,
        mapping,
    });
    objects::add(made.addr(), kind, context.addr(), &[context.addr()]);
    made
}

/// `mlx5dv_devx_umem_reg`.
///
/// # Safety
/// The memory stays mapped until the registration is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_umem_reg(
    context: *mut sys::ibv_context,
    first: *mut c_void,
    bytes: usize,
    access: u32,
) -> *mut dv::Umem {
    pointer(|| {
        enter("mlx5dv_devx_umem_reg")?;
        objects::nic_of(&objects(), context.addr())?;
        if access != 1 || bytes == 0 || !first.addr().is_multiple_of(4096) {
            return Err(libc::EINVAL);
        }
        Ok(add_umem(context, first.expose_provenance() as u64, bytes as u64, None))
    })
}

/// `mlx5dv_devx_umem_reg_ex`, of a file in memory in a dma-buf's place.
///
/// # Safety
/// `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_umem_reg_ex(
    context: *mut sys::ibv_context,
    wanted: *mut dv::UmemIn,
) -> *mut dv::Umem {
    pointer(|| {
        enter("mlx5dv_devx_umem_reg_ex")?;
        objects::nic_of(&objects(), context.addr())?;
        // SAFETY: the caller's promise.
        let wanted = unsafe { *wanted };
        let pages = wanted.pgsz_bitmap & 4096 != 0;
        if wanted.comp_mask != dv::UMEM_DMA_BUF || wanted.access != 1 || wanted.size == 0 || !pages {
            return Err(libc::EINVAL);
        }
        let mapping = map_anywhere(wanted.dmabuf_fd, wanted.addr.addr() as u64, wanted.size)?;
        let base = mapping.address as u64;
        Ok(add_umem(context, base, wanted.size as u64, Some(mapping)))
    })
}

fn map_anywhere(fd: RawFd, offset: u64, bytes: usize) -> Outcome<Mapping> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: open for the time of this call, by its caller.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = std::fs::File::from(file.try_clone_to_owned().map_err(|_| libc::EBADF)?);
    let found = file.metadata().map_err(|_| libc::EBADF)?;
    if offset.checked_add(bytes as u64).is_none_or(|end| end > found.len()) {
        return Err(libc::EINVAL);
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping wherever there is room; the file is open.
    let made = unsafe {
        let nowhere = std::ptr::null_mut();
        libc::mmap(nowhere, bytes, access, libc::MAP_SHARED, fd, offset as libc::off_t)
    };
    if made == libc::MAP_FAILED {
        return Err(libc::EINVAL);
    }
    Ok(Mapping {
        address: made.expose_provenance(),
        bytes,
    })
}

/// `mlx5dv_devx_umem_dereg`.
///
/// # Safety
/// `umem` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_umem_dereg(umem: *mut dv::Umem) -> c_int {
    status(|| {
        enter("mlx5dv_devx_umem_dereg")?;
        drop(objects::remove("mlx5dv_devx_umem_dereg", umem.addr())?);
        // SAFETY: it was among the objects, so this library made it, and it is freed once.
        drop(unsafe { Box::from_raw(umem) });
        Ok(())
    })
}
