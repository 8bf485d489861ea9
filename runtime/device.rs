//! Plain values in device memory.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use gpuvm_gpu::{DeviceMemory, Gpu, GpuError};

/// A device array of plain structures, kept for its lifetime.
pub(crate) struct DeviceArray<T> {
    memory: DeviceMemory,
    _elements: PhantomData<fn() -> T>,
}

impl<T: Pod> DeviceArray<T> {
    /// `length` zeroed elements (at least room for one, so that an empty array has an address).
    pub fn zeroed(gpu: &dyn Gpu, length: u64) -> Result<Self, GpuError> {
        let bytes = length.max(1).saturating_mul(size_of::<T>() as u64);
        Ok(Self {
            memory: gpu.allocate(bytes, align_of::<T>().max(256) as u64)?,
            _elements: PhantomData,
        })
    }

    /// Elements that lie there, all of which the memory has room for.
    pub fn over(memory: DeviceMemory) -> Self {
        Self {
            memory,
            _elements: PhantomData,
        }
    }

    pub fn from_slice(gpu: &dyn Gpu, values: &[T]) -> Result<Self, GpuError> {
        let array = Self::zeroed(gpu, values.len() as u64)?;
        array.write(gpu, 0, values)?;
        Ok(array)
    }

    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// Elements that there is room for.
    pub fn length(&self) -> u64 {
        self.memory.bytes() / size_of::<T>() as u64
    }

    pub fn write(&self, gpu: &dyn Gpu, first: u64, values: &[T]) -> Result<(), GpuError> {
        if values.is_empty() {
            return Ok(());
        }
        gpu.write(
            self.addr() + first * size_of::<T>() as u64,
            bytemuck::cast_slice(values),
        )
    }

    pub fn read(&self, gpu: &dyn Gpu, first: u64, length: usize) -> Result<Vec<T>, GpuError> {
        let mut out = vec![T::zeroed(); length];
        self.read_into(gpu, first, &mut out)?;
        Ok(out)
    }

    pub fn read_into(&self, gpu: &dyn Gpu, first: u64, out: &mut [T]) -> Result<(), GpuError> {
        if out.is_empty() {
            return Ok(());
        }
        gpu.read(
            self.addr() + first * size_of::<T>() as u64,
            bytemuck::cast_slice_mut(out),
        )
    }
}

/// One zero value of a shared structure.
pub(crate) fn zero<T: Zeroable>() -> T {
    T::zeroed()
}
