//! When what happened: launches, single faults with their steps, evictions, write-backs, doorbells and what the host did meanwhile, in a
//! file that Perfetto and Chrome open.
//!
//! Lanes note one in this many events in a ring in GPU memory, which the host empties while they run: the whole of a fault is one entry of 64
//! bytes. Kernels of a virtual memory without a timeline have none of that. The same operations of the host are ranges for NVIDIA's tools
//! (`nvtx`), with a timeline or without.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, LaunchOutcome};
use gpuvm_layouts::TimelineDesc;
use parking_lot::Mutex;

use crate::{
    background::Background,
    error::{Doing, Error, Result},
    nvtx,
    stored::stored,
};

mod drawing;
mod ring;
mod sheet;

use drawing::Drawing;
use ring::Ring;
pub(crate) use sheet::Sheet;

/// The environment's variables.
const FILE: &str = "GPUVM_TRACE";
const ONE_IN: &str = "GPUVM_TRACE_ONE_IN";
/// How often the ring is emptied.
const PERIOD: Duration = Duration::from_millis(20);

/// A timeline of what the GPUs of a virtual memory do, as a file in Chrome's format of trace events: `ui.perfetto.dev` opens it. See
/// [`VmBuilder::timeline`](crate::VmBuilder::timeline).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Timeline {
    path: PathBuf,
    one_in: u32,
    ring_events: u64,
    file_bytes: u64,
}

impl Timeline {
    /// A timeline in the file at `path`, new or in the place of an earlier timeline; `%p` in it becomes the number of this process. Virtual memories of one
    /// process that name one file share it.
    pub fn to(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            one_in: 64,
            ring_events: 1 << 16,
            file_bytes: 256 << 20,
        }
    }

    stored! {
        /// Notes one in this many faults, evictions, write-backs, prefetches and doorbells, at least 1, drawn by chance. Launches and what the
        /// host does are all there. Default: 64.
        one_in(events: u32) => one_in = events;

        /// This many events, rounded up to a power of two, have room in GPU memory before the host has read them, 64 bytes each, on each GPU; at
        /// most 2^24. What finds no room is dropped and counted. Default: 65,536.
        ring_events(events: u64) => ring_events = events;

        /// Most bytes of the file, at least 64 KiB; what comes later is left out and counted. The first virtual memory that names the file
        /// decides. Default: 256 MiB.
        file_bytes(bytes: u64) => file_bytes = bytes;
    }

    /// What the environment asks for: `GPUVM_TRACE` names the file, and `GPUVM_TRACE_ONE_IN` says how many events there are for each that is
    /// noted. None where the first is not set, or empty.
    ///
    /// # Errors
    /// [`Error::Setting`] for a number that is none.
    pub fn of_environment() -> Result<Option<Self>> {
        let Some(path) = std::env::var_os(FILE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let timeline = Self::to(PathBuf::from(path));
        let Some(text) = std::env::var_os(ONE_IN) else {
            return Ok(Some(timeline));
        };
        let text = text.to_string_lossy();
        let number = text.parse().ok().filter(|number| *number > 0);
        match number {
            Some(number) => Ok(Some(timeline.one_in(number))),
            None => Err(Error::Setting {
                setting: ONE_IN,
                value: format!("`{text}`"),
                reason: "it must be a whole number from 1 to 4294967295, such as 64; or unset it".into(),
            }),
        }
    }

    /// The file, with this process's number.
    fn file(&self) -> PathBuf {
        match self.path.to_str() {
            Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
            None => self.path.clone(),
        }
    }

    /// Begins the file, or goes on with it.
    ///
    /// # Errors
    /// [`Error::Setting`] for numbers out of range, [`Error::Timeline`] for a file that cannot be written.
    pub(crate) fn open(&self) -> Result<Arc<Sheet>> {
        let refuse = |setting, value: u64, reason: &str| {
            Err(Error::Setting {
                setting,
                value: value.to_string(),
                reason: reason.into(),
            })
        };
        if self.one_in == 0 {
            return refuse("timeline's one in", 0, "it must be at least 1");
        }
        if !(1..=1 << 24).contains(&self.ring_events) {
            return refuse("timeline's ring", self.ring_events, "it must be from 1 to 2^24 events");
        }
        if self.file_bytes < 64 << 10 {
            return refuse("timeline's file limit", self.file_bytes, "it must be at least 64 KiB");
        }
        let path = self.file();
        Sheet::open(&path, self.file_bytes).map_err(|source| Error::Timeline { path, source })
    }
}

impl From<PathBuf> for Timeline {
    fn from(path: PathBuf) -> Self {
        Self::to(path)
    }
}

impl From<&Path> for Timeline {
    fn from(path: &Path) -> Self {
        Self::to(path)
    }
}

impl From<&str> for Timeline {
    fn from(path: &str) -> Self {
        Self::to(path)
    }
}

/// The timeline of one GPU.
pub(crate) struct GpuTimeline {
    sheet: Arc<Sheet>,
    one_in: u32,
    ring: Mutex<Ring>,
    describes: TimelineDesc,
    drawing: Mutex<Drawing>,
    /// How far off the GPU's timer may be, in nanoseconds.
    uncertain_ns: AtomicU64,
    /// Whether the virtual memory is up: what brings it up is left out.
    begun: AtomicBool,
    thread: Mutex<Option<Background>>,
}

impl GpuTimeline {
    /// A timeline for a GPU, the first, second and so on of its virtual memory.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn new(gpu: &Arc<dyn Gpu>, asked: &Timeline, sheet: &Arc<Sheet>, place: usize) -> Result<Arc<Self>> {
        let doing = || "allocating the timeline's ring".to_owned();
        let ring = Ring::new(gpu, asked.ring_events.next_power_of_two()).doing(doing)?;
        let able = gpu.capabilities();
        let process = sheet.next_process();
        let title = format!("GPU {place}: {}", able.name);
        Ok(Arc::new(Self {
            describes: ring.describe(asked.one_in),
            ring: Mutex::new(ring),
            drawing: Mutex::new(Drawing::new(process, title, able.ticks_per_us)),
            sheet: Arc::clone(sheet),
            one_in: asked.one_in,
            uncertain_ns: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            thread: Mutex::default(),
        }))
    }

    /// It for lanes.
    pub fn describe(&self) -> TimelineDesc {
        self.describes
    }

    /// The GPU's timer showed `gpu_ns` at some time from `before` to `after` of the host. The closest of several calls counts.
    pub fn align(&self, before: Instant, after: Instant, gpu_ns: u64) {
        let (before, after) = (self.sheet.ns_at(before), self.sheet.ns_at(after));
        let half = (after - before) / 2;
        let mut drawing = self.drawing.lock();
        // Relaxed: it changes under the drawing's lock.
        let best = self.uncertain_ns.load(Ordering::Relaxed);
        if best == 0 || half < best {
            drawing.offset_ns = i128::from(before + half) - i128::from(gpu_ns);
            self.uncertain_ns.store(half.max(1), Ordering::Relaxed);
        }
    }

    /// The virtual memory is up. With `watched` a thread empties the ring from now on; a GPU that follows a seed is left alone.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn begin(self: &Arc<Self>, watched: bool) -> Result<()> {
        // Relaxed: it orders nothing.
        self.begun.store(true, Ordering::Relaxed);
        if watched {
            let timeline = Arc::downgrade(self);
            let turn = move |_: &AtomicBool| Weak::upgrade(&timeline).is_some_and(|timeline| timeline.drain(false));
            let thread = Background::start("timeline", PERIOD, turn).map_err(|source| Error::Thread { source })?;
            *self.thread.lock() = Some(thread);
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// What the region with this number is called from now on.
    pub fn name_region(&self, region: u32, name: &str) {
        if self.has_begun() {
            // Events so far are of the one that had the number before.
            self.drain(false);
        }
        self.drawing.lock().name_region(region, name);
    }

    /// A launch has ended.
    fn launched(&self, stream: usize, label: &str, enqueued: Instant, outcome: &LaunchOutcome) {
        if self.has_begun() {
            let took = outcome.as_ref().ok().map(|report| report.elapsed().as_nanos() as u64);
            self.drawing.lock().launch(&self.sheet, stream, label, enqueued, took);
        }
    }

    /// Somebody waited for a launch: what it did is soon there to read.
    pub fn look(&self) {
        match &*self.thread.lock() {
            Some(thread) => thread.wake(),
            None => drop(self.drain(false)),
        }
    }

    /// Empties the ring into the file. With `idle` no lane runs. False when the GPU is lost.
    fn drain(&self, idle: bool) -> bool {
        // One after the other, so that events are drawn in their order.
        let mut ring = self.ring.lock();
        let events = ring.read(idle);
        let read = events.is_ok();
        match events {
            Ok(events) => self.drawing.lock().events(&self.sheet, events),
            Err(error) => tracing::warn!(%error, "the timeline is incomplete: a GPU's ring cannot be read"),
        }
        self.sheet.flush();
        read
    }

    /// The last of the GPU: no launch runs any more.
    pub fn end(&self) {
        let thread = self.thread.lock().take();
        drop(thread);
        if !self.has_begun() {
            return;
        }
        self.drain(true);
        let dropped = self.ring.lock().dropped();
        let mut drawing = self.drawing.lock();
        if !drawing.is_empty() {
            let uncertain = self.uncertain_ns.load(Ordering::Relaxed);
            drawing.finish(&self.sheet, self.one_in, dropped, uncertain);
        }
        self.sheet.flush();
    }
}

/// Something that the host does, until it is dropped.
pub(crate) struct Span {
    drawn: Option<(Arc<GpuTimeline>, String, Instant)>,
    _range: Option<nvtx::Pushed>,
}

impl Span {
    /// `label` is asked for only where somebody watches.
    pub fn new(timeline: Option<&Arc<GpuTimeline>>, label: impl FnOnce() -> String) -> Self {
        let timeline = timeline.filter(|timeline| timeline.has_begun());
        if timeline.is_none() && !nvtx::is_watched() {
            return Self {
                drawn: None,
                _range: None,
            };
        }
        let label = label();
        Self {
            _range: nvtx::Pushed::new(&label),
            drawn: timeline.map(|timeline| (Arc::clone(timeline), label, Instant::now())),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some((timeline, label, began)) = self.drawn.take() else {
            return;
        };
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static NUMBER: OnceCell<u64> = const { OnceCell::new() };
        }
        // Relaxed: numbers that differ are enough. A thread that ends has none any more, and needs none.
        let number = || NEXT.fetch_add(1, Ordering::Relaxed);
        let number = NUMBER.try_with(|own| *own.get_or_init(number)).unwrap_or(u64::MAX);
        let name = match std::thread::current().name() {
            Some(name) => format!("thread {name}"),
            None => format!("thread {number}"),
        };
        let mut drawing = timeline.drawing.lock();
        drawing.host(&timeline.sheet, &label, (number, &name), began);
    }
}

/// A launch that is under way, for who is told of its end.
pub(crate) struct LaunchSpan {
    drawn: Option<(Arc<GpuTimeline>, Instant, usize)>,
    _range: Option<nvtx::Started>,
}

impl LaunchSpan {
    /// A launch that is about to be put on a stream, which `stream` stands for.
    pub fn new(timeline: Option<&Arc<GpuTimeline>>, stream: usize, label: &str) -> Self {
        Self {
            drawn: timeline.map(|timeline| (Arc::clone(timeline), Instant::now(), stream)),
            _range: nvtx::Started::new(label),
        }
    }

    /// It has ended.
    pub fn end(self, label: &str, outcome: &LaunchOutcome) {
        if let Some((timeline, enqueued, stream)) = &self.drawn {
            timeline.launched(*stream, label, *enqueued, outcome);
        }
    }
}
