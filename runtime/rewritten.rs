//! Kernels that came as PTX.

use std::sync::Arc;

use gpuvm_gpu::{GpuError, PtxKernel};
use gpuvm_ptx::{FunctionReport, Left, Report, WINDOW, rewrite};

use crate::{
    error::{Doing, Result},
    gpu::PagedGpu,
    kernel::Module,
};

/// See [`VmGpu::load_ptx`](crate::VmGpu::load_ptx).
pub(crate) fn load(gpu: &Arc<PagedGpu>, name: &str, ptx: &[u8]) -> Result<Module> {
    let doing = || format!("loading {name}");
    let refused = |cause| GpuError::ModuleLoad {
        module: name.to_owned(),
        cause,
    };
    let rewritten = rewrite(ptx, &gpu.table_layout()?).map_err(|error| refused(error.to_string()));
    let rewritten = rewritten.doing(doing)?;
    check(&rewritten.report).map_err(refused).doing(doing)?;
    let entries = rewritten.report.functions.iter().filter(|function| function.is_entry);
    let kernel = |function: &FunctionReport| PtxKernel {
        name: function.name.clone(),
        params: function.params.clone(),
    };
    let kernels: Vec<PtxKernel> = entries.map(kernel).collect();
    let window = gpu.window()?;
    let described = window.described.to_bytes();
    let module = gpu
        .device
        .load_ptx(name, &rewritten.text, &kernels, &[(WINDOW, &described)]);
    let module = gpu.or_lost(module.doing(doing))?;
    Ok(Module::rewritten(Arc::clone(gpu), module))
}

/// Refuses what would use an address of the window as it is: nothing is mapped there.
fn check(report: &Report) -> std::result::Result<(), String> {
    for function in &report.functions {
        // A function without a body is one of the GPU's own library, such as `vprintf`: it is given no address of paged memory.
        let left = |left: &&gpuvm_ptx::LeftAlone| left.why.may_use_home() && left.why != Left::OutsideCall;
        if let Some(left) = function.left.iter().find(left) {
            return Err(format!(
                "{} of `{}` ({}) may access paged memory by an instruction that looks no page up: {}",
                left.opcode, function.name, left.at, left.why
            ));
        }
    }
    Ok(())
}
