//! What kernels call: entries of [`Hooks`], each running on its lane's stack.
//!
//! A hook never panics and holds nothing that needs dropping while it suspends: its lane may be dropped there.

use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::{FAILURE_ASSERT, Hooks, Lane, barrier};
use super::block::Block;
use super::collective as kinds;
use super::switch::{suspend, yield_now};
use super::warp::{Arrival, Rule, Warp};
use gpuvm_gpu::GpuError;

/// Sleeps below this only let others run, ns.
const SLEEP_NS_MIN: u32 = 5_000;

/// The entries that a module is bound to.
pub(crate) static HOOKS: Hooks = Hooks {
    collective,
    gather,
    barrier: barrier_arrive,
    sleep,
    mmio_store,
    time_ns,
    note,
    print,
    fail,
    step: super::seeded::step,
    access: super::seeded::access,
    plain: super::seeded::plain,
    fence: super::seeded::fence,
};

/// After a collective that this lane completed: burns fuel and yields when it is used up, so that loops over collectives let others run. In
/// the seeded mode the seed decides.
///
/// # Safety
/// As for [`suspend`].
unsafe fn burn(lane: *mut Lane) {
    // SAFETY: the lane is running, so its warp is alive and used by no other thread; the reference ends before the switch.
    unsafe {
        let warp = &mut *(*lane).warp;
        if !(*Block::of(lane)).seeded.is_null() {
            return super::seeded::step(lane, super::seeded::COLLECTIVE);
        }
        warp.fuel -= 1;
        if warp.fuel < 0 {
            yield_now(lane);
        }
    }
}

/// Fails the launch and leaves the lane for good.
///
/// # Safety
/// As for [`suspend`].
unsafe fn die(lane: *mut Lane, error: GpuError) -> ! {
    // SAFETY: as in `burn`; the block and its launch outlive their lanes.
    unsafe {
        let warp = &mut *(*lane).warp;
        warp.ready &= !(1 << (*lane).lane);
        Block::launch_of(Block::of(lane)).fail(error);
        loop {
            suspend(lane);
        }
    }
}

#[cold]
unsafe fn broken_rule(lane: *mut Lane, rule: Rule, kind: u32, mask: u32) -> ! {
    // SAFETY: as in `die`.
    unsafe {
        let cause = (*(*lane).warp).explain(rule, (*lane).lane as usize, kind, mask);
        broken(lane, cause)
    }
}

#[cold]
unsafe fn broken(lane: *mut Lane, cause: String) -> ! {
    // SAFETY: the lane's constants, warp, block and launch are alive while it runs.
    unsafe {
        let block: *const Block = Block::of(lane);
        let kernel = Block::launch_of(block).kernel.info.name.clone();
        die(
            lane,
            GpuError::Collective {
                kernel,
                block: (*block).constants.block_idx,
                thread: (*lane).thread,
                cause,
            },
        );
    }
}

unsafe extern "C" fn collective(lane: *mut Lane, kind: u32, mask: u32, a: u64, b: u64) -> u64 {
    // SAFETY: called by the running lane; references into the warp end before every switch.
    unsafe {
        let id = (*lane).lane as usize;
        let warp: *mut Warp = (*lane).warp;
        let orders = kind == kinds::SYNCWARP;
        if orders {
            super::seeded::arrive_at_barrier(lane);
        }
        match (*warp).arrive(id, kind, mask, a, b) {
            Arrival::Complete => {
                if orders {
                    super::seeded::warp_met(lane, mask);
                }
                burn(lane);
            }
            Arrival::Wait => suspend(lane),
            Arrival::Broken(rule) => broken_rule(lane, rule, kind, mask),
        }
        (*warp).results[id]
    }
}

unsafe extern "C" fn gather(lane: *mut Lane, site: *const c_void, matching: u32, key: u64) -> u64 {
    // SAFETY: as in `collective`.
    unsafe {
        let id = (*lane).lane as usize;
        let warp: *mut Warp = (*lane).warp;
        (*warp).gather(id, site as usize, if matching != 0 { key } else { 0 });
        if (*warp).ready == 0 && (*warp).fuel > 0 && (*Block::of(lane)).seeded.is_null() {
            // No other lane of the warp can run: who is behind gets an answer, and runs on if that is this lane. Without fuel it parks
            // instead, so that the group stays whole over the end of the warp's turn.
            (*warp).fuel -= 1;
            (*warp).answer_some_gathering();
        }
        if (*warp).gathering >> id & 1 != 0 {
            suspend(lane);
        }
        (*warp).results[id]
    }
}

unsafe extern "C" fn barrier_arrive(lane: *mut Lane, kind: u32, predicate: u32) -> u32 {
    // SAFETY: as in `collective`; the block is alive and used by this thread only.
    unsafe {
        let warp: *mut Warp = (*lane).warp;
        let block: *mut Block = Block::of(lane);
        if (*block).arrived == 0 {
            (*block).barrier_kind = kind;
        } else if (*block).barrier_kind != kind {
            let (mine, others) = (barrier::name(kind), barrier::name((*block).barrier_kind));
            broken(
                lane,
                format!("it calls {mine} while other threads of its block wait in {others}"),
            );
        }
        super::seeded::arrive_at_barrier(lane);
        let bit = 1 << (*lane).lane;
        (*block).arrived += 1;
        (*block).barrier_votes += u32::from(predicate != 0);
        (*warp).at_barrier |= bit;
        (*warp).ready &= !bit;
        if (*block).try_release_barrier() {
            burn(lane);
        } else {
            suspend(lane);
        }
        (*block).barrier_result
    }
}

unsafe extern "C" fn sleep(lane: *mut Lane, ns: u32) {
    // SAFETY: as in `collective`.
    unsafe {
        let warp: *mut Warp = (*lane).warp;
        let chance = (*Block::of(lane)).seeded;
        if !chance.is_null() {
            (*lane).wake_ns = (*chance).sleep_until((*lane).who().lane, ns);
            (*warp).sleeping |= 1 << (*lane).lane;
        } else if ns >= SLEEP_NS_MIN {
            (*lane).wake_ns = monotonic_ns() + u64::from(ns);
            (*warp).sleeping |= 1 << (*lane).lane;
        }
        yield_now(lane);
    }
}

/// Has all stores so far leave this core, those to write-combining memory too.
fn drain_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which touches no memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SeqCst: the strongest fence there is.
    std::sync::atomic::fence(Ordering::SeqCst);
}

unsafe extern "C" fn mmio_store(lane: *mut Lane, address: *mut u64, value: u64) {
    // SAFETY: as in `collective`; a bad address faults, which ends the launch; nothing is held then.
    unsafe {
        // Release: all stores of this lane before the register store are visible to whoever reads the register with acquire.
        // A NIC's register may be mapped write-combining: such a store overtakes others, and lingers in the core.
        super::seeded::before_register(lane, address as u64, value);
        drain_stores();
        (*address.cast::<AtomicU64>()).store(value, Ordering::Release);
        drain_stores();
        let block: *const Block = Block::of(lane);
        let core = &raw const **Block::core_of(block);
        // The callback may need more stack than a lane has.
        let yielder = &*(*lane).yielder;
        let (core, address) = (core as usize, address as u64);
        yielder.on_parent_stack(move || (*(core as *const super::core::Core)).stored(address));
    }
}

unsafe extern "C" fn time_ns(lane: *mut Lane) -> u64 {
    // SAFETY: as in `collective`.
    unsafe {
        let chance = (*Block::of(lane)).seeded;
        if chance.is_null() {
            monotonic_ns()
        } else {
            (*chance).read_clock()
        }
    }
}

/// The clock of `globaltimer` and of sleeps in the fast mode: CLOCK_MONOTONIC in ns.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

unsafe extern "C" fn note(lane: *mut Lane, code: u32, a: u64, b: u64) {
    // SAFETY: called by the running lane, whose constants are its own.
    unsafe {
        (*lane).note_code = code;
        (*lane).note = [a, b];
    }
}

unsafe extern "C" fn print(lane: *mut Lane, text: *const u8, bytes: usize) {
    // SAFETY: the module passes a buffer of `bytes` bytes on its own stack.
    let text = unsafe { std::slice::from_raw_parts(text, bytes) };
    let write = move || {
        // The lock makes the line whole; an error of stdout, such as a closed pipe, is no error of the kernel.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text).and_then(|()| out.flush());
    };
    // SAFETY: the running lane's yielder; stdout's code may need more stack than a lane has.
    unsafe { (*(*lane).yielder).on_parent_stack(write) };
}

unsafe extern "C" fn fail(lane: *mut Lane, kind: u32, what: *const c_char, file: *const c_char, line: u32) {
    // SAFETY: the module passes zero-terminated string literals; else as in `collective`.
    unsafe {
        let block: *const Block = Block::of(lane);
        let kernel = Block::launch_of(block).kernel.info.name.clone();
        let (index, thread) = ((*block).constants.block_idx, (*lane).thread);
        let text = |p: *const c_char| CStr::from_ptr(p).to_string_lossy().into_owned();
        let error = if kind == FAILURE_ASSERT {
            GpuError::Assert {
                kernel,
                block: index,
                thread,
                expression: text(what),
                file: text(file),
                line,
            }
        } else {
            GpuError::Trap {
                kernel,
                block: index,
                thread,
            }
        };
        die(lane, error);
    }
}
