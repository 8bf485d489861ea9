//! Texts of PTX that are loaded, and what their kernels are called.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpuvm_gpu::{GpuError, ParamInfo, PtxKernel};
use gpuvm_ptx::{FunctionReport, Item, Left, Parameter, QUIET, Space};

/// Kernels by their names, which use pages at home, since an instruction of theirs cannot look pages up.
pub(crate) type AtHome = BTreeMap<String, String>;

/// What kernels are called, by their names in their texts. Overloads, templates and kernels of several files may have one name in their
/// source: then it is that of the text.
pub(crate) fn names<'a>(functions: impl Iterator<Item = &'a FunctionReport>) -> BTreeMap<String, String> {
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

/// The kernels of one or several texts.
pub(crate) struct Texts {
    pub name: String,
    pub parts: Vec<Part>,
}

/// Kernels of one text, in one form.
pub(crate) struct Part {
    module: Arc<dyn gpuvm_gpu::Module>,
    /// What they are called, by their names in the text.
    symbols: BTreeMap<String, String>,
}

impl Part {
    pub fn of(module: Arc<dyn gpuvm_gpu::Module>, kernels: Vec<PtxKernel>) -> Self {
        let symbols = kernels.into_iter().map(|kernel| (kernel.symbol, kernel.name));
        Self {
            module,
            symbols: symbols.collect(),
        }
    }
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

/// Whether a text has variables that kernels may write.
pub(crate) fn has_variables(text: &str) -> bool {
    let of_global = |item: &Item<'_>| matches!(item, Item::Variable(variable) if variable.space == Space::Global);
    gpuvm_ptx::Module::parse(text).is_ok_and(|module| module.items.iter().any(of_global))
}

/// Why a function needs pages at home: an instruction that may access paged memory and looks no page up. Nothing is mapped at the window.
pub(crate) fn uses_home(function: &FunctionReport) -> Option<String> {
    // A function without a body is one of the GPU's own library, such as `vprintf`: it is given no address of paged memory.
    let left = |left: &&gpuvm_ptx::LeftAlone| left.why.may_use_home() && left.why != Left::OutsideCall;
    let found = function.left.iter().find(left)?;
    Some(format!(
        "{} of `{}` ({}) may access paged memory and looks no page up: {}",
        found.opcode, function.name, found.at, found.why
    ))
}

pub(crate) fn described_param(param: &Parameter) -> ParamInfo {
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
