//! What the host does with managed memory that launches may have changed: it faults, the memory is made right, and the access is made again.
//!
//! The signal's handler asks a thread of this library, since it may have interrupted anything. That thread takes no lock that a thread which
//! faults holds: this library touches no managed memory while it holds its own, and calls of the driver with managed memory are made right before.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::{driver, window, within};

/// Makes managed memory at an address right for the host, for writing if that is said, in a host function of a stream if that is said. False where
/// none is there.
pub type Mend = fn(u64, bool, bool) -> bool;

/// A question of the handler's, which waits on its own stack for the answer.
struct Question {
    /// None where a host function ends.
    addr: Option<u64>,
    within: bool,
    writes: bool,
    answer: AtomicU32,
}

const OPEN: u32 = 0;
const MENDED: u32 = 1;
const NOT_OURS: u32 = 2;

/// The ends of pipes by which questions are asked, and those of host functions, which who answers the others may wait for; -1 before there are any.
static ASK: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];
/// The process that has the thread: one that it forks has none, and no managed memory.
static PROCESS: AtomicI32 = AtomicI32::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// What the program does about such signals.
static PROGRAMS: Mutex<Option<libc::sigaction>> = Mutex::new(None);

type SigAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

fn real_sigaction() -> SigAction {
    // SAFETY: the C library has it, with these arguments.
    unsafe { std::mem::transmute::<*mut c_void, SigAction>(driver::next(c"sigaction")) }
}

/// Begins a thread that answers, and gives the end of the pipe by which it is asked.
fn begin(mend: Mend, close: fn()) -> Option<c_int> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    let [questions, ask] = ends;
    let thread = std::thread::Builder::new().name("gpuvm-host".into());
    // No handler of the program's runs there, which could touch managed memory and wait for itself.
    // SAFETY: sets of signals; the thread's own mask is put back.
    let spawned = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = thread.spawn(move || answer(questions, mend, close));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        spawned
    };
    spawned.ok().map(|_| ask)
}

/// Sees to it from now on. `close`: a host function has ended. False where a thread, a pipe or the handler cannot be had.
pub fn watch(mend: Mend, close: fn()) -> bool {
    if INSTALLED.load(Ordering::Acquire) {
        return true;
    }
    let (Some(ask), Some(ask_within)) = (begin(mend, close), begin(mend, close)) else {
        return false;
    };
    // SAFETY: it asks for a number.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    ASK[0].store(ask, Ordering::Release);
    ASK[1].store(ask_within, Ordering::Release);
    // SAFETY: zeros are a valid value of it.
    let (mut own, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    own.sa_sigaction = on_fault as *const () as usize;
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: a handler for three arguments, as SA_SIGINFO says, which calls what signals may call.
    let installed = unsafe { real_sigaction()(libc::SIGSEGV, &raw const own, &raw mut old) } == 0;
    *PROGRAMS.lock() = Some(old);
    INSTALLED.store(installed, Ordering::Release);
    installed
}

/// Answers questions.
fn answer(questions: c_int, mend: Mend, close: fn()) {
    loop {
        let mut question: *const Question = std::ptr::null();
        // SAFETY: room for an address. A pipe gives so few bytes together, as they were written.
        let got = unsafe { libc::read(questions, (&raw mut question).cast(), size_of::<*const Question>()) };
        if got != size_of::<*const Question>() as isize {
            if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            return;
        }
        // SAFETY: who asked waits for the answer, and the question lives until then.
        let question = unsafe { &*question };
        let answer = match question.addr {
            Some(addr) if !mend(addr, question.writes, question.within) => NOT_OURS,
            Some(_) => MENDED,
            None => {
                close();
                MENDED
            }
        };
        let word = &raw const question.answer;
        // Release: what was mended is seen with the answer. The question may be gone behind this.
        question.answer.store(answer, Ordering::Release);
        // SAFETY: the address of a word; nobody is woken where it is none any more.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}

/// Whether an access that faulted was a store.
fn is_store(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        /// Of the error code of a page fault.
        const WRITE: i64 = 2;
        // SAFETY: the handler's third argument is one.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0
    }
    // Taken for one where that is not told.
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        true
    }
}

/// Whether this is the process that has managed memory, and none that it has forked.
pub fn is_own_process() -> bool {
    // SAFETY: a number that may be asked for anywhere.
    unsafe { libc::getpid() == PROCESS.load(Ordering::Relaxed) }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the handler's second argument is one, of a fault.
    let addr = unsafe { (*info).si_addr() } as u64;
    // SAFETY: the thread's own.
    let error = unsafe { *libc::__errno_location() };
    let mended =
        window::touches(addr, 1) && is_own_process() && ask(Some(addr), is_store(context), within::is_running());
    within::note_fault();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
    if !mended {
        pass_on(signal, info, context);
    }
}

/// A host function has ended: what it has written is copied to the GPU.
pub fn close() {
    // The answer says nothing: whatever goes wrong is told at the end.
    let _ = is_own_process() && ask(None, false, true);
}

/// Asks, and waits for the answer.
fn ask(addr: Option<u64>, writes: bool, within: bool) -> bool {
    let question = Question {
        addr,
        within,
        writes,
        answer: AtomicU32::new(OPEN),
    };
    let (asked, bytes) = (&raw const question, size_of::<*const Question>());
    // SAFETY: the bytes of an address.
    while unsafe {
        libc::write(
            ASK[usize::from(within)].load(Ordering::Acquire),
            (&raw const asked).cast(),
            bytes,
        )
    } != bytes as isize
    {
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return false;
        }
    }
    loop {
        // Acquire: pairs with the release in `answer`.
        let answer = question.answer.load(Ordering::Acquire);
        if answer != OPEN {
            return answer == MENDED;
        }
        let (word, wait) = (&raw const question.answer, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
        // SAFETY: a word that lives; without a time limit.
        unsafe { libc::syscall(libc::SYS_futex, word, wait, OPEN, std::ptr::null::<libc::timespec>()) };
    }
}

/// A fault that is none of managed memory goes where it would have gone.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let programs = PROGRAMS.try_lock().and_then(|programs| *programs);
    match programs {
        Some(action) if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN => {
            let handler = std::ptr::with_exposed_provenance::<c_void>(action.sa_sigaction);
            // SAFETY: the program installed it with arguments as its flags say.
            unsafe {
                match action.sa_flags & libc::SA_SIGINFO {
                    0 => std::mem::transmute::<*const c_void, extern "C" fn(c_int)>(handler)(signal),
                    _ => std::mem::transmute::<*const c_void, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
                        handler,
                    )(signal, info, context),
                }
            }
        }
        _ => {
            // SAFETY: zeros are the default action; the access is made again and ends the program.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                real_sigaction()(signal, &raw const default, std::ptr::null_mut());
            }
        }
    }
}

/// The program's `sigaction`. What it says of this library's signal is kept for what is none of ours.
///
/// # Safety
/// As of the C library's.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if signal != libc::SIGSEGV || !INSTALLED.load(Ordering::Acquire) {
        // SAFETY: handed on.
        return unsafe { real_sigaction()(signal, new, old) };
    }
    let mut programs = PROGRAMS.lock();
    // SAFETY: each is null or what the C library takes.
    unsafe {
        if let (Some(now), false) = (*programs, old.is_null()) {
            *old = now;
        }
        if !new.is_null() {
            *programs = Some(*new);
        }
    }
    0
}
