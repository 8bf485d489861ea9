//! Copies that the host enqueues for kernels that wait for them: by the copy engines, in stream order, many in one call.
//!
//! Everything that they need is made, and used once, before a kernel runs: an allocation or a first use beside a kernel
//! that spins until its copy arrives could wait for that kernel.

use std::collections::VecDeque;
use std::ffi::c_uint;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{
    CUevent, CUevent_flags_enum as EventFlags, CUmemLocation, CUmemLocationType_enum as Place, CUmemcpyAttributes,
    CUmemcpyFlags_enum as CopyFlags, CUmemcpySrcAccessOrder_enum as Order, CUresult,
};
use parking_lot::Mutex;

use super::calls::{Missing, cu};
use super::core::{Core, EventHandle, Raw, Retired, StreamHandle};
use super::driver::{is, outcome};
use super::pins::Pins;
use super::places::Places;
use crate::api::{COPIES_IN_FLIGHT_MAX, Copier, CopySpan};
use crate::error::GpuError;
use crate::memory::DeviceMemory;

/// Most copies of one call.
const BATCH_MAX: usize = 256;
/// Bytes of a copy that makes the copier ready.
const WARM_BYTES: u64 = 4096;

/// A stream of copies, and events that tell which have arrived.
pub(crate) struct StreamCopier {
    core: Arc<Core>,
    stream: StreamHandle,
    pins: Weak<Pins>,
    state: Mutex<CopierState>,
}

struct CopierState {
    /// What one call of the driver copies, of the spans at hand.
    pieces: Vec<CopySpan>,
    /// Arguments of the next call.
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
    /// One for each submit in flight, in order.
    flying: VecDeque<EventHandle>,
    resting: Vec<EventHandle>,
    completed: u64,
    /// Whether the driver copies many spans in one call.
    batches: bool,
}

impl StreamCopier {
    /// A copier that is ready.
    pub(crate) fn new(core: &Arc<Core>, places: &Places) -> Result<Self, GpuError> {
        let memory = places.device.allocate(2 * WARM_BYTES, 256)?;
        core.enter()?;
        let copier = Self {
            core: Arc::clone(core),
            stream: core.new_stream(true)?,
            pins: Arc::downgrade(&places.pins),
            state: Mutex::new(CopierState {
                pieces: Vec::with_capacity(BATCH_MAX),
                to: Vec::with_capacity(BATCH_MAX),
                from: Vec::with_capacity(BATCH_MAX),
                bytes: Vec::with_capacity(BATCH_MAX),
                flying: VecDeque::with_capacity(COPIES_IN_FLIGHT_MAX),
                resting: Vec::with_capacity(COPIES_IN_FLIGHT_MAX),
                completed: 0,
                batches: true,
            }),
        };
        for _ in 0..COPIES_IN_FLIGHT_MAX {
            let event = copier.event()?;
            copier.state.lock().resting.push(event);
        }
        copier.warm(places, &memory)?;
        Ok(copier)
    }

    /// An event that takes no time: it costs less.
    fn event(&self) -> Result<EventHandle, GpuError> {
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: an out-value of the right type; the context was entered.
        self.core.check("make an event", unsafe {
            cu::cuEventCreate(&raw mut event, EventFlags::CU_EVENT_DISABLE_TIMING as c_uint)
        })?;
        Ok(Raw(event))
    }

    /// Makes every kind of copy once, both ways: alone and in batches, short and long.
    fn warm(&self, places: &Places, device: &DeviceMemory) -> Result<(), GpuError> {
        let host = places.host.allocate(2 * WARM_BYTES)?;
        let pinned = host.host_ptr() as u64;
        let one = |offset: u64, bytes: u64| CopySpan {
            to: device.addr() + offset,
            from: pinned + offset,
            bytes,
        };
        let back = |span: CopySpan| CopySpan {
            to: span.from,
            from: span.to,
            bytes: span.bytes,
        };
        let pages = [one(0, WARM_BYTES), one(WARM_BYTES, WARM_BYTES)];
        let entries: Vec<CopySpan> = (0..BATCH_MAX as u64).map(|n| one(n * 16, 16)).collect();
        let turns: [(&[CopySpan], &[CopySpan]); 4] = [
            (&pages[..1], &entries[..1]),
            (&pages, &entries[..2]),
            (&entries, &entries[..3]),
            (&[], &entries[..1]),
        ];
        let submitted = turns.iter().try_for_each(|&(data, then)| {
            let away: Vec<CopySpan> = data.iter().copied().map(back).collect();
            // SAFETY: all spans lie in the two allocations, which nothing else knows and which live until the stream is idle.
            unsafe {
                self.submit(data, then)?;
                self.submit(&away, then)
            }
        });
        // Also after an error: nothing may travel when the memory goes.
        let idle = self.core.synchronize(self.stream, "wait for the first copies");
        submitted.and(idle)?;
        // Collects the events; the count starts at 0 for the user.
        self.completed()?;
        self.state.lock().completed = 0;
        Ok(())
    }

    /// Enqueues copies without order among them.
    fn enqueue(&self, state: &mut CopierState, spans: &[CopySpan]) -> Result<(), GpuError> {
        let mut pieces = std::mem::take(&mut state.pieces);
        match self.pins.upgrade() {
            Some(pins) => pins.cut(spans, &mut pieces),
            None => spans.clone_into(&mut pieces),
        }
        let enqueued = self.enqueue_pieces(state, &pieces);
        state.pieces = pieces;
        enqueued
    }

    /// Enqueues spans that the driver takes as they are.
    fn enqueue_pieces(&self, state: &mut CopierState, pieces: &[CopySpan]) -> Result<(), GpuError> {
        for batch in pieces.chunks(BATCH_MAX) {
            if batch.len() > 1 && state.batches {
                match self.batch(state, batch)? {
                    Batched::Enqueued => continue,
                    Batched::Unknown => state.batches = false,
                }
            }
            for span in batch.iter().filter(|span| span.bytes > 0) {
                let CopySpan { to, from, bytes } = *span;
                // SAFETY: the promise of `submit`'s caller. Pinned host memory and device memory share one address space, so
                // the driver tells the direction by the addresses.
                let called = unsafe { cu::cuMemcpyAsync(to, from, bytes as usize, self.stream.0) };
                let what = format_args!("copy {bytes} bytes from {from:#x} to {to:#x}");
                self.core.check(what, called)?;
            }
        }
        Ok(())
    }

    /// Enqueues at least two copies by one call.
    fn batch(&self, state: &mut CopierState, spans: &[CopySpan]) -> Result<Batched, GpuError> {
        state.to.clear();
        state.from.clear();
        state.bytes.clear();
        // The driver refuses copies of nothing.
        for span in spans.iter().filter(|span| span.bytes > 0) {
            state.to.push(span.to);
            state.from.push(span.from);
            state.bytes.push(span.bytes as usize);
        }
        let count = state.to.len();
        if count == 0 {
            return Ok(Batched::Enqueued);
        }
        let nowhere = CUmemLocation {
            type_: Place::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = CUmemcpyAttributes {
            // Sources stay as they are until the copies have arrived.
            srcAccessOrder: Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            // Multiprocessors may be held by kernels that wait for these very copies.
            flags: CopyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as c_uint,
        };
        let (mut first, mut failed) = (0usize, usize::MAX);
        let (to, from, bytes) = (state.to.as_mut_ptr(), state.from.as_mut_ptr(), state.bytes.as_mut_ptr());
        let (attributes, first, stream) = (&raw mut attributes, &raw mut first, self.stream.0);
        // SAFETY: three arrays of `count` values and one attribute for all from copy 0 on; the ranges are the promise of
        // `submit`'s caller.
        let called = unsafe {
            cu::cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, first, 1, stream).or_else(|_| {
                cu::cuMemcpyBatchAsync(to, from, bytes, count, attributes, first, 1, &raw mut failed, stream)
            })
        };
        match called {
            Err(Missing(_)) => return Ok(Batched::Unknown),
            Ok(code) if is(code, CUresult::CUDA_ERROR_NOT_SUPPORTED) => return Ok(Batched::Unknown),
            _ => {}
        }
        let which = spans.get(failed).or(spans.first()).copied();
        let what = move || match which {
            Some(CopySpan { to, from, bytes }) => {
                format!("copy {count} spans as one batch, among them {bytes} bytes from {from:#x} to {to:#x}")
            }
            None => format!("copy {count} spans as one batch"),
        };
        outcome(called).map_err(|failure| self.core.error(what(), failure))?;
        Ok(Batched::Enqueued)
    }

    /// Takes the events of submits that have arrived.
    fn collect(&self, state: &mut CopierState) -> Result<(), GpuError> {
        while let Some(&event) = state.flying.front() {
            // SAFETY: the event is this copier's own and was recorded.
            match outcome(unsafe { cu::cuEventQuery(event.0) }) {
                Ok(()) => {}
                Err(failure) if is(failure.code, CUresult::CUDA_ERROR_NOT_READY) => break,
                Err(failure) => return Err(self.core.error("ask whether copies have arrived", failure)),
            }
            state.flying.pop_front();
            state.resting.push(event);
            state.completed += 1;
        }
        Ok(())
    }
}

enum Batched {
    Enqueued,
    /// The driver has no such call.
    Unknown,
}

impl Copier for StreamCopier {
    unsafe fn submit(&self, data: &[CopySpan], then: &[CopySpan]) -> Result<(), GpuError> {
        self.core.enter()?;
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.resting.is_empty()
            && let Some(oldest) = state.flying.front()
        {
            // SAFETY: the event is this copier's own and was recorded.
            let called = unsafe { cu::cuEventSynchronize(oldest.0) };
            self.core.check("wait for copies", called)?;
            self.collect(state)?;
        }
        // One is there: the oldest came to rest above.
        let event = match state.resting.pop() {
            Some(event) => event,
            None => self.event()?,
        };
        // Two calls: copies of one batch have no order, batches of one stream do.
        let enqueued = self.enqueue(state, data).and_then(|()| self.enqueue(state, then));
        let marked = enqueued.and_then(|()| {
            // SAFETY: the event is this copier's own, and nothing waits for it.
            let called = unsafe { cu::cuEventRecord(event.0, self.stream.0) };
            self.core.check("mark copies", called)
        });
        match marked {
            Ok(()) => state.flying.push_back(event),
            Err(error) => {
                // Copies end by themselves, so this does; of a dead context none is left.
                let _ = self
                    .core
                    .synchronize(self.stream, "end copies that were refused in part");
                state.resting.push(event);
                return Err(error);
            }
        }
        Ok(())
    }

    fn completed(&self) -> Result<u64, GpuError> {
        let mut state = self.state.lock();
        if !state.flying.is_empty() {
            self.core.enter()?;
            self.collect(&mut state)?;
        }
        Ok(state.completed)
    }
}

impl Drop for StreamCopier {
    fn drop(&mut self) {
        if self.core.enter().is_err() {
            // Nothing of a dead context moves.
            return;
        }
        let _ = self.core.synchronize(self.stream, "wait for the last copies");
        let state = self.state.get_mut();
        for event in state.flying.drain(..).chain(state.resting.drain(..)) {
            // SAFETY: the stream is idle, and nothing else knows the event.
            let _ = unsafe { cu::cuEventDestroy_v2(event.0) };
        }
        self.core.retire(Retired::Stream(self.stream));
    }
}
