//! A queue pair with a completion queue of its own, and where both lie.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::rdma_sys as sys;
use parking_lot::Mutex;

use super::domain::Domain;
use super::dv;
use super::made::{Made, Parts, Refusal, destroy_at_last};
use crate::wire::mlx5::{BLOCK_BYTES, CQE_BYTES, CQE_INVALID, QUEUE_BLOCKS_MAX};
use crate::{NicError, QueueAttributes, RingSpan};

/// Verbs objects, each until it is destroyed.
struct Objects {
    qp: Option<NonNull<sys::ibv_qp>>,
    cq: Option<NonNull<sys::ibv_cq>>,
}

pub(super) struct Pair {
    /// Dropped first.
    parts: Parts,
    objects: Mutex<Objects>,
    completion_start: AtomicU32,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread; calls on the objects are made under the lock.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    /// Makes one for `depth` requests in flight, in state reset.
    pub fn create(domain: &Arc<Domain>, depth: u32) -> Result<Self, NicError> {
        let mut entries = depth;
        loop {
            let objects = Objects { qp: None, cq: None };
            let mut pair = Pair {
                parts: Parts::default(),
                objects: Mutex::new(objects),
                completion_start: AtomicU32::new(0),
                domain: Arc::clone(domain),
            };
            // On an error `pair` is dropped, with what it has.
            pair.make(depth, entries)?;
            if pair.parts.completion.slots >= pair.parts.send.slots {
                return Ok(pair);
            }
            // The driver made the send ring longer than asked for: each of its slots needs a completion's.
            if entries >= pair.parts.send.slots {
                let sizes = format!(
                    "{} entries for a send ring of {} blocks",
                    pair.parts.completion.slots, pair.parts.send.slots
                );
                return Err(pair.odd("sizing the completion ring", sizes));
            }
            entries = pair.parts.send.slots;
        }
    }

    fn make(&mut self, depth: u32, entries: u32) -> Result<(), NicError> {
        let domain = &self.domain;
        // Drivers add one and round up to a power of two.
        let mut wanted = sys::ibv_cq_init_attr_ex {
            cqe: (entries - 1).max(1),
            cq_context: std::ptr::null_mut(),
            channel: std::ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: sys::IBV_CQ_INIT_ATTR_MASK_FLAGS | sys::IBV_CQ_INIT_ATTR_MASK_PD,
            // Nothing tells the NIC how far completions are read: slots are freed by their requests.
            flags: sys::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            parent_domain: domain.parent(),
        };
        // SAFETY: context and domain live.
        let cq = NonNull::new(unsafe { sys::ibv_create_cq_ex(domain.context(), &mut wanted) });
        let cq = cq.ok_or_else(|| {
            let doing = format!("creating a completion queue of {entries} entries");
            domain.failed_to_make(doing, "ibv_create_cq_ex", io::Error::last_os_error())
        })?;
        // An extended completion queue begins with a plain one.
        let cq = cq.cast::<sys::ibv_cq>();
        self.objects.lock().cq = Some(cq);

        // SAFETY: all zero bytes are a valid ibv_qp_init_attr_ex: integers and null pointers.
        let mut wanted: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        wanted.send_cq = cq.as_ptr();
        wanted.recv_cq = cq.as_ptr();
        wanted.cap.max_send_wr = depth;
        wanted.cap.max_send_sge = 1;
        wanted.qp_type = sys::IBV_QPT_RC;
        // Requests say themselves that they are signalled. Were it set, the driver would have small READs put their data
        // into the completion instead of its place.
        wanted.sq_sig_all = 0;
        wanted.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        wanted.pd = domain.parent();
        // Without others a request takes one block.
        wanted.send_ops_flags =
            sys::IBV_QP_EX_WITH_RDMA_READ | sys::IBV_QP_EX_WITH_RDMA_WRITE | sys::IBV_QP_EX_WITH_SEND;
        // SAFETY: context, domain and completion queue live, and are of one context.
        let qp = NonNull::new(unsafe { sys::ibv_create_qp_ex(domain.context(), &mut wanted) });
        let qp = qp.ok_or_else(|| {
            let doing = format!("creating a queue pair of {depth} requests");
            domain.failed_to_make(doing, "ibv_create_qp_ex", io::Error::last_os_error())
        })?;
        self.objects.lock().qp = Some(qp);
        // SAFETY: just made; the library does not change the number.
        self.parts.numbered(unsafe { qp.as_ref() }.qp_num);

        // SAFETY: both live and, like the device, are of mlx5.
        let (qp, cq) = unsafe { domain.dv.layout(qp.as_ptr(), cq.as_ptr()) }
            .map_err(|error| domain.failed("asking where its rings lie", "mlx5dv_init_obj", error))?;
        self.take_layout(&qp, &cq)
    }

    /// Notes where the rings are, if posters can use them.
    fn take_layout(&mut self, qp: &dv::Qp, cq: &dv::Cq) -> Result<(), NicError> {
        let address = |pointer: *mut libc::c_void| pointer.expose_provenance() as u64;
        let record = qp.dbrec.expose_provenance() as u64;
        self.parts.send = RingSpan {
            address: address(qp.sq.buf),
            slots: qp.sq.wqe_cnt,
            shift: BLOCK_BYTES.trailing_zeros(),
            start: 0,
        };
        self.parts.completion = RingSpan {
            address: address(cq.buf),
            slots: cq.cqe_cnt,
            shift: CQE_BYTES.trailing_zeros(),
            start: 0,
        };
        self.parts.record = record + 4;
        self.parts.register = address(qp.bf.reg);
        let sizes = [
            ("send ring", qp.sq.wqe_cnt, qp.sq.stride, BLOCK_BYTES as u32),
            ("completion ring", cq.cqe_cnt, cq.cqe_size, CQE_BYTES as u32),
        ];
        for (what, slots, bytes, expected) in sizes {
            if !slots.is_power_of_two() || bytes != expected {
                let found =
                    format!("its {slots} slots have {bytes} bytes each, expected a power of two of {expected} bytes");
                return Err(self.odd(&format!("using the {what}"), found));
            }
        }
        if qp.sq.wqe_cnt > QUEUE_BLOCKS_MAX {
            let found = format!("{} blocks, at most {QUEUE_BLOCKS_MAX} can be told apart", qp.sq.wqe_cnt);
            return Err(self.odd("using the send ring", found));
        }
        if let Some(found) = self.parts.odd_register() {
            return Err(self.odd("using the doorbell register", found));
        }
        let spans = [
            (
                "send ring",
                self.parts.send.address,
                u64::from(self.parts.send.slots) << self.parts.send.shift,
            ),
            (
                "completion ring",
                self.parts.completion.address,
                u64::from(self.parts.completion.slots) << self.parts.completion.shift,
            ),
            ("doorbell record", record, 8),
        ];
        for (what, start, bytes) in spans {
            if !self.domain.arena.holds(start, bytes) {
                let found = format!(
                    "the driver ignored the allocators of the parent domain: {bytes} bytes at {start:#x} are not within the \
                     GPU's reach"
                );
                return Err(self.odd(&format!("placing the {what}"), found));
            }
        }
        // What was never written holds 0xf0: opcode "invalid", owner of the first lap.
        let wrong = (0..self.parts.completion.slots).find(|slot| self.owner_byte(*slot) != CQE_INVALID);
        if let Some(slot) = wrong {
            let found = format!(
                "entry {slot} of a new ring ends in {:#04x}, expected 0xf0",
                self.owner_byte(slot)
            );
            return Err(self.odd("using the completion ring", found));
        }
        Ok(())
    }

    /// What the driver says cannot be used.
    fn odd(&self, doing: &str, found: String) -> NicError {
        let name = &self.domain.device.name;
        let hint = "install rdma-core 34 or later, and unset the MLX5_ variables of the environment";
        super::failure::failed_with(name, doing, "mlx5dv_init_obj", io::Error::other(found), hint)
    }

    /// The last byte of a completion ring's entry.
    fn owner_byte(&self, slot: u32) -> u8 {
        let place =
            self.parts.completion.address + (u64::from(slot) << self.parts.completion.shift) + CQE_BYTES as u64 - 1;
        // SAFETY: within the ring, which lives as long as the completion queue; all access to it is atomic.
        let byte = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(place as usize) };
        // Relaxed: no request is in flight.
        byte.load(Ordering::Relaxed)
    }

    /// Position of the next completion, with its lap's parity above the slot. Nothing may be in flight.
    ///
    /// The completion queue goes on where it is when its queue pair is reset, and the NIC's own index cannot be asked
    /// for. But each entry bears its lap's owner bit, so the ring shows how far it is written: the slots of the present
    /// lap come first and have one owner, the others have the lap's before, or were never written.
    fn find_position(&self) -> u32 {
        let slots = self.parts.completion.slots;
        let first = self.owner_byte(0);
        if first == CQE_INVALID {
            return 0;
        }
        let lap = u32::from(first & 1);
        let rest = (1..slots).find(|slot| {
            let byte = self.owner_byte(*slot);
            byte == CQE_INVALID || u32::from(byte & 1) != lap
        });
        match rest {
            Some(slot) => slot + lap * slots,
            // A whole lap: the next one begins.
            None => (1 - lap) * slots,
        }
    }

    /// Makes a call on the queue pair, which returns 0 or an errno.
    fn with(
        &self,
        call: &'static str,
        make: impl FnOnce(*mut sys::ibv_qp) -> libc::c_int,
    ) -> Result<Result<(), Refusal>, NicError> {
        let objects = self.objects.lock();
        let queue_pair = self.parts.number;
        let qp = objects.qp.ok_or(NicError::UnknownQueuePair { queue_pair })?;
        Ok(match make(qp.as_ptr()) {
            0 => Ok(()),
            error => Err(Refusal {
                call,
                source: io::Error::from_raw_os_error(error.abs()),
                said: String::new(),
            }),
        })
    }
}

impl Made for Pair {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn completion(&self) -> RingSpan {
        RingSpan {
            // Relaxed: changed by a reset alone, during which nothing posts.
            start: self.completion_start.load(Ordering::Relaxed),
            ..self.parts.completion
        }
    }

    fn collapsed(&self) -> bool {
        false
    }

    fn begin_anew(&self) -> Result<(), NicError> {
        // SAFETY: the record lives as long as the queue pair; all access to it is atomic. The library clears it as well.
        let record = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(self.parts.record as usize) };
        // Relaxed: nothing posts to a queue pair in reset.
        record.store(0, Ordering::Relaxed);
        self.completion_start.store(self.find_position(), Ordering::Relaxed);
        self.parts.begin_anew();
        Ok(())
    }

    fn modify(&self, attributes: &QueueAttributes) -> Result<Result<(), Refusal>, NicError> {
        let mut wanted = attributes.to_verbs();
        let mask = attributes.mask as libc::c_int;
        // SAFETY: the queue pair lives: its lock is held. The attributes are a local.
        self.with("ibv_modify_qp", |qp| unsafe {
            sys::ibv_modify_qp(qp, &mut wanted, mask)
        })
    }

    fn query(&self) -> Result<Result<u32, Refusal>, NicError> {
        // SAFETY: all zero bytes are valid for both, which hold integers and null pointers.
        let (mut found, mut made): (sys::ibv_qp_attr, sys::ibv_qp_init_attr) = unsafe { std::mem::zeroed() };
        let mask = QueueAttributes::STATE as libc::c_int;
        // SAFETY: the queue pair lives: its lock is held. What is filled are locals.
        let asked = self.with("ibv_query_qp", |qp| unsafe {
            sys::ibv_query_qp(qp, &mut found, mask, &mut made)
        })?;
        Ok(asked.map(|()| found.qp_state))
    }

    /// The queue pair, then its completion queue.
    fn destroy(&self) -> Result<(), NicError> {
        // No doorbell call comes after the queue pair is destroyed.
        drop(self.parts.proxy.lock().take());
        let mut objects = self.objects.lock();
        let number = self.parts.number;
        if let Some(qp) = objects.qp {
            // SAFETY: made by `make`, and taken out when it is destroyed.
            let result = unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
            if result != 0 {
                let source = io::Error::from_raw_os_error(result.abs());
                let doing = format!("destroying queue pair {number:#x}");
                return Err(self.domain.failed(doing, "ibv_destroy_qp", source));
            }
            objects.qp = None;
        }
        if let Some(cq) = objects.cq {
            // SAFETY: made by `make`, its only queue pair is gone, and it is taken out when it is destroyed.
            let result = unsafe { sys::ibv_destroy_cq(cq.as_ptr()) };
            if result != 0 {
                let source = io::Error::from_raw_os_error(result.abs());
                let doing = format!("destroying the completion queue of queue pair {number:#x}");
                return Err(self.domain.failed(doing, "ibv_destroy_cq", source));
            }
            objects.cq = None;
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        destroy_at_last(self);
    }
}
