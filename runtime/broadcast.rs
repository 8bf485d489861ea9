//! Arrays of which each subscribed GPU holds a copy: loads are local, stores go to all copies (GPS, MICRO'21). What lanes do is
//! `gpuvm/broadcast.cuh`; the rules are in docs/PROTOCOL.md, "Broadcast arrays".

mod builder;
mod handle;
mod subscriptions;
mod tracking;
mod views;

use std::ops::Range;
use std::sync::{Arc, Weak, atomic::AtomicBool};

use gpuvm_gpu::{Gpu, HostMemory};
use gpuvm_layouts::{BroadcastCounters, BroadcastDesc};
use memmap2::MmapMut;
use parking_lot::{Mutex, MutexGuard, RwLock};

pub use builder::{BroadcastBuilder, Subscribers};
pub use handle::{Broadcast, RawBroadcast, Traffic};

use self::{subscriptions::Subscriptions, views::Views};
use crate::{
    crowd::Crowd,
    device::DeviceArray,
    element::ElementType,
    error::{Doing, Error, Result, check_range},
    gpu::PagedGpu,
    launch::{LaunchKind, LaunchTracker, Memory},
};

/// Shared by the handle and the launches that name the array.
pub(crate) struct BroadcastInner {
    pub name: String,
    pub element: ElementType,
    pub length: u64,
    /// What each GPU keeps of it, by view.
    on: Vec<OnView>,
    views: Views,
    /// Of each page. Changed while no launch uses the array.
    subscriptions: RwLock<Subscriptions>,
    /// Whether a GPU subscribes to what it reads.
    by_reading: bool,
    /// Whether an iteration is tracked: what it reads is looked at when it has ended. Relaxed: changed while the launches are locked.
    tracked: AtomicBool,
    launches: Mutex<LaunchTracker>,
    /// Used by who holds the launches.
    round: Mutex<Round>,
    /// What the array was made of, or what the last flush wrote.
    home: Mutex<MmapMut>,
}

/// The GPUs, a bit each, on which launches with the array were enqueued since all that there were had ended.
#[derive(Default)]
struct Round {
    all: u32,
    /// Whether one of the launches may store.
    stores: bool,
}

/// What one GPU keeps of an array.
struct OnView {
    gpu: Arc<PagedGpu>,
    /// What lanes are told of each page.
    entries: DeviceArray<u32>,
    /// A byte a page.
    reads: DeviceArray<u8>,
    /// A byte a line.
    _marks: DeviceArray<u8>,
    counters: DeviceArray<BroadcastCounters>,
    /// 1 once lanes have set a mark.
    marked: HostMemory,
    /// The kernel's argument.
    desc: Mutex<BroadcastDesc>,
}

/// The broadcast arrays of a virtual memory.
#[derive(Default)]
pub(crate) struct Arrays(Mutex<Crowd<Weak<BroadcastInner>>>);

impl Arrays {
    fn enter(&self, array: &Arc<BroadcastInner>) {
        let mut arrays = self.0.lock();
        arrays.push(Arc::downgrade(array), |array| array.strong_count() > 0);
    }

    /// Those that there are.
    pub fn live(&self) -> Vec<Arc<BroadcastInner>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl OnView {
    fn device(&self) -> &dyn Gpu {
        &*self.gpu.device
    }
}

impl BroadcastInner {
    /// The argument of a launch whose `VmDesc` is at `vm` in a view, as it is at this moment.
    pub fn desc(&self, view: usize, vm: u64) -> BroadcastDesc {
        let desc = *self.on[view].desc.lock();
        BroadcastDesc { vm, ..desc }
    }

    /// The view of a GPU; none where it has none.
    pub fn view_of(&self, gpu: &Arc<PagedGpu>) -> Option<usize> {
        self.on.iter().position(|on| Arc::ptr_eq(&on.gpu, gpu))
    }

    /// A GPU of it, for messages and for checks of whose virtual memory it is.
    pub fn gpu(&self, view: usize) -> &Arc<PagedGpu> {
        &self.on[view].gpu
    }

    /// Address of element 0 in a view.
    pub fn addr(&self, view: usize) -> u64 {
        self.views.addr(view)
    }

    fn bytes(&self) -> u64 {
        self.length * self.element.bytes() as u64
    }

    /// Waits for the launches that name the array, has their changes forwarded, and keeps others from beginning while the guard lives.
    fn quiesce(&self) -> Result<MutexGuard<'_, LaunchTracker>> {
        let mut launches = self.launches.lock();
        launches.wait_idle();
        *self.round.lock() = Round::default();
        self.check_gpus()?;
        self.forward_atomics()?;
        Ok(launches)
    }

    /// # Errors
    /// [`Error::GpuLost`] once any of the GPUs is lost: others would store to its copies.
    fn check_gpus(&self) -> Result<()> {
        let lost = |on: &OnView| on.device().lost();
        match self.on.iter().find_map(lost) {
            None => Ok(()),
            Some(source) => Err(Error::GpuLost {
                regions: vec![self.name.clone()],
                source,
            }),
        }
    }

    /// # Errors
    /// [`Error::OutOfRange`].
    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        check_range(&self.name, range, self.length)
    }

    /// The parts of a range of bytes whose pages `key` takes for the same, each as long as can be: the key, and the bytes.
    fn by_run<K: PartialEq>(&self, bytes: Range<u64>, key: impl Fn(usize) -> K) -> Vec<(K, Range<u64>)> {
        let size = self.views.page_bytes;
        let mut runs: Vec<(K, Range<u64>)> = Vec::new();
        for page in bytes.start / size..bytes.end.div_ceil(size) {
            let (key, end) = (key(page as usize), ((page + 1) * size).min(bytes.end));
            match runs.last_mut() {
                Some((last, run)) if *last == key => run.end = end,
                _ => runs.push((key, (page * size).max(bytes.start)..end)),
            }
        }
        runs
    }

    /// Copies bytes out of the owners' copies. No launch uses the array.
    fn read_out(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let subscriptions = self.subscriptions.read();
        for (owner, span) in self.by_run(first..first + out.len() as u64, |page| subscriptions.owner(page)) {
            let part = &mut out[(span.start - first) as usize..(span.end - first) as usize];
            self.read_view(owner, span.start, part)?;
        }
        Ok(())
    }

    /// Copies bytes out of a view, all of them in one GPU's memory.
    fn read_view(&self, view: usize, first: u64, out: &mut [u8]) -> Result<()> {
        let read = self.host().device().read(self.views.addr(view) + first, out);
        let doing = || format!("reading broadcast array `{}`", self.name);
        self.host().gpu.map_device_lost(read.doing(doing))
    }

    /// Stores bytes in all subscribers' copies. No launch uses the array.
    fn write_in(&self, first: u64, values: &[u8]) -> Result<()> {
        let subscriptions = self.subscriptions.read();
        for view in 0..self.on.len() {
            let held = |page| subscriptions.is_subscribed(view, page);
            let runs = self.by_run(first..first + values.len() as u64, held);
            for (_, span) in runs.into_iter().filter(|(held, _)| *held) {
                let part = &values[(span.start - first) as usize..(span.end - first) as usize];
                let written = self.host().device().write(self.views.addr(view) + span.start, part);
                let doing = || format!("writing broadcast array `{}`", self.name);
                self.host().gpu.map_device_lost(written.doing(doing))?;
            }
        }
        Ok(())
    }

    /// The view through which the host reaches all of them: the first GPU reserved the addresses.
    fn host(&self) -> &OnView {
        &self.on[0]
    }

    /// Tells lanes of all views how pages are subscribed. No launch uses the array.
    fn tell(&self, subscriptions: &Subscriptions, pages: &[usize]) -> Result<()> {
        for (view, on) in self.on.iter().enumerate() {
            for run in pages.chunk_by(|a, b| a + 1 == *b) {
                let entries = subscriptions.entries(view, run[0]..run[0] + run.len());
                let written = on.entries.write(on.device(), run[0] as u64, &entries);
                on.gpu
                    .map_device_lost(written.doing(|| format!("describing broadcast array `{}`", self.name)))?;
            }
            let mut desc = on.desc.lock();
            desc.others = subscriptions.others(view);
            desc.held_parts = subscriptions.held_parts(view, desc.part_shift - desc.page_shift);
        }
        Ok(())
    }
}

impl Memory for BroadcastInner {
    fn launches(&self) -> &Mutex<LaunchTracker> {
        &self.launches
    }

    /// Launches on several GPUs run side by side. One comes after those that were enqueued since the last one on its own GPU, and after
    /// that one, also where that one has ended by now: the others may have not.
    fn make_coherent(&self, launches: &mut LaunchTracker, to_begin: LaunchKind) -> Result<()> {
        if self.on.len() == 1 {
            // There is one copy: streams order what uses it.
            return Ok(());
        }
        let mut round = self.round.lock();
        // Where all of them only read, there is nothing to see.
        if round.all >> to_begin.gpu & 1 == 1 && (to_begin.writes || round.stores) {
            launches.wait_idle();
            *round = Round::default();
        }
        drop(round);
        self.check_gpus()?;
        if !launches.is_idle() {
            return Ok(());
        }
        self.forward_atomics()?;
        self.subscribe_readers()
    }

    fn expect(&self, _launches: &mut LaunchTracker, to_begin: LaunchKind) {
        let mut round = self.round.lock();
        round.all |= 1 << to_begin.gpu;
        round.stores |= to_begin.writes;
    }
}
