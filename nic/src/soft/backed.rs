//! Requests whose far side is no memory.

use std::sync::{Arc, Weak};

use super::failure::Failure;
use super::memory::{MemoryTable, Side};
use super::queue_pair::QueuePairShared;
use super::vendor;
use crate::wire::mlx5::{Operation, Segment, Segments, Syndrome, WorkRequest};
use crate::{Access, Acquired, Backing, Piece};

/// Memory that a backing keeps for a request, until this is dropped.
pub(super) struct Kept {
    backing: Arc<dyn Backing>,
    pieces: Vec<Piece>,
    writes: bool,
}

impl Kept {
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.backing.release(&self.pieces, self.writes);
    }
}

/// The far side of a request.
pub(super) enum Far {
    /// Memory, or nothing that the request may reach.
    Memory,
    /// In memory for the time being.
    Kept(Kept),
    /// On its way into memory.
    Waits(Waiting),
    /// Not to be had.
    Failed(Failure),
}

/// What a request waits for, and how far that was when it was asked.
pub(super) struct Waiting {
    backing: Weak<dyn Backing>,
    progress: u64,
    /// Keys that had been taken back.
    dead_keys: u64,
}

impl Waiting {
    /// Whether asking again would have the same answer.
    pub fn goes_on(&self, memory: &MemoryTable) -> bool {
        let same = |backing: Arc<dyn Backing>| backing.progress() == self.progress;
        memory.dead_keys() == self.dead_keys && self.backing.upgrade().is_some_and(same)
    }
}

/// Where a request goes that is no memory: what serves it, address, bytes, and whether they will be written.
fn target_of(request: &WorkRequest<'_>, memory: &MemoryTable) -> Option<(Arc<dyn Backing>, u64, u64, bool)> {
    let (remote, rkey, writes, access) = match request.operation {
        Operation::Read { remote, rkey } => (remote, rkey, false, Access::REMOTE_READ),
        Operation::Write { remote, rkey } => (remote, rkey, true, Access::REMOTE_WRITE),
        _ => return None,
    };
    let bytes = request.segments.len_bytes();
    // What is not allowed is refused when it is executed, and reaches nothing.
    if bytes == 0 || !memory.allows(Side::Remote, rkey, remote, bytes, access) {
        return None;
    }
    Some((memory.backing(rkey)?, remote, bytes, writes))
}

/// Whether the request's far side is no memory.
pub(super) fn is_backed(request: &WorkRequest<'_>, memory: &MemoryTable) -> bool {
    memory.is_backed() && target_of(request, memory).is_some()
}

/// Tells the backing of a READ that will come. False where it has no room for that now.
pub(super) fn expect(request: &WorkRequest<'_>, memory: &MemoryTable) -> bool {
    match target_of(request, memory) {
        Some((backing, remote, bytes, false)) => backing.expect(remote, bytes),
        // A WRITE of whole blocks needs nothing of them.
        _ => true,
    }
}

/// The far side of a request that is to be executed now.
pub(super) fn gather(request: &WorkRequest<'_>, memory: &MemoryTable, responder: Option<&QueuePairShared>) -> Far {
    if !responder.is_some_and(QueuePairShared::answers) {
        return Far::Memory;
    }
    let Some((backing, remote, bytes, writes)) = target_of(request, memory) else {
        return Far::Memory;
    };
    let mut pieces = Vec::with_capacity(2);
    // Before it is asked: what happens meanwhile changes the count.
    let (progress, dead_keys) = (backing.progress(), memory.dead_keys());
    match backing.acquire(remote, bytes, writes, &mut pieces) {
        Acquired::Ready => Far::Kept(Kept {
            backing,
            pieces,
            writes,
        }),
        Acquired::Wait => Far::Waits(Waiting {
            backing: Arc::downgrade(&backing),
            progress,
            dead_keys,
        }),
        Acquired::Failed => Far::Failed(Failure {
            syndrome: Syndrome::RemoteOperation,
            vendor: vendor::BACKING,
        }),
    }
}

/// Calls `act` with the near and the far address of each span of a request that is one piece on both sides, and its bytes: `far` is where
/// the far side is in memory, and else it is at `remote`.
#[inline]
pub(super) fn each_span(
    segments: Segments<'_>,
    remote: u64,
    far: Option<&[Piece]>,
    mut act: impl FnMut(u64, u64, u64),
) {
    let mut done = 0;
    for segment in segments.iter() {
        let bytes = segment.len_bytes();
        if let Segment::Data { address, .. } = segment
            && bytes > 0
        {
            match far {
                None => act(address, remote + done, bytes),
                Some(pieces) => each_piece(pieces, done, bytes, |offset, far, bytes| {
                    act(address + offset, far, bytes)
                }),
            }
        }
        done += bytes;
    }
}

/// Calls `act` with the parts of `bytes` bytes from byte `first` of the pieces on: offset from `first`, address, bytes.
fn each_piece(pieces: &[Piece], first: u64, bytes: u64, mut act: impl FnMut(u64, u64, u64)) {
    let (mut begin, end) = (0, first + bytes);
    for piece in pieces {
        let (from, to) = (first.max(begin), end.min(begin + piece.bytes));
        if from < to {
            act(from - first, piece.address + (from - begin), to - from);
        }
        begin += piece.bytes;
    }
}
