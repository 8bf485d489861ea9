//! The pool of free frames, its clock, and changes of the number of frames.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Position of the rank in [`PoolState::spared`].
pub const POOL_RANK_SHIFT: u32 = 56;
/// In [`PoolState::limit`]: a change of the number of frames is under way. Lanes that look for a frame help it.
pub const POOL_CHANGING_BIT: u64 = 1 << 32;
/// Position of the end of the frames in [`PoolState::change`].
pub const POOL_CHANGE_END_SHIFT: u32 = 28;
/// The first frame in [`PoolState::change`], and its end when shifted there.
pub const POOL_CHANGE_FRAMES: u32 = 0x0fff_ffff;
/// Position of the change's number in [`PoolState::change`], below its kind: a kernel that is late does not take a later change for its own.
pub const POOL_CHANGE_NUMBER_SHIFT: u32 = 56;
/// Numbers that changes have, one after the other.
pub const POOL_CHANGE_NUMBERS: u32 = 64;
/// In [`PoolState::change`]: frames are withdrawn.
pub const POOL_WITHDRAW_BIT: u64 = 1 << 62;
/// In [`PoolState::change`]: frames come back.
pub const POOL_RESTORE_BIT: u64 = 1 << 63;

/// The free pool's counters and the clock's hand, one 128-byte line each.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PoolState {
    /// Frames that may be taken (signed: takers subtract first and give back what was not there).
    pub available: u64,
    /// Unused, to the end of the line.
    pub pad0: [u64; 15],
    /// Ticket of the next frame to take.
    pub head: u64,
    /// Unused, to the end of the line.
    pub pad1: [u64; 15],
    /// Ticket of the next frame to give.
    pub tail: u64,
    /// Unused, to the end of the line.
    pub pad2: [u64; 15],
    /// The clock's hand: frames passed since the start.
    pub hand: u64,
    /// Pages that left their frame: a lane that waits for a frame sees by it that others got on.
    pub turnover: u64,
    /// Until the hand has come to the place in the low bits, pages up to the rank that stands from [`POOL_RANK_SHIFT`] on leave as those
    /// of rank 0 do: a lane that waited for a frame saw no other page leave.
    pub spared: u64,
    /// The clock looks at the frames below the number in the low 32 bits: those from there on are withdrawn, or about to be. And
    /// [`POOL_CHANGING_BIT`]. The host changes it while kernels run.
    pub limit: u64,
    /// Unused, to the end of the line.
    pub pad3: [u64; 12],
    /// The change of the number of frames that is under way: first frame, end, number and kind; 0 for none. The host writes it while kernels run,
    /// and the kernel that ends it.
    pub change: u64,
    /// Frames of the change that are not done yet; signed.
    pub change_left: u64,
    /// Frames of the change that lanes have gone over, again and again if they are withdrawn.
    pub change_hand: u64,
    /// Lanes that work on a change, or look whether there is one.
    pub helpers: u64,
    /// The pool is refilled by evicting ahead while it has fewer frames than this. The host writes it while kernels run; a hint.
    pub frames_low: u64,
    /// Unused, to the end of the line.
    pub pad4: [u64; 11],
}

/// By which lanes divide by `divisor`, which is not 0: a multiplication, since a GPU divides 64 bits by a routine of 400 instructions.
pub const fn reciprocal(divisor: u32) -> u64 {
    u64::MAX / divisor as u64
}

/// A pool, of frames or of slots in borrowed memory: what lanes need to take one and to give it back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PoolDesc {
    /// Address of the [`PoolState`].
    pub state: u64,
    /// Address of `count` ring slots.
    pub ring: u64,
    /// [`reciprocal`] of `count`.
    pub reciprocal: u64,
    /// Frames, or slots, that there may be.
    pub count: u32,
    /// Unused, to align.
    pub pad: u32,
}

impl PoolDesc {
    /// The pool of `count` frames, not 0, whose [`PoolState`] and ring are at these addresses.
    pub const fn new(state: u64, ring: u64, count: u32) -> Self {
        Self {
            state,
            ring,
            reciprocal: reciprocal(count),
            count,
            pad: 0,
        }
    }
}

shared_layout! {
    PoolDesc: 32 { state: 0, ring: 8, reciprocal: 16, count: 24, pad: 28, }
    PoolState: 640 { available: 0, pad0: 8, head: 128, pad1: 136, tail: 256, pad2: 264, hand: 384, turnover: 392,
        spared: 400, limit: 408, pad3: 416, change: 512, change_left: 520, change_hand: 528, helpers: 536, frames_low: 544, pad4: 552, }
}
