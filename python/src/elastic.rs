//! Device memory that grows and shrinks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use gpuvm::{Grown, RawElasticBuffer};
use pyo3::prelude::*;

use crate::{apart::Apart, errors::Raised, family::Child, launch::Flights, memory::Memory, slot::Slot};

/// An elastic buffer.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Elastic {
    pub slot: Arc<Slot<RawElasticBuffer>>,
    flights: Arc<Flights>,
    /// Another may begin where it grows: its first growth waits for launches.
    packed: AtomicBool,
}

/// What a growth was, for Python: the first new element, whether its memory was pre-mapped, bytes that were moved, seconds.
type Growth = (u64, bool, u64, f64);

impl Elastic {
    /// With what accesses wait for.
    pub fn new(slot: Arc<Slot<RawElasticBuffer>>, flights: Arc<Flights>, packed: bool) -> Self {
        let packed = packed.into();
        Self { slot, flights, packed }
    }

    fn growth(
        &self,
        py: Python<'_>,
        grow: impl FnOnce(&RawElasticBuffer) -> gpuvm::Result<Grown> + Send,
    ) -> PyResult<Growth> {
        // Relaxed: the thread that waits without need waits for launches that end. Here signals are looked for; the runtime looks for none.
        let buffer = match self.packed.load(Ordering::Relaxed) {
            true => self.flights.when_idle(py, &self.slot)?,
            false => self.slot.get()?,
        };
        let grown = py.apart(|| grow(&buffer)).raised()?;
        self.packed.store(false, Ordering::Relaxed);
        Ok((
            grown.first,
            grown.premapped,
            grown.moved_bytes,
            grown.took.as_secs_f64(),
        ))
    }
}

#[pymethods]
impl Elastic {
    /// Elements.
    #[getter]
    fn length(&self) -> PyResult<u64> {
        Ok(self.slot.get()?.len())
    }

    /// Elements that it can have without waiting for memory.
    #[getter]
    fn capacity(&self) -> PyResult<u64> {
        Ok(self.slot.get()?.capacity())
    }

    /// Address of element 0.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        Ok(self.slot.get()?.pointer())
    }

    /// Makes it longer by this many elements.
    fn grow(&self, py: Python<'_>, elements: u64) -> PyResult<Growth> {
        self.growth(py, |buffer| buffer.grow(elements))
    }

    /// Makes it so long, if it is shorter.
    fn ensure(&self, py: Python<'_>, elements: u64) -> PyResult<Growth> {
        self.growth(py, |buffer| buffer.ensure(elements))
    }

    /// Makes it shorter by this many elements.
    fn shrink(&self, elements: u64) -> PyResult<()> {
        self.slot.get()?.shrink(elements).raised()
    }

    /// Says who gives memory up first.
    fn set_priority(&self, priority: i32) -> PyResult<()> {
        self.slot.get()?.set_priority(priority);
        Ok(())
    }

    /// Copies elements from `first` on into an array of bytes.
    fn read(&self, py: Python<'_>, first: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = Memory::of(out)?;
        let buffer = self.flights.when_idle(py, &self.slot)?;
        let bytes = out.bytes_mut()?;
        py.apart(|| buffer.read_bytes(first, bytes)).raised()
    }

    /// Stores an array of bytes from element `first` on.
    fn write(&self, py: Python<'_>, first: u64, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Memory::of(values)?;
        let buffer = self.flights.when_idle(py, &self.slot)?;
        py.apart(|| buffer.write_bytes(first, values.bytes())).raised()
    }

    /// Gives it back: its memory is for others when the launches that name it have ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.end(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }
}
