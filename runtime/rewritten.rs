//! Kernels that came as PTX.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpuvm_gpu::{GpuError, ParamInfo, PtxKernel};
use gpuvm_ptx::{
    EmbeddedPtx, FunctionReport, Item, Left, Parameter, QUIET, Reach, Rewritten, Space, WINDOW, best, is_binary,
    rewrite,
};

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
    let layout = gpu.table_layout()?;
    let rewritten = texts.iter().map(|text| rewrite(text, &layout));
    let rewritten = rewritten.collect::<std::result::Result<Vec<_>, _>>();
    let rewritten = rewritten.map_err(|error| GpuError::ModuleLoad {
        module: name.to_owned(),
        cause: error.to_string(),
    });
    let rewritten = rewritten.doing(|| format!("loading {name}"))?;
    let mut loading = Loading {
        gpu,
        name,
        names: names(rewritten.iter().flat_map(|one| &one.report.functions)),
        at_home: AtHome::new(),
    };
    let mut parts = Vec::new();
    for (text, rewritten) in std::iter::zip(&texts, rewritten) {
        parts.extend(loading.load(text, &rewritten)?);
    }
    let at_home = loading.at_home;
    let module = Texts {
        name: name.to_owned(),
        parts,
    };
    Ok(Module::of_ptx(Arc::clone(gpu), Arc::new(module), at_home))
}

/// What kernels are called, by their names in their texts. Overloads, templates and kernels of several files may have one name in their
/// source: then it is that of the text.
fn names<'a>(functions: impl Iterator<Item = &'a FunctionReport>) -> BTreeMap<String, String> {
    let symbols: BTreeSet<&str> = functions.filter(|f| f.is_entry).map(|f| &*f.name).collect();
    let mut mentions: BTreeMap<&str, usize> = BTreeMap::new();
    for symbol in &symbols {
        *mentions.entry(source_name(symbol)).or_default() += 1;
    }
    let name = |symbol: &str| match source_name(symbol) {
        name if mentions[name] == 1 => name.to_owned(),
        _ => symbol.to_owned(),
    };
    symbols
        .iter()
        .map(|symbol| ((*symbol).to_owned(), name(symbol)))
        .collect()
}

/// The texts that a program, a library or an object has for this GPU, one of each source file.
fn embedded_for(gpu: &PagedGpu, bytes: &[u8]) -> std::result::Result<Vec<Cow<'static, [u8]>>, String> {
    let found = gpuvm_ptx::embedded(bytes).map_err(|error| error.to_string())?;
    let capability = gpu.capabilities().compute_capability;
    let own = |texts: &Vec<EmbeddedPtx>| match capability {
        Some((major, minor)) => best(texts, 10 * major + minor).cloned(),
        // A simulated GPU has no architecture. The oldest text is the plainest.
        None => texts
            .iter()
            .min_by_key(|text| (text.reach != Reach::Later, text.architecture))
            .cloned(),
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
        let known = || self.parts.iter().flat_map(|part| &part.symbols);
        let name = known()
            .find(|(symbol, _)| *symbol == name)
            .map_or(name, |(_, name)| name);
        let has = |part: &&Part| part.symbols.values().any(|known| known == name);
        match self.parts.iter().find(has) {
            Some(part) => part.module.kernel(name),
            None => Err(GpuError::KernelNotFound {
                name: name.to_owned(),
                module: self.name.clone(),
                known: known()
                    .map(|(_, name)| name.clone())
                    .filter(|name| !name.starts_with(QUIET))
                    .collect(),
            }),
        }
    }
}

/// Texts that are being loaded.
struct Loading<'a> {
    gpu: &'a PagedGpu,
    name: &'a str,
    /// What kernels are called that no part has yet, by their names in the text.
    names: BTreeMap<String, String>,
    at_home: AtHome,
}

impl Loading<'_> {
    /// Loads a text: rewritten, and as it is for those of its kernels that use pages at home.
    fn load(&mut self, ptx: &[u8], rewritten: &Rewritten) -> Result<Vec<Part>> {
        let original = String::from_utf8_lossy(ptx);
        let (entries, functions): (Vec<&FunctionReport>, Vec<_>) = rewritten
            .report
            .functions
            .iter()
            .partition(|function| function.is_entry);
        // Any kernel may call them, and what is in variables all of them have to see: there is one module then.
        let of_all = functions.into_iter().find_map(uses_home);
        let of_all = of_all.or_else(|| match has_variables(&original) {
            true => entries.iter().find_map(|function| uses_home(function)),
            false => None,
        });
        let (mut kernels, mut as_they_are) = (Vec::new(), Vec::new());
        for function in entries {
            // A template's kernel that several texts have is the first one's.
            let Some(name) = self.names.remove(&function.name) else {
                continue;
            };
            let kernel = |name: String, symbol: &String| PtxKernel {
                name,
                symbol: symbol.clone(),
                params: function.params.iter().map(described).collect(),
            };
            if let Some(reason) = uses_home(function).or_else(|| of_all.clone()) {
                self.at_home.insert(name.clone(), reason);
                as_they_are.push(kernel(name, &function.name));
                continue;
            }
            kernels.extend(
                function
                    .quiet
                    .iter()
                    .map(|quiet| kernel(format!("{QUIET}{name}"), quiet)),
            );
            kernels.push(kernel(name, &function.name));
        }
        let mut parts = Vec::new();
        if !kernels.is_empty() || as_they_are.is_empty() {
            let described = self.gpu.window()?.described.to_bytes();
            parts.push(self.part(&rewritten.text, kernels, &[(WINDOW, &described)])?);
        }
        if !as_they_are.is_empty() {
            parts.push(self.part(&original, as_they_are, &[])?);
        }
        Ok(parts)
    }

    fn part(&self, text: &str, kernels: Vec<PtxKernel>, variables: &[(&str, &[u8])]) -> Result<Part> {
        let module = self.gpu.device.load_ptx(self.name, text, &kernels, variables);
        let module = self.gpu.or_lost(module.doing(|| format!("loading {}", self.name)))?;
        let symbols = kernels.into_iter().map(|kernel| (kernel.symbol, kernel.name));
        Ok(Part {
            module,
            symbols: symbols.collect(),
        })
    }
}

/// Whether a text has variables that kernels may write.
fn has_variables(text: &str) -> bool {
    let of_global = |item: &Item<'_>| matches!(item, Item::Variable(variable) if variable.space == Space::Global);
    gpuvm_ptx::Module::parse(text).is_ok_and(|module| module.items.iter().any(of_global))
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
