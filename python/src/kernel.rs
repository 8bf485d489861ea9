//! Kernels, and Python values as their arguments.

use std::sync::Arc;

use gpuvm::{
    Arg, ElementType, KernelInfo, LaunchConfig, OthersContext, ParamKind, RawBuffer, RawElasticBuffer, RawRegion,
};
use pyo3::{
    exceptions::PyOverflowError,
    prelude::*,
    types::{PyBool, PyFloat, PyInt},
};

use crate::{
    apart::Apart,
    array::{Held, Region},
    buffer::Buffer,
    elastic::Elastic,
    errors::{self, Raised},
    family::Family,
    launch::{Flight, Kept, Launch, Stream},
    memory::{self, Described},
    rows::Enqueued,
    settings::seconds,
    slot::Slot,
};

/// A compiled source.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Module {
    slot: Arc<Slot<gpuvm::Module>>,
    family: Arc<Family>,
}

impl Module {
    pub fn new(slot: Arc<Slot<gpuvm::Module>>, family: Arc<Family>) -> Self {
        Self { slot, family }
    }
}

#[pymethods]
impl Module {
    /// The kernel of that name.
    fn kernel(&self, py: Python<'_>, name: &str) -> PyResult<Kernel> {
        let module = self.slot.get()?;
        let kernel = py.apart(|| module.kernel(name)).raised()?;
        Ok(Kernel {
            module: Arc::clone(&self.slot),
            kernel: Slot::new(format!("kernel `{name}`"), kernel),
            family: Arc::clone(&self.family),
        })
    }
}

/// A kernel.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Kernel {
    /// Closed with its virtual memory.
    module: Arc<Slot<gpuvm::Module>>,
    kernel: Slot<gpuvm::Kernel>,
    family: Arc<Family>,
}

/// The shape of a launch, and what it holds, as Python says it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    thread_spans: u64,
    warp_spans: u64,
    deadline: Option<f64>,
}

impl Shape {
    fn config(&self) -> PyResult<LaunchConfig> {
        let config = LaunchConfig::grid(self.grid, self.block)
            .dynamic_shared(self.shared)
            .thread_spans(self.thread_spans)
            .warp_spans(self.warp_spans);
        match self.deadline {
            None => Ok(config),
            Some(limit) => Ok(config.deadline(seconds(limit, "deadline")?)),
        }
    }
}

impl Kernel {
    /// It as the runtime has it.
    ///
    /// # Errors
    /// `ClosedError`, `ForkError`.
    fn runtimes(&self) -> PyResult<Arc<gpuvm::Kernel>> {
        self.module.get()?;
        self.kernel.get()
    }
}

#[pymethods]
impl Kernel {
    /// Its parameters' types, as the compiler spells them.
    #[getter]
    fn parameters(&self) -> PyResult<Vec<String>> {
        let kernel = self.kernel.get()?;
        Ok(kernel
            .info()
            .params
            .iter()
            .map(|param| param.type_name.clone())
            .collect())
    }

    /// Why launches use all pages at their home, if they do.
    #[getter]
    fn at_home(&self) -> PyResult<Option<String>> {
        Ok(self.kernel.get()?.at_home().map(str::to_owned))
    }

    /// Enqueues a launch.
    fn launch(
        &self,
        py: Python<'_>,
        shape: Shape,
        args: Vec<Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Launch> {
        let kernel = self.runtimes()?;
        let _others = OthersContext::keep();
        let on = stream.map(|stream| stream_of(&kernel, stream)).transpose()?;
        let config = shape.config()?;
        let given = args
            .iter()
            .enumerate()
            .map(|(place, arg)| Given::of(kernel.info(), place, arg))
            .collect::<PyResult<Vec<_>>>()?;
        let launched = py.apart(|| {
            for others in given.iter().filter_map(Given::behind) {
                // SAFETY: the object says that it is a live stream, by `__cuda_array_interface__`.
                unsafe { kernel.follow(on.as_deref(), others) }?;
            }
            let args: Vec<Arg<'_>> = given.iter().map(Given::arg).collect();
            match &on {
                Some(stream) => kernel.launch_raw_on(stream, config, &args),
                None => kernel.launch_raw(config, &args),
            }
        });
        let launch = launched.raised()?;
        let named = given.iter().filter_map(Given::id).collect();
        let stream = stream.map(|stream| Box::new(stream.clone().unbind()) as Kept);
        let kept = given.into_iter().filter_map(Given::kept).chain(stream).collect();
        let flight = Arc::new(Flight::new(launch, named, kept));
        self.family.flights.add(py, &flight);
        Ok(Launch {
            slot: Slot::new(format!("a launch of {}", self.kernel.what()), flight),
            flights: Arc::clone(&self.family.flights),
        })
    }

    /// Enqueues a launch of the package's own over an array, of this many blocks and threads of each, on another library's stream: false where
    /// pages are not looked up.
    fn enqueue(
        &self,
        py: Python<'_>,
        region: &Bound<'_, Region>,
        writes: bool,
        stream: u64,
        shape: (u32, u32),
        args: Vec<u64>,
    ) -> PyResult<bool> {
        let what = Enqueued {
            writes,
            stream,
            shape,
            args: &args,
        };
        let held = &region.get().held;
        held.rows.launch(py, &*held.slot.get()?, &*self.runtimes()?, &what)
    }
}

/// A stream for launches of the kernel: the Vm's, or one of another library, by the CUDA stream protocol (`__cuda_stream__`), or as PyTorch
/// (`cuda_stream`) and CuPy (`ptr`) had theirs before.
fn stream_of(kernel: &gpuvm::Kernel, stream: &Bound<'_, PyAny>) -> PyResult<Arc<gpuvm::StreamHandle>> {
    if let Ok(own) = stream.cast::<Stream>() {
        return own.get().slot.get();
    }
    let raw: u64 = if stream.hasattr("__cuda_stream__")? {
        let (version, raw): (u64, u64) = stream.call_method0("__cuda_stream__")?.extract()?;
        if version != 0 {
            let known =
                format!("stream follows version {version} of the CUDA stream protocol, of which gpuvm knows version 0");
            return Err(errors::stream(known));
        }
        raw
    } else if stream.hasattr("cuda_stream")? {
        stream.getattr("cuda_stream")?.extract()?
    } else if stream.hasattr("ptr")? {
        stream.getattr("ptr")?.extract()?
    } else {
        let neither = "stream is neither a gpuvm.Stream nor an object with __cuda_stream__";
        return Err(errors::argument(neither.into()));
    };
    // SAFETY: the object says that it is a live stream, and the launch keeps the object.
    match unsafe { kernel.borrow_stream(raw) } {
        Ok(stream) => Ok(Arc::new(stream)),
        Err(error @ gpuvm::Error::Gpu { .. }) => Err(errors::stream(errors::in_full(&error))),
        Err(error) => Err(errors::of(error)),
    }
}

/// An argument, with what keeps it.
enum Given {
    Region(Arc<RawRegion>, Arc<Held>),
    /// A region as an array of other elements.
    Words(Arc<RawRegion>, Arc<Held>, ElementType),
    Buffer(Arc<RawBuffer>, Arc<Slot<RawBuffer>>),
    Elastic(Arc<RawElasticBuffer>, Arc<Slot<RawElasticBuffer>>),
    Value(ElementType, Vec<u8>),
    /// Another library's device memory, and the stream that writes it, or 0.
    Address(ElementType, u64, Py<PyAny>, u64),
}

impl Given {
    fn of(kernel: &KernelInfo, place: usize, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(region) = value.cast::<Region>() {
            let held = &region.get().held;
            return Ok(Self::Region(held.slot.get()?, Arc::clone(held)));
        }
        if let Ok(buffer) = value.cast::<Buffer>() {
            let buffer = buffer.get();
            return Ok(Self::Buffer(buffer.slot.get()?, Arc::clone(&buffer.slot)));
        }
        if let Ok(elastic) = value.cast::<Elastic>() {
            let elastic = elastic.get();
            return Ok(Self::Elastic(elastic.slot.get()?, Arc::clone(&elastic.slot)));
        }
        if let Ok((region, described)) = value.extract::<(Bound<'_, Region>, Described)>() {
            let held = &region.get().held;
            return Ok(Self::Words(
                held.slot.get()?,
                Arc::clone(held),
                memory::described(&described)?,
            ));
        }
        // What the package makes of NumPy's scalars, and of other libraries' memory.
        if let Ok((described, bytes)) = value.extract::<(Described, Vec<u8>)>() {
            return Ok(Self::Value(memory::described(&described)?, bytes));
        }
        if let Ok((described, address, keep)) = value.extract::<(Described, u64, Py<PyAny>)>() {
            return Ok(Self::Address(memory::described(&described)?, address, keep, 0));
        }
        if let Ok((described, address, keep, writer)) = value.extract::<(Described, u64, Py<PyAny>, u64)>() {
            return Ok(Self::Address(memory::described(&described)?, address, keep, writer));
        }
        Scalar { kernel, place, value }.given()
    }

    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Region(region, _) => Arg::from(&**region),
            Self::Words(region, _, element) => Arg::words(region, element.clone()),
            Self::Buffer(buffer, _) => Arg::from(&**buffer),
            Self::Elastic(buffer, _) => Arg::from(&**buffer),
            Self::Value(element, bytes) => Arg::value(element.clone(), bytes),
            // SAFETY: the object, which the launch keeps, says by `__cuda_array_interface__` that the memory is there for kernels of the
            // GPU; the package takes it on an NVIDIA GPU alone.
            Self::Address(element, address, ..) => unsafe { Arg::address(element.clone(), *address) },
        }
    }

    fn id(&self) -> Option<usize> {
        match self {
            Self::Region(_, held) | Self::Words(_, held, _) => Some(held.id()),
            Self::Buffer(_, slot) => Some(slot.id()),
            Self::Elastic(_, slot) => Some(slot.id()),
            Self::Value(..) | Self::Address(..) => None,
        }
    }

    /// The stream of another library that the launch is to run behind.
    fn behind(&self) -> Option<u64> {
        match self {
            Self::Address(.., writer) => Some(*writer).filter(|&writer| writer != 0),
            _ => None,
        }
    }

    /// What the launch keeps: not the region itself, which may be closed meanwhile.
    fn kept(self) -> Option<Kept> {
        match self {
            Self::Region(_, held) | Self::Words(_, held, _) => Some(Box::new(held)),
            Self::Buffer(_, slot) => Some(Box::new(slot)),
            Self::Elastic(_, slot) => Some(Box::new(slot)),
            Self::Address(_, _, object, _) => Some(Box::new(object)),
            Self::Value(..) => None,
        }
    }
}

/// A number of Python's, which has no type of its own: it becomes the parameter's, if it fits.
struct Scalar<'a, 'py> {
    kernel: &'a KernelInfo,
    place: usize,
    value: &'a Bound<'py, PyAny>,
}

impl Scalar<'_, '_> {
    fn what(&self) -> String {
        format!("kernel `{}`: argument {}", self.kernel.name, self.place + 1)
    }

    fn given(&self) -> PyResult<Given> {
        let param = self.kernel.params.get(self.place);
        // Where there is no parameter the runtime says how many there are.
        let (name, bytes) = param.map_or(("long long", 8), |param| {
            (param.type_name.as_str(), param.bytes as usize)
        });
        let kind = param.map_or(ParamKind::Signed, |param| param.kind);
        let value = self.value;
        let whole = value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>();
        match kind {
            ParamKind::Signed if whole => self.signed(name, bytes),
            ParamKind::Unsigned if whole => self.unsigned(name, bytes),
            ParamKind::Float if whole || value.is_instance_of::<PyFloat>() => self.float(name, bytes),
            // A pointer is a number in PTX.
            ParamKind::Bytes if value.is_none() && bytes == 8 => Ok(Given::Value(ElementType::U64, vec![0; 8])),
            ParamKind::Bytes if !name.ends_with(']') => match name.get(1..2) {
                Some("f") if bytes > 2 && (whole || value.is_instance_of::<PyFloat>()) => self.float(name, bytes),
                // What the text calls unsigned may be signed in its source.
                Some("b" | "s" | "u") if whole && value.lt(0)? => self.signed(name, bytes),
                Some("b" | "s" | "u") if whole => self.unsigned(name, bytes),
                _ => self.refused(name),
            },
            _ => self.refused(name),
        }
    }

    fn refused(&self, name: &str) -> PyResult<Given> {
        Err(errors::argument(format!(
            "{}: {} was given for `{name}`",
            self.what(),
            self.described()
        )))
    }

    fn described(&self) -> String {
        let class = self.value.get_type();
        let class = class
            .fully_qualified_name()
            .map_or_else(|_| "an object".into(), |name| name.to_string());
        format!("an object of type {class}")
    }

    fn out_of_range(&self, name: &str, least: impl std::fmt::Debug, most: impl std::fmt::Debug) -> PyErr {
        errors::argument_range(format!(
            "{}: {} does not fit `{name}`, which has {least:?} to {most:?}",
            self.what(),
            self.value
        ))
    }

    /// The number as Rust's, none if it is larger than that.
    fn whole<'a, T: FromPyObjectOwned<'a>>(&'a self) -> PyResult<Option<T>> {
        match self.value.extract::<T>() {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                let error: PyErr = error.into();
                match error.is_instance_of::<PyOverflowError>(self.value.py()) {
                    true => Ok(None),
                    false => Err(error),
                }
            }
        }
    }

    fn signed(&self, name: &str, bytes: usize) -> PyResult<Given> {
        let most = i64::MAX >> (64 - 8 * bytes.min(8));
        match self.whole::<i64>()?.filter(|value| (-most - 1..=most).contains(value)) {
            Some(value) => Ok(Given::Value(
                memory::element("i", bytes, bytes, name)?,
                value.to_le_bytes()[..bytes].into(),
            )),
            None => Err(self.out_of_range(name, -most - 1, most)),
        }
    }

    fn unsigned(&self, name: &str, bytes: usize) -> PyResult<Given> {
        let most = match name {
            "bool" => 1,
            _ => u64::MAX >> (64 - 8 * bytes.min(8)),
        };
        match self.whole::<u64>()?.filter(|value| *value <= most) {
            Some(value) => Ok(Given::Value(
                memory::element("u", bytes, bytes, name)?,
                value.to_le_bytes()[..bytes].into(),
            )),
            None => Err(self.out_of_range(name, 0, most)),
        }
    }

    fn float(&self, name: &str, bytes: usize) -> PyResult<Given> {
        let Some(value) = self.whole::<f64>()? else {
            return Err(self.out_of_range(name, f64::MIN, f64::MAX));
        };
        match bytes {
            4 if value.is_finite() && !(value as f32).is_finite() => Err(self.out_of_range(name, f32::MIN, f32::MAX)),
            4 => Ok(Given::Value(ElementType::F32, (value as f32).to_le_bytes().into())),
            _ => Ok(Given::Value(ElementType::F64, value.to_le_bytes().into())),
        }
    }
}
