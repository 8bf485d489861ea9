//! Kernels that came as PTX.

use std::sync::Arc;

use gpuvm_gpu::{GpuError, ParamInfo, PtxKernel};
use gpuvm_ptx::{FunctionReport, Left, Parameter, QUIET, Report, WINDOW, rewrite};

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
    let entries: Vec<&FunctionReport> = rewritten.report.functions.iter().filter(|f| f.is_entry).collect();
    let names: Vec<&str> = entries.iter().map(|function| source_name(&function.name)).collect();
    let kernels: Vec<PtxKernel> = std::iter::zip(&entries, &names)
        .flat_map(|(function, name)| {
            // Overloads and templates have one name in their source: then it is that of the text.
            let name = match names.iter().filter(|other| *other == name).count() {
                1 => *name,
                _ => &*function.name,
            };
            let kernel = |name: String, symbol: &String| PtxKernel {
                name,
                symbol: symbol.clone(),
                params: function.params.iter().map(described).collect(),
            };
            let own = kernel(name.to_owned(), &function.name);
            let quiet = function
                .quiet
                .iter()
                .map(move |quiet| kernel(format!("{QUIET}{name}"), quiet));
            std::iter::once(own).chain(quiet)
        })
        .collect();
    let window = gpu.window()?;
    let described = window.described.to_bytes();
    let module = gpu
        .device
        .load_ptx(name, &rewritten.text, &kernels, &[(WINDOW, &described)]);
    let module = gpu.or_lost(module.doing(doing))?;
    let symbols = kernels.into_iter().map(|kernel| (kernel.symbol, kernel.name));
    Ok(Module::rewritten(Arc::clone(gpu), module, symbols.collect()))
}

fn described(param: &Parameter) -> ParamInfo {
    ParamInfo::of_ptx(param.bytes, param.align, &param.type_name)
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

/// The name in its source of a kernel that the Itanium C++ ABI calls `symbol`: the last of a nested name's. Other names stay as they are.
fn source_name(symbol: &str) -> &str {
    let Some(rest) = symbol.strip_prefix("_Z") else {
        return symbol;
    };
    let (mut rest, mut name) = (rest.strip_prefix('N').unwrap_or(rest), symbol);
    let is_nested = symbol.starts_with("_ZN");
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let length = rest[..digits].parse::<usize>().ok();
        let Some((one, behind)) = length.and_then(|length| rest[digits..].split_at_checked(length)) else {
            return name;
        };
        (name, rest) = (one, behind);
        if !is_nested {
            return name;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_the_names_of_their_sources() {
        for (symbol, name) in [
            ("triton_add", "triton_add"),
            ("_Z3sum2inIfEyPd", "sum"),
            ("_ZN3one3two5scaleEPf", "scale"),
            ("_Z4spmvIfEvPT_", "spmv"),
            ("_Z", "_Z"),
            ("_ZN", "_ZN"),
            ("_Z99short", "_Z99short"),
            ("_Z99999999999999999999a", "_Z99999999999999999999a"),
        ] {
            assert_eq!(source_name(symbol), name);
        }
    }
}
