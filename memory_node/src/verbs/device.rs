//! Devices, protection domains, memory regions, completion queues.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use gpuvm_nic::devices::{Gid, Machine};
use gpuvm_nic::rdma_sys as sys;

use super::{need_libraries, set_nonblocking};
use crate::error::NodeError;

/// The devices of this machine; `None` where its kernel is one without RDMA.
fn device_list() -> Result<Option<sys::DeviceList>, NodeError> {
    need_libraries()?;
    sys::DeviceList::get().map_err(|source| NodeError::Call {
        call: "ibv_get_device_list",
        what: "looking for devices",
        object: "this machine".to_owned(),
        source,
    })
}

/// The names of the RDMA devices of this machine.
///
/// # Errors
/// No library, or what it says.
pub fn devices() -> Result<Vec<String>, NodeError> {
    let list = device_list()?;
    Ok(list
        .iter()
        .flat_map(sys::DeviceList::devices)
        .map(|(_, name)| name)
        .collect())
}

/// The error where a device, or any, is missing.
pub fn no_device(wanted: Option<&str>, known: Vec<String>) -> NodeError {
    let kernels = Machine::default().rdma_names().into_iter();
    NodeError::NoDevice {
        wanted: wanted.map(str::to_owned),
        closed: kernels.filter(|name| !known.contains(name)).collect(),
        known,
    }
}

/// The IP addresses of a device's first port, IPv4 first. They are those of its network interface: RoCE keeps one GID
/// for each.
pub fn device_addresses(name: &str) -> Vec<IpAddr> {
    let device = Machine::default().rdma_device(name);
    let port = device.and_then(|device| device.ports.into_iter().next());
    let gids = port.map(|port| port.gids).unwrap_or_default();
    let mut addresses: Vec<IpAddr> = gids.iter().filter_map(Gid::address).collect();
    addresses.sort_by_key(|address| (address.is_ipv6(), *address));
    addresses.dedup();
    addresses
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
    /// READs and atomics that a queue pair may have in flight as requester, and as responder.
    pub reads_out_max: u8,
    /// See `reads_out_max`.
    pub reads_in_max: u8,
}

// SAFETY: libibverbs may be called from any thread, for one context from several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens a device by its name.
    ///
    /// # Errors
    /// No such device, or what the library says.
    pub fn open(name: &str) -> Result<Arc<Context>, NodeError> {
        let list = device_list()?;
        let mut devices = list.iter().flat_map(sys::DeviceList::devices);
        // SAFETY: the device is in a list that is not freed yet.
        let open = |device| NonNull::new(unsafe { sys::ibv_open_device(device) }).ok_or_else(io::Error::last_os_error);
        let opened = devices.find(|(_, found)| found == name).map(|(device, _)| open(device));
        let failed = |source| NodeError::Call {
            call: "ibv_open_device",
            what: "opening the device",
            object: name.to_owned(),
            source,
        };
        let Some(opened) = opened else {
            return Err(no_device(Some(name), self::devices()?));
        };
        let mut context = Context {
            raw: opened.map_err(failed)?,
            name: name.to_owned(),
            reads_out_max: 1,
            reads_in_max: 1,
        };
        // SAFETY: all zero bytes are a valid ibv_device_attr, which holds integers only.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the attributes are a local.
        let result = unsafe { sys::ibv_query_device(context.raw.as_ptr(), &mut attributes) };
        if result != 0 {
            return Err(NodeError::Call {
                call: "ibv_query_device",
                what: "asking for the device's limits",
                object: name.to_owned(),
                source: io::Error::from_raw_os_error(result),
            });
        }
        // 255 means "as many as possible" to the connection manager.
        let limit = |found: libc::c_int| u8::try_from(found.clamp(1, 254)).unwrap_or(1);
        context.reads_out_max = limit(attributes.max_qp_init_rd_atom);
        context.reads_in_max = limit(attributes.max_qp_rd_atom);
        Ok(Arc::new(context))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; everything made from it holds an `Arc` of this and is gone.
        unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
    }
}

/// A protection domain: keys of one are refused to queue pairs of another.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Domain>, NodeError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_alloc_pd(context.raw.as_ptr()) });
        let raw = raw.ok_or_else(|| NodeError::Call {
            call: "ibv_alloc_pd",
            what: "making a protection domain",
            object: context.name.clone(),
            source: io::Error::last_os_error(),
        })?;
        Ok(Arc::new(Domain {
            raw,
            context: Arc::clone(context),
        }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; regions and queue pairs hold an `Arc` of this and are gone.
        unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// What a region's keys allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAccess {
    /// Own requests alone.
    Local,
    /// READ by the peer.
    RemoteRead,
    /// READ, WRITE and atomics by the peer.
    RemoteAll,
}

/// A registered memory region.
#[derive(Debug)]
pub struct Region {
    raw: Option<NonNull<sys::ibv_mr>>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory: pins it and makes keys for it.
    ///
    /// # Safety
    /// The memory stays mapped until the region is deregistered, and no Rust reference that promises exclusive or
    /// immutable access is held to it while a device may access it.
    ///
    /// # Errors
    /// What the device says, with the limit of locked memory where that may be the cause.
    pub unsafe fn register(
        domain: &Arc<Domain>,
        start: *mut u8,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<Region, NodeError> {
        // Never on demand: rdma_rxe's on-demand regions give wrong data.
        let flags = match access {
            RegionAccess::Local => sys::IBV_ACCESS_LOCAL_WRITE,
            RegionAccess::RemoteRead => sys::IBV_ACCESS_REMOTE_READ,
            RegionAccess::RemoteAll => {
                sys::IBV_ACCESS_LOCAL_WRITE
                    | sys::IBV_ACCESS_REMOTE_READ
                    | sys::IBV_ACCESS_REMOTE_WRITE
                    | sys::IBV_ACCESS_REMOTE_ATOMIC
            }
        };
        // SAFETY: the domain lives; the memory is the caller's promise.
        let raw = unsafe { sys::ibv_reg_mr(domain.raw(), start.cast(), bytes, flags as libc::c_int) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Region {
                raw: Some(raw),
                domain: Arc::clone(domain),
            }),
            None => Err(NodeError::Register {
                bytes: bytes as u64,
                device: domain.context.name.clone(),
                source: io::Error::last_os_error(),
                locked_max: locked_memory_max(),
            }),
        }
    }

    fn raw(&self) -> &sys::ibv_mr {
        let raw = self.raw.expect("taken by `deregister` alone, which takes the region");
        // SAFETY: registered and not deregistered; the library changes none of its public fields.
        unsafe { raw.as_ref() }
    }

    pub fn lkey(&self) -> u32 {
        self.raw().lkey
    }

    pub fn rkey(&self) -> u32 {
        self.raw().rkey
    }

    /// Takes the keys back; when this returns, no access by them goes on.
    ///
    /// # Errors
    /// What the device says; then the memory must not be given to anyone else.
    pub fn deregister(mut self) -> Result<(), NodeError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), NodeError> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: registered by `register`, and taken out, so that this happens once.
        match unsafe { sys::ibv_dereg_mr(raw.as_ptr()) } {
            0 => Ok(()),
            error => Err(NodeError::Call {
                call: "ibv_dereg_mr",
                what: "taking a memory region's keys back",
                object: self.domain.context.name.clone(),
                source: io::Error::from_raw_os_error(error),
            }),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, device = self.domain.context.name, "a memory region stays registered");
        }
    }
}

/// RLIMIT_MEMLOCK in bytes, where there is one that holds for this process.
pub fn locked_memory_max() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is a local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY && !may_lock_all()).then_some(limit.rlim_cur)
}

/// Whether the process has CAP_IPC_LOCK, which is above the limit.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let mask = Machine::default().effective_capabilities();
    mask.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

/// A completion queue with a descriptor that can be waited for.
#[derive(Debug)]
pub struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread; polling takes a lock in the library.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<CompletionQueue>, NodeError> {
        let failed = |call, source| NodeError::Call {
            call,
            what: "making a completion queue",
            object: context.name.clone(),
            source,
        };
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { sys::ibv_create_comp_channel(context.raw.as_ptr()) });
        let channel = channel.ok_or_else(|| failed("ibv_create_comp_channel", io::Error::last_os_error()))?;
        // SAFETY: just made, and not null.
        let nonblocking = set_nonblocking(unsafe { channel.as_ref() }.fd);
        let made = nonblocking.map_err(|source| failed("fcntl", source)).and_then(|()| {
            let entries = entries.min(i32::MAX as u32) as libc::c_int;
            // SAFETY: context and channel are open; the queue's own context pointer is not used.
            let raw =
                unsafe { sys::ibv_create_cq(context.raw.as_ptr(), entries, std::ptr::null_mut(), channel.as_ptr(), 0) };
            NonNull::new(raw).ok_or_else(|| failed("ibv_create_cq", io::Error::last_os_error()))
        });
        match made {
            Ok(raw) => {
                let queue = CompletionQueue {
                    raw,
                    channel,
                    context: Arc::clone(context),
                };
                queue.arm()?;
                Ok(Arc::new(queue))
            }
            Err(error) => {
                // SAFETY: made above, and no queue uses it.
                unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
                Err(error)
            }
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Can be read when a completion came after the last `arm`.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives as long as this.
        unsafe { self.channel.as_ref() }.fd
    }

    /// Takes the notifications so far and asks for the next. Poll afterwards: completions that came before it give none.
    ///
    /// # Errors
    /// What the device says.
    pub fn arm(&self) -> Result<(), NodeError> {
        let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel lives; both results are locals. The descriptor does not block, so this ends.
        while unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut user) } == 0 {
            // SAFETY: the event is of this queue, the only one of the channel.
            unsafe { sys::ibv_ack_cq_events(self.raw.as_ptr(), 1) };
        }
        // SAFETY: the queue lives.
        let result = unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) };
        match result {
            0 => Ok(()),
            error => Err(NodeError::Call {
                call: "ibv_req_notify_cq",
                what: "waiting for completions",
                object: self.context.name.clone(),
                source: io::Error::from_raw_os_error(error.abs()),
            }),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`; queue pairs hold an `Arc` of this and are gone; all events were acknowledged in `arm`.
        unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        // SAFETY: made by `new`, and its only queue is gone.
        unsafe { sys::ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}
