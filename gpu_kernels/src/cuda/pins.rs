//! Memory of this process that is pinned where it is.
//!
//! The driver pins whole pages and refuses a page twice, so that two registrations may share pages a [`Book`] of pinned ranges is
//! kept: a registration pins what is not pinned yet and counts itself on every range that it touches.
//!
//! What another GPU of this process has pinned is pinned for all of them. It is lent: the one that pinned it keeps it pinned, as for a
//! registration of its own, until the other one has given it back.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUresult,
};
use parking_lot::Mutex;

use super::calls::cu;
use super::core::{Core, Raw, Waiting};
use super::driver::{Failure, is, outcome};
use super::host::HostPool;
use super::managed::{self, Advice, Side};
use super::pin_book::{Book, Conflict, Live, Pinned};
use crate::api::CopySpan;
use crate::error::GpuError;
use crate::memory::{HostRegistration, Release, host_page_bytes};

/// How long memory that is to be unpinned for a new registration waits for a moment without kernels, and between looks.
const IDLE_WAIT: Duration = Duration::from_secs(1);
const IDLE_LOOK: Duration = Duration::from_micros(100);

/// Those of all GPUs that this process has opened.
static ALL: Mutex<Vec<Weak<Pins>>> = Mutex::new(Vec::new());

/// The registrations of one GPU.
pub(crate) struct Pins {
    core: Arc<Core>,
    pool: Arc<HostPool>,
    /// Held while memory is pinned and unpinned, which may take seconds and may wait for running kernels.
    pinning: Mutex<()>,
    /// Never held over a call of the driver: launches and callbacks look here.
    book: Mutex<Book>,
    /// What other GPUs' pins lend to this one, by the first address of the range. Changed with `pinning` held.
    borrowed: Mutex<BTreeMap<u64, HostRegistration>>,
}

impl Pins {
    /// Nothing registered.
    pub(crate) fn new(core: Arc<Core>, pool: Arc<HostPool>) -> Arc<Self> {
        let pins = Arc::new(Self {
            core,
            pool,
            pinning: Mutex::default(),
            book: Mutex::new(Book::new(host_page_bytes())),
            borrowed: Mutex::default(),
        });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&pins));
        drop(all);
        let waiting: Weak<Self> = Arc::downgrade(&pins);
        pins.core.set_waiting(waiting);
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
        if self.is_managed_by_another(host, bytes) {
            let ordinal = self.core.info.ordinal;
            managed::advise(&self.core, host, bytes, Advice::AccessedBy(Side::Gpu), ordinal)?;
            return Ok(HostRegistration {
                host,
                device: host,
                bytes,
                owner: None,
            });
        }
        // Letting go of another GPU's books may have left its context.
        self.core.enter()?;
        let live = Live {
            host,
            device: 0,
            bytes,
            read_only,
        };
        let (number, device) = self.pin(live)?;
        Ok(HostRegistration {
            // The owner's name for it; addresses are not unique here.
            host: number,
            device,
            bytes,
            owner: Some(Arc::clone(self) as Arc<dyn Release>),
        })
    }

    /// Whether another GPU of this process has allocated managed memory there, which all of them reach.
    fn is_managed_by_another(&self, host: u64, bytes: u64) -> bool {
        let others: Vec<Arc<Self>> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
        others.iter().any(|other| other.pool.has_managed(host, bytes))
    }

    /// Pins what of `live` is not pinned, enters it, and gives its number and its device address.
    fn pin(&self, live: Live) -> Result<(u64, u64), GpuError> {
        let _pinning = self.pinning.lock();
        self.make_room(&live);
        let (missing, fresh) = {
            let book = self.book.lock();
            let missing = book.missing(&live).map_err(|conflict| refused(&live, conflict))?;
            (missing, book.is_fresh(&live))
        };
        // What others hold of it stays pinned meanwhile: nothing is unpinned without `pinning`.
        let added = self.pin_ranges(&live, &missing)?;
        let entered = self.book.lock().enter(live, &added);
        if let Ok(entered) = entered {
            return Ok(entered);
        }
        self.unpin_ranges(&added);
        if !fresh {
            return entered.map_err(|conflict| refused(&live, conflict));
        }
        // A GPU that has addresses of its own for pinned memory: all of it in one piece then.
        let whole = self.book.lock().whole(&live);
        let added = self.pin_ranges(&live, &[whole])?;
        let entered = self.book.lock().enter(live, &added);
        entered.map_err(|conflict| {
            self.unpin_ranges(&added);
            refused(&live, conflict)
        })
    }

    /// Pins all of `ranges` or, with an error, none.
    fn pin_ranges(&self, live: &Live, ranges: &[(u64, u64)]) -> Result<Vec<(u64, Pinned)>, GpuError> {
        let mut added = Vec::with_capacity(ranges.len());
        for &(from, to) in ranges {
            match self.pin_range(live, from, to) {
                Ok(pinned) => added.push((from, pinned)),
                Err(error) => {
                    self.unpin_ranges(&added);
                    return Err(error);
                }
            }
        }
        Ok(added)
    }

    fn unpin_ranges(&self, ranges: &[(u64, Pinned)]) {
        for (from, _) in ranges {
            self.unpin(*from);
        }
    }

    fn pin_range(&self, live: &Live, from: u64, to: u64) -> Result<Pinned, GpuError> {
        let base = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let can_read_only = live.read_only && self.core.info.read_only_registration;
        // A page that it shares may be a neighbour's who writes it, so it is pinned for writing if it can be.
        let shared = from < live.host || to > live.host + live.bytes;
        let mut native = can_read_only && !shared;
        let register = |native: bool| {
            let flags = base | if native { CU_MEMHOSTREGISTER_READ_ONLY } else { 0 };
            // SAFETY: the memory is valid until the registration is dropped: the promise of who registers it.
            outcome(unsafe { cu::cuMemHostRegister_v2(from as *mut c_void, (to - from) as usize, flags) })
        };
        let mut called = register(native);
        let by_another = |failure: &Failure| is(failure.code, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        if called.as_ref().is_err_and(by_another) {
            called = match self.borrow(from, to, live.read_only) {
                true => Ok(()),
                // What was left pinned there is not any more.
                false => register(native),
            };
        }
        if can_read_only
            && !native
            && called
                .as_ref()
                .is_err_and(|failure| !by_another(failure) && !failure.kills_context())
        {
            native = true;
            called = register(native);
        }
        called.map_err(|failure| self.cannot_pin(live, native, failure))?;
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

    fn cannot_pin(&self, live: &Live, native: bool, failure: Failure) -> GpuError {
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
             that is not writable can only be pinned for reading; a writable file map since Linux 6.5 only where the file lies \
             in memory, as in /dev/shm: put it there, or read it into a region and write the region back",
        )
    }

    /// Has another GPU's pins keep a range pinned that they have pinned, for this GPU as well. Those that hold a part of it for nothing let
    /// go of that. The caller holds `pinning`.
    fn borrow(&self, from: u64, to: u64, read_only: bool) -> bool {
        let live = Live {
            host: from,
            device: 0,
            bytes: to - from,
            read_only,
        };
        let others: Vec<Arc<Self>> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
        let mut lent = None;
        for other in others.iter().filter(|other| !std::ptr::eq(&raw const ***other, self)) {
            lent = lent.or_else(|| other.lend(live));
            // Not waited for: it may be at the same with this one.
            if let (None, Some(_pinning)) = (&lent, other.pinning.try_lock())
                && other.core.enter().is_ok()
            {
                other.unpin_unused(Some(&live));
            }
        }
        drop(others);
        // The driver's calls of this thread go to this GPU again.
        let entered = self.core.enter().is_ok();
        match lent.filter(|_| entered) {
            Some(lent) => self.borrowed.lock().insert(from, lent).is_none(),
            None => false,
        }
    }

    /// A registration of what is pinned here for one that lives.
    fn lend(self: &Arc<Self>, live: Live) -> Option<HostRegistration> {
        let mut book = self.book.lock();
        let all_there = book.missing(&live).is_ok_and(|missing| missing.is_empty());
        let (number, device) = all_there.then(|| book.enter(live, &[]).ok())??;
        Some(HostRegistration {
            host: number,
            device,
            bytes: live.bytes,
            owner: Some(Arc::clone(self) as Arc<dyn Release>),
        })
    }

    /// Unpins one range; it may wait for running kernels.
    fn unpin(&self, from: u64) {
        let lent = self.borrowed.lock().remove(&from);
        if lent.is_some() {
            drop(lent);
            // Giving it back may have led this thread to the other GPU. What is wrong with this one shows at its next call.
            let _ = self.core.enter();
            return;
        }
        // SAFETY: the range starts here and was registered by `pin_range`; its last user gave it up.
        let called = unsafe { cu::cuMemHostUnregister(from as *mut c_void) };
        // No one to tell; what kills the context is noted.
        let _ = self.core.check("unpin host memory", called);
    }

    /// Unpins what nothing uses among what touches `live`, or all of that. The caller holds `pinning`.
    fn unpin_unused(&self, live: Option<&Live>) {
        let unused = self.book.lock().take_unused(live);
        for from in unused {
            self.unpin(from);
        }
    }

    /// Unpins what nothing uses among what touches `live`, between two kernels where that can be: the driver waits for
    /// those that run and keeps others' calls waiting, and kernels may wait for copies that such calls make.
    fn make_room(&self, live: &Live) {
        let begun = Instant::now();
        while self.book.lock().has_unused(live) {
            let done = self.core.while_idle(|| self.unpin_unused(Some(live)));
            if !done && begun.elapsed() >= IDLE_WAIT {
                // Kernels of others follow each other without a pause.
                self.unpin_unused(Some(live));
            }
            if !done {
                std::thread::sleep(IDLE_LOOK);
            }
        }
    }

    /// Replaces `spans` by spans that the driver copies: each within one pinned range on either side.
    pub(crate) fn cut(&self, spans: &[CopySpan], pieces: &mut Vec<CopySpan>) {
        let book = self.book.lock();
        pieces.clear();
        for &CopySpan { to, from, bytes } in spans {
            let mut at = 0;
            while at < bytes {
                let left = book.in_one_copy(from + at, bytes - at);
                let piece = book.in_one_copy(to + at, left);
                pieces.push(CopySpan {
                    to: to + at,
                    from: from + at,
                    bytes: piece,
                });
                at += piece;
            }
        }
    }

    /// The host's address of the range at device address `addr`, if one registration covers it, and whether it is for
    /// reading only.
    pub(crate) fn host_address(&self, addr: u64, bytes: u64) -> Option<(Raw<u8>, bool)> {
        let (host, read_only) = self.book.lock().host_address(addr, bytes)?;
        Some((Raw(host as *mut u8), read_only))
    }
}

impl Waiting for Pins {
    fn free_unused(&self) {
        // Who holds it may pin for seconds; what is left is unpinned the next time.
        let Some(_pinning) = self.pinning.try_lock() else {
            return;
        };
        // Of a lost context nothing can be unpinned, and what is not unpinned stays in the book.
        if self.core.enter().is_ok() {
            self.unpin_unused(None);
        }
    }
}

impl Release for Pins {
    fn release(&self, number: u64) {
        {
            let _forgetting = self.core.forgetting();
            self.book.lock().leave(number);
        }
        self.core.free_retired();
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.free_unused();
    }
}

fn what(live: &Live) -> String {
    format!("pin {} bytes of host memory at {:#x}", live.bytes, live.host)
}

fn refused(live: &Live, conflict: Conflict) -> GpuError {
    let (text, advice) = match conflict {
        Conflict::ReadOnly => (
            "a part of it is pinned for reading only",
            "drop the read-only registration first",
        ),
        Conflict::Stale => (
            "a part of it is still pinned, in one piece with memory of another registration, for one that was dropped",
            "drop the registrations that overlap it first",
        ),
        Conflict::Torn => (
            "its parts, pinned at different times, are not contiguous for the GPU",
            "register the whole of it before its parts",
        ),
    };
    GpuError::Driver {
        what: what(live),
        name: "conflict".to_owned(),
        text: text.to_owned(),
        advice: format!("; {advice}"),
    }
}
