//! Managed memory, and the launches that use it.
//!
//! As long as the GPU's memory holds all of it, it is there as a whole ([`crate::resident`]). Else it is paged. A slab of the window is a region whose home is the slab itself, so that a pointer which the program has is right everywhere: on the host, in the
//! driver's copies, in kernels that look no page up. What changes is what the host may do. Before a launch that may reach it every slab is closed:
//! an access of the host faults, and [`State::open`] then brings home what launches wrote. Where the host writes, frames are dropped before the next launch.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use gpuvm::{CudaGpu, RawRegion, StreamHandle, Transport, Vm};
use parking_lot::{Mutex, MutexGuard};

use crate::book::{Allocated, Book, Freed};
use crate::code::{Code, Forms};
use crate::driver::{self, PER_THREAD, SUCCESS, Status, call};
use crate::resident::{Asked, Marks, Resident};
use crate::slab::{Slab, chain};
use crate::summary::Summary;
use crate::timing::Timing;
use crate::window::Access;
use crate::within::{self, Call};
use crate::{faults, settings, window};

/// Launches of programs end by themselves.
const DEADLINE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Of the GPU's free memory such a part is left for what the program asks for later.
const LEFT_FREE: u64 = 10;
/// Frames change by so many bytes.
const FRAMES_STEP: u64 = 64 << 20;

/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` and `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`, and why rewritten kernels meet them.
const OUT_OF_RESOURCES: Status = 701;
const TOO_LARGE: Status = 720;
const TOO_MANY_REGISTERS: &str =
    "looking pages up takes too many registers: give --registers a smaller number, such as 64";

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

static STATE: Mutex<Option<State>> = Mutex::new(None);

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

/// The state when nothing runs that may use managed memory. It waits without the lock where a host function of the program's may need it.
pub fn settled() -> Locked {
    loop {
        let mut state = lock();
        let running = match &mut state.pager {
            Pager::Resident(resident) if within::are_pending() => resident.running(),
            _ => None,
        };
        let Some((marks, number)) = running else { return state };
        drop(state);
        let context = driver::current_context();
        marks.wait();
        driver::set_current_context(context);
        if let Pager::Resident(resident) = &mut lock().pager {
            resident.ended(number);
        }
    }
}

/// The state for a call of the driver's on a stream that may wait for it. As [`settled`].
pub fn settled_stream(stream: u64) -> Locked {
    if within::are_pending() && !driver::is_captured(stream) {
        // SAFETY: the stream that the program has just named.
        let _ = unsafe { call!(cuStreamSynchronize(stream => u64)) };
    }
    lock()
}

/// What a launch is of.
pub enum Work<'a> {
    /// A kernel, by the program's handle.
    Kernel(usize),
    /// Something else that may use managed memory at home, for the summary.
    Other(&'a str),
}

/// Makes managed memory right for the host that has faulted there, in a host function of a stream or elsewhere.
fn mend(addr: u64, writes: bool, within: Option<&Call>) -> bool {
    driver::heed_no_captures();
    let begun = Instant::now();
    let (mut state, asked) = match within.filter(|_| lock().is_resident()) {
        Some(call) => {
            call.before.wait();
            (lock(), Asked::Behind(addr))
        }
        None => (settled(), Asked::Fault(addr)),
    };
    let is_there = |memory: &Memory| memory.book.slab_of(addr).is_some();
    if !state.memory.as_ref().is_some_and(is_there) {
        return false;
    }
    state.open_for(&(addr..addr + 1), &asked, writes);
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
    let mut closed = Ok(());
    for slab in memory.slabs.values_mut() {
        let all = slab.pages.clone();
        if let Some(twin) = &mut slab.twin {
            closed = closed.and(twin.close(resident, &all, &mut state.summary));
        }
    }
    if let Err(why) = closed.and_then(|()| resident.wait_for_copies()) {
        state.summary.note(why);
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
    // SAFETY: a function that stays: this library is never unloaded. Where there is no room for it nothing is printed.
    unsafe { libc::atexit(print) };
}

/// As [`State::launch`], where host functions of the program's have not ended: a stream that is full waits for them, and they for the state.
pub fn launch_unlocked(work: Work<'_>, stream: u64, enqueue: impl Fn(usize) -> Status) -> Status {
    let mut state = lock();
    let handle = match work {
        Work::Kernel(handle) => state.code.plain(handle),
        Work::Other(_) => 0,
    };
    if !state.is_resident() || driver::is_captured(stream) || state.close_for(stream).is_err() {
        return state.launch(work, stream, enqueue);
    }
    let name = state.name(&work);
    drop(state);
    let status = enqueue(handle);
    let mut state = lock();
    // What the host was given meanwhile may be from before.
    if let Err(why) = state.close_for(stream) {
        state.summary.note(why);
    }
    state.ran(&name, status);
    status
}

/// The forms of a launch's kernel that look pages up, or why it uses all of them at home.
fn forms_of(code: &Code, work: &Work<'_>, handle: usize) -> (Option<Forms>, Option<Arc<str>>) {
    let function = match (work, code.function(handle)) {
        (Work::Kernel(_), Some(function)) => function,
        (Work::Kernel(_), None) => return (None, Some("nobody saw its code".into())),
        (Work::Other(_), _) => return (None, Some("its kernels are not looked at".into())),
    };
    let forms = || function.forms(handle).ok_or("the driver refuses its rewritten text");
    match &function.at_home {
        Some(why) => (None, Some(Arc::clone(why))),
        None => forms().map_or_else(|why| (None, Some(why.into())), |forms| (Some(forms), None)),
    }
}

impl State {
    /// Managed memory of so many bytes; none where the window has no more.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        if self.memory.is_none() {
            self.begin()?;
        }
        let memory = self.memory.as_mut()?;
        let Allocated { addr, new_slab } = memory.book.allocate(bytes)?;
        let Some(pages) = new_slab else { return Some(addr) };
        let made = self.make(&pages);
        let memory = self.memory.as_mut()?;
        match made {
            Ok(slab) => drop(memory.slabs.insert(pages.start, slab)),
            Err(why) => {
                self.summary
                    .note(format!("{bytes} bytes stay CUDA's managed memory: {why}"));
                memory.book.forget(pages.start);
                window::empty(pages);
                return None;
            }
        }
        // Programs take their time from the first launch on.
        self.ready();
        self.grow();
        Some(addr)
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

    /// Memory at pages of the window.
    fn make(&mut self, pages: &Range<u64>) -> Result<Slab, String> {
        let mut slab = Slab::new(pages.clone());
        let begun = Instant::now();
        if let Pager::Resident(resident) = &mut self.pager {
            match resident.twin(pages) {
                Ok(twin) => {
                    slab.twin = Some(twin);
                    self.summary
                        .took("taking memory of the GPU, and pinning the host's", begun);
                    self.summary.holds(resident.bytes());
                    return Ok(slab);
                }
                Err(why) => self.leave_gpu(&why),
            }
        }
        if !window::fill(pages.clone()) {
            return Err("the system refuses the memory".into());
        }
        match &self.pager {
            // It is about to begin.
            Pager::New | Pager::Resident(_) => {}
            Pager::Paging(paging) => {
                slab.page(&paging.vm)?;
                self.summary.took("pinning managed memory", begun);
            }
            Pager::None => slab.pin()?,
        }
        Ok(slab)
    }

    /// Has managed memory leave the GPU's memory, all of it: somebody else may page it.
    fn leave_gpu(&mut self, why: &str) {
        if !matches!(self.pager, Pager::Resident(_)) {
            return;
        }
        let before = std::mem::replace(&mut self.pager, Pager::New);
        let (Pager::Resident(mut resident), Some(memory)) = (before, &mut self.memory) else {
            return;
        };
        self.summary
            .note(format!("kernels are not run as they are any more: {why}"));
        for slab in memory.slabs.values_mut() {
            let left = slab
                .twin
                .take()
                .map(|mut twin| twin.leave(&mut resident, &mut self.summary));
            if let Some(Err(why)) = left {
                self.summary.note(why);
            }
        }
        let filled = |slab: &Slab| window::fill(slab.pages.clone());
        if !window::leave_gpu() || !memory.slabs.values().all(filled) {
            // Pointers of the program's lead nowhere.
            eprintln!("gpuvm exec: the addresses of managed memory are lost");
            std::process::abort();
        }
    }

    /// Frees managed memory that nothing uses any more. False for what is none of ours.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        match memory.book.free(addr) {
            Freed::Unknown => return false,
            Freed::Piece => {}
            Freed::Slab(pages) => {
                if let Some(mut slab) = memory.slabs.remove(&pages.start) {
                    if let (Some(mut twin), Pager::Resident(resident)) = (slab.twin.take(), &mut self.pager)
                        && let Err(why) = resident.end(&mut twin)
                    {
                        // Its addresses serve nobody else.
                        self.summary.note(format!("managed memory stays: {why}"));
                        return true;
                    }
                    let closed = slab.region.take().map(|region| {
                        let all = 0..region.len();
                        region.discard(all).and_then(|()| region.close())
                    });
                    if let Some(Err(error)) = closed {
                        // The GPU may use it still: its addresses serve nobody else.
                        self.summary.note(format!("managed memory stays: {}", chain(&error)));
                        return true;
                    }
                    if matches!(self.pager, Pager::None) {
                        let base = pages.start as *mut c_void;
                        // SAFETY: it was pinned when there was nobody to page it, if it was.
                        let _ = unsafe { call!(cuMemHostUnregister(base => *mut c_void)) };
                    }
                }
                memory.book.forget(pages.start);
                window::empty(pages);
            }
        }
        true
    }

    /// Lets the host, or the driver, read the managed memory of a range, and write it if that is said. Whatever goes wrong, the host may then.
    pub fn open(&mut self, part: &Range<u64>, writes: bool) {
        self.open_for(part, &Asked::Part(part.clone()), writes);
    }

    fn open_for(&mut self, part: &Range<u64>, asked: &Asked, writes: bool) {
        let Some(memory) = &mut self.memory else { return };
        let of_part = |slab: &&mut Slab| slab.pages.start < part.end && part.start < slab.pages.end;
        let mut failed = Ok(());
        for slab in memory.slabs.values_mut().filter(of_part) {
            failed = failed.and(match (&mut slab.twin, &mut self.pager) {
                (Some(twin), Pager::Resident(resident)) => twin.open(resident, asked, writes, &mut self.summary),
                _ => slab.open(part, writes),
            });
        }
        match (failed, &self.pager) {
            (Ok(()), _) => {}
            // The program's own error, which it is told.
            (Err(why), Pager::Resident(_)) => self.summary.note(why),
            (Err(why), _) => self.give_up(&why),
        }
    }

    /// Readies those ranges of managed memory, or all of it, for something that the program has the driver do on the GPU: that is about to be put on
    /// a stream. False where the GPU does not hold them.
    pub fn give_gpu(&mut self, parts: &[Range<u64>], stream: u64) -> bool {
        let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) else {
            return false;
        };
        for part in parts {
            let of_part = |slab: &&mut Slab| slab.pages.start < part.end && part.start < slab.pages.end;
            for slab in memory.slabs.values_mut().filter(of_part) {
                let Some(twin) = &mut slab.twin else { continue };
                if let Err(why) = twin.close(resident, part, &mut self.summary) {
                    self.summary.note(why);
                }
            }
        }
        if let Err(why) = resident.expect(stream) {
            self.summary.note(why);
        }
        true
    }

    /// Marks what was put on streams by now. None where the GPU does not hold managed memory.
    pub fn marks(&mut self) -> Option<Marks> {
        match &mut self.pager {
            Pager::Resident(resident) => Some(resident.marks()),
            _ => None,
        }
    }

    /// All that managed memory may be.
    pub fn window(&self) -> Range<u64> {
        self.memory.as_ref().map_or(0..0, |memory| memory.window.clone())
    }

    /// Whether the GPU's memory holds all of it.
    pub fn is_resident(&self) -> bool {
        matches!(self.pager, Pager::Resident(_))
    }

    /// Whether the program has managed memory of ours.
    pub fn has_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.slabs.is_empty())
    }

    /// Sees to it that the GPU reaches managed memory. Nothing of it is done in a context that is not a GPU's primary one.
    pub fn ready(&mut self) {
        if !matches!(self.pager, Pager::New) || !self.has_memory() {
            return;
        }
        let made = match self.context() {
            (context, Some(gpu)) => self.page(context, gpu),
            (_, None) => {
                Err("the program's context is not its GPU's primary one, which the CUDA runtime uses".to_owned())
            }
        };
        if let Err(why) = made {
            self.give_up(&why);
        }
    }

    /// The current context, and the GPU whose primary one it is.
    fn context(&mut self) -> (usize, Option<i32>) {
        let context = driver::current_context();
        let primary = || driver::current_gpu().and_then(|(gpu, is_primary)| is_primary.then_some(gpu));
        (context, *self.contexts.entry(context).or_insert_with(primary))
    }

    fn page(&mut self, context: usize, gpu: i32) -> Result<(), String> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        gpuvm_gpu::cuda::find_driver_by(driver::find);
        let page = settings::page_bytes();
        let builder = Vm::builder()
            .gpu(CudaGpu::ordinal(gpu.unsigned_abs()))
            .transport(Transport::Direct)
            .page_size(page)
            .launch_deadline(DEADLINE)
            .window_over(memory.window.clone());
        let free = driver::free_bytes().unwrap_or(0);
        let (frames, frames_max, builder) = match settings::frame_bytes() {
            Some(bytes) => (bytes, bytes, builder.frame_memory(bytes)),
            None => {
                let most = (free - free / LEFT_FREE).max(FRAMES_STEP);
                let grows = builder.frame_memory(FRAMES_STEP).frame_capacity(most);
                (FRAMES_STEP, most, grows)
            }
        };
        let begun = Instant::now();
        let vm = builder.build().map_err(|error| chain(&error))?;
        self.summary.took("beginning to page", begun);
        let window = vm.window_bytes().map_err(|error| chain(&error))?;
        let paged = memory.slabs.values_mut().try_for_each(|slab| slab.page(&vm));
        self.summary.pages(frames, page);
        self.pager = Pager::Paging(Paging {
            vm,
            context,
            window,
            frames,
            frames_max,
            streams: HashMap::new(),
        });
        paged
    }

    /// Sees to frames for all managed memory, as far as there is GPU memory.
    fn grow(&mut self) {
        let (Pager::Paging(paging), Some(memory)) = (&mut self.pager, &self.memory) else {
            return;
        };
        let all = memory.bytes();
        let begun = Instant::now();
        // With some that no page needs, so that all have one.
        let wanted = (all.next_multiple_of(FRAMES_STEP) + FRAMES_STEP).min(paging.frames_max);
        let free = driver::free_bytes().unwrap_or(0);
        let wanted = wanted.min(paging.frames + (free - free / LEFT_FREE) / FRAMES_STEP * FRAMES_STEP);
        if wanted <= paging.frames {
            return;
        }
        match paging.vm.resize_frames(wanted) {
            Ok(resized) => {
                self.summary.took("taking frames", begun);
                paging.frames = resized.bytes;
                self.summary.pages(resized.bytes, settings::page_bytes());
            }
            Err(error) => self
                .summary
                .note(format!("there are no more frames: {}", chain(&error))),
        }
    }

    /// From now on nobody pages: what is in frames goes home, and kernels find all there.
    pub fn give_up(&mut self, why: &str) {
        self.leave_gpu(why);
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

    /// A stream is about to end.
    pub fn forget_stream(&mut self, stream: u64) {
        match &mut self.pager {
            Pager::Paging(paging) => drop(paging.streams.remove(&(stream, None))),
            Pager::Resident(resident) => resident.forget_stream(stream),
            Pager::New | Pager::None => {}
        }
    }

    /// Has `enqueue` put work on a stream, of a kernel with the handle that it is given.
    pub fn launch(&mut self, work: Work<'_>, stream: u64, enqueue: impl Fn(usize) -> Status) -> Status {
        let handle = match work {
            Work::Kernel(handle) => handle,
            Work::Other(_) => 0,
        };
        let plain = self.code.plain(handle);
        if !self.has_memory() || driver::is_captured(stream) {
            // Of a graph that is captured the launch is told.
            return enqueue(plain);
        }
        self.ready();
        let launched = match self.is_resident() {
            true => self.launch_resident(&work, plain, stream, &enqueue),
            false => self.launch_paged(&work, handle, stream, &enqueue),
        };
        match launched {
            Ok(status) => status,
            Err(why) => {
                if !matches!(self.pager, Pager::None) {
                    self.give_up(&why);
                }
                self.summary.at_home(&self.name(&work), &why);
                enqueue(plain)
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

    /// As it was written. The error says why the GPU cannot hold the memory.
    fn launch_resident(
        &mut self,
        work: &Work<'_>,
        handle: usize,
        stream: u64,
        enqueue: &impl Fn(usize) -> Status,
    ) -> Result<Status, String> {
        let begun = Instant::now();
        self.close_for(stream)?;
        self.summary.took("closing managed memory", begun);
        let begun = Instant::now();
        let name = self.name(work);
        let status = match settings::is_verbose() {
            true => self.timing.around(&name, stream, || enqueue(handle)),
            false => enqueue(handle),
        };
        self.summary.took("launching", begun);
        self.ran(&name, status);
        Ok(status)
    }

    /// What became of a launch of a kernel as it was written.
    fn ran(&mut self, name: &str, status: Status) {
        match status {
            SUCCESS => self.summary.ran(name),
            // The program's own mistake.
            status => self.summary.refused(name, status),
        }
    }

    /// Has the GPU have all managed memory, for something that is about to be put on a stream. The error says why it cannot.
    fn close_for(&mut self, stream: u64) -> Result<(), String> {
        let (Pager::Resident(resident), Some(memory)) = (&mut self.pager, &mut self.memory) else {
            return Err("nobody has the memory".into());
        };
        if resident.context != driver::current_context() {
            return Err("the program launches in several contexts".into());
        }
        for slab in memory.slabs.values_mut() {
            let all = slab.pages.clone();
            if let Some(twin) = &mut slab.twin {
                twin.close(resident, &all, &mut self.summary)?;
            }
        }
        resident.expect(stream)
    }

    /// The error says why nobody pages.
    fn launch_paged(
        &mut self,
        work: &Work<'_>,
        handle: usize,
        stream: u64,
        enqueue: &impl Fn(usize) -> Status,
    ) -> Result<Status, String> {
        let (name, context) = (self.name(work), driver::current_context());
        let Pager::Paging(paging) = &mut self.pager else {
            return Err("nobody pages".into());
        };
        if paging.context != context {
            return Err("the program launches in several contexts".into());
        }
        let (forms, at_home) = forms_of(&self.code, work, handle);
        let function = self.code.function(handle);
        let plain = self.code.plain(handle);
        if let (Some(_), Some(loaded)) = (forms, function.and_then(|function| function.loaded.as_ref())) {
            loaded.describe(&paging.window)?;
        }
        let Some(memory) = &mut self.memory else {
            return Ok(enqueue(handle));
        };
        let fits = memory.bytes() <= paging.frames;
        let begun = Instant::now();
        let was_open = memory.slabs.values().any(|slab| slab.access != Access::None);
        memory.slabs.values_mut().try_for_each(|slab| slab.close(fits))?;
        self.summary.took("closing managed memory", begun);
        let regions: Vec<&RawRegion> = memory.slabs.values().filter_map(|slab| slab.region.as_ref()).collect();
        let stream_of = stream;
        let stream = borrowed(&mut paging.streams, &paging.vm, stream)?;
        let status = std::cell::Cell::new(None);
        let timing = settings::is_verbose().then_some(&mut self.timing);
        let put = |complete: bool| {
            let form = forms.map_or(plain, |forms| if complete { forms.quiet } else { forms.marking });
            let enqueue = || enqueue(form);
            let put = match timing {
                Some(timing) if complete => timing.around(&name, stream_of, enqueue),
                Some(timing) => timing.around(&format!("{name}, marking"), stream_of, enqueue),
                None => enqueue(),
            };
            status.set(Some(put));
            match put {
                SUCCESS => Ok(()),
                status => Err(format!("CUDA error {status}")),
            }
        };
        let begun = Instant::now();
        // SAFETY: it puts a kernel there that looks pages up in this window, or one that finds them at home.
        let launched = unsafe { paging.vm.launch_over(stream, (&name, at_home.is_some()), &regions, put) };
        self.summary.took(
            if was_open {
                "launching, behind accesses of the host"
            } else {
                "launching"
            },
            begun,
        );
        let launched = launched.map(drop).map_err(|error| chain(&error));
        if forms.is_some() && matches!(status.get(), Some(OUT_OF_RESOURCES | TOO_LARGE)) {
            // As it was written it may run.
            self.code.keep_at_home(handle, TOO_MANY_REGISTERS);
            return self.launch_paged(work, handle, stream_of, enqueue);
        }
        self.launched((&name, at_home), launched, status.get())
    }

    /// What became of a launch of what was paged.
    fn launched(
        &mut self,
        (name, at_home): (&str, Option<Arc<str>>),
        launched: Result<(), String>,
        status: Option<Status>,
    ) -> Result<Status, String> {
        match (launched, status) {
            (Ok(()), Some(SUCCESS)) => {}
            (Err(why), Some(SUCCESS)) => {
                // It runs, and nobody else would wait for it.
                driver::synchronize();
                self.give_up(&why);
                return Ok(SUCCESS);
            }
            // The program's own mistake, or too many registers.
            (_, Some(status)) => {
                self.summary.refused(name, status);
                return Ok(status);
            }
            (Err(why), None) => return Err(why),
            (Ok(()), None) => return Err("nothing was launched".into()),
        }
        match at_home {
            None => self.summary.looked_up(name),
            Some(why) => self.summary.at_home(name, &why),
        }
        Ok(SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::CHUNK_BYTES;

    /// What the host may do with the slab of an address, and the chunks that it has written.
    fn slab_of(addr: u64) -> (Access, Vec<u64>) {
        let state = lock();
        let memory = state.memory.as_ref().unwrap();
        let slab = &memory.slabs[&memory.book.slab_of(addr).unwrap().start];
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
        let addr = lock().allocate(6 << 20).unwrap();
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
        let mut state = lock();
        assert!(state.free(addr) && !state.free(addr), "it is freed once");
    }
}
