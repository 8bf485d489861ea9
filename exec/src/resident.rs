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
use crate::ranges::Ranges;
use crate::settings;
use crate::summary::Summary;
use crate::window::{self, Access};

/// What the host asks for first, and at most: more each time that it goes on.
const FIRST_BYTES: u64 = 64 << 10;
const MOST_BYTES: u64 = 64 << 20;
/// At most where it goes about.
const MOVED_BYTES: u64 = 2 << 20;
/// After so many questions about an allocation the least that is opened for one doubles.
const FEW_FAULTS: u32 = 16;
/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;
/// Of the GPU's free memory such a part is left for what the program asks for later.
const LEFT_FREE: u64 = 10;

/// What was put on streams by some time, as an event behind it on each.
pub struct Marks {
    context: usize,
    events: Vec<u64>,
}

impl Marks {
    /// Waits for all of it. The context becomes this thread's.
    pub fn wait(&self) {
        driver::set_current_context(self.context);
        for event in &self.events {
            // SAFETY: an event of ours. An error is the program's, which it is told.
            let _ = unsafe { call!(cuEventSynchronize(*event => u64)) };
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        for event in &self.events {
            // SAFETY: as above; nobody else has it.
            let _ = unsafe { call!(cuEventDestroy_v2(*event => u64)) };
        }
    }
}

/// The GPU that holds managed memory.
pub struct Resident {
    pub context: usize,
    device: i32,
    /// Bytes of the GPU's memory.
    bytes: u64,
    /// The stream of copies, and what happens there behind those to the GPU that launches wait for.
    copies: u64,
    copied: u64,
    is_copying: bool,
    /// Something of the program's may run that uses managed memory; on which streams that are there still, and by which thread it was put there.
    is_running: bool,
    streams: Vec<(u64, ThreadId)>,
    /// How often something was.
    put: u64,
}

/// An allocation's memory on the GPU, and what the host may do with it.
pub struct Twin {
    pages: Range<u64>,
    memory: u64,
    is_pinned: bool,
    /// What the host may read; and what of it may write, and so is to be copied to the GPU.
    readable: Ranges,
    writable: Ranges,
    /// Since something ran on the GPU that may have written it, what the host may not read is there alone.
    is_newer: bool,
    /// Questions of the host's since then, where the last one's answer ended, and how much it was.
    faults: u32,
    last: (u64, u64),
}

fn status(what: &str, status: Status) -> Result<(), String> {
    match status {
        SUCCESS => Ok(()),
        status => Err(format!("{what}: CUDA error {status}")),
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
        let (mut copies, mut copied) = (0u64, 0u64);
        // SAFETY: out-values.
        let made = unsafe {
            call!(cuStreamCreate(&raw mut copies => *mut u64, NON_BLOCKING => u32)) == SUCCESS
                && call!(cuEventCreate(&raw mut copied => *mut u64, UNTIMED => u32)) == SUCCESS
        };
        if !made {
            return None;
        }
        let window = window::reserve_on_gpu()?;
        let resident = Self {
            context: driver::current_context(),
            device,
            bytes: 0,
            copies,
            copied,
            is_copying: false,
            is_running: false,
            streams: Vec::new(),
            put: 0,
        };
        Some((resident, window))
    }

    /// Bytes of the GPU's memory that hold managed memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes its context the current one of this thread. Who locked the state puts the thread's own back.
    fn enter(&self) {
        driver::set_current_context(self.context);
    }

    /// Takes memory of the GPU for an allocation.
    ///
    /// # Errors
    /// There is not enough.
    pub fn twin(&mut self, pages: &Range<u64>) -> Result<Twin, String> {
        self.enter();
        let bytes = (pages.end - pages.start).next_multiple_of(CHUNK_BYTES);
        let free = driver::free_bytes().unwrap_or(0);
        let fits = match settings::frame_bytes() {
            Some(most) => self.bytes + bytes <= most,
            None => bytes <= free - free / LEFT_FREE,
        };
        if !fits {
            return Err("the GPU's memory does not hold all managed memory".into());
        }
        let is_there = window::fill_twin(pages);
        let kind = Kind {
            words: [1, 0, 1, self.device],
            rest: [0; 2],
        };
        let mut twin = Twin {
            pages: pages.clone(),
            memory: 0,
            is_pinned: false,
            readable: Ranges::default(),
            writable: Ranges::default(),
            is_newer: false,
            faults: 0,
            last: (0, 0),
        };
        let (at, length) = (pages.start, bytes as usize);
        // SAFETY: an out-value and a description as the driver has it.
        let made = unsafe {
            call!(cuMemCreate(&raw mut twin.memory => *mut u64, length => usize, &raw const kind => *const Kind, 0 => u64))
        };
        status("memory of the GPU for managed memory", made)?;
        let mapped = self.map(&mut twin, at, length, is_there);
        if mapped.is_err() {
            let _ = twin.end_mapping();
        }
        mapped?;
        self.bytes += bytes;
        Ok(twin)
    }

    fn map(&mut self, twin: &mut Twin, at: u64, length: usize, pins: bool) -> Result<(), String> {
        /// `CUmemAccessDesc`: memory of that GPU, to be read and written.
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Rights([i32; 3]);
        let rights = Rights([1, self.device, 3]);
        /// `CU_MEMHOSTREGISTER_PORTABLE`.
        const PORTABLE: u32 = 1;
        let host: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(at) as usize);
        // SAFETY: addresses of the window that nobody has, and memory that was made for them. Zeros, as the host's are; launches wait for them.
        unsafe {
            let mapped = call!(cuMemMap(at => u64, length => usize, 0 => usize, twin.memory => u64, 0 => u64));
            status("mapping memory of the GPU", mapped)?;
            let may = call!(cuMemSetAccess(at => u64, length => usize, &raw const rights => *const Rights, 1 => usize));
            status("mapping memory of the GPU", may)?;
            let zeroed = call!(cuMemsetD8Async(at => u64, 0 => u8, length => usize, self.copies => u64));
            status("clearing memory of the GPU", zeroed)?;
            let bytes = (twin.pages.end - twin.pages.start) as usize;
            // Copies are slower where it cannot be.
            twin.is_pinned =
                pins && call!(cuMemHostRegister_v2(host => *mut c_void, bytes => usize, PORTABLE => u32)) == SUCCESS;
        }
        self.note_copies()
    }

    /// Launches wait for what was put on the stream of copies.
    fn note_copies(&mut self) -> Result<(), String> {
        self.is_copying = true;
        // SAFETY: both are this library's own.
        status("copying to the GPU", unsafe {
            call!(cuEventRecord(self.copied => u64, self.copies => u64))
        })
    }

    /// Waits until nothing of the program's runs that may use managed memory.
    pub fn settle(&mut self) -> Result<(), String> {
        if !self.is_running && !self.is_copying {
            return Ok(());
        }
        self.enter();
        status("waiting for launches", driver::synchronize())?;
        self.is_settled();
        Ok(())
    }

    fn is_settled(&mut self) {
        self.streams.clear();
        (self.is_running, self.is_copying) = (false, false);
    }

    /// What runs now, and its number for [`ended`](Self::ended). None where nothing does.
    pub fn running(&mut self) -> Option<(Marks, u64)> {
        (self.is_running || self.is_copying).then(|| (self.marks(), self.put))
    }

    /// All was waited for that ran with that number.
    pub fn ended(&mut self, put: u64) {
        if put == self.put {
            self.is_settled();
        }
    }

    /// Marks what was put on streams by now. The default streams of other threads have no name here, and are not among them.
    pub fn marks(&mut self) -> Marks {
        self.enter();
        let own = std::thread::current().id();
        let named = |(stream, thread): &&(u64, ThreadId)| *stream != PER_THREAD || *thread == own;
        let streams = self.streams.iter().filter(named).map(|(stream, _)| *stream);
        let mark = |stream: u64| {
            let mut event = 0u64;
            // SAFETY: an out-value; the program has the stream still, which tells when it ends it.
            unsafe {
                if call!(cuEventCreate(&raw mut event => *mut u64, UNTIMED => u32)) != SUCCESS {
                    return None;
                }
                let _ = call!(cuEventRecord(event => u64, stream => u64));
            }
            Some(event)
        };
        Marks {
            context: self.context,
            events: streams.chain([self.copies]).filter_map(mark).collect(),
        }
    }

    /// A stream of the program's is about to end. What runs there goes on.
    pub fn forget_stream(&mut self, stream: u64) {
        self.streams.retain(|(other, _)| *other != stream);
    }

    /// Waits until the host's copies to the GPU are there.
    pub fn wait_for_copies(&mut self) -> Result<(), String> {
        self.enter();
        // SAFETY: this library's own stream.
        status("copying to the GPU", unsafe {
            call!(cuStreamSynchronize(self.copies => u64))
        })
    }

    /// Something that uses managed memory is about to be put on a stream: behind the copies to the GPU.
    pub fn expect(&mut self, stream: u64) -> Result<(), String> {
        self.put += 1;
        self.is_running = true;
        let own = std::thread::current().id();
        let is_it = |(other, thread): &(u64, ThreadId)| *other == stream && (stream != PER_THREAD || *thread == own);
        if !self.streams.iter().any(is_it) {
            self.streams.push((stream, own));
        }
        if !self.is_copying {
            return Ok(());
        }
        // SAFETY: the program names the stream now.
        unsafe {
            if call!(cuEventQuery(self.copied => u64)) == SUCCESS {
                self.is_copying = false;
                return Ok(());
            }
            let waits = call!(cuStreamWaitEvent(stream => u64, self.copied => u64, 0 => u32));
            status("waiting for copies to the GPU", waits)
        }
    }

    /// Copies what the GPU has to the host's memory. Nothing runs.
    fn pull(&mut self, part: &Range<u64>) -> Result<(), String> {
        self.enter();
        let (from, bytes) = (part.start, (part.end - part.start) as usize);
        let to: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(from) as usize);
        // SAFETY: the same bytes of an allocation, on both sides; the host's are kept from the program.
        let pulled = unsafe {
            match call!(cuMemcpyDtoHAsync_v2(to => *mut c_void, from => u64, bytes => usize, self.copies => u64)) {
                SUCCESS => call!(cuStreamSynchronize(self.copies => u64)),
                failed => failed,
            }
        };
        status("copying from the GPU", pulled)
    }

    /// Copies what the host has to the GPU, in the order of its own stream.
    fn push(&mut self, part: &Range<u64>) -> Result<(), String> {
        let (to, bytes) = (part.start, (part.end - part.start) as usize);
        let from: *const c_void = std::ptr::with_exposed_provenance(window::twin_of(to) as usize);
        // SAFETY: as in `pull`. The host writes it only when the copy has ended: it asks, and is answered behind that.
        status("copying to the GPU", unsafe {
            call!(cuMemcpyHtoDAsync_v2(to => u64, from => *const c_void, bytes => usize, self.copies => u64))
        })
    }

    /// Gives an allocation's memory back. Nothing runs.
    pub fn end(&mut self, twin: &mut Twin) -> Result<(), String> {
        self.enter();
        let bytes = (twin.pages.end - twin.pages.start).next_multiple_of(CHUNK_BYTES);
        self.bytes = self.bytes.saturating_sub(bytes);
        twin.end_mapping()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        debug_assert_eq!(self.memory, 0, "its memory was given back");
    }
}

impl Twin {
    fn end_mapping(&mut self) -> Result<(), String> {
        let bytes = (self.pages.end - self.pages.start).next_multiple_of(CHUNK_BYTES);
        let memory = std::mem::take(&mut self.memory);
        let host: *mut c_void = std::ptr::with_exposed_provenance_mut(window::twin_of(self.pages.start) as usize);
        // SAFETY: what was mapped and pinned for this allocation; where mapping failed the driver refuses.
        unsafe {
            if std::mem::take(&mut self.is_pinned) {
                let _ = call!(cuMemHostUnregister(host => *mut c_void));
            }
            let unmapped = call!(cuMemUnmap(self.pages.start => u64, bytes as usize => usize));
            let released = call!(cuMemRelease(memory => u64));
            status("giving memory of the GPU back", unmapped)?;
            status("giving memory of the GPU back", released)
        }
    }

    /// What is opened and closed as one, of a part.
    fn whole(&self, part: &Range<u64>) -> Range<u64> {
        let start = part.start / FIRST_BYTES * FIRST_BYTES;
        let end = part.end.checked_next_multiple_of(FIRST_BYTES).unwrap_or(part.end);
        start.max(self.pages.start)..end.min(self.pages.end)
    }

    /// How much is opened for a fault of the host's: more where it goes on behind the last one, and where it asks often.
    fn span(&mut self, addr: u64) -> Range<u64> {
        self.faults += 1;
        // As much as moves in the time that a question takes; what does not move costs nothing.
        let most = if self.is_newer { MOVED_BYTES } else { MOST_BYTES };
        let least = (FIRST_BYTES << (self.faults / FEW_FAULTS).min(10)).min(most);
        let (end, bytes) = self.last;
        let bytes = match addr.wrapping_sub(end) < FIRST_BYTES {
            true => (2 * bytes).max(least),
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

    /// Lets the host read what a fault needs, or a part, and write it if that is said.
    pub fn open(
        &mut self,
        resident: &mut Resident,
        asked: &Asked,
        writes: bool,
        summary: &mut Summary,
    ) -> Result<(), String> {
        let part = match asked {
            Asked::Fault(addr) | Asked::Behind(addr) => self.span(*addr),
            Asked::Part(part) => self.whole(part),
        };
        let closed = self.readable.gaps(&part);
        let mut pulled = Ok(());
        if self.is_newer && !closed.is_empty() {
            if !matches!(asked, Asked::Behind(_)) {
                let begun = Instant::now();
                pulled = resident.settle();
                summary.took("waiting for launches, since the host asks", begun);
            }
            for gap in &closed {
                let begun = Instant::now();
                pulled = pulled.and(resident.pull(gap));
                summary.moved("copying to the host", begun, gap.end - gap.start);
            }
        }
        // Whatever went wrong the host goes on: what the GPU has is lost then.
        let (gaps, access) = match writes {
            true => (self.writable.gaps(&part), Access::Write),
            false => (closed, Access::Read),
        };
        for gap in gaps {
            allow(gap, access)?;
        }
        if writes {
            self.writable.insert(part.clone());
        }
        self.readable.insert(part);
        pulled
    }

    /// Has accesses of the host to a part fault, and copies what it has written to the GPU. Something is about to run there that uses it.
    pub fn close(&mut self, resident: &mut Resident, part: &Range<u64>, summary: &mut Summary) -> Result<(), String> {
        self.is_newer = true;
        self.faults = 0;
        self.last = (0, 0);
        let part = &self.whole(part);
        let open = self.readable.within(part);
        if open.is_empty() {
            return Ok(());
        }
        // First, so that nothing is written behind the copy.
        for part in &open {
            allow(part.clone(), Access::None)?;
        }
        self.readable.remove(part);
        let written = self.writable.within(part);
        self.writable.remove(part);
        if written.is_empty() {
            return Ok(());
        }
        resident.enter();
        for part in written {
            let begun = Instant::now();
            resident.push(&part)?;
            summary.moved("copying to the GPU", begun, part.end - part.start);
        }
        resident.note_copies()
    }

    /// Gives the host all of it, for good.
    pub fn leave(&mut self, resident: &mut Resident, summary: &mut Summary) -> Result<(), String> {
        let all = Asked::Part(self.pages.clone());
        let opened = self.open(resident, &all, true, summary);
        opened.and(resident.end(self))
    }
}

/// What the host is given.
pub enum Asked {
    /// What an access to that address needs.
    Fault(u64),
    /// As that, by a host function of a stream: what was put on streams before it has ended.
    Behind(u64),
    Part(Range<u64>),
}

pub fn allow(pages: Range<u64>, access: Access) -> Result<(), String> {
    match window::protect(pages, access) {
        true => Ok(()),
        false => Err(format!(
            "the system refuses to protect managed memory: {}",
            std::io::Error::last_os_error()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn twin(bytes: u64) -> Twin {
        Twin {
            pages: 4096 * MIB..4096 * MIB + bytes,
            memory: 0,
            is_pinned: false,
            readable: Ranges::default(),
            writable: Ranges::default(),
            is_newer: true,
            faults: 0,
            last: (0, 0),
        }
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
