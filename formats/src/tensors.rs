//! Tensors of `.safetensors` files.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use bytemuck::Pod;
use gpuvm::{Region, RegionBuilder, VmGpu};
use safetensors::tensor::{Dtype as Stored, Metadata};

use crate::{
    Dtype, Elements, FormatError, HEADER_BYTES_MAX, Result,
    file::{Source, some_of},
};

/// Bytes of the header's length, before the header.
const LENGTH_BYTES: u64 = 8;

/// A `.safetensors` file: its header. The tensors stay in the file.
///
/// The format: <https://huggingface.co/docs/safetensors>. Tensors follow one another without a gap and fill the file.
#[derive(Debug, Clone)]
pub struct SafeTensors {
    path: std::path::PathBuf,
    /// In the order of their bytes.
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    notes: BTreeMap<String, String>,
}

/// A tensor of a file.
#[derive(Debug, Clone)]
pub struct Tensor {
    shape: Vec<u64>,
    elements: Elements,
}

impl SafeTensors {
    /// Reads a file's header.
    ///
    /// # Errors
    /// [`FormatError::Read`]; [`FormatError::Broken`] for a header that is none, a file that is longer or shorter than its header says, and
    /// tensors that overlap, leave gaps or have another size than their shape.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let source = Source::open(path.as_ref(), "safetensors")?;
        if source.bytes < LENGTH_BYTES {
            return Err(source.broken(format!("it has {} bytes", source.bytes)));
        }
        let header_bytes = u64::from_le_bytes(source.array(0)?);
        let header = source.part("its header", LENGTH_BYTES, header_bytes)?;
        let metadata: Metadata = serde_json::from_slice(header.bytes())
            .map_err(|error| source.broken_by("its header does not describe its tensors", Some(error.into())))?;
        let data = LENGTH_BYTES + header_bytes;
        let end = data.checked_add(metadata.data_len() as u64);
        if end != Some(source.bytes) {
            return Err(source.broken(format!(
                "its tensors have {} bytes, and {} follow its header",
                metadata.data_len(),
                source.bytes - data
            )));
        }
        debug_assert!(header_bytes <= HEADER_BYTES_MAX);
        Self::of(&source, &metadata, data)
    }

    /// The tensors that a header names, whose bytes begin at byte `data` of the file.
    fn of(source: &Source, metadata: &Metadata, data: u64) -> Result<Self> {
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let Some(dtype) = dtype(info.dtype) else {
                return Err(source.broken(format!(
                    "tensor `{name}` has elements {:?}, which are not known",
                    info.dtype
                )));
            };
            // The header was found to fit: none of this overflows.
            let length = info.shape.iter().map(|&n| n as u64).product();
            let elements = Elements::new(&source.path, name, dtype, length, data + info.data_offsets.0 as u64);
            let elements = elements.ok_or_else(|| source.broken("a tensor has more bytes than an address space"))?;
            tensors.push(Tensor {
                shape: info.shape.iter().map(|&n| n as u64).collect(),
                elements,
            });
        }
        let by_name = tensors
            .iter()
            .zip(0..)
            .map(|(tensor, at)| (tensor.name().to_owned(), at));
        let notes = metadata.metadata().iter().flatten();
        Ok(Self {
            path: source.owned_path(),
            by_name: by_name.collect(),
            notes: notes.map(|(key, value)| (key.clone(), value.clone())).collect(),
            tensors,
        })
    }

    /// The tensors, in the order of their bytes in the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`FormatError::Missing`].
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let found = self.by_name.get(name).map(|&at| &self.tensors[at]);
        found.ok_or_else(|| FormatError::Missing {
            path: self.path.clone(),
            what: "tensor",
            name: name.to_owned(),
            has: some_of(self.tensors.iter().map(Tensor::name)),
        })
    }

    /// What the file says of itself: texts by their names.
    pub fn notes(&self) -> &BTreeMap<String, String> {
        &self.notes
    }
}

impl Tensor {
    /// Its name.
    pub fn name(&self) -> &str {
        self.elements.name()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.elements.dtype()
    }

    /// How long it is in each dimension, the last of which is contiguous; none for a single number.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its elements, row-major.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// See [`Elements::region`].
    ///
    /// # Errors
    /// As there.
    pub fn region<T: Pod>(&self, vm: &VmGpu) -> Result<Region<T>> {
        self.elements.region(vm)
    }

    /// See [`Elements::map`].
    ///
    /// # Errors
    /// As there.
    pub fn map<T: Pod>(&self, builder: RegionBuilder<T>) -> Result<Region<T>> {
        self.elements.map(builder)
    }
}

fn dtype(stored: Stored) -> Option<Dtype> {
    Some(match stored {
        Stored::BOOL => Dtype::Bool,
        Stored::U8 => Dtype::U8,
        Stored::I8 => Dtype::I8,
        Stored::U16 => Dtype::U16,
        Stored::I16 => Dtype::I16,
        Stored::F16 => Dtype::F16,
        Stored::BF16 => Dtype::BF16,
        Stored::U32 => Dtype::U32,
        Stored::I32 => Dtype::I32,
        Stored::F32 => Dtype::F32,
        Stored::U64 => Dtype::U64,
        Stored::I64 => Dtype::I64,
        Stored::F64 => Dtype::F64,
        Stored::C64 => Dtype::Bytes(8),
        Stored::F4 => Dtype::Small("F4", 4),
        Stored::F6_E2M3 => Dtype::Small("F6_E2M3", 6),
        Stored::F6_E3M2 => Dtype::Small("F6_E3M2", 6),
        Stored::F8_E5M2 => Dtype::Small("F8_E5M2", 8),
        Stored::F8_E4M3 => Dtype::Small("F8_E4M3", 8),
        Stored::F8_E8M0 => Dtype::Small("F8_E8M0", 8),
        Stored::F8_E4M3FNUZ => Dtype::Small("F8_E4M3FNUZ", 8),
        Stored::F8_E5M2FNUZ => Dtype::Small("F8_E5M2FNUZ", 8),
        _ => return None,
    })
}
