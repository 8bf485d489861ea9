//! Functions of <infiniband/verbs.h>: those that libibverbs exports, and those that are inline in the header.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

use libc::EOPNOTSUPP;

use super::constants::{__VERBS_ABI_IS_EXTENDED, IBV_QP_INIT_ATTR_PD};
use super::load::{VERBS, functions, set_errno};
use super::verbs::*;

functions! { VERBS;
    /// ibv_get_device_list(3).
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device = null_mut();
    /// ibv_free_device_list(3).
    fn ibv_free_device_list(list: *mut *mut ibv_device) = ();
    /// ibv_get_device_name(3).
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char = null_mut();
    /// ibv_open_device(3).
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context = null_mut();
    /// ibv_close_device(3).
    fn ibv_close_device(context: *mut ibv_context) -> c_int = -1;
    /// ibv_query_device(3).
    fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int = EOPNOTSUPP;
    /// ibv_alloc_pd(3).
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd = null_mut();
    /// ibv_dealloc_pd(3).
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int = EOPNOTSUPP;
    /// ibv_reg_mr(3), for flags that are not optional: with others the header calls ibv_reg_mr_iova2(3).
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr = null_mut();
    /// ibv_reg_dmabuf_mr(3).
    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> *mut ibv_mr = null_mut();
    /// ibv_dereg_mr(3).
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int = EOPNOTSUPP;
    /// ibv_create_comp_channel(3).
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel = null_mut();
    /// ibv_destroy_comp_channel(3).
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int = EOPNOTSUPP;
    /// ibv_create_cq(3).
    fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq = null_mut();
    /// ibv_destroy_cq(3).
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int = EOPNOTSUPP;
    /// ibv_get_cq_event(3).
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void,
    ) -> c_int = -1;
    /// ibv_ack_cq_events(3).
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) = ();
    /// ibv_wc_status_str(3).
    fn ibv_wc_status_str(status: u32) -> *const c_char = null_mut();
    /// ibv_create_qp(3).
    fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp = null_mut();
    /// ibv_destroy_qp(3).
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int = EOPNOTSUPP;
    /// ibv_modify_qp(3).
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int = EOPNOTSUPP;
    /// ibv_query_qp(3).
    fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int = EOPNOTSUPP;
    /// ibv_create_ah(3).
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah = null_mut();
    /// ibv_destroy_ah(3).
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int = EOPNOTSUPP;
}

/// Functions that the header's inline functions call.
mod exported {
    use super::*;

    functions! { VERBS;
        /// What ibv_query_port(3) calls where a context has no call of its own.
        fn ibv_query_port(
            context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr,
        ) -> c_int = EOPNOTSUPP;
        /// What ibv_query_gid_table(3) calls.
        fn _ibv_query_gid_table(
            context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize,
        ) -> isize = -(EOPNOTSUPP as isize);
    }
}

/// What is around a context, where that is so and has a call `offset` bytes after the beginning of our [`verbs_context`].
///
/// # Safety
/// The context is open.
unsafe fn around(context: *mut ibv_context, offset: usize) -> Option<*mut verbs_context> {
    // SAFETY: the caller's promise.
    if unsafe { (*context).abi_compat } != __VERBS_ABI_IS_EXTENDED {
        return None;
    }
    let whole = context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast::<verbs_context>();
    // SAFETY: the mark says that its end is around this context, and `sz` is right before it.
    let bytes = unsafe { (*whole).sz };
    (bytes >= size_of::<verbs_context>() - offset).then_some(whole)
}

/// A call of what is around a context, as the header's `verbs_get_ctx_op` finds it.
macro_rules! extended {
    ($context:expr, $call:ident) => {
        // SAFETY: the caller's promise, of an open context; `around` found the field to be there.
        unsafe { around($context, offset_of!(verbs_context, $call)).and_then(|whole| (*whole).$call) }
    };
}

/// ibv_query_port(3), inline in the header.
///
/// # Safety
/// The context is open, and the attributes may be written.
pub unsafe fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr) -> c_int {
    match extended!(context, query_port) {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(context, port_num, port_attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the caller's promise; all zero bytes are valid, and what the function fills is the beginning.
        None => unsafe {
            port_attr.write_bytes(0, 1);
            exported::ibv_query_port(context, port_num, port_attr.cast())
        },
    }
}

/// ibv_query_gid_table(3), inline in the header.
///
/// # Safety
/// The context is open, and there is room for `max_entries` entries.
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { exported::_ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
}

/// ibv_alloc_parent_domain(3), inline in the header.
///
/// # Safety
/// The context is open, and the attributes are of it.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    match extended!(context, alloc_parent_domain) {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(context, attr) },
        None => unsupported(),
    }
}

/// ibv_create_cq_ex(3), inline in the header.
///
/// # Safety
/// The context is open, and the attributes are of it.
pub unsafe fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    match extended!(context, create_cq_ex) {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(context, cq_attr) },
        None => unsupported(),
    }
}

/// ibv_create_qp_ex(3), inline in the header.
///
/// # Safety
/// The context is open, and the attributes are of it.
pub unsafe fn ibv_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let (wanted, pd) = unsafe { ((*attr).comp_mask, (*attr).pd) };
    if wanted == IBV_QP_INIT_ATTR_PD {
        // SAFETY: the caller's promise; extended attributes begin with the plain ones.
        return unsafe { ibv_create_qp(pd, attr.cast()) };
    }
    match extended!(context, create_qp_ex) {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(context, attr) },
        None => unsupported(),
    }
}

fn unsupported<T>() -> *mut T {
    set_errno(EOPNOTSUPP);
    null_mut()
}

/// ibv_poll_cq(3), inline in the header.
///
/// # Safety
/// The queue lives, and there is room for `num_entries` completions.
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise; a context outlives what is made from it.
    unsafe {
        (*(*cq).context)
            .ops
            .poll_cq
            .map_or(-1, |call| call(cq, num_entries, wc))
    }
}

/// ibv_req_notify_cq(3), inline in the header.
///
/// # Safety
/// The queue lives.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        (*(*cq).context)
            .ops
            .req_notify_cq
            .map_or(EOPNOTSUPP, |call| call(cq, solicited_only))
    }
}

/// ibv_post_send(3), inline in the header.
///
/// # Safety
/// The queue pair lives; requests and lists are valid, and the memory that they name is the device's until they are done.
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: as above.
    unsafe {
        (*(*qp).context)
            .ops
            .post_send
            .map_or(EOPNOTSUPP, |call| call(qp, wr, bad_wr))
    }
}

/// ibv_post_recv(3), inline in the header.
///
/// # Safety
/// As of [`ibv_post_send`].
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    unsafe {
        (*(*qp).context)
            .ops
            .post_recv
            .map_or(EOPNOTSUPP, |call| call(qp, wr, bad_wr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn parent_domain(_: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd {
        // SAFETY: the test's own attributes.
        unsafe { (*attr).pd }
    }

    /// What a library gives that has a call for parent domains, with a context of `bytes` bytes.
    fn answer(bytes: usize, abi_compat: *mut c_void) -> *mut ibv_pd {
        // SAFETY: all zero bytes are valid for both: null pointers and numbers.
        let (mut context, mut attr): (verbs_context, ibv_parent_domain_init_attr) = unsafe { std::mem::zeroed() };
        context.sz = bytes;
        context.alloc_parent_domain = Some(parent_domain);
        context.context.abi_compat = abi_compat;
        attr.pd = std::ptr::dangling_mut();
        let whole = &raw mut context;
        set_errno(0);
        // SAFETY: the context lies in the whole, which lives through the call.
        unsafe { ibv_alloc_parent_domain(&raw mut (*whole).context, &mut attr) }
    }

    #[test]
    fn a_call_is_made_where_the_library_has_it() {
        let from_the_call = size_of::<verbs_context>() - offset_of!(verbs_context, alloc_parent_domain);
        for bytes in [
            from_the_call,
            size_of::<verbs_context>(),
            size_of::<verbs_context>() + 64,
        ] {
            assert!(!answer(bytes, __VERBS_ABI_IS_EXTENDED).is_null(), "{bytes}");
        }
        // Older ones begin after the call, or have nothing around their contexts.
        for (bytes, abi_compat) in [
            (from_the_call - 8, __VERBS_ABI_IS_EXTENDED),
            (from_the_call, null_mut()),
        ] {
            assert!(answer(bytes, abi_compat).is_null());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(EOPNOTSUPP));
        }
    }
}
