//! Loaded kernels. The device library finds its launch's state through a variable of the module; so that launches on
//! different streams can run at once, a module is loaded [`INSTANCES`] times when it is compiled, and its `__device__` variables are
//! separate with each. Nothing is loaded at a launch: the driver would wait for running kernels, and others behind it.

use std::any::Any;
use std::ffi::{CString, c_int};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction_attribute_enum as Attribute, CUresult};
use parking_lot::Mutex;

use super::calls::cu;
use super::compile::{Cubin, LAUNCH_STATE, table_name};
use super::copy::HostCopies;
use super::core::{Core, Event, FunctionHandle, ModuleHandle, Raw, Retired};
use super::driver::{is, outcome};
use crate::api::{Kernel, KernelInfo, KernelResources, Module, ParamInfo};
use crate::back_end::params;
use crate::error::GpuError;

/// Shared memory of a block that needs no asking, bytes.
const SHARED_PLAIN_BYTES: u32 = 48 << 10;

/// Launches of one module that can run at one time; more wait for one of them on the GPU. Each instance costs the
/// load of a module and its variables; few programs run more launches of one module beside each other.
const INSTANCES: usize = 4;

/// A compiled source and where it is loaded.
pub(crate) struct ModuleInner {
    core: Arc<Core>,
    name: String,
    cubin: Cubin,
    /// Held while a launch is enqueued, so that launches of one instance wait for earlier ones only.
    pub(crate) enqueuing: Mutex<()>,
    instances: Vec<Arc<Instance>>,
    /// One for each instance. Never held over a call of the driver.
    slots: Mutex<Slots<Arc<Event>>>,
}

struct Slots<E> {
    all: Vec<Slot<E>>,
    /// Counts launches.
    last: u64,
}

/// Who uses an instance.
struct Slot<E> {
    /// The launch that was enqueued last.
    tail: Option<Tail<E>>,
    /// When it was taken last, by count.
    taken: u64,
    /// Work that nobody can wait for may be in flight.
    broken: bool,
}

struct Tail<E> {
    stream: u64,
    launch: u64,
    event: E,
    ended: bool,
}

/// An instance for a launch.
pub(crate) struct Taken {
    pub(crate) slot: usize,
    pub(crate) instance: Arc<Instance>,
    /// The event and the number of another stream's launch that must end first.
    pub(crate) after: Option<(Arc<Event>, u64)>,
}

impl<E: Clone> Slots<E> {
    fn new(count: usize) -> Self {
        Self {
            all: std::iter::repeat_with(|| Slot {
                tail: None,
                taken: 0,
                broken: false,
            })
            .take(count)
            .collect(),
            last: 0,
        }
    }

    /// An instance for a launch on `stream`, and what it must run after: the stream's own last one, else one that nothing
    /// uses, else the one that was taken longest ago.
    fn take(&mut self, stream: u64) -> Option<(usize, Option<(E, u64)>)> {
        let rank = |slot: &Slot<E>| match &slot.tail {
            Some(tail) if tail.stream == stream => 0,
            None => 1,
            Some(tail) if tail.ended => 1,
            Some(_) => 2,
        };
        let usable = self.all.iter().enumerate().filter(|(_, slot)| !slot.broken);
        let (index, _) = usable.min_by_key(|(_, slot)| (rank(slot), slot.taken))?;
        self.last += 1;
        let slot = &mut self.all[index];
        slot.taken = self.last;
        let others = slot.tail.as_ref().filter(|tail| tail.stream != stream && !tail.ended);
        Some((index, others.map(|tail| (tail.event.clone(), tail.launch))))
    }

    /// Launch `launch` is the slot's last one from now on and ends with `event`.
    fn enqueued(&mut self, slot: usize, stream: u64, launch: u64, event: E) {
        self.all[slot].tail = Some(Tail {
            stream,
            launch,
            event,
            ended: false,
        });
    }

    fn ended(&mut self, slot: usize, launch: u64) {
        let slot = &mut self.all[slot];
        if let Some(tail) = slot.tail.as_mut().filter(|tail| tail.launch == launch) {
            tail.ended = true;
        }
    }
}

/// A module that is loaded once.
pub(crate) struct Instance {
    module: ModuleHandle,
    functions: Vec<FunctionHandle>,
    /// Device address of the variable that points to the launch's state, 0 if there is none.
    pub(crate) state_addr: u64,
    /// The launch state that is set in the order of its launches; none before the first. Touched under the module's `enqueuing`.
    pub(crate) set: Mutex<Option<u64>>,
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
            self.allow_shared(core, self.functions.len() - 1, &kernel.name)?;
        }
        self.state_addr = self.variable(core, LAUNCH_STATE)?.map_or(0, |(addr, _)| addr);
        Ok(())
    }

    /// Lets launches ask for all shared memory that the GPU has, so that no launch needs to change that.
    fn allow_shared(&self, core: &Core, index: usize, name: &str) -> Result<(), GpuError> {
        let fixed = self.attribute(core, index, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
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
    fn params(&self, core: &Core, copier: &HostCopies, number: usize, name: &str) -> Result<Vec<ParamInfo>, GpuError> {
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
        copier: &HostCopies,
        cubin: Cubin,
        name: &str,
    ) -> Result<CudaModule, GpuError> {
        // It owns the instances, so that a failure below unloads them.
        let mut inner = Self {
            core: Arc::clone(core),
            name: name.to_owned(),
            cubin,
            enqueuing: Mutex::default(),
            instances: Vec::with_capacity(INSTANCES),
            slots: Mutex::new(Slots::new(INSTANCES)),
        };
        for _ in 0..INSTANCES {
            let instance = Instance::load(core, &inner.cubin, name)?;
            inner.instances.push(Arc::new(instance));
        }
        let inner = Arc::new(inner);
        let first = &inner.instances[0];
        let kernels = inner.cubin.kernels.iter().enumerate().map(|(index, kernel)| {
            let resources = first.resources(core, index)?;
            let params = match &kernel.params {
                Some(params) => params.clone(),
                None => first.params(core, copier, index, name)?,
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
        Ok(CudaModule { name, kernels })
    }

    /// An instance for a launch on stream `stream`, to be given back by [`ended`](Self::ended). The caller holds `enqueuing`.
    pub(crate) fn take(&self, stream: u64) -> Result<Taken, GpuError> {
        let taken = self.slots.lock().take(stream);
        let (slot, after) = taken.ok_or_else(|| GpuError::ModuleLoad {
            module: self.name.clone(),
            cause: "launches that failed half-way have used up its instances; compile it again".to_owned(),
        })?;
        Ok(Taken {
            slot,
            instance: Arc::clone(&self.instances[slot]),
            after,
        })
    }

    /// Launch `launch` uses the instance until `event`. The caller holds `enqueuing`.
    pub(crate) fn enqueued(&self, slot: usize, stream: u64, launch: u64, event: &Arc<Event>) {
        self.slots.lock().enqueued(slot, stream, launch, Arc::clone(event));
    }

    /// Launch `launch` has ended, or was not enqueued.
    pub(crate) fn ended(&self, slot: usize, launch: u64) {
        self.slots.lock().ended(slot, launch);
    }

    /// Work of a launch that failed may be in flight on the instance, unmarked: it is not used again.
    pub(crate) fn give_up(&self, slot: usize) {
        self.slots.lock().all[slot].broken = true;
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Launches hold the module, so nothing of it runs.
        for instance in &self.instances {
            self.core.retire(Retired::Module(instance.module));
        }
    }
}

impl KernelInner {
    /// The GPU that it was compiled by.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.module.core
    }

    /// The kernel in `instance`.
    pub(crate) fn function(&self, instance: &Instance) -> FunctionHandle {
        instance.functions[self.index]
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
        let function = self.0.function(&self.0.module.instances[0]);
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

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_launch_takes_its_streams_instance_then_a_free_one_then_the_oldest() {
        let mut slots = Slots::new(2);
        let launch = |slots: &mut Slots<char>, stream, number, event| {
            let (slot, after) = slots.take(stream).expect("one is usable");
            slots.enqueued(slot, stream, number, event);
            (slot, after)
        };
        assert_eq!(launch(&mut slots, 7, 1, 'a'), (0, None));
        assert_eq!(launch(&mut slots, 8, 2, 'b'), (1, None));
        assert_eq!(launch(&mut slots, 7, 3, 'c'), (0, None), "its stream orders it");
        assert_eq!(
            launch(&mut slots, 9, 4, 'd'),
            (1, Some(('b', 2))),
            "the one taken longest ago"
        );
        slots.ended(0, 1);
        assert_eq!(
            launch(&mut slots, 8, 5, 'e'),
            (0, Some(('c', 3))),
            "launch 3 is the last one there and runs still"
        );
        slots.ended(0, 3);
        slots.ended(0, 5);
        assert_eq!(launch(&mut slots, 10, 6, 'f'), (0, None), "it is free");
        slots.all[0].broken = true;
        assert_eq!(launch(&mut slots, 10, 7, 'g'), (1, Some(('d', 4))));
        slots.all[1].broken = true;
        assert!(slots.take(10).is_none());
    }
}
