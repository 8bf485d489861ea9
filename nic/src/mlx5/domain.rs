//! What queue pairs are made in: the open device, its protection domain, and the parent domain that brings the allocators.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::rdma_sys as sys;

use super::arena::{self, Arena, SharedMemory};
use super::device::Device;
use super::devx::Devx;
use super::dv::Mlx5Dv;
use super::failure::failed;
use super::{Mlx5Options, QueueMaking};
use crate::NicError;

/// Device and domains. Everything that is made in them holds an `Arc` of this, so they are given back last and in order.
pub(super) struct Domain {
    pub device: Device,
    pub dv: Mlx5Dv,
    pub arena: Box<Arena>,
    protection: Option<NonNull<sys::ibv_pd>>,
    /// Where queues are made so; instead of a parent domain.
    pub devx: Option<Devx>,
    making: QueueMaking,
    /// Whether the port is of Ethernet.
    pub ethernet: bool,
    memory: Arc<dyn SharedMemory>,
    parent: Option<NonNull<sys::ibv_pd>>,
}

// SAFETY: libibverbs and libmlx5 may be called from any thread, for one context from several at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens a device. Its domains follow with [`allocate`](Self::allocate).
    pub fn open(options: &Mlx5Options, memory: Arc<dyn SharedMemory>) -> Result<Self, NicError> {
        let making = options.queues;
        let dv = match making {
            QueueMaking::Verbs => Mlx5Dv::load()?,
            QueueMaking::Devx => Mlx5Dv::load_with_devx()?,
        };
        Ok(Self {
            device: Device::open(options.device.as_deref(), options.port, &dv)?,
            dv,
            arena: Box::new(Arena::new(Arc::clone(&memory))),
            devx: None,
            making,
            ethernet: false,
            memory,
            protection: None,
            parent: None,
        })
    }

    /// Makes the domains, for queues of a port of Ethernet or not.
    pub fn allocate(&mut self, ethernet: bool) -> Result<(), NicError> {
        self.ethernet = ethernet;
        let context = self.device.context.as_ptr();
        // SAFETY: the context is open.
        self.protection = NonNull::new(unsafe { sys::ibv_alloc_pd(context) });
        let Some(protection) = self.protection else {
            return Err(self.failed("making a protection domain", "ibv_alloc_pd", io::Error::last_os_error()));
        };
        if self.making == QueueMaking::Devx {
            let (name, memory) = (&self.device.name, Arc::clone(&self.memory));
            // SAFETY: both live, are of mlx5, and the device was opened for DEVX.
            self.devx = Some(unsafe { Devx::begin(&self.dv, name, context, protection.as_ptr(), memory) }?);
            return Ok(());
        }
        let mut wanted = sys::ibv_parent_domain_init_attr {
            pd: protection.as_ptr(),
            td: std::ptr::null_mut(),
            comp_mask: sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | sys::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(arena::allocate),
            free: Some(arena::free),
            pd_context: (&raw const *self.arena).cast_mut().cast(),
        };
        // SAFETY: context and domain live; the arena is boxed, so it stays where it is, and outlives the domain.
        self.parent = NonNull::new(unsafe { sys::ibv_alloc_parent_domain(context, &mut wanted) });
        if self.parent.is_none() {
            let source = io::Error::last_os_error();
            return Err(self.failed("making a parent domain", "ibv_alloc_parent_domain", source));
        }
        Ok(())
    }

    pub fn context(&self) -> *mut sys::ibv_context {
        self.device.context.as_ptr()
    }

    /// For memory regions.
    pub fn protection(&self) -> *mut sys::ibv_pd {
        self.protection.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// For queues.
    pub fn parent(&self) -> *mut sys::ibv_pd {
        self.parent.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    pub fn failed(&self, doing: impl Into<String>, call: &str, source: io::Error) -> NicError {
        failed(&self.device.name, doing, call, source)
    }

    /// The error of a call that takes memory of the arena, which may have refused it.
    pub fn failed_to_make(&self, doing: impl Into<String>, call: &str, source: io::Error) -> NicError {
        match self.arena.take_failure() {
            Some(why) => super::failure::failed_with(&self.device.name, doing, call, source, why),
            None => self.failed(doing, call, source),
        }
    }

    /// Logs a call that failed where nothing can be told.
    pub fn warn(&self, call: &str, error: &io::Error) {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            device = self.device.name,
            "{call} failed: the object is left to the kernel"
        );
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(mut devx) = self.devx.take() {
            devx.end(&self.dv, |call, error| self.warn(call, error));
        }
        for domain in [self.parent.take(), self.protection.take()].into_iter().flatten() {
            // SAFETY: made by `allocate`; everything made in it is gone, and it is taken out, so this happens once.
            let result = unsafe { sys::ibv_dealloc_pd(domain.as_ptr()) };
            if result != 0 {
                self.warn("ibv_dealloc_pd", &io::Error::from_raw_os_error(result.abs()));
            }
        }
        // SAFETY: everything that was made from the device is gone, and this is the end of it.
        if let Err(error) = unsafe { self.device.close() } {
            self.warn("ibv_close_device", &error);
            // The NIC may still write to rings that could not be destroyed: better lost than freed under it.
            self.arena.leak();
        }
    }
}
