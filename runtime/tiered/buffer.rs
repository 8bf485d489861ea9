//! What programs hold of a tiered buffer.

use std::{
    ops::{Deref, Range},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{LOCK_TIMEOUT, State, TOGETHER, Tiers};
use crate::{
    buffer::{Buffer, BufferInner},
    element::Untyped,
    error::{Doing, Error, Result, check_range},
    handles::{GivesHandles, Handle},
    tier_place::TierPlace,
};

/// A [`Buffer`] whose memory lies in chunks on the GPU or in host memory, at one address for ever: for kernels and libraries that take a bare
/// pointer to more than the GPU has memory for. All of a buffer's methods are its own, and it is a kernel's argument as a buffer is.
///
/// ```
/// # use gpuvm::{LaunchConfig, TierPlace, Vm};
/// # fn main() -> Result<(), gpuvm::Error> {
/// # let vm = Vm::builder().frame_memory(1 << 18).build()?;
/// # let source = "__global__ void fill(float* at, unsigned long long n) { for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x) at[i] = i; }";
/// # let fill = vm.kernel("fill.cu", source, "fill")?;
/// let weights = vm.tiered_buffer::<f32>(100_000)?; // zeroed, on the GPU as far as there is room
/// weights.move_to(50_000..100_000, TierPlace::Host)?;
/// fill.launch(LaunchConfig::new(1, 32), (&weights, weights.len()))?.sync()?; // both halves, by one pointer
/// weights.move_to(0..100_000, TierPlace::Gpu)?;
/// assert_eq!(weights.to_vec()?[99_999], 99_999.0);
/// # Ok(()) }
/// ```
///
/// - *Chunks* are as large as the GPU maps at once: 2 MiB on NVIDIA GPUs. A kernel reads and writes each where it lies: on the GPU at its
///   memory's speed, in host memory over the wire. Nothing faults, and nothing moves by itself while kernels run.
/// - *Moves* ([`move_to`](Self::move_to), [`set_budget`](Self::set_budget)) wait for the launches that name the buffer, and keep others
///   from beginning meanwhile. Once its [address](Buffer::addr) was told they wait for all work of the GPU's context too, and the thread that was
///   told it enqueues nothing with it meanwhile.
/// - *Eviction*: when something else of this virtual memory finds no GPU memory, chunks go to host memory, of buffers of low priority
///   first; the caller waits for the copies, and for no launch. A buffer that a launch uses, or whose address was told, keeps its chunks.
///   What was evicted stays there until it is moved.
/// - *Errors* lose nothing: a chunk that cannot move stays where it is, with what it holds.
/// - *Host memory* of chunks that came to the GPU is kept for when they leave again, until the buffer is dropped.
pub struct TieredBuffer<E> {
    pub(super) buffer: Buffer<E>,
    pub(super) tiers: Arc<Tiers>,
}

/// A tiered buffer whose element type is known at run time alone: [`VmGpu::raw_tiered`](crate::VmGpu::raw_tiered).
pub type RawTieredBuffer = TieredBuffer<Untyped>;

/// What a move of chunks was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Chunks that came to the GPU.
    pub came: u64,
    /// Chunks that went to host memory.
    pub left: u64,
    /// How long the caller was held, without the time that launches took to end.
    pub took: Duration,
}

impl<E> Deref for TieredBuffer<E> {
    type Target = Buffer<E>;

    fn deref(&self) -> &Buffer<E> {
        &self.buffer
    }
}

impl<E> Buffer<E> {
    /// It as a tiered one, if it was made so: for faces in other languages, which know one kind of buffer.
    #[doc(hidden)]
    pub fn tiered(&self) -> Option<TieredBuffer<E>> {
        let tiers = Arc::clone(self.inner.tiers.as_ref()?);
        let (gpu, inner) = (Arc::clone(&self.gpu), Arc::clone(&self.inner));
        let buffer = Buffer::of(gpu, inner, self.element.clone(), self.len());
        Some(TieredBuffer { buffer, tiers })
    }
}

/// What is to move.
#[derive(Default)]
struct Plan {
    leaving: Vec<usize>,
    coming: Vec<usize>,
    /// Handles for those that come, but for those of who leaves.
    gpu: Vec<Handle>,
    /// The budget from then on.
    budget: Option<u64>,
}

impl<E> TieredBuffer<E> {
    /// It as a buffer, whose [`tiered`](Buffer::tiered) it is.
    #[doc(hidden)]
    pub fn into_buffer(self) -> Buffer<E> {
        self.buffer
    }

    /// The name that errors use.
    pub fn name(&self) -> &str {
        &self.tiers.name
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.tiers.chunk_bytes()
    }

    /// Bytes of the chunks that lie on the GPU now, whole chunks.
    pub fn resident_bytes(&self) -> u64 {
        self.tiers.resident_bytes()
    }

    /// Bytes that may lie on the GPU.
    pub fn budget(&self) -> u64 {
        self.tiers.state.lock().budget
    }

    /// Where an element lies. It waits for moves of chunks.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn place_of(&self, element: u64) -> Result<TierPlace> {
        let range = element..element.saturating_add(1);
        let chunk = self.chunks_of(&range)?.start;
        Ok(self.tiers.state.lock().chunks[chunk].place)
    }

    /// Whose chunks go to host memory first when GPU memory is short: those of low priority. It holds for the next who is short.
    pub fn set_priority(&self, priority: i32) {
        self.tiers.priority.store(priority, Ordering::Relaxed);
    }

    /// Moves the chunks that hold elements of a range to a place. Those that come to the GPU beyond the [budget](Self::set_budget) have
    /// others leave: those that came, or were to come, longest ago.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Setting`] for more than the budget allows; [`Error::NotMoved`] where that place has no memory and
    /// nothing gives any up: no chunk has moved then; [`Error::Gpu`]: some may have moved.
    pub fn move_to(&self, range: Range<u64>, place: TierPlace) -> Result<Moved> {
        let chunks = self.chunks_of(&range)?;
        self.relocate(|tiers, state| match place {
            TierPlace::Host => {
                let leaving = state.at(TierPlace::Gpu).filter(|n| chunks.contains(n)).collect();
                Ok(Plan {
                    leaving,
                    ..Plan::default()
                })
            }
            TierPlace::Gpu => tiers.plan_coming(state, &chunks),
        })
    }

    /// Says how many bytes of it may lie on the GPU, rounded down to chunks. Chunks beyond leave at once, those first that came longest ago;
    /// where there is room chunks come in order of their addresses, as far as GPU memory is free: nothing gives any up for them. The
    /// same budget once more so brings back what was evicted.
    ///
    /// # Errors
    /// [`Error::NotMoved`] where host memory is short: the budget is as before; [`Error::Gpu`].
    pub fn set_budget(&self, bytes: u64) -> Result<Moved> {
        let chunks = usize::try_from(bytes / self.chunk_bytes()).unwrap_or(usize::MAX);
        self.relocate(|tiers, state| {
            let resident = state.resident();
            let leaving = state.first_to_leave(resident.saturating_sub(chunks), |_| false);
            let mut coming: Vec<usize> = state
                .at(TierPlace::Host)
                .take(chunks.saturating_sub(resident))
                .collect();
            let gpu = Tiers::free_gpu_memory(&tiers.handles, coming.len())?;
            coming.truncate(gpu.len());
            let budget = Some(bytes);
            Ok(Plan {
                leaving,
                coming,
                gpu,
                budget,
            })
        })
    }

    /// The chunks that hold elements of a range.
    fn chunks_of(&self, range: &Range<u64>) -> Result<Range<usize>> {
        check_range(self.name(), range, self.len())?;
        if range.is_empty() {
            return Ok(0..0);
        }
        let (element, size) = (self.element.bytes() as u64, self.chunk_bytes());
        let (start, end) = (range.start * element / size, (range.end * element).div_ceil(size));
        Ok(start as usize..end as usize)
    }

    /// Moves chunks as planned, when no launch that may use the buffer runs.
    fn relocate(&self, plan: impl FnOnce(&Tiers, &mut State) -> Result<Plan>) -> Result<Moved> {
        let (tiers, gpu) = (&self.tiers, &self.gpu);
        // While it is held none begins.
        let mut launches = self.inner.launches.lock();
        launches.wait_idle();
        let began = Instant::now();
        let moved = tiers.repair().and_then(|()| {
            let state = &mut *tiers.state.lock();
            // The library is not told the address from here on.
            if tiers.is_lent() {
                gpu.device.drain().doing(|| tiers.doing("waiting for users of"))?;
            }
            let Plan {
                leaving,
                coming,
                gpu,
                budget,
            } = plan(tiers, state)?;
            tiers.relocate(state, &leaving, &coming, gpu)?;
            state.budget = budget.unwrap_or(state.budget);
            Ok((coming.len() as u64, leaving.len() as u64))
        });
        let (came, left) = gpu.map_device_lost(moved)?;
        let took = began.elapsed();
        Ok(Moved { came, left, took })
    }
}

impl Tiers {
    /// What is to leave so that chunks can come, and memory for the rest of them.
    fn plan_coming(&self, state: &mut State, chunks: &Range<usize>) -> Result<Plan> {
        let budget = usize::try_from(state.budget / self.chunk_bytes()).unwrap_or(usize::MAX);
        if chunks.len() > budget {
            return Err(Error::Setting {
                setting: "chunks of a tiered buffer to come to the GPU",
                value: chunks.len().to_string(),
                reason: format!(
                    "the budget of `{}` is {budget} chunks: raise it, or move fewer",
                    self.name
                ),
            });
        }
        let coming: Vec<usize> = state.at(TierPlace::Host).filter(|n| chunks.contains(n)).collect();
        let over = (state.resident() + coming.len()).saturating_sub(budget);
        let stay = |n| chunks.contains(&n);
        let mut leaving = state.first_to_leave(over, stay);
        let wanted = coming.len() - leaving.len();
        let gpu = match self.gpu_memory(state, wanted) {
            Ok(gpu) => gpu,
            Err(short) if short.is_out_of_memory() => {
                // What nothing else gives up its own chunks do.
                let found = Self::free_gpu_memory(&self.handles, wanted)?;
                let more = leaving.len() + wanted - found.len();
                leaving = state.first_to_leave(more, stay);
                if leaving.len() < more {
                    self.handles.give(found);
                    return Err(short);
                }
                found
            }
            Err(other) => return Err(other),
        };
        // Those that are there stay as long as those that come.
        for chunk in &mut state.chunks[chunks.clone()] {
            chunk.since = state.moves + 1;
        }
        Ok(Plan {
            leaving,
            coming,
            gpu,
            budget: None,
        })
    }
}

impl<E> std::fmt::Debug for TieredBuffer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (length, size) = (self.len(), self.element.bytes());
        let resident = self.resident_bytes();
        write!(
            f,
            "TieredBuffer({length} elements of {size} bytes, {resident} bytes on the GPU)"
        )
    }
}

impl GivesHandles for BufferInner {
    fn holds(&self) -> (String, u64) {
        let holds = |tiers: &Arc<Tiers>| (format!("tiered buffers named `{}`", tiers.name), tiers.resident_bytes());
        self.tiers.as_ref().map(holds).unwrap_or_default()
    }

    fn priority(&self) -> i32 {
        self.tiers
            .as_ref()
            .map_or(0, |tiers| tiers.priority.load(Ordering::Relaxed))
    }

    fn give_up(&self, handles: usize, until: Option<Instant>) -> usize {
        let Some(tiers) = &self.tiers else { return 0 };
        // A kernel that does not name it may use it, and nothing may wait for that here.
        if tiers.asking.load(Ordering::Relaxed) || tiers.is_lent() {
            return 0;
        }
        let timeout = until.map_or(LOCK_TIMEOUT, |until| {
            until.saturating_duration_since(Instant::now()).min(LOCK_TIMEOUT)
        });
        let Some(launches) = self
            .launches
            .try_lock_for(timeout)
            .filter(|launches| launches.is_idle())
        else {
            return 0;
        };
        let Some(mut state) = tiers.state.try_lock_for(timeout) else {
            return 0;
        };
        // It may have been told meanwhile. And of chunks that could not be mapped again nothing knows what lies at their addresses.
        if tiers.is_lent() || !state.astray.is_empty() {
            return 0;
        }
        let mut given = 0;
        for some in state.first_to_leave(handles, |_| false).chunks(TOGETHER) {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            if let Err(error) = tiers.relocate(&mut state, some, &[], Vec::new()) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "memory stays with tiered buffer `{}`", tiers.name);
                break;
            }
            given += some.len();
        }
        drop(launches);
        given
    }
}
