//! The sources of the operations that are ready.

use gpuvm::{CompileOptions, Vm};
use pyo3::prelude::*;

use crate::errors::{self, Raised};

/// Names with texts: headers, or macros.
type Named = Vec<(&'static str, &'static str)>;

const ACCESS: (&str, &str) = ("access.cuh", include_str!("../../workloads/src/apps/access.cuh"));
const ROWS: (&str, &str) = ("rows.cuh", include_str!("../../workloads/src/rows.cuh"));
const SEARCH: (&str, &str) = ("search.cuh", include_str!("../../workloads/src/search.cuh"));

/// Edges of a piece of a long row, and counts at the head of the list of pieces.
const BFS_DEFINES: [(&str, &str); 2] = [("ROW_PIECE_EDGES", "512"), ("ROW_LIST_HEAD", "2")];

/// Source text, headers and macros of an operation.
///
/// # Errors
/// `ArgumentError` for a name that there is not.
#[pyfunction]
pub fn operation(name: &str) -> PyResult<(&'static str, Named, Named)> {
    let alone = |text| Ok((text, vec![ACCESS], Vec::new()));
    match name {
        "reduce" => alone(include_str!("../ops/reduce.cu")),
        "rows" => alone(include_str!("../ops/rows.cu")),
        "spmv" => alone(include_str!("../ops/spmv.cu")),
        "knn" => alone(include_str!("../ops/knn.cu")),
        "bfs" => Ok((
            include_str!("../../workloads/src/bfs.cu"),
            vec![ACCESS, ROWS, SEARCH],
            BFS_DEFINES.into(),
        )),
        _ => Err(errors::argument(format!("there is no operation `{name}`"))),
    }
}

/// Where NVRTC may lie.
#[pyfunction]
pub fn look_for_nvrtc_in(folder: String) {
    gpuvm::look_for_nvrtc_in(folder);
}

/// A source as `Vm.module` takes it: its name, text and kernels, headers, macros.
type Whole = (
    String,
    String,
    Vec<String>,
    Vec<(String, String)>,
    Vec<(String, Option<String>)>,
);

/// Compiles a source for NVIDIA GPUs of a compute capability into a folder, or without one the runtime's own kernels.
#[pyfunction(signature = (folder, architecture, source = None))]
pub fn precompile(py: Python<'_>, folder: String, architecture: u32, source: Option<Whole>) -> PyResult<()> {
    py.detach(|| {
        let precompiler = Vm::builder().precompiler(folder, architecture);
        let Some((name, text, kernels, headers, defines)) = source else {
            return precompiler.own();
        };
        let options = CompileOptions {
            headers,
            defines,
            ..CompileOptions::default()
        };
        let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
        precompiler.source(&name, &text, &kernels, &options)
    })
    .raised()
}
