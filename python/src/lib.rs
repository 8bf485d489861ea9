//! The core of the Python package `gpuvm`: what is the package's own, by CPython's stable ABI. Everything that users see is in the folder
//! `gpuvm` beside this one.

mod apart;
mod array;
mod buffer;
mod dlpack;
mod elastic;
mod errors;
mod family;
mod formats;
mod kernel;
mod launch;
mod memory;
mod rows;
mod settings;
mod slot;
mod slots;
mod sources;
mod vm;

use pyo3::prelude::*;

/// What the package is made of.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<vm::Vm>()?;
    module.add_class::<array::Region>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<elastic::Elastic>()?;
    module.add_class::<slots::SlotCache>()?;
    module.add_class::<kernel::Module>()?;
    module.add_class::<kernel::Kernel>()?;
    module.add_class::<launch::Launch>()?;
    module.add_class::<launch::Stream>()?;
    module.add_class::<formats::Columns>()?;
    module.add_class::<formats::Part>()?;
    module.add_function(wrap_pyfunction!(formats::tensors_of, module)?)?;
    module.add_function(wrap_pyfunction!(settings::settings, module)?)?;
    module.add_function(wrap_pyfunction!(sources::operation, module)?)?;
    module.add_function(wrap_pyfunction!(sources::look_for_nvrtc_in, module)?)?;
    module.add_function(wrap_pyfunction!(sources::precompile, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
