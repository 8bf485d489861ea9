//! Memory of this process that is pinned where it is.
//!
//! The driver pins whole pages and refuses a page twice, so that two registrations may share pages a book of pinned ranges is
//! kept: a registration pins what is not pinned yet and counts itself on every range that it touches.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUresult,
};

use super::calls::cu;
use super::core::{Core, Raw};
use super::driver::{Failure, is, outcome};
use super::host::HostPool;
use crate::api::{HostRegistration, Release};
use crate::error::GpuError;
use crate::lock::lock;

/// The registrations of one GPU.
pub(crate) struct Pins {
    core: Arc<Core>,
    pool: Arc<HostPool>,
    page: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    /// By number.
    live: BTreeMap<u64, Live>,
    /// By first host address; ranges do not overlap.
    pinned: BTreeMap<u64, Pinned>,
}

struct Live {
    host: u64,
    device: u64,
    bytes: u64,
    read_only: bool,
}

struct Pinned {
    end: u64,
    /// Device address less host address.
    shift: u64,
    read_only: bool,
    /// Registrations that touch it; at 0 it waits until no kernel runs.
    users: u64,
}

impl Live {
    fn pages(&self, page: u64) -> (u64, u64) {
        (self.host / page * page, (self.host + self.bytes).next_multiple_of(page))
    }
}

impl Pins {
    /// Nothing registered.
    pub(crate) fn new(core: Arc<Core>, pool: Arc<HostPool>) -> Arc<Self> {
        // SAFETY: it asks for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let pins = Arc::new(Self {
            core,
            pool,
            page: u64::try_from(page).unwrap_or(4096).max(4096),
            state: Mutex::default(),
        });
        pins.core.set_pins(Arc::downgrade(&pins));
        pins
    }

    /// See [`Gpu::register_host`](crate::Gpu::register_host).
    pub(crate) fn register(
        self: &Arc<Self>,
        host: *mut u8,
        bytes: u64,
        read_only: bool,
    ) -> Result<HostRegistration, GpuError> {
        let host = host as u64;
        let end = host.checked_add(bytes).filter(|end| *end < 1 << 56);
        if bytes == 0 || host == 0 || end.is_none() {
            return Err(GpuError::BadAllocation {
                bytes,
                align: 1,
                cause: "memory to register must have bytes and must not be at address 0".into(),
            });
        }
        self.core.enter()?;
        if let Some(device) = self.pool.device_address(host, bytes) {
            // It is pinned for as long as its owner, whom the caller keeps, holds it.
            return Ok(HostRegistration {
                host,
                device,
                bytes,
                owner: None,
            });
        }
        let mut live = Live {
            host,
            device: 0,
            bytes,
            read_only,
        };
        let mut state = lock(&self.state);
        live.device = self.pin(&mut state, &live)?;
        state.last += 1;
        let (number, device) = (state.last, live.device);
        state.live.insert(number, live);
        Ok(HostRegistration {
            // The owner's name for it; addresses are not unique here.
            host: number,
            device,
            bytes,
            owner: Some(Arc::clone(self) as Arc<dyn Release>),
        })
    }

    /// Pins what of `live` is not pinned, counts it on all its ranges, and gives its device address.
    fn pin(&self, state: &mut State, live: &Live) -> Result<u64, GpuError> {
        let (first, end) = live.pages(self.page);
        // What nobody uses any more may hold pages that were unmapped since: it must not be taken for today's.
        self.unpin_unused(state, first, end);
        let mut gaps = Vec::new();
        let mut at = first;
        for (&start, pinned) in state.overlapping(first, end) {
            if pinned.read_only && !live.read_only {
                let text = "a part of it is pinned for reading only";
                return Err(failed(live, "conflict", text, "drop the read-only registration first"));
            }
            if at < start {
                gaps.push((at, start));
            }
            at = pinned.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        let mut added = Vec::new();
        let result = gaps.iter().try_for_each(|&(from, to)| {
            let pinned = self.pin_range(live, from, to)?;
            state.pinned.insert(from, pinned);
            added.push(from);
            Ok(())
        });
        let result = result.and_then(|()| {
            let mut shifts = state.overlapping(first, end).map(|(_, pinned)| pinned.shift);
            let shift = shifts.next().unwrap_or_default();
            if shifts.any(|other| other != shift) {
                let text = "its parts, pinned at different times, are not contiguous for the GPU";
                return Err(failed(
                    live,
                    "conflict",
                    text,
                    "register the whole of it before its parts",
                ));
            }
            Ok(live.host.wrapping_add(shift))
        });
        if result.is_err() {
            for from in added {
                state.pinned.remove(&from);
                self.unpin(from);
            }
            return result;
        }
        for (_, pinned) in state.overlapping_mut(first, end) {
            pinned.users += 1;
        }
        result
    }

    fn pin_range(&self, live: &Live, from: u64, to: u64) -> Result<Pinned, GpuError> {
        let base = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let native = live.read_only && self.core.info.read_only_registration;
        let flags = base | if native { CU_MEMHOSTREGISTER_READ_ONLY } else { 0 };
        // SAFETY: the memory is valid until the registration is dropped: the promise of who registers it.
        let called = unsafe { cu::cuMemHostRegister_v2(from as *mut c_void, (to - from) as usize, flags) };
        outcome(called).map_err(|failure| self.refused(live, native, failure))?;
        let mut device = 0;
        // SAFETY: an out-value of the right type; the range was just registered.
        let mapped = unsafe { cu::cuMemHostGetDevicePointer_v2(&raw mut device, from as *mut c_void, 0) };
        self.core
            .check("ask for the GPU's address of pinned memory", mapped)
            .inspect_err(|_| self.unpin(from))?;
        Ok(Pinned {
            end: to,
            shift: device.wrapping_sub(from),
            read_only: native,
            users: 0,
        })
    }

    fn refused(&self, live: &Live, native: bool, failure: Failure) -> GpuError {
        if failure.kills_context() {
            return self.core.error(what(live), failure);
        }
        if is(failure.code, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
            return failure.advised(
                what(live),
                "another library of this process has pinned a part of it; unregister it there",
            );
        }
        if live.read_only && !native {
            return failure.advised(
                what(live),
                "this GPU has no read-only registration, so the memory must be writable: map the file with MAP_PRIVATE and \
                 PROT_WRITE, or copy it",
            );
        }
        failure.advised(
            what(live),
            "pinned memory counts against ulimit -l (memlock) and the container's limit; memory of a device or of a file map \
             that is not writable can only be pinned for reading, some file systems' maps not at all",
        )
    }

    /// Unpins one range; it may wait for running kernels.
    fn unpin(&self, from: u64) {
        // SAFETY: the range starts here and was registered by `pin_range`; its last user gave it up.
        let called = unsafe { cu::cuMemHostUnregister(from as *mut c_void) };
        // Nobody to tell; what kills the context is noted.
        let _ = self.core.check("unpin host memory", called);
    }

    fn unpin_unused(&self, state: &mut State, first: u64, end: u64) {
        let unused: Vec<u64> = state
            .overlapping(first, end)
            .filter_map(|(&start, pinned)| (pinned.users == 0).then_some(start))
            .collect();
        for start in unused {
            state.pinned.remove(&start);
            self.unpin(start);
        }
    }

    /// Unpins what nobody uses. To be called when no kernel runs.
    pub(crate) fn unpin_all_unused(&self) {
        // Who holds it may pin for seconds; what is left is unpinned the next time.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.pinned.values().all(|pinned| pinned.users > 0) || self.core.enter().is_err() {
            return;
        }
        self.unpin_unused(&mut state, 0, u64::MAX);
    }

    /// The host's address of the range at device address `addr`, if one registration covers it, and whether it is for
    /// reading only.
    pub(crate) fn host_address(&self, addr: u64, bytes: u64) -> Option<(Raw<u8>, bool)> {
        let state = lock(&self.state);
        state.live.values().find_map(|live| {
            let offset = addr.checked_sub(live.device)?;
            let inside = offset.checked_add(bytes)? <= live.bytes;
            inside.then_some((Raw((live.host + offset) as *mut u8), live.read_only))
        })
    }
}

impl State {
    fn overlapping(&self, first: u64, end: u64) -> impl Iterator<Item = (&u64, &Pinned)> {
        self.pinned.range(..end).filter(move |(_, pinned)| pinned.end > first)
    }

    fn overlapping_mut(&mut self, first: u64, end: u64) -> impl Iterator<Item = (&u64, &mut Pinned)> {
        self.pinned
            .range_mut(..end)
            .filter(move |(_, pinned)| pinned.end > first)
    }
}

impl Release for Pins {
    fn release(&self, number: u64) {
        {
            let _forgetting = self.core.forgetting();
            let mut state = lock(&self.state);
            let Some(live) = state.live.remove(&number) else { return };
            let (first, end) = live.pages(self.page);
            for (_, pinned) in state.overlapping_mut(first, end) {
                pinned.users -= 1;
            }
        }
        self.core.free_retired();
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.unpin_all_unused();
    }
}

fn what(live: &Live) -> String {
    format!("pin {} bytes of host memory at {:#x}", live.bytes, live.host)
}

fn failed(live: &Live, name: &str, text: &str, advice: &str) -> GpuError {
    GpuError::Driver {
        what: what(live),
        name: name.to_owned(),
        text: text.to_owned(),
        advice: format!("; {advice}"),
    }
}
