//! Elements on their way into a region.

use bytemuck::Pod;

use crate::home::HostPages;

/// Elements on their way into a region.
pub(super) enum Data<T> {
    Vec(Vec<T>),
    /// Exactly the region's elements.
    Pages(memmap2::MmapMut),
}

impl<T: Pod> Data<T> {
    pub fn elements(&self) -> &[T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice(map),
        }
    }

    pub fn elements_mut(&mut self) -> &mut [T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice_mut(map),
        }
    }

    pub fn into_memory(self) -> HostPages {
        match self {
            Self::Vec(data) => HostPages::of_vec(data),
            Self::Pages(map) => {
                let bytes = map.len() as u64;
                HostPages::of_pages(map, bytes)
            }
        }
    }
}
