//! Copies between the host and device memory, ordered with no kernel: through pinned buffers, so that the copy engines do
//! them beside whatever runs.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::calls::cu;
use super::core::{Core, EventHandle, Raw, Retired, StreamHandle};
use super::host::pin;
use crate::error::GpuError;

/// Bytes of one staging buffer. A lane has two: the host fills one while the other travels.
const STAGE_BYTES: u64 = 4 << 20;
/// Copies at least this long are shared by all lanes: one thread's memcpy is slower than the wire.
const SHARED_BYTES: u64 = 32 << 20;
const LANES: usize = 6;
/// Pinned zeros, which the copy engine spreads.
const ZERO_BYTES: u64 = 2 << 20;

/// The way of a copy.
#[derive(Clone, Copy)]
enum Copy {
    ToDevice(Raw<u8>),
    ToHost(Raw<u8>),
}

/// Copies between host and one GPU, which the caller waits for.
pub(crate) struct HostCopies {
    core: Arc<Core>,
    lanes: [Mutex<Option<Lane>>; LANES],
    zeros: OnceLock<Zeros>,
    zeroing: Mutex<Option<StreamHandle>>,
}

struct Zeros(Raw<u8>);

struct Lane {
    stream: StreamHandle,
    buffers: [Raw<u8>; 2],
    events: [EventHandle; 2],
}

impl Lane {
    fn new(core: &Core) -> Result<Self, GpuError> {
        // A failure half way leaves what was made to the process's end; it means that the machine is out of pinned memory.
        let (first, second) = (pin(core, STAGE_BYTES)?.0, pin(core, STAGE_BYTES)?.0);
        Ok(Self {
            stream: core.new_stream(true)?,
            buffers: [first, second],
            events: [core.event(false)?, core.event(false)?],
        })
    }

    /// Copies `bytes` at device address `addr` and waits.
    fn copy(&self, core: &Core, addr: u64, way: Copy, bytes: u64) -> Result<(), GpuError> {
        core.enter()?;
        let pieces = bytes.div_ceil(STAGE_BYTES);
        let piece = |n: u64| (n * STAGE_BYTES, (bytes - n * STAGE_BYTES).min(STAGE_BYTES));
        let result = (0..pieces).try_for_each(|n| {
            let (offset, length) = piece(n);
            self.start(core, n, addr + offset, offset, length, way)?;
            // Of a copy to the host, the piece before is taken out while this one travels.
            if n > 0 {
                self.take_out(core, n - 1, piece(n - 1), way)
            } else {
                Ok(())
            }
        });
        let result = result.and_then(|()| self.take_out(core, pieces - 1, piece(pieces - 1), way));
        // Also after an error: nothing may travel into or out of the buffers when the lane is used again.
        let end = core.synchronize(self.stream, "wait for a copy");
        result.and(end)
    }

    fn start(&self, core: &Core, n: u64, addr: u64, offset: u64, length: u64, way: Copy) -> Result<(), GpuError> {
        let slot = (n % 2) as usize;
        let (buffer, event) = (self.buffers[slot], self.events[slot]);
        // SAFETY: the buffer is STAGE_BYTES long and this lane's own (its mutex is held); it is written only when its last copy
        // has ended; the caller's memory has `bytes` bytes and `offset + length` is inside; device memory was checked and is kept
        // from being freed by the guard that the caller holds.
        unsafe {
            match way {
                Copy::ToDevice(from) => {
                    if n > 1 {
                        core.check("wait for a copy", cu::cuEventSynchronize(event.0))?;
                    }
                    std::ptr::copy_nonoverlapping(from.0.add(offset as usize), buffer.0, length as usize);
                    core.check(
                        format_args!("copy {length} bytes to GPU address {addr:#x}"),
                        cu::cuMemcpyHtoDAsync_v2(addr, buffer.0.cast(), length as usize, self.stream.0),
                    )?;
                }
                // The buffer is free: piece n - 2 was taken out before.
                Copy::ToHost(_) => core.check(
                    format_args!("copy {length} bytes from GPU address {addr:#x}"),
                    cu::cuMemcpyDtoHAsync_v2(buffer.0.cast(), addr, length as usize, self.stream.0),
                )?,
            }
            core.check("mark a copy", cu::cuEventRecord(event.0, self.stream.0))
        }
    }

    fn take_out(&self, core: &Core, n: u64, (offset, length): (u64, u64), way: Copy) -> Result<(), GpuError> {
        let Copy::ToHost(to) = way else { return Ok(()) };
        let slot = (n % 2) as usize;
        // SAFETY: as in `start`; the event was recorded after the copy into this buffer.
        unsafe {
            core.check("wait for a copy", cu::cuEventSynchronize(self.events[slot].0))?;
            std::ptr::copy_nonoverlapping(self.buffers[slot].0, to.0.add(offset as usize), length as usize);
        }
        Ok(())
    }
}

impl HostCopies {
    /// Makes what the first small copies need, so that none of it is made beside running kernels.
    pub(crate) fn new(core: Arc<Core>) -> Result<Arc<Self>, GpuError> {
        let copier = Self {
            lanes: Default::default(),
            zeros: OnceLock::new(),
            zeroing: Mutex::new(None),
            core,
        };
        *copier.lanes[0].lock() = Some(Lane::new(&copier.core)?);
        *copier.zeroing.lock() = Some(copier.core.new_stream(true)?);
        let (zeros, _) = pin(&copier.core, ZERO_BYTES)?;
        // SAFETY: the memory is fresh and this long.
        unsafe { std::ptr::write_bytes(zeros.0, 0, ZERO_BYTES as usize) };
        let _ = copier.zeros.set(Zeros(zeros));
        Ok(Arc::new(copier))
    }

    /// Copies `from` to device address `addr`. The caller has checked the range and keeps it from being freed.
    pub(crate) fn to_device(&self, addr: u64, from: &[u8]) -> Result<(), GpuError> {
        // The pointer is only read through.
        self.copy(addr, Copy::ToDevice(Raw(from.as_ptr().cast_mut())), from.len() as u64)
    }

    /// Copies from device address `addr`, as [`to_device`](Self::to_device).
    pub(crate) fn to_host(&self, addr: u64, to: &mut [u8]) -> Result<(), GpuError> {
        self.copy(addr, Copy::ToHost(Raw(to.as_mut_ptr())), to.len() as u64)
    }

    fn copy(&self, addr: u64, way: Copy, bytes: u64) -> Result<(), GpuError> {
        if bytes == 0 {
            return self.core.enter();
        }
        if bytes < SHARED_BYTES {
            return self.on_any_lane(addr, way, bytes);
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(LANES) as u64;
        let share = bytes.div_ceil(threads).next_multiple_of(4096);
        std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads)
                .filter(|n| n * share < bytes)
                .map(|n| {
                    let (start, length) = (n * share, share.min(bytes - n * share));
                    // SAFETY: `start` is inside the caller's memory.
                    let way = unsafe {
                        match way {
                            Copy::ToDevice(from) => Copy::ToDevice(Raw(from.0.add(start as usize))),
                            Copy::ToHost(to) => Copy::ToHost(Raw(to.0.add(start as usize))),
                        }
                    };
                    scope.spawn(move || self.on_lane(n as usize, addr + start, way, length))
                })
                .collect();
            let mut all = Ok(());
            for part in parts {
                // All of them are joined; the first error stays.
                all = all.and(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            all
        })
    }

    /// A small copy takes a lane that is made and free, else waits for the first.
    fn on_any_lane(&self, addr: u64, way: Copy, bytes: u64) -> Result<(), GpuError> {
        for lane in &self.lanes {
            let Some(guard) = lane.try_lock() else { continue };
            if let Some(lane) = guard.as_ref() {
                return lane.copy(&self.core, addr, way, bytes);
            }
        }
        self.on_lane(0, addr, way, bytes)
    }

    fn on_lane(&self, number: usize, addr: u64, way: Copy, bytes: u64) -> Result<(), GpuError> {
        let mut lane = self.lanes[number].lock();
        if lane.is_none() {
            self.core.enter()?;
            *lane = Some(Lane::new(&self.core)?);
        }
        match lane.as_ref() {
            Some(lane) => lane.copy(&self.core, addr, way, bytes),
            None => Ok(()),
        }
    }

    /// Zeroes device memory and waits.
    pub(crate) fn zero(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        self.core.enter()?;
        let guard = self.zeroing.lock();
        let (Some(stream), Some(zeros)) = (*guard, self.zeros.get()) else {
            return Err(GpuError::ShutDown);
        };
        let what = format!("zero {bytes} bytes of GPU memory");
        // SAFETY: the caller owns the range and nothing knows it yet. The zeros live as long as this copier.
        unsafe {
            if bytes > ZERO_BYTES && self.core.in_flight() == 0 {
                let called = cu::cuMemsetD8Async(addr, 0, bytes as usize, stream.0);
                self.core.check(&what, called)?;
            } else {
                // Filling is a kernel, which waits for multiprocessors that running kernels may hold for ever; the copy engine is free.
                for start in (0..bytes).step_by(ZERO_BYTES as usize) {
                    let length = (bytes - start).min(ZERO_BYTES) as usize;
                    let called = cu::cuMemcpyHtoDAsync_v2(addr + start, zeros.0.0.cast(), length, stream.0);
                    self.core.check(&what, called)?;
                }
            }
        }
        self.core.synchronize(stream, &what)
    }
}

impl Drop for HostCopies {
    fn drop(&mut self) {
        if self.core.enter().is_err() {
            return;
        }
        let retire = |retired| self.core.retire(retired);
        for lane in &self.lanes {
            if let Some(lane) = lane.lock().take() {
                retire(Retired::Stream(lane.stream));
                for buffer in lane.buffers {
                    retire(Retired::Host(Raw(buffer.0.cast())));
                }
                for event in lane.events {
                    self.core.give_event(event, false);
                }
            }
        }
        if let Some(stream) = self.zeroing.lock().take() {
            retire(Retired::Stream(stream));
        }
        if let Some(zeros) = self.zeros.take() {
            retire(Retired::Host(Raw(zeros.0.0.cast())));
        }
    }
}
