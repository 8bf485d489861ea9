//! The sources of the operations that are ready.

use pyo3::prelude::*;

use crate::errors;

/// A header's or a macro's name, with its text.
type Named = (String, String);

const ACCESS: (&str, &str) = ("access.cuh", include_str!("../../workloads/src/apps/access.cuh"));

/// Source text, headers and macros of an operation.
#[pyfunction]
pub fn operation(name: &str) -> PyResult<(&'static str, Vec<Named>, Vec<Named>)> {
    let text = match name {
        "take" => include_str!("../ops/take.cu"),
        _ => return Err(errors::argument(format!("there is no operation `{name}`"))),
    };
    Ok((text, vec![(ACCESS.0.into(), ACCESS.1.into())], Vec::new()))
}
