//! Compiled modules and their kernels.

use std::sync::Arc;

use gpuvm_gpu::KernelInfo;

use crate::{
    args::KernelArgs,
    error::{Doing, Result},
    launch::{Launch, LaunchConfig, StreamHandle},
    vm::Vm,
};

/// A compiled source.
#[derive(Clone)]
pub struct Module {
    vm: Vm,
    module: Arc<dyn gpuvm_gpu::Module>,
}

impl Module {
    pub(crate) fn new(vm: Vm, module: Arc<dyn gpuvm_gpu::Module>) -> Self {
        Self { vm, module }
    }

    /// The kernel that was named so when the source was compiled.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] with the names that are there.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let kernel = self
            .module
            .kernel(name)
            .doing(|| format!("looking up kernel `{name}`"))?;
        Ok(Kernel {
            vm: self.vm.clone(),
            kernel,
        })
    }
}

/// A kernel of a virtual memory.
#[derive(Clone)]
pub struct Kernel {
    vm: Vm,
    kernel: Arc<dyn gpuvm_gpu::Kernel>,
}

impl Kernel {
    /// Its name and parameters.
    pub fn info(&self) -> &KernelInfo {
        self.kernel.info()
    }

    /// Enqueues a launch on the virtual memory's default stream and returns at once.
    ///
    /// # Errors
    /// [`crate::Error::Arguments`], [`crate::Error::Spans`], [`crate::Error::Gpu`] for a shape that the GPU cannot launch.
    pub fn launch(&self, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch> {
        let vm = &self.vm.inner;
        vm.launcher()
            .launch(&self.vm, &vm.stream, &self.kernel, &config, args.give_all())
    }

    /// Enqueues a launch on `stream`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_on(&self, stream: &StreamHandle, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch> {
        self.vm
            .inner
            .launcher()
            .launch(&self.vm, &stream.stream, &self.kernel, &config, args.give_all())
    }
}
