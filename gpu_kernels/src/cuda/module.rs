//! Loaded kernels.

use std::any::Any;
use std::ffi::{CStr, CString, c_int, c_uint};
use std::sync::Arc;

use super::calls::cu;
use super::compile::{Cubin, CubinKernel, table_name};
use super::copy::HostCopies;
use super::core::{Core, FunctionHandle, ModuleHandle, Raw, Retired};
use super::driver::{is, outcome};
use super::image;
use crate::api::{Kernel, KernelInfo, KernelResources, Module, ParamInfo, PtxKernel};
use crate::back_end::params;
use crate::error::GpuError;
use cudarc::driver::sys::{CUfunction_attribute_enum as Attribute, CUresult};

/// Shared memory of a block that needs no asking, bytes.
const SHARED_PLAIN_BYTES: u32 = 48 << 10;

/// A compiled source that is loaded, once for all streams, when it is compiled. Nothing is loaded at a launch: the driver would wait for
/// running kernels, and others behind it.
pub(crate) struct ModuleInner {
    core: Arc<Core>,
    module: ModuleHandle,
    kernels: Vec<CubinKernel>,
    functions: Vec<FunctionHandle>,
}

/// A kernel of a loaded module.
pub(crate) struct KernelInner {
    pub(crate) info: KernelInfo,
    /// As in `info`, for launches to keep.
    pub(crate) name: Arc<str>,
    pub(crate) resources: KernelResources,
    pub(crate) module: Arc<ModuleInner>,
    index: usize,
}

/// A kernel as its user holds it.
pub(crate) struct CudaKernel(pub(crate) Arc<KernelInner>);

/// A module as its user holds it.
pub(crate) struct CudaModule {
    name: String,
    kernels: Vec<Arc<KernelInner>>,
}

impl ModuleInner {
    /// Finds the kernels of the loaded module.
    fn fill(&mut self, name: &str) -> Result<(), GpuError> {
        let core = &self.core;
        for kernel in &self.kernels {
            let lowered = CString::new(kernel.lowered.as_str()).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: an out-value, a module that was just loaded and a string that lives through the call.
            unsafe {
                let called = cu::cuModuleGetFunction(&raw mut function, self.module.0, lowered.as_ptr());
                core.check(format_args!("find kernel `{}` in {name}", kernel.name), called)?;
                // Nothing may be loaded later, beside a running kernel. Drivers before 12.4 have no such call and load with the module.
                if let Ok(code) = cu::cuFuncLoad(function) {
                    core.check(format_args!("load kernel `{}` of {name}", kernel.name), Ok(code))?;
                }
            }
            self.functions.push(Raw(function));
            self.allow_shared(self.functions.len() - 1, &kernel.name)?;
        }
        Ok(())
    }

    /// Lets launches ask for all shared memory that the GPU has, so that no launch needs to change that.
    fn allow_shared(&self, index: usize, name: &str) -> Result<(), GpuError> {
        let core = &self.core;
        let fixed = self.attribute(index, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let most = core.info.shared_bytes_per_block.saturating_sub(fixed);
        if fixed.saturating_add(most) <= SHARED_PLAIN_BYTES {
            return Ok(());
        }
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        // SAFETY: a function of a loaded module; the value is within the GPU's limit.
        let called = unsafe { cu::cuFuncSetAttribute(self.functions[index].0, attribute, most as c_int) };
        core.check(
            format_args!("give kernel `{name}` {most} bytes of dynamic shared memory"),
            called,
        )
    }

    /// Device address and bytes of a variable, if the module has it.
    fn variable(&self, name: &str) -> Result<Option<(u64, usize)>, GpuError> {
        let core = &self.core;
        let text = CString::new(name).unwrap_or_default();
        let (mut addr, mut bytes) = (0, 0);
        // SAFETY: out-values of the right types, a loaded module, and a string that lives through the call.
        let called = unsafe { cu::cuModuleGetGlobal_v2(&raw mut addr, &raw mut bytes, self.module.0, text.as_ptr()) };
        match outcome(called) {
            Ok(()) => Ok(Some((addr, bytes))),
            Err(failure) if is(failure.code, CUresult::CUDA_ERROR_NOT_FOUND) => Ok(None),
            Err(failure) => Err(core.error(format_args!("find variable {name}"), failure)),
        }
    }

    fn attribute(&self, index: usize, attribute: Attribute) -> Result<u32, GpuError> {
        let core = &self.core;
        let mut value: c_int = 0;
        // SAFETY: an out-value, and a function of a loaded module.
        core.check(format_args!("ask for {attribute:?}"), unsafe {
            cu::cuFuncGetAttribute(&raw mut value, attribute as u32, self.functions[index].0)
        })?;
        Ok(value.max(0) as u32)
    }

    fn resources(&self, index: usize) -> Result<KernelResources, GpuError> {
        let ask = |which| self.attribute(index, which);
        Ok(KernelResources {
            registers: ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads_per_block: ask(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// What a variable was initialised with, from device memory.
    fn initial(&self, copier: &HostCopies, variable: &str) -> Result<Option<Vec<u8>>, GpuError> {
        let Some((addr, bytes)) = self.variable(variable)? else {
            return Ok(None);
        };
        let mut value = vec![0; bytes];
        copier.to_host(addr, &mut value)?;
        Ok(Some(value))
    }

    /// Parameters from the table in device memory.
    fn params(&self, copier: &HostCopies, table: &str, name: &str) -> Result<Vec<ParamInfo>, GpuError> {
        let failed = |cause| failed_load(name, cause);
        let rows = self.initial(copier, table)?;
        let rows = rows.ok_or_else(|| failed(format!("it has no {table}")))?;
        params::parse(&rows).map_err(failed)
    }

    /// Loads `cubin` and describes its kernels.
    pub(crate) fn load(
        core: &Arc<Core>,
        copier: &HostCopies,
        cubin: Cubin,
        name: &str,
    ) -> Result<CudaModule, GpuError> {
        // It owns the module, so that a failure below unloads it.
        let inner = Self {
            core: Arc::clone(core),
            module: core.load(&cubin.image, name)?,
            kernels: cubin.kernels,
            functions: Vec::new(),
        };
        inner.described(name, |inner, index, kernel| {
            let params = match &kernel.params {
                Some(params) => params.clone(),
                None => inner.params(copier, &table_name(index), name)?,
            };
            Ok((params, None))
        })
    }

    /// Loads what its user compiled, and describes those of its kernels that `GPUVM_EXPORT` names.
    pub(crate) fn load_image(
        core: &Arc<Core>,
        copier: &HostCopies,
        image: &[u8],
        kernels: &[&str],
        name: &str,
    ) -> Result<CudaModule, GpuError> {
        let failed = |cause| failed_load(name, cause);
        let image = image::checked(image).map_err(failed)?;
        let mut inner = Self {
            core: Arc::clone(core),
            module: core.load(&image, name)?,
            kernels: Vec::new(),
            functions: Vec::new(),
        };
        let there = inner.function_names(name)?;
        for kernel in kernels {
            let found = match &there {
                Some(there) => image::lowered(kernel, there).map_err(failed)?,
                // A driver that names none finds those whose names are plain.
                None => Some((*kernel).to_owned()),
            };
            let lowered = found.ok_or_else(|| GpuError::KernelNotFound {
                name: (*kernel).to_owned(),
                module: name.to_owned(),
                known: there.clone().unwrap_or_default(),
            })?;
            inner.kernels.push(CubinKernel {
                name: (*kernel).to_owned(),
                lowered,
                params: None,
                usage: None,
            });
        }
        inner.described(name, |inner, _, kernel| {
            let code = inner.initial(copier, &image::code_name(&kernel.name))?;
            let Some(&[version, features]) = code.as_deref().map(|code| code.as_chunks().0) else {
                let cause = format!(
                    "it does not describe kernel `{0}`: put GPUVM_EXPORT({0}) behind the kernel",
                    kernel.name
                );
                return Err(failed(cause));
            };
            let params = inner.params(copier, &image::table_name(&kernel.name), name)?;
            let [version, features] = [version, features].map(u32::from_ne_bytes);
            Ok((params, Some((version, features))))
        })
    }

    /// Loads PTX that describes nothing, with what `variables` hold at first.
    pub(crate) fn load_ptx(
        core: &Arc<Core>,
        copier: &HostCopies,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        name: &str,
    ) -> Result<CudaModule, GpuError> {
        let failed = |cause| failed_load(name, cause);
        let image = image::checked(text.as_bytes()).map_err(failed)?;
        let plain = |kernel: &PtxKernel| CubinKernel {
            name: kernel.name.clone(),
            lowered: kernel.symbol.clone(),
            params: None,
            usage: None,
        };
        let inner = Self {
            core: Arc::clone(core),
            module: core.load(&image, name)?,
            kernels: kernels.iter().map(plain).collect(),
            functions: Vec::new(),
        };
        for (variable, value) in variables {
            match inner.variable(variable)? {
                Some((addr, bytes)) if bytes == value.len() => copier.to_device(addr, value)?,
                _ => {
                    return Err(failed(format!(
                        "it has no variable {variable} of {} bytes",
                        value.len()
                    )));
                }
            }
        }
        inner.described(name, |_, index, _| Ok((kernels[index].param_infos(), None)))
    }

    /// The names of all functions, as they are in the binary; none from drivers before 12.4, which do not tell.
    fn function_names(&self, name: &str) -> Result<Option<Vec<String>>, GpuError> {
        let core = &self.core;
        let mut count: c_uint = 0;
        // SAFETY: an out-value, and a loaded module.
        let Ok(code) = (unsafe { cu::cuModuleGetFunctionCount(&raw mut count, self.module.0) }) else {
            return Ok(None);
        };
        core.check(format_args!("count the kernels of {name}"), Ok(code))?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: room for as many handles as are asked for, and a loaded module.
        let called = unsafe { cu::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.module.0) };
        core.check(format_args!("list the kernels of {name}"), called)?;
        let mut names = Vec::new();
        for function in functions {
            let mut text = std::ptr::null();
            // SAFETY: an out-value, and a function of the loaded module.
            let called = unsafe { cu::cuFuncGetName(&raw mut text, function) };
            core.check(format_args!("name the kernels of {name}"), called)?;
            // SAFETY: the driver's own string, which lives as long as the module.
            names.push(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        }
        Ok(Some(names))
    }

    /// The module for its user, with its kernels, of each of which `describe` says the parameters and with what it was compiled.
    fn described(
        mut self,
        name: &str,
        describe: impl Fn(&Self, usize, &CubinKernel) -> Result<(Vec<ParamInfo>, Option<(u32, u32)>), GpuError>,
    ) -> Result<CudaModule, GpuError> {
        self.fill(name)?;
        let inner = Arc::new(self);
        let kernels = inner.kernels.iter().enumerate().map(|(index, kernel)| {
            let resources = inner.resources(index)?;
            let (params, compiled_with) = describe(&inner, index, kernel)?;
            Ok(Arc::new(KernelInner {
                name: kernel.name.as_str().into(),
                info: KernelInfo {
                    name: kernel.name.clone(),
                    static_shared_bytes: resources.static_shared_bytes,
                    params,
                    resources: Some(resources),
                    compiled_with,
                },
                resources,
                module: Arc::clone(&inner),
                index,
            }))
        });
        let kernels = kernels.collect::<Result<_, GpuError>>()?;
        let name = name.to_owned();
        Ok(CudaModule { name, kernels })
    }
}

fn failed_load(name: &str, cause: String) -> GpuError {
    GpuError::ModuleLoad {
        module: name.to_owned(),
        cause,
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Launches hold the module, so nothing of it runs.
        self.core.retire(Retired::Module(self.module));
    }
}

impl KernelInner {
    /// The GPU that it was compiled by.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.module.core
    }

    /// What the driver launches.
    pub(crate) fn function(&self) -> FunctionHandle {
        self.module.functions[self.index]
    }
}

impl Module for CudaModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, GpuError> {
        match self.kernels.iter().find(|k| k.info.name == name) {
            Some(kernel) => Ok(Arc::new(CudaKernel(Arc::clone(kernel)))),
            None => Err(GpuError::KernelNotFound {
                name: name.to_owned(),
                module: self.name.clone(),
                known: self.kernels.iter().map(|k| k.info.name.clone()).collect(),
            }),
        }
    }
}

impl Kernel for CudaKernel {
    fn info(&self) -> &KernelInfo {
        &self.0.info
    }

    fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared_bytes: u32) -> Result<Option<u32>, GpuError> {
        let (core, name) = (self.0.core(), &self.0.info.name);
        core.enter()?;
        let mut blocks: c_int = 0;
        let function = self.0.function();
        // SAFETY: an out-value, and a function of a module that the kernel keeps.
        let called = unsafe {
            cu::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                function.0,
                c_int::try_from(threads).unwrap_or(c_int::MAX),
                dynamic_shared_bytes as usize,
            )
        };
        core.check(format_args!("ask for the occupancy of kernel `{name}`"), called)?;
        Ok(Some(blocks.max(0) as u32))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
