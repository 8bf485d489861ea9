//! Completion queues and queue pairs.

use std::ffi::c_int;
use std::mem::zeroed;

use gpuvm_nic::mlx5::dv;
use gpuvm_nic::rdma_sys as sys;
use gpuvm_nic::{Nic, QueueAttributes, QueueMemory, QueuePairState, QueueRings};

use super::memory::errno_of;
use super::port::{DEPTH_MAX, ENTRIES_MAX, LID, MTU, READS_MAX, gids};
use crate::config::config;
use crate::control::{breach, enter};
use crate::objects::{self, Allocators, Chunk, CompletionQueue, Kind, QueuePair, find, objects};
use crate::{Outcome, pointer, status};

/// Alignment that libmlx5 asks for rings.
const RING_ALIGNMENT: usize = 4096;
/// Bytes, and alignment, of a doorbell record.
const RECORD_BYTES: usize = 8;
/// What a completion that was never written ends in.
const INVALID: u8 = 0xf0;
/// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 2;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
const CQ_MASK: u32 = 3;
/// `IBV_QP_INIT_ATTR_PD`.
const QP_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const QP_SEND_OPS: u32 = 1 << 6;
/// `IBV_ACCESS_REMOTE_ATOMIC`.
const REMOTE_ATOMIC: u32 = 8;
/// Blocks of a request that may be of any kind.
const ANY_REQUEST_BLOCKS: u32 = 3;

/// The allocators of a parent domain that a call names.
fn allocators_of(call: &str, domain: *mut sys::ibv_pd) -> Outcome<Option<Allocators>> {
    let mut objects = objects();
    match find(&mut objects, call, domain.addr())?.kind {
        Kind::ParentDomain(allocators) if !config().ignore_allocators => Ok(allocators),
        Kind::ParentDomain(_) => Ok(None),
        // libmlx5 takes only parent domains here.
        _ => Err(libc::EINVAL),
    }
}

/// `create_cq_ex` of a context.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    wanted: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    pointer(|| {
        enter("ibv_create_cq_ex")?;
        objects::nic_of(&objects(), context.addr())?;
        // SAFETY: the caller gives attributes.
        let wanted = unsafe { &*wanted };
        if wanted.comp_mask & !CQ_MASK != 0 || wanted.cqe == 0 || wanted.cqe > ENTRIES_MAX {
            return Err(libc::EINVAL);
        }
        if wanted.comp_mask & 1 == 0 || wanted.flags != IGNORE_OVERRUN {
            breach("a completion queue that minds overrun: its readers tell no index".to_owned());
        }
        let allocators = match wanted.comp_mask & 2 {
            0 => None,
            _ => allocators_of("ibv_create_cq_ex", wanted.parent_domain)?,
        };
        let entries = (wanted.cqe + 1).next_power_of_two();
        let bytes = (entries * config().entry_bytes) as usize;
        let ring = Chunk::new(allocators, bytes, RING_ALIGNMENT, dv::RESOURCE_CQ)?;
        let record = Chunk::new(allocators, RECORD_BYTES, RECORD_BYTES, dv::RESOURCE_DBR)?;
        let first = std::ptr::with_exposed_provenance_mut::<u8>(ring.address() as usize);
        for slot in 0..entries as usize {
            // SAFETY: within the ring, which nothing else knows yet.
            unsafe { first.add(slot * 64 + 63).write(INVALID) };
        }
        // SAFETY: all zero bytes are a valid ibv_cq_ex: null pointers and numbers.
        let mut made: Box<sys::ibv_cq_ex> = Box::new(unsafe { zeroed() });
        made.cq.context = context;
        made.cq.cqe = entries as c_int - 1;
        let made = Box::into_raw(made);
        let kind = Kind::CompletionQueue(CompletionQueue { ring, record, entries });
        let mut needs = vec![context.addr()];
        if wanted.comp_mask & 2 != 0 {
            needs.push(wanted.parent_domain.addr());
        }
        objects::add(made.addr(), kind, context.addr(), &needs);
        Ok(made)
    })
}

/// `ibv_destroy_cq`.
///
/// # Safety
/// `cq` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    status(|| {
        enter("ibv_destroy_cq")?;
        let object = objects::remove("ibv_destroy_cq", cq.addr())?;
        drop(object);
        // SAFETY: it was among the objects, so `create_cq_ex` made it, and it is freed once.
        drop(unsafe { Box::from_raw(cq.cast::<sys::ibv_cq_ex>()) });
        Ok(())
    })
}

/// Entries and addresses of the ring and the record of a completion queue, which no queue pair has yet.
fn free_completion_queue(address: usize) -> Outcome<(u32, u64, u64)> {
    let mut objects = objects();
    let cq = find(&mut objects, "ibv_create_qp_ex", address)?;
    let Kind::CompletionQueue(cq) = &cq.kind else {
        return Err(libc::EINVAL);
    };
    let found = (cq.entries, cq.ring.address(), cq.record.address());
    // One queue pair for each completion queue: more than that the software NIC does not do.
    let is_taken = objects
        .values()
        .any(|object| matches!(object.kind, Kind::QueuePair(_)) && object.needs.contains(&address));
    match is_taken {
        true => Err(libc::EOPNOTSUPP),
        false => Ok(found),
    }
}

/// The structure that the caller gets, which `ibv_destroy_qp` frees.
fn queue_pair_of(context: *mut sys::ibv_context, wanted: &sys::ibv_qp_init_attr_ex, number: u32) -> *mut sys::ibv_qp {
    // SAFETY: all zero bytes are a valid ibv_qp: null pointers and numbers.
    let mut made: Box<sys::ibv_qp> = Box::new(unsafe { zeroed() });
    made.context = context;
    made.pd = wanted.pd;
    made.send_cq = wanted.send_cq;
    made.recv_cq = wanted.recv_cq;
    made.qp_num = number;
    made.qp_type = wanted.qp_type;
    Box::into_raw(made)
}

/// `create_qp_ex` of a context.
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut sys::ibv_context,
    wanted: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    pointer(|| {
        enter("ibv_create_qp_ex")?;
        let nic = objects::nic_of(&objects(), context.addr())?;
        // SAFETY: the caller gives attributes.
        let wanted = unsafe { &*wanted };
        let depth = wanted.cap.max_send_wr;
        if wanted.comp_mask & !(QP_PD | QP_SEND_OPS) != 0
            || wanted.comp_mask & QP_PD == 0
            || wanted.qp_type != sys::IBV_QPT_RC
            || !(1..=DEPTH_MAX).contains(&depth)
        {
            return Err(libc::EINVAL);
        }
        if wanted.sq_sig_all != 0 {
            breach("a queue pair with sq_sig_all: small READs end in the completion".to_owned());
        }
        let (entries, cq, cq_record) = free_completion_queue(wanted.send_cq.addr())?;
        let allocators = allocators_of("ibv_create_qp_ex", wanted.pd)?;
        let of_any_kind = wanted.comp_mask & QP_SEND_OPS == 0;
        let each = if of_any_kind {
            ANY_REQUEST_BLOCKS
        } else {
            config().request_blocks
        };
        let blocks = (depth * each).next_power_of_two();
        let ring = Chunk::new(allocators, blocks as usize * 64, RING_ALIGNMENT, dv::RESOURCE_QP)?;
        let record = Chunk::new(allocators, RECORD_BYTES, RECORD_BYTES, dv::RESOURCE_DBR)?;
        let memory = QueueMemory {
            sq: ring.address(),
            sq_entries: blocks,
            cq,
            cq_entries: entries,
            dbrec: record.address(),
            cq_dbrec: cq_record,
            collapsed: false,
        };
        // SAFETY: the chunks live as long as the queue pair, the completion queue's too: it cannot be destroyed before.
        let pair = unsafe { nic.create_queue_pair(QueueRings::Given(memory)) }.map_err(|error| errno_of(&error))?;
        let made = queue_pair_of(context, wanted, pair.number);
        let kind = Kind::QueuePair(QueuePair {
            ring,
            record,
            blocks,
            register: pair.doorbell,
            number: pair.number,
            state: QueueAttributes::RESET,
            destination: 0,
        });
        let needs = [context.addr(), wanted.pd.addr(), wanted.send_cq.addr()];
        objects::add(made.addr(), kind, context.addr(), &needs);
        Ok(made)
    })
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// `qp` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    status(|| {
        enter("ibv_destroy_qp")?;
        let object = objects::remove("ibv_destroy_qp", qp.addr())?;
        let Kind::QueuePair(pair) = &object.kind else {
            return Err(libc::EINVAL);
        };
        let nic = objects::nic_of(&objects(), object.context)?;
        nic.destroy_queue_pair(pair.number).map_err(|error| errno_of(&error))?;
        // Only now: the NIC does not touch its memory any more.
        drop(object);
        // SAFETY: it was among the objects, so `create_qp_ex` made it, and it is freed once.
        drop(unsafe { Box::from_raw(qp) });
        Ok(())
    })
}

/// What a change to a state needs, or that there is no such change.
fn needed(from: u32, to: u32) -> Outcome<u32> {
    type A = QueueAttributes;
    match (from, to) {
        (_, A::RESET | A::ERROR) => Ok(A::STATE),
        (A::RESET, A::INIT) => Ok(A::STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS),
        (A::INIT, A::READY_TO_RECEIVE) => Ok(A::STATE
            | A::ADDRESS
            | A::PATH_MTU
            | A::DEST_QP_NUM
            | A::RQ_PSN
            | A::MAX_DEST_RD_ATOMIC
            | A::MIN_RNR_TIMER),
        (A::READY_TO_RECEIVE, A::READY_TO_SEND) => {
            Ok(A::STATE | A::TIMEOUT | A::RETRY_COUNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_RD_ATOMIC)
        }
        _ => Err(libc::EINVAL),
    }
}

/// Whether a path leads back to this port, the only place that can be reached.
fn check_path(wanted: &sys::ibv_qp_attr) -> Outcome<()> {
    let path = &wanted.ah_attr;
    let gids = gids();
    if wanted.path_mtu == 0 || wanted.path_mtu > MTU || path.port_num != 1 || wanted.max_dest_rd_atomic > READS_MAX {
        return Err(libc::EINVAL);
    }
    if path.is_global == 0 {
        // InfiniBand alone goes by LIDs.
        return match config().infiniband {
            true if path.dlid == LID => Ok(()),
            true => Err(libc::ETIMEDOUT),
            false => Err(libc::EINVAL),
        };
    }
    if usize::from(path.grh.sgid_index) >= gids.len() {
        return Err(libc::EINVAL);
    }
    let to = path.grh.dgid.raw;
    match gids.iter().any(|(gid, _)| *gid == to) {
        true => Ok(()),
        false => Err(libc::ETIMEDOUT),
    }
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` was made by this library; `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, wanted: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        enter("ibv_modify_qp")?;
        // SAFETY: the caller's promise.
        let (wanted, mask) = (unsafe { &*wanted }, mask as u32);
        let mut objects = objects();
        let object = find(&mut objects, "ibv_modify_qp", qp.addr())?;
        let context = object.context;
        let nic = objects::nic_of(&objects, context)?;
        let Kind::QueuePair(pair) = &mut find(&mut objects, "ibv_modify_qp", qp.addr())?.kind else {
            return Err(libc::EINVAL);
        };
        let to = wanted.qp_state;
        let needed = needed(pair.state, to)?;
        if mask & needed != needed {
            return Err(libc::EINVAL);
        }
        let done = match to {
            QueueAttributes::READY_TO_RECEIVE => {
                check_path(wanted)?;
                pair.destination = wanted.dest_qp_num;
                Ok(())
            }
            // A device without atomics, as mlx5_ib treats it.
            QueueAttributes::INIT if wanted.qp_access_flags & REMOTE_ATOMIC != 0 => return Err(libc::EOPNOTSUPP),
            QueueAttributes::READY_TO_SEND if wanted.max_rd_atomic > READS_MAX => return Err(libc::EINVAL),
            QueueAttributes::READY_TO_SEND => nic.connect(pair.number, pair.destination),
            QueueAttributes::RESET => nic.reset(pair.number),
            QueueAttributes::ERROR => nic.fail(pair.number),
            _ => Ok(()),
        };
        done.map_err(|error| errno_of(&error))?;
        pair.state = to;
        Ok(())
    })
}

/// `ibv_query_qp`.
///
/// # Safety
/// `qp` was made by this library; `out` and `made` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::ibv_qp,
    out: *mut sys::ibv_qp_attr,
    _mask: c_int,
    made: *mut sys::ibv_qp_init_attr,
) -> c_int {
    status(|| {
        enter("ibv_query_qp")?;
        let mut objects = objects();
        let context = find(&mut objects, "ibv_query_qp", qp.addr())?.context;
        let nic = objects::nic_of(&objects, context)?;
        let Kind::QueuePair(pair) = &mut find(&mut objects, "ibv_query_qp", qp.addr())?.kind else {
            return Err(libc::EINVAL);
        };
        // A request that failed took it there.
        if nic.state(pair.number).is_ok_and(|state| state == QueuePairState::Error) {
            pair.state = QueueAttributes::ERROR;
        }
        // SAFETY: the caller's promise; all zero bytes are valid for both: null pointers and numbers.
        unsafe {
            out.write(zeroed());
            (*out).qp_state = pair.state;
            made.write(zeroed());
        }
        Ok(())
    })
}
