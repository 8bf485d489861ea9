//! What kernel modules and the simulator share; mirrors `gpuvm_sim/runtime.h` and `gpuvm/kernel_param.cuh`.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use corosensei::Yielder;

use super::races::Racer;
use super::warp::{LANES, Warp};
use super::weak_memory::{Access, Operation, Order, Scope, Who};

/// Virtual size and alignment of a lane's stack, bytes; the module learns it as GPUVM_SIM_STACK_BYTES. Its lowest page is a guard, which may
/// have 64 KiB on AArch64.
pub(crate) const STACK_BYTES: usize = if cfg!(target_arch = "aarch64") {
    256 << 10
} else {
    128 << 10
};
/// Offset between the tops of neighbouring stacks, so that they fall into different cache sets: three cache lines, prime to the
/// number of sets of every common first-level cache.
pub(crate) const COLOUR_BYTES: usize = 192;
/// Room for a [`Lane`].
pub(crate) const LANE_BYTES: usize = 128;
/// Where the [`Lane`] of a stack of colour 0 lies.
pub(crate) const LANE_OFFSET: usize = STACK_BYTES - LANE_BYTES;

/// `gpuvm_sim_block`: what is the same for all lanes of a block.
#[repr(C)]
pub(crate) struct BlockConstants {
    pub(crate) block_idx: [u32; 3],
    pub(crate) block_dim: [u32; 3],
    pub(crate) grid_dim: [u32; 3],
    pub(crate) sm: u32,
    pub(crate) seeded: u32,
    pub(crate) dynamic_bytes: u32,
    pub(crate) shared: *mut u8,
    pub(crate) variant: u32,
}

/// `gpuvm_sim_lane` and, behind it, what only the simulator uses.
#[repr(C, align(64))]
pub(crate) struct Lane {
    pub(crate) block: *const BlockConstants,
    pub(crate) thread: [u32; 3],
    pub(crate) lane: u32,
    pub(crate) warp_slot: u32,
    pub(crate) note_code: u32,
    pub(crate) warp: *mut Warp,
    pub(crate) yielder: *const Yielder<(), ()>,
    pub(crate) note: [u64; 2],
    /// Names the lane in the trace of the seeded mode: launch, block, thread.
    pub(crate) id: u64,
    /// When a sleeping lane may run again, in the worker's nanoseconds.
    pub(crate) wake_ns: u64,
}

const _: () = assert!(size_of::<Lane>() <= LANE_BYTES);
const _: () = assert!(offset_of!(Lane, thread) == 8 && offset_of!(Lane, lane) == 20);
const _: () = assert!(offset_of!(Lane, warp_slot) == 24);
const _: () = assert!(offset_of!(BlockConstants, sm) == 36 && offset_of!(BlockConstants, shared) == 48);
const _: () = assert!(offset_of!(BlockConstants, variant) == 56);

/// `gpuvm_sim_hooks`.
#[repr(C)]
pub(crate) struct Hooks {
    pub(crate) collective: unsafe extern "C" fn(*mut Lane, u32, u32, u64, u64) -> u64,
    pub(crate) gather: unsafe extern "C" fn(*mut Lane, *const c_void, u32, u64) -> u64,
    pub(crate) barrier: unsafe extern "C" fn(*mut Lane, u32, u32) -> u32,
    pub(crate) sleep: unsafe extern "C" fn(*mut Lane, u32),
    pub(crate) mmio_store: unsafe extern "C" fn(*mut Lane, *mut u64, u64),
    pub(crate) time_ns: unsafe extern "C" fn(*mut Lane) -> u64,
    pub(crate) note: unsafe extern "C" fn(*mut Lane, u32, u64, u64),
    pub(crate) print: unsafe extern "C" fn(*mut Lane, *const u8, usize),
    pub(crate) fail: unsafe extern "C" fn(*mut Lane, u32, *const c_char, *const c_char, u32),
    pub(crate) step: unsafe extern "C" fn(*mut Lane, u32),
    pub(crate) access: unsafe extern "C" fn(*mut Lane, u32, *mut u8, u64, u64) -> u64,
    pub(crate) plain: unsafe extern "C" fn(*mut Lane, u32, *mut u8, usize, *const c_void),
    pub(crate) fence: unsafe extern "C" fn(*mut Lane, u32, u32),
}

/// `enum gpuvm_sim_plain`.
pub(crate) mod plain {
    pub(crate) const READ: u32 = 1;
    pub(crate) const WRITE: u32 = 2;
    pub(crate) const VOLATILE: u32 = 16;
}

impl Lane {
    /// The lane among all that can be resident, and its multiprocessor.
    pub(crate) fn who(&self) -> Who {
        Who {
            lane: self.warp_slot * LANES as u32 + self.lane,
            // SAFETY: the block's constants outlive its lanes, and are not written while they live.
            sm: unsafe { (*self.block).sm },
        }
    }
}

impl Lane {
    /// The lane as the race checker knows it.
    pub(crate) fn racer(&self) -> Racer {
        Racer {
            lane: self.who().lane,
            id: self.id,
        }
    }
}

/// `enum gpuvm_sim_order`.
pub(crate) fn order(number: u32) -> Order {
    match number {
        0 => Order::Weak,
        1 => Order::Relaxed,
        2 => Order::Acquire,
        3 => Order::Release,
        4 => Order::AcqRel,
        _ => Order::Sc,
    }
}

/// `enum gpuvm_sim_scope`.
pub(crate) fn scope(number: u32) -> Scope {
    match number {
        0 => Scope::Cta,
        1 => Scope::Gpu,
        _ => Scope::Sys,
    }
}

/// What `gpuvm_sim::what` puts into a number, at `address`.
pub(crate) fn access(what: u32, address: u64) -> Access {
    let operation = match what & 0xff {
        0 => Operation::Load,
        1 => Operation::Store,
        2 => Operation::Exchange,
        3 => Operation::Add,
        4 => Operation::Sub,
        5 => Operation::And,
        6 => Operation::Or,
        7 => Operation::Xor,
        8 => Operation::Nand,
        _ => Operation::Compare,
    };
    Access {
        operation,
        order: order(what >> 8 & 0xf),
        scope: scope(what >> 12 & 0xf),
        at: address,
        bytes: (what >> 16) as usize,
    }
}

/// `enum gpuvm_sim_barrier`.
pub(crate) mod barrier {
    pub(crate) const COUNT: u32 = 1;
    pub(crate) const AND: u32 = 2;
    pub(crate) const OR: u32 = 3;

    /// The CUDA name of a kind.
    pub(crate) fn name(kind: u32) -> &'static str {
        match kind {
            COUNT => "__syncthreads_count",
            AND => "__syncthreads_and",
            OR => "__syncthreads_or",
            _ => "__syncthreads",
        }
    }
}

/// `gpuvm_sim_failure`: an assertion; everything else is a trap.
pub(crate) const FAILURE_ASSERT: u32 = 0;
