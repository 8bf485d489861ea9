//! Host memory that kernels reach: pinned, and managed memory that stays at the host.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use parking_lot::Mutex;

use super::calls::cu;
use super::core::{Core, Raw, Retired};
use super::driver::outcome;
use super::managed::{self, Advice, Side};
use crate::back_end::Ranges;
use crate::error::GpuError;
use crate::memory::{HostMemory, Release};

const PAGE: u64 = 4096;
/// Allocations below this come from slabs: pinning costs some 100 us, and a launch takes a page.
const LARGE_BYTES: u64 = 64 << 10;
const SLAB_BYTES: u64 = 1 << 20;
/// From here on several threads write the zeros.
const PARALLEL_BYTES: u64 = 64 << 20;
const ZEROERS_MAX: u64 = 8;

/// All host memory that was allocated for one GPU.
pub(crate) struct HostPool {
    core: Arc<Core>,
    state: Mutex<HostMemoryState>,
}

#[derive(Default)]
struct HostMemoryState {
    /// First device address -> what lies there.
    live: BTreeMap<u64, Live>,
    /// Device address of a slab -> slab.
    slabs: BTreeMap<u64, Slab>,
}

struct Live {
    host: Raw<u8>,
    bytes: u64,
    of: Of,
}

/// What memory is a part of.
#[derive(Clone, Copy)]
enum Of {
    /// A slab, at this device address, of which this many bytes are taken.
    Slab(u64, u64),
    /// A pinned allocation of its own.
    Pinned,
    /// A managed allocation of its own.
    Managed,
}

struct Slab {
    host: Raw<u8>,
    /// By device address.
    ranges: Ranges,
}

/// Pinned and mapped memory, not zeroed: its first byte for the host and for kernels.
pub(crate) fn pin(core: &Core, bytes: u64) -> Result<(Raw<u8>, u64), GpuError> {
    core.enter()?;
    let what = format!("pin {bytes} bytes of host memory");
    let mut host: *mut c_void = std::ptr::null_mut();
    let mut device = 0;
    // SAFETY: out-values of the right types; the context is current.
    unsafe {
        outcome(cu::cuMemHostAlloc(
            &raw mut host,
            bytes as usize,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
        ))
        .map_err(|failure| match failure.kills_context() {
            true => core.error(&what, failure),
            false => failure.advised(
                &what,
                "pinned memory cannot be swapped: see free -h, ulimit -l and the container's limit",
            ),
        })?;
        let mapped = cu::cuMemHostGetDevicePointer_v2(&raw mut device, host, 0);
        if let Err(error) = core.check(&what, mapped) {
            let _ = cu::cuMemFreeHost(host);
            return Err(error);
        }
    }
    Ok((Raw(host.cast()), device))
}

impl HostPool {
    /// Nothing allocated.
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            core,
            state: Mutex::default(),
        })
    }

    /// Zeroed memory.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<HostMemory, GpuError> {
        let Some(rounded) = bytes.checked_next_multiple_of(PAGE).filter(|b| *b > 0 && *b < 1 << 47) else {
            return Err(GpuError::BadAllocation {
                bytes,
                align: PAGE,
                cause: "zero bytes, or more than an address space".into(),
            });
        };
        self.core.enter()?;
        let (host, device, of) = if rounded < LARGE_BYTES {
            self.small(rounded)?
        } else {
            let (host, device) = pin(&self.core, rounded)?;
            (host, device, Of::Pinned)
        };
        zero(host, rounded);
        Ok(self.enter(device, Live { host, bytes, of }))
    }

    /// Zeroed managed memory that stays at the host. Lanes reach it at random eight times as fast as pinned memory: 329 instead of 41 million
    /// words of 4 bytes a second on an H200 (docs/PERFORMANCE.md, "Homes").
    /// None where the driver keeps none there.
    pub(crate) fn allocate_managed(self: &Arc<Self>, bytes: u64) -> Result<Option<HostMemory>, GpuError> {
        self.core.enter()?;
        let addr = managed::allocate(&self.core, bytes)?;
        // Before its first use, so that no page is made on the GPU.
        let ordinal = self.core.info.ordinal;
        let advised = managed::advise(&self.core, addr, bytes, Advice::PreferredLocation(Side::Host), ordinal)
            .and_then(|()| managed::advise(&self.core, addr, bytes, Advice::AccessedBy(Side::Gpu), ordinal));
        if advised.is_err() {
            self.core.retire(Retired::Managed(addr));
            return self.core.lost().map_or(Ok(None), Err);
        }
        let host = Raw(std::ptr::with_exposed_provenance_mut(addr as usize));
        zero(host, bytes);
        let of = Of::Managed;
        Ok(Some(self.enter(addr, Live { host, bytes, of })))
    }

    fn enter(self: &Arc<Self>, device: u64, live: Live) -> HostMemory {
        let (host, bytes) = (live.host.0, live.bytes);
        self.state.lock().live.insert(device, live);
        HostMemory {
            host,
            device,
            bytes,
            owner: Arc::clone(self) as Arc<dyn Release>,
        }
    }

    /// Whether managed memory of this pool covers the range.
    pub(crate) fn has_managed(&self, addr: u64, bytes: u64) -> bool {
        let state = self.state.lock();
        let before = state.live.range(..=addr).next_back();
        before.is_some_and(|(start, live)| {
            matches!(live.of, Of::Managed) && addr.checked_add(bytes).is_some_and(|end| end <= start + live.bytes)
        })
    }

    fn small(&self, taken: u64) -> Result<(Raw<u8>, u64, Of), GpuError> {
        let found = {
            let mut state = self.state.lock();
            let mut slabs = state.slabs.iter_mut();
            slabs.find_map(|(&slab, one)| Some((slab, one.host, one.ranges.take(taken, PAGE)?)))
        };
        let (slab, host, addr) = match found {
            Some(found) => found,
            None => {
                // Not under the lock: the driver may wait for kernels, and launches and callbacks look into the books.
                let (host, device) = pin(&self.core, SLAB_BYTES)?;
                let mut ranges = Ranges::new(device, SLAB_BYTES);
                // The driver gives whole pages, and a slab is longer than what comes here.
                let addr = ranges.take(taken, PAGE).unwrap_or(device);
                self.state.lock().slabs.insert(device, Slab { host, ranges });
                (device, host, addr)
            }
        };
        // SAFETY: the offset is inside the slab, which is one allocation.
        let host = Raw(unsafe { host.0.add((addr - slab) as usize) });
        Ok((host, addr, Of::Slab(slab, taken)))
    }

    /// The host's address of the range at device address `addr`, if one live allocation covers it.
    pub(crate) fn host_address(&self, addr: u64, bytes: u64) -> Option<Raw<u8>> {
        let state = self.state.lock();
        let (start, live) = state.live.range(..=addr).next_back()?;
        let inside = addr.checked_add(bytes)? <= start + live.bytes;
        // SAFETY: the offset is inside the allocation.
        inside.then(|| Raw(unsafe { live.host.0.add((addr - start) as usize) }))
    }

    /// The device address of memory of this pool at host address `host`.
    pub(crate) fn device_address(&self, host: u64, bytes: u64) -> Option<u64> {
        let state = self.state.lock();
        state.live.iter().find_map(|(&device, live)| {
            let offset = host.checked_sub(live.host.0 as u64)?;
            (offset.checked_add(bytes)? <= live.bytes).then_some(device + offset)
        })
    }
}

impl Release for HostPool {
    fn release(&self, addr: u64) {
        let gone = {
            let _forgetting = self.core.forgetting();
            let mut state = self.state.lock();
            let Some(live) = state.live.remove(&addr) else { return };
            match live.of {
                Of::Pinned => Retired::Host(Raw(live.host.0.cast())),
                Of::Managed => Retired::Managed(addr),
                Of::Slab(slab, taken) => {
                    if let Some(slab) = state.slabs.get_mut(&slab) {
                        slab.ranges.give(addr, taken);
                    }
                    return;
                }
            }
        };
        self.core.retire(gone);
    }
}

impl Drop for HostPool {
    fn drop(&mut self) {
        // Every allocation holds this pool, so nothing of a slab is in use.
        for slab in std::mem::take(&mut self.state.lock().slabs).into_values() {
            self.core.retire(Retired::Host(Raw(slab.host.0.cast())));
        }
    }
}

/// Zeroes fresh memory.
fn zero(host: Raw<u8>, bytes: u64) {
    let clear = |Raw(host): Raw<u8>, from: u64, to: u64| {
        // SAFETY: [from, to) lies inside memory that was just allocated and that nothing else knows yet.
        unsafe { std::ptr::write_bytes(host.add(from as usize), 0, (to - from) as usize) };
    };
    if bytes < PARALLEL_BYTES {
        return clear(host, 0, bytes);
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let share = bytes.div_ceil(threads.clamp(1, ZEROERS_MAX)).next_multiple_of(PAGE);
    let starts = (0..bytes).step_by(share as usize);
    std::thread::scope(|scope| {
        for start in starts {
            scope.spawn(move || clear(host, start, (start + share).min(bytes)));
        }
    });
}
