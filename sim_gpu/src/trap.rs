//! Signals on worker threads: faults of lanes become launch errors, and lanes that never yield are preempted.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, Once};
use std::time::Duration;

use parking_lot::Mutex;

use super::block::{Block, WarpUnit};
use super::preempt;

/// Signals that a lane can raise by what it does.
const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
/// Bytes of the alternate stack that handlers run on.
const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// Text segments of a module that preemption knows.
const TEXTS: usize = 2;

thread_local! {
    /// This thread's worker; null on every other thread. Constant-initialised without a destructor, so handlers may read it.
    static CURRENT: Cell<*const WorkerSignals> = const { Cell::new(ptr::null()) };
}

/// The previous handlers of `FAULTS`, for handlers, which cannot lock: 0 is the default one.
static PREVIOUS_HANDLERS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// What a worker, its signal handlers and the ticker share. Worker and handlers are one thread.
#[derive(Default)]
pub(crate) struct WorkerSignals {
    /// Thread id for tgkill; 0 before the worker has started and after it has ended.
    thread: AtomicI32,
    /// Odd while a lane runs; moves with every switch.
    epoch: AtomicU64,
    unit: AtomicPtr<WarpUnit>,
    lane: AtomicUsize,
    text: [[AtomicUsize; 2]; TEXTS],
    /// Signal number of a fault, 0 for none, and its address.
    fault: AtomicI32,
    fault_code: AtomicI32,
    fault_address: AtomicU64,
    stack_overflow: AtomicU32,
    /// The epoch the ticker saw last, and the worker's processor time when it first did, ns.
    seen: Mutex<Option<(u64, u64)>>,
    /// Lanes preempted, for tests.
    preempted: AtomicU64,
}

impl WorkerSignals {
    /// Preemption may interrupt code in these ranges from now on.
    pub(crate) fn set_text(&self, text: &[(usize, usize)]) {
        // Relaxed here and below: only this thread's own handlers read what the worker writes, except `epoch`, which the ticker only compares.
        for (slot, range) in self.text.iter().enumerate() {
            let (start, end) = text.get(slot).copied().unwrap_or((0, 0));
            range[0].store(start, Ordering::Relaxed);
            range[1].store(end, Ordering::Relaxed);
        }
    }

    /// A lane is about to run.
    #[inline]
    pub(crate) fn enter_lane(&self, unit: *mut WarpUnit, lane: usize) {
        self.unit.store(unit, Ordering::Relaxed);
        self.lane.store(lane, Ordering::Relaxed);
        // Orders the stores above before the epoch for handlers on this thread; they run between any two instructions.
        compiler_fence(Ordering::Release);
        self.epoch
            .store(self.epoch.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The lane has switched back.
    #[inline]
    pub(crate) fn leave_lane(&self) {
        self.epoch
            .store(self.epoch.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::Release);
    }

    /// The fault that ended the lane just left: address and words.
    pub(crate) fn take_fault(&self) -> Option<(u64, String)> {
        let signal = self.fault.swap(0, Ordering::Relaxed);
        let address = self.fault_address.load(Ordering::Relaxed);
        let overflow = self.stack_overflow.load(Ordering::Relaxed) != 0;
        let what = match (signal, self.fault_code.load(Ordering::Relaxed)) {
            (0, _) => return None,
            (libc::SIGSEGV | libc::SIGBUS, _) if overflow => "stack overflow",
            (libc::SIGSEGV, _) => "invalid memory access",
            (libc::SIGBUS, _) => "misaligned or missing memory access",
            // FPE_INTDIV is 1 on Linux.
            (libc::SIGFPE, 1) => "integer division by zero",
            (libc::SIGFPE, _) => "arithmetic fault",
            _ => "illegal instruction",
        };
        Some((address, what.to_owned()))
    }

    /// Called by the ticker: signals the worker when one lane has used the processor for longer than `limit`. Time in which the system
    /// ran other programs does not count.
    pub(crate) fn preempt_if_stuck(&self, limit: Duration) {
        let thread = self.thread.load(Ordering::Acquire);
        let epoch = self.epoch.load(Ordering::Relaxed);
        if thread == 0 {
            return;
        }
        let used_ns = processor_ns(thread);
        let mut seen = self.seen.lock();
        match *seen {
            Some((last, since_ns)) if last == epoch && epoch % 2 == 1 => {
                if u128::from(used_ns.saturating_sub(since_ns)) >= limit.as_nanos() {
                    // SAFETY: a signal to a thread of this process, for which a handler is installed; a thread that has just ended is an
                    // error of the call, not undefined.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, preempt_signal()) };
                }
            }
            _ => *seen = Some((epoch, used_ns)),
        }
    }

    /// Whether no thread is this worker: it has ended, or has not begun and will find the GPU shut down before it runs a lane.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.load(Ordering::Acquire) == 0
    }

    /// Lanes that were preempted on this worker so far.
    pub(crate) fn preempted(&self) -> u64 {
        self.preempted.load(Ordering::Relaxed)
    }

    fn in_text(&self, address: usize) -> bool {
        self.text
            .iter()
            .any(|range| (range[0].load(Ordering::Relaxed)..range[1].load(Ordering::Relaxed)).contains(&address))
    }

    /// The running lane's unit and number, seen from a handler on this thread.
    fn running(&self) -> Option<(*const WarpUnit, usize)> {
        if self.epoch.load(Ordering::Relaxed).is_multiple_of(2) {
            return None;
        }
        Some((self.unit.load(Ordering::Relaxed), self.lane.load(Ordering::Relaxed)))
    }
}

/// Processor time of a thread of this process, ns; 0 when it has ended.
fn processor_ns(thread: i32) -> u64 {
    // Linux's numbering of thread clocks: the inverted id, then "per thread" (4) and "scheduler time" (2).
    let clock = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local; an unknown clock is an error of the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn preempt_signal() -> c_int {
    libc::SIGRTMIN() + 5
}

/// Ends this thread's life as a worker when dropped.
pub(crate) struct Entered {
    signals: Arc<WorkerSignals>,
    _stack: Vec<u8>,
    old: libc::stack_t,
}

/// Makes this thread the worker of `signals`: handlers and an alternate stack.
pub(crate) fn enter(signals: &Arc<WorkerSignals>) -> Entered {
    install();
    let mut stack = vec![0u8; SIGNAL_STACK_BYTES];
    let new = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: stack.len(),
    };
    let mut old = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: the memory lives in the value returned, which takes the alternate stack back before it goes.
    unsafe { libc::sigaltstack(&raw const new, &raw mut old) };
    // Wake-ups of naps come on time instead of 50 us late.
    // SAFETY: a call about this thread only, without pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    CURRENT.set(Arc::as_ptr(signals));
    // SAFETY: no arguments; always succeeds.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    // Release, paired with the ticker's acquire: the handlers above are there before it signals.
    signals.thread.store(thread, Ordering::Release);
    Entered {
        signals: Arc::clone(signals),
        _stack: stack,
        old,
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.signals.thread.store(0, Ordering::Release);
        CURRENT.set(ptr::null());
        // SAFETY: what `enter` found; no handler runs on this thread's alternate stack now.
        unsafe { libc::sigaltstack(&raw const self.old, ptr::null_mut()) };
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let set = |signal: c_int, handler: usize, flags: c_int| {
            // SAFETY: both structures are plain data for which zeros are valid; the handlers keep to what may be done in them.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut old: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler;
                action.sa_flags = flags | libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, ptr::null(), &raw mut old);
                if let Some(slot) = FAULTS.iter().position(|&s| s == signal) {
                    PREVIOUS_HANDLERS[slot].store(old.sa_sigaction, Ordering::Release);
                }
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        };
        for signal in FAULTS {
            set(signal, on_fault as *const () as usize, 0);
        }
        set(preempt_signal(), on_preempt as *const () as usize, libc::SA_RESTART);
    });
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers; CURRENT's target lives until `Entered` is dropped on this very thread.
    unsafe {
        let worker = CURRENT.get();
        if !worker.is_null() && leave_by_fault(&*worker, signal, &*info, context) {
            return;
        }
        previous(signal, info, context);
    }
}

/// Records the fault and lets the lane's coroutine return; false when no lane raised it.
unsafe fn leave_by_fault(worker: &WorkerSignals, signal: c_int, info: &libc::siginfo_t, context: *mut c_void) -> bool {
    let Some((unit, lane)) = worker.running() else {
        return false;
    };
    // SAFETY: the running lane's unit is alive; only the bounds of its stack are read, which never change while it runs.
    let Some(handler) = (unsafe { Block::trap_handler(&*unit, lane) }) else {
        return false;
    };
    // SAFETY: the kernel's context of this signal.
    let (sp, pc) = unsafe { preempt::position(context) };
    if !handler.stack_ptr_in_bounds(sp) {
        return false;
    }
    // SAFETY: all four signals carry an address, and si_code tells whether the processor raised it.
    let address = unsafe { info.si_addr() } as usize;
    if info.si_code <= 0 {
        return false;
    }
    // A fault next to the stack's low end is an overflow: the guard page, or the probe of a big frame.
    let guard = handler.stack_ptr_in_bounds(address) && address < preempt::stack_floor(sp);
    worker.stack_overflow.store(u32::from(guard), Ordering::Relaxed);
    worker.fault_code.store(info.si_code, Ordering::Relaxed);
    let shown = if matches!(signal, libc::SIGSEGV | libc::SIGBUS) {
        address
    } else {
        pc
    };
    worker.fault_address.store(shown as u64, Ordering::Relaxed);
    worker.fault.store(signal, Ordering::Relaxed);
    // SAFETY: the stack pointer is inside the coroutine (checked), whose frames are kernel code and hooks that hold nothing to drop; all
    // registers are updated.
    unsafe { preempt::set_registers(context, &handler.setup_trap_handler(|| ())) };
    true
}

/// Does what would have happened without our handler.
unsafe fn previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let slot = FAULTS.iter().position(|&s| s == signal).unwrap_or(0);
    let handler = PREVIOUS_HANDLERS[slot].load(Ordering::Acquire);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: back to the default; the faulting instruction runs again and ends the process as it would have.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
        return;
    }
    // SAFETY: the handler was installed for this signal before ours; handlers without SA_SIGINFO ignore the further arguments under the
    // C calling conventions that Linux uses.
    unsafe {
        let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

unsafe extern "C" fn on_preempt(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as in `on_fault`.
    unsafe {
        let worker = CURRENT.get();
        if worker.is_null() {
            return;
        }
        let Some((unit, lane)) = (*worker).running() else {
            return;
        };
        let Some(handler) = Block::trap_handler(&*unit, lane) else {
            return;
        };
        let (sp, pc) = preempt::position(context);
        if handler.stack_ptr_in_bounds(sp) && (*worker).in_text(pc) && preempt::redirect(context, sp, pc) {
            (*worker).preempted.fetch_add(1, Ordering::Relaxed);
        }
    }
}
