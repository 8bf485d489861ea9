//! Kernels that came as PTX, over arrays whose pages come by faults: their accesses are calls of the device library.

use std::sync::{Arc, OnceLock};

use gpuvm_gpu::{GpuError, Module as _, ParamInfo, PtxKernel, Source};
use gpuvm_layouts::{CalledArray, CalledHead};
use gpuvm_ptx::{FunctionReport, Rewritten, WINDOW, rewrite_to_calls};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Result},
    gpu::PagedGpu,
    texts::{AtHome, Part, Texts, described_param, has_variables, names, uses_home},
};

/// Most arrays of a launch that calls for pages.
pub(crate) const CALLED_MAX: usize = 16;
/// Bytes of what such a kernel is given behind its own arguments.
pub(crate) const CALLED_BYTES: usize = size_of::<CalledHead>() + CALLED_MAX * size_of::<CalledArray>();

/// What launches over arrays need whose pages come by faults: a form of the texts that is made for the first of them.
pub(crate) struct Calling {
    gpu: Arc<PagedGpu>,
    name: String,
    texts: Vec<Vec<u8>>,
    /// A text has variables that its kernels may write, and each form would have them for itself: all launches run one.
    shares_variables: bool,
    /// Which form that is to be where nothing speaks for either.
    prefers_calls: bool,
    /// Which form it is, once it is known.
    calls: OnceLock<bool>,
    made: Mutex<Option<Arc<Called>>>,
}

/// The form that calls for pages.
struct Called {
    texts: Texts,
    /// Why it has not all kernels, by their names.
    refused: AtHome,
}

impl Calling {
    /// Of texts of which nothing is made yet; `all_call`: each kernel has this form.
    pub fn new(gpu: &Arc<PagedGpu>, name: &str, texts: Vec<Vec<u8>>, all_call: bool) -> Self {
        let has_variables = |text: &Vec<u8>| has_variables(&String::from_utf8_lossy(text));
        Self {
            gpu: Arc::clone(gpu),
            name: name.to_owned(),
            shares_variables: texts.iter().any(has_variables),
            prefers_calls: all_call && !gpu.looks_up_by_default(),
            texts,
            calls: OnceLock::new(),
            made: Mutex::default(),
        }
    }

    /// Whether each launch may run either form.
    pub fn is_free(&self) -> bool {
        !self.shares_variables
    }

    /// Whether a launch runs the form that calls for pages; `needed`: it has arrays that cannot be looked up.
    ///
    /// # Errors
    /// The variables are in use in the other form.
    pub fn calls(&self, needed: bool) -> std::result::Result<bool, &'static str> {
        if !self.shares_variables {
            return Ok(needed);
        }
        let calls = *self.calls.get_or_init(|| needed || self.prefers_calls);
        match needed && !calls {
            true => Err(
                "its PTX has global variables, which its launches so far have used in the form that looks pages up: load it a second time for such arrays",
            ),
            false => Ok(calls),
        }
    }

    /// A kernel in that form, or why there is none.
    ///
    /// # Errors
    /// As of loading the texts.
    pub fn kernel(&self, name: &str) -> Result<std::result::Result<Arc<dyn gpuvm_gpu::Kernel>, String>> {
        let mut made = self.made.lock();
        let called = match &*made {
            Some(called) => Arc::clone(called),
            None => Arc::clone(made.insert(Arc::new(self.make()?))),
        };
        drop(made);
        if let Some(reason) = called.refused.get(name) {
            return Ok(Err(reason.clone()));
        }
        let kernel = called.texts.kernel(name);
        kernel.doing(|| format!("looking up kernel `{name}`")).map(Ok)
    }

    fn make(&self) -> Result<Called> {
        let layout = self.gpu.table_layout()?;
        let rewritten = self
            .texts
            .iter()
            .map(|text| rewrite_to_calls(text, &layout, CALLED_BYTES as u32));
        let rewritten = rewritten.collect::<std::result::Result<Vec<_>, _>>();
        let rewritten = rewritten.map_err(|error| GpuError::ModuleLoad {
            module: self.name.clone(),
            cause: error.to_string(),
        });
        let doing = || format!("loading {} for arrays whose pages come by faults", self.name);
        let rewritten = rewritten.doing(doing)?;
        let mut names = names(rewritten.iter().flat_map(|one| &one.report.functions));
        let described = self.gpu.window()?.described.to_bytes();
        let source = Source::new("gpuvm_calls.cu", "#include <gpuvm/calls.cuh>\n");
        let options = self.gpu.library_options();
        let (mut parts, mut refused) = (Vec::new(), AtHome::new());
        for Rewritten { text, report } in rewritten {
            let (entries, functions): (Vec<&FunctionReport>, Vec<_>) =
                report.functions.iter().partition(|function| function.is_entry);
            let of_all = functions.into_iter().find_map(uses_home);
            let mut kernels = Vec::new();
            for function in entries {
                let Some(name) = names.remove(&function.name) else {
                    continue;
                };
                if let Some(reason) = uses_home(function).or_else(|| of_all.clone()) {
                    refused.insert(name, reason);
                    continue;
                }
                let mut params: Vec<ParamInfo> = function.params.iter().map(described_param).collect();
                params.push(ParamInfo::of_ptx(CALLED_BYTES as u32, 16, gpuvm_ptx::LAUNCH));
                kernels.push(PtxKernel {
                    name,
                    symbol: function.name.clone(),
                    params,
                });
            }
            let module = self.gpu.device.load_ptx(
                &self.name,
                &text,
                &kernels,
                &[(WINDOW, &described)],
                Some((&source, &options)),
            );
            parts.push(Part::of(self.gpu.map_device_lost(module.doing(doing))?, kernels));
        }
        Ok(Called {
            texts: Texts {
                name: self.name.clone(),
                parts,
            },
            refused,
        })
    }
}
