//! Loaded kernels. The device library finds its launch's state through a variable of the module; so that launches on
//! different streams can run at once, a module is loaded once for each stream that uses it, and its `__device__` variables are
//! separate with it.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUfunction_attribute_enum as Attribute, CUresult};

use super::calls::cu;
use super::compile::{Cubin, LAUNCH_STATE, table_name};
use super::copy::Copier;
use super::core::{Core, FunctionHandle, ModuleHandle, Raw, Retired};
use super::driver::{is, outcome};
use crate::api::{Kernel, KernelInfo, KernelResources, Module, ParamInfo};
use crate::error::GpuError;
use crate::lock::lock;
use crate::params;

/// Shared memory of a block that needs no asking, bytes.
const SHARED_PLAIN_BYTES: u32 = 48 << 10;

/// A compiled source and where it is loaded.
pub(crate) struct ModuleInner {
    core: Arc<Core>,
    name: String,
    cubin: Cubin,
    /// What the module was checked with. One stream uses it; it stays until the module goes.
    first: Arc<Instance>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By stream.
    instances: HashMap<u64, Arc<Instance>>,
    /// The stream that uses `first`.
    first_of: Option<u64>,
}

/// A module that is loaded for one stream.
pub(crate) struct Instance {
    module: ModuleHandle,
    functions: Vec<FunctionHandle>,
    /// Device address of the variable that points to the launch's state, 0 if there is none.
    pub(crate) state_addr: u64,
    /// Touched under the lock of the stream that uses the instance.
    pub(crate) set: Mutex<Set>,
}

/// What an instance was last told.
#[derive(Default)]
pub(crate) struct Set {
    /// The launch state that is set in stream order; none before the first.
    pub(crate) launch_state: Option<u64>,
    /// By kernel: the most dynamic shared memory that was asked for, bytes.
    dynamic_shared: HashMap<usize, u32>,
}

/// A kernel of a loaded module.
pub(crate) struct KernelInner {
    pub(crate) info: KernelInfo,
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

impl Instance {
    fn load(core: &Core, cubin: &Cubin, name: &str) -> Result<Self, GpuError> {
        let module = core.load(&cubin.image, name)?;
        let mut instance = Self {
            module,
            functions: Vec::new(),
            state_addr: 0,
            set: Mutex::default(),
        };
        let filled = instance.fill(core, cubin, name);
        if let Err(error) = filled {
            core.retire(Retired::Module(module));
            return Err(error);
        }
        Ok(instance)
    }

    fn fill(&mut self, core: &Core, cubin: &Cubin, name: &str) -> Result<(), GpuError> {
        for kernel in &cubin.kernels {
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
        }
        self.state_addr = self.variable(core, LAUNCH_STATE)?.map_or(0, |(addr, _)| addr);
        Ok(())
    }

    /// Device address and bytes of a variable, if the module has it.
    fn variable(&self, core: &Core, name: &str) -> Result<Option<(u64, usize)>, GpuError> {
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

    fn attribute(&self, core: &Core, index: usize, attribute: Attribute) -> Result<u32, GpuError> {
        let mut value: c_int = 0;
        // SAFETY: an out-value, and a function of a loaded module.
        core.check(format_args!("ask for {attribute:?}"), unsafe {
            cu::cuFuncGetAttribute(&raw mut value, attribute as u32, self.functions[index].0)
        })?;
        Ok(value.max(0) as u32)
    }

    fn resources(&self, core: &Core, index: usize) -> Result<KernelResources, GpuError> {
        let ask = |which| self.attribute(core, index, which);
        Ok(KernelResources {
            registers: ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads_per_block: ask(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Parameters from the table in device memory.
    fn params(&self, core: &Core, copier: &Copier, number: usize, name: &str) -> Result<Vec<ParamInfo>, GpuError> {
        let failed = |cause| GpuError::ModuleLoad {
            module: name.to_owned(),
            cause,
        };
        let table = table_name(number);
        let found = self.variable(core, &table)?;
        let (addr, bytes) = found.ok_or_else(|| failed(format!("it has no {table}")))?;
        let mut rows = vec![0; bytes];
        copier.to_host(addr, &mut rows)?;
        params::parse(&rows).map_err(failed)
    }
}

impl ModuleInner {
    /// Loads `cubin` and describes its kernels.
    pub(crate) fn load(
        core: &Arc<Core>,
        copier: &Copier,
        cubin: Cubin,
        name: &str,
    ) -> Result<(Arc<Self>, CudaModule), GpuError> {
        let first = Arc::new(Instance::load(core, &cubin, name)?);
        // It owns the instance from here on, so that a failure below unloads it.
        let inner = Arc::new(Self {
            core: Arc::clone(core),
            name: name.to_owned(),
            cubin,
            first,
            state: Mutex::default(),
        });
        let kernels = inner.cubin.kernels.iter().enumerate().map(|(index, kernel)| {
            let resources = inner.first.resources(core, index)?;
            let params = match &kernel.params {
                Some(params) => params.clone(),
                None => inner.first.params(core, copier, index, name)?,
            };
            Ok(Arc::new(KernelInner {
                info: KernelInfo {
                    name: kernel.name.clone(),
                    static_shared_bytes: resources.static_shared_bytes,
                    params,
                    resources: Some(resources),
                },
                resources,
                module: Arc::clone(&inner),
                index,
            }))
        });
        let kernels = kernels.collect::<Result<_, GpuError>>()?;
        let name = name.to_owned();
        Ok((inner, CudaModule { name, kernels }))
    }

    /// The module as it is loaded for stream `stream`; loading may wait for running kernels.
    pub(crate) fn instance(&self, stream: u64) -> Result<Arc<Instance>, GpuError> {
        let mut state = lock(&self.state);
        if let Some(instance) = state.instances.get(&stream) {
            return Ok(Arc::clone(instance));
        }
        let instance = if state.first_of.is_none() {
            state.first_of = Some(stream);
            Arc::clone(&self.first)
        } else {
            Arc::new(Instance::load(&self.core, &self.cubin, &self.name)?)
        };
        state.instances.insert(stream, Arc::clone(&instance));
        Ok(instance)
    }

    /// Stream `stream` is gone, and nothing of it runs.
    pub(crate) fn forget(&self, stream: u64) {
        let gone = {
            let mut state = lock(&self.state);
            let gone = state.instances.remove(&stream);
            if state.first_of == Some(stream) {
                state.first_of = None;
                return;
            }
            gone
        };
        if let Some(instance) = gone {
            self.core.retire(Retired::Module(instance.module));
        }
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Launches hold the module, so nothing of it runs.
        let state = std::mem::take(&mut *lock(&self.state));
        for (stream, instance) in state.instances {
            if state.first_of != Some(stream) {
                self.core.retire(Retired::Module(instance.module));
            }
        }
        self.core.retire(Retired::Module(self.first.module));
    }
}

impl KernelInner {
    /// The GPU that it was compiled by.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.module.core
    }

    /// The kernel in `instance`, ready for `dynamic` bytes of dynamic shared memory.
    pub(crate) fn function(&self, instance: &Instance, dynamic: u32) -> Result<FunctionHandle, GpuError> {
        let function = instance.functions[self.index];
        let mut set = lock(&instance.set);
        let asked = set.dynamic_shared.entry(self.index).or_default();
        if self.resources.static_shared_bytes.saturating_add(dynamic) > SHARED_PLAIN_BYTES && dynamic > *asked {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
            let what = format_args!(
                "give kernel `{}` {dynamic} bytes of dynamic shared memory",
                self.info.name
            );
            // SAFETY: a function of a loaded module; the value was checked against the GPU's limit.
            self.core().check(what, unsafe {
                cu::cuFuncSetAttribute(function.0, attribute, dynamic as c_int)
            })?;
            *asked = dynamic;
        }
        Ok(function)
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
        let function = self.0.function(&self.0.module.first, dynamic_shared_bytes)?;
        // SAFETY: an out-value, and a function of an instance that stays as long as the module.
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
