//! Managed memory that the GPU's memory holds as a whole: the GPU has memory of its own at the addresses where the host has its. Kernels run as
//! they were written, and nothing comes or goes while they do.
//!
//! The host begins with nothing that it may access. What it reads first is copied to its memory, what it writes is copied to the GPU's before the
//! next launch. Behind a launch the GPU's memory is what counts, all of it, since nobody knows what the launch wrote.

use std::ffi::c_void;
use std::ops::Range;
use std::thread::ThreadId;
use std::time::Instant;

use crate::book::CHUNK_BYTES;
use crate::driver::{self, PER_THREAD, SUCCESS, Status, call};
use crate::early::{self, Early};
use crate::error::ExecError;
use crate::ranges::Ranges;
use crate::settings;
use crate::summary::Summary;
use crate::window::{self, Access};

/// What the host asks for first, and at most: more each time that it goes on.
pub const FIRST_BYTES: u64 = 64 << 10;
const MOST_BYTES: u64 = 64 << 20;
/// At most where it goes about.
const MOVED_BYTES: u64 = 2 << 20;
/// After so many questions about an allocation the least that is opened for one doubles.
const FEW_FAULTS: u32 = 16;
/// What the host has written and left behind is copied before a launch asks for it from so many bytes on.
const AHEAD_BYTES: u64 = 1 << 20;
/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;

/// The GPU that holds managed memory.
pub struct Resident {
    place: Place,
    /// Bytes of the GPU's memory.
    bytes: u64,
    /// What happens on the stream of copies behind those to the GPU that launches wait for; how often there were such, and how many have arrived.
    copied: u64,
    copies: u64,
    arrived: u64,
    /// What was put on streams of the program's that may use managed memory: how often, up to which it has ended, and what is being put there now.
    put: u64,
    ended: u64,
    being_put: u32,
    /// Where that was since all had ended last.
    streams: Vec<Stream>,
    /// Behind what was on streams before they were captured.
    captured: Vec<u64>,
    /// How often the host was given something.
    pub opened: u64,
    /// What the program's work ended with: nothing runs there any more.
    lost: Option<Status>,
}

/// A stream of the program's.
struct Stream {
    name: u64,
    /// Which put something there: the default stream may be each thread's own.
    thread: ThreadId,
    /// Of the copies to the GPU it waits for so many.
    copies: u64,
}

/// Where managed memory is on the GPU, and the stream that copies it.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    context: usize,
    device: i32,
    copier: u64,
    /// Bytes that are there, and copies to the GPU that have arrived.
    held: u64,
    arrived: u64,
}

/// A wait for what was put on streams by some time. Nobody keeps the state meanwhile.
pub struct Wait {
    context: usize,
    put: u64,
    copies: u64,
    streams: Vec<u64>,
    events: Vec<u64>,
}

impl Wait {
    /// Waits.
    pub fn wait(&self) -> Status {
        driver::from_context(|| {
            driver::set_current_context(self.context);
            driver::unhindered(|| match driver::somebody_captures() {
                // What is captured, and all that has it, may not be waited for.
                true => self.one_by_one(),
                false => driver::synchronize(),
            })
        })
    }

    fn one_by_one(&self) -> Status {
        // SAFETY: streams that the program has, which tells when it ends one, and events of ours.
        let mut streams = self.streams.iter().map(|stream| unsafe {
            match driver::is_captured(*stream) {
                true => SUCCESS,
                false => call!(cuStreamSynchronize(*stream => u64)),
            }
        });
        let failed = streams.find(|status| *status != SUCCESS);
        // SAFETY: as above.
        let mut events = self
            .events
            .iter()
            .map(|event| unsafe { call!(cuEventSynchronize(*event => u64)) });
        failed
            .or_else(|| events.find(|status| *status != SUCCESS))
            .unwrap_or(SUCCESS)
    }
}

/// An allocation's memory on the GPU, and what the host may do with it.
pub struct Twin {
    pages: Range<u64>,
    memory: u64,
    is_pinned: bool,
    /// What the host may read; and what of it may write, and so is to be copied to the GPU.
    readable: Ranges,
    writable: Ranges,
    early: Early,
    /// What was copied to the GPU since something ran there, and with which copy the last of it was.
    ahead: Ranges,
    copied: u64,
    /// Since something ran on the GPU that may have written it, what the host may not read is there alone.
    is_newer: bool,
    /// Questions of the host's since then, where the last one's answer ended, and how much it was.
    faults: u32,
    last: (u64, u64),
}

fn status(what: &'static str, status: Status) -> Result<(), ExecError> {
    match status {
        SUCCESS => Ok(()),
        status => Err(ExecError::Driver { what, status }),
    }
}

/// `CUmemAllocationProp` of memory of a GPU.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kind {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`, no handles to share it by, `CU_MEM_LOCATION_TYPE_DEVICE`, the GPU.
    words: [i32; 4],
    rest: [u64; 2],
}

impl Resident {
    /// Has the driver reserve addresses for it, on the GPU whose primary context is current. None where it cannot be.
    pub fn begin() -> Option<(Self, Range<u64>)> {
        let (device, true) = driver::current_gpu()? else {
            return None;
        };
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: u32 = 1;
        let (mut copier, mut copied) = (0u64, 0u64);
        // SAFETY: out-values.
        let made = unsafe {
            call!(cuStreamCreate(&raw mut copier => *mut u64, NON_BLOCKING => u32)) == SUCCESS
                && call!(cuEventCreate(&raw mut copied => *mut u64, UNTIMED => u32)) == SUCCESS
        };
        if !made {
            return None;
        }
        let window = window::reserve_on_gpu()?;
        let place = Place {
            context: driver::current_context(),
            device,
            copier,
            held: 0,
            arrived: 0,
        };
        let resident = Self {
            place,
            bytes: 0,
            copied,
            copies: 0,
            arrived: 0,
            put: 0,
            ended: 0,
            being_put: 0,
            streams: Vec::new(),
            captured: Vec::new(),
            opened: 0,
            lost: None,
        };
        Some((resident, window))
    }

    /// Bytes of the GPU's memory that hold managed memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where allocations are made.
    pub fn place(&self) -> Place {
        Place {
            held: self.bytes,
            arrived: self.arrived,
            ..self.place
        }
    }

    pub fn device(&self) -> i32 {
        self.place.device
    }

    /// The error of the program's work, once that has failed.
    pub fn check(&self) -> Result<(), ExecError> {
        status("the program's work on the GPU", self.lost.unwrap_or(SUCCESS))
    }

    /// It has failed.
    pub fn lose(&mut self, status: Status) {
        self.lost = Some(status);
    }

    /// The program puts something on a stream: in the context that has the memory.
    pub fn check_context(&self) -> Result<(), ExecError> {
        if driver::current_context() == self.place.context {
            return Ok(());
        }
        let own = self.place.device;
        match driver::current_device() {
            Some(other) if other != own => Err(ExecError::OtherGpu { own, other }),
            _ => Err(ExecError::Contexts),
        }
    }

    /// An allocation has its memory.
    pub fn hold(&mut self, twin: &Twin) -> Result<(), ExecError> {
        self.bytes += twin.bytes();
        let noted = self.note_copies();
        if let Err(ExecError::Driver { status, .. }) = noted {
            // Launches would not wait for its zeros.
            self.lose(status);
        }
        noted
    }

    /// It is about to be given back.
    pub fn release(&mut self, twin: &Twin) {
        self.bytes = self.bytes.saturating_sub(twin.bytes());
    }

    /// Launches wait for what was put on the stream of copies.
    fn note_copies(&mut self) -> Result<(), ExecError> {
        self.copies += 1;
        // SAFETY: both are this library's own.
        status("copying to the GPU", unsafe {
            call!(cuEventRecord(self.copied => u64, self.place.copier => u64))
        })
    }

    /// Whether something may run that uses managed memory, or is about to.
    pub fn is_busy(&self) -> bool {
        self.put > self.ended || self.being_put > 0
    }

    /// Whether something is being put on a stream now.
    pub fn is_being_put(&self) -> bool {
        self.being_put > 0
    }

    /// What was put on streams by now and has not ended.
    pub fn running(&self) -> Option<Wait> {
        (self.put > self.ended && self.lost.is_none()).then(|| self.all())
    }

    /// What was put on streams by now.
    pub fn all(&self) -> Wait {
        let own = std::thread::current().id();
        // The default streams of other threads have no name here.
        let named = self
            .streams
            .iter()
            .filter(|stream| stream.name != PER_THREAD || stream.thread == own);
        Wait {
            context: self.place.context,
            put: self.put,
            copies: self.copies,
            streams: named.map(|stream| stream.name).chain([self.place.copier]).collect(),
            events: self.captured.clone(),
        }
    }

    /// That was waited for.
    pub fn waited(&mut self, wait: &Wait, waited: Status) -> Result<(), ExecError> {
        if waited != SUCCESS {
            self.lost = Some(waited);
        }
        status("waiting for the program's work on the GPU", waited)?;
        self.ended = self.ended.max(wait.put);
        self.arrived = self.arrived.max(wait.copies);
        if !self.is_busy() {
            self.streams.clear();
            self.captured.drain(..).for_each(end_event);
        }
        Ok(())
    }

    /// A stream of the program's is about to end. What runs there goes on.
    pub fn forget_stream(&mut self, stream: u64) {
        self.streams.retain(|other| other.name != stream);
    }

    /// A stream is about to be captured: what is there by now is waited for by an event from then on.
    pub fn mark_stream(&mut self, stream: u64) {
        if !self.streams.iter().any(|other| other.name == stream) {
            return;
        }
        let mut event = 0u64;
        // SAFETY: an out-value; the program has just named the stream.
        unsafe {
            if call!(cuEventCreate(&raw mut event => *mut u64, UNTIMED => u32)) == SUCCESS {
                let _ = call!(cuEventRecord(event => u64, stream => u64));
                self.captured.push(event);
            }
        }
    }

    /// Waits until copies to the GPU are there, up to one of them. They wait for nothing else.
    pub fn wait_for_copies(&mut self, copies: u64) -> Result<(), ExecError> {
        if self.arrived >= copies {
            return Ok(());
        }
        self.place.wait_for_copies()?;
        self.arrived = self.copies;
        Ok(())
    }

    /// As that, all of them.
    pub fn wait_for_all_copies(&mut self) -> Result<(), ExecError> {
        self.wait_for_copies(self.copies)
    }

    /// Something that uses managed memory is about to be put on a stream: behind the copies to the GPU. Then [`put`](Self::put) is to be called.
    pub fn expect(&mut self, stream: u64) -> Result<(), ExecError> {
        let own = std::thread::current().id();
        let is_it = |other: &Stream| other.name == stream && (stream != PER_THREAD || other.thread == own);
        let place = self.streams.iter().position(is_it).unwrap_or_else(|| {
            self.streams.push(Stream {
                name: stream,
                thread: own,
                copies: self.arrived,
            });
            self.streams.len() - 1
        });
        let stream_of = &mut self.streams[place];
        if stream_of.copies.max(self.arrived) < self.copies {
            // SAFETY: the program names the stream now.
            let waits = unsafe { call!(cuStreamWaitEvent(stream => u64, self.copied => u64, 0 => u32)) };
            status("waiting for copies to the GPU", waits)?;
            stream_of.copies = self.copies;
        }
        self.being_put += 1;
        Ok(())
    }

    /// It was put there.
    pub fn put(&mut self) {
        self.being_put -= 1;
        self.put += 1;
    }

    /// Copies what the GPU has to the host's memory.
    fn pull(&mut self, part: &Range<u64>) -> Result<(), ExecError> {
        self.place.enter();
        let (from, bytes) = (part.start, (part.end - part.start) as usize);
        let to: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(from) as usize);
        let copier = self.place.copier;
        // SAFETY: the same bytes of an allocation, on both sides; the host's are kept from the program.
        let pulled = unsafe {
            match call!(cuMemcpyDtoHAsync_v2(to => *mut c_void, from => u64, bytes => usize, copier => u64)) {
                SUCCESS => call!(cuStreamSynchronize(copier => u64)),
                failed => failed,
            }
        };
        if pulled == SUCCESS {
            self.arrived = self.copies;
        } else {
            self.lost = Some(pulled);
        }
        status("copying from the GPU", pulled)
    }

    /// Copies what the host has to the GPU, in the order of its own stream.
    fn push(&mut self, part: &Range<u64>, summary: &mut Summary) -> Result<(), ExecError> {
        let begun = Instant::now();
        let (to, bytes) = (part.start, (part.end - part.start) as usize);
        let from: *const c_void = std::ptr::with_exposed_provenance(window::twin_of(to) as usize);
        // SAFETY: as in `pull`. The host writes it only when the copy has ended: it asks, and is answered behind that.
        status("copying to the GPU", unsafe {
            call!(cuMemcpyHtoDAsync_v2(to => u64, from => *const c_void, bytes => usize, self.place.copier => u64))
        })?;
        summary.moved("copying to the GPU", begun, part.end - part.start);
        Ok(())
    }

    /// Ends what it has of the driver's. No allocation is there any more.
    pub fn end(&mut self) {
        self.place.enter();
        self.captured.drain(..).for_each(end_event);
        end_event(self.copied);
        // SAFETY: this library's own, which nobody uses from here on.
        let _ = unsafe { call!(cuStreamDestroy_v2(self.place.copier => u64)) };
    }
}

fn end_event(event: u64) {
    // SAFETY: one of ours, which nobody else has.
    let _ = unsafe { call!(cuEventDestroy_v2(event => u64)) };
}

impl Place {
    /// Makes its context the current one of this thread.
    fn enter(&self) {
        driver::set_current_context(self.context);
    }

    fn wait_for_copies(&self) -> Result<(), ExecError> {
        self.enter();
        // SAFETY: this library's own stream.
        status("copying to the GPU", unsafe {
            call!(cuStreamSynchronize(self.copier => u64))
        })
    }

    /// Whether so much more managed memory may be there.
    fn has_room(&self, bytes: u64) -> Result<(), ExecError> {
        let fits = match settings::frame_bytes() {
            Some(most) => self.held + bytes <= most,
            None => {
                let free = driver::free_bytes();
                bytes
                    <= settings::usable(free.map_err(|status| ExecError::Driver {
                        what: "asking for the GPU's memory",
                        status,
                    })?)
            }
        };
        fits.then_some(()).ok_or(ExecError::Full)
    }

    /// Takes memory of the GPU for an allocation. Its context stays the current one. Launches wait for it once it is [held](Resident::hold).
    ///
    /// # Errors
    /// There is not enough.
    pub fn twin(&self, pages: &Range<u64>) -> Result<Twin, ExecError> {
        self.enter();
        let mut twin = Twin::new(pages.clone());
        self.has_room(twin.bytes())?;
        let has_memory = window::fill_twin(pages);
        let kind = Kind {
            words: [1, 0, 1, self.device],
            rest: [0; 2],
        };
        let length = twin.bytes() as usize;
        // SAFETY: an out-value and a description as the driver has it.
        let made = unsafe {
            call!(cuMemCreate(&raw mut twin.memory => *mut u64, length => usize, &raw const kind => *const Kind, 0 => u64))
        };
        status("memory of the GPU for managed memory", made)?;
        match self.map(&mut twin, length, has_memory) {
            Ok(()) => Ok(twin),
            Err(error) => {
                let _ = twin.end_mapping();
                Err(error)
            }
        }
    }

    fn map(&self, twin: &mut Twin, length: usize, pins: bool) -> Result<(), ExecError> {
        /// `CUmemAccessDesc`: memory of that GPU, to be read and written.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Rights([i32; 3]);
        let rights = Rights([1, self.device, 3]);
        let at = twin.pages.start;
        let host: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(at) as usize);
        // SAFETY: addresses of the window that nobody has, and memory that was made for them. Zeros, as the host's are; launches wait for them.
        unsafe {
            let mapped = call!(cuMemMap(at => u64, length => usize, 0 => usize, twin.memory => u64, 0 => u64));
            status("mapping memory of the GPU", mapped)?;
            let may = call!(cuMemSetAccess(at => u64, length => usize, &raw const rights => *const Rights, 1 => usize));
            status("mapping memory of the GPU", may)?;
            let zeroed = call!(cuMemsetD8Async(at => u64, 0 => u8, length => usize, self.copier => u64));
            status("clearing memory of the GPU", zeroed)?;
            let bytes = (twin.pages.end - twin.pages.start) as usize;
            // Copies are slower where it cannot be.
            twin.is_pinned = pins
                && call!(cuMemHostRegister_v2(host => *mut c_void, bytes => usize, driver::PORTABLE => u32)) == SUCCESS;
        }
        Ok(())
    }

    /// Gives an allocation's memory back, which nothing on the GPU uses any more.
    pub fn end(&self, twin: &mut Twin) -> Result<(), ExecError> {
        self.enter();
        if twin.copied > self.arrived {
            // The driver may copy from it still. Where it cannot be waited for nothing is copied any more.
            let _ = self.wait_for_copies();
        }
        twin.end_mapping()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        debug_assert_eq!(self.memory, 0, "its memory was given back");
    }
}

impl Twin {
    /// Zeros on both sides, of which the host may touch nothing.
    fn new(pages: Range<u64>) -> Self {
        Self {
            pages,
            memory: 0,
            is_pinned: false,
            readable: Ranges::default(),
            writable: Ranges::default(),
            early: Early::default(),
            ahead: Ranges::default(),
            copied: 0,
            is_newer: false,
            faults: 0,
            last: (0, 0),
        }
    }

    fn bytes(&self) -> u64 {
        (self.pages.end - self.pages.start).next_multiple_of(CHUNK_BYTES)
    }

    fn end_mapping(&mut self) -> Result<(), ExecError> {
        let memory = std::mem::take(&mut self.memory);
        let host: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(self.pages.start) as usize);
        // SAFETY: what was mapped and pinned for this allocation; where mapping failed the driver refuses.
        unsafe {
            if std::mem::take(&mut self.is_pinned) {
                let _ = call!(cuMemHostUnregister(host => *mut c_void));
            }
            let unmapped = call!(cuMemUnmap(self.pages.start => u64, self.bytes() as usize => usize));
            let released = call!(cuMemRelease(memory => u64));
            status("giving memory of the GPU back", unmapped)?;
            status("giving memory of the GPU back", released)
        }
    }

    /// In how many pieces the system has it.
    pub fn pieces(&self) -> usize {
        self.readable.len() + self.writable.len()
    }

    /// What is opened and closed as one, of a part.
    fn whole(&self, part: &Range<u64>) -> Range<u64> {
        let start = part.start / FIRST_BYTES * FIRST_BYTES;
        let end = part.end.checked_next_multiple_of(FIRST_BYTES).unwrap_or(part.end);
        start.max(self.pages.start)..end.min(self.pages.end)
    }

    /// Whether the GPU alone has what is in a part.
    pub fn is_elsewhere(&self, part: &Range<u64>) -> bool {
        self.is_newer && !self.readable.gaps(&self.whole(part)).is_empty()
    }

    /// Whether an access goes on where the last one's answer ended.
    fn goes_on(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.last.0) < FIRST_BYTES
    }

    /// How much is opened for a fault of the host's: more where it goes on behind the last one, and where it asks often.
    fn span(&mut self, addr: u64) -> Range<u64> {
        self.faults += 1;
        // As much as moves in the time that a question takes; what does not move costs nothing.
        let most = if self.is_newer { MOVED_BYTES } else { MOST_BYTES };
        let least = (FIRST_BYTES << (self.faults / FEW_FAULTS).min(10)).min(most);
        let bytes = match self.goes_on(addr) {
            true => (2 * self.last.1).max(least),
            false => least,
        };
        let bytes = bytes.min(MOST_BYTES);
        let start = addr / FIRST_BYTES * FIRST_BYTES;
        // The pages of an allocation are mostly that large; smaller ones are opened as a whole.
        let start = start.max(self.pages.start);
        let end = start.saturating_add(bytes).min(self.pages.end);
        self.last = (end, bytes);
        start..end
    }

    /// Lets the host read what a fault needs, or a part, and write it if that is said. All was waited for that it comes behind. `is_early`: what is on
    /// the GPU may change meanwhile.
    pub fn open(
        &mut self,
        resident: &mut Resident,
        (asked, writes, is_early): (&Asked, bool, bool),
        summary: &mut Summary,
    ) -> Result<(), ExecError> {
        if resident.lost.is_some() {
            // The program has its error; what the GPU had is gone.
            return self.open_all();
        }
        resident.opened += 1;
        // What no launch has had none changes.
        let is_early = is_early && self.is_newer;
        if is_early {
            early::announce();
        }
        let part = match asked {
            Asked::Fault(addr) if is_early => self.whole(&(*addr..*addr + 1)),
            Asked::Fault(addr) => {
                if writes && self.goes_on(*addr) {
                    self.push_ahead(resident, summary)?;
                }
                self.span(*addr)
            }
            Asked::Part(part) => self.whole(part),
        };
        let closed = self.readable.gaps(&part);
        for gap in closed.iter().filter(|_| self.is_newer) {
            let begun = Instant::now();
            if resident.pull(gap).is_err() && resident.lost.is_some() {
                return self.open_all();
            }
            summary.moved("copying to the host", begun, gap.end - gap.start);
        }
        if is_early {
            self.keep(&part, asked, writes);
        }
        if !writes {
            closed.into_iter().try_for_each(|gap| allow(gap, Access::Read))?;
        } else if !self.writable.gaps(&part).is_empty() {
            if !self.ahead.within(&part).is_empty() {
                resident.wait_for_copies(self.copied)?;
            }
            allow(part.clone(), Access::Write)?;
            self.writable.insert(part.clone());
        }
        self.readable.insert(part);
        Ok(())
    }

    /// Lets the host read and write all of it as it is.
    fn open_all(&mut self) -> Result<(), ExecError> {
        allow(self.pages.clone(), Access::Write)
    }

    /// Notes what there is of a part, of which the GPU may change other bytes than the host.
    fn keep(&mut self, part: &Range<u64>, asked: &Asked, writes: bool) {
        let mut at = part.start;
        while at < part.end {
            let granule = self.whole(&(at..at + 1));
            at = granule.end;
            // What is named as a whole is the host's as a whole.
            let is_own = matches!(asked, Asked::Part(own) if own.start <= granule.start && granule.end <= own.end);
            match writes && !is_own && !self.writable.gaps(&granule).is_empty() {
                true => self.early.write(&granule, || bytes_of(&granule)),
                false => self.early.read(&granule),
            }
        }
    }

    /// The host has written to the end of what it was given last, and goes on: that is copied to the GPU meanwhile, once.
    fn push_ahead(&mut self, resident: &mut Resident, summary: &mut Summary) -> Result<(), ExecError> {
        let (end, bytes) = self.last;
        let last = end.saturating_sub(bytes).max(self.pages.start)..end;
        let written = !last.is_empty() && self.writable.gaps(&last).is_empty();
        if !self.is_pinned || bytes < AHEAD_BYTES || !written || !self.ahead.within(&last).is_empty() {
            return Ok(());
        }
        // First, so that nothing is written behind the copy.
        allow(last.clone(), Access::Read)?;
        self.writable.remove(&last);
        resident.place.enter();
        if let Err(error) = resident.push(&last, summary) {
            // A launch tries again, and is told.
            summary.note(error.to_string());
            self.writable.insert(last.clone());
            return allow(last, Access::Write);
        }
        self.ahead.insert(last);
        resident.note_copies()?;
        self.copied = resident.copies;
        Ok(())
    }

    /// Has accesses of the host to a part fault, and copies what it has written to the GPU. Something is about to run there that uses it.
    pub fn close(
        &mut self,
        resident: &mut Resident,
        part: &Range<u64>,
        summary: &mut Summary,
    ) -> Result<(), ExecError> {
        self.is_newer = true;
        self.faults = 0;
        self.last = (0, 0);
        let part = &self.whole(part);
        let open = self.readable.within(part);
        let (Some(first), Some(last)) = (open.first(), open.last()) else {
            return Ok(());
        };
        // First, so that nothing is written behind the copy. In one piece: what lies between is closed.
        allow(first.start..last.end, Access::None)?;
        self.readable.remove(part);
        self.ahead.remove(part);
        let mut written = Vec::new();
        for (granule, before) in self.early.remove(part) {
            if let Some(before) = before {
                self.writable.remove(&granule);
                written.extend(early::changed(granule.start, &before, &bytes_of(&granule)));
            }
        }
        written.extend(self.writable.within(part));
        self.writable.remove(part);
        if written.is_empty() {
            return Ok(());
        }
        resident.place.enter();
        for (n, part) in written.iter().enumerate() {
            if let Err(error) = resident.push(part, summary) {
                // What is not there stays the host's.
                for part in &written[n..] {
                    let part = self.whole(part);
                    self.readable.insert(part.clone());
                    self.writable.insert(part.clone());
                    allow(part, Access::Write)?;
                }
                return Err(error);
            }
        }
        resident.note_copies()?;
        self.copied = resident.copies;
        Ok(())
    }

    /// Closes what the host was given while something ran.
    pub fn close_early(&mut self, resident: &mut Resident, summary: &mut Summary) -> Result<(), ExecError> {
        let early = self.early.parts();
        early.iter().try_for_each(|part| self.close(resident, part, summary))
    }

    /// Gives the host all of it, for good. Nothing runs.
    pub fn leave(&mut self, resident: &mut Resident, summary: &mut Summary) -> Result<(), ExecError> {
        let all = Asked::Part(self.pages.clone());
        self.open(resident, (&all, true, false), summary)?;
        resident.release(self);
        resident.place().end(self)
    }
}

/// What the host's memory has in a part.
fn bytes_of(part: &Range<u64>) -> Box<[u8]> {
    let mut bytes = vec![0; (part.end - part.start) as usize];
    let from: *const u8 = std::ptr::with_exposed_provenance(window::twin_of(part.start) as usize);
    // SAFETY: memory of an allocation, which this library may read whatever the host may do, and which the host cannot write now.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    bytes.into()
}

/// What the host is given.
pub enum Asked {
    /// What an access to that address needs.
    Fault(u64),
    Part(Range<u64>),
}

/// Says what the host may do with whole pages of the window.
pub fn allow(pages: Range<u64>, access: Access) -> Result<(), ExecError> {
    match window::protect(pages, access) {
        true => Ok(()),
        false => Err(ExecError::Protect(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn twin(bytes: u64) -> Twin {
        let mut twin = Twin::new(4096 * MIB..4096 * MIB + bytes);
        twin.is_newer = true;
        twin
    }

    #[test]
    fn who_goes_on_is_given_more_each_time() {
        let mut twin = twin(512 * MIB);
        let (mut at, mut sizes) = (twin.pages.start, Vec::new());
        while at < twin.pages.end {
            let span = twin.span(at + 8);
            assert_eq!(span.start, at);
            at = span.end;
            sizes.push((span.end - span.start) >> 16);
        }
        assert_eq!(sizes[..12], [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        assert_eq!(
            twin.span(twin.pages.end - 1).end,
            twin.pages.end,
            "no more than there is"
        );
    }

    #[test]
    fn who_goes_about_is_given_what_moves_as_fast_as_it_asks() {
        let mut twin = twin(4096 * MIB);
        let mut draws = (1..1000_u64).map(|n| n * 0x9e37_79b9 % (4096 * MIB));
        let mut most = 0;
        for (n, offset) in draws.by_ref().take(300).enumerate() {
            let addr = twin.pages.start + offset;
            let span = twin.span(addr);
            assert!(span.contains(&addr));
            // Near the last one's end it is more.
            most = most.max(span.end - span.start);
            assert!(
                n >= 15 || span.end - span.start <= 2 * FIRST_BYTES,
                "few are given little"
            );
        }
        assert!((MOVED_BYTES..=4 * MOVED_BYTES).contains(&most), "{most}");
        // What no launch has had moves nothing.
        (twin.is_newer, twin.faults) = (false, 1000);
        assert_eq!(twin.span(twin.pages.start + 100 * MIB), 4196 * MIB..4260 * MIB);
    }

    #[test]
    fn parts_are_whole() {
        let twin = twin(MIB + 4096);
        let start = twin.pages.start;
        assert_eq!(
            twin.whole(&(start + 70_000..start + 70_001)),
            start + FIRST_BYTES..start + 2 * FIRST_BYTES
        );
        assert_eq!(twin.whole(&(0..u64::MAX)), twin.pages);
        assert_eq!(twin.whole(&(start + MIB..start + MIB + 1)), start + MIB..twin.pages.end);
    }
}
