//! Plain device memory.

use std::sync::Arc;

use gpuvm::{Moved, RawBuffer, RawTieredBuffer, TierPlace};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    apart::Apart,
    dlpack::{self, Device, Tensor},
    errors::{self, Raised},
    family::Child,
    launch::Flights,
    memory::Memory,
    slot::Slot,
};

/// A buffer.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Buffer {
    pub slot: Arc<Slot<RawBuffer>>,
    flights: Arc<Flights>,
    device: Device,
}

impl Buffer {
    /// With what exports and accesses wait for.
    pub fn new(slot: Arc<Slot<RawBuffer>>, flights: Arc<Flights>, device: Device) -> Self {
        Self { slot, flights, device }
    }

    /// A move of chunks, when the launches that were given it have ended: meanwhile signals are looked for.
    fn moved(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&RawTieredBuffer) -> gpuvm::Result<Moved> + Send,
    ) -> PyResult<Move> {
        let buffer = tiered(&*self.flights.when_idle(py, &self.slot)?)?;
        let moved = py.apart(|| act(&buffer)).raised()?;
        Ok((moved.came, moved.left, moved.took.as_secs_f64()))
    }
}

/// What a move of chunks was, for Python: those that came to the GPU, those that left it, seconds.
type Move = (u64, u64, f64);

fn tiered(buffer: &RawBuffer) -> PyResult<RawTieredBuffer> {
    buffer
        .tiered()
        .ok_or_else(|| errors::setting("the buffer was not made as a tiered one".into()))
}

#[pymethods]
impl Buffer {
    /// Copies elements from `first` on into an array of bytes.
    fn read(&self, py: Python<'_>, first: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = Memory::of(out)?;
        let buffer = self.flights.when_idle(py, &self.slot)?;
        let bytes = out.bytes_mut()?;
        py.apart(|| buffer.read_bytes_from(first, bytes)).raised()
    }

    /// Stores an array of bytes from element `first` on.
    fn write(&self, py: Python<'_>, first: u64, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Memory::of(values)?;
        let buffer = self.flights.when_idle(py, &self.slot)?;
        py.apart(|| buffer.write_bytes_from(first, values.bytes())).raised()
    }

    /// Moves the chunks of a tiered one that hold some elements.
    fn move_to(&self, py: Python<'_>, first: u64, end: u64, place: &str) -> PyResult<Move> {
        let place: TierPlace = place.parse().map_err(errors::setting)?;
        self.moved(py, |buffer| buffer.move_to(first..end, place))
    }

    /// Says how many bytes of a tiered one may lie on the GPU.
    fn set_budget(&self, py: Python<'_>, bytes: u64) -> PyResult<Move> {
        self.moved(py, |buffer| buffer.set_budget(bytes))
    }

    /// Says whose chunks leave the GPU first.
    fn set_priority(&self, priority: i32) -> PyResult<()> {
        tiered(&*self.slot.get()?)?.set_priority(priority);
        Ok(())
    }

    /// Of a tiered one: bytes on the GPU, bytes that may be there, bytes of a chunk.
    fn tiers(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let buffer = tiered(&*self.slot.get()?)?;
        Ok(py.apart(|| (buffer.resident_bytes(), buffer.budget(), buffer.chunk_bytes())))
    }

    /// Where an element of a tiered one lies.
    fn place_of(&self, py: Python<'_>, element: u64) -> PyResult<String> {
        let buffer = tiered(&*self.slot.get()?)?;
        Ok(py.apart(|| buffer.place_of(element)).raised()?.name().to_owned())
    }

    /// Device address of element 0, when the launches that name it have ended.
    fn addr(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.flights.when_idle(py, &self.slot)?.addr())
    }

    /// What DLPack calls the GPU.
    fn dlpack_device(&self) -> PyResult<(i32, i32)> {
        self.device.numbers()
    }

    /// A DLPack capsule of the elements.
    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        kind: &str,
        shape: Vec<i64>,
        versioned: bool,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let buffer = self.flights.when_idle(py, &self.slot)?;
        let tensor = Tensor {
            addr: buffer.addr(),
            device: self.device,
            element: (kind.to_owned(), buffer.element().bytes()),
            shape,
            read_only: false,
        };
        dlpack::capsule(py, tensor, Box::new(buffer), versioned)
    }

    /// Gives it back: its memory goes when no launch and no other library has it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.end(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }
}
