//! What was made and is not destroyed.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, OnceLock};

use gpuvm_nic::mlx5::dv;
use gpuvm_nic::rdma_sys as sys;
use gpuvm_nic::{MemoryKey, Pages, SoftNic};
use parking_lot::{Mutex, MutexGuard};

use crate::Outcome;
use crate::control::{breach, hand_out};
use crate::devx::made;
use crate::mapping::Mapping;

/// The allocators of a parent domain.
#[derive(Clone, Copy)]
pub struct Allocators {
    pub domain: usize,
    pub allocate: unsafe extern "C" fn(*mut sys::ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut sys::ibv_pd, *mut c_void, *mut c_void, u64),
    pub context: usize,
}

/// Memory of a ring or record.
pub enum Chunk {
    /// From a parent domain's allocator.
    Given {
        allocators: Allocators,
        address: u64,
        resource: u64,
    },
    /// The library's.
    Own(Pages),
}

impl Chunk {
    /// Zeroed memory, from the allocators if there are some.
    pub fn new(allocators: Option<Allocators>, bytes: usize, alignment: usize, resource: u64) -> Outcome<Self> {
        let Some(allocators) = allocators else {
            return Ok(Chunk::Own(Pages::new(bytes)));
        };
        let domain = std::ptr::with_exposed_provenance_mut(allocators.domain);
        let context = std::ptr::with_exposed_provenance_mut(allocators.context);
        // SAFETY: the domain lives, and its maker promised that the function may be called.
        let made = unsafe { (allocators.allocate)(domain, context, bytes, alignment, resource) };
        if made.is_null() {
            return Err(libc::ENOMEM);
        }
        if made == sys::IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(Chunk::Own(Pages::new(bytes)));
        }
        if !made.addr().is_multiple_of(alignment) {
            breach(format!(
                "an allocator gave {made:p}, which is not aligned to {alignment}"
            ));
        }
        // SAFETY: this many bytes, by the allocator's promise.
        unsafe { made.cast::<u8>().write_bytes(0, bytes) };
        Ok(Chunk::Given {
            allocators,
            address: made.expose_provenance() as u64,
            resource,
        })
    }

    pub fn address(&self) -> u64 {
        match self {
            Chunk::Given { address, .. } => *address,
            Chunk::Own(pages) => pages.address(),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Chunk::Given {
            allocators,
            address,
            resource,
        } = self
        {
            let domain = std::ptr::with_exposed_provenance_mut(allocators.domain);
            let context = std::ptr::with_exposed_provenance_mut(allocators.context);
            let chunk = std::ptr::with_exposed_provenance_mut(*address as usize);
            // SAFETY: the domain lives, since this depends on it, and the chunk is its allocator's.
            unsafe { (allocators.free)(domain, context, chunk, *resource) };
        }
    }
}

pub struct CompletionQueue {
    pub ring: Chunk,
    pub record: Chunk,
    pub entries: u32,
}

pub struct QueuePair {
    pub ring: Chunk,
    pub record: Chunk,
    pub blocks: u32,
    pub register: u64,
    pub number: u32,
    /// `enum ibv_qp_state`.
    pub state: u32,
    /// Where it was told to send.
    pub destination: u32,
}

/// One kind of object.
pub enum Kind {
    DeviceList,
    Context(Arc<SoftNic>),
    Domain,
    ParentDomain(Option<Allocators>),
    Region { key: MemoryKey, _mapping: Option<Mapping> },
    CompletionQueue(CompletionQueue),
    QueuePair(QueuePair),
    Address(Box<dv::AddressVector>),
    Umem(made::Umem),
    Registers(made::Registers),
    DevxCompletionQueue(made::CompletionQueue),
    DevxQueuePair(made::QueuePair),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Kind::DeviceList => "device list",
            Kind::Context(_) => "context",
            Kind::Domain => "protection domain",
            Kind::ParentDomain(_) => "parent domain",
            Kind::Region { .. } => "memory region",
            Kind::CompletionQueue(_) | Kind::DevxCompletionQueue(_) => "completion queue",
            Kind::QueuePair(_) | Kind::DevxQueuePair(_) => "queue pair",
            Kind::Address(_) => "address",
            Kind::Umem(_) => "registered memory",
            Kind::Registers(_) => "page of registers",
        }
    }
}

/// One object, by the address that its maker holds.
pub struct Object {
    pub kind: Kind,
    pub context: usize,
    /// What has to live as long.
    pub needs: Vec<usize>,
}

type Objects = HashMap<usize, Object>;

pub fn objects() -> MutexGuard<'static, Objects> {
    static OBJECTS: OnceLock<Mutex<Objects>> = OnceLock::new();
    let objects = OBJECTS.get_or_init(Mutex::default);
    // A panic leaves a map of whole entries.
    objects.lock()
}

/// What was made and is not destroyed, one a line.
///
/// # Safety
/// As [`fake_rdma_log`](crate::control::fake_rdma_log).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_rdma_live(out: *mut c_char, room: usize) -> usize {
    let mut lines: Vec<_> = objects().values().map(|object| object.kind.name()).collect();
    lines.sort_unstable();
    let text = lines.join("\n");
    // SAFETY: the caller's promise.
    unsafe { hand_out(&text, out, room) }
}

/// An object that a call names; a breach if there is none.
pub fn find<'a>(objects: &'a mut Objects, call: &str, address: usize) -> Outcome<&'a mut Object> {
    let found = objects.get_mut(&address);
    if found.is_none() {
        breach(format!("{call} of {address:#x}, which is not there"));
    }
    found.ok_or(libc::EINVAL)
}

/// The software NIC of a context.
pub fn nic_of(objects: &Objects, context: usize) -> Outcome<Arc<SoftNic>> {
    match objects.get(&context).map(|object| &object.kind) {
        Some(Kind::Context(nic)) => Ok(Arc::clone(nic)),
        _ => {
            breach(format!("context {context:#x} is not there"));
            Err(libc::EINVAL)
        }
    }
}

/// Notes a new object.
pub fn add(address: usize, kind: Kind, context: usize, needs: &[usize]) {
    let object = Object {
        kind,
        context,
        needs: needs.to_vec(),
    };
    objects().insert(address, object);
}

/// Takes an object out that nothing needs any more.
pub fn remove(call: &str, address: usize) -> Outcome<Object> {
    let mut objects = objects();
    let name = find(&mut objects, call, address)?.kind.name();
    let user = objects.values().find(|object| object.needs.contains(&address));
    if let Some(user) = user {
        breach(format!(
            "{call} of a {name} while a {} made from it lives",
            user.kind.name()
        ));
        return Err(libc::EBUSY);
    }
    // It was found above, under the same lock.
    objects.remove(&address).ok_or(libc::EINVAL)
}

/// Takes a context out, with all that is left of it: the kernel ends it when the device file is closed.
pub fn remove_context(call: &str, address: usize) -> Outcome<Vec<Object>> {
    let mut objects = objects();
    find(&mut objects, call, address)?;
    let left: Vec<usize> = objects
        .iter()
        .filter(|(other, object)| object.context == address && **other != address)
        .map(|(other, _)| *other)
        .collect();
    let mut removed = Vec::new();
    for other in left {
        if let Some(object) = objects.remove(&other) {
            breach(format!("{call} while a {} made from it lives", object.kind.name()));
            removed.push(object);
        }
    }
    removed.extend(objects.remove(&address));
    Ok(removed)
}
