//! Arrays that kernels reach page by page.

use std::sync::Arc;

use gpuvm::{Advice, RawRegion};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    apart::Apart,
    dlpack::{self, Device, Tensor},
    errors::{self, Raised},
    family::Child,
    launch::Flights,
    memory::Memory,
    rows::Rows,
    slot::Slot,
};

/// The object whose memory a region has, for Python.
pub type Lent = Py<PyAny>;

/// What ends with its virtual memory: a region, and who may still write to it.
pub struct Held {
    pub slot: Slot<RawRegion>,
    flights: Arc<Flights>,
    pub rows: Rows,
}

impl Held {
    /// Its identity among what launches are given.
    pub fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }
}

impl Child for Held {
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let Some(region) = self.slot.take()? else { return Ok(()) };
        let settled = py.apart(|| self.rows.end()).raised();
        let told = self.rows.raise_told(region.name());
        let ended = py.apart(|| match Arc::try_unwrap(region) {
            Ok(region) => region.close(),
            // Another thread, or a view of another library, has it still: it ends with the last of them.
            Err(shared) => shared.flush(),
        });
        self.rows.forget();
        settled.and(ended.raised()).and(told)
    }

    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(region) = self.slot.get() else { return Ok(()) };
        let settled = py.apart(|| self.rows.end()).raised();
        settled.and(self.rows.raise_told(region.name()))
    }
}

/// A region.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Region {
    pub held: Arc<Held>,
    lent: Option<Lent>,
    device: Device,
}

impl Region {
    pub fn new(region: RawRegion, lent: Option<Lent>, flights: Arc<Flights>, device: Device) -> Self {
        let slot = Slot::new(format!("array `{}`", region.name()), region);
        Self {
            held: Arc::new(Held {
                slot,
                flights,
                rows: Rows::default(),
            }),
            lent,
            device,
        }
    }

    /// The region, when the launches that name it have ended.
    fn when_idle(&self, py: Python<'_>) -> PyResult<Arc<RawRegion>> {
        let region = self.held.slot.get()?;
        self.held.flights.wait_idle(py, Some(self.held.id()))?;
        self.held.wait_idle(py)?;
        Ok(region)
    }
}

#[pymethods]
impl Region {
    /// Whether kernels may only read it.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.held.slot.get()?.is_read_only())
    }

    /// Pages.
    #[getter]
    fn pages(&self) -> PyResult<u64> {
        Ok(self.held.slot.get()?.pages())
    }

    /// The object whose memory it has, if one was lent.
    #[getter]
    fn lent(&self, py: Python<'_>) -> Option<Lent> {
        self.lent.as_ref().map(|lent| lent.clone_ref(py))
    }

    /// Copies elements from `first` on into an array of bytes.
    fn read(&self, py: Python<'_>, first: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = Memory::of(out)?;
        let region = self.when_idle(py)?;
        let bytes = out.bytes_mut()?;
        py.apart(|| region.read_bytes(first, bytes)).raised()
    }

    /// Stores an array of bytes from element `first` on.
    fn write(&self, py: Python<'_>, first: u64, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Memory::of(values)?;
        let region = self.when_idle(py)?;
        py.apart(|| region.write_bytes(first, values.bytes())).raised()
    }

    /// Writes dirty pages back.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.when_idle(py)?;
        py.apart(|| region.flush()).raised()
    }

    /// Writes dirty pages back and gives the frames back.
    fn evict(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.when_idle(py)?;
        py.apart(|| region.evict()).raised()
    }

    /// Says how kernels will use it: whether the region follows that.
    fn advise(&self, py: Python<'_>, advice: &str) -> PyResult<bool> {
        let advice = advice.parse::<Advice>();
        let advice = advice.map_err(|reason| errors::setting(format!("advice: {reason}")))?;
        let region = self.held.slot.get()?;
        py.apart(|| region.advise(advice)).raised()
    }

    /// Where its pages are used, and why not where that was asked.
    #[getter]
    fn effective(&self) -> PyResult<String> {
        Ok(self.held.slot.get()?.effective().to_string())
    }

    /// Whose pages stay while frames are short, as it was said last.
    #[getter]
    fn priority(&self) -> PyResult<i32> {
        Ok(self.held.slot.get()?.priority())
    }

    /// Says whose pages stay while frames are short.
    fn set_priority(&self, py: Python<'_>, priority: i32) -> PyResult<()> {
        let region = self.held.slot.get()?;
        py.apart(|| region.set_priority(priority)).raised()
    }

    /// Device address where all elements lie as plain memory; none where they do not.
    fn resident_addr(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let region = self.when_idle(py)?;
        py.apart(|| region.resident_addr()).raised()
    }

    /// What DLPack calls the GPU.
    fn dlpack_device(&self) -> PyResult<(i32, i32)> {
        self.device.numbers()
    }

    /// A DLPack capsule of the elements, which can only be read.
    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        shape: Vec<i64>,
        versioned: bool,
    ) -> PyResult<Option<Bound<'py, PyCapsule>>> {
        let region = self.when_idle(py)?;
        let Some(addr) = py.apart(|| region.resident_addr()).raised()? else {
            return Ok(None);
        };
        let tensor = Tensor {
            addr,
            device: self.device,
            element: (kind.to_owned(), region.element().bytes()),
            shape,
            read_only: true,
        };
        dlpack::capsule(py, tensor, Box::new(region), versioned).map(Some)
    }

    /// Where all of it lies for kernels that do not look pages up: address and bytes.
    fn home(&self) -> PyResult<Option<(u64, u64)>> {
        let home = self.held.slot.get()?.home_memory();
        Ok(home.map(|home| (home.addr, home.bytes)))
    }

    /// Whether that memory holds what launches wrote.
    #[getter]
    fn is_home_current(&self, py: Python<'_>) -> PyResult<bool> {
        let region = self.held.slot.get()?;
        Ok(py.apart(|| region.is_home_current()))
    }

    /// A DLPack capsule of bytes of that memory, with elements of a kind and size, which keeps `object`.
    fn home_dlpack<'py>(
        &self,
        py: Python<'py>,
        element: (String, usize),
        shape: Vec<i64>,
        object: Py<PyAny>,
    ) -> PyResult<Option<Bound<'py, PyCapsule>>> {
        let region = self.held.slot.get()?;
        let Some(home) = region.home_memory() else {
            return Ok(None);
        };
        let tensor = Tensor {
            addr: home.addr,
            device: self.device,
            element,
            shape,
            read_only: false,
        };
        dlpack::capsule(py, tensor, Box::new((region, object)), false).map(Some)
    }

    /// Address of the words in which kernels tell numbers that are out of range.
    fn told_addr(&self, py: Python<'_>) -> PyResult<u64> {
        let region = self.held.slot.get()?;
        py.apart(|| self.held.rows.told_addr(&region)).raised()
    }

    /// Waits for what was enqueued so, and raises what it told.
    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        self.held.wait_idle(py)
    }

    /// Others have written to its memory: waits for them, and drops what frames hold.
    fn wrote(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.when_idle(py)?;
        py.apart(|| region.wrote()).raised()
    }

    /// Has pages that were used at home come to frames.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.held.slot.get()?;
        py.apart(|| self.held.rows.step(&region)).raised()
    }

    /// Graphs that were captured are launched no more.
    fn forget_graphs(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.when_idle(py)?;
        py.apart(|| region.forget_graphs()).raised()?;
        self.held.rows.forget();
        Ok(())
    }

    /// Ends it and says whether every page reached its home.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.held.slot.is_closed() {
            return Ok(());
        }
        self.held.slot.get()?;
        self.held.flights.wait_idle(py, Some(self.held.id()))?;
        self.held.end(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.held.slot.is_closed()
    }
}
