//! What benchmarks compare with: managed memory and bare copies, timed by the GPU.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{
    CUmemLocation, CUmemLocationType_enum as Place, CUmemcpyAttributes, CUmemcpySrcAccessOrder_enum as Order,
};

use super::CudaGpu;
use super::calls::cu;
use super::core::{Core, EventHandle, Retired, StreamHandle};
use super::managed::{self, Advice, Side};
use crate::error::GpuError;

/// More managed memory than the card has can hang it for everybody: at most this part, in percent, of what is free.
const MANAGED_PERCENT_MAX: u64 = 80;
/// How copies follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// One after the other.
    InTurn,
    /// This many in one call.
    Batches(usize),
    /// The first beside the second, the third beside the fourth.
    TwoAtOnce,
}

/// Managed memory, which CUDA moves page by page. Freed when dropped; kernels that use it must have ended by then.
pub struct Managed {
    addr: u64,
    bytes: u64,
    core: Arc<Core>,
}

impl Managed {
    /// First byte, for the host and for kernels.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `bytes` to byte `offset` on, by the processor: the pages move to the host. No kernel may use it meanwhile.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] past the end; a GPU that is lost.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let to = self.host(offset, bytes.len())?;
        // SAFETY: the range is this value's own, and mapped in this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies from byte `offset` on, in the same way.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let from = self.host(offset, out.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn host(&self, offset: u64, bytes: usize) -> Result<*mut u8, GpuError> {
        self.core.enter()?;
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        let addr = self.addr.wrapping_add(offset);
        match inside {
            true => Ok(std::ptr::with_exposed_provenance_mut(addr as usize)),
            false => Err(GpuError::BadAddress {
                addr,
                bytes: bytes as u64,
            }),
        }
    }

    /// Advises CUDA on all of it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn advise(&self, advice: Advice) -> Result<(), GpuError> {
        self.advise_part(0..self.bytes, advice, self.core.info.ordinal)
    }

    /// Advises CUDA on a part of it, in bytes, where [`Side::Gpu`] is the GPU `ordinal`. CUDA widens the part to whole system pages.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] for a part that is none, else the driver's error.
    pub fn advise_part(&self, part: Range<u64>, advice: Advice, ordinal: u32) -> Result<(), GpuError> {
        self.core.enter()?;
        let addr = self.addr.saturating_add(part.start);
        let Some(bytes) = part.end.checked_sub(part.start).filter(|_| part.end <= self.bytes) else {
            let bytes = part.end.saturating_sub(part.start);
            return Err(GpuError::BadAddress { addr, bytes });
        };
        managed::advise(&self.core, addr, bytes, advice, ordinal)
    }

    /// Moves all of it to one side and waits.
    ///
    /// # Errors
    /// The driver's error.
    pub fn prefetch(&self, side: Side) -> Result<(), GpuError> {
        self.core.enter()?;
        let timer = Timer::new(&self.core)?;
        let (stream, bytes) = (timer.stream.0, self.bytes as usize);
        // SAFETY: the range is this value's own.
        let called = unsafe {
            cu::cuMemPrefetchAsync_v2(
                self.addr,
                bytes,
                managed::location(self.core.info.ordinal, side),
                0,
                stream,
            )
            .or_else(|_| {
                cu::cuMemPrefetchAsync(self.addr, bytes, managed::number(self.core.info.ordinal, side), stream)
            })
        };
        self.core
            .check(format_args!("move managed memory to the {side:?}"), called)?;
        self.core.synchronize(timer.stream, "wait for managed memory to move")
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.core.retire(Retired::Managed(self.addr));
    }
}

/// A stream and two events.
struct Timer<'a> {
    core: &'a Core,
    stream: StreamHandle,
    start: EventHandle,
    end: EventHandle,
}

impl<'a> Timer<'a> {
    fn new(core: &'a Core) -> Result<Self, GpuError> {
        core.enter()?;
        Ok(Self {
            core,
            stream: core.new_stream(true)?,
            start: core.event(true)?,
            end: core.event(true)?,
        })
    }

    fn mark(&self, event: EventHandle) -> Result<(), GpuError> {
        // SAFETY: the event and the stream are this value's own.
        self.core
            .check("mark the time", unsafe { cu::cuEventRecord(event.0, self.stream.0) })
    }

    /// This stream goes on when `event` is reached.
    fn after(&self, event: EventHandle) -> Result<(), GpuError> {
        // SAFETY: the event was recorded, and both are live.
        self.core.check("order two streams", unsafe {
            cu::cuStreamWaitEvent(self.stream.0, event.0, 0)
        })
    }

    /// Waits, and gives the time between the marks.
    fn elapsed(&self) -> Result<Duration, GpuError> {
        self.core.synchronize(self.stream, "wait for a timed copy")?;
        let mut milliseconds = 0f32;
        // SAFETY: an out-value, and two events that were recorded and reached.
        self.core.check("take the time of a copy", unsafe {
            cu::cuEventElapsedTime(&raw mut milliseconds, self.start.0, self.end.0)
        })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    /// # Safety
    /// As [`CudaGpu::timed_copy`].
    unsafe fn copy(&self, (to, from, bytes): (u64, u64, u64)) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        self.core
            .check(format_args!("copy {bytes} bytes from {from:#x} to {to:#x}"), unsafe {
                cu::cuMemcpyAsync(to, from, bytes as usize, self.stream.0)
            })
    }

    /// # Safety
    /// As [`CudaGpu::timed_copy`], for every copy.
    unsafe fn batch(&self, copies: &[(u64, u64, u64)]) -> Result<(), GpuError> {
        let mut to: Vec<u64> = copies.iter().map(|copy| copy.0).collect();
        let mut from: Vec<u64> = copies.iter().map(|copy| copy.1).collect();
        let mut bytes: Vec<usize> = copies.iter().map(|copy| copy.2 as usize).collect();
        let nowhere = CUmemLocation {
            type_: Place::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut first, mut failed, count) = (0usize, usize::MAX, copies.len());
        if count > 0 {
            let (to, from, bytes) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr());
            let (attributes, first, stream) = (&raw mut attributes, &raw mut first, self.stream.0);
            // SAFETY: three arrays of `count` values and one attribute for all from copy 0 on; the ranges are the caller's promise.
            let called = unsafe {
                cu::cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, first, 1, stream).or_else(|_| {
                    cu::cuMemcpyBatchAsync(to, from, bytes, count, attributes, first, 1, &raw mut failed, stream)
                })
            };
            self.core
                .check(format_args!("copy {count} pieces as one batch"), called)?;
        }
        Ok(())
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if self.core.enter().is_ok() {
            // An error half way may leave copies in flight.
            let _ = self.core.synchronize(self.stream, "end a timed copy");
            self.core.give_event(self.start, true);
            self.core.give_event(self.end, true);
            self.core.retire(Retired::Stream(self.stream));
        }
    }
}

/// For benchmarks: what users of the GPU's memory would do without this crate.
impl CudaGpu {
    /// Managed memory. Never more than a part of what the card has free: beyond that it can hang the GPU for everybody.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] above 80 % of the free memory, [`GpuError::BadAllocation`] for zero bytes.
    pub fn managed(&self, bytes: u64) -> Result<Managed, GpuError> {
        let free = self.core.memory_left()?.free;
        if bytes == 0 {
            return Err(GpuError::BadAllocation {
                bytes,
                align: 1,
                cause: "zero bytes".into(),
            });
        }
        if bytes > free / 100 * MANAGED_PERCENT_MAX {
            return Err(GpuError::OutOfMemory {
                asked: bytes,
                free: free / 100 * MANAGED_PERCENT_MAX,
                capacity: self.core.info.memory_bytes,
            });
        }
        let addr = managed::allocate(&self.core, bytes)?;
        Ok(Managed {
            addr,
            bytes,
            core: Arc::clone(&self.core),
        })
    }

    /// The GPU's time for `repeat` copies, one after the other.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// Both ranges are memory that this GPU reaches, and nothing else uses them meanwhile.
    pub unsafe fn timed_copy(&self, to: u64, from: u64, bytes: u64, repeat: u32) -> Result<Duration, GpuError> {
        let timer = Timer::new(&self.core)?;
        timer.mark(timer.start)?;
        for _ in 0..repeat {
            // SAFETY: the caller's promise.
            unsafe { timer.copy((to, from, bytes))? };
        }
        timer.mark(timer.end)?;
        timer.elapsed()
    }

    /// The GPU's time for all copies of `copies`, each (to, from, bytes), as one batch.
    ///
    /// # Errors
    /// The driver's error; drivers older than CUDA 12.8 have no batches.
    ///
    /// # Safety
    /// As [`timed_copy`](Self::timed_copy), for every copy.
    pub unsafe fn timed_batch_copy(&self, copies: &[(u64, u64, u64)]) -> Result<Duration, GpuError> {
        let timer = Timer::new(&self.core)?;
        timer.mark(timer.start)?;
        // SAFETY: the caller's promise.
        unsafe { timer.batch(copies)? };
        timer.mark(timer.end)?;
        timer.elapsed()
    }

    /// The GPU's time for copies, each (to, from, bytes), of memory of this GPU's own allocations.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] unless one live allocation covers each range, and the driver's error.
    pub fn time_copies(&self, copies: &[(u64, u64, u64)], how: Copying) -> Result<Duration, GpuError> {
        // Nothing is freed while it lives.
        let _copying = self.core.copying();
        for &(to, from, bytes) in copies {
            for (addr, written) in [(to, true), (from, false)] {
                let place = self.places.find(addr, bytes);
                if place.is_none_or(|place| written && place.read_only) {
                    return Err(GpuError::BadAddress { addr, bytes });
                }
            }
        }
        match how {
            Copying::Batches(pieces) => {
                let timer = Timer::new(&self.core)?;
                timer.mark(timer.start)?;
                for batch in copies.chunks(pieces.max(1)) {
                    // SAFETY: the ranges were looked up, and the guard keeps them. Kernels that race with this see torn bytes,
                    // and no Rust reference to such memory exists.
                    unsafe { timer.batch(batch)? };
                }
                timer.mark(timer.end)?;
                timer.elapsed()
            }
            Copying::InTurn => {
                let timer = Timer::new(&self.core)?;
                timer.mark(timer.start)?;
                for &copy in copies {
                    // SAFETY: as above.
                    unsafe { timer.copy(copy)? };
                }
                timer.mark(timer.end)?;
                timer.elapsed()
            }
            Copying::TwoAtOnce => {
                let mut time = Duration::ZERO;
                for pair in copies.chunks(2) {
                    let (one, other) = (pair[0], pair.get(1).copied().unwrap_or((pair[0].0, pair[0].1, 0)));
                    // SAFETY: as above; nothing of zero bytes is touched.
                    time += unsafe { self.both_ways(one, other, 1)? };
                }
                Ok(time)
            }
        }
    }

    /// The GPU's time from the start of `repeat` copies of each of `one` and `other`, which run at the same time, to the end of the
    /// last; each is (to, from, bytes).
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As [`timed_copy`](Self::timed_copy), for both.
    pub unsafe fn both_ways(
        &self,
        one: (u64, u64, u64),
        other: (u64, u64, u64),
        repeat: u32,
    ) -> Result<Duration, GpuError> {
        let (timer, second) = (Timer::new(&self.core)?, Timer::new(&self.core)?);
        timer.mark(timer.start)?;
        second.after(timer.start)?;
        for _ in 0..repeat {
            // SAFETY: the caller's promise.
            unsafe {
                timer.copy(one)?;
                second.copy(other)?;
            }
        }
        second.mark(second.end)?;
        timer.after(second.end)?;
        timer.mark(timer.end)?;
        timer.elapsed()
    }
}
