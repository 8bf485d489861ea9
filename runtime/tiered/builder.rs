//! What a tiered buffer is to be.

use std::{
    marker::PhantomData,
    sync::{Arc, Weak},
};

use gpuvm_gpu::{DeviceMemory, GpuError};
use parking_lot::Mutex;

use super::{Chunk, State, TOGETHER, TieredBuffer, Tiers};
use crate::{
    buffer::{Buffer, BufferInner},
    device::DeviceArray,
    element::ElementType,
    error::{Doing, Result},
    gpu::PagedGpu,
    handles::{GivesHandles, Handle},
    stored::stored,
    tier_place::TierPlace,
};

/// A tiered buffer to be. [`build`](Self::build) makes it.
#[must_use]
pub struct TieredBuilder<E> {
    gpu: Arc<PagedGpu>,
    element: ElementType,
    length: u64,
    name: Option<String>,
    priority: i32,
    budget: u64,
    _elements: PhantomData<fn() -> E>,
}

impl<E> TieredBuilder<E> {
    pub(crate) fn new(gpu: Arc<PagedGpu>, element: ElementType, length: u64) -> Self {
        Self {
            gpu,
            element,
            length,
            name: None,
            priority: 0,
            budget: u64::MAX,
            _elements: PhantomData,
        }
    }

    stored! {
        /// The name that errors use. Default: the element's type.
        name(name: impl Into<String>) => name = Some(name.into());

        /// Whose chunks go to host memory first when GPU memory is short: those of low priority, among tiered buffers and all else that
        /// gives memory up. It can be changed ([`TieredBuffer::set_priority`]). Default: 0.
        priority(priority: i32) => priority = priority;

        /// Bytes of it that may lie on the GPU; the rest lies in host memory. It can be changed ([`TieredBuffer::set_budget`]). Default:
        /// all.
        budget(bytes: u64) => budget = bytes;
    }

    /// Makes it, zeroed. Chunks up to the budget lie on the GPU as far as memory there is free; nothing else gives any up for it.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for no elements, elements without bytes, or more than a GPU has addresses for;
    /// [`Error::NotMoved`](crate::Error::NotMoved) where host memory is short; [`Error::Gpu`](crate::Error::Gpu) where the GPU maps no host
    /// memory.
    pub fn build(self) -> Result<TieredBuffer<E>> {
        let made = self.make();
        let (inner, tiers) = self.gpu.map_device_lost(made)?;
        let buffer = Buffer::of(self.gpu, inner, self.element, self.length);
        Ok(TieredBuffer { buffer, tiers })
    }

    fn make(&self) -> Result<(Arc<BufferInner>, Arc<Tiers>)> {
        let name = self.name.clone().unwrap_or_else(|| self.element.name().to_owned());
        let bytes = self.element.bytes_of(
            "elements of a tiered buffer",
            "it must be greater than zero",
            self.length,
        )?;
        let (device, handles) = (&self.gpu.device, &self.gpu.handles);
        let doing = || format!("making tiered buffer `{name}` of {} elements", self.length);
        let size = handles.handle_bytes();
        if size == 0 {
            let what = "map memory in handles".into();
            return Err(GpuError::Unsupported { what }).doing(doing);
        }
        let chunks = bytes.div_ceil(size) as usize;
        let space = device.reserve((chunks + TOGETHER) as u64 * size, &[]).doing(doing)?;
        let tiers = Arc::new(Tiers {
            name: name.clone(),
            device: Arc::clone(device),
            handles: Arc::clone(handles),
            priority: self.priority.into(),
            resident: 0.into(),
            asking: false.into(),
            lent: false.into(),
            state: Mutex::new(State {
                space: Some(Arc::clone(&space)),
                copier: device.copier().doing(doing)?,
                submitted: 0,
                chunks: Vec::with_capacity(chunks),
                spare: Vec::new(),
                budget: self.budget,
                moves: 0,
                astray: Vec::new(),
            }),
        });
        // From here on what is made goes with it.
        let owner: Arc<Tiers> = Arc::clone(&tiers);
        let memory = DeviceMemory::new(space.addr(), bytes, owner);
        tiers.fill(chunks)?;
        // A chunk at a time: CUDA's memset takes no memory of several host handles.
        let each = usize::try_from(tiers.chunk_bytes()).unwrap_or(usize::MAX);
        for start in (0..bytes).step_by(each) {
            let end = (start + each as u64).min(bytes);
            device.zero(space.addr() + start, end - start).doing(doing)?;
        }
        let inner = Arc::new(BufferInner {
            memory: DeviceArray::over(memory),
            launches: Mutex::default(),
            tiers: Some(Arc::clone(&tiers)),
        });
        let giver: Weak<BufferInner> = Arc::downgrade(&inner);
        let giver: Weak<dyn GivesHandles> = giver;
        handles.register(giver);
        Ok((inner, tiers))
    }
}

impl Tiers {
    /// Gives this many chunks their first memory.
    fn fill(&self, chunks: usize) -> Result<()> {
        let state = &mut *self.state.lock();
        let budget = usize::try_from(state.budget / self.chunk_bytes()).unwrap_or(usize::MAX);
        let resident = Self::free_gpu_memory(&self.handles, chunks.min(budget))?;
        let entered = |place| {
            move |memory: Handle| Chunk {
                memory,
                place,
                since: 0,
            }
        };
        state.chunks.extend(resident.into_iter().map(entered(TierPlace::Gpu)));
        let count = state.chunks.len();
        self.resident.store(count as u64, std::sync::atomic::Ordering::Relaxed);
        let host = self.host_memory(state, chunks - count)?;
        state.chunks.extend(host.into_iter().map(entered(TierPlace::Host)));
        let Some(space) = &state.space else { return Ok(()) };
        let offsets = (0..).map(|n| n * self.chunk_bytes());
        let placing: Vec<_> = offsets
            .zip(state.chunks.iter().map(|chunk| Arc::clone(&chunk.memory)))
            .collect();
        space.place(&placing).doing(|| self.doing("mapping chunks of"))
    }
}
