//! Elements that a graph owns, or that lie in a file's map.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::Mmap;

/// A file's bytes, mapped for as long as an array needs them.
pub(super) type Map = Arc<FileMap>;

/// A file's map, and where the file is.
pub(super) struct FileMap {
    bytes: Mmap,
    path: PathBuf,
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Maps a whole file for reading. The pages are read when they are touched.
pub(super) fn map(file: &File, path: &Path) -> io::Result<Map> {
    // SAFETY: nothing writes through the map, and it lives as long as a slice of it. Rust also asks that the bytes do not change
    // meanwhile, which no system promises for a file: `GraphSpec::load` asks its callers for it, and programs of this repository give
    // a new file the name instead of writing into the old one, whose bytes the map keeps. If another program writes all the same,
    // elements are no longer those that were checked: slices of the host still check every index, a kernel may be led outside its
    // arrays. If another program cuts the file, a touch of a page that is gone ends the process by SIGBUS, as for every map.
    let bytes = unsafe { Mmap::map(file) }?;
    let path = path.to_owned();
    Ok(Arc::new(FileMap { bytes, path }))
}

/// Elements in a vector, or in a file's map.
#[derive(Clone)]
pub(super) enum Array<T> {
    Owned(Vec<T>),
    /// `length` elements from byte `at` on, which is a multiple of their size.
    Mapped {
        map: Map,
        at: usize,
        length: usize,
    },
}

impl<T: Pod> Array<T> {
    /// `length` elements from byte `at` of a map, or `None` where it does not hold them or they are not aligned.
    pub(super) fn mapped(map: &Map, at: u64, length: u64) -> Option<Array<T>> {
        let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
        let end = length.checked_mul(size_of::<T>())?.checked_add(at)?;
        bytemuck::try_cast_slice::<u8, T>(map.get(at..end)?).ok()?;
        Some(Array::Mapped {
            map: Arc::clone(map),
            at,
            length,
        })
    }

    /// The file that holds them, and where in it they begin, in bytes.
    pub(super) fn place(&self) -> Option<(&Path, u64)> {
        match self {
            Array::Owned(_) => None,
            Array::Mapped { map, at, .. } => Some((&map.path, *at as u64)),
        }
    }

    /// The elements as a vector: a copy of those in a map.
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Array::Owned(elements) => elements,
            mapped => mapped.to_vec(),
        }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Array::Owned(elements) => elements,
            Array::Mapped { map, at, length } => bytemuck::cast_slice(&map[*at..*at + *length * size_of::<T>()]),
        }
    }
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(elements: Vec<T>) -> Array<T> {
        Array::Owned(elements)
    }
}

impl<T: Pod + PartialEq> PartialEq for Array<T> {
    fn eq(&self, other: &Array<T>) -> bool {
        **self == **other
    }
}

impl<T: Pod + Eq> Eq for Array<T> {}

impl<T: Pod + fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.iter()).finish()
    }
}
