//! A GPU that stands for an NVIDIA GPU in what only the host's side sees: it can be lost, it has a neighbour, and it keeps
//! a record of the host memory that was registered with it. Kernels run on the simulated GPU behind it.
#![allow(dead_code, reason = "every test binary uses its own part of this")]

use std::{
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::back_end::OneByOne;
use gpuvm_gpu::{
    AddressSpace, Capabilities, CompileOptions, Copier, CopySpan, DeviceMemory, DmaBuf, Enqueue, FileAccess, ForNics,
    Gpu, GpuError, HostMemory, HostRegistration, Kernel, Launch, LaunchConfig, LaunchOutcome, MemoryLeft, Module,
    OnDone, Piece, PtxKernel, Put, Series, Simulation, Source, Stream, Watch,
};
use gpuvm_sim_gpu::SimGpu;

/// The ordinal of the neighbour.
pub const NEIGHBOUR: u32 = 1;

/// Host memory that was registered: address, bytes, whether read-only.
pub type Registered = (u64, u64, bool);

struct Shared {
    sim: SimGpu,
    lost: Mutex<Option<GpuError>>,
    launches: Mutex<Vec<Weak<dyn Launch>>>,
    registered: Mutex<Vec<Registered>>,
    refused: AtomicU64,
    /// Launches to come that fail.
    launches_fail: AtomicU64,
    /// Submits of copies, and the one from which on the next that moves data fails.
    submits: AtomicU64,
    copies_fail_from: AtomicU64,
    /// Pieces of host memory that are available yet.
    host_pieces_left: AtomicU64,
    /// Placings to come that are made, and how many fail then, with what lay there taken out.
    placings: AtomicU64,
    placings_fail: AtomicU64,
    /// What it says of NICs of the machine.
    for_nics: Mutex<Option<ForNics>>,
    /// Whether it maps a NIC's registers.
    maps_registers: AtomicBool,
    /// Whether its neighbour is gone.
    neighbour_gone: AtomicBool,
    /// Parts of its memory that were exported, as (address, bytes); registers that were mapped.
    exported: Mutex<Vec<(u64, u64)>>,
    mapped: AtomicU64,
    /// Whether streams are being captured, and the launches of series that were.
    captures: AtomicBool,
    captured: Mutex<Vec<Captured>>,
}

/// A launch of a graph: its kernel, its shape, its arguments.
type Captured = (Arc<dyn Kernel>, LaunchConfig, Vec<Vec<u8>>);

impl Shared {
    fn check(&self) -> Result<(), GpuError> {
        match &*self.lost.lock().unwrap() {
            Some(cause) => Err(cause.clone()),
            None => Ok(()),
        }
    }
}

fn check_neighbour(ordinal: u32) -> Result<(), GpuError> {
    let cause = "the mock GPU has one neighbour".into();
    (ordinal == NEIGHBOUR)
        .then_some(())
        .ok_or(GpuError::NoPeer { ordinal, cause })
}

pub struct MockGpu {
    shared: Arc<Shared>,
    /// As an NVIDIA GPU has one.
    compute_capability: Option<(u32, u32)>,
}

impl MockGpu {
    pub fn new(compute_capability: Option<(u32, u32)>) -> Arc<Self> {
        let sim = SimGpu::builder()
            .memory_bytes(64 << 20)
            .lanes_per_worker(256)
            .neighbours(NEIGHBOUR);
        let shared = Arc::new(Shared {
            sim: sim.build().unwrap(),
            lost: Mutex::default(),
            launches: Mutex::default(),
            registered: Mutex::default(),
            refused: AtomicU64::new(0),
            launches_fail: AtomicU64::new(0),
            submits: AtomicU64::new(0),
            copies_fail_from: AtomicU64::new(u64::MAX),
            host_pieces_left: AtomicU64::new(u64::MAX),
            placings: AtomicU64::new(0),
            placings_fail: AtomicU64::new(0),
            for_nics: Mutex::default(),
            maps_registers: AtomicBool::new(false),
            neighbour_gone: AtomicBool::new(false),
            exported: Mutex::default(),
            mapped: AtomicU64::new(0),
            captures: AtomicBool::new(false),
            captured: Mutex::default(),
        });
        Arc::new(Self {
            shared,
            compute_capability,
        })
    }

    /// The context dies, and with it what runs.
    pub fn lose(&self) {
        self.lose_with(GpuError::Lost {
            gpu: "the mock GPU".into(),
            cause: "the test pulled it out".into(),
        });
    }

    /// Its neighbour dies.
    pub fn lose_neighbour(&self) {
        self.shared.neighbour_gone.store(true, Ordering::Relaxed);
    }

    /// Loses the GPU for another cause, such as a kernel that runs on.
    pub fn lose_with(&self, cause: GpuError) {
        *self.shared.lost.lock().unwrap() = Some(cause);
        for launch in self.shared.launches.lock().unwrap().iter().filter_map(Weak::upgrade) {
            launch.abandon();
        }
    }

    /// Launches that were tried after the loss.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// This many launches to come fail, of whatever kernel.
    pub fn fail_launches(&self, count: u64) {
        self.shared.launches_fail.store(count, Ordering::Relaxed);
    }

    /// Submits of copies so far.
    pub fn submits(&self) -> u64 {
        self.shared.submits.load(Ordering::Relaxed)
    }

    /// This many pieces of host memory are available from now on.
    pub fn limit_host_pieces(&self, count: u64) {
        self.shared.host_pieces_left.store(count, Ordering::Relaxed);
    }

    /// After `more` placings of memory at addresses this many fail, and leave nothing at those addresses.
    pub fn fail_placings_after(&self, more: u64, count: u64) {
        self.shared.placings.store(more, Ordering::Relaxed);
        self.shared.placings_fail.store(count, Ordering::Relaxed);
    }

    /// The next submit of data, after `more` others, fails; those after it do not.
    pub fn fail_copies_after(&self, more: u64) {
        self.shared
            .copies_fail_from
            .store(self.submits() + more, Ordering::Relaxed);
    }

    /// What NICs of the machine may do with it, and whether it reaches their registers.
    pub fn serve_nics(&self, able: ForNics, maps_registers: bool) {
        *self.shared.for_nics.lock().unwrap() = Some(able);
        self.shared.maps_registers.store(maps_registers, Ordering::Relaxed);
    }

    /// Launches of series go to a graph from now on, or do not.
    pub fn capture(&self, captures: bool) {
        self.shared.captures.store(captures, Ordering::Relaxed);
    }

    /// Launches that graph, of which the library is not told.
    pub fn launch_captured(&self) {
        let stream = self.shared.sim.stream().unwrap();
        for (kernel, config, args) in &*self.shared.captured.lock().unwrap() {
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let launch = stream.launch(kernel, config, &args, 0, Box::new(|_| {})).unwrap();
            launch.wait(None).unwrap().unwrap();
        }
    }

    /// Parts of its memory that were exported.
    pub fn exported(&self) -> Vec<(u64, u64)> {
        self.shared.exported.lock().unwrap().clone()
    }

    /// Registers that were mapped.
    pub fn mapped(&self) -> u64 {
        self.shared.mapped.load(Ordering::Relaxed)
    }

    pub fn registered(&self) -> Vec<Registered> {
        self.shared.registered.lock().unwrap().clone()
    }
}

impl Gpu for MockGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "the mock GPU".into(),
            compute_capability: self.compute_capability,
            for_nics: self.shared.for_nics.lock().unwrap().clone(),
            ..self.shared.sim.capabilities()
        }
    }

    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.shared.check()?;
        self.shared.sim.allocate(bytes, align)
    }

    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError> {
        self.shared.check()?;
        self.shared.sim.allocate_host(bytes)
    }

    fn allocate_home(&self, bytes: u64) -> Result<Option<HostMemory>, GpuError> {
        self.shared.check()?;
        self.shared.sim.allocate_home(bytes)
    }

    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.allocate(bytes, align)
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.shared.check()?;
        self.shared.sim.write(addr, bytes)
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.shared.check()?;
        self.shared.sim.read(addr, out)
    }

    fn is_device_memory(&self, addr: u64, bytes: u64) -> bool {
        self.shared.sim.is_device_memory(addr, bytes)
    }

    unsafe fn register_host(&self, host: *mut u8, bytes: u64, read_only: bool) -> Result<HostRegistration, GpuError> {
        self.shared.check()?;
        let mut registered = self.shared.registered.lock().unwrap();
        registered.push((host as u64, bytes, read_only));
        // SAFETY: the caller's promise.
        unsafe { self.shared.sim.register_host(host, bytes, read_only) }
    }

    fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError> {
        self.shared.check()?;
        let able = self
            .shared
            .for_nics
            .lock()
            .unwrap()
            .as_ref()
            .is_some_and(|able| able.dma_buf);
        if !able {
            return Err(GpuError::Unsupported {
                what: "export its memory: the test forbids it".into(),
            });
        }
        self.shared.exported.lock().unwrap().push((addr, bytes));
        // A file in memory that lies where the simulated GPU has the frames, still zero: as a GPU's memory does that the
        // processor maps. It stays there: a test exports frames and never reuses them.
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let place = std::ptr::with_exposed_provenance_mut(addr as usize);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: whole pages of a live allocation, whose bytes nothing holds a reference to.
        let mapped = unsafe { libc::mmap(place, bytes as usize, protection, flags, file.as_raw_fd(), 0) };
        assert_eq!(mapped, place, "{}", std::io::Error::last_os_error());
        Ok(DmaBuf {
            fd: file.into(),
            offset: 0,
        })
    }

    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
        if !self.shared.maps_registers.load(Ordering::Relaxed) {
            return Err(GpuError::Driver {
                what: "map registers".into(),
                name: "CUDA_ERROR_NOT_PERMITTED".into(),
                text: "operation not permitted".into(),
                advice: String::new(),
            });
        }
        self.shared.mapped.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.shared.sim.register_host(host, bytes, false) }
    }

    fn allocate_on(&self, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError> {
        check_neighbour(ordinal)?;
        self.allocate(bytes, 256)
    }

    fn piece_bytes(&self) -> u64 {
        self.shared.sim.piece_bytes()
    }

    fn piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        self.shared.check()?;
        self.shared.sim.piece()
    }

    fn host_piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        self.shared.check()?;
        let one_less = |left: u64| left.checked_sub(1);
        let left = &self.shared.host_pieces_left;
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => self.shared.sim.host_piece(),
            Err(_) => Err(GpuError::OutOfHostMemory {
                asked: self.piece_bytes(),
            }),
        }
    }

    fn reserve(&self, bytes: u64, beside: &[u32]) -> Result<Arc<dyn AddressSpace>, GpuError> {
        self.shared.check()?;
        Ok(Arc::new(MockSpace {
            space: self.shared.sim.reserve(bytes, beside)?,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn memory_left(&self, ordinal: u32) -> Result<MemoryLeft, GpuError> {
        if self.shared.neighbour_gone.load(Ordering::Relaxed) {
            let cause = "the test pulled it out".into();
            return Err(GpuError::NoPeer { ordinal, cause });
        }
        self.shared.sim.memory_left(ordinal)
    }

    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError> {
        self.shared.check()?;
        Ok(Arc::new(MockCopier {
            copier: self.shared.sim.copier()?,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn file_access(&self, memory: &DeviceMemory) -> Result<Arc<dyn FileAccess>, GpuError> {
        self.shared.check()?;
        self.shared.sim.file_access(memory)
    }

    fn lost(&self) -> Option<GpuError> {
        self.shared.lost.lock().unwrap().clone()
    }

    fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn Module>, GpuError> {
        self.shared.check()?;
        self.shared.sim.load(name, image, kernels)
    }

    fn compile(
        &self,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.shared.check()?;
        self.shared.sim.compile(source, kernels, options)
    }

    fn load_ptx(
        &self,
        name: &str,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        library: Option<(&Source, &CompileOptions)>,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.shared.check()?;
        self.shared.sim.load_ptx(name, text, kernels, variables, library)
    }

    fn series(&self, on_done: OnDone) -> Result<Arc<dyn Series>, GpuError> {
        Ok(Arc::new(MockSeries {
            series: Arc::new(OneByOne::new(self.stream()?, on_done)),
            shared: Arc::clone(&self.shared),
        }))
    }

    unsafe fn is_captured(&self, _stream: u64) -> bool {
        self.shared.captures.load(Ordering::Relaxed)
    }

    fn drain(&self) -> Result<(), GpuError> {
        self.shared.check()
    }

    unsafe fn borrow_stream(&self, stream: u64) -> Result<Arc<dyn Stream>, GpuError> {
        // SAFETY: passed on from the caller.
        unsafe { self.shared.sim.borrow_stream(stream) }
    }

    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        self.shared.check()?;
        Ok(Arc::new(MockStream {
            stream: self.shared.sim.stream()?,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn simulation(&self) -> Option<&dyn Simulation> {
        self.shared.sim.simulation()
    }
}

struct MockSpace {
    space: Arc<dyn AddressSpace>,
    shared: Arc<Shared>,
}

impl AddressSpace for MockSpace {
    fn addr(&self) -> u64 {
        self.space.addr()
    }

    fn place(&self, pieces: &[(u64, Arc<dyn Piece>)]) -> Result<(), GpuError> {
        let one_less = |left: u64| left.checked_sub(1);
        let (more, failing) = (&self.shared.placings, &self.shared.placings_fail);
        let made = more
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok();
        if made
            || failing
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
                .is_err()
        {
            return self.space.place(pieces);
        }
        self.take(&pieces.iter().map(|(offset, _)| *offset).collect::<Vec<_>>())?;
        Err(driver_error("give memory its addresses", "the test takes them away"))
    }

    fn take(&self, offsets: &[u64]) -> Result<(), GpuError> {
        self.space.take(offsets)
    }
}

fn driver_error(what: &str, text: &str) -> GpuError {
    GpuError::Driver {
        what: what.into(),
        name: "CUDA_ERROR_MOCK".into(),
        text: text.into(),
        advice: String::new(),
    }
}

struct MockCopier {
    copier: Arc<dyn Copier>,
    shared: Arc<Shared>,
}

impl Copier for MockCopier {
    unsafe fn submit(&self, data: &[CopySpan], then: &[CopySpan]) -> Result<(), GpuError> {
        self.shared.check()?;
        let submits = self.shared.submits.fetch_add(1, Ordering::Relaxed);
        if self.shared.copies_fail_from.load(Ordering::Relaxed) <= submits && !data.is_empty() {
            self.shared.copies_fail_from.store(u64::MAX, Ordering::Relaxed);
            let what = format!("copy {} spans", data.len());
            return Err(driver_error(&what, "the test cut the wire"));
        }
        // SAFETY: the caller's promise.
        unsafe { self.copier.submit(data, then) }
    }

    fn completed(&self) -> Result<u64, GpuError> {
        self.shared.check()?;
        self.copier.completed()
    }
}

struct MockStream {
    stream: Arc<dyn Stream>,
    shared: Arc<Shared>,
}

/// A failed launch of a lost GPU failed with it.
fn as_lost(shared: &Shared, outcome: &LaunchOutcome) -> LaunchOutcome {
    match outcome {
        Ok(report) => Ok(report.clone()),
        Err(error) => Err(shared.check().err().unwrap_or_else(|| error.clone())),
    }
}

impl Stream for MockStream {
    fn launch(
        &self,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
        stop_word: u64,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        if let Err(lost) = self.shared.check() {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(lost);
        }
        let fewer = |left: u64| left.checked_sub(1);
        if (self.shared.launches_fail)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
        {
            let (kernel, cause) = ("any".to_owned(), "the test has it fail".to_owned());
            return Err(GpuError::NotEnqueued { kernel, cause });
        }
        let shared = Arc::downgrade(&self.shared);
        let told: OnDone = Box::new(move |outcome| match shared.upgrade() {
            Some(shared) => on_done(&as_lost(&shared, outcome)),
            None => on_done(outcome),
        });
        let launch = self.stream.launch(kernel, config, args, stop_word, told)?;
        self.shared.launches.lock().unwrap().push(Arc::downgrade(&launch));
        Ok(Arc::new(MockLaunch {
            launch,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn launch_by(
        &self,
        name: &str,
        watch: Watch,
        stop_word: u64,
        enqueue: Enqueue<'_>,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        self.stream.launch_by(name, watch, stop_word, enqueue, on_done)
    }

    unsafe fn follow(&self, stream: u64) -> Result<(), GpuError> {
        // SAFETY: passed on from the caller.
        unsafe { self.stream.follow(stream) }
    }

    fn raw(&self) -> Option<u64> {
        None
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        self.shared.check()?;
        self.stream.synchronize()
    }
}

struct MockSeries {
    series: Arc<OneByOne>,
    shared: Arc<Shared>,
}

impl Series for MockSeries {
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Result<Put, GpuError> {
        if self.shared.captures.load(Ordering::Relaxed) && !self.series.is_done() {
            let args = args.iter().map(|arg| arg.to_vec()).collect();
            let captured = (Arc::clone(kernel), config.clone(), args);
            self.shared.captured.lock().unwrap().push(captured);
            return Ok(Put::Captured);
        }
        // SAFETY: the caller's promise.
        unsafe { self.series.launch(stream, kernel, config, args) }
    }

    unsafe fn follow(&self, stream: u64, earlier: u64) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.series.follow(stream, earlier) }
    }

    fn as_launch(self: Arc<Self>) -> Arc<dyn Launch> {
        self
    }
}

impl Launch for MockSeries {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        self.series.wait(timeout)
    }

    fn is_done(&self) -> bool {
        self.series.is_done()
    }

    fn abandon(&self) {
        self.series.abandon();
    }
}

struct MockLaunch {
    launch: Arc<dyn Launch>,
    shared: Arc<Shared>,
}

impl Launch for MockLaunch {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let outcome = self.launch.wait(timeout)?;
        Some(as_lost(&self.shared, &outcome))
    }

    fn is_done(&self) -> bool {
        self.launch.is_done()
    }

    fn abandon(&self) {
        self.launch.abandon();
    }
}
