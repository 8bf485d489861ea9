//! The functions of libibverbs, and those that its inline functions find in a context.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{size_of, zeroed};
use std::sync::OnceLock;

use gpuvm_nic::rdma_sys as sys;

use crate::world::{Bell, CompletionChannel, CompletionQueue, Entry, QueuePair, Receive, Region, World, world};
use crate::{Outcome, pointer, set_errno, status};

/// READs in flight that the device takes.
const READS_MAX: c_int = 16;
/// Longest completion queue: that of `rdma_rxe`.
const ENTRIES_MAX: c_int = 32_767;

/// The device's address, which stays.
fn device() -> *mut sys::ibv_device {
    static DEVICE: OnceLock<usize> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        // SAFETY: all zero bytes are a valid ibv_device: null pointers, numbers and empty strings.
        let mut device: sys::ibv_device = unsafe { zeroed() };
        for (place, byte) in device.name.iter_mut().zip(b"loop0") {
            *place = *byte as c_char;
        }
        Box::into_raw(Box::new(device)).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*made)
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::ibv_device {
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *count = 1 };
    }
    Box::into_raw(Box::new([device(), std::ptr::null_mut()])).cast()
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is from [`ibv_get_device_list`], and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(list.cast::<[*mut sys::ibv_device; 2]>()) });
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

/// A context of the device, which stays until it is closed.
pub(crate) fn new_context() -> *mut sys::ibv_context {
    // SAFETY: all zero bytes are a valid verbs_context: null pointers and numbers.
    let mut context: Box<sys::verbs_context> = Box::new(unsafe { zeroed() });
    context.sz = size_of::<sys::verbs_context>();
    let inner = &mut context.context;
    inner.device = device();
    inner.cmd_fd = -1;
    inner.async_fd = -1;
    inner.num_comp_vectors = 1;
    inner.abi_compat = sys::__VERBS_ABI_IS_EXTENDED;
    inner.ops.poll_cq = Some(poll_cq);
    inner.ops.req_notify_cq = Some(req_notify_cq);
    inner.ops.post_send = Some(post_send);
    inner.ops.post_recv = Some(post_recv);
    // SAFETY: just made.
    unsafe { &raw mut (*Box::into_raw(context)).context }
}

/// `ibv_open_device`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(_: *mut sys::ibv_device) -> *mut sys::ibv_context {
    new_context()
}

/// `ibv_close_device`.
///
/// # Safety
/// `context` is from [`ibv_open_device`], not closed, and nothing made from it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> c_int {
    let whole = context.wrapping_byte_sub(std::mem::offset_of!(sys::verbs_context, context));
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(whole.cast::<sys::verbs_context>()) });
    0
}

/// `ibv_query_device`.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(_: *mut sys::ibv_context, out: *mut sys::ibv_device_attr) -> c_int {
    // SAFETY: the caller's promise; all zero bytes are a valid ibv_device_attr.
    unsafe {
        out.write(zeroed());
        (*out).max_qp_rd_atom = READS_MAX;
        (*out).max_qp_init_rd_atom = READS_MAX;
        (*out).max_cqe = ENTRIES_MAX;
    }
    0
}

/// `ibv_wc_status_str`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(of: u32) -> *const c_char {
    let text = match of {
        sys::IBV_WC_SUCCESS => c"success",
        sys::IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        sys::IBV_WC_REM_ACCESS_ERR => c"remote access error",
        sys::IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        _ => c"another error",
    };
    text.as_ptr()
}

/// `ibv_alloc_pd`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    let made = Box::into_raw(Box::new(sys::ibv_pd { context, handle: 0 }));
    world().domains.insert(made.addr());
    made
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// `pd` is from [`ibv_alloc_pd`], or was deallocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    if !world().domains.remove(&pd.addr()) {
        return libc::EINVAL;
    }
    // SAFETY: it was among the domains, so it is one, and freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

/// `ibv_reg_mr`.
///
/// # Safety
/// The memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    let mut world = world();
    let key = world.number();
    let region = Region {
        domain: pd.addr(),
        address: addr.expose_provenance() as u64,
        bytes: length as u64,
        access: access as u32,
    };
    world.regions.insert(key, region);
    // SAFETY: all zero bytes are a valid ibv_mr: null pointers and numbers.
    let mut made: Box<sys::ibv_mr> = Box::new(unsafe { zeroed() });
    (made.pd, made.addr, made.length, made.lkey, made.rkey) = (pd, addr, length, key, key);
    Box::into_raw(made)
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` is from [`ibv_reg_mr`], and not deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    let mr = unsafe { Box::from_raw(mr) };
    world().regions.remove(&mr.lkey).map_or(libc::EINVAL, |_| 0)
}

/// `ibv_create_comp_channel`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    pointer(Bell::new().map(|bell| {
        let made = Box::into_raw(Box::new(sys::ibv_comp_channel {
            context,
            fd: bell.0,
            refcnt: 0,
        }));
        let channel = CompletionChannel {
            bell,
            events: VecDeque::new(),
        };
        world().completion_channels.insert(made.addr(), channel);
        made
    }))
}

/// `ibv_destroy_comp_channel`.
///
/// # Safety
/// `channel` is from [`ibv_create_comp_channel`], and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    world().completion_channels.remove(&channel.addr());
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(channel) });
    0
}

/// `ibv_create_cq`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut sys::ibv_context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    _: c_int,
) -> *mut sys::ibv_cq {
    pointer(match entries {
        1..=ENTRIES_MAX => {
            // SAFETY: all zero bytes are a valid ibv_cq: null pointers and numbers.
            let mut made: Box<sys::ibv_cq> = Box::new(unsafe { zeroed() });
            (made.context, made.channel, made.cqe) = (context, channel, entries);
            let made = Box::into_raw(made);
            let queue = CompletionQueue {
                entries: VecDeque::new(),
                room: entries as usize,
                channel: channel.addr(),
                armed: false,
            };
            world().completion_queues.insert(made.addr(), queue);
            Ok(made)
        }
        _ => Err(libc::EINVAL),
    })
}

/// `ibv_destroy_cq`.
///
/// # Safety
/// `cq` is from [`ibv_create_cq`], and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    world().completion_queues.remove(&cq.addr());
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(cq) });
    0
}

/// `ibv_get_cq_event`, which never waits here.
///
/// # Safety
/// Both results may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    let mut world = world();
    let Some(found) = world.completion_channels.get_mut(&channel.addr()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let Some(event) = found.events.pop_front() else {
        found.bell.clear();
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller's promise.
    unsafe {
        *cq = std::ptr::with_exposed_provenance_mut(event);
        *user = std::ptr::null_mut();
    }
    0
}

/// `ibv_ack_cq_events`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(_: *mut sys::ibv_cq, _: c_uint) {}

/// `req_notify_cq` of a context.
unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, _: c_int) -> c_int {
    let mut world = world();
    let queue = world.completion_queues.get_mut(&cq.addr());
    queue.map_or(libc::EINVAL, |queue| {
        queue.armed = true;
        0
    })
}

/// `poll_cq` of a context.
unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, room: c_int, out: *mut sys::ibv_wc) -> c_int {
    let mut world = world();
    let Some(queue) = world.completion_queues.get_mut(&cq.addr()) else {
        return -1;
    };
    let count = queue.entries.len().min(usize::try_from(room).unwrap_or(0));
    for (at, entry) in queue.entries.drain(..count).enumerate() {
        // SAFETY: all zero bytes are a valid ibv_wc, which holds integers only.
        let mut filled: sys::ibv_wc = unsafe { zeroed() };
        (filled.wr_id, filled.status, filled.opcode) = (entry.id, entry.status, entry.opcode);
        (filled.byte_len, filled.qp_num) = (entry.bytes, entry.queue);
        // SAFETY: the caller has room for this many.
        unsafe { out.add(at).write(filled) };
    }
    count as c_int
}

/// `ibv_create_qp`.
///
/// # Safety
/// `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut sys::ibv_pd, wanted: *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp {
    // SAFETY: the caller's promise.
    let wanted = unsafe { &*wanted };
    let mut world = world();
    let number = world.number();
    let pair = QueuePair {
        domain: pd.addr(),
        send_queue: wanted.send_cq.expose_provenance(),
        receive_queue: wanted.recv_cq.expose_provenance(),
        state: sys::IBV_QPS_RESET,
        peer: 0,
        receives: VecDeque::new(),
        waiting: VecDeque::new(),
    };
    world.queue_pairs.insert(number, pair);
    // SAFETY: all zero bytes are a valid ibv_qp: null pointers and numbers.
    let mut made: Box<sys::ibv_qp> = Box::new(unsafe { zeroed() });
    // SAFETY: the domain lives.
    made.context = unsafe { (*pd).context };
    (made.pd, made.qp_num, made.qp_type) = (pd, number, wanted.qp_type);
    Box::into_raw(made)
}

/// `ibv_destroy_qp`. Completions of it that nothing has read go with it.
///
/// # Safety
/// `qp` is from [`ibv_create_qp`], and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    let number = unsafe { Box::from_raw(qp) }.qp_num;
    let mut world = world();
    world.fail(number);
    let Some(pair) = world.queue_pairs.remove(&number) else {
        return libc::EINVAL;
    };
    for queue in [pair.send_queue, pair.receive_queue] {
        if let Some(queue) = world.completion_queues.get_mut(&queue) {
            queue.entries.retain(|entry| entry.queue != number);
        }
    }
    0
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` lives, and `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, wanted: *mut sys::ibv_qp_attr, _: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (number, wanted) = unsafe { ((*qp).qp_num, &*wanted) };
    let mut world = world();
    let Some(pair) = world.queue_pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    match (pair.state, wanted.qp_state) {
        (_, sys::IBV_QPS_ERR) => {
            world.fail(number);
            return 0;
        }
        (_, sys::IBV_QPS_RESET) => {
            pair.receives.clear();
            pair.waiting.clear();
        }
        (sys::IBV_QPS_RESET, sys::IBV_QPS_INIT) | (sys::IBV_QPS_RTR, sys::IBV_QPS_RTS) => {}
        (sys::IBV_QPS_INIT, sys::IBV_QPS_RTR) => pair.peer = wanted.dest_qp_num,
        _ => return libc::EINVAL,
    }
    pair.state = wanted.qp_state;
    0
}

/// `post_recv` of a context.
unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    request: *mut sys::ibv_recv_wr,
    _: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair and request, which has one place.
    let (number, request, place) = unsafe { ((*qp).qp_num, &*request, &*(*request).sg_list) };
    let mut world = world();
    let Some(pair) = world.queue_pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    if pair.state == sys::IBV_QPS_RESET {
        return libc::EINVAL;
    }
    pair.receives.push_back(Receive {
        id: request.wr_id,
        address: place.addr,
        bytes: place.length,
        key: place.lkey,
    });
    if pair.state == sys::IBV_QPS_ERR {
        world.fail(number);
        return 0;
    }
    if let Some((sender, id, bytes)) = pair.waiting.pop_front() {
        world.deliver(sender, number, id, bytes);
    }
    0
}

/// `post_send` of a context: the request is done before this returns, but for a message that finds no buffer.
unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    request: *mut sys::ibv_send_wr,
    _: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's queue pair and request.
    let (number, request) = unsafe { ((*qp).qp_num, &*request) };
    let place = match request.num_sge {
        0 => None,
        // SAFETY: the request has a place.
        _ => Some(unsafe { *request.sg_list }),
    };
    status(world().post(number, request, place))
}

impl World {
    fn post(&mut self, number: u32, request: &sys::ibv_send_wr, place: Option<sys::ibv_sge>) -> Outcome<()> {
        let pair = self.queue_pairs.get(&number).ok_or(libc::EINVAL)?;
        let (state, peer) = (pair.state, pair.peer);
        if state == sys::IBV_QPS_ERR {
            self.request_failed(number, request.wr_id, sys::IBV_WC_WR_FLUSH_ERR);
            return Ok(());
        }
        if state != sys::IBV_QPS_RTS {
            return Err(libc::EINVAL);
        }
        let ready = [sys::IBV_QPS_RTR, sys::IBV_QPS_RTS];
        let there = self.queue_pairs.get(&peer);
        let Some(there) = there.filter(|there| ready.contains(&there.state) && there.peer == number) else {
            self.request_failed(number, request.wr_id, sys::IBV_WC_RETRY_EXC_ERR);
            return Ok(());
        };
        let domain = there.domain;
        let (local, bytes) = place.map_or((0, 0), |place| (place.addr, place.length));
        if request.opcode == sys::IBV_WR_SEND {
            // SAFETY: the caller's place, of this many bytes.
            let message = unsafe { std::slice::from_raw_parts(host(local).cast_const(), bytes as usize) }.to_vec();
            self.deliver(number, peer, request.wr_id, message);
            return Ok(());
        }
        // SAFETY: both opcodes that are left have a remote place.
        let remote = unsafe { request.wr.rdma };
        let (right, opcode) = match request.opcode {
            sys::IBV_WR_RDMA_READ => (sys::IBV_ACCESS_REMOTE_READ, 2),
            sys::IBV_WR_RDMA_WRITE => (sys::IBV_ACCESS_REMOTE_WRITE, 1),
            _ => return Err(libc::EINVAL),
        };
        if bytes > 0 {
            if !self.may(remote.rkey, domain, remote.remote_addr, bytes, right) {
                self.fail(peer);
                self.request_failed(number, request.wr_id, sys::IBV_WC_REM_ACCESS_ERR);
                return Ok(());
            }
            let (from, to) = if opcode == 2 {
                (remote.remote_addr, local)
            } else {
                (local, remote.remote_addr)
            };
            // SAFETY: the remote place is in a region, the local one the caller's; they may be one.
            unsafe { std::ptr::copy(host(from).cast_const(), host(to), bytes as usize) };
        }
        self.request_done(number, request.wr_id, opcode, bytes);
        Ok(())
    }

    fn may(&self, key: u32, domain: usize, address: u64, bytes: u32, right: u32) -> bool {
        self.regions.get(&key).is_some_and(|region| {
            let end = address.checked_add(bytes.into());
            region.domain == domain
                && region.access & right != 0
                && address >= region.address
                && end.is_some_and(|end| end <= region.address + region.bytes)
        })
    }

    fn request_done(&mut self, number: u32, id: u64, opcode: u32, bytes: u32) {
        let Some(pair) = self.queue_pairs.get(&number) else {
            return;
        };
        let entry = Entry {
            id,
            status: sys::IBV_WC_SUCCESS,
            opcode,
            bytes,
            queue: number,
        };
        self.complete(pair.send_queue, entry);
    }

    /// A message arrives, or waits for a buffer.
    fn deliver(&mut self, sender: u32, number: u32, id: u64, message: Vec<u8>) {
        let Some(pair) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        let (domain, queue) = (pair.domain, pair.receive_queue);
        let Some(receive) = pair.receives.pop_front() else {
            pair.waiting.push_back((sender, id, message));
            return;
        };
        let (bytes, local) = (message.len() as u32, sys::IBV_ACCESS_LOCAL_WRITE);
        if bytes > receive.bytes || !self.may(receive.key, domain, receive.address, bytes, local) {
            self.fail(number);
            self.request_failed(sender, id, sys::IBV_WC_REM_INV_REQ_ERR);
            return;
        }
        // SAFETY: the buffer is in a region, and this many bytes long.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), host(receive.address), message.len()) };
        let entry = Entry {
            id: receive.id,
            status: sys::IBV_WC_SUCCESS,
            opcode: sys::IBV_WC_RECV,
            bytes,
            queue: number,
        };
        self.complete(queue, entry);
        self.request_done(sender, id, 0, bytes);
    }
}

/// Memory of this process that a program has named by its address.
fn host(address: u64) -> *mut u8 {
    match address {
        // Of no byte.
        0 => std::ptr::dangling_mut(),
        _ => std::ptr::with_exposed_provenance_mut(address as usize),
    }
}
