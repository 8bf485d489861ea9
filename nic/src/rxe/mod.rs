//! Linux SoftRoCE (`rdma_rxe`): queue pairs whose rings the kernel shares with this process.
//!
//! A GPU thread writes its request into the send ring, stores the producer index, and reads the completion from the
//! completion ring in place (formats: [`crate::wire::rxe`]). Only the doorbell is a system call, which the device's
//! [`DoorbellProxy`] makes. The kernel's uverbs interface is used directly, since no library hands the rings out.
//!
//! Tested on Linux 6.1 under emulation; see docs/SOFTROCE.md. The driver trusts what stands in a send ring more than
//! a real NIC would: a wild store of a kernel into it may harm the machine.

mod device;
mod ring;
mod uverbs;

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use device::DeviceInfo;
use parking_lot::Mutex;
use ring::Ring;
use uverbs::Uverbs;

use crate::attributes::{Peer, Repeats, psn};
use crate::devices::Machine;
use crate::nic::check_span;
use crate::{
    Access, AddressAttributes, Backing, DoorbellProxy, MemoryKey, Nic, NicCapabilities, NicError, ProxySlot,
    QueueAttributes, QueueFormat, QueuePair, QueuePairState, QueueRings, Wake,
};

/// Bytes of a request with one segment.
const REQUEST_BYTES: u32 = 224;
/// Bytes of a completion.
const COMPLETION_BYTES: u32 = 48;
/// Most requests in flight: the completion ring has two slots for each, and the driver allows 32,768.
const DEPTH_MAX: u32 = 1 << 14;
/// Longest wait for the driver to drop the requests of a queue pair in the error state.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// READs and atomics that the driver keeps in flight for one queue pair.
const READS_MAX: u32 = 128;
/// A SoftRoCE device has one port.
const PORT: u8 = 1;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// How a SoftRoCE device is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RxeOptions {
    /// The device, such as `rxe0`. Default: the first SoftRoCE device.
    pub device: Option<String>,
    /// How long an answer may take before the request is sent again: 4.096 us doubled this many times, 1 to 31.
    /// Default: 14 (67 ms).
    pub ack_timeout: u8,
    /// How often it is sent again, 0 to 6; 7 is for ever. Default: 6.
    pub retry_count: u8,
}

impl Default for RxeOptions {
    fn default() -> Self {
        Self {
            device: None,
            ack_timeout: 14,
            retry_count: 6,
        }
    }
}

/// A SoftRoCE device, opened by this process.
pub struct RxeNic {
    // Dropped first: its thread makes calls on the device.
    proxy: DoorbellProxy,
    pairs: Mutex<HashMap<u32, Arc<Pair>>>,
    regions: Mutex<HashMap<MemoryKey, u32>>,
    protection_domain: u32,
    limits: uverbs::DeviceLimits,
    uverbs: Arc<Uverbs>,
    info: DeviceInfo,
    options: RxeOptions,
}

struct Pair {
    slot: ProxySlot,
    handle: u32,
    number: u32,
    completion_queue: u32,
    send: Ring,
    completion: Ring,
    /// First packet sequence number of the requests that it sends; a new one after each reset.
    first_psn: AtomicU32,
}

/// Names of the SoftRoCE devices of this machine.
pub fn devices() -> Vec<String> {
    device::rxe_devices(&Machine::default())
}

impl RxeNic {
    /// Opens a device.
    ///
    /// # Errors
    /// [`NicError::NoDevice`] with what is missing; [`NicError::System`]; a timeout or retry count out of range.
    pub fn open(options: RxeOptions) -> Result<Self, NicError> {
        if options.retry_count > 7 || !(1..=31).contains(&options.ack_timeout) {
            return Err(NicError::BadArgument {
                what: "ack timeout or retry count",
                value: u64::from(options.ack_timeout) << 8 | u64::from(options.retry_count),
                expected: "a timeout code of 1 to 31 and at most 7 retries",
            });
        }
        let info = DeviceInfo::find(&Machine::default(), options.device.as_deref())?;
        let failed = |doing: &str, source: io::Error| NicError::System {
            device: info.name.clone(),
            doing: doing.to_owned(),
            hint: match source.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "run as root, or give this user rights on /dev/infiniband",
                _ => "",
            }
            .into(),
            source,
        };
        let uverbs = Uverbs::open(&info.node).map_err(|error| failed("opening the device", error))?;
        let protection_domain = uverbs
            .alloc_pd()
            .map_err(|error| failed("allocating a protection domain", error))?;
        let limits = uverbs.limits().map_err(|error| failed("querying the device", error))?;
        Ok(Self {
            proxy: DoorbellProxy::start(&format!("doorbell-{}", info.name), Wake::ByCall)?,
            pairs: Mutex::default(),
            regions: Mutex::default(),
            protection_domain,
            limits,
            uverbs: Arc::new(uverbs),
            info,
            options,
        })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.info.name
    }

    fn failed(&self, doing: String, source: io::Error) -> NicError {
        NicError::System {
            device: self.info.name.clone(),
            doing,
            hint: match source.raw_os_error() {
                Some(libc::ENOMEM) => {
                    "too little memory, or more pinned than the limit allows: raise it with `ulimit -l unlimited`"
                }
                Some(libc::EPERM | libc::EACCES) => "not permitted: run as root, or raise `ulimit -l`",
                Some(libc::EFAULT) => "the memory is not mapped, or is a file that cannot be pinned",
                _ => "",
            }
            .into(),
            source,
        }
    }

    fn find(&self, number: u32) -> Result<Arc<Pair>, NicError> {
        self.pairs
            .lock()
            .get(&number)
            .cloned()
            .ok_or(NicError::UnknownQueuePair { queue_pair: number })
    }

    fn create(&self, depth: u32) -> Result<Arc<Pair>, NicError> {
        let uverbs = &self.uverbs;
        let cq = uverbs
            .create_cq(2 * depth - 1)
            .map_err(|error| self.failed(format!("creating a completion queue of {}", 2 * depth - 1), error))?;
        let made = self.create_on(depth, cq);
        if made.is_err()
            && let Err(error) = uverbs.destroy_cq(cq.handle)
        {
            tracing::warn!(%error, "a completion queue is left on {}", self.info.name);
        }
        made
    }

    fn create_on(&self, depth: u32, cq: uverbs::CqResponse) -> Result<Arc<Pair>, NicError> {
        let uverbs = &self.uverbs;
        let qp = uverbs
            .create_qp(self.protection_domain, cq.handle, depth)
            .map_err(|error| self.failed(format!("creating a queue pair of {depth} requests"), error))?;
        let made = self.map_rings(depth, cq, qp);
        if made.is_err()
            && let Err(error) = uverbs.destroy_qp(qp.handle)
        {
            tracing::warn!(%error, "a queue pair is left on {}", self.info.name);
        }
        made
    }

    fn map_rings(&self, depth: u32, cq: uverbs::CqResponse, qp: uverbs::QpResponse) -> Result<Arc<Pair>, NicError> {
        let file = self.uverbs.file();
        let completion = Ring::map(file, cq.ring, COMPLETION_BYTES)
            .map_err(|error| self.failed("mapping a completion ring".into(), error))?;
        let send = Ring::map(file, qp.send_ring, REQUEST_BYTES)
            .map_err(|error| self.failed("mapping a send ring".into(), error))?;
        if send.slots() <= depth || completion.slots() < 2 * depth {
            let sizes = format!("{} and {} slots for {depth} requests", send.slots(), completion.slots());
            return Err(self.failed("sizing the rings".into(), io::Error::other(sizes)));
        }
        let (doorbell, handle) = (Arc::clone(&self.uverbs), qp.handle);
        Ok(Arc::new(Pair {
            slot: self.proxy.serve(move |_| doorbell.post_send(handle))?,
            handle,
            number: qp.number,
            completion_queue: cq.handle,
            send,
            completion,
            first_psn: AtomicU32::new(psn(qp.number)),
        }))
    }

    /// Takes a queue pair with requests to the error state, and the driver's requester past them: nothing of them is under way
    /// when the reset comes. By its source, `rxe_qp_reset` of Linux 6.1 takes the requester to the end of the ring by itself,
    /// and no test has needed this; see docs/SOFTROCE.md.
    fn leave_nothing_unsent(&self, pair: &Pair) -> Result<(), NicError> {
        let waiting = || {
            // Acquire: the driver's last store, and what lanes published last.
            let (producer, consumer) = (pair.send.producer(), pair.send.consumer());
            let distance = producer
                .load(Ordering::Acquire)
                .wrapping_sub(consumer.load(Ordering::Acquire));
            distance & (pair.send.slots() - 1)
        };
        let left = match self.state(pair.number)? {
            // They are dropped already; how many the requester had not come to is not known.
            QueuePairState::Error => pair.send.slots() - 1,
            _ => waiting(),
        };
        if left == 0 {
            return Ok(());
        }
        self.change(pair, &QueueAttributes::to_state(QueueAttributes::ERROR))?;
        // The driver drops them by itself, perhaps after what it is at.
        let begun = Instant::now();
        while waiting() > 0 && begun.elapsed() < DROP_WAIT {
            std::thread::sleep(Duration::from_micros(50));
        }
        // In that state a call takes the requester on by one request, if there is one.
        (0..left).try_for_each(|_| {
            let rung = self.uverbs.post_send(pair.handle);
            rung.map_err(|error| self.failed(format!("flushing queue pair {:#x}", pair.number), error))
        })
    }

    fn describe(&self, pair: &Pair) -> QueuePair {
        QueuePair {
            number: pair.number,
            format: QueueFormat::Rxe,
            doorbell: pair.slot.address(),
            doorbell_record: pair.send.producer_address(),
            send: pair.send.span(),
            completion: pair.completion.span(),
            collapsed: false,
            completion_produced: pair.completion.producer_address(),
            completion_consumed: pair.completion.consumer_address(),
        }
    }

    fn change(&self, pair: &Pair, attributes: &QueueAttributes) -> Result<(), NicError> {
        self.uverbs.modify_qp(pair.handle, attributes).map_err(|error| {
            let number = pair.number;
            self.failed(
                format!("taking queue pair {number:#x} to state {}", attributes.state),
                error,
            )
        })
    }
}

impl Nic for RxeNic {
    fn capabilities(&self) -> NicCapabilities {
        NicCapabilities {
            name: self.info.name.clone(),
            max_rd_atomic: self.limits.max_qp_rd_atom.min(READS_MAX),
            sq_entries_max: DEPTH_MAX.min(self.limits.max_qp_wr),
            cq_entries_max: self.limits.max_cqe,
            queue_pairs_max: self.limits.max_qp,
            memory_regions_max: self.limits.max_mr,
            message_bytes_max: 1 << 31,
            needs_doorbell_call: true,
            link_bits_per_second: None,
            makes_rings: true,
            has_mover: false,
            on_gpu: false,
        }
    }

    unsafe fn register(&self, addr: u64, bytes: u64, access: Access) -> Result<MemoryKey, NicError> {
        check_span(addr, bytes, access)?;
        // SAFETY: the caller's promise.
        let made = unsafe { self.uverbs.reg_mr(self.protection_domain, addr, bytes, access.bits()) };
        let region = made.map_err(|error| self.failed(format!("registering {bytes} bytes"), error))?;
        let key = MemoryKey {
            lkey: region.lkey,
            rkey: region.rkey,
        };
        self.regions.lock().insert(key, region.handle);
        Ok(key)
    }

    fn register_dma_buf(&self, _: BorrowedFd<'_>, _: u64, _: u64, _: u64, _: Access) -> Result<MemoryKey, NicError> {
        Err(NicError::Unsupported {
            nic: "SoftRoCE",
            what: "register a dma-buf: its driver reaches memory of the host alone",
        })
    }

    fn use_doorbell_proxy(&self, qp: u32) -> Result<QueuePair, NicError> {
        let _ = qp;
        Err(NicError::Unsupported {
            nic: "SoftRoCE",
            what: "be given a doorbell proxy: it has one already",
        })
    }

    fn register_backed(&self, _: u64, _: u64, _: Access, _: Arc<dyn Backing>) -> Result<MemoryKey, NicError> {
        Err(NicError::Unsupported {
            nic: "SoftRoCE",
            what: "serve addresses that are no memory: files are the software NIC's",
        })
    }

    fn deregister(&self, key: MemoryKey) -> Result<(), NicError> {
        let mut regions = self.regions.lock();
        let handle = *regions.get(&key).ok_or(NicError::UnknownKey { key })?;
        self.uverbs
            .dereg_mr(handle)
            .map_err(|error| self.failed(format!("deregistering memory with lkey {:#x}", key.lkey), error))?;
        regions.remove(&key);
        Ok(())
    }

    unsafe fn create_queue_pair(&self, rings: QueueRings) -> Result<QueuePair, NicError> {
        let QueueRings::Own { depth } = rings else {
            return Err(NicError::Unsupported {
                nic: "SoftRoCE",
                what: "use rings that the caller made",
            });
        };
        if !depth.is_power_of_two() || depth > DEPTH_MAX {
            return Err(NicError::BadArgument {
                what: "queue depth",
                value: u64::from(depth),
                expected: "a power of two up to 16384",
            });
        }
        let pair = self.create(depth)?;
        let described = self.describe(&pair);
        self.pairs.lock().insert(pair.number, pair);
        Ok(described)
    }

    fn queue_pair(&self, qp: u32) -> Result<QueuePair, NicError> {
        Ok(self.describe(&*self.find(qp)?))
    }

    fn connect(&self, qp: u32, remote: u32) -> Result<(), NicError> {
        let (pair, responder) = (self.find(qp)?, self.find(remote)?);
        let outstanding = self.capabilities().max_rd_atomic as u8;
        let peer = Peer {
            number: remote,
            // Relaxed: a number; connections are made one after the other by their owner.
            first_psn: responder.first_psn.load(Ordering::Relaxed),
            mtu: self.info.mtu.into(),
            address: AddressAttributes {
                dgid: self.info.gid,
                sgid_index: self.info.gid_index,
                hop_limit: HOP_LIMIT,
                is_global: true,
                port: PORT,
                ..Default::default()
            },
        };
        let repeats = Repeats {
            ack_timeout: self.options.ack_timeout,
            count: self.options.retry_count,
        };
        // Relaxed: as above.
        let first_psn = pair.first_psn.load(Ordering::Relaxed);
        for step in QueueAttributes::to_connected(&peer, Access::ALL.bits(), first_psn, outstanding, repeats) {
            self.change(&pair, &step)?;
        }
        Ok(())
    }

    fn modify(&self, qp: u32, attributes: &QueueAttributes) -> Result<(), NicError> {
        self.change(&*self.find(qp)?, attributes)
    }

    fn fail(&self, qp: u32) -> Result<(), NicError> {
        let pair = self.find(qp)?;
        self.change(&pair, &QueueAttributes::to_state(QueueAttributes::ERROR))?;
        // The driver looks at the send ring when it is rung.
        self.uverbs
            .post_send(pair.handle)
            .map_err(|error| self.failed(format!("flushing queue pair {qp:#x}"), error))
    }

    fn doorbell_calls(&self) -> u64 {
        self.proxy.calls()
    }

    fn state(&self, qp: u32) -> Result<QueuePairState, NicError> {
        let pair = self.find(qp)?;
        let found = self
            .uverbs
            .query_qp_state(pair.handle)
            .map_err(|error| self.failed(format!("querying queue pair {qp:#x}"), error))?;
        Ok(QueueAttributes::state_of(found.into()))
    }

    fn reset(&self, qp: u32) -> Result<(), NicError> {
        let pair = self.find(qp)?;
        // No call of the proxy that was due comes between.
        pair.slot.reset();
        self.leave_nothing_unsent(&pair)?;
        self.change(&pair, &QueueAttributes::to_state(QueueAttributes::RESET))?;
        // The driver keeps its indexes. What was posted and not executed is taken back, and unread completions are
        // dropped: both rings are empty where the driver stands.
        // Acquire: the driver's last stores; release: nothing, it does not look before the next doorbell.
        pair.send
            .producer()
            .store(pair.send.consumer().load(Ordering::Acquire), Ordering::Release);
        pair.completion
            .consumer()
            .store(pair.completion.producer().load(Ordering::Acquire), Ordering::Release);
        // Once more: a lane that was late may have rung since, and the same index would be no new one later.
        pair.slot.reset();
        // Relaxed: see `connect`.
        let next = psn(pair.first_psn.load(Ordering::Relaxed).wrapping_add(qp));
        pair.first_psn.store(next, Ordering::Relaxed);
        Ok(())
    }

    fn destroy_queue_pair(&self, qp: u32) -> Result<(), NicError> {
        let pair = self.find(qp)?;
        // No doorbell call comes after the queue pair is destroyed.
        pair.slot.end();
        self.uverbs
            .destroy_qp(pair.handle)
            .map_err(|error| self.failed(format!("destroying queue pair {qp:#x}"), error))?;
        self.pairs.lock().remove(&qp);
        if let Err(error) = self.uverbs.destroy_cq(pair.completion_queue) {
            // The queue pair is gone, which is what the caller's memory depends on.
            tracing::warn!(%error, "a completion queue is left on {}", self.info.name);
        }
        Ok(())
    }

    fn doorbell_pages(&self) -> Vec<(u64, u64)> {
        vec![self.proxy.pages()]
    }

    #[inline]
    fn doorbell_written(&self, addr: u64) {
        let (first, bytes) = self.proxy.pages();
        if addr.wrapping_sub(first) < bytes {
            self.proxy.rung();
        }
    }

    fn advance_to(&self, _now_ns: u64) {
        // The driver's clock is the kernel's.
    }

    fn step(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        for (ack_timeout, retry_count) in [(0, 6), (32, 6), (14, 8)] {
            let options = RxeOptions {
                device: None,
                ack_timeout,
                retry_count,
            };
            assert!(matches!(RxeNic::open(options), Err(NicError::BadArgument { .. })));
        }
    }

    #[test]
    fn a_machine_without_the_device_says_what_to_do() {
        let options = RxeOptions {
            device: Some("no-such-rxe".into()),
            ..Default::default()
        };
        let error = RxeNic::open(options).err().expect("there is none").to_string();
        assert!(error.contains("modprobe rdma_rxe"), "{error}");
    }

    #[test]
    fn sequence_numbers_have_24_bits_and_differ() {
        assert!((0..1000).all(|of| psn(of) < 1 << 24 && psn(of) != psn(of + 1)));
    }
}
