//! Domains and memory regions.

use std::ffi::{c_int, c_void};
use std::fs;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use gpuvm_nic::rdma_sys as sys;
use gpuvm_nic::{Access, Nic, NicError};

use crate::control::{breach, enter};
use crate::mapping::Mapping;
use crate::objects::{self, Allocators, Kind, find, objects};
use crate::{Outcome, pointer, status};

/// A domain that a call names, and its context.
pub(crate) fn domain_of(call: &str, pd: *mut sys::ibv_pd) -> Outcome<usize> {
    let mut objects = objects();
    let object = find(&mut objects, call, pd.addr())?;
    match object.kind {
        Kind::Domain | Kind::ParentDomain(_) => Ok(object.context),
        _ => Err(libc::EINVAL),
    }
}

/// Makes a domain of either kind.
pub(super) fn new_domain(context: *mut sys::ibv_context, kind: Kind, needs: &[usize]) -> *mut sys::ibv_pd {
    let domain = Box::into_raw(Box::new(sys::ibv_pd { context, handle: 1 }));
    objects::add(domain.expose_provenance(), kind, context.addr(), needs);
    domain
}

/// `alloc_parent_domain` of a context.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut sys::ibv_context,
    wanted: *mut sys::ibv_parent_domain_init_attr,
) -> *mut sys::ibv_pd {
    pointer(|| {
        enter("ibv_alloc_parent_domain")?;
        // SAFETY: the caller gives attributes.
        let wanted = unsafe { &*wanted };
        domain_of("ibv_alloc_parent_domain", wanted.pd)?;
        let allocators = match (wanted.comp_mask, wanted.alloc, wanted.free) {
            (0, _, _) => None,
            // Allocators, with a context of their own or without.
            (1 | 3, Some(allocate), Some(free)) => Some((allocate, free)),
            _ => return Err(libc::EINVAL),
        };
        let kind = Kind::ParentDomain(None);
        let domain = new_domain(context, kind, &[context.addr(), wanted.pd.addr()]);
        if let Some((allocate, free)) = allocators
            && let Some(object) = objects().get_mut(&domain.addr())
        {
            object.kind = Kind::ParentDomain(Some(Allocators {
                domain: domain.addr(),
                allocate,
                free,
                context: wanted.pd_context.expose_provenance(),
            }));
        }
        Ok(domain)
    })
}

/// The rights that flags ask for. Others than the plain ones are a breach: they change what the NIC may do with the order
/// of writes, or with memory that is not there.
fn rights(call: &str, flags: c_int) -> Outcome<Access> {
    let bits = flags as u32;
    let rights = Access::from_bits_truncate(bits);
    if rights.bits() != bits {
        breach(format!("{call} with access flags {bits:#x}"));
        return Err(libc::EINVAL);
    }
    Ok(rights)
}

/// `ibv_reg_mr`.
///
/// # Safety
/// As for the function itself: the memory stays mapped until its keys are taken back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    first: *mut c_void,
    bytes: usize,
    flags: c_int,
) -> *mut sys::ibv_mr {
    pointer(|| {
        enter("ibv_reg_mr")?;
        let access = rights("ibv_reg_mr", flags)?;
        let start = first.expose_provenance();
        if !is_mapped(start, bytes) {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's promise.
        unsafe { register("ibv_reg_mr", pd, start, bytes, access, None) }
    })
}

/// `ibv_reg_dmabuf_mr`: of a file in memory, such as memfd_create makes, mapped at `iova` already, or where nothing is.
///
/// # Safety
/// As for the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut sys::ibv_pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut sys::ibv_mr {
    pointer(|| {
        enter("ibv_reg_dmabuf_mr")?;
        let access = rights("ibv_reg_dmabuf_mr", flags)?;
        let mapping = map_buffer(fd, offset, bytes, iova as usize)?;
        // SAFETY: mapped by the caller, who promised to keep it, or just now.
        unsafe { register("ibv_reg_dmabuf_mr", pd, iova as usize, bytes, access, mapping) }
    })
}

/// # Safety
/// The memory stays mapped until the region is gone.
unsafe fn register(
    call: &str,
    pd: *mut sys::ibv_pd,
    start: usize,
    bytes: usize,
    access: Access,
    mapping: Option<Mapping>,
) -> Outcome<*mut sys::ibv_mr> {
    let context = domain_of(call, pd)?;
    let nic = objects::nic_of(&objects(), context)?;
    // SAFETY: the caller's promise.
    let key = unsafe { nic.register(start as u64, bytes as u64, access) };
    let key = key.map_err(|error| errno_of(&error))?;
    let region = Box::into_raw(Box::new(sys::ibv_mr {
        context: std::ptr::with_exposed_provenance_mut(context),
        pd,
        addr: std::ptr::with_exposed_provenance_mut(start),
        length: bytes,
        handle: 1,
        lkey: key.lkey,
        rkey: key.rkey,
    }));
    let kind = Kind::Region { key, _mapping: mapping };
    objects::add(region.addr(), kind, context, &[context, pd.addr()]);
    Ok(region)
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    status(|| {
        enter("ibv_dereg_mr")?;
        let object = objects::remove("ibv_dereg_mr", mr.addr())?;
        let Kind::Region { key, .. } = object.kind else {
            return Err(libc::EINVAL);
        };
        let nic = objects::nic_of(&objects(), object.context)?;
        nic.deregister(key).map_err(|error| errno_of(&error))?;
        // SAFETY: it was among the objects, so this library made it, and it is freed once.
        drop(unsafe { Box::from_raw(mr) });
        Ok(())
    })
}

/// What a kernel would say.
pub(crate) fn errno_of(error: &NicError) -> c_int {
    match error {
        NicError::Exhausted { .. } => libc::ENOMEM,
        NicError::TimedOut { .. } => libc::EBUSY,
        _ => libc::EINVAL,
    }
}

fn is_mapped(start: usize, bytes: usize) -> bool {
    let first = start & !4095;
    let Some(end) = start.checked_add(bytes) else {
        return false;
    };
    // SAFETY: with this flag the call looks at mappings and changes nothing.
    unsafe {
        libc::msync(
            std::ptr::with_exposed_provenance_mut(first),
            end - first,
            libc::MS_ASYNC,
        ) == 0
    }
}

/// Makes sure that a buffer is mapped at `iova`. None where it is already.
fn map_buffer(fd: RawFd, offset: u64, bytes: usize, iova: usize) -> Outcome<Option<Mapping>> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: open for the time of this call, by its caller.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = fs::File::from(file.try_clone_to_owned().map_err(|_| libc::EBADF)?);
    let found = file.metadata().map_err(|_| libc::EBADF)?;
    if offset.checked_add(bytes as u64).is_none_or(|end| end > found.len()) {
        return Err(libc::EINVAL);
    }
    if is_mapped(iova, bytes) {
        // The processor's view of the buffer, as a GPU's that shares its addresses.
        return match holds_file(iova, found.ino(), offset) {
            true => Ok(None),
            false => Err(libc::EINVAL),
        };
    }
    let start = std::ptr::without_provenance_mut(iova);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing that is mapped is replaced; the file is open.
    let made = unsafe { libc::mmap(start, bytes, access, kind, fd, offset as libc::off_t) };
    if made == libc::MAP_FAILED {
        return Err(libc::EINVAL);
    }
    Ok(Some(Mapping {
        address: made.expose_provenance(),
        bytes,
    }))
}

/// Whether `offset` of a file is mapped at `address`.
fn holds_file(address: usize, inode: u64, offset: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let (Some(span), _, Some(begins), _, Some(file)) = (
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            return false;
        };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let Some((Some(first), Some(end))) = span.split_once('-').map(|(first, end)| (hex(first), hex(end))) else {
            return false;
        };
        let address = address as u64;
        (first..end).contains(&address)
            && file.parse() == Ok(inode)
            && hex(begins).is_some_and(|begins| begins + (address - first) == offset)
    })
}
