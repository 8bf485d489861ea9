//! The formats of the TEXMEX corpora (<http://corpus-texmex.irisa.fr/>): each vector is its dimension as a little-endian
//! `i32` and its components: `f32` in `.fvecs`, `u8` in `.bvecs`, `i32` in `.ivecs`.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use rayon::prelude::*;

use super::{COUNT_MAX, DIM_MAX, Neighbours, Rows, VectorError, Vectors};
use crate::input::{FileError, FileFault, FileKind, Input, Place, require_memory};

/// How messages speak of vectors.
pub(super) const KIND: FileKind = FileKind {
    what: "the vectors",
    give: "name a file (.fvecs, .bvecs), or clusters:COUNT:DIM[:CLUSTERS]",
    is: "vectors are binary files",
};

/// Bytes of the dimension before each vector.
const DIM_BYTES: usize = 4;

/// Bytes of the file that a task reads at a time.
const TASK_BYTES: usize = 1 << 20;

/// A component as a file has it.
trait Component {
    /// As it is in memory.
    type Value: Copy + Default + Send;
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self::Value;
    /// A value that no vector may have, if this is one.
    fn refused(value: Self::Value) -> Option<f32>;
}

struct Float;
struct Byte;
struct Id;

impl Component for Float {
    type Value = f32;
    const BYTES: usize = 4;
    fn read(bytes: &[u8]) -> f32 {
        f32::from_bits(Id::read(bytes))
    }
    fn refused(value: f32) -> Option<f32> {
        (!value.is_finite()).then_some(value)
    }
}

impl Component for Byte {
    type Value = f32;
    const BYTES: usize = 1;
    fn read(bytes: &[u8]) -> f32 {
        bytes[0].into()
    }
    fn refused(_: f32) -> Option<f32> {
        None
    }
}

impl Component for Id {
    type Value = u32;
    const BYTES: usize = 4;
    fn read(bytes: &[u8]) -> u32 {
        bytes.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte))
    }
    fn refused(_: u32) -> Option<f32> {
        None
    }
}

/// Reads a `.fvecs` file, on all cores.
///
/// # Errors
/// [`VectorError`], with the file, the vector and its place in bytes.
pub fn read_fvecs(path: &Path) -> Result<Vectors, VectorError> {
    read::<Float>(path)
}

/// Reads a `.bvecs` file, on all cores. Its bytes become floating-point numbers, which hold them exactly.
///
/// # Errors
/// [`VectorError`], with the file, the vector and its place in bytes.
pub fn read_bvecs(path: &Path) -> Result<Vectors, VectorError> {
    read::<Byte>(path)
}

/// Reads the neighbours of a `.ivecs` file, on all cores. -1 is [`NONE`](super::NONE).
///
/// # Errors
/// [`VectorError`], with the file, the vector and its place in bytes.
pub fn read_ivecs(path: &Path) -> Result<Neighbours, VectorError> {
    read::<Id>(path)
}

fn read<C: Component>(path: &Path) -> Result<Rows<C::Value>, VectorError> {
    let file = Input::open(path, &KIND)?;
    let reader = Reader::<C>::of(&file)?;
    let values = reader.read()?;
    Rows::new(reader.dim, values)
}

/// A file whose first dimension is known.
struct Reader<'a, C> {
    file: &'a Input<'a>,
    dim: usize,
    vector_bytes: usize,
    component: std::marker::PhantomData<fn(C)>,
}

impl<'a, C: Component> Reader<'a, C> {
    fn of(file: &'a Input<'a>) -> Result<Reader<'a, C>, FileError> {
        let mut head = [0; DIM_BYTES];
        match file.bytes {
            0 => {
                let what = "the file is empty; fetch or write it again";
                return Err(file.error(FileFault::Empty, Place::File, what));
            }
            found @ 1..4 => return Err(truncated(file, 0, 0, found, 4)),
            _ => file.read_at(0, &mut head)?,
        }
        let dim = i32::from_le_bytes(head);
        match usize::try_from(dim) {
            Ok(width) if (1..=DIM_MAX).contains(&width) => Ok(Reader {
                file,
                dim: width,
                vector_bytes: DIM_BYTES + width * C::BYTES,
                component: std::marker::PhantomData,
            }),
            _ => {
                let what = format!("its dimension {dim} is not from 1 to {DIM_MAX}; is it a file of another format?");
                Err(file.error(FileFault::Malformed, Place::Vector { vector: 0, byte: 0 }, what))
            }
        }
    }

    fn read(&self) -> Result<Vec<C::Value>, VectorError> {
        let vector_bytes = self.vector_bytes as u64;
        let (count, rest) = (self.file.bytes / vector_bytes, self.file.bytes % vector_bytes);
        if count > COUNT_MAX as u64 {
            let what = format!("{count} vectors, at most {COUNT_MAX} are supported; split the file");
            return Err(self.file.error(FileFault::TooLarge, Place::File, what).into());
        }
        let length = count as usize * self.dim;
        require_memory((length * size_of::<C::Value>()) as u64)?;
        let mut values = vec![C::Value::default(); length];
        let task_vectors = (TASK_BYTES / self.vector_bytes).max(1);
        let tasks = values.par_chunks_mut(task_vectors * self.dim).enumerate();
        let first_error = tasks
            .map_init(Vec::new, |buffer, (task, values)| {
                self.read_some((task * task_vectors) as u64, values, buffer)
            })
            .find_map_first(Result::err);
        // What is wrong with a vector says more than that the file ends too early.
        match first_error {
            Some(error) => Err(error.into()),
            None if rest > 0 => Err(truncated(self.file, count, count * vector_bytes, rest, vector_bytes).into()),
            None => Ok(values),
        }
    }

    /// Reads vectors from the vector `first` on, as many as `values` hold.
    fn read_some(&self, first: u64, values: &mut [C::Value], buffer: &mut Vec<u8>) -> Result<(), FileError> {
        buffer.resize(values.len() / self.dim * self.vector_bytes, 0);
        self.file.read_at(first * self.vector_bytes as u64, buffer)?;
        let rows = values
            .chunks_exact_mut(self.dim)
            .zip(buffer.chunks_exact(self.vector_bytes));
        for ((row, bytes), vector) in rows.zip(first..) {
            let wrong = |what: String| {
                let byte = vector * self.vector_bytes as u64;
                Err(self
                    .file
                    .error(FileFault::Malformed, Place::Vector { vector, byte }, what))
            };
            let (head, components) = bytes.split_at(DIM_BYTES);
            let dim = Id::read(head) as i32;
            if dim != self.dim as i32 {
                return wrong(format!(
                    "its dimension is {dim}, and {} before it; is the file damaged, or of another format?",
                    self.dim
                ));
            }
            for (component, (value, bytes)) in row.iter_mut().zip(components.chunks_exact(C::BYTES)).enumerate() {
                *value = C::read(bytes);
                if let Some(value) = C::refused(*value) {
                    return wrong(format!(
                        "component {component} is {value}; distances need finite numbers"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The error of a vector that is cut off.
fn truncated(file: &Input<'_>, vector: u64, byte: u64, found: u64, expected: u64) -> FileError {
    let what = format!("the file is truncated: {found} bytes of {expected}; fetch it again");
    file.error(FileFault::Truncated, Place::Vector { vector, byte }, what)
}

fn write<T, const N: usize>(rows: &Rows<T>, out: impl Write, bytes: impl Fn(&T) -> [u8; N]) -> Result<(), VectorError> {
    let write = || -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 18, out);
        for row in rows.rows() {
            out.write_all(&(row.len() as i32).to_le_bytes())?;
            row.iter().try_for_each(|value| out.write_all(&bytes(value)))?;
        }
        out.flush()
    };
    write().map_err(|source| VectorError::Write { source })
}

/// Writes vectors as `.fvecs`.
///
/// # Errors
/// [`VectorError::Write`] where `out` fails; it has a part of the vectors then.
pub fn write_fvecs(vectors: &Vectors, out: impl Write) -> Result<(), VectorError> {
    write(vectors, out, |value| value.to_le_bytes())
}

/// Writes vectors as `.bvecs`.
///
/// # Errors
/// [`VectorError::NotByte`] where a component is no byte, before anything is written; [`VectorError::Write`] where `out` fails.
pub fn write_bvecs(vectors: &Vectors, out: impl Write) -> Result<(), VectorError> {
    let fits = |value: &f32| value.fract() == 0.0 && (0.0..=255.0).contains(value);
    if let Some(at) = vectors.values().par_iter().position_first(|value| !fits(value)) {
        return Err(VectorError::NotByte {
            vector: at / vectors.width(),
            component: at % vectors.width(),
            value: vectors.values()[at],
        });
    }
    write(vectors, out, |value| [*value as u8])
}

/// Writes neighbours as `.ivecs`; [`NONE`](super::NONE) becomes -1.
///
/// # Errors
/// [`VectorError::Write`] where `out` fails; it has a part of the neighbours then.
pub fn write_ivecs(neighbours: &Neighbours, out: impl Write) -> Result<(), VectorError> {
    write(neighbours, out, |id| id.to_le_bytes())
}
