//! Plain device memory.

use std::sync::Arc;

use gpuvm::RawBuffer;
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    apart::Apart,
    dlpack::{self, Device, Tensor},
    errors::Raised,
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
}

#[pymethods]
impl Buffer {
    /// Copies elements from 0 on into an array of bytes.
    fn read(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut out = Memory::of(out)?;
        let buffer = self.flights.at_rest(py, &self.slot)?;
        let bytes = out.bytes_mut()?;
        py.apart(|| buffer.read_bytes(bytes)).raised()
    }

    /// Stores an array of bytes from element 0 on.
    fn write(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Memory::of(values)?;
        let buffer = self.flights.at_rest(py, &self.slot)?;
        py.apart(|| buffer.write_bytes(values.bytes())).raised()
    }

    /// Device address of element 0, when the launches that name it have ended.
    fn addr(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.flights.at_rest(py, &self.slot)?.addr())
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
        let buffer = self.flights.at_rest(py, &self.slot)?;
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
