//! Kernels that came as PTX.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use gpuvm_gpu::{GpuError, ParamInfo, PtxKernel};
use gpuvm_ptx::{EmbeddedPtx, FunctionReport, Left, Parameter, QUIET, WINDOW, best, is_binary, rewrite};

use crate::{
    error::{Doing, Result},
    gpu::PagedGpu,
    kernel::{AtHome, Module},
};

/// See [`VmGpu::load_ptx`](crate::VmGpu::load_ptx).
pub(crate) fn load(gpu: &Arc<PagedGpu>, name: &str, ptx: &[u8]) -> Result<Module> {
    let texts = match is_binary(ptx) {
        true => embedded_for(gpu, ptx).map_err(|cause| GpuError::ModuleLoad {
            module: name.to_owned(),
            cause,
        }),
        false => Ok(vec![Cow::Borrowed(ptx)]),
    };
    let texts = texts.doing(|| format!("loading {name}"))?;
    let (mut parts, mut at_home) = (Vec::new(), AtHome::new());
    for text in &texts {
        parts.extend(load_text(gpu, name, text, &mut at_home)?);
    }
    let module = Texts {
        name: name.to_owned(),
        parts,
    };
    Ok(Module::of_ptx(Arc::clone(gpu), Arc::new(module), at_home))
}

/// The texts that a program, a library or an object has for this GPU, one of each source file.
fn embedded_for(gpu: &PagedGpu, bytes: &[u8]) -> std::result::Result<Vec<Cow<'static, [u8]>>, String> {
    let found = gpuvm_ptx::embedded(bytes).map_err(|error| error.to_string())?;
    let capability = gpu.capabilities().compute_capability;
    let own = |texts: &Vec<EmbeddedPtx>| match capability {
        Some((major, minor)) => best(texts, 10 * major + minor).cloned(),
        // A simulated GPU has no architecture. The oldest text is the plainest.
        None => texts.iter().min_by_key(|text| text.architecture).cloned(),
    };
    let texts: Vec<_> = found.iter().filter_map(own).map(|own| Cow::Owned(own.text)).collect();
    match (
        texts.is_empty(),
        found.iter().flatten().map(|text| text.architecture).min(),
    ) {
        (false, _) => Ok(texts),
        (true, Some(oldest)) => Err(format!(
            "its PTX is for GPUs of architecture {oldest} and later: compile it with `-gencode arch=compute_75,code=compute_75`"
        )),
        (true, None) => Err("it has no PTX: compile it with `-gencode arch=compute_75,code=compute_75`".into()),
    }
}

/// The kernels of one or several texts.
struct Texts {
    name: String,
    parts: Vec<Part>,
}

/// Kernels of one text, in one form.
struct Part {
    module: Arc<dyn gpuvm_gpu::Module>,
    /// What they are called, by their names in the text.
    symbols: BTreeMap<String, String>,
}

impl gpuvm_gpu::Module for Texts {
    fn kernel(&self, name: &str) -> std::result::Result<Arc<dyn gpuvm_gpu::Kernel>, GpuError> {
        for Part { module, symbols } in &self.parts {
            let name = symbols.get(name).map_or(name, |name| name);
            if symbols.values().any(|known| known == name) {
                return module.kernel(name);
            }
        }
        let names = self.parts.iter().flat_map(|part| part.symbols.values());
        Err(GpuError::KernelNotFound {
            name: name.to_owned(),
            module: self.name.clone(),
            known: names.filter(|name| !name.starts_with(QUIET)).cloned().collect(),
        })
    }
}

/// Loads a text: rewritten, and as it is for those of its kernels that `at_home` gets, with the reason.
fn load_text(gpu: &PagedGpu, name: &str, ptx: &[u8], at_home: &mut AtHome) -> Result<Vec<Part>> {
    let doing = || format!("loading {name}");
    let rewritten = rewrite(ptx, &gpu.table_layout()?).map_err(|error| GpuError::ModuleLoad {
        module: name.to_owned(),
        cause: error.to_string(),
    });
    let rewritten = rewritten.doing(doing)?;
    let (entries, functions): (Vec<&FunctionReport>, Vec<_>) = rewritten
        .report
        .functions
        .iter()
        .partition(|function| function.is_entry);
    // Any kernel may call them.
    let of_all = functions.into_iter().find_map(uses_home);
    let names: Vec<&str> = entries.iter().map(|function| source_name(&function.name)).collect();
    let (mut kernels, mut as_they_are) = (Vec::new(), Vec::new());
    for (function, name) in std::iter::zip(entries, &names) {
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
        if let Some(reason) = uses_home(function).or_else(|| of_all.clone()) {
            at_home.insert(name.to_owned(), reason);
            as_they_are.push(own);
            continue;
        }
        kernels.push(own);
        kernels.extend(
            function
                .quiet
                .iter()
                .map(|quiet| kernel(format!("{QUIET}{name}"), quiet)),
        );
    }
    let described = gpu.window()?.described.to_bytes();
    let load = |text: &str, kernels: Vec<PtxKernel>, variables: &[(&str, &[u8])]| {
        let module = gpu.device.load_ptx(name, text, &kernels, variables);
        let symbols = kernels.into_iter().map(|kernel| (kernel.symbol, kernel.name));
        Ok(Part {
            module: gpu.or_lost(module.doing(doing))?,
            symbols: symbols.collect(),
        })
    };
    let mut parts = Vec::new();
    if !kernels.is_empty() || as_they_are.is_empty() {
        parts.push(load(&rewritten.text, kernels, &[(WINDOW, &described)])?);
    }
    if !as_they_are.is_empty() {
        parts.push(load(&String::from_utf8_lossy(ptx), as_they_are, &[])?);
    }
    Ok(parts)
}

/// Why a function needs pages at home: an instruction that may access paged memory and looks no page up. Nothing is mapped at the window.
fn uses_home(function: &FunctionReport) -> Option<String> {
    // A function without a body is one of the GPU's own library, such as `vprintf`: it is given no address of paged memory.
    let left = |left: &&gpuvm_ptx::LeftAlone| left.why.may_use_home() && left.why != Left::OutsideCall;
    let found = function.left.iter().find(left)?;
    Some(format!(
        "{} of `{}` ({}) may access paged memory and looks no page up: {}",
        found.opcode, function.name, found.at, found.why
    ))
}

fn described(param: &Parameter) -> ParamInfo {
    ParamInfo::of_ptx(param.bytes, param.align, &param.type_name)
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
