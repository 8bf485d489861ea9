//! A virtual memory.

use std::{sync::Arc, time::Duration};

use gpuvm::{CompileOptions, ElementType, Placement, RegionBuilder, Untyped};
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyDict};

use crate::{
    array::{Lent, Region},
    buffer::Buffer,
    errors::{self, Raised},
    kernel::Module,
    launch::{Flights, Stream},
    memory::{Described, Memory, described},
    slot::Slot,
};

/// What ends with a virtual memory.
pub trait Child: Send + Sync {
    /// Ends it, and says whether all of it reached its home.
    ///
    /// # Errors
    /// What could not be done.
    fn end(&self, py: Python<'_>) -> PyResult<()>;
}

/// What a virtual memory and all that was made of it share.
#[derive(Default)]
pub struct Family {
    pub flights: Arc<Flights>,
    children: Mutex<Vec<std::sync::Weak<dyn Child>>>,
}

impl Family {
    fn add(&self, child: &Arc<impl Child + 'static>) {
        let child: std::sync::Weak<dyn Child> = Arc::downgrade(child) as _;
        let mut children = self.children.lock();
        children.retain(|child| child.strong_count() > 0);
        children.push(child);
    }

    /// Ends all of it. The first error is returned; the rest ends all the same.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let children = std::mem::take(&mut *self.children.lock());
        let mut outcome = Ok(());
        for child in children.iter().filter_map(std::sync::Weak::upgrade) {
            outcome = outcome.and(child.end(py));
        }
        outcome
    }
}

impl<T: Send + Sync> Child for Slot<T> {
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let value = self.take()?;
        py.detach(|| drop(value));
        Ok(())
    }
}

/// What a region is to be, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    name: String,
    element: Described,
    read_only: bool,
    never_evicted: bool,
    placement: String,
}

impl Wanted {
    fn builder(&self, vm: &gpuvm::Vm) -> PyResult<RegionBuilder<Untyped>> {
        let placement = match self.placement.as_str() {
            "fetch" => Placement::Fetch,
            "in_place" => Placement::InPlace,
            "while_free" => Placement::WhileFree,
            "auto" => Placement::Auto,
            other => {
                let wanted = "expected fetch, in_place, while_free or auto";
                return Err(errors::setting(format!("placement is `{other}`: {wanted}")));
            }
        };
        let mut builder = vm
            .raw_region(described(&self.element)?)
            .name(&self.name)
            .placement(placement);
        if self.read_only {
            builder = builder.read_only();
        }
        if self.never_evicted {
            builder = builder.never_evicted();
        }
        Ok(builder)
    }
}

/// A virtual memory over one GPU.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Vm {
    slot: Slot<gpuvm::Vm>,
    family: Arc<Family>,
    /// The NVIDIA GPU's place in the driver's list, if it was named by that.
    ordinal: Option<i32>,
}

#[pymethods]
impl Vm {
    /// Brings one up.
    #[new]
    #[pyo3(signature = (*, memory, page_size, gpu, transport, launch_deadline, workers, precompiled, precompile_into))]
    #[allow(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    fn new(
        py: Python<'_>,
        memory: u64,
        page_size: u64,
        gpu: Option<&str>,
        transport: Option<&str>,
        launch_deadline: Option<f64>,
        workers: Option<u32>,
        precompiled: Option<&str>,
        precompile_into: Option<&str>,
    ) -> PyResult<Self> {
        let mut builder = gpuvm::Vm::builder().frame_memory(memory).page_size(page_size);
        let gpu = match gpu.unwrap_or("auto") {
            "simulated" => "sim",
            gpu => gpu,
        };
        let mut asked: gpuvm::Gpu = gpu.parse().raised()?;
        if let Some(workers) = workers {
            asked = match asked {
                gpuvm::Gpu::Simulated(simulated) => simulated.workers(workers).into(),
                _ => return Err(errors::setting("workers are of gpu=\"simulated\" alone".into())),
            };
        }
        builder = builder.gpu(asked);
        if let Some(transport) = transport {
            builder = builder.transport(transport.parse::<gpuvm::Transport>().raised()?);
        }
        if let Some(seconds) = launch_deadline {
            let limit = Duration::try_from_secs_f64(seconds)
                .map_err(|error| errors::setting(format!("launch_deadline is {seconds}: {error}")))?;
            builder = builder.launch_deadline(limit);
        }
        if let Some(dir) = precompiled {
            builder = builder.precompiled(dir);
        }
        if let Some(dir) = precompile_into {
            builder = builder.precompile_into(dir);
        }
        let vm = py.detach(|| builder.build()).raised()?;
        Ok(Self {
            slot: Slot::new("the Vm", vm),
            family: Arc::default(),
            ordinal: gpu.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()),
        })
    }

    /// What the device library counted.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let vm = self.slot.get()?;
        let stats = py.detach(|| vm.stats()).raised()?;
        let counts = PyDict::new(py);
        for (name, count) in [
            ("missed_lanes", stats.missed_lanes),
            ("faults", stats.faults),
            ("coalesced", stats.coalesced),
            ("pages_fetched", stats.pages_fetched),
            ("pages_written_back", stats.pages_written_back),
            ("bytes_fetched", stats.bytes_fetched),
            ("bytes_written_back", stats.bytes_written_back),
            ("evictions", stats.evictions),
            ("prefetches", stats.prefetches),
            ("read_ahead", stats.read_ahead),
            ("requests", stats.requests),
            ("errors", stats.errors),
            ("bytes_in_place", stats.bytes_in_place),
            ("bytes_stored_in_place", stats.bytes_stored_in_place),
            ("pages_overwritten", stats.pages_overwritten),
        ] {
            counts.set_item(name, count)?;
        }
        Ok(counts)
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
        machine.set_item("frames", vm.frames())?;
        Ok(machine)
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

    /// A region over a file's pages.
    fn file(&self, py: Python<'_>, wanted: Wanted, path: std::path::PathBuf) -> PyResult<Region> {
        let read_only = wanted.read_only;
        self.region(py, &wanted, None, |builder| match read_only {
            true => builder.map_file(path),
            false => builder.map_file_mut(path),
        })
    }

    /// Plain device memory.
    fn buffer(&self, py: Python<'_>, element: Described, length: u64) -> PyResult<Buffer> {
        let (vm, element): (_, ElementType) = (self.slot.get()?, described(&element)?);
        let what = format!("a buffer of {length} x {}", element.name());
        let buffer = py.detach(|| vm.raw_buffer(element, length)).raised()?;
        let slot = Arc::new(Slot::new(what, buffer));
        self.family.add(&slot);
        let simulated = vm.device().capabilities().compute_capability.is_none();
        Ok(Buffer::new(
            slot,
            Arc::clone(&self.family.flights),
            self.device(simulated),
        ))
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
        let vm = self.slot.get()?;
        let names: Vec<&str> = kernels.iter().map(String::as_str).collect();
        let options = CompileOptions {
            headers,
            defines,
            ..CompileOptions::default()
        };
        let module = py.detach(|| vm.compile_with(name, source, &names, &options)).raised()?;
        let slot = Arc::new(Slot::new(format!("the module of {name}"), module));
        self.family.add(&slot);
        Ok(Module::new(slot, Arc::clone(&self.family)))
    }

    /// A further stream.
    fn stream(&self) -> PyResult<Stream> {
        let stream = self.slot.get()?.stream().raised()?;
        let slot = Arc::new(Slot::new("a stream", stream));
        self.family.add(&slot);
        Ok(Stream { slot })
    }

    /// Waits for all launches.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.get()?;
        self.family.flights.settle(py, None)?;
        self.family.flights.tell()
    }

    /// Ends it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.slot.is_closed() {
            return Ok(());
        }
        self.slot.get()?;
        let settled = self.family.flights.settle(py, None);
        let told = self.family.flights.tell();
        let ended = self.family.end(py);
        let value = self.slot.take()?;
        py.detach(|| drop(value));
        settled.and(ended).and(told)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }
}

impl Vm {
    fn region(
        &self,
        py: Python<'_>,
        wanted: &Wanted,
        lent: Option<Lent>,
        make: impl FnOnce(RegionBuilder<Untyped>) -> gpuvm::Result<gpuvm::RawRegion> + Send,
    ) -> PyResult<Region> {
        let vm = self.slot.get()?;
        let builder = wanted.builder(&vm)?;
        let region = py.detach(|| make(builder)).raised()?;
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
