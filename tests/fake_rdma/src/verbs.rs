//! The functions of libibverbs, and those that its inline functions find in a context.

mod memory;
mod port;
mod queues;

use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of, zeroed};
use std::sync::{Arc, OnceLock};

use gpuvm_nic::rdma_sys as sys;
use gpuvm_nic::{Nic, SoftNic};

pub(crate) use memory::{domain_of, errno_of};
use port::{DEPTH_MAX, ENTRIES_MAX};
pub(crate) use port::{LID, MTU, READS_MAX, gids};

use crate::config::config;
use crate::control::{called, enter};
use crate::objects::{self, Kind, objects};
use crate::{Outcome, pointer, set_errno, status};

/// A SoftRoCE device, which libmlx5 does not know, and those that it does: one without a link, where that is asked for, and the
/// one that all is tested with.
const NAMES: [&CStr; 3] = [c"rxe0", c"mlx5_9", c"mlx5_0"];

/// The devices: addresses, which stay.
fn devices() -> [usize; 3] {
    static DEVICES: OnceLock<[usize; 3]> = OnceLock::new();
    *DEVICES.get_or_init(|| {
        NAMES.map(|name| {
            // SAFETY: all zero bytes are a valid ibv_device: null pointers, numbers and empty strings.
            let mut device: sys::ibv_device = unsafe { zeroed() };
            device.node_type = sys::IBV_NODE_CA;
            for (place, byte) in device.name.iter_mut().zip(name.to_bytes()) {
                *place = *byte as c_char;
            }
            Box::into_raw(Box::new(device)).expose_provenance()
        })
    })
}

/// Whether it is the device that libmlx5 knows.
pub(crate) fn is_mlx5(device: *mut sys::ibv_device) -> bool {
    devices()[1..].contains(&device.addr())
}

/// Whether a device has no link.
fn is_down(device: *mut sys::ibv_device) -> bool {
    config().port_down || device.addr() == devices()[1]
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::ibv_device {
    pointer(|| {
        enter("ibv_get_device_list")?;
        let [rxe, down, up] = devices().map(std::ptr::with_exposed_provenance_mut::<sys::ibv_device>);
        let none = std::ptr::null_mut();
        let (list, listed) = match config().another_down {
            true => (Box::new([rxe, down, up, none]), 3),
            false => (Box::new([rxe, up, none, none]), 2),
        };
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *count = listed };
        }
        let list: *mut *mut sys::ibv_device = Box::into_raw(list).cast();
        objects::add(list.addr(), Kind::DeviceList, 0, &[]);
        Ok(list)
    })
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    called("ibv_free_device_list");
    if objects::remove("ibv_free_device_list", list.addr()).is_ok() {
        // SAFETY: it was among the objects, so it is one of `ibv_get_device_list` and freed once.
        drop(unsafe { Box::from_raw(list.cast::<[*mut sys::ibv_device; 4]>()) });
    }
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` is of a device list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` is of a device list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    pointer(|| {
        enter("ibv_open_device")?;
        open_device(device)
    })
}

/// Opens the device, in either way.
pub(crate) fn open_device(device: *mut sys::ibv_device) -> Outcome<*mut sys::ibv_context> {
    let nic = SoftNic::builder()
        .engines(config().engines)
        .max_rd_atomic(READS_MAX.into())
        .watch_doorbells(true)
        .completions_go_on(true)
        .build()
        .map_err(|_| libc::ENOMEM)?;
    // SAFETY: all zero bytes are a valid verbs_context: null pointers and numbers.
    let mut context: Box<sys::verbs_context> = Box::new(unsafe { zeroed() });
    context.sz = size_of::<sys::verbs_context>();
    context.query_port = Some(query_port);
    context.alloc_parent_domain = Some(memory::alloc_parent_domain);
    context.create_cq_ex = Some(queues::create_cq_ex);
    context.create_qp_ex = Some(queues::create_qp_ex);
    context.context.device = device;
    context.context.cmd_fd = -1;
    context.context.async_fd = -1;
    context.context.num_comp_vectors = 1;
    // What tells inline functions that a verbs_context is around it.
    context.context.abi_compat = sys::__VERBS_ABI_IS_EXTENDED;
    let whole = Box::into_raw(context);
    // SAFETY: just made.
    let inner = unsafe { &raw mut (*whole).context };
    objects::add(inner.addr(), Kind::Context(Arc::new(nic)), inner.addr(), &[]);
    Ok(inner)
}

/// `ibv_close_device`.
///
/// # Safety
/// `context` is from [`ibv_open_device`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> c_int {
    let closed = status(|| {
        enter("ibv_close_device")?;
        let left = objects::remove_context("ibv_close_device", context.addr())?;
        // The NIC comes to rest before memory is given back.
        let (contexts, others): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|object| matches!(object.kind, Kind::Context(_)));
        drop(contexts);
        // The kernel ends what is left, and the library's memory of it is lost.
        others.into_iter().for_each(std::mem::forget);
        let whole = context.wrapping_byte_sub(offset_of!(sys::verbs_context, context));
        // SAFETY: it was among the objects, so `ibv_open_device` made it, and it is freed once.
        drop(unsafe { Box::from_raw(whole.cast::<sys::verbs_context>()) });
        Ok(())
    });
    // This function returns -1, and the reason in errno.
    if closed == 0 { 0 } else { -1 }
}

/// `ibv_query_device`.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut sys::ibv_context, out: *mut sys::ibv_device_attr) -> c_int {
    status(|| {
        enter("ibv_query_device")?;
        let nic = objects::nic_of(&objects(), context.addr())?;
        let limits = nic.capabilities();
        // SAFETY: the caller's promise; all zero bytes are a valid ibv_device_attr.
        let out = unsafe {
            out.write(zeroed());
            &mut *out
        };
        let count = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
        out.max_qp = count(limits.queue_pairs_max);
        out.max_qp_wr = DEPTH_MAX as c_int;
        out.max_sge = 30;
        out.max_cq = out.max_qp;
        out.max_cqe = ENTRIES_MAX as c_int;
        out.max_mr = count(limits.memory_regions_max);
        out.max_pd = 1 << 16;
        out.max_qp_rd_atom = READS_MAX.into();
        out.max_qp_init_rd_atom = READS_MAX.into();
        out.vendor_id = 0x2c9;
        out.phys_port_cnt = 1;
        Ok(())
    })
}

/// `query_port` of a context.
unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
    out: *mut sys::ibv_port_attr,
    room: usize,
) -> c_int {
    status(|| {
        enter("ibv_query_port")?;
        objects::nic_of(&objects(), context.addr())?;
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let infiniband = config().infiniband;
        // SAFETY: all zero bytes are a valid ibv_port_attr, which holds integers only.
        let mut found: sys::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and its device does not change.
        let device = unsafe { (*context).device };
        found.state = if is_down(device) {
            sys::IBV_PORT_DOWN
        } else {
            sys::IBV_PORT_ACTIVE
        };
        found.max_mtu = MTU;
        found.active_mtu = MTU;
        found.gid_tbl_len = 8;
        found.max_msg_sz = 1 << 30;
        found.lid = if infiniband { LID } else { 0 };
        found.pkey_tbl_len = 1;
        // Four lanes of 25 Gb/s.
        found.active_width = 2;
        found.active_speed = 32;
        found.link_layer = if infiniband { 1 } else { 2 };
        let bytes = room.min(size_of::<sys::ibv_port_attr>());
        // SAFETY: the caller has so much room.
        unsafe { std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), out.cast::<u8>(), bytes) };
        Ok(())
    })
}

/// `ibv_query_port` of programs that were built with headers of before 2012: there are none here.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port(_: *mut sys::ibv_context, _: u8, _: *mut sys::_compat_ibv_port_attr) -> c_int {
    called("ibv_query_port (without extensions)");
    libc::EOPNOTSUPP
}

/// `_ibv_query_gid_table`.
///
/// # Safety
/// `out` has `room` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut sys::ibv_context,
    out: *mut sys::ibv_gid_entry,
    room: usize,
    flags: u32,
    entry_bytes: usize,
) -> isize {
    let mut count = 0;
    let errno = status(|| {
        enter("ibv_query_gid_table")?;
        objects::nic_of(&objects(), context.addr())?;
        let gids = gids();
        if flags != 0 || entry_bytes != size_of::<sys::ibv_gid_entry>() || gids.len() > room {
            return Err(libc::EINVAL);
        }
        for (at, (raw, gid_type)) in gids.iter().enumerate() {
            let entry = sys::ibv_gid_entry {
                gid: sys::ibv_gid { raw: *raw },
                gid_index: at as u32,
                port_num: 1,
                gid_type: *gid_type,
                ndev_ifindex: 1,
            };
            // SAFETY: the caller's promise, and the table fits.
            unsafe { out.add(at).write(entry) };
        }
        count = gids.len() as isize;
        Ok(())
    });
    if errno == 0 { count } else { -(errno as isize) }
}

/// `ibv_alloc_pd`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    pointer(|| {
        enter("ibv_alloc_pd")?;
        objects::nic_of(&objects(), context.addr())?;
        Ok(memory::new_domain(context, Kind::Domain, &[context.addr()]))
    })
}

/// `ibv_dealloc_pd`, of both kinds of domain.
///
/// # Safety
/// `pd` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    status(|| {
        enter("ibv_dealloc_pd")?;
        objects::remove("ibv_dealloc_pd", pd.addr())?;
        // SAFETY: it was among the objects, so this library made it, and it is freed once.
        drop(unsafe { Box::from_raw(pd) });
        Ok(())
    })
}

/// `ibv_create_qp`: only queue pairs with extended attributes are made here.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_qp(_: *mut sys::ibv_pd, _: *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp {
    called("ibv_create_qp");
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}
