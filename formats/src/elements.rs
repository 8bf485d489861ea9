//! Elements of one type that lie one after another in a file.

use std::{path::Path, sync::Arc};

use bytemuck::Pod;
use gpuvm::{Region, RegionBuilder, VmGpu};

use crate::{Dtype, FormatError, Result};

/// Elements of one type, one after another in a file. [`region`](Self::region) makes a region of them, which is the file's pages.
#[derive(Debug, Clone)]
pub struct Elements {
    path: Arc<Path>,
    /// What messages and the region call them.
    name: String,
    dtype: Dtype,
    length: u64,
    offset_bytes: u64,
    bytes: u64,
}

impl Elements {
    /// `length` elements from byte `offset_bytes` of the file on, which has them; none where they have more bytes than 64 bits say.
    pub(crate) fn new(path: &Arc<Path>, name: String, dtype: Dtype, length: u64, offset_bytes: u64) -> Option<Self> {
        Some(Self {
            path: Arc::clone(path),
            name,
            dtype,
            length,
            offset_bytes,
            bytes: dtype.bytes_of(length)?,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What messages and the region call them: the tensor's or the column's name, for a column's other parts with what they are.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Their type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where they begin in the file, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// How many bytes of the file they are.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A region over them, of the virtual memory's default kind, with their name. `T` is the type of [`Dtype`], or `u8` for the bytes. A
    /// boolean of Arrow's is a bit: 8 of them are an element.
    ///
    /// # Errors
    /// [`FormatError::Type`] for another type; [`FormatError::Region`] as [`RegionBuilder::map_file_span`], such as for a file that got
    /// shorter, or elements that are not aligned in it.
    pub fn region<T: Pod>(&self, vm: &VmGpu) -> Result<Region<T>> {
        self.map(vm.region::<T>().name(self.name.clone()))
    }

    /// A region over them by a builder, which may say more about it.
    ///
    /// # Errors
    /// As [`region`](Self::region).
    pub fn map<T: Pod>(&self, builder: RegionBuilder<T>) -> Result<Region<T>> {
        if !self.dtype.is::<T>() {
            return Err(FormatError::Type {
                path: self.path.to_path_buf(),
                name: self.name.clone(),
                dtype: self.dtype,
                asked: std::any::type_name::<T>(),
            });
        }
        // Of a size that the check has found to be the element's, or 1.
        let length = self.bytes / (size_of::<T>() as u64).max(1);
        Ok(builder.map_file_span(&self.path, self.offset_bytes, length)?)
    }
}
