//! NVIDIA ConnectX and BlueField (mlx5): queue pairs whose rings GPU threads fill and poll by themselves.
//!
//! Plain verbs make the objects, or firmware commands over DEVX ([`QueueMaking`]). By verbs, a parent domain's allocators put rings and doorbell records into memory that the GPU
//! reaches ([`SharedMemory`]), and `mlx5dv_init_obj` tells where they and the doorbell register are (formats:
//! [`crate::wire::mlx5`]). After that the library has no part in posting or polling: every request is signalled,
//! request `i` completes in slot `i` of its ring, and overrun is ignored. By DEVX, rings may lie in the GPU's own memory, and
//! one entry takes every completion.
//!
//! A GPU reaches the register where the CUDA driver maps it ([`Nic::doorbell_pages`]); where it refuses,
//! [`Nic::use_doorbell_proxy`] has a thread of this process store it. Queue pairs may share a register.
//!
//! Not tested on a ConnectX: no machine with one was at hand. The structures are compared with the vendor's header, and
//! bring-up, failures and tear-down run over a fake of both libraries (tests/fake_rdma), behind which the software NIC
//! executes the queues.

mod arena;
mod device;
mod devx;
mod domain;
pub mod dv;
mod failure;
mod made;
mod options;
mod pair;
pub mod prm;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::rdma_sys as sys;
use parking_lot::Mutex;

pub use arena::{ProcessMemory, QueueSlab, SharedMemory};
pub use options::{Mlx5Options, QueueMaking, UnknownQueueMaking};

use device::{Limits, Port};
use devx::DevxPair;
use domain::Domain;
use failure::failed_with;
use made::{Made, Refusal};
use pair::Pair;

use crate::attributes::{Peer, Repeats};
use crate::nic::check_span;
use crate::wire::mlx5::QUEUE_BLOCKS_MAX;
use crate::write_combining::{flush_write_combining, order_before_register};
use crate::{
    Access, AddressAttributes, Backing, DoorbellProxy, MemoryKey, Nic, NicCapabilities, NicError, QueueAttributes,
    QueueFormat, QueuePair, QueuePairState, QueueRings, Wake,
};

/// Bytes of a page of doorbell registers.
const REGISTER_PAGE: u64 = 4096;
/// Most bytes of a dma-buf in one registration.
const DMA_BUF_BYTES_MAX: u64 = 1 << 31;
/// What a peer may do. No atomics: nothing here uses them, and devices without refuse a queue pair that asks for them.
const REMOTE_ACCESS: u32 = Access::REMOTE_READ.bits() | Access::REMOTE_WRITE.bits();
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// Names of the mlx5 devices of this machine.
///
/// # Errors
/// [`NicError::NoDevice`] with the library that is missing; [`NicError::System`].
pub fn devices() -> Result<Vec<String>, NicError> {
    device::names(&dv::Mlx5Dv::load()?)
}

/// An mlx5 device, opened by this process.
pub struct Mlx5Nic {
    pairs: Mutex<HashMap<u32, Arc<dyn Made>>>,
    regions: Mutex<HashMap<MemoryKey, Region>>,
    /// Pages with the registers of queue pairs so far.
    register_pages: Mutex<BTreeSet<u64>>,
    /// After the queue pairs, whose places end with them; before the device.
    proxy: OnceLock<DoorbellProxy>,
    starting_proxy: Mutex<()>,
    port: Port,
    limits: Limits,
    options: Mlx5Options,
    /// Last: all else is made in it.
    domain: Arc<Domain>,
}

/// A registration.
struct Region(NonNull<sys::ibv_mr>);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Region {}

impl Mlx5Nic {
    /// Opens a device. Rings and doorbell records come from `memory`.
    ///
    /// # Errors
    /// [`NicError::BadArgument`] for an option that cannot be; [`NicError::NoDevice`] with what is missing;
    /// [`NicError::System`] with the step and call that failed.
    pub fn open(options: Mlx5Options, memory: Arc<dyn SharedMemory>) -> Result<Self, NicError> {
        options.check()?;
        let mut domain = Domain::open(&options, memory)?;
        let limits = domain.device.limits()?;
        let port = domain.device.port(&options, &limits)?;
        domain.allocate(port.ethernet)?;
        tracing::debug!(device = domain.device.name, ?port, ?limits, "opened");
        Ok(Self {
            pairs: Mutex::default(),
            regions: Mutex::default(),
            register_pages: Mutex::default(),
            proxy: OnceLock::new(),
            starting_proxy: Mutex::default(),
            port,
            limits,
            options,
            domain: Arc::new(domain),
        })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.domain.device.name
    }

    fn find(&self, number: u32) -> Result<Arc<dyn Made>, NicError> {
        self.pairs
            .lock()
            .get(&number)
            .cloned()
            .ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }

    fn describe(&self, pair: &dyn Made) -> QueuePair {
        let proxied = pair.parts().proxy.lock().as_ref().map(crate::ProxySlot::address);
        QueuePair {
            number: pair.parts().number,
            format: QueueFormat::Mlx5,
            doorbell: proxied.unwrap_or(pair.parts().register),
            doorbell_record: pair.parts().record,
            send: pair.parts().send,
            completion: pair.completion(),
            collapsed: pair.collapsed(),
            completion_produced: 0,
            completion_consumed: 0,
        }
    }

    /// Blocks of the longest send queue, a power of two.
    fn depth_max(&self) -> u32 {
        let most = self.limits.queue_depth.min(QUEUE_BLOCKS_MAX);
        most.checked_ilog2().map_or(0, |log| 1 << log)
    }

    /// READs that a queue pair has in flight to another one of this device.
    fn outstanding(&self) -> u8 {
        self.limits.reads_out.min(self.limits.reads_in)
    }

    /// Whether a path that others chose leaves by the port that was asked for.
    fn check_port(&self, attributes: &QueueAttributes) -> Result<(), NicError> {
        let asked = self.options.port;
        let other = attributes.mask & QueueAttributes::PORT != 0 && attributes.port_num != asked;
        if asked == Mlx5Options::default().port || !other {
            return Ok(());
        }
        Err(NicError::BadArgument {
            what: "port of the path to the peer",
            value: attributes.port_num.into(),
            expected: "the port that was asked for; leave it out, or reach the peer by an address of its network",
        })
    }

    fn change(&self, pair: &dyn Made, attributes: &QueueAttributes) -> Result<(), NicError> {
        let Refusal { call, source, said } = match pair.modify(attributes)? {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        let state = QueueAttributes::state_of(attributes.state);
        let doing = refused(
            format!("taking queue pair {:#x} to state {state}", pair.parts().number),
            &said,
        );
        if attributes.state == QueueAttributes::READY_TO_RECEIVE && source.raw_os_error() == Some(libc::EINVAL) {
            let to = &attributes.address;
            let hint = format!(
                "the path is refused: port {}, GID index {}, LID {}, MTU {} of at most {} bytes, {} READs in flight; check that \
                 both ends are of one kind (RoCE v2, InfiniBand) and that the GID is still there (`ibv_devinfo -v`)",
                to.port,
                to.sgid_index,
                to.dlid,
                128u32.checked_shl(attributes.mtu).unwrap_or(0),
                128u32.checked_shl(self.port.mtu).unwrap_or(0),
                attributes.max_dest_rd_atomic,
            );
            return Err(failed_with(self.device(), doing, call, source, hint));
        }
        Err(self.domain.failed(doing, call, source))
    }

    fn keep_region(&self, made: *mut sys::ibv_mr, call: &str, doing: String) -> Result<MemoryKey, NicError> {
        let Some(region) = NonNull::new(made) else {
            let source = io::Error::last_os_error();
            return Err(self.domain.failed(doing, call, source));
        };
        // SAFETY: just made; the library does not change its keys.
        let found = unsafe { region.as_ref() };
        let key = MemoryKey {
            lkey: found.lkey,
            rkey: found.rkey,
        };
        self.regions.lock().insert(key, Region(region));
        Ok(key)
    }

    fn state_of(&self, pair: &dyn Made) -> Result<QueuePairState, NicError> {
        let found = pair.query()?.map_err(|Refusal { call, source, said }| {
            let doing = format!("asking for the state of queue pair {:#x}", pair.parts().number);
            self.domain.failed(refused(doing, &said), call, source)
        })?;
        Ok(QueueAttributes::state_of(found))
    }

    fn proxy(&self) -> Result<&DoorbellProxy, NicError> {
        let _starting = self.starting_proxy.lock();
        if let Some(proxy) = self.proxy.get() {
            return Ok(proxy);
        }
        // A GPU's stores come without a call.
        let proxy = DoorbellProxy::start(&format!("doorbell-{}", self.device()), Wake::Never)?;
        Ok(self.proxy.get_or_init(|| proxy))
    }
}

/// What was being done, with what the firmware said of it.
fn refused(doing: String, said: &str) -> String {
    match said {
        "" => doing,
        said => format!("{doing} ({said})"),
    }
}

/// Stores a doorbell value to a register.
///
/// # Safety
/// `register` is mapped and 8-aligned.
unsafe fn ring_register(register: u64, value: u64) {
    order_before_register();
    // SAFETY: the caller's promise. Volatile: the store is the message.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(register as usize).write_volatile(value) };
    flush_write_combining();
}

impl Nic for Mlx5Nic {
    fn capabilities(&self) -> NicCapabilities {
        NicCapabilities {
            name: self.device().to_owned(),
            max_rd_atomic: self.outstanding().into(),
            sq_entries_max: self.depth_max(),
            cq_entries_max: self.limits.completions,
            queue_pairs_max: self.limits.queue_pairs,
            memory_regions_max: self.limits.memory_regions,
            message_bytes_max: self.port.message_bytes_max,
            needs_doorbell_call: false,
            link_bits_per_second: self.port.bits_per_second,
            makes_rings: true,
            has_mover: false,
            on_gpu: false,
        }
    }

    unsafe fn register(&self, addr: u64, bytes: u64, access: Access) -> Result<MemoryKey, NicError> {
        check_span(addr, bytes, access)?;
        let flags = access.bits() as libc::c_int;
        let first = std::ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: the domain lives; the memory is the caller's promise.
        let made = unsafe { sys::ibv_reg_mr(self.domain.protection(), first, bytes as usize, flags) };
        self.keep_region(made, "ibv_reg_mr", format!("registering {bytes} bytes at {addr:#x}"))
    }

    fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        iova: u64,
        access: Access,
    ) -> Result<MemoryKey, NicError> {
        check_span(iova, bytes, access)?;
        check_span(offset, bytes, access)?;
        if bytes > DMA_BUF_BYTES_MAX {
            return Err(NicError::BadArgument {
                what: "bytes of a dma-buf",
                value: bytes,
                expected: "at most 2 GiB in one registration: register it in pieces",
            });
        }
        let flags = access.bits() as libc::c_int;
        let domain = self.domain.protection();
        // SAFETY: the domain lives; the kernel holds the buffer's memory, which nothing reaches by references.
        let made = unsafe { sys::ibv_reg_dmabuf_mr(domain, offset, bytes as usize, iova, fd.as_raw_fd(), flags) };
        let doing = format!("registering {bytes} bytes of a dma-buf as {iova:#x}");
        self.keep_region(made, "ibv_reg_dmabuf_mr", doing)
    }

    fn register_backed(&self, _: u64, _: u64, _: Access, _: Arc<dyn Backing>) -> Result<MemoryKey, NicError> {
        Err(NicError::Unsupported {
            nic: "mlx5",
            what: "serve addresses that are no memory: files are the software NIC's",
        })
    }

    fn deregister(&self, key: MemoryKey) -> Result<(), NicError> {
        let mut regions = self.regions.lock();
        let region = regions.get(&key).ok_or(NicError::UnknownKey { key })?;
        // SAFETY: registered by `keep_region`, and taken out when it is gone.
        let result = unsafe { sys::ibv_dereg_mr(region.0.as_ptr()) };
        if result != 0 {
            let doing = format!("deregistering memory with lkey {:#x}", key.lkey);
            let source = io::Error::from_raw_os_error(result.abs());
            return Err(self.domain.failed(doing, "ibv_dereg_mr", source));
        }
        regions.remove(&key);
        Ok(())
    }

    unsafe fn create_queue_pair(&self, rings: QueueRings) -> Result<QueuePair, NicError> {
        let QueueRings::Own { depth } = rings else {
            return Err(NicError::Unsupported {
                nic: "mlx5",
                what: "use rings that the caller made",
            });
        };
        if !depth.is_power_of_two() || depth > self.depth_max() {
            return Err(NicError::BadArgument {
                what: "queue depth",
                value: u64::from(depth),
                expected: "a power of two, at most what the NIC's capabilities tell",
            });
        }
        let pair: Arc<dyn Made> = match self.options.queues {
            QueueMaking::Verbs => Arc::new(Pair::create(&self.domain, depth)?),
            QueueMaking::Devx => Arc::new(DevxPair::create(&self.domain, depth)?),
        };
        let described = self.describe(&*pair);
        self.register_pages
            .lock()
            .insert(pair.parts().register & !(REGISTER_PAGE - 1));
        self.pairs.lock().insert(pair.parts().number, pair);
        Ok(described)
    }

    fn queue_pair(&self, qp: u32) -> Result<QueuePair, NicError> {
        Ok(self.describe(&*self.find(qp)?))
    }

    fn connect(&self, qp: u32, remote: u32) -> Result<(), NicError> {
        let (pair, responder) = (self.find(qp)?, self.find(remote)?);
        let state = self.state_of(&*pair)?;
        if state != QueuePairState::Reset {
            return Err(NicError::WrongState {
                queue_pair: qp,
                state,
                operation: "connect",
                needed: QueuePairState::Reset,
            });
        }
        let (port, options) = (&self.port, &self.options);
        let peer = Peer {
            number: remote,
            // Relaxed: a number; connections are made one after the other by their owner.
            first_psn: responder.parts().first_psn.load(Ordering::Relaxed),
            mtu: port.mtu,
            address: AddressAttributes {
                // Back to this port: the NIC turns such packets round inside.
                dgid: port.gid,
                dlid: if port.ethernet { 0 } else { port.lid },
                sgid_index: port.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: options.traffic_class,
                sl: options.service_level,
                is_global: port.global,
                port: port.number,
                ..Default::default()
            },
        };
        let repeats = Repeats {
            ack_timeout: options.ack_timeout,
            count: options.retry_count,
        };
        // Relaxed: as above.
        let first_psn = pair.parts().first_psn.load(Ordering::Relaxed);
        let reads = self.outstanding();
        for step in QueueAttributes::to_connected(&peer, REMOTE_ACCESS, first_psn, reads, repeats) {
            self.change(&*pair, &step)?;
        }
        Ok(())
    }

    fn modify(&self, qp: u32, attributes: &QueueAttributes) -> Result<(), NicError> {
        if attributes.mask & QueueAttributes::STATE != 0 && attributes.state == QueueAttributes::RESET {
            return self.reset(qp);
        }
        self.check_port(attributes)?;
        // A connection manager asks for atomics wherever it asks for READs.
        let attributes = QueueAttributes {
            access_flags: attributes.access_flags & !Access::REMOTE_ATOMIC.bits(),
            ..*attributes
        };
        self.change(&*self.find(qp)?, &attributes)
    }

    fn use_doorbell_proxy(&self, qp: u32) -> Result<QueuePair, NicError> {
        let pair = self.find(qp)?;
        let proxy = self.proxy()?;
        let mut slot = pair.parts().proxy.lock();
        if slot.is_none() {
            let register = pair.parts().register;
            *slot = Some(proxy.serve(move |value| {
                // SAFETY: the register is mapped while the queue pair lives, whose destruction ends this service before.
                unsafe { ring_register(register, value) };
                Ok(())
            })?);
        }
        drop(slot);
        Ok(self.describe(&*pair))
    }

    fn fail(&self, qp: u32) -> Result<(), NicError> {
        self.change(&*self.find(qp)?, &QueueAttributes::to_state(QueueAttributes::ERROR))
    }

    fn doorbell_calls(&self) -> u64 {
        self.proxy.get().map_or(0, DoorbellProxy::calls)
    }

    fn state(&self, qp: u32) -> Result<QueuePairState, NicError> {
        self.state_of(&*self.find(qp)?)
    }

    /// The queue pair keeps its number and its rings. Requests begin at slot 0 again; completions go on where the NIC's
    /// completion queue is, which no reset of a queue pair moves: `completion.start` of its description tells. To make
    /// both anew instead would change the number, which is the queue pair's name to its owner, its peer and its posters.
    fn reset(&self, qp: u32) -> Result<(), NicError> {
        let pair = self.find(qp)?;
        self.change(&*pair, &QueueAttributes::to_state(QueueAttributes::RESET))?;
        pair.begin_anew()
    }

    fn destroy_queue_pair(&self, qp: u32) -> Result<(), NicError> {
        let pair = self.find(qp)?;
        pair.destroy()?;
        let mut pairs = self.pairs.lock();
        // The driver may have given the number to a new one in the meantime.
        if pairs.get(&qp).is_some_and(|found| Arc::ptr_eq(found, &pair)) {
            pairs.remove(&qp);
        }
        Ok(())
    }

    fn doorbell_pages(&self) -> Vec<(u64, u64)> {
        let registers = self.register_pages.lock();
        let mut pages: Vec<_> = registers.iter().map(|page| (*page, REGISTER_PAGE)).collect();
        pages.extend(self.proxy.get().map(DoorbellProxy::pages));
        pages
    }

    /// Sends a processor's store on its way, which a write-combining mapping may hold back, or wakes the doorbell proxy. A
    /// GPU's stores need neither.
    #[inline]
    fn doorbell_written(&self, addr: u64) {
        match self.proxy.get() {
            Some(proxy) if addr.wrapping_sub(proxy.pages().0) < proxy.pages().1 => proxy.rung(),
            _ => flush_write_combining(),
        }
    }

    fn advance_to(&self, _now_ns: u64) {
        // Hardware has a clock of its own.
    }

    fn step(&self) -> bool {
        false
    }
}

impl Drop for Mlx5Nic {
    fn drop(&mut self) {
        self.pairs.lock().clear();
        for (_, region) in self.regions.lock().drain() {
            // SAFETY: registered by `keep_region`, and taken out, so that this happens once.
            let result = unsafe { sys::ibv_dereg_mr(region.0.as_ptr()) };
            if result != 0 {
                self.domain
                    .warn("ibv_dereg_mr", &io::Error::from_raw_os_error(result.abs()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        let good = Mlx5Options::default();
        assert!(good.check().is_ok());
        let bad: [fn(&mut Mlx5Options); 8] = [
            |options| options.port = 0,
            |options| options.service_level = 16,
            |options| options.ack_timeout = 0,
            |options| options.ack_timeout = 32,
            |options| options.retry_count = 8,
            |options| options.mtu = Some(0),
            |options| options.mtu = Some(1500),
            |options| options.mtu = Some(8192),
        ];
        for spoil in bad {
            let mut options = good.clone();
            spoil(&mut options);
            let opened = Mlx5Nic::open(options.clone(), Arc::new(ProcessMemory::new()));
            assert!(
                matches!(opened, Err(NicError::BadArgument { .. })),
                "{options:?} is not refused"
            );
        }
    }

    #[test]
    fn a_machine_without_the_device_says_what_to_do() {
        let options = Mlx5Options {
            device: Some("no-such-mlx5".into()),
            ..Default::default()
        };
        let opened = Mlx5Nic::open(options, Arc::new(ProcessMemory::new()));
        let error = opened.err().expect("there is none").to_string();
        assert!(
            error.contains("install") || error.contains("modprobe mlx5_ib"),
            "{error}"
        );
    }
}
