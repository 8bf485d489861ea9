//! Kernels that are compiled for NVIDIA GPUs on a machine that has none, for those that have.

use std::path::PathBuf;

use gpuvm_gpu::{
    CompileOptions, Source,
    back_end::Shelf,
    cuda::{self, Architecture},
};

use crate::{
    error::{Doing, Result},
    gpu::{SLOT_KERNELS, SLOT_SOURCE, SUPPORT_SOURCE, compile_options, support_kernels},
    kernel::looked_up_options,
    plan::{Settings, TransportKind},
};

/// Puts kernels that NVRTC compiles for an NVIDIA GPU into a folder, for [`VmBuilder::precompiled`](crate::VmBuilder::precompiled):
/// [`VmBuilder::precompiler`](crate::VmBuilder::precompiler) makes one. Neither a GPU nor its driver is needed.
///
/// They are those of the transport `direct`, in the forms of launches that look pages up. What a launch needs besides is compiled as it
/// would be without the folder.
pub struct Precompiler {
    shelf: Shelf,
    architecture: u32,
    settings: Settings,
}

impl Precompiler {
    pub(crate) fn new(settings: Settings, dir: PathBuf, architecture: u32) -> Self {
        let shelf = Shelf { dir, fill: true };
        Self {
            shelf,
            architecture,
            settings,
        }
    }

    /// Compiles the runtime's own kernels, with those of slot caches.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) without NVRTC, for an architecture that it does not know, and for a folder that others may write to.
    pub fn own(&self) -> Result<()> {
        self.own_kernels().into_iter().try_for_each(|((name, text), kernels)| {
            self.compile(&Source::new(name, text), &kernels, &self.settings.support_options)
        })
    }

    /// Sources with their names, and kernels.
    fn own_kernels(&self) -> [((&'static str, &'static str), Vec<&'static str>); 2] {
        let support = support_kernels(self.settings.timeline.is_some());
        [(SUPPORT_SOURCE, support), (SLOT_SOURCE, SLOT_KERNELS.to_vec())]
    }

    /// Compiles a source as [`VmGpu::compile_with`](crate::VmGpu::compile_with) would with the same arguments.
    ///
    /// # Errors
    /// As [`own`](Self::own), and those of the compiler.
    pub fn source(&self, name: &str, source: &str, kernels: &[&str], options: &CompileOptions) -> Result<()> {
        let source = Source::new(name, source);
        looked_up_options(options).try_for_each(|options| self.compile(&source, kernels, &options))
    }

    fn compile(&self, source: &Source, kernels: &[&str], options: &CompileOptions) -> Result<()> {
        let options = compile_options(TransportKind::Direct, &self.settings, options);
        let made = cuda::precompile(&self.shelf, source, kernels, &options, Architecture(self.architecture));
        made.doing(|| format!("compiling {} for sm_{}", source.name, self.architecture))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vm;

    /// What a virtual memory over an NVIDIA GPU would ask for is there.
    #[test]
    fn kernels_are_found_that_were_compiled_for_a_gpu_that_is_not_there() {
        if !cuda::presence().nvrtc {
            assert!(
                std::env::var_os("GPUVM_REQUIRE_NVRTC").is_none(),
                "libnvrtc cannot be loaded"
            );
            eprintln!("SKIPPED: libnvrtc is not on the loader's path; `./test` brings it");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let source = "#include <gpuvm/gpuvm.cuh>
            __global__ void twice(gpuvm::array<float> a) { a[threadIdx.x] *= FACTOR; }";
        let user = CompileOptions {
            defines: vec![("FACTOR".into(), Some("2".into()))],
            ..CompileOptions::default()
        };
        let ahead = Vm::builder().precompiler(folder.path(), 90);
        ahead.own().unwrap();
        ahead.source("twice.cu", source, &["twice"], &user).unwrap();

        let shelf = Shelf {
            dir: folder.path().to_owned(),
            fill: false,
        };
        let settings = Vm::builder().settings().clone();
        let find = |name: &str, text: &str, kernels: &[&str], options: &CompileOptions| {
            let options = compile_options(TransportKind::Direct, &settings, options);
            let source = Source::new(name, text);
            cuda::precompiled(&shelf, &source, kernels, &options, Architecture(90)).unwrap()
        };
        for ((name, text), kernels) in ahead.own_kernels() {
            let found = find(name, text, &kernels, &CompileOptions::default()).expect(name);
            assert_eq!(found.kernels.len(), kernels.len());
        }
        // Those of a timeline are others.
        let timed = Vm::builder().timeline(crate::timeline::Timeline::to("t.json"));
        let [(_, timed), _] = timed.precompiler(folder.path(), 90).own_kernels();
        let [((name, text), plain), _] = ahead.own_kernels();
        assert_eq!(timed.len(), plain.len() + 1);
        assert!(find(name, text, &timed, &CompileOptions::default()).is_none());
        let forms: Vec<_> = looked_up_options(&user)
            .map(|options| find("twice.cu", source, &["twice"], &options).expect("a form").image)
            .collect();
        assert_eq!(forms.len(), 4);
        assert!((1..4).all(|at| forms[at] != forms[0]), "each form is another text");
        assert!(
            find("twice.cu", source, &["twice"], &user).is_none(),
            "launches that fetch"
        );
    }
}
