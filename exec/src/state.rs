//! Managed memory, and the launches that use it.
//!
//! As long as the GPU's memory holds all of it, it is there as a whole ([`crate::resident`]). Else it is paged. A slab of the window is a region whose home is the slab itself, so that a pointer which the program has is right everywhere: on the host, in the
//! driver's copies, in kernels that look no page up. What changes is what the host may do. Before a launch that may reach it every slab is closed:
//! an access of the host faults, and [`State::open`] then brings home what launches wrote. Where the host writes, frames are dropped before the next launch.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Once};
use std::thread::ThreadId;
use std::time::Instant;

use gpuvm::{StreamHandle, Vm};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::book::{Allocated, Book, Freed};
use crate::code::Code;
use crate::driver::{self, PER_THREAD, SUCCESS, Status};
use crate::error::{ExecError, chain, end_program};
use crate::resident::{Asked, Place, Resident, Twin, Wait};
use crate::slab::Slab;
use crate::summary::Summary;
use crate::timing::{Launched, Timing};
use crate::window::Access;
use crate::{early, faults, settings, window, within};

mod paging;

/// In so many pieces the host may have managed memory: the system has 65,530 for all of a process, if nobody has changed that.
const PIECES_MAX: usize = 8192;

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: Status = 1;
/// All that is known of the program.
pub struct State {
    pub code: Code,
    pub summary: Summary,
    timing: Timing,
    /// None before the program has managed memory.
    memory: Option<Memory>,
    pager: Pager,
    /// The GPUs whose primary context each is; none of other contexts.
    contexts: HashMap<usize, Option<i32>>,
    /// Threads that wait until nothing runs: nobody puts anything on a stream meanwhile.
    gates: u32,
    /// Host functions were put on streams while it was paged, and were not waited for.
    has_functions: bool,
}

/// The program's managed memory.
struct Memory {
    window: Range<u64>,
    book: Book,
    slabs: BTreeMap<u64, Slab>,
}

impl Memory {
    fn bytes(&self) -> u64 {
        self.slabs.values().map(|slab| slab.pages.end - slab.pages.start).sum()
    }

    /// Has the GPU have parts of it, as far as it holds them.
    fn close(&mut self, resident: &mut Resident, parts: &[Range<u64>], summary: &mut Summary) -> Result<(), ExecError> {
        for part in parts {
            for slab in self.slabs.values_mut().filter(|slab| slab.is_in(part)) {
                if let Some(twin) = &mut slab.twin {
                    twin.close(resident, part, summary)?;
                }
            }
        }
        Ok(())
    }

    /// Lets the host have a part of it, which the GPU's memory holds.
    fn open(
        &mut self,
        resident: &mut Resident,
        part: &Range<u64>,
        how: (&Asked, bool, bool),
        summary: &mut Summary,
    ) -> Result<(), ExecError> {
        if self.pieces() > PIECES_MAX {
            return Err(ExecError::Protect(std::io::ErrorKind::OutOfMemory.into()));
        }
        let mut twins = self
            .slabs
            .values_mut()
            .filter(|slab| slab.is_in(part))
            .filter_map(|slab| slab.twin.as_mut());
        twins.try_for_each(|twin| twin.open(resident, how, summary))
    }

    /// In how many pieces the system has it.
    fn pieces(&self) -> usize {
        self.slabs
            .values()
            .filter_map(|slab| slab.twin.as_ref())
            .map(Twin::pieces)
            .sum()
    }
}

/// Who pages.
enum Pager {
    /// Nobody yet.
    New,
    /// Nobody: the GPU's memory holds all of it.
    Resident(Resident),
    Paging(Paging),
    /// Nobody: the program runs as it would, with its memory on the host.
    None,
}

struct Paging {
    vm: Vm,
    context: usize,
    window: [u8; gpuvm_ptx::Window::BYTES],
    /// Bytes of frames, and most of them: as many as there is managed memory, and GPU memory.
    frames: u64,
    frames_max: u64,
    /// By the program's handle; the thread's own default stream has one handle in all threads.
    streams: Streams,
}

type Streams = HashMap<(u64, Option<ThreadId>), StreamHandle>;

/// A stream of the program's, for launches of the runtime's.
fn borrowed<'a>(streams: &'a mut Streams, vm: &Vm, stream: u64) -> Result<&'a StreamHandle, String> {
    let thread = (stream == PER_THREAD).then(|| std::thread::current().id());
    match streams.entry((stream, thread)) {
        std::collections::hash_map::Entry::Occupied(there) => Ok(there.into_mut()),
        std::collections::hash_map::Entry::Vacant(place) => {
            // SAFETY: the program launches on it now; it is forgotten when the program ends it.
            let borrowed = unsafe { vm.borrow_stream(stream) };
            Ok(place.insert(borrowed.map_err(|error| chain(&error))?))
        }
    }
}

/// Locks are taken in this order: [`ALLOCATING`], `STATE`, those of the driver. A fault of a host function takes `STATE` alone, and all that the GPU
/// does may wait for that. So who has `STATE` calls nothing of the driver's that may wait for the program's work: such waits, what is put on
/// streams (a full one waits), allocations and their ends are between two times of having it. Who has it waits for the stream of copies
/// alone, which waits for no other. Where it is paged nothing is put on a stream behind a host function that has not ended, so waits with `STATE`
/// are for what waits for none.
static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Something was put on a stream, or a gate was opened.
static CHANGED: Condvar = Condvar::new();
/// Who has it allocates, frees, or takes the memory from the GPU.
static ALLOCATING: Mutex<()> = Mutex::new(());
type Only = MutexGuard<'static, ()>;

/// The state, with the current context put back behind it.
pub struct Locked {
    state: MutexGuard<'static, Option<State>>,
    context: usize,
}

/// Takes it.
pub fn lock() -> Locked {
    let context = driver::current_context();
    let mut state = STATE.lock();
    state.get_or_insert_with(|| State {
        code: Code::default(),
        summary: Summary::default(),
        timing: Timing::default(),
        memory: None,
        pager: Pager::New,
        contexts: HashMap::new(),
        gates: 0,
        has_functions: false,
    });
    Locked { state, context }
}

impl std::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.state
            .as_ref()
            .unwrap_or_else(|| unreachable!("`lock` has made it"))
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.state
            .as_mut()
            .unwrap_or_else(|| unreachable!("`lock` has made it"))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.context != driver::current_context() {
            driver::set_current_context(self.context);
        }
    }
}

impl Locked {
    fn wait_for_change(&mut self) {
        CHANGED.wait(&mut self.state);
    }

    /// Does something without the lock, while nobody puts anything on a stream.
    fn gated<T>(mut self, act: impl FnOnce() -> T) -> (Self, T) {
        self.gates += 1;
        drop(self);
        let done = act();
        let mut state = lock();
        state.gates -= 1;
        CHANGED.notify_all();
        (state, done)
    }
}

/// The state, for the host that asks for a part: when all has ended that was put on streams before this and may have written it. Others may have put
/// more there since.
pub fn settled(part: &Range<u64>) -> Locked {
    let mut state = lock();
    let Some(wait) = state.running().filter(|_| state.is_elsewhere(part)) else {
        return state;
    };
    drop(state);
    let waited = wait.wait();
    state = lock();
    state.waited(&wait, waited);
    state
}

/// The state when nothing runs that may use managed memory on the GPU, or that has failed.
fn alone(_: &Only) -> Locked {
    let mut state = lock();
    loop {
        if state.is_being_put() {
            // What waits on a full stream goes on by itself.
            state.gates += 1;
            state.wait_for_change();
            state.gates -= 1;
            continue;
        }
        let Some(wait) = state.running() else {
            CHANGED.notify_all();
            return state;
        };
        let (gated, waited) = state.gated(|| wait.wait());
        state = gated;
        state.waited(&wait, waited);
    }
}

/// The state, for what is about to be put on a stream.
fn lock_to_put() -> Locked {
    let mut state = lock();
    while state.gates > 0 {
        state.wait_for_change();
    }
    if !state.has_functions || driver::somebody_captures() {
        return state;
    }
    // It would wait for them, and they for what launches before it wrote.
    state.has_functions = false;
    state.gated(driver::synchronize).0
}

/// What is about to be put on a stream.
pub enum Ready {
    /// It finds parts of managed memory in the GPU's: it is to be put there.
    OnGpu(Putting),
    /// It finds it at home, or there is none.
    AtHome(Locked),
    /// The program is told an error.
    Refused(Status),
}

#[must_use]
pub struct Putting {
    parts: Vec<Range<u64>>,
    /// What the host had been given by then.
    opened: u64,
}

/// Readies parts of managed memory for something that is about to be put on a stream.
pub fn ready(parts: &[Range<u64>], stream: u64) -> Ready {
    loop {
        let mut state = lock_to_put();
        let begun = Instant::now();
        match state.begin_put(parts, stream) {
            Ok(None) => return Ready::AtHome(state),
            Ok(Some(opened)) => {
                state.summary.took("closing managed memory", begun);
                let parts = parts.to_vec();
                return Ready::OnGpu(Putting { parts, opened });
            }
            Err(error) => {
                if let Some(status) = error.status() {
                    state.summary.note(chain(&error));
                    return Ready::Refused(status);
                }
                drop(state);
                give_up(&error.to_string());
            }
        }
    }
}

impl Putting {
    /// Has it put there.
    pub fn put(self, enqueue: impl FnOnce() -> Status) -> Status {
        let begun = Instant::now();
        let status = enqueue();
        let mut state = lock();
        state.end_put(&self);
        state.summary.took("launching", begun);
        status
    }
}

/// A host function of the program's is put on a stream.
pub fn put_function(stream: u64, enqueue: impl FnOnce() -> Status) -> Status {
    match ready(&[], stream) {
        Ready::OnGpu(putting) => putting.put(enqueue),
        Ready::AtHome(mut state) => {
            let counts = state.has_memory() && !matches!(state.pager, Pager::None);
            state.has_functions |= counts;
            drop(state);
            let status = enqueue();
            if counts {
                // Others may have waited before it was there.
                lock().has_functions = true;
            }
            status
        }
        Ready::Refused(status) => status,
    }
}

/// The program has waited for something: it may look for what that wrote beside what the host was given meanwhile.
pub fn close_early() {
    if early::take() {
        close();
    }
}

/// The program is about to capture a stream.
pub fn mark_stream(stream: u64) {
    if let Pager::Resident(resident) = &mut lock().pager {
        resident.mark_stream(stream);
    }
}

/// What a launch is of.
pub enum Work<'a> {
    /// A kernel, by the program's handle.
    Kernel(usize),
    /// Something else that may use managed memory at home, for the summary.
    Other(&'a str),
}

/// Makes managed memory right for the host that has faulted there, in a host function of a stream or elsewhere.
fn mend(addr: u64, writes: bool, within: bool) -> bool {
    let begun = Instant::now();
    // What a host function comes behind has ended, and what comes behind it waits for it.
    let part = addr..addr + 1;
    let mut state = if within { lock() } else { settled(&part) };
    if !state.has_slab(addr) {
        return false;
    }
    state.open_for(&part, (&Asked::Fault(addr), writes, within));
    let what = if writes {
        "faults of the host, that writes"
    } else {
        "faults of the host, that reads"
    };
    state.summary.took(what, begun);
    true
}

/// A host function of a stream ends: what is behind it there finds what it has written.
fn close() {
    let mut state = lock();
    let state = &mut *state;
    let (Pager::Resident(resident), Some(memory)) = (&mut state.pager, &mut state.memory) else {
        return;
    };
    let summary = &mut state.summary;
    let closed = driver::unhindered(|| {
        let mut twins = memory.slabs.values_mut().filter_map(|slab| slab.twin.as_mut());
        twins.try_for_each(|twin| twin.close_early(resident, summary))?;
        resident.wait_for_all_copies()
    });
    if let Err(error) = closed {
        summary.note(chain(&error));
    }
}

/// Has the summary printed when the program ends by itself.
fn print_at_exit() {
    extern "C" fn print() {
        if !settings::is_quiet() && faults::is_own_process() {
            let mut state = lock();
            let mut text = state.summary.text(settings::is_verbose());
            for line in state.timing.lines() {
                text.push_str(&format!("gpuvm exec: {line}\n"));
            }
            drop(state);
            // A program may have closed it.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        }
    }
    static ONCE: Once = Once::new();
    // SAFETY: a function that stays: this library is never unloaded. Where there is no room for it nothing is printed.
    ONCE.call_once(|| unsafe {
        libc::atexit(print);
    });
}

/// Has `enqueue` put work on a stream, of a kernel with the handle that it is given.
pub fn launch(work: &Work<'_>, stream: u64, enqueue: impl Fn(usize) -> Status) -> Status {
    let handle = match work {
        Work::Kernel(handle) => *handle,
        Work::Other(_) => 0,
    };
    let (plain, is_there) = {
        let state = lock();
        (state.code.plain(handle), state.has_memory())
    };
    // Of a graph that is captured the launch is told.
    if !is_there || driver::is_captured(stream) {
        return enqueue(plain);
    }
    match ready(std::slice::from_ref(&window::all()), stream) {
        Ready::OnGpu(putting) => {
            let launched = std::cell::Cell::new(None);
            let status = putting.put(|| {
                let (status, timed) = Timing::around(stream, || enqueue(plain));
                launched.set(timed);
                status
            });
            lock().ran(work, status, launched.take());
            status
        }
        Ready::AtHome(mut state) => {
            if let Work::Other(_) = work {
                state.has_functions |= within::are_in_graphs() && !matches!(state.pager, Pager::None);
            }
            state.launch(work, handle, stream, &enqueue)
        }
        Ready::Refused(status) => status,
    }
}

/// Managed memory of so many bytes, or the driver's error; none where the driver is to answer.
pub fn allocate(bytes: u64) -> Option<Result<u64, Status>> {
    let only = ALLOCATING.lock();
    let mut state = lock_to_put();
    let Allocated { addr, new_slab } = state.reserve(bytes)?;
    let Some(pages) = new_slab else { return Some(Ok(addr)) };
    if let Pager::Resident(resident) = &state.pager {
        let (place, begun) = (resident.place(), Instant::now());
        drop(state);
        let error = match driver::from_context(|| place.twin(&pages)) {
            Ok(twin) => {
                lock().hold(&pages, twin, begun);
                return Some(Ok(addr));
            }
            Err(error) => error,
        };
        state = match error.status() {
            None => alone(&only),
            Some(_) => lock(),
        };
        let left = match error.status() {
            None => state.take_from_gpu(&error.to_string()),
            Some(_) => Err(error),
        };
        if let Err(error) = left {
            state.forget(pages);
            return Some(Err(error.status().unwrap_or(INVALID_VALUE)));
        }
    }
    state.make(&pages, bytes).then_some(Ok(addr))
}

/// Frees managed memory that nothing uses any more.
pub fn free(addr: u64) -> Status {
    let _only = ALLOCATING.lock();
    // As CUDA does: the same addresses may be somebody else's then.
    let wait = match &lock().pager {
        Pager::Resident(resident) => Some(resident.all()),
        _ => None,
    };
    let waited = wait.as_ref().map_or_else(driver::synchronize, Wait::wait);
    let mut state = lock();
    if let Some(wait) = &wait
        && state.waited(wait, waited)
    {
        return waited;
    }
    let Some(memory) = &mut state.memory else {
        return INVALID_VALUE;
    };
    let pages = match memory.book.free(addr) {
        Freed::Unknown => return INVALID_VALUE,
        Freed::Piece => return SUCCESS,
        Freed::Slab(pages) => pages,
    };
    let Some(mut slab) = memory.slabs.remove(&pages.start) else {
        return SUCCESS;
    };
    let (place, is_pinned) = (state.release(&slab), matches!(state.pager, Pager::None));
    drop(state);
    let ended = driver::from_context(|| slab.end(place.as_ref(), is_pinned));
    let mut state = lock();
    match ended {
        Ok(()) => state.forget(pages),
        // The GPU may use it still: its addresses serve nobody else.
        Err(why) => state.summary.note(format!("managed memory stays: {why}")),
    }
    SUCCESS
}

/// From now on nobody pages, and the GPU's memory does not hold it: kernels find all at home.
fn give_up(why: &str) {
    let only = ALLOCATING.lock();
    let mut state = alone(&only);
    let left = match &state.pager {
        Pager::Resident(_) => state.take_from_gpu(why),
        _ => Ok(()),
    };
    match left {
        Ok(()) => state.give_up(why),
        // The program is told.
        Err(error) => state.summary.note(chain(&error)),
    }
}

/// The program resets a GPU, by `call`: what was there is gone, and the next allocation begins anew.
pub fn reset(device: i32, call: impl FnOnce() -> Status) -> Status {
    let only = ALLOCATING.lock();
    alone(&only).end(device);
    call()
}

impl State {
    /// Addresses of so many bytes; none where the window has no more.
    fn reserve(&mut self, bytes: u64) -> Option<Allocated> {
        if self.memory.is_none() {
            self.begin()?;
        }
        self.memory.as_mut()?.book.allocate(bytes)
    }

    /// Addresses that serve others.
    fn forget(&mut self, pages: Range<u64>) {
        if let Some(memory) = &mut self.memory {
            memory.book.forget(pages.start);
        }
        window::empty(pages);
    }

    /// The program asks for managed memory for the first time.
    fn begin(&mut self) -> Option<()> {
        let window = match Resident::begin() {
            Some((resident, window)) => {
                self.pager = Pager::Resident(resident);
                window
            }
            None => window::reserve()?,
        };
        if !faults::watch(mend, close) {
            self.pager = Pager::New;
            return None;
        }
        self.memory = Some(Memory {
            book: Book::new(window.clone(), settings::page_bytes().max(4096)),
            window,
            slabs: BTreeMap::new(),
        });
        print_at_exit();
        Some(())
    }

    /// Pages of the window have memory of the GPU.
    fn hold(&mut self, pages: &Range<u64>, twin: Twin, begun: Instant) {
        if let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) {
            if let Err(error) = resident.hold(&twin) {
                self.summary.note(chain(&error));
            }
            self.summary
                .took("taking memory of the GPU, and pinning the host's", begun);
            self.summary.holds(resident.bytes());
            let mut slab = Slab::new(pages.clone());
            slab.twin = Some(twin);
            memory.slabs.insert(pages.start, slab);
        }
    }

    /// An allocation is no more: where its memory of the GPU is.
    fn release(&mut self, slab: &Slab) -> Option<Place> {
        match (&mut self.pager, &slab.twin) {
            (Pager::Resident(resident), Some(twin)) => {
                resident.release(twin);
                Some(resident.place())
            }
            _ => None,
        }
    }

    /// Makes memory of the host's at pages of the window, for an allocation of so many bytes. False where the driver is to make it.
    fn make(&mut self, pages: &Range<u64>, bytes: u64) -> bool {
        let begun = Instant::now();
        let mut slab = Slab::new(pages.clone());
        let filled = window::has_memory(pages.end - pages.start).and_then(|()| match window::fill(pages.clone()) {
            true => Ok(()),
            false => Err("the system refuses the memory".to_owned()),
        });
        let made = filled.and_then(|()| match &self.pager {
            // It is about to begin.
            Pager::New | Pager::Resident(_) => Ok(()),
            Pager::Paging(paging) => slab.page(&paging.vm),
            Pager::None => slab.pin(),
        });
        if let Err(why) = made {
            self.summary
                .note(format!("{bytes} bytes stay CUDA's managed memory: {why}"));
            self.forget(pages.clone());
            return false;
        }
        if let Some(memory) = &mut self.memory {
            memory.slabs.insert(pages.start, slab);
        }
        self.summary.took("taking the host's memory", begun);
        // Programs take their time from the first launch on.
        self.ready();
        self.grow();
        true
    }

    /// Has managed memory leave the GPU's memory, all of it: somebody else may page it. Nothing runs.
    fn take_from_gpu(&mut self, why: &str) -> Result<(), ExecError> {
        let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) else {
            return Ok(());
        };
        resident.check()?;
        for slab in memory.slabs.values_mut() {
            if let Some(mut twin) = slab.twin.take()
                && let Err(error) = twin.leave(resident, &mut self.summary)
            {
                // Some is here, some there.
                end_program(&format!("managed memory cannot leave the GPU: {}", chain(&error)));
            }
        }
        resident.end();
        self.pager = Pager::New;
        self.summary
            .note(format!("kernels are not run as they are any more: {why}"));
        let filled = |slab: &Slab| window::fill(slab.pages.clone());
        if !window::leave_gpu() || !memory.slabs.values().all(filled) {
            // Pointers of the program's lead nowhere.
            end_program("the addresses of managed memory are lost");
        }
        Ok(())
    }

    /// The GPU is about to be reset: nothing of managed memory is there any more.
    fn end(&mut self, device: i32) {
        let is_it = match &self.pager {
            Pager::Resident(resident) => resident.device() == device,
            Pager::Paging(paging) => self.contexts.get(&paging.context) == Some(&Some(device)),
            // Others may have it.
            Pager::New | Pager::None => self.contexts.values().all(|gpu| *gpu == Some(device)),
        };
        let Some(memory) = self.memory.take_if(|_| is_it) else {
            return;
        };
        self.code.forget_window();
        let is_pinned = matches!(self.pager, Pager::None);
        for mut slab in memory.slabs.into_values() {
            let place = self.release(&slab);
            // What cannot be ended ends with the context.
            if let Err(why) = slab.end(place.as_ref(), is_pinned) {
                self.summary.note(why);
            }
            window::empty(slab.pages.clone());
        }
        if let Pager::Resident(resident) = &mut self.pager {
            resident.end();
        }
        self.pager = Pager::New;
        self.contexts.clear();
        window::end();
    }

    /// Lets the host, or the driver, read the managed memory of a range, and write it if that is said.
    pub fn open(&mut self, part: &Range<u64>, writes: bool) {
        self.open_for(part, (&Asked::Part(part.clone()), writes, false));
    }

    /// `within`: a host function asks.
    fn open_for(&mut self, part: &Range<u64>, (asked, writes, within): (&Asked, bool, bool)) {
        let Some(memory) = &mut self.memory else { return };
        let Pager::Resident(resident) = &mut self.pager else {
            let mut slabs = memory.slabs.values_mut().filter(|slab| slab.is_in(part));
            if let Err(why) = slabs.try_for_each(|slab| slab.open(part, writes)) {
                self.give_up(&why);
            }
            return;
        };
        let how = (asked, writes, within || resident.is_busy());
        let (all, summary) = (memory.window.clone(), &mut self.summary);
        let opened = driver::unhindered(|| match memory.open(resident, part, how, summary) {
            Err(ExecError::Protect(_)) => {
                // Closed it is one piece.
                memory.close(resident, std::slice::from_ref(&all), summary)?;
                memory.open(resident, part, how, summary)
            }
            Err(ExecError::Driver { what, status }) => {
                // The program has its error: its memory is as the host knows it.
                summary.note(format!("{what}: CUDA error {status}"));
                resident.lose(status);
                memory.open(resident, part, how, summary)
            }
            opened => opened,
        });
        if let Err(error) = opened {
            end_program(&format!(
                "an access to managed memory cannot be made: {}",
                chain(&error)
            ));
        }
    }

    /// Readies parts of managed memory for something that is about to be put on a stream; what the host had been given by then. None where the GPU
    /// does not hold them, or nothing of them is meant.
    fn begin_put(&mut self, parts: &[Range<u64>], stream: u64) -> Result<Option<u64>, ExecError> {
        let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) else {
            return Ok(None);
        };
        resident.check()?;
        match resident.check_context() {
            Err(_) if parts.is_empty() => return Ok(None),
            checked => checked?,
        }
        driver::unhindered(|| memory.close(resident, parts, &mut self.summary))?;
        resident.expect(stream)?;
        Ok(Some(resident.opened))
    }

    /// It was put there.
    fn end_put(&mut self, putting: &Putting) {
        let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) else {
            return;
        };
        resident.put();
        if resident.opened != putting.opened {
            // What the host was given meanwhile may be from before.
            match memory.close(resident, &putting.parts, &mut self.summary) {
                Err(error @ ExecError::Protect(_)) => end_program(&chain(&error)),
                Err(error) => self.summary.note(chain(&error)),
                Ok(()) => {}
            }
        }
        if self.gates > 0 {
            CHANGED.notify_all();
        }
    }

    /// What was put on streams and may use managed memory in the GPU's.
    fn running(&self) -> Option<Wait> {
        match &self.pager {
            Pager::Resident(resident) => resident.running(),
            _ => None,
        }
    }

    fn is_being_put(&self) -> bool {
        matches!(&self.pager, Pager::Resident(resident) if resident.is_being_put())
    }

    /// That was waited for. Whether it has failed.
    fn waited(&mut self, wait: &Wait, waited: Status) -> bool {
        let Pager::Resident(resident) = &mut self.pager else {
            return false;
        };
        let failed = resident.waited(wait, waited);
        failed.map_err(|error| self.summary.note(chain(&error))).is_err()
    }

    /// Whether the GPU alone has what is in a part.
    fn is_elsewhere(&self, part: &Range<u64>) -> bool {
        let slabs = self.memory.iter().flat_map(|memory| memory.slabs.values());
        let mut twins = slabs
            .filter(|slab| slab.is_in(part))
            .filter_map(|slab| slab.twin.as_ref());
        twins.any(|twin| twin.is_elsewhere(part))
    }

    fn has_slab(&self, addr: u64) -> bool {
        let before = self
            .memory
            .as_ref()
            .and_then(|memory| memory.slabs.range(..=addr).next_back());
        before.is_some_and(|(_, slab)| slab.pages.contains(&addr))
    }

    /// Whether the GPU's memory holds all of it.
    pub fn is_resident(&self) -> bool {
        matches!(self.pager, Pager::Resident(_))
    }

    /// Whether the program has managed memory of ours.
    pub fn has_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.slabs.is_empty())
    }

    /// From now on nobody pages: what is in frames goes home, and kernels find all there.
    fn give_up(&mut self, why: &str) {
        self.summary.note(format!("nothing is paged any more: {why}"));
        let before = std::mem::replace(&mut self.pager, Pager::None);
        self.take_home();
        // Behind it: launches that run look pages up still.
        self.code.forget_window();
        // What it has pinned stays so.
        std::mem::forget(before);
    }

    fn take_home(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        for slab in memory.slabs.values_mut() {
            let home = match &slab.region {
                Some(region) => region.evict().map_err(|error| chain(&error)),
                None => slab.pin(),
            };
            if let Err(why) = home {
                self.summary.note(why);
            }
            window::protect(slab.pages.clone(), Access::Write);
            slab.access = Access::Write;
            slab.written.clear();
        }
    }

    /// A stream is about to end. What is to be dropped without the lock.
    pub fn forget_stream(&mut self, stream: u64) -> Option<StreamHandle> {
        match &mut self.pager {
            Pager::Paging(paging) => return paging.streams.remove(&(stream, None)),
            Pager::Resident(resident) => resident.forget_stream(stream),
            Pager::New | Pager::None => {}
        }
        None
    }

    /// Of what the GPU's memory does not hold.
    fn launch(&mut self, work: &Work<'_>, handle: usize, stream: u64, enqueue: &impl Fn(usize) -> Status) -> Status {
        self.ready();
        match self.launch_paged(work, handle, stream, enqueue) {
            Ok(status) => status,
            Err(why) => {
                if !matches!(self.pager, Pager::None) {
                    self.give_up(&why);
                }
                self.summary.at_home(&self.name(work), &why);
                enqueue(self.code.plain(handle))
            }
        }
    }

    fn name(&self, work: &Work<'_>) -> Arc<str> {
        match work {
            Work::Kernel(handle) => match self.code.function(*handle) {
                Some(function) => Arc::clone(&function.name),
                None => "a kernel of unknown name".into(),
            },
            Work::Other(name) => (*name).into(),
        }
    }

    /// What became of a launch of a kernel as it was written.
    fn ran(&mut self, work: &Work<'_>, status: Status, timed: Option<Launched>) {
        let name = self.name(work);
        match status {
            SUCCESS => self.summary.ran(&name),
            // The program's own mistake.
            status => self.summary.refused(&name, status),
        }
        self.timing.add(&name, timed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    use crate::book::CHUNK_BYTES;

    /// What the host may do with the slab of an address, and the chunks that it has written.
    fn slab_of(addr: u64) -> (Access, Vec<u64>) {
        let state = lock();
        let memory = state.memory.as_ref().unwrap();
        let slab = memory.slabs.range(..=addr).next_back().unwrap().1;
        (slab.access, slab.written.iter().copied().collect())
    }

    /// As before a launch.
    fn close() {
        let mut state = lock();
        let slabs = &mut state.memory.as_mut().unwrap().slabs;
        slabs.values_mut().try_for_each(|slab| slab.close(true)).unwrap();
    }

    #[test]
    fn what_the_host_does_with_closed_memory_is_seen() {
        let addr = allocate(6 << 20).unwrap().unwrap();
        let word = |offset: u64| (addr + offset) as *mut u64;
        // SAFETY: of all accesses here: they lie in the allocation, which nobody else knows.
        unsafe { word(0).write_volatile(7) };
        assert_eq!(slab_of(addr).0, Access::Write, "no launch has had it");
        close();
        assert_eq!(slab_of(addr), (Access::None, vec![]));
        // SAFETY: as above.
        assert_eq!(unsafe { word(0).read_volatile() }, 7);
        assert_eq!(slab_of(addr), (Access::Read, vec![]), "a load asks for all of it");
        // SAFETY: as above.
        unsafe { word(CHUNK_BYTES + 8).write_volatile(9) };
        assert_eq!(
            slab_of(addr),
            (Access::Read, vec![addr + CHUNK_BYTES]),
            "a store for its chunk"
        );
        close();
        // Who comes behind a host function waits for it first.
        let before = std::mem::replace(&mut lock().pager, Pager::New);
        assert_eq!(put_function(0, || SUCCESS), SUCCESS);
        assert!(lock().has_functions);
        let mut state = lock_to_put();
        assert!(!state.has_functions);
        state.pager = before;
        drop(state);
        // By several threads, and by a store first.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                // SAFETY: as above; each has words of its own.
                scope.spawn(move || unsafe { word(16 + 8 * thread).write_volatile(thread) });
            }
        });
        assert_eq!(slab_of(addr), (Access::Read, vec![addr]));
        // SAFETY: as above.
        let read = unsafe { (word(CHUNK_BYTES + 8).read_volatile(), word(24).read_volatile()) };
        assert_eq!(read, (9, 1));
        close();
        // A system call makes no fault.
        let file = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: bytes of the allocation.
        let written = unsafe { crate::system::write(descriptor, word(0).cast::<c_void>().cast_const(), 4096) };
        assert_eq!((written, slab_of(addr)), (4096, (Access::Read, vec![])));
        assert_eq!((free(addr), free(addr)), (SUCCESS, INVALID_VALUE), "it is freed once");
    }
}
