//! Tensors of `.safetensors` files.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use bytemuck::Pod;
use gpuvm::{Region, RegionBuilder, VmGpu};
use safetensors::tensor::{Dtype as Stored, Metadata};

use crate::{
    Dtype, Elements, FormatError, Result,
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
        let length: [u8; LENGTH_BYTES as usize] = source.array(0)?;
        // No header is as long as that.
        if length[0] == b'{' && length[7] != 0 {
            return Err(FormatError::Kind {
                path: source.owned_path(),
                found: "JSON, as the index of a checkpoint in several files is",
                fix: "open the .safetensors files that it names",
            });
        }
        let header_bytes = u64::from_le_bytes(length);
        let header = source.part("its header", LENGTH_BYTES, header_bytes)?;
        let header = &bytemuck::cast_slice(&header)[..header_bytes as usize];
        let metadata: Metadata = serde_json::from_slice(header)
            .map_err(|error| source.broken_by("its header does not describe its tensors", Some(error.into())))?;
        let data = LENGTH_BYTES + header_bytes;
        let end = data.checked_add(metadata.data_len() as u64);
        if end != Some(source.bytes) {
            let (bytes, follow) = (metadata.data_len(), source.bytes - data);
            return Err(source.broken(format!(
                "its tensors have {bytes} bytes, and {follow} follow its header"
            )));
        }
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let Some(dtype) = dtype(info.dtype) else {
                let reason = format!("tensor `{name}` has elements {:?}, which are not known", info.dtype);
                return Err(source.broken(reason));
            };
            let shape: Vec<u64> = info.shape.iter().map(|&n| n as u64).collect();
            // The header was found to fit: none of this overflows.
            let (length, offset) = (shape.iter().product(), data + info.data_offsets.0 as u64);
            let elements = Elements::new(&source.path, name, dtype, length, offset);
            let elements = elements.ok_or_else(|| source.broken("a tensor has more bytes than an address space"))?;
            tensors.push(Tensor { shape, elements });
        }
        let names = tensors.iter().map(|tensor| tensor.name().to_owned());
        let notes = metadata.metadata().iter().flatten();
        Ok(Self {
            by_name: names.zip(0..).collect(),
            notes: notes.map(|(key, value)| (key.clone(), value.clone())).collect(),
            path: source.owned_path(),
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
    macro_rules! of {
        ($($same:ident)*; $($small:ident)*) => {
            match stored {
                Stored::BOOL => Dtype::Bool,
                Stored::C64 => Dtype::C64,
                $(Stored::$same => Dtype::$same,)*
                $(Stored::$small => Dtype::Small(stringify!($small), stored.bitsize() as u32),)*
                _ => return None,
            }
        };
    }
    Some(of!(U8 I8 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64;
        F4 F6_E2M3 F6_E3M2 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ))
}
