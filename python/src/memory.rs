//! Memory of Python objects, and the types of elements.

use gpuvm::ElementType;
use pyo3::prelude::*;

use crate::errors;

/// The memory of a contiguous NumPy array of bytes, which is kept with whatever it is a view of. NumPy tells the address, because the
/// stable ABI of Python 3.9 has no buffers.
pub struct Memory {
    _array: Py<PyAny>,
    base: *mut u8,
    bytes: usize,
    writable: bool,
}

// SAFETY: the address is of memory that `_array` keeps; who dereferences it says why that is right.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// That of `array`, a one-dimensional array of `uint8`.
    ///
    /// # Errors
    /// `LayoutError` for anything else, as the package never passes it.
    pub fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let expected = py.import("numpy")?.getattr("ndarray")?;
        let interface = array.getattr("__array_interface__")?;
        let (address, read_only): (usize, bool) = interface.get_item("data")?.extract()?;
        let shape: Vec<usize> = interface.get_item("shape")?.extract()?;
        let typestr: String = interface.get_item("typestr")?.extract()?;
        let strides = interface.get_item("strides")?;
        match (shape.as_slice(), typestr.as_str()) {
            ([bytes], "|u1") if array.is_instance(&expected)? && strides.is_none() => Ok(Self {
                _array: array.clone().unbind(),
                base: std::ptr::with_exposed_provenance_mut(address),
                bytes: *bytes,
                writable: !read_only,
            }),
            _ => Err(errors::layout(format!(
                "an array of bytes is wanted, not {typestr} of shape {shape:?}"
            ))),
        }
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// All bytes, to be read.
    pub fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the array keeps the memory. As with NumPy's own copies, Python code that writes an array while another thread copies it
        // gets a mixture.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }

    /// All bytes, to be written.
    ///
    /// # Errors
    /// `LayoutError` for memory that is read-only.
    pub fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        if !self.writable {
            return Err(errors::layout("the array to copy into is read-only".into()));
        }
        if self.bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the array keeps the memory, which may be written; the package passes arrays that it has just made, and nothing else has.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) })
    }
}

/// The element type that NumPy describes by its kind's letter, its bytes, its alignment and its name.
///
/// # Errors
/// `ArgumentError` for a type that kernels do not have.
pub fn element(kind: &str, bytes: usize, align: usize, name: &str) -> PyResult<ElementType> {
    Ok(match (kind, bytes) {
        ("b", 1) | ("u", 1) => ElementType::U8,
        ("u", 2) => ElementType::U16,
        ("u", 4) => ElementType::U32,
        ("u", 8) => ElementType::U64,
        ("i", 1) => ElementType::I8,
        ("i", 2) => ElementType::I16,
        ("i", 4) => ElementType::I32,
        ("i", 8) => ElementType::I64,
        ("f", 4) => ElementType::F32,
        ("f", 8) => ElementType::F64,
        ("f" | "c" | "V", bytes) if bytes > 0 => ElementType::structure(name, bytes, align.max(1)),
        _ => {
            return Err(errors::argument(format!(
                "elements of type {name} are nothing that a kernel takes"
            )));
        }
    })
}

/// What describes an element type: kind, bytes, alignment, name.
pub type Described = (String, usize, usize, String);

/// The element type of a description.
///
/// # Errors
/// As [`element`].
pub fn described((kind, bytes, align, name): &Described) -> PyResult<ElementType> {
    element(kind, *bytes, *align, name)
}
