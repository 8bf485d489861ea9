//! Kernels: of source text, and of files that their users compiled.

use std::{path::Path, sync::Arc};

use gpuvm_gpu::{CompileOptions, Source};

use super::VmGpu;
use crate::{
    error::{Error, Result},
    kernel::{Kernel, Module},
};

impl VmGpu {
    /// Compiles CUDA C++ source text, which error messages call `name`, for its kernel `kernel`.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernel(&self, name: &str, source: &str, kernel: &str) -> Result<Kernel> {
        let [kernel] = self.kernels(name, source, [kernel], &CompileOptions::default())?;
        Ok(kernel)
    }

    /// Several kernels of one source, in the order of their names, with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernels<const N: usize>(
        &self,
        name: &str,
        source: &str,
        kernels: [&str; N],
        options: &CompileOptions,
    ) -> Result<[Kernel; N]> {
        let module = self.compile_with(name, source, &kernels, options)?;
        let found: Vec<Kernel> = kernels
            .iter()
            .map(|kernel| module.kernel(kernel))
            .collect::<Result<_>>()?;
        Ok(found
            .try_into()
            .unwrap_or_else(|_: Vec<Kernel>| unreachable!("one kernel for each name")))
    }

    /// Compiles CUDA C++ source text, which error messages call `name`, and finds `kernels` in it, to be looked up by name.
    ///
    /// # Errors
    /// [`Error::Gpu`] with the compiler's log, an unknown kernel, or no compiler.
    pub fn compile(&self, name: &str, source: &str, kernels: &[&str]) -> Result<Module> {
        self.compile_with(name, source, kernels, &CompileOptions::default())
    }

    /// Compiles CUDA C++ source text with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(&self, name: &str, source: &str, kernels: &[&str], options: &CompileOptions) -> Result<Module> {
        let module = self.paged().compile(&Source::new(name, source), kernels, options)?;
        Ok(Module::new(Arc::clone(self.paged()), module))
    }

    /// Compiles the CUDA C++ file at `path`.
    ///
    /// # Errors
    /// [`Error::File`], and as [`compile`](Self::compile).
    pub fn compile_file(&self, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        self.compile_file_with(path, kernels, &CompileOptions::default())
    }

    /// Compiles the CUDA C++ file at `path` with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile_file`](Self::compile_file).
    pub fn compile_file_with(
        &self,
        path: impl AsRef<Path>,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Module> {
        let path = path.as_ref();
        let source = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        self.compile_with(&path.display().to_string(), &source, kernels, options)
    }

    /// Loads a cubin, a fat binary or PTX that nvcc made with the device library's headers ([`write_headers`](crate::write_headers)),
    /// which error messages call `name`. Its kernels are launched as those of a source, with the same checks of their arguments:
    /// `GPUVM_EXPORT(kernel)` behind each of them, in the source, describes it. `GPUVM_FEATURES` there: see [`device_code`](Self::device_code).
    ///
    /// # Errors
    /// [`Error::Gpu`] for a broken file, one for other GPUs, or an unknown kernel, and on the simulated GPU, which compiles sources;
    /// [`Error::DeviceCode`] for kernels that do not fit this library or this virtual memory.
    pub fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Module> {
        let module = self.paged().load(name, image, kernels)?;
        let module = Module::new(Arc::clone(self.paged()), module);
        for kernel in kernels {
            module.kernel(kernel)?.check_code()?;
        }
        Ok(module)
    }

    /// Loads the file at `path`, as [`load`](Self::load).
    ///
    /// # Errors
    /// [`Error::File`], and as there.
    pub fn load_file(&self, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        let path = path.as_ref();
        let image = std::fs::read(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        self.load(&path.display().to_string(), &image, kernels)
    }
}
