//! An array that GPUs share, in each form.

use std::ops::Range;

use bytemuck::Pod;
use gpuvm::{Arg, Broadcast, ElementType, Subscribers, Traffic, Vm, VmGpu};
use gpuvm_gpu::cuda::{Advice, CudaGpu, Managed, Side};
use gpuvm_gpu::{CopySpan, DeviceMemory};

use super::{Elements, Form};
use crate::apps::{AppError, Step};

/// Bytes that managed memory moves at most at once: parts begin at multiples of it.
const BLOCK_BYTES: u64 = 2 << 20;

/// An array.
pub(super) enum Shared<T> {
    Broadcast(Broadcast<T>),
    /// One on each GPU that works.
    Plain(Vec<(VmGpu, DeviceMemory)>),
    Managed(Managed),
}

impl<T: Pod> Shared<T> {
    /// One that holds `values` on the first `count` GPUs.
    pub fn new(vm: &Vm, form: Form, count: usize, values: &[T]) -> Result<Self, AppError> {
        Ok(match form {
            Form::One | Form::Copies => {
                let gpus = vm.gpus().iter().take(count);
                let made = gpus.map(|gpu| Ok((gpu.clone(), plain(vm, gpu, count, values)?)));
                Self::Plain(made.collect::<Result<_, AppError>>()?)
            }
            Form::Broadcast | Form::Peer => {
                let subscribers = match form {
                    Form::Peer => Subscribers::Owners,
                    _ => Subscribers::All,
                };
                let array = vm.broadcast::<T>().subscribers(subscribers);
                // On hardware counting every store would take time.
                let array = match is_cuda(vm) {
                    true => array,
                    false => array.count_all(),
                };
                Self::Broadcast(array.from_slice(values).map_err(AppError::vm(Step::Memory))?)
            }
            Form::Managed => Self::Managed(managed(vm, values)?),
        })
    }

    /// What kernels of that GPU take.
    pub fn arg(&self, gpu: usize) -> Arg<'_> {
        let address = match self {
            Self::Broadcast(array) => return Arg::from(array),
            Self::Plain(memories) => memories[gpu].1.addr(),
            Self::Managed(memory) => memory.addr(),
        };
        // SAFETY: the memory is this array's own, which outlives the launches: the thread that launches waits for their end first. The host
        // holds no reference to it.
        unsafe { Arg::address(ElementType::of::<T>(), address) }
    }

    /// The copy that brings elements from one GPU to another.
    pub fn span(&self, elements: &Elements, from: usize, to: usize) -> Option<CopySpan> {
        let Self::Plain(memories) = self else { return None };
        let (first, end) = (elements.range.start, elements.range.end);
        let size = size_of::<T>() as u64;
        Some(CopySpan {
            to: memories[to].1.addr() + first * size,
            from: memories[from].1.addr() + first * size,
            bytes: (end - first) * size,
        })
    }

    /// Reads elements where the GPU that wrote them has them. Launches have ended.
    pub fn read(&self, first: u64, gpu: usize, out: &mut [T]) -> Result<(), AppError> {
        let offset = first * size_of::<T>() as u64;
        let failed = AppError::device(Step::ReadBack);
        match self {
            Self::Broadcast(array) => array.read(first, out).map_err(AppError::vm(Step::ReadBack)),
            Self::Plain(memories) => {
                let (gpu, memory) = &memories[gpu];
                let read = gpu.device().read(memory.addr() + offset, bytemuck::cast_slice_mut(out));
                read.map_err(failed)
            }
            Self::Managed(memory) => memory.read(offset, bytemuck::cast_slice_mut(out)).map_err(failed),
        }
    }

    /// Bytes that all GPUs have stored to others' copies.
    pub fn sent(&self) -> Result<u64, AppError> {
        let Self::Broadcast(array) = self else { return Ok(0) };
        let traffic: Vec<Traffic> = array.traffic().map_err(AppError::vm(Step::Stats))?;
        Ok(traffic.iter().flat_map(|sent| &sent.bytes).sum())
    }

    /// Bytes of these elements that GPUs hold besides the first one that does: what others read of them, in whole pages.
    pub fn held_besides(&self, elements: &Range<u64>) -> Result<u64, AppError> {
        let Self::Broadcast(array) = self else { return Ok(0) };
        let (page, mut first, mut bytes) = (array.page_elements().max(1), elements.start, 0);
        while first < elements.end {
            let end = (first / page + 1).saturating_mul(page).min(elements.end);
            let held = array.subscribers_of(first).map_err(AppError::vm(Step::Stats))?;
            bytes += (held.len() as u64 - 1) * (end - first) * size_of::<T>() as u64;
            first = end;
        }
        Ok(bytes)
    }
}

/// Whether it runs on NVIDIA GPUs.
pub(super) fn is_cuda(vm: &Vm) -> bool {
    vm.device().capabilities().compute_capability.is_some()
}

/// Memory of one of `count` GPUs that the others' copy engines reach.
fn plain<T: Pod>(vm: &Vm, gpu: &VmGpu, count: usize, values: &[T]) -> Result<DeviceMemory, AppError> {
    let others = vm
        .gpus()
        .iter()
        .take(count)
        .filter(|other| other.index() != gpu.index());
    let ordinals: Option<Vec<u32>> = others.map(|other| other.device().ordinal()).collect();
    let (device, bytes) = (gpu.device(), size_of_val(values).max(1) as u64);
    let memory = match ordinals {
        Some(ordinals) if !ordinals.is_empty() => device.allocate_for(&ordinals, bytes),
        // Simulated GPUs have no ordinals: their memory is this process's.
        _ => device.allocate(bytes, 256),
    };
    let memory = memory.map_err(AppError::device(Step::Memory))?;
    let written = device.write(memory.addr(), bytemuck::cast_slice(values));
    written.map_err(AppError::device(Step::Memory))?;
    Ok(memory)
}

fn managed<T: Pod>(vm: &Vm, values: &[T]) -> Result<Managed, AppError> {
    let Some(ordinal) = vm.device().ordinal().filter(|_| is_cuda(vm)) else {
        return Err(AppError::Form {
            form: Form::Managed,
            reason: format!("{} has no managed memory", vm.gpu_name()),
        });
    };
    let failed = AppError::device(Step::Memory);
    let cuda = CudaGpu::open(ordinal.to_string()).map_err(&failed)?;
    let memory = cuda.managed(size_of_val(values).max(1) as u64).map_err(&failed)?;
    memory.write(0, bytemuck::cast_slice(values)).map_err(&failed)?;
    // Each GPU maps all of it, and keeps the part that it writes, about: parts are cut much alike.
    let (gpus, bytes) = (vm.gpus(), memory.bytes());
    let (blocks, count) = (bytes.div_ceil(BLOCK_BYTES), gpus.len() as u64);
    for (n, gpu) in (0..).zip(gpus) {
        let Some(ordinal) = gpu.device().ordinal() else {
            continue;
        };
        let part = |n: u64| (blocks * n / count * BLOCK_BYTES).min(bytes);
        let own = part(n)..part(n + 1);
        let kept = Advice::PreferredLocation(Side::Gpu);
        memory
            .advise_part(0..bytes, Advice::AccessedBy(Side::Gpu), ordinal)
            .map_err(&failed)?;
        if !own.is_empty() {
            memory.advise_part(own, kept, ordinal).map_err(&failed)?;
        }
    }
    Ok(memory)
}
