//! Kernels that came as PTX.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use gpuvm_gpu::{GpuError, PtxKernel};
use gpuvm_ptx::{EmbeddedPtx, FunctionReport, QUIET, Reach, Rewritten, WINDOW, best, is_binary, rewrite};

use crate::{
    calling::Calling,
    error::{Doing, Result},
    gpu::PagedGpu,
    kernel::Module,
    texts::{AtHome, Part, Texts, described_param, has_variables, names, uses_home},
    unchanged::Unchanged,
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
        unchanged: Unchanged::new(gpu, name),
    };
    let mut parts = Vec::new();
    for (text, rewritten) in std::iter::zip(&texts, rewritten) {
        parts.extend(loading.load(text, &rewritten)?);
    }
    let (at_home, unchanged) = (loading.at_home, Arc::new(loading.unchanged));
    let module = Texts {
        name: name.to_owned(),
        parts,
    };
    let texts = texts.into_iter().map(Cow::into_owned).collect();
    let calling = Calling::new(gpu, name, texts, at_home.is_empty());
    Ok(Module::of_ptx(
        Arc::clone(gpu),
        Arc::new(module),
        at_home,
        Some((Arc::new(calling), unchanged)),
    ))
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

/// Texts that are being loaded.
struct Loading<'a> {
    gpu: &'a PagedGpu,
    name: &'a str,
    /// What kernels are called that no part has yet, by their names in the text.
    names: BTreeMap<String, String>,
    at_home: AtHome,
    unchanged: Unchanged,
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
        let (mut kernels, mut as_they_are, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        for function in entries {
            // A template's kernel that several texts have is the first one's.
            let Some(name) = self.names.remove(&function.name) else {
                continue;
            };
            let kernel = |name: String, symbol: &String| PtxKernel {
                name,
                symbol: symbol.clone(),
                params: function.params.iter().map(described_param).collect(),
            };
            if let Some(reason) = uses_home(function).or_else(|| of_all.clone()) {
                self.at_home.insert(name.clone(), reason);
                as_they_are.push(kernel(name, &function.name));
                continue;
            }
            reports.push((name.clone(), function));
            kernels.extend(
                function
                    .quiet
                    .iter()
                    .map(|quiet| kernel(format!("{QUIET}{name}"), quiet)),
            );
            kernels.push(kernel(name, &function.name));
        }
        // What is in variables all forms have to see.
        if !has_variables(&original) {
            let of_text = reports.iter().map(|(name, function)| (name, *function));
            self.unchanged.add(ptx, of_text);
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
        let module = self.gpu.device.load_ptx(self.name, text, &kernels, variables, None);
        let module = self
            .gpu
            .map_device_lost(module.doing(|| format!("loading {}", self.name)))?;
        Ok(Part::of(module, kernels))
    }
}
