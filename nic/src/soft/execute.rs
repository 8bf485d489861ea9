//! What a request does once it has been parsed: checks, data movement, atomics.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::completion_queue::word;
use super::copy::{Ahead, copy, copy_ahead};
use super::memory::{MemoryTable, Side};
use super::queue_pair::{Ends, QueuePairShared};
use super::report::ViolationKind;
use super::{lock, vendor};
use crate::wire::mlx5::{
    Completion, CompletionDetail, CqeOpcode, MESSAGE_BYTES_MAX, Opcode, Operation, Segment, Segments, Syndrome,
    UNIT_BYTES, UNITS_MAX, WorkRequest,
};
use crate::{Access, Move};

/// Why a request failed: the syndrome, and this NIC's detail of it (see [`vendor`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub syndrome: Syndrome,
    pub vendor: u8,
}

impl Failure {
    /// Of a request that cannot be told from garbage.
    pub fn of_violation(kind: ViolationKind) -> Self {
        let vendor = match kind {
            ViolationKind::WrongIndex => vendor::WRONG_INDEX,
            ViolationKind::WrongQueuePair => vendor::WRONG_QUEUE_PAIR,
            _ => vendor::MALFORMED,
        };
        Failure {
            syndrome: Syndrome::LocalQueuePairOperation,
            vendor,
        }
    }
}

fn fail<T>(syndrome: Syndrome, vendor: u8) -> Result<T, Failure> {
    Err(Failure { syndrome, vendor })
}

/// Executes `request` against `responder` and returns the bytes moved. `ahead` is a hint at the request after it.
///
/// # Safety
/// The caller holds the lock of the engine that serves the request's queue pair, from before this call until after
/// it: spans that `memory` allows then stay valid, since deregistering takes that lock after clearing the key.
#[inline]
pub(super) unsafe fn execute(
    request: &WorkRequest<'_>,
    memory: &MemoryTable,
    responder: Option<&QueuePairShared>,
    now_ns: u64,
    ahead: Option<Ahead>,
) -> Result<u64, Failure> {
    let operation = request.operation;
    match operation {
        Operation::Nop => return Ok(0),
        Operation::Dump => {
            // All copies are done when they are made, so there is nothing to flush.
            return check_local(memory, request.segments, Access::NONE);
        }
        Operation::Other(_) => return fail(Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED),
        _ => {}
    }
    let Some(responder) = responder.filter(|responder| responder.answers()) else {
        return fail(Syndrome::TransportRetryExceeded, vendor::NO_RESPONDER);
    };
    // SAFETY: passed on from the caller.
    unsafe {
        match operation {
            Operation::Read { remote, rkey } => read(request.segments, memory, remote, rkey, ahead),
            Operation::Write { remote, rkey } => write(request.segments, memory, remote, rkey, ahead),
            Operation::WriteImmediate {
                remote,
                rkey,
                immediate,
            } => write_immediate(request.segments, memory, responder, (remote, rkey), immediate, now_ns),
            Operation::CompareSwap {
                remote,
                rkey,
                compare,
                swap,
            } => {
                atomic(request.segments, memory, remote, rkey, |cell| {
                    // AcqRel: an atomic of a NIC orders as one at GPU system scope does.
                    match cell.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(old) | Err(old) => old,
                    }
                })
            }
            Operation::FetchAdd { remote, rkey, add } => {
                // AcqRel: as above.
                atomic(request.segments, memory, remote, rkey, |cell| {
                    cell.fetch_add(add, Ordering::AcqRel)
                })
            }
            Operation::Nop | Operation::Dump | Operation::Other(_) => Ok(0),
        }
    }
}

/// Checks the local data and returns its length in bytes.
#[inline]
fn check_local(memory: &MemoryTable, segments: Segments<'_>, access: Access) -> Result<u64, Failure> {
    let mut total = 0u64;
    for segment in segments.iter() {
        match segment {
            Segment::Data { lkey, address, .. } => {
                let bytes = segment.len_bytes();
                if !memory.allows(Side::Local, lkey, address, bytes, access) {
                    return fail(Syndrome::LocalProtection, vendor::LOCAL_KEY);
                }
            }
            Segment::Inline(_) if access.contains(Access::LOCAL_WRITE) => {
                return fail(Syndrome::LocalQueuePairOperation, vendor::INLINE_RESULT);
            }
            Segment::Inline(_) => {}
        }
        total = total.saturating_add(segment.len_bytes());
    }
    if total > MESSAGE_BYTES_MAX {
        return fail(Syndrome::LocalLength, vendor::TOO_LONG);
    }
    Ok(total)
}

/// Checks a READ and returns its length in bytes.
#[inline]
fn check_read(segments: Segments<'_>, memory: &MemoryTable, remote: u64, rkey: u32) -> Result<u64, Failure> {
    let total = check_local(memory, segments, Access::LOCAL_WRITE);
    // The responder refuses before any data comes back, so its refusal is what the requester hears of first.
    let asked = segments.len_bytes();
    if asked != 0 && !memory.allows(Side::Remote, rkey, remote, asked, Access::REMOTE_READ) {
        return fail(Syndrome::RemoteAccess, vendor::REMOTE_KEY);
    }
    total
}

/// Checks a WRITE and returns its length in bytes.
#[inline]
fn check_write(segments: Segments<'_>, memory: &MemoryTable, remote: u64, rkey: u32) -> Result<u64, Failure> {
    let total = check_local(memory, segments, Access::NONE)?;
    if total != 0 && !memory.allows(Side::Remote, rkey, remote, total, Access::REMOTE_WRITE) {
        return fail(Syndrome::RemoteAccess, vendor::REMOTE_KEY);
    }
    Ok(total)
}

/// What a mover has to do for `request`, with the checks of [`execute`]: appends its copies to `moves` and returns their
/// bytes. After a failure `moves` may hold some of them.
pub(super) fn plan(
    request: &WorkRequest<'_>,
    memory: &MemoryTable,
    responder: Option<&QueuePairShared>,
    moves: &mut Vec<Move>,
) -> Result<u64, Failure> {
    let unsupported = fail(Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED);
    let (remote, rkey, reads) = match request.operation {
        Operation::Nop => return Ok(0),
        // Data has arrived when its completion has: there is nothing to flush.
        Operation::Dump => return check_local(memory, request.segments, Access::NONE),
        Operation::Read { remote, rkey } => (remote, rkey, true),
        Operation::Write { remote, rkey } => (remote, rkey, false),
        // A mover only moves.
        _ => return unsupported,
    };
    if !responder.is_some_and(QueuePairShared::answers) {
        return fail(Syndrome::TransportRetryExceeded, vendor::NO_RESPONDER);
    }
    let total = match reads {
        true => check_read(request.segments, memory, remote, rkey)?,
        false => check_write(request.segments, memory, remote, rkey)?,
    };
    let mut far = remote;
    for segment in request.segments.iter() {
        let bytes = segment.len_bytes();
        match segment {
            Segment::Inline(_) => return unsupported,
            Segment::Data { .. } if bytes == 0 => {}
            Segment::Data { address: near, .. } => moves.push(match reads {
                true => Move {
                    to: near,
                    from: far,
                    bytes,
                },
                false => Move {
                    to: far,
                    from: near,
                    bytes,
                },
            }),
        }
        far += bytes;
    }
    Ok(total)
}

/// # Safety
/// See [`execute`].
#[inline]
unsafe fn read(
    segments: Segments<'_>,
    memory: &MemoryTable,
    remote: u64,
    rkey: u32,
    ahead: Option<Ahead>,
) -> Result<u64, Failure> {
    let total = check_read(segments, memory, remote, rkey)?;
    let mut from = remote;
    for segment in segments.iter() {
        if let Segment::Data { address, .. } = segment {
            // SAFETY: both spans were allowed above, under the lock that the caller holds.
            unsafe { copy_ahead(address, from, segment.len_bytes(), ahead) };
        }
        from += segment.len_bytes();
    }
    Ok(total)
}

/// # Safety
/// See [`execute`].
unsafe fn write(
    segments: Segments<'_>,
    memory: &MemoryTable,
    remote: u64,
    rkey: u32,
    ahead: Option<Ahead>,
) -> Result<u64, Failure> {
    let total = check_write(segments, memory, remote, rkey)?;
    let mut to = remote;
    for segment in segments.iter() {
        match segment {
            // SAFETY: both spans were allowed above, under the lock that the caller holds.
            Segment::Data { address, .. } => unsafe { copy_ahead(to, address, segment.len_bytes(), ahead) },
            // SAFETY: as above; the source is ours.
            Segment::Inline(data) => unsafe { copy_inline(to, data) },
        }
        to += segment.len_bytes();
    }
    Ok(total)
}

/// Turns one bit of what a READ or WRITE has moved over, where it went.
///
/// # Safety
/// As for [`execute`], which has just executed the request.
pub(super) unsafe fn flip(request: &WorkRequest<'_>, bit: u64) {
    let bytes = request.segments.len_bytes();
    if bytes == 0 {
        return;
    }
    let mut offset = bit / 8 % bytes;
    let mut target = None;
    match request.operation {
        Operation::Write { remote, .. } | Operation::WriteImmediate { remote, .. } => target = Some(remote + offset),
        Operation::Read { .. } => {
            for segment in request.segments.iter() {
                match segment {
                    Segment::Data { address, .. } if offset < segment.len_bytes() => {
                        target = Some(address + offset);
                        break;
                    }
                    _ => offset = offset.saturating_sub(segment.len_bytes()),
                }
            }
        }
        _ => {}
    }
    if let Some(address) = target {
        // SAFETY: the byte lies in a span that was allowed to the request, under the lock that the caller holds.
        let byte = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(address as usize) };
        // Relaxed: the completion orders the data.
        byte.fetch_xor(1 << (bit % 8), Ordering::Relaxed);
    }
}

/// Copies inline data by way of a buffer that is aligned as the target is, so that 8-byte granules stay whole.
///
/// # Safety
/// As for [`copy`], of the target.
unsafe fn copy_inline(to: u64, data: &[u8]) {
    let mut aligned = [0u64; UNITS_MAX * UNIT_BYTES / 8 + 2];
    let shift = to as usize % 8;
    for (i, byte) in data.iter().enumerate() {
        let at = i + shift;
        let mut bytes = aligned[at / 8].to_ne_bytes();
        bytes[at % 8] = *byte;
        aligned[at / 8] = u64::from_ne_bytes(bytes);
    }
    let from = aligned.as_ptr().expose_provenance() as u64 + shift as u64;
    // SAFETY: the source holds `shift` and the data (at most 1,004 bytes of a request); the target is the caller's.
    unsafe { copy(to, from, data.len() as u64) };
}

/// # Safety
/// See [`execute`].
unsafe fn write_immediate(
    segments: Segments<'_>,
    memory: &MemoryTable,
    responder: &QueuePairShared,
    (remote, rkey): (u64, u32),
    immediate: u32,
    now_ns: u64,
) -> Result<u64, Failure> {
    let Some(receive) = lock(&responder.ends).take_receive() else {
        return fail(Syndrome::ReceiverNotReady, vendor::NO_RECEIVE);
    };
    // SAFETY: passed on from the caller.
    let total = unsafe { write(segments, memory, remote, rkey, None)? };
    let completion = Completion {
        kind: CqeOpcode::ResponderWriteImmediate,
        opcode: Opcode::Nop,
        queue_pair: responder.number,
        index: receive,
        solicited: false,
        owner: false,
        detail: CompletionDetail::Success {
            bytes: total as u32,
            immediate,
            timestamp: now_ns,
        },
    };
    // The lock is not held while data moves; `push` does nothing once the responder is destroyed.
    Ends::push(&mut lock(&responder.ends), completion);
    Ok(total)
}

/// # Safety
/// See [`execute`].
unsafe fn atomic(
    segments: Segments<'_>,
    memory: &MemoryTable,
    remote: u64,
    rkey: u32,
    operation: impl FnOnce(&AtomicU64) -> u64,
) -> Result<u64, Failure> {
    if check_local(memory, segments, Access::LOCAL_WRITE)? != 8 {
        return fail(Syndrome::LocalLength, vendor::ATOMIC_LENGTH);
    }
    if !remote.is_multiple_of(8) {
        return fail(Syndrome::RemoteInvalidRequest, vendor::ATOMIC_ALIGNMENT);
    }
    if !memory.allows(Side::Remote, rkey, remote, 8, Access::REMOTE_ATOMIC) {
        return fail(Syndrome::RemoteAccess, vendor::REMOTE_KEY);
    }
    // SAFETY: aligned, and allowed above under the lock that the caller holds.
    let old = operation(unsafe { word(remote) });
    let result = [old];
    let mut from = result.as_ptr().expose_provenance() as u64;
    for segment in segments.iter() {
        if let Segment::Data { address, .. } = segment {
            // SAFETY: allowed above; the lengths sum to the 8 bytes of `result`.
            unsafe { copy(address, from, segment.len_bytes()) };
        }
        from += segment.len_bytes();
    }
    Ok(8)
}
