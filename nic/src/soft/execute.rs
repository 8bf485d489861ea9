//! What a request does once it has been parsed: checks and data movement.

use std::sync::atomic::{AtomicU8, Ordering};

use super::backed::each_span;
use super::copy::{Ahead, copy_ahead};
use super::failure::Failure;
use super::memory::{MemoryTable, Side};
use super::queue_pair::QueuePairShared;
use super::vendor;
use crate::wire::mlx5::{MESSAGE_BYTES_MAX, Operation, Segment, Segments, Syndrome, WorkRequest};
use crate::{Access, Move, Piece};

fn fail<T>(syndrome: Syndrome, vendor: u8) -> Result<T, Failure> {
    Err(Failure { syndrome, vendor })
}

/// Executes `request` against `responder` and returns the bytes moved. `ahead` is a hint at the request after it. `far` is where the far side
/// is in memory, if its addresses are none.
///
/// # Safety
/// The caller holds the lock of the engine that serves the request's queue pair, from before this call until after
/// it: spans that `memory` allows then stay valid, since deregistering takes that lock after clearing the key.
#[inline]
pub(super) unsafe fn execute(
    request: &WorkRequest<'_>,
    memory: &MemoryTable,
    responder: Option<&QueuePairShared>,
    ahead: Option<Ahead>,
    far: Option<&[Piece]>,
) -> Result<u64, Failure> {
    each_copy(request, memory, responder, far, |to, from, bytes| {
        // SAFETY: both spans were allowed, under the lock that the caller holds; pieces are kept by the caller.
        unsafe { copy_ahead(to, from, bytes, ahead) };
    })
}

/// Checks `request`, hands each copy that it asks for to `copy` as (to, from, bytes), and returns their bytes.
#[inline]
fn each_copy(
    request: &WorkRequest<'_>,
    memory: &MemoryTable,
    responder: Option<&QueuePairShared>,
    far: Option<&[Piece]>,
    mut copy: impl FnMut(u64, u64, u64),
) -> Result<u64, Failure> {
    let (remote, rkey, reads) = match request.operation {
        Operation::Nop => return Ok(0),
        // Data has arrived when its completion has, so there is nothing to flush.
        Operation::Dump => return check_local(memory, request.segments, Access::NONE),
        Operation::Read { remote, rkey } => (remote, rkey, true),
        Operation::Write { remote, rkey } => (remote, rkey, false),
        _ => return fail(Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED),
    };
    if !responder.is_some_and(QueuePairShared::answers) {
        return Err(Failure::NO_RESPONDER);
    }
    let total = match reads {
        true => check_read(request.segments, memory, remote, rkey)?,
        false => check_write(request.segments, memory, remote, rkey)?,
    };
    each_span(request.segments, remote, far, |near, far, bytes| {
        let (to, from) = if reads { (near, far) } else { (far, near) };
        copy(to, from, bytes);
    });
    Ok(total)
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
            Segment::Inline(_) => return fail(Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED),
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
    far: Option<&[Piece]>,
    moves: &mut Vec<Move>,
) -> Result<u64, Failure> {
    each_copy(request, memory, responder, far, |to, from, bytes| {
        moves.push(Move { to, from, bytes });
    })
}

/// Turns one bit of what a READ or WRITE has moved over, where it went.
///
/// # Safety
/// As for [`execute`], which has just executed the request.
pub(super) unsafe fn flip(request: &WorkRequest<'_>, bit: u64, far: Option<&[Piece]>) {
    let bytes = request.segments.len_bytes();
    let (remote, reads) = match request.operation {
        Operation::Write { remote, .. } => (remote, false),
        Operation::Read { remote, .. } => (remote, true),
        _ => return,
    };
    if bytes == 0 {
        return;
    }
    let (mut left, mut target) = (bit / 8 % bytes, None);
    each_span(request.segments, remote, far, |near, far, bytes| {
        if target.is_none() && left < bytes {
            target = Some(if reads { near } else { far } + left);
        }
        left = left.saturating_sub(bytes);
    });
    if let Some(address) = target {
        // SAFETY: the byte lies in a span that was allowed to the request, under the lock that the caller holds.
        let byte = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(address as usize) };
        // Relaxed: the completion orders the data.
        byte.fetch_xor(1 << (bit % 8), Ordering::Relaxed);
    }
}
