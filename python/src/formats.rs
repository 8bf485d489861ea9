//! What files of other programs have, and where it lies in them.

use std::{borrow::Cow, error::Error as _, path::PathBuf};

use gpuvm_formats::{ArrowFile, Column, Elements, FormatError, SafeTensors};
use pyo3::prelude::*;

use crate::errors;

/// Elements in a file: their type's name, how many there are, where they begin, and how many bytes they are.
type Place = (String, u64, u64, u64);

fn place_of(elements: &Elements) -> Place {
    let dtype = elements.dtype().to_string();
    (dtype, elements.len(), elements.offset_bytes(), elements.bytes())
}

/// A column's part in a record batch, or what is nested in one.
#[pyclass(frozen, get_all)]
pub struct Part {
    rows: u64,
    nulls: u64,
    values: Place,
    validity: Option<Place>,
    offsets: Option<Place>,
    list_size: Option<u64>,
    items: Option<Py<Part>>,
    dictionary: Vec<Py<Part>>,
    within: Vec<Place>,
    buffers: Vec<Place>,
}

fn part_of(py: Python<'_>, column: &Column) -> PyResult<Py<Part>> {
    let items = column.items().map(|items| part_of(py, items)).transpose()?;
    let dictionary = column.dictionary().iter().map(|part| part_of(py, part));
    let part = Part {
        rows: column.rows(),
        nulls: column.nulls(),
        values: place_of(column.values()),
        validity: column.validity().map(place_of),
        offsets: column.offsets().map(place_of),
        list_size: column.list_size(),
        items,
        dictionary: dictionary.collect::<PyResult<_>>()?,
        within: column.within().iter().map(place_of).collect(),
        buffers: column.buffers().iter().map(place_of).collect(),
    };
    Py::new(py, part)
}

fn in_full(error: &FormatError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn raised(error: FormatError) -> PyErr {
    match error {
        FormatError::Region(error) => errors::of(error),
        other => errors::file(in_full(&other)),
    }
}

/// The tensors of a `.safetensors` file, in the order of their bytes: name, shape, place; and its notes.
///
/// # Errors
/// `FileError`.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "it is Python's lists and tuples")]
pub fn tensors_of(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<(String, Vec<u64>, Place)>, Vec<(String, String)>)> {
    let file = py.detach(|| SafeTensors::open(path)).map_err(raised)?;
    let tensors = file.tensors().iter().map(|tensor| {
        let place = place_of(tensor.elements());
        (tensor.name().to_owned(), tensor.shape().to_vec(), place)
    });
    let notes = file.notes().iter().map(|(key, value)| (key.clone(), value.clone()));
    Ok((tensors.collect(), notes.collect()))
}

/// An Arrow IPC file. Columns are looked up when they are asked for.
#[pyclass(frozen)]
pub struct Columns(ArrowFile);

#[pymethods]
impl Columns {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| ArrowFile::open(path)).map(Self).map_err(raised)
    }

    /// The columns' names.
    fn names(&self) -> Vec<String> {
        self.0.columns().map(Cow::into_owned).collect()
    }

    /// A column's parts, one for each record batch.
    fn parts(&self, py: Python<'_>, name: &str) -> PyResult<Vec<Py<Part>>> {
        let parts = py.detach(|| self.0.column(name)).map_err(raised)?;
        parts.iter().map(|part| part_of(py, part)).collect()
    }

    /// The parts of column `number` of the names.
    fn parts_at(&self, py: Python<'_>, number: usize) -> PyResult<Vec<Py<Part>>> {
        let parts = py.detach(|| self.0.column_at(number)).map_err(raised)?;
        parts.iter().map(|part| part_of(py, part)).collect()
    }
}
