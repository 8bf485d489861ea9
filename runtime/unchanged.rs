//! Kernels that came as PTX, as they were written: for launches whose arrays all lie as plain memory.

use std::{collections::BTreeMap, sync::Arc};

use gpuvm_gpu::{Kernel as GpuKernel, Module as _, ParamInfo, PtxKernel};
use gpuvm_ptx::{AccessBases, FunctionReport};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Result},
    gpu::PagedGpu,
    texts::{Part, Texts, described_param},
};

/// A form of the texts that is made for the first launch that wants it.
pub(crate) struct Unchanged {
    gpu: Arc<PagedGpu>,
    name: String,
    texts: Vec<OfText>,
    /// By their names, those that may be launched so.
    bases: BTreeMap<String, AccessBases>,
    made: Mutex<Option<Arc<Texts>>>,
}

/// A text, and those of its kernels that may be launched as they are.
struct OfText {
    text: Vec<u8>,
    kernels: Vec<Known>,
}

struct Known {
    name: String,
    symbol: String,
    params: Vec<ParamInfo>,
}

impl Unchanged {
    /// Of no texts yet.
    pub fn new(gpu: &Arc<PagedGpu>, name: &str) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            name: name.to_owned(),
            texts: Vec::new(),
            bases: BTreeMap::new(),
            made: Mutex::default(),
        }
    }

    /// One more text, with the kernels that it has by these names.
    pub fn add<'a>(&mut self, text: &[u8], kernels: impl Iterator<Item = (&'a String, &'a FunctionReport)>) {
        let mut known = Vec::new();
        for (name, function) in kernels {
            let Some(bases) = &function.bases else { continue };
            self.bases.insert(name.clone(), bases.clone());
            known.push(Known {
                name: name.clone(),
                symbol: function.name.clone(),
                params: function.params.iter().map(described_param).collect(),
            });
        }
        if !known.is_empty() {
            self.texts.push(OfText {
                text: text.to_vec(),
                kernels: known,
            });
        }
    }

    /// On what a kernel's accesses are based, if it may be launched as it is.
    pub fn bases(&self, name: &str) -> Option<&AccessBases> {
        self.bases.get(name)
    }

    /// A kernel as it is.
    ///
    /// # Errors
    /// As of loading the texts.
    pub fn kernel(&self, name: &str) -> Result<Arc<dyn GpuKernel>> {
        let mut made = self.made.lock();
        let texts = match &*made {
            Some(texts) => Arc::clone(texts),
            None => Arc::clone(made.insert(Arc::new(self.make()?))),
        };
        drop(made);
        texts.kernel(name).doing(|| format!("looking up kernel `{name}`"))
    }

    fn make(&self) -> Result<Texts> {
        let doing = || format!("loading {} as it is, for arrays that lie in frames", self.name);
        let mut parts = Vec::new();
        for OfText { text, kernels } in &self.texts {
            let kernel = |known: &Known| PtxKernel {
                name: known.name.clone(),
                symbol: known.symbol.clone(),
                params: known.params.clone(),
            };
            let kernels: Vec<_> = kernels.iter().map(kernel).collect();
            let text = String::from_utf8_lossy(text);
            let module = self.gpu.device.load_ptx(&self.name, &text, &kernels, &[], None);
            parts.push(Part::of(self.gpu.map_device_lost(module.doing(doing))?, kernels));
        }
        Ok(Texts {
            name: self.name.clone(),
            parts,
        })
    }
}
