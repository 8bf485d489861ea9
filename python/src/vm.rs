//! A virtual memory.

use std::{
    os::unix::ffi::OsStringExt,
    sync::Arc,
    time::{Duration, Instant},
};

use gpuvm::{CompileOptions, ElasticStats, ElementType, Placement, RawBuffer, RegionBuilder, Untyped};
use pyo3::{prelude::*, types::PyDict};

use crate::{
    apart::Apart,
    array::{Lent, Region},
    buffer::Buffer,
    elastic::Elastic,
    errors::{self, Raised},
    family::Family,
    kernel::Module,
    launch::Stream,
    memory::{Described, Memory, described},
    settings::{self, seconds},
    slot::Slot,
    slots::{self, SlotCache},
};

/// How long frames have to leave before Python looks for signals.
const RESIZE_SLICE: Duration = Duration::from_secs(1);

/// What a region is to be, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    name: String,
    element: Described,
    read_only: bool,
    never_evicted: bool,
    placement: Option<String>,
    priority: i32,
}

impl Wanted {
    fn builder(&self, vm: &gpuvm::Vm) -> PyResult<RegionBuilder<Untyped>> {
        let mut builder = vm
            .raw_region(described(&self.element)?)
            .name(&self.name)
            .priority(self.priority);
        if let Some(placement) = &self.placement {
            let placement: Result<Placement, String> = placement.parse();
            builder = builder.placement(placement.map_err(|reason| errors::setting(format!("placement: {reason}")))?);
        }
        if self.read_only {
            builder = builder.read_only();
        }
        if self.never_evicted {
            builder = builder.never_evicted();
        }
        Ok(builder)
    }
}

/// What an elastic buffer is to be, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Growing {
    name: String,
    element: Described,
    most: u64,
    length: u64,
    tag: Option<String>,
    priority: i32,
}

/// What a tiered buffer is to be, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Tiered {
    name: String,
    element: Described,
    length: u64,
    budget: Option<u64>,
    priority: i32,
}

/// Counts by their names.
fn counted<'py>(
    py: Python<'py>,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> PyResult<Bound<'py, PyDict>> {
    let named = PyDict::new(py);
    for (name, count) in counts {
        named.set_item(name, count)?;
    }
    Ok(named)
}

/// A virtual memory over one GPU.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Vm {
    slot: Slot<gpuvm::Vm>,
    family: Arc<Family>,
    /// The NVIDIA GPU's place in the driver's list, if it was named by that.
    ordinal: Option<i32>,
}

impl Vm {
    /// A buffer as Python has it.
    fn entered(&self, vm: &gpuvm::Vm, what: String, buffer: RawBuffer) -> Buffer {
        let slot = Arc::new(Slot::new(what, buffer));
        self.family.add(&slot);
        let simulated = vm.device().capabilities().compute_capability.is_none();
        Buffer::new(slot, Arc::clone(&self.family.flights), self.device(simulated))
    }
}

#[pymethods]
impl Vm {
    /// Brings one up.
    #[new]
    fn new(py: Python<'_>, settings: Vec<(String, String)>) -> PyResult<Self> {
        let (builder, ordinal) = settings::builder(&settings)?;
        let vm = py.apart(|| builder.build()).raised()?;
        Ok(Self {
            slot: Slot::new(Slot::<gpuvm::Vm>::VM, vm),
            family: Arc::default(),
            ordinal,
        })
    }

    /// What the device library counted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let vm = self.slot.get()?;
        let stats = py.apart(|| vm.stats()).raised()?;
        counted(py, stats.all())
    }

    /// What it runs on.
    fn machine<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let vm = self.slot.get()?;
        let capabilities = vm.device().capabilities();
        let machine = PyDict::new(py);
        machine.set_item("gpu", &capabilities.name)?;
        machine.set_item("simulated", capabilities.compute_capability.is_none())?;
        machine.set_item("multiprocessors", capabilities.sm_count)?;
        machine.set_item("transport", vm.transport().to_string())?;
        machine.set_item("page_size", vm.page_size())?;
        machine.set_item("ordinal", self.ordinal)?;
        Ok(machine)
    }

    /// Frames that there are, and the most that there may be.
    fn frames(&self) -> PyResult<(u64, u64)> {
        let vm = self.slot.get()?;
        Ok((vm.frames(), vm.frame_capacity()))
    }

    /// Gives frames this many bytes: bytes of those that there are then, that stay and were to go, that are missing, and seconds.
    fn resize_frames(&self, py: Python<'_>, bytes: u64, within: f64) -> PyResult<(u64, u64, u64, f64)> {
        let within = seconds(within, "within")?;
        let vm = self.slot.get()?;
        let begun = Instant::now();
        loop {
            let left = within.saturating_sub(begun.elapsed());
            let resized = py
                .apart(|| vm.resize_frames_within(bytes, left.min(RESIZE_SLICE)))
                .raised()?;
            // Asking once more goes on with what stayed.
            if resized.kept_bytes == 0 || left <= RESIZE_SLICE {
                let took = begun.elapsed().as_secs_f64();
                return Ok((resized.bytes, resized.kept_bytes, resized.missing_bytes, took));
            }
            py.check_signals()?;
        }
    }

    /// Says whether frames give memory before elastic buffers do.
    fn set_frame_priority(&self, priority: i32) -> PyResult<()> {
        self.slot.get()?.set_frame_priority(priority);
        Ok(())
    }

    /// Device memory that grows.
    fn elastic(&self, py: Python<'_>, wanted: Growing) -> PyResult<Elastic> {
        let vm = self.slot.get()?;
        let mut builder = vm
            .raw_elastic(described(&wanted.element)?, wanted.most)
            .name(&wanted.name)
            .length(wanted.length)
            .priority(wanted.priority);
        if let Some(tag) = &wanted.tag {
            builder = builder.tag(tag);
        }
        let buffer = py.apart(|| builder.build()).raised()?;
        let slot = Arc::new(Slot::new(format!("elastic buffer `{}`", wanted.name), buffer));
        self.family.add(&slot);
        if let Some(tag) = wanted.tag {
            self.family.tag(tag, &slot);
        }
        let flights = Arc::clone(&self.family.flights);
        Ok(Elastic::new(slot, flights, wanted.length > 0))
    }

    /// Brings elastic buffers with the tag to host memory: how many bytes.
    fn pause(&self, py: Python<'_>, tag: &str) -> PyResult<u64> {
        let vm = self.slot.get()?;
        for buffer in self.family.tagged(tag) {
            self.family.flights.wait_idle(py, Some(buffer.id()))?;
        }
        py.apart(|| vm.pause(tag)).raised()
    }

    /// Brings them back: how many bytes.
    fn resume(&self, py: Python<'_>, tag: &str) -> PyResult<u64> {
        let vm = self.slot.get()?;
        py.apart(|| vm.resume(tag)).raised()
    }

    /// Gives the driver memory that elastic buffers and frames gave back: how many bytes.
    fn trim(&self, py: Python<'_>, bytes: u64) -> PyResult<u64> {
        let vm = self.slot.get()?;
        Ok(py.apart(|| vm.trim(bytes)))
    }

    /// What elastic buffers have, and what their growth cost.
    fn elastic_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.slot.get()?.elastic_stats();
        counted(
            py,
            ElasticStats::NAMES.map(|(name, _)| name).into_iter().zip(stats.all()),
        )
    }

    /// A region of zeros.
    fn zeros(&self, py: Python<'_>, wanted: Wanted, length: u64) -> PyResult<Region> {
        self.region(py, &wanted, None, |builder| builder.zeroed(length))
    }

    /// A region with a copy of memory.
    fn copied(&self, py: Python<'_>, wanted: Wanted, memory: &Bound<'_, PyAny>) -> PyResult<Region> {
        let memory = Memory::of(memory)?;
        self.region(py, &wanted, None, |builder| builder.from_bytes(memory.bytes()))
    }

    /// A region over memory, in place.
    fn lent(&self, py: Python<'_>, wanted: Wanted, memory: &Bound<'_, PyAny>, owner: Lent) -> PyResult<Region> {
        let memory = Memory::of(memory)?;
        if !(memory.is_writable() || wanted.read_only) {
            let reason = "its memory is read-only: say read_only=True, or copy=True";
            return Err(errors::layout(format!("array `{}`: {reason}", wanted.name)));
        }
        self.region(py, &wanted, Some(owner), |builder| {
            let (base, bytes) = (memory.base(), memory.len() as u64);
            // SAFETY: the array, which the region keeps, keeps the memory, and Python resizes or frees no memory that is exported. Python
            // code reads and writes it through NumPy, as memory that a device shares.
            unsafe { builder.from_owner(memory, base, bytes) }
        })
    }

    /// A region over a file's pages, or over this many elements from a byte on.
    #[pyo3(signature = (wanted, path, span))]
    fn file(
        &self,
        py: Python<'_>,
        wanted: Wanted,
        path: std::path::PathBuf,
        span: Option<(u64, u64)>,
    ) -> PyResult<Region> {
        let read_only = wanted.read_only;
        self.region(py, &wanted, None, |builder| match (read_only, span) {
            (true, None) => builder.map_file(path),
            (false, None) => builder.map_file_mut(path),
            (true, Some((offset, length))) => builder.map_file_span(path, offset, length),
            (false, Some((offset, length))) => builder.map_file_span_mut(path, offset, length),
        })
    }

    /// Plain device memory.
    fn buffer(&self, py: Python<'_>, element: Described, length: u64) -> PyResult<Buffer> {
        let (vm, element): (_, ElementType) = (self.slot.get()?, described(&element)?);
        let what = format!("a buffer of {length} x {}", element.name());
        let buffer = py.apart(|| vm.raw_buffer(element, length)).raised()?;
        Ok(self.entered(&vm, what, buffer))
    }

    /// A buffer whose chunks lie on the GPU or in host memory.
    fn tiered(&self, py: Python<'_>, wanted: Tiered) -> PyResult<Buffer> {
        let vm = self.slot.get()?;
        let builder = vm
            .raw_tiered(described(&wanted.element)?, wanted.length)
            .name(&wanted.name)
            .budget(wanted.budget.unwrap_or(u64::MAX))
            .priority(wanted.priority);
        let buffer = py.apart(|| builder.build()).raised()?;
        let what = format!("tiered buffer `{}`", wanted.name);
        Ok(self.entered(&vm, what, buffer.into_buffer()))
    }

    /// A cache of records of arrays, each with the bytes of a record.
    fn slot_cache(
        &self,
        py: Python<'_>,
        tables: Vec<(Bound<'_, Region>, u64)>,
        slots: u64,
        policy: &str,
    ) -> PyResult<SlotCache> {
        let vm = self.slot.get()?;
        let simulated = vm.device().capabilities().compute_capability.is_none();
        let shared = (Arc::clone(&self.family), self.device(simulated));
        slots::make(py, &vm, tables, slots, policy, shared)
    }

    /// A compiled source.
    fn module(
        &self,
        py: Python<'_>,
        name: &str,
        source: &str,
        kernels: Vec<String>,
        headers: Vec<(String, String)>,
        defines: Vec<(String, Option<String>)>,
    ) -> PyResult<Module> {
        let options = CompileOptions {
            headers,
            defines,
            ..CompileOptions::default()
        };
        self.module_of(py, name, &kernels, |vm, names| {
            vm.compile_with(name, source, names, &options)
        })
    }

    /// Kernels that were compiled elsewhere.
    fn load(&self, py: Python<'_>, name: &str, image: Vec<u8>, kernels: Vec<String>) -> PyResult<Module> {
        self.module_of(py, name, &kernels, |vm, names| vm.load(name, &image, names))
    }

    /// Kernels of a file that was compiled elsewhere, which nothing else may have written.
    fn load_file(&self, py: Python<'_>, name: &str, path: Vec<u8>, kernels: Vec<String>) -> PyResult<Module> {
        let path = std::ffi::OsString::from_vec(path);
        self.module_of(py, name, &kernels, |vm, names| vm.load_file_as(name, path, names))
    }

    /// Kernels that know nothing of gpuvm.
    fn load_ptx(&self, py: Python<'_>, name: &str, text: Vec<u8>) -> PyResult<Module> {
        self.module_of(py, name, &[], |vm, _| vm.load_ptx(name, &text))
    }

    /// Those of a file that nothing else may have written.
    fn load_ptx_file(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<Module> {
        let name = path.display().to_string();
        self.module_of(py, &name, &[], |vm, _| vm.load_ptx_file(path))
    }

    /// A further stream.
    fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        let vm = self.slot.get()?;
        let stream = py.apart(|| vm.stream()).raised()?;
        let slot = Arc::new(Slot::new("a stream", stream));
        self.family.add(&slot);
        Ok(Stream { slot })
    }

    /// Waits for all launches.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.get()?;
        self.family.flights.wait_idle(py, None)?;
        self.family.wait_idle(py)?;
        self.family.flights.tell()
    }

    /// Ends it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.slot.is_closed() {
            return Ok(());
        }
        self.slot.get()?;
        let settled = self.family.flights.wait_idle(py, None);
        let told = self.family.flights.tell();
        let ended = self.family.end(py);
        let value = self.slot.take()?;
        py.apart(|| drop(value));
        settled.and(ended).and(told)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }
}

impl Vm {
    fn module_of(
        &self,
        py: Python<'_>,
        name: &str,
        kernels: &[String],
        make: impl FnOnce(&gpuvm::Vm, &[&str]) -> gpuvm::Result<gpuvm::Module> + Send,
    ) -> PyResult<Module> {
        let vm = self.slot.get()?;
        let names: Vec<&str> = kernels.iter().map(String::as_str).collect();
        let module = py.apart(|| make(&vm, &names)).raised()?;
        let slot = Arc::new(Slot::new(format!("the module of {name}"), module));
        self.family.add(&slot);
        Ok(Module::new(slot, Arc::clone(&self.family)))
    }

    fn region(
        &self,
        py: Python<'_>,
        wanted: &Wanted,
        lent: Option<Lent>,
        make: impl FnOnce(RegionBuilder<Untyped>) -> gpuvm::Result<gpuvm::RawRegion> + Send,
    ) -> PyResult<Region> {
        let vm = self.slot.get()?;
        let builder = wanted.builder(&vm)?;
        let region = py.apart(|| make(builder)).raised()?;
        let simulated = vm.device().capabilities().compute_capability.is_none();
        let region = Region::new(region, lent, Arc::clone(&self.family.flights), self.device(simulated));
        self.family.add(&region.held);
        Ok(region)
    }

    /// What DLPack calls the GPU: kind and number.
    fn device(&self, simulated: bool) -> crate::dlpack::Device {
        match (simulated, self.ordinal) {
            (true, _) => crate::dlpack::Device::Host,
            (false, Some(ordinal)) => crate::dlpack::Device::Cuda(ordinal),
            (false, None) => crate::dlpack::Device::Unnamed,
        }
    }
}
