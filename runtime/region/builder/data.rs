//! Elements on their way into a region.

use bytemuck::Pod;
use gpuvm_gpu::HostMemory;

use crate::home::HostPages;

/// Elements on their way into a region.
pub(super) enum Data<T> {
    Vec(Vec<T>),
    /// Exactly the region's elements.
    Pages(memmap2::MmapMut),
    /// Exactly the region's elements, in memory that no kernel knows yet.
    Home(HostMemory),
}

/// All of it. Page aligned.
fn bytes_of(memory: &HostMemory) -> *mut [u8] {
    std::ptr::slice_from_raw_parts_mut(memory.host_ptr(), memory.bytes() as usize)
}

impl<T: Pod> Data<T> {
    pub fn elements(&self) -> &[T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice(map),
            // SAFETY: it lives as long as `self`, has values, and nothing else knows it.
            Self::Home(memory) => bytemuck::cast_slice(unsafe { &*bytes_of(memory) }),
        }
    }

    pub fn elements_mut(&mut self) -> &mut [T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice_mut(map),
            // SAFETY: as in `elements`; `self` is borrowed by nothing else.
            Self::Home(memory) => bytemuck::cast_slice_mut(unsafe { &mut *bytes_of(memory) }),
        }
    }

    pub fn into_memory(self) -> HostPages {
        match self {
            Self::Vec(data) => HostPages::of_vec(data),
            Self::Pages(map) => {
                let bytes = map.len() as u64;
                HostPages::of_pages(map, bytes)
            }
            Self::Home(memory) => {
                let (base, bytes) = (memory.host_ptr(), memory.bytes());
                HostPages::kept_by(Box::new(memory), base, bytes)
            }
        }
    }
}
