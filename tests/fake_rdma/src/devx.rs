//! The functions of libmlx5 that pass commands to the firmware, and a firmware that executes them.
//!
//! A command must be one that [`gpuvm_nic::mlx5::prm`] builds, bit for bit, and every number in it one that was given out.
//! Queues lie in registered memory, completion queues are collapsed, and a thread for each queue pair carries what is
//! stored to its page of registers to the software NIC.

mod address;
pub mod made;
mod memory;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gpuvm_nic::mlx5::dv;
use gpuvm_nic::mlx5::prm::{Answer, Command, CreateCompletionQueue, CreateQueuePair, Link, Place, ToReadyToReceive};
use gpuvm_nic::rdma_sys as sys;
use gpuvm_nic::{Nic, QueueAttributes, QueueMemory, QueuePairState, QueueRings, SoftNic};

use self::made::{CompletionQueue, QueuePair, next_number};
use crate::config::config;
use crate::control::{breach, enter};
use crate::objects::{self, Kind, find, objects};
use crate::verbs::{LID, MTU, READS_MAX, errno_of, gids, is_mlx5, open_device};
use crate::{Outcome, pointer, status};

/// What an address resolves to.
pub(crate) const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Source port of its packets.
pub(crate) const UDP_SOURCE: u16 = 0xc123;
/// Number of every protection domain.
pub(crate) const DOMAIN: u32 = 0x2a;
/// Number of the event queue.
const EVENT_QUEUE: u32 = 5;
/// "Bad parameter", "bad resource", "bad resource state".
const BAD_PARAMETER: u8 = 0x03;
const BAD_RESOURCE: u8 = 0x05;
const BAD_STATE: u8 = 0x09;

/// # Safety
/// `address` is 8-aligned and valid as long as the result is used.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { &*std::ptr::with_exposed_provenance(address as usize) }
}

/// `mlx5dv_open_device`.
///
/// # Safety
/// `device` is of a device list, `wanted` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_open_device(
    device: *mut sys::ibv_device,
    wanted: *mut dv::ContextAttr,
) -> *mut sys::ibv_context {
    pointer(|| {
        enter("mlx5dv_open_device")?;
        // SAFETY: the caller's promise.
        let wanted = unsafe { *wanted };
        if !is_mlx5(device) || wanted.comp_mask != 0 || wanted.flags != dv::CONTEXT_DEVX {
            return Err(libc::EINVAL);
        }
        open_device(device)
    })
}

/// `mlx5dv_devx_query_eqn`.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_query_eqn(context: *mut sys::ibv_context, vector: u32, out: *mut u32) -> c_int {
    status(|| {
        enter("mlx5dv_devx_query_eqn")?;
        objects::nic_of(&objects(), context.addr())?;
        if vector != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { *out = EVENT_QUEUE };
        Ok(())
    })
}

/// What the firmware refuses: its status.
type Firmware<T> = Result<T, u8>;

/// The object of a kind with a number, for a command of a context.
fn numbered<T>(context: usize, of: impl Fn(&Kind) -> Option<T>) -> Firmware<(usize, T)> {
    let objects = objects();
    let mut found = objects.iter().filter(|(_, object)| object.context == context);
    found
        .find_map(|(address, object)| Some((*address, of(&object.kind)?)))
        .ok_or(BAD_RESOURCE)
}

/// The memory of a place, and the registration.
fn memory(context: usize, place: Place, bytes: u64, alignment: u64) -> Firmware<(usize, u64)> {
    let (umem, (base, length)) = numbered(context, |kind| match kind {
        Kind::Umem(umem) if umem.number == place.umem => Some((umem.base, umem.bytes)),
        _ => None,
    })?;
    let fits = place.offset.checked_add(bytes).is_some_and(|end| end <= length);
    match fits && place.offset.is_multiple_of(alignment) {
        true => Ok((umem, base + place.offset)),
        false => Err(BAD_PARAMETER),
    }
}

fn registers(context: usize, number: u32) -> Firmware<(usize, u64)> {
    numbered(context, |kind| match kind {
        Kind::Registers(page) if page.number == number => Some(page.page.address() + 0x800),
        _ => None,
    })
}

/// What was made: its kind, number, and what it needs.
type Created = (Kind, u32, Vec<usize>);

fn create_completion_queue(context: usize, wanted: &CreateCompletionQueue) -> Firmware<Created> {
    if wanted.event_queue != EVENT_QUEUE {
        return Err(BAD_RESOURCE);
    }
    let (page, _) = registers(context, wanted.uar_page)?;
    let entries = 1u32.checked_shl(wanted.log_entries.into()).ok_or(BAD_PARAMETER)?;
    let (ring_memory, ring) = memory(context, wanted.ring, u64::from(entries) * 64, 64)?;
    let (record_memory, record) = memory(context, wanted.record, 8, 8)?;
    // SAFETY: within registered memory, which is mapped; all access to it is atomic.
    let last = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(ring as usize + 63) };
    // Relaxed: its owner wrote it before this command.
    if last.load(Ordering::Relaxed) != 0xf0 {
        breach("a completion queue whose first entry is not invalid".to_owned());
    }
    let number = next_number();
    let kind = Kind::DevxCompletionQueue(CompletionQueue {
        number,
        ring,
        entries,
        record,
    });
    Ok((kind, number, vec![page, ring_memory, record_memory]))
}

fn create_queue_pair(context: usize, nic: Arc<SoftNic>, wanted: &CreateQueuePair) -> Firmware<Created> {
    if wanted.domain != DOMAIN {
        return Err(BAD_RESOURCE);
    }
    let (page, register) = registers(context, wanted.uar_page)?;
    let blocks = 1u32.checked_shl(wanted.log_blocks.into()).ok_or(BAD_PARAMETER)?;
    let (ring_memory, sq) = memory(context, wanted.ring, u64::from(blocks) * 64, 64)?;
    let (record_memory, dbrec) = memory(context, wanted.record, 8, 8)?;
    let (queue, (cq, cq_entries, cq_dbrec)) = numbered(context, |kind| match kind {
        Kind::DevxCompletionQueue(queue) if queue.number == wanted.completion_queue => {
            Some((queue.ring, queue.entries, queue.record))
        }
        _ => None,
    })?;
    let memory = QueueMemory {
        sq,
        sq_entries: blocks,
        cq,
        cq_entries,
        dbrec,
        cq_dbrec,
        collapsed: true,
    };
    // SAFETY: registered memory, which cannot be taken back before the queue pair is gone.
    let made = unsafe { nic.create_queue_pair(QueueRings::Given(memory)) }.map_err(|_| BAD_PARAMETER)?;
    let stop = Arc::new(AtomicBool::new(false));
    let carrier = carry(Arc::clone(&nic), register, made.doorbell, Arc::clone(&stop));
    let kind = Kind::DevxQueuePair(QueuePair {
        number: made.number,
        state: QueueAttributes::RESET,
        destination: 0,
        nic,
        register,
        stop,
        carrier: Some(carrier),
    });
    let needs = vec![page, ring_memory, record_memory, queue];
    Ok((kind, made.number, needs))
}

/// Carries stores from one register to another.
fn carry(nic: Arc<SoftNic>, from: u64, to: u64, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        // Relaxed: a flag.
        while !stop.load(Ordering::Relaxed) {
            // SAFETY: the page lives as long as the queue pair, whose end waits for this thread.
            // Acquire: what was written before the doorbell comes before what follows it.
            let value = unsafe { word(from) }.swap(0, Ordering::Acquire);
            if value == 0 {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            // SAFETY: a register of the NIC, which lives as long as the queue pair. Release: as above.
            unsafe { word(to) }.store(value, Ordering::Release);
            nic.doorbell_written(to);
        }
    })
}

/// Answers a command: writes to `out`, and says what the library returns.
///
/// # Safety
/// `out` has `room` bytes.
unsafe fn answer(command: &Command, made: Firmware<u32>, out: *mut c_void, room: usize) -> Outcome<()> {
    let answer = match made {
        Ok(value) => Answer {
            value,
            ..Answer::default()
        },
        Err(status) => Answer {
            status,
            syndrome: 0x5a_0000 | u32::from(status),
            value: 0,
        },
    };
    if room < command.answer_bytes() {
        breach(format!("{room} bytes for the answer to {command:?}"));
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise; zeroed first, so that it holds bytes.
    let out = unsafe {
        std::ptr::write_bytes(out.cast::<u8>(), 0, room);
        std::slice::from_raw_parts_mut(out.cast::<u8>(), room)
    };
    command.write_answer(&answer, out);
    match answer.status {
        0 => Ok(()),
        _ => Err(libc::EREMOTEIO),
    }
}

/// # Safety
/// `input` has `bytes` bytes.
unsafe fn parse(input: *const c_void, bytes: usize) -> Outcome<Command> {
    // SAFETY: the caller's promise.
    let input = unsafe { std::slice::from_raw_parts(input.cast::<u8>(), bytes) };
    Command::parse(input).map_err(|error| {
        breach(error.to_string());
        libc::EINVAL
    })
}

/// `mlx5dv_devx_obj_create`.
///
/// # Safety
/// Both buffers have the bytes that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_obj_create(
    context: *mut sys::ibv_context,
    input: *const c_void,
    bytes: usize,
    out: *mut c_void,
    room: usize,
) -> *mut dv::DevxObj {
    pointer(|| {
        enter("mlx5dv_devx_obj_create")?;
        let nic = objects::nic_of(&objects(), context.addr())?;
        // SAFETY: the caller's promise.
        let command = unsafe { parse(input, bytes) }?;
        let made = match &command {
            Command::CreateCompletionQueue(wanted) => create_completion_queue(context.addr(), wanted),
            Command::CreateQueuePair(wanted) => create_queue_pair(context.addr(), nic, wanted),
            _ => return Err(libc::EINVAL),
        };
        let said = made.as_ref().map(|(_, number, _)| *number).map_err(|status| *status);
        // SAFETY: the caller's promise.
        unsafe { answer(&command, said, out, room) }?;
        let Ok((kind, _, mut needs)) = made else {
            return Err(libc::EREMOTEIO);
        };
        needs.push(context.addr());
        // A box for its address alone.
        let made = Box::into_raw(Box::new(0u64));
        objects::add(made.expose_provenance(), kind, context.addr(), &needs);
        Ok(made.cast())
    })
}

/// Whether a path leads back to this port, the only place that can be reached.
fn path_is_good(wanted: &ToReadyToReceive) -> bool {
    let own_port = wanted.port == 1 && (1..=MTU).contains(&wanted.mtu.into());
    let reads = 1u32 << wanted.log_reads_in <= READS_MAX.into();
    let known = wanted.global.is_none_or(|global| {
        usize::from(global.source_index) < gids().len() && gids().iter().any(|(gid, _)| *gid == global.gid)
    });
    let link = match wanted.link {
        Link::Ethernet { mac, udp_source, .. } => {
            !config().infiniband && mac == MAC && udp_source == UDP_SOURCE && wanted.global.is_some()
        }
        Link::InfiniBand { lid, .. } => config().infiniband && lid == LID,
    };
    own_port && reads && known && link
}

/// The number of the queue pair that a command is about.
fn named(command: &Command) -> Option<u32> {
    match command {
        Command::ToInit(wanted) => Some(wanted.queue_pair),
        Command::ToReadyToReceive(wanted) => Some(wanted.queue_pair),
        Command::ToReadyToSend(wanted) => Some(wanted.queue_pair),
        Command::ToReset { queue_pair } | Command::ToError { queue_pair } | Command::QueryQueuePair { queue_pair } => {
            Some(*queue_pair)
        }
        _ => None,
    }
}

fn execute(pair: &mut QueuePair, command: &Command) -> Firmware<u32> {
    if named(command) != Some(pair.number) {
        return Err(BAD_RESOURCE);
    }
    // A request that failed took it there.
    if pair
        .nic
        .state(pair.number)
        .is_ok_and(|state| state == QueuePairState::Error)
    {
        pair.state = QueueAttributes::ERROR;
    }
    let refused = |_| BAD_STATE;
    let to = match (command, pair.state) {
        (Command::QueryQueuePair { .. }, state) => state,
        (Command::ToInit(wanted), QueueAttributes::RESET) if wanted.port == 1 => QueueAttributes::INIT,
        (Command::ToReadyToReceive(wanted), QueueAttributes::INIT) => {
            if !path_is_good(wanted) {
                return Err(BAD_PARAMETER);
            }
            pair.destination = wanted.remote;
            QueueAttributes::READY_TO_RECEIVE
        }
        (Command::ToReadyToSend(wanted), QueueAttributes::READY_TO_RECEIVE) => {
            if 1u32 << wanted.log_reads_out > READS_MAX.into() || wanted.ack_timeout == 0 {
                return Err(BAD_PARAMETER);
            }
            pair.nic.connect(pair.number, pair.destination).map_err(refused)?;
            QueueAttributes::READY_TO_SEND
        }
        (Command::ToReset { .. }, _) => {
            pair.nic.reset(pair.number).map_err(refused)?;
            // SAFETY: the page of registers cannot go before the queue pair. Relaxed: nothing rings now.
            unsafe { word(pair.register) }.store(0, Ordering::Relaxed);
            QueueAttributes::RESET
        }
        (Command::ToError { .. }, _) => {
            pair.nic.fail(pair.number).map_err(refused)?;
            QueueAttributes::ERROR
        }
        _ => return Err(BAD_STATE),
    };
    pair.state = to;
    Ok(to)
}

/// # Safety
/// Both buffers have the bytes that are said.
unsafe fn about(
    call: &str,
    object: *mut dv::DevxObj,
    input: *const c_void,
    bytes: usize,
    out: *mut c_void,
    room: usize,
    asks: bool,
) -> c_int {
    status(|| {
        enter(call)?;
        // SAFETY: the caller's promise.
        let command = unsafe { parse(input, bytes) }?;
        if asks != matches!(command, Command::QueryQueuePair { .. }) {
            breach(format!("{call} with {command:?}"));
            return Err(libc::EINVAL);
        }
        let mut objects = objects();
        let Kind::DevxQueuePair(pair) = &mut find(&mut objects, call, object.addr())?.kind else {
            return Err(libc::EINVAL);
        };
        let said = execute(pair, &command);
        // SAFETY: the caller's promise.
        unsafe { answer(&command, said, out, room) }
    })
}

/// `mlx5dv_devx_obj_modify`.
///
/// # Safety
/// Both buffers have the bytes that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_obj_modify(
    object: *mut dv::DevxObj,
    input: *const c_void,
    bytes: usize,
    out: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { about("mlx5dv_devx_obj_modify", object, input, bytes, out, room, false) }
}

/// `mlx5dv_devx_obj_query`.
///
/// # Safety
/// Both buffers have the bytes that are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_obj_query(
    object: *mut dv::DevxObj,
    input: *const c_void,
    bytes: usize,
    out: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { about("mlx5dv_devx_obj_query", object, input, bytes, out, room, true) }
}

/// `mlx5dv_devx_obj_destroy`.
///
/// # Safety
/// `object` was made by this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_devx_obj_destroy(object: *mut dv::DevxObj) -> c_int {
    status(|| {
        enter("mlx5dv_devx_obj_destroy")?;
        let removed = objects::remove("mlx5dv_devx_obj_destroy", object.addr())?;
        if let Kind::DevxQueuePair(pair) = &removed.kind {
            let gone = pair.nic.destroy_queue_pair(pair.number);
            gone.map_err(|error| errno_of(&error))?;
        }
        drop(removed);
        // SAFETY: it was among the objects, so `mlx5dv_devx_obj_create` made it, and it is freed once.
        drop(unsafe { Box::from_raw(object.cast::<u64>()) });
        Ok(())
    })
}
