//! Queue pairs, and how one joins a connection that the connection manager makes.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use gpuvm_nic::QueueAttributes;
use gpuvm_nic::rdma_sys as sys;

use super::device::{CompletionQueue, Domain};
use crate::error::NodeError;

/// A queue pair that the caller made, and that takes its state changes from the connection manager's attributes, by
/// MODIFY_QP. It must be in the state RESET, on the device that [`crate::NodeClient::device`] names.
pub trait JoinQueue {
    /// Its number.
    fn number(&self) -> u32;

    /// Changes it to `attributes.state`, with those attributes whose bits are in `attributes.mask`.
    ///
    /// # Errors
    /// What the device says.
    fn modify(&self, attributes: &QueueAttributes) -> io::Result<()>;

    /// READs and atomics that it wants in flight at most; 0 for none. The device's and the node's limits apply too.
    fn max_outstanding_reads(&self) -> u8;
}

/// How a request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CompletionStatus(pub u32);

impl CompletionStatus {
    /// It was done.
    pub const SUCCESS: CompletionStatus = CompletionStatus(0);
    /// The queue pair was in error before it began.
    pub const FLUSHED: CompletionStatus = CompletionStatus(5);
    /// The peer refused the access: wrong key, out of bounds, not allowed.
    pub const REMOTE_ACCESS: CompletionStatus = CompletionStatus(10);
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the function takes any number and returns null or a string that lives for ever.
        let text = unsafe { sys::ibv_wc_status_str(self.0) };
        if text.is_null() {
            return write!(out, "completion status {}", self.0);
        }
        // SAFETY: not null, see above.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        write!(out, "{text} (completion status {})", self.0)
    }
}

impl fmt::Debug for CompletionStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "CompletionStatus({})", self.0)
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The request's `id`.
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// Whether it is of a receive, which only means something where it was done.
    pub is_receive: bool,
    /// Bytes received or read.
    pub bytes: u32,
    /// The queue pair.
    pub queue: u32,
}

/// A one-sided request. The remote address is a virtual address of the node, as [`crate::Grant::address`] gives it.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// READ into local memory.
    Read {
        /// First remote byte.
        remote: u64,
        /// Its key.
        rkey: u32,
    },
    /// WRITE from local memory.
    Write {
        /// First remote byte.
        remote: u64,
        /// Its key.
        rkey: u32,
    },
}

/// An ordinary reliable-connected queue pair of libibverbs.
#[derive(Debug)]
pub struct VerbsQueue {
    raw: NonNull<sys::ibv_qp>,
    completions: Arc<CompletionQueue>,
    _domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread; posting takes a lock in the library.
unsafe impl Send for VerbsQueue {}
// SAFETY: as above.
unsafe impl Sync for VerbsQueue {}

/// Bytes that `send` takes at most.
const INLINE_BYTES: u32 = crate::protocol::MESSAGE_BYTES as u32;

impl VerbsQueue {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        sends: u32,
        receives: u32,
    ) -> Result<VerbsQueue, NodeError> {
        // SAFETY: all zero bytes are a valid ibv_qp_init_attr: integers and null pointers.
        let mut wanted: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = completions.raw();
        wanted.recv_cq = completions.raw();
        wanted.cap.max_send_wr = sends;
        wanted.cap.max_recv_wr = receives;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        wanted.cap.max_inline_data = INLINE_BYTES;
        wanted.qp_type = sys::IBV_QPT_RC;
        // SAFETY: domain and completion queue live, and are of one context.
        let raw = NonNull::new(unsafe { sys::ibv_create_qp(domain.raw(), &mut wanted) });
        let raw = raw.ok_or_else(|| NodeError::Call {
            call: "ibv_create_qp",
            what: "making a queue pair",
            object: completions.context().name().to_owned(),
            source: io::Error::last_os_error(),
        })?;
        Ok(VerbsQueue {
            raw,
            completions: Arc::clone(completions),
            _domain: Arc::clone(domain),
        })
    }

    fn raw(&self) -> &sys::ibv_qp {
        // SAFETY: made by `new` and destroyed by `drop`; its number does not change.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn fail(&self) {
        let error = QueueAttributes {
            mask: QueueAttributes::STATE,
            state: QueueAttributes::ERROR,
            ..QueueAttributes::default()
        };
        // A queue pair that does not take it is destroyed soon anyway.
        let _ = self.modify(&error);
    }

    fn post(
        &self,
        id: u64,
        opcode: u32,
        flags: u32,
        list: &mut [sys::ibv_sge],
        remote: u64,
        rkey: u32,
    ) -> io::Result<()> {
        // SAFETY: all zero bytes are a valid ibv_send_wr: integers and null pointers.
        let mut request: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = id;
        request.sg_list = list.as_mut_ptr();
        request.num_sge = list.len() as libc::c_int;
        request.opcode = opcode;
        request.send_flags = flags | sys::IBV_SEND_SIGNALED;
        request.wr.rdma = sys::ibv_send_wr_rdma {
            remote_addr: remote,
            rkey,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives; request and list are read during the call only.
        match unsafe { sys::ibv_post_send(self.raw.as_ptr(), &mut request, &mut refused) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// Posts a one-sided request over local memory.
    ///
    /// # Safety
    /// The memory is registered under `lkey` and stays so, and nothing else uses it, until the request has completed or
    /// the queue pair is destroyed.
    ///
    /// # Errors
    /// A full queue, or what the device says.
    pub(crate) unsafe fn post_request(
        &self,
        id: u64,
        request: Request,
        local: *mut u8,
        lkey: u32,
        bytes: u32,
    ) -> io::Result<()> {
        let mut list = [sys::ibv_sge {
            addr: local as u64,
            length: bytes,
            lkey,
        }];
        let (opcode, remote, rkey) = match request {
            Request::Read { remote, rkey } => (sys::IBV_WR_RDMA_READ, remote, rkey),
            Request::Write { remote, rkey } => (sys::IBV_WR_RDMA_WRITE, remote, rkey),
        };
        self.post(id, opcode, 0, &mut list, remote, rkey)
    }

    /// Posts a message; its bytes are taken during the call.
    pub(crate) fn send(&self, id: u64, message: &[u8]) -> io::Result<()> {
        let mut list = [sys::ibv_sge {
            addr: message.as_ptr() as u64,
            length: message.len() as u32,
            lkey: 0,
        }];
        let inline = sys::IBV_SEND_INLINE;
        self.post(id, sys::IBV_WR_SEND, inline, &mut list, 0, 0)
    }

    /// Posts a WRITE of no bytes: it needs no key, and completes when the peer's device has acknowledged it. No program
    /// at the peer takes part, so one that is busy is not taken for dead.
    pub(crate) fn probe(&self, id: u64) -> io::Result<()> {
        self.post(id, sys::IBV_WR_RDMA_WRITE, 0, &mut [], 0, 0)
    }

    /// Posts a receive buffer.
    ///
    /// # Safety
    /// As [`VerbsQueue::post_request`].
    pub(crate) unsafe fn post_receive(&self, id: u64, local: *mut u8, lkey: u32, bytes: u32) -> io::Result<()> {
        let mut entry = sys::ibv_sge {
            addr: local as u64,
            length: bytes,
            lkey,
        };
        let mut request = sys::ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &mut entry,
            num_sge: 1,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives; request and list are read during the call only; the memory is the caller's.
        match unsafe { sys::ibv_post_recv(self.raw.as_ptr(), &mut request, &mut refused) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    pub(crate) fn poll(&self) -> Vec<Completion> {
        poll(&self.completions)
    }
}

/// Takes up to 32 completions.
pub fn poll(queue: &CompletionQueue) -> Vec<Completion> {
    // SAFETY: all zero bytes are a valid ibv_wc, which holds integers only.
    let mut entries: [sys::ibv_wc; 32] = unsafe { std::mem::zeroed() };
    // SAFETY: the queue lives, and there is room for 32 entries.
    let count = unsafe { sys::ibv_poll_cq(queue.raw(), 32, entries.as_mut_ptr()) };
    let count = usize::try_from(count).unwrap_or(0).min(entries.len());
    let completion = |entry: &sys::ibv_wc| Completion {
        id: entry.wr_id,
        status: CompletionStatus(entry.status),
        is_receive: entry.opcode & sys::IBV_WC_RECV != 0,
        bytes: entry.byte_len,
        queue: entry.qp_num,
    };
    entries[..count].iter().map(completion).collect()
}

impl JoinQueue for VerbsQueue {
    fn number(&self) -> u32 {
        self.raw().qp_num
    }

    fn modify(&self, attributes: &QueueAttributes) -> io::Result<()> {
        let mut attr = attributes.to_verbs();
        // SAFETY: the queue pair lives, and the attributes are a local.
        match unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &mut attr, attributes.mask as libc::c_int) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    fn max_outstanding_reads(&self) -> u8 {
        self.completions.context().reads_out_max
    }
}

impl Drop for VerbsQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`. Requests that were not done are dropped by the device before this returns.
        unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

/// Takes a queue pair through INIT, RTR and RTS with the attributes of a connection.
///
/// # Errors
/// The state that it did not take.
pub fn join(
    queue: &dyn JoinQueue,
    attributes: impl Fn(u32) -> Result<QueueAttributes, NodeError>,
) -> Result<(), NodeError> {
    let states = [
        (QueueAttributes::INIT, "INIT"),
        (QueueAttributes::READY_TO_RECEIVE, "RTR"),
        (QueueAttributes::READY_TO_SEND, "RTS"),
    ];
    for (state, name) in states {
        let attributes = attributes(state)?;
        queue.modify(&attributes).map_err(|source| NodeError::QueueState {
            number: queue.number(),
            state: name,
            source,
        })?;
    }
    Ok(())
}
