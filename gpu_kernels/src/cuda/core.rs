//! What all parts of one NVIDIA GPU share: its context, whether it is lost, and what waits to be freed.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUevent, CUevent_flags_enum as EventFlags, CUmemGenericAllocationHandle, CUmodule, CUstream,
    CUstream_flags_enum as StreamFlags, CUstreamCaptureStatus_enum as Capture,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::calls::cu;
use super::device::{self, DeviceInfo};
use super::driver::{Called, Failure, check, outcome};
use super::others;
use crate::api::MemoryLeft;
use crate::error::GpuError;

/// A handle of the driver or an address of pinned memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Raw<T>(pub(crate) *mut T);

// Not derived: that would ask the same of T, which is only named.
impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Raw<T> {}

// SAFETY: the driver's functions may be called with any handle from any thread; who dereferences an address says why it may.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Raw<T> {}

/// A stream's handle.
pub(crate) type StreamHandle = Raw<cudarc::driver::sys::CUstream_st>;
/// An event's handle.
pub(crate) type EventHandle = Raw<cudarc::driver::sys::CUevent_st>;
/// A loaded module's handle.
pub(crate) type ModuleHandle = Raw<cudarc::driver::sys::CUmod_st>;
/// A kernel's handle in a loaded module.
pub(crate) type FunctionHandle = Raw<cudarc::driver::sys::CUfunc_st>;

/// Events of each kind that are made at once, two for each launch in flight: beyond that they are made beside running kernels.
const EVENTS: usize = 256;

/// Events for reuse.
#[derive(Default)]
struct EventPool {
    timed: Mutex<Vec<EventHandle>>,
    untimed: Mutex<Vec<EventHandle>>,
}

impl EventPool {
    fn of(&self, timed: bool) -> &Mutex<Vec<EventHandle>> {
        match timed {
            true => &self.timed,
            false => &self.untimed,
        }
    }
}

/// An event of the pool, which gets it back when it is dropped.
pub(crate) struct Event {
    pub(crate) core: Arc<Core>,
    pub(crate) handle: EventHandle,
    pub(crate) timed: bool,
}

impl Event {
    /// An event that takes the time, or does not: that one is recorded four times as fast.
    pub(crate) fn new(core: &Arc<Core>, timed: bool) -> Result<Self, GpuError> {
        Ok(Self {
            handle: core.event(timed)?,
            core: Arc::clone(core),
            timed,
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.core.give_event(self.handle, self.timed);
    }
}

/// What has to wait for a moment without kernels.
pub(crate) trait Waiting: Send + Sync {
    /// Frees what nothing uses. To be called when no kernel runs.
    fn free_unused(&self);
}

/// Something to free once no kernel runs: each of these may wait for all of them.
#[derive(Debug)]
pub(crate) enum Retired {
    /// Mapped device memory.
    Block(Block),
    /// Memory of `cuMemHostAlloc`.
    Host(Raw<c_void>),
    /// A loaded module.
    Module(ModuleHandle),
    /// A stream on which nothing runs.
    Stream(StreamHandle),
    /// Managed memory.
    Managed(u64),
    /// A handle of the GPU's memory.
    Piece(CUmemGenericAllocationHandle),
    /// A handle of host memory.
    HostPiece(CUmemGenericAllocationHandle),
    /// Addresses, with what is mapped there in pieces of one size.
    Space {
        addr: u64,
        bytes: u64,
        piece_bytes: u64,
        /// Offsets.
        placed: Vec<u64>,
    },
}

/// Device memory behind addresses of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) addr: u64,
    /// Bytes reserved and mapped.
    pub(crate) bytes: u64,
    pub(crate) handle: CUmemGenericAllocationHandle,
}

#[derive(Debug, Default)]
struct Flight {
    /// Launches that were enqueued and have not ended.
    launches: u64,
    shut_down: bool,
}

/// One GPU's context and its state.
pub(crate) struct Core {
    pub(crate) info: DeviceInfo,
    pub(crate) device: CUdevice,
    pub(crate) context: Raw<cudarc::driver::sys::CUctx_st>,
    lost: OnceLock<GpuError>,
    flight: Mutex<Flight>,
    retired: Mutex<Vec<Retired>>,
    /// Of these, and of those that are being freed, the pieces.
    retired_pieces: AtomicU64,
    events: EventPool,
    /// Held for reading while memory is copied, for writing while it leaves the books.
    copying: RwLock<()>,
    waiting: OnceLock<Weak<dyn Waiting>>,
    /// Least and greatest priority of a stream.
    priorities: (c_int, c_int),
}

/// Whether a stream is being captured. The context is current, and the stream is live.
pub(crate) fn is_captured(stream: StreamHandle) -> bool {
    let mut status = Capture::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: an out-value; the caller says that the stream is live.
    let asked = outcome(unsafe { cu::cuStreamIsCapturing(stream.0, &raw mut status) });
    asked.is_ok() && status != Capture::CU_STREAM_CAPTURE_STATUS_NONE
}

impl Core {
    /// Takes the primary context of the GPU.
    pub(crate) fn open(info: DeviceInfo) -> Result<Self, GpuError> {
        let device = device::handle(info.ordinal)?;
        let mut context: CUcontext = std::ptr::null_mut();
        let mut priorities = (0, 0);
        // SAFETY: an out-value of the right type; the device's handle is the driver's own.
        unsafe {
            // With the flags that it has: the driver's own choice is to spin while a copy is short.
            let what = format!("make a context on GPU {}, {}", info.ordinal, info.name);
            check(what, cu::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        let mut core = Self {
            info,
            device,
            context: Raw(context),
            lost: OnceLock::new(),
            flight: Mutex::default(),
            retired: Mutex::default(),
            retired_pieces: AtomicU64::default(),
            events: EventPool::default(),
            copying: RwLock::default(),
            waiting: OnceLock::new(),
            priorities: (0, 0),
        };
        others::opens();
        core.enter()?;
        // SAFETY: out-values of the right types; the context is current.
        let called = unsafe { cu::cuCtxGetStreamPriorityRange(&raw mut priorities.0, &raw mut priorities.1) };
        core.check("ask for the priorities of streams", called)?;
        core.priorities = priorities;
        for timed in [true, false] {
            let events = (0..EVENTS).map(|_| core.event(timed)).collect::<Result<Vec<_>, _>>()?;
            for event in events {
                core.give_event(event, timed);
            }
        }
        Ok(core)
    }

    /// Makes the context this thread's current one.
    ///
    /// # Errors
    /// The GPU is lost.
    pub(crate) fn enter(&self) -> Result<(), GpuError> {
        if let Some(lost) = self.lost.get() {
            return Err(lost.clone());
        }
        // Always set: other users of CUDA on this thread may have changed it, and it costs next to nothing.
        // SAFETY: the context is retained until this value is dropped.
        self.check("make the GPU's context current", unsafe {
            cu::cuCtxSetCurrent(self.context.0)
        })
    }

    /// As [`check`], and a dead context makes the GPU lost.
    pub(crate) fn check(&self, what: impl Display, called: Called) -> Result<(), GpuError> {
        outcome(called).map_err(|failure| self.error(what, failure))
    }

    /// The error of `failure`; a dead context makes the GPU lost.
    pub(crate) fn error(&self, what: impl Display, failure: Failure) -> GpuError {
        if failure.kills_context() {
            return self.lose(format!("cannot {what}: {}: {}", failure.name, failure.text));
        }
        failure.error(what)
    }

    /// The GPU can do nothing more for this process. The first cause stays.
    pub(crate) fn lose(&self, cause: String) -> GpuError {
        let error = || GpuError::Lost {
            gpu: format!("GPU {}, {}", self.info.ordinal, self.info.name),
            cause,
        };
        self.lost.get_or_init(error).clone()
    }

    /// As [`lose`](Self::lose) with an error that does not say that the context is dead: a kernel may run on, and reach memory.
    pub(crate) fn lose_with(&self, error: GpuError) -> GpuError {
        self.lost.get_or_init(|| error).clone()
    }

    /// Why the GPU is lost.
    pub(crate) fn lost(&self) -> Option<GpuError> {
        self.lost.get().cloned()
    }

    /// Counts a launch in.
    pub(crate) fn begin_launch(&self) -> Result<(), GpuError> {
        let mut flight = self.flight.lock();
        if flight.shut_down {
            return Err(GpuError::ShutDown);
        }
        flight.launches += 1;
        Ok(())
    }

    /// Counts a launch out, and frees what waited for it.
    pub(crate) fn end_launch(&self) {
        let last = {
            let mut flight = self.flight.lock();
            flight.launches -= 1;
            flight.launches == 0
        };
        if last {
            self.free_retired();
        }
    }

    /// Launches that were enqueued and have not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.flight.lock().launches
    }

    /// No launch can begin from now on.
    pub(crate) fn shut_down(&self) {
        self.flight.lock().shut_down = true;
    }

    /// Whether no launch can begin any more.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.flight.lock().shut_down
    }

    /// Frees `retired` now or, beside running kernels, later.
    pub(crate) fn retire(&self, retired: Retired) {
        if matches!(retired, Retired::Piece(_)) {
            // Relaxed: an amount, which orders nothing.
            self.retired_pieces.fetch_add(1, Ordering::Relaxed);
        }
        self.retired.lock().push(retired);
        self.free_retired();
    }

    /// Frees what waits, unless a kernel may run: each of these calls may wait for every kernel on the GPU.
    pub(crate) fn free_retired(&self) {
        // Held to the end, so that no launch begins meanwhile.
        let flight = self.flight.lock();
        if flight.launches > 0 || self.enter().is_err() {
            return;
        }
        let waiting = std::mem::take(&mut *self.retired.lock());
        for retired in waiting {
            self.free(&retired);
            if matches!(retired, Retired::Piece(_)) {
                self.retired_pieces.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if let Some(waiting) = self.waiting.get().and_then(Weak::upgrade) {
            waiting.free_unused();
        }
    }

    /// Pieces that the driver does not have yet: freeing thousands takes a while.
    pub(crate) fn retired_pieces(&self) -> u64 {
        self.retired_pieces.load(Ordering::Relaxed)
    }

    /// Does `act` unless a kernel may run, and says whether. No launch begins meanwhile.
    pub(crate) fn while_idle(&self, act: impl FnOnce()) -> bool {
        let flight = self.flight.lock();
        let idle = flight.launches == 0;
        if idle {
            act();
        }
        idle
    }

    /// Who else has something to free when no kernel runs.
    pub(crate) fn set_waiting(&self, waiting: Weak<dyn Waiting>) {
        let _ = self.waiting.set(waiting);
    }

    fn free(&self, retired: &Retired) {
        // Errors have nothing to go to; one that kills the context is noted by `check`.
        // SAFETY: its owner gave it up, and no kernel is in flight, so nothing uses it. The context is current.
        unsafe {
            match retired {
                Retired::Block(block) => {
                    let _ = self.check("unmap memory", cu::cuMemUnmap(block.addr, block.bytes as usize));
                    let _ = self.check("free memory", cu::cuMemRelease(block.handle));
                    let _ = self.check("free addresses", cu::cuMemAddressFree(block.addr, block.bytes as usize));
                }
                Retired::Host(host) => {
                    let _ = self.check("free host memory", cu::cuMemFreeHost(host.0));
                }
                Retired::Module(module) => {
                    let _ = self.check("unload a module", cu::cuModuleUnload(module.0));
                }
                Retired::Stream(stream) => {
                    let _ = self.check("destroy a stream", cu::cuStreamDestroy_v2(stream.0));
                }
                Retired::Managed(addr) => {
                    let _ = self.check("free managed memory", cu::cuMemFree_v2(*addr));
                }
                Retired::Piece(handle) | Retired::HostPiece(handle) => {
                    let _ = self.check("free memory", cu::cuMemRelease(*handle));
                }
                Retired::Space {
                    addr,
                    bytes,
                    piece_bytes,
                    placed,
                } => {
                    for offset in placed {
                        let _ = self.check("unmap memory", cu::cuMemUnmap(addr + offset, *piece_bytes as usize));
                    }
                    let _ = self.check("free addresses", cu::cuMemAddressFree(*addr, *bytes as usize));
                }
            }
        }
    }

    /// Held while memory is copied, so that it is not freed meanwhile.
    pub(crate) fn copying(&self) -> RwLockReadGuard<'_, ()> {
        self.copying.read()
    }

    /// Held while memory leaves the books.
    pub(crate) fn forgetting(&self) -> RwLockWriteGuard<'_, ()> {
        self.copying.write()
    }

    /// A stream that waits for no other one. `urgent` ones serve the host's copies and go before kernels' streams.
    pub(crate) fn new_stream(&self, urgent: bool) -> Result<StreamHandle, GpuError> {
        let mut stream: CUstream = std::ptr::null_mut();
        let priority = if urgent { self.priorities.1 } else { self.priorities.0 };
        let flags = StreamFlags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: an out-value of the right type; the caller has entered the context.
        self.check("make a stream", unsafe {
            cu::cuStreamCreateWithPriority(&raw mut stream, flags, priority)
        })?;
        Ok(Raw(stream))
    }

    /// An event that takes the time, or does not, from a pool.
    pub(crate) fn event(&self, timed: bool) -> Result<EventHandle, GpuError> {
        if let Some(event) = self.events.of(timed).lock().pop() {
            return Ok(event);
        }
        let flags = match timed {
            true => EventFlags::CU_EVENT_DEFAULT,
            false => EventFlags::CU_EVENT_DISABLE_TIMING,
        };
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: an out-value of the right type; the caller has entered the context.
        self.check("make an event", unsafe {
            cu::cuEventCreate(&raw mut event, flags as c_uint)
        })?;
        Ok(Raw(event))
    }

    /// Gives an event back that nothing records or asks for any more.
    pub(crate) fn give_event(&self, event: EventHandle, timed: bool) {
        self.events.of(timed).lock().push(event);
    }

    /// Waits until all work of `stream` has ended.
    pub(crate) fn synchronize(&self, stream: StreamHandle, what: impl Display) -> Result<(), GpuError> {
        // SAFETY: the stream is live for as long as its owner holds it, and the caller has entered the context.
        self.check(what, unsafe { cu::cuStreamSynchronize(stream.0) })
    }

    /// Loads a module; it may wait for running kernels.
    pub(crate) fn load(&self, image: &[u8], name: &str) -> Result<ModuleHandle, GpuError> {
        self.enter()?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: `image` is a GPU binary or zero-terminated PTX of NVRTC's, which tells its own length.
        let called = unsafe { cu::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        let what = format_args!("load the kernels of {name}");
        match outcome(called) {
            Ok(()) => Ok(Raw(module)),
            Err(failure) if failure.kills_context() => Err(self.error(what, failure)),
            Err(failure) => Err(match device::older_than_nvrtc() {
                Some(advice) => failure.advised(what, advice),
                None => failure.error(what),
            }),
        }
    }

    /// How much of the GPU's memory no process uses.
    pub(crate) fn memory_left(&self) -> Result<MemoryLeft, GpuError> {
        self.enter()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: out-values of the right types; the context is current.
        self.check("ask for free memory", unsafe {
            cu::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        Ok(MemoryLeft {
            free: free as u64,
            total: total as u64,
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.enter().is_err() {
            // Nothing of a lost context can be freed; the process's end does it.
            return;
        }
        self.free_retired();
        for timed in [true, false] {
            for event in std::mem::take(&mut *self.events.of(timed).lock()) {
                // SAFETY: a pooled event is in no one's use.
                let _ = unsafe { cu::cuEventDestroy_v2(event.0) };
            }
        }
        // SAFETY: it was retained once, by `open`. Every part that uses the context holds this core.
        let _ = unsafe { cu::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
