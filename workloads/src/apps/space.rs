//! Where an application's large arrays lie, and how its kernels get to them: one text of kernels and of launches for all.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use gpuvm::{Buffer, Capabilities, CompileOptions, Kernel, Launch, LaunchConfig, Placement, Region, Stats, Vm};
use gpuvm_gpu::cuda::{Advice as ManagedAdvice, CudaGpu, Managed, Side};
use gpuvm_gpu::{Copier, CopySpan, DeviceMemory, Gpu};

use super::array::{Array, Store, Stream, Use};
use super::error::{AppError, Step};
use super::way::{ACCESS, Way};
use crate::bfs::check_placement;

/// Bytes of the streamed arrays' parts that one chunk brings, where they are copied in chunks.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// How long the host rests between two looks at a copy.
const COPY_LOOK: Duration = Duration::from_micros(5);

impl Way {
    /// Whether arrays can be made in that way beside these memory nodes, if there are any: paged ones lie there, and others on this machine.
    ///
    /// # Errors
    /// [`AppError::Way`] for a way that would leave the nodes unused.
    pub fn beside_nodes<S: AsRef<str>>(self, nodes: &[S]) -> Result<(), AppError> {
        if !self.plain() || nodes.is_empty() {
            return Ok(());
        }
        let nodes: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
        let reason = format!(
            "its arrays lie on this machine, and the memory nodes ({}) would stay unused; leave --memory-node out, or choose --placement auto or fetch",
            nodes.join(", ")
        );
        Err(AppError::Way { way: self, reason })
    }

    /// Whether arrays can be made in that way beside the frames of `vm`.
    ///
    /// # Errors
    /// [`AppError::Way`]: for managed memory on a GPU that has none, as [`beside_nodes`](Self::beside_nodes), and for reads in place over
    /// a transport whose lanes do not reach the pages' homes.
    pub fn fits(self, vm: &Vm) -> Result<(), AppError> {
        self.beside_nodes(&vm.memory_nodes())?;
        let refused = |reason| Err(AppError::Way { way: self, reason });
        if let Self::Paged(placement) = self {
            return check_placement(placement, vm.transport()).or_else(|unreached| refused(unreached.to_string()));
        }
        match self.managed() && vm.device().capabilities().compute_capability.is_none() {
            true => refused(format!(
                "{} has no managed memory; name an NVIDIA GPU, or another way",
                vm.gpu_name()
            )),
            false => Ok(()),
        }
    }
}

/// One GPU, with arrays in one of the ways.
pub struct Space {
    vm: Vm,
    way: Way,
    /// The GPU once more, for what only CUDA has.
    cuda: Option<CudaGpu>,
    /// To the GPU, and back from it.
    copiers: Option<[Line; 2]>,
}

impl Space {
    /// Arrays in that way, beside the frames of `vm`. `ordinal`: the CUDA device, for managed memory.
    ///
    /// # Errors
    /// [`Way::fits`]'s, the driver's.
    pub fn new(vm: &Vm, way: Way, ordinal: &str) -> Result<Self, AppError> {
        way.fits(vm)?;
        let cuda = match way.managed() {
            true => Some(CudaGpu::open(ordinal.to_owned()).map_err(AppError::device(Step::Open))?),
            false => None,
        };
        let copiers = match way {
            Way::Chunked => Some([Line::of(&**vm.device())?, Line::of(&**vm.device())?]),
            _ => None,
        };
        Ok(Self {
            vm: vm.clone(),
            way,
            cuda,
            copiers,
        })
    }

    /// The way.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Fails where arrays are copied in chunks, for an application whose reads lead anywhere, as `reason` says.
    pub(super) fn refuse_chunks(&self, reason: &str) -> Result<(), AppError> {
        match self.way {
            Way::Chunked => Err(AppError::Way {
                way: self.way,
                reason: reason.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The virtual memory, whose GPU runs the kernels in every way.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// What its GPU can do.
    pub fn gpu(&self) -> Capabilities {
        self.vm.device().capabilities()
    }

    /// What paging has done so far.
    ///
    /// # Errors
    /// The GPU's.
    pub fn stats(&self) -> Result<Stats, AppError> {
        self.vm.stats().map_err(AppError::vm(Step::Stats))
    }

    /// Bytes that chunks have moved so far, both ways.
    pub fn copied_bytes(&self) -> u64 {
        self.copiers.iter().flatten().map(Line::bytes).sum()
    }

    /// Kernels of an application's source.
    ///
    /// # Errors
    /// The compiler's.
    pub fn kernels<const N: usize>(
        &self,
        file: &str,
        source: &str,
        names: [&str; N],
        defines: &[(&str, String)],
    ) -> Result<[Kernel; N], AppError> {
        let defines = defines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Some(value.clone())));
        let options = CompileOptions {
            headers: vec![("access.cuh".to_owned(), ACCESS.to_owned())],
            defines: defines.collect(),
            ..CompileOptions::default()
        };
        self.kernels_with(file, source, names, options)
    }

    /// [`kernels`](Self::kernels) of a source with options of its own, whose headers have `access.cuh`.
    ///
    /// # Errors
    /// The compiler's.
    pub fn kernels_with<const N: usize>(
        &self,
        file: &str,
        source: &str,
        names: [&str; N],
        mut options: CompileOptions,
    ) -> Result<[Kernel; N], AppError> {
        let plain = if self.way.plain() { "1" } else { "0" };
        options
            .defines
            .push(("ACCESS_PLAIN".to_owned(), Some(plain.to_owned())));
        self.vm
            .kernels(file, source, names, &options)
            .map_err(AppError::vm(Step::Compile))
    }

    /// A launch that fills the GPU with warps that share out work by their numbers, for kernels with bounds of 128 threads and
    /// `blocks` blocks of a multiprocessor. A warp holds this many spans at once. With few frames there are fewer warps; spans of arrays
    /// with frames of their own hold none of them.
    pub fn whole_gpu(&self, blocks: u32, spans: u64) -> LaunchConfig {
        let gpu = self.gpu();
        let (blocks, threads) = match gpu.compute_capability {
            Some(_) => (gpu.sm_count * blocks, 128),
            // The simulated GPU runs a lane at a time: few warps keep few pages.
            None => (2, 64),
        };
        let Way::Paged(_) = self.way else {
            return LaunchConfig::new(blocks, threads);
        };
        // A warp that waits for a page may hold others: one frame more than all can hold lets somebody go on.
        let held = u64::from(threads / 32) * spans;
        let most = (self.vm.frames().saturating_sub(1) / held.max(1)).max(1);
        LaunchConfig::new(u64::from(blocks).min(most) as u32, threads).warp_spans(spans)
    }

    /// Plain device memory for what is small, in every way.
    ///
    /// # Errors
    /// Device memory is short.
    pub fn buffer<T: Pod>(&self, length: u64) -> Result<Buffer<T>, AppError> {
        self.vm.buffer(length.max(1)).map_err(AppError::vm(Step::Memory))
    }

    /// [`buffer`](Self::buffer) with these values.
    ///
    /// # Errors
    /// Device memory is short.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>, AppError> {
        let buffer = self.buffer(values.len() as u64)?;
        buffer.write(values).map_err(AppError::vm(Step::Memory))?;
        Ok(buffer)
    }

    /// A large array that holds `values`.
    ///
    /// # Errors
    /// Memory is short.
    pub fn array<T: Pod>(&self, name: &'static str, usage: Use, values: &[T]) -> Result<Array<T>, AppError> {
        let bytes = std::mem::size_of_val(values) as u64;
        let store = match self.way {
            Way::Paged(_) | Way::Resident => Store::Region(self.region(name, usage, values)?),
            Way::Raw => {
                let memory = self.device_memory(bytes)?;
                self.write(memory.addr(), values)?;
                Store::Device(memory)
            }
            Way::InPlace | Way::Chunked => {
                let home = self.vm.device().allocate_host(bytes.max(1));
                let home = home.map_err(AppError::device(Step::Memory))?;
                self.write(home.device_addr(), values)?;
                Store::Host(home)
            }
            Way::Managed | Way::Advised | Way::Prefetched => Store::Managed(self.managed(usage, values)?),
        };
        Ok(Array::new(
            store,
            self.vm.device(),
            self.way,
            usage,
            values.len() as u64,
        ))
    }

    fn region<T: Pod>(&self, name: &'static str, usage: Use, values: &[T]) -> Result<Region<T>, AppError> {
        let builder = self.vm.region::<T>().name(name);
        let builder = match usage {
            Use::Read => builder.read_only(),
            Use::ReadWrite => builder,
        };
        let builder = match (self.way, usage) {
            (Way::Resident, _) => builder.never_evicted(),
            // What is written is placed by looking up alone.
            (Way::Paged(placement), Use::Read) | (Way::Paged(placement @ Placement::LookUp), _) => {
                builder.placement(placement)
            }
            _ => builder.placement(Placement::Fetch),
        };
        builder.from_slice(values).map_err(AppError::vm(Step::Memory))
    }

    fn device_memory(&self, bytes: u64) -> Result<DeviceMemory, AppError> {
        let memory = self.vm.device().allocate(bytes.max(1), 256);
        memory.map_err(AppError::device(Step::Memory))
    }

    fn write<T: Pod>(&self, address: u64, values: &[T]) -> Result<(), AppError> {
        let written = self.vm.device().write(address, bytemuck::cast_slice(values));
        written.map_err(AppError::device(Step::Memory))
    }

    fn managed<T: Pod>(&self, usage: Use, values: &[T]) -> Result<Managed, AppError> {
        let Some(cuda) = &self.cuda else {
            unreachable!("managed memory is of CUDA's ways")
        };
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let failed = AppError::device(Step::Memory);
        let memory = cuda.managed((bytes.len() as u64).max(1)).map_err(&failed)?;
        memory.write(0, bytes).map_err(&failed)?;
        if self.way == Way::Advised {
            let advice = match usage {
                Use::Read => ManagedAdvice::ReadMostly,
                Use::ReadWrite => ManagedAdvice::AccessedBy(Side::Gpu),
            };
            memory.advise(advice).map_err(&failed)?;
        }
        Ok(memory)
    }
}

/// A copier, and what it was given.
pub(crate) struct Line {
    copier: Arc<dyn Copier>,
    submitted: Cell<u64>,
    bytes: Cell<u64>,
}

impl Line {
    pub(crate) fn of(gpu: &dyn Gpu) -> Result<Self, AppError> {
        Ok(Self {
            copier: gpu.copier().map_err(AppError::device(Step::Open))?,
            submitted: Cell::new(0),
            bytes: Cell::new(0),
        })
    }

    /// Bytes of all copies so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Begins to copy.
    ///
    /// # Safety
    /// Both ends of each span are memory that these GPUs' copy engines reach, and that stays until [`arrive`](Self::arrive) has returned or
    /// the copier has gone. Until then nothing else writes them, and nothing reads where it is copied to.
    pub(crate) unsafe fn submit(&self, spans: &[CopySpan]) -> Result<(), AppError> {
        if spans.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.copier.submit(spans, &[]) }.map_err(AppError::device(Step::Copy))?;
        self.submitted.set(self.submitted.get() + 1);
        let bytes = spans.iter().map(|span| span.bytes).sum::<u64>();
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }

    /// Waits until all of it has arrived. `rest`: between two looks.
    pub(crate) fn arrive(&self, rest: impl Fn()) -> Result<(), AppError> {
        let failed = AppError::device(Step::Copy);
        while self.copier.completed().map_err(&failed)? < self.submitted.get() {
            rest();
        }
        Ok(())
    }
}

/// Rows that are worked on together, and what they need of each stream: first element and past the last one.
struct Chunk {
    rows: (u64, u64),
    parts: Vec<(u64, u64)>,
}

impl Space {
    /// Runs a kernel over `rows` rows: `launch(first, count)` launches it for some of them. All at once, but for
    /// [`Way::Chunked`]: there rows follow each other in chunks, whose parts of `streams` are copied beforehand, and back where
    /// they are written.
    ///
    /// # Errors
    /// The launch's, the copies'.
    pub fn sweep(
        &self,
        rows: u64,
        streams: &[Stream<'_>],
        launch: &mut dyn FnMut(u64, u64) -> Result<Launch, AppError>,
    ) -> Result<(), AppError> {
        let Some(lines) = &self.copiers else {
            return finish(Ok(launch(0, rows)?));
        };
        let swept = sweep_chunks(&chunks(rows, streams), streams, lines, launch);
        streams.iter().for_each(|stream| stream.array.shift(None));
        swept
    }
}

/// Works on chunks by turns in two slots: one is brought, and another one taken back, while one is worked on.
fn sweep_chunks(
    chunks: &[Chunk],
    streams: &[Stream<'_>],
    [to, back]: &[Line; 2],
    launch: &mut dyn FnMut(u64, u64) -> Result<Launch, AppError>,
) -> Result<(), AppError> {
    let mut rooms = Vec::new();
    for (place, stream) in streams.iter().enumerate() {
        let longest = chunks
            .iter()
            .map(|chunk| chunk.parts[place].1 - chunk.parts[place].0)
            .max();
        rooms.push(
            stream
                .array
                .slots(longest.unwrap_or(0) * stream.array.element_bytes())?,
        );
    }
    let copy = |line: &Line, number: usize, out: bool| {
        let spans = spans(&chunks[number], streams, &rooms, number % 2, out);
        // SAFETY: slots and homes are memory of arrays that outlive the sweep, which waits for its copies. Kernels that use a slot have
        // ended, and the host reaches neither meanwhile.
        unsafe { line.submit(&spans) }
    };
    let rest = || std::thread::sleep(COPY_LOOK);
    let mut running: Option<Launch> = None;
    if !chunks.is_empty() {
        copy(to, 0, false)?;
    }
    for (number, chunk) in chunks.iter().enumerate() {
        // The chunk before this one has left its slot when the next one comes there.
        if let Some(before) = running.take() {
            finish(Ok(before))?;
            copy(back, number - 1, true)?;
        }
        to.arrive(rest)?;
        if number + 1 < chunks.len() {
            back.arrive(rest)?;
            copy(to, number + 1, false)?;
        }
        for (place, stream) in streams.iter().enumerate() {
            let before = chunk.parts[place].0 * stream.array.element_bytes();
            stream.array.shift(Some(rooms[place][number % 2].wrapping_sub(before)));
        }
        running = Some(launch(chunk.rows.0, chunk.rows.1 - chunk.rows.0)?);
    }
    if let Some(last) = running {
        finish(Ok(last))?;
        copy(back, chunks.len() - 1, true)?;
    }
    back.arrive(rest)
}

/// The copies of a chunk to its slot, or of what was written there back.
fn spans(chunk: &Chunk, streams: &[Stream<'_>], rooms: &[[u64; 2]], slot: usize, out: bool) -> Vec<CopySpan> {
    let mut spans = Vec::new();
    for ((stream, &(first, past)), room) in streams.iter().zip(&chunk.parts).zip(rooms) {
        let (bytes, element) = (
            (past - first) * stream.array.element_bytes(),
            stream.array.element_bytes(),
        );
        let Some(home) = stream.array.home() else { continue };
        let (home, room) = (home + first * element, room[slot]);
        let (to, from) = if out { (home, room) } else { (room, home) };
        if bytes > 0 && (!out || stream.array.usage() == Use::ReadWrite) {
            spans.push(CopySpan { to, from, bytes });
        }
    }
    spans
}

/// Splits rows so that the parts of each chunk fit into [`CHUNK_BYTES`], or are one row.
fn chunks(rows: u64, streams: &[Stream<'_>]) -> Vec<Chunk> {
    let parts = |first: u64, past: u64| -> Vec<(u64, u64)> {
        let part = |stream: &Stream<'_>| ((stream.first)(first), (stream.past)(past));
        streams.iter().map(part).collect()
    };
    let bytes = |first: u64, past: u64| -> u64 {
        let sizes = parts(first, past).into_iter().zip(streams);
        sizes
            .map(|((from, to), stream)| (to - from) * stream.array.element_bytes())
            .sum()
    };
    let (mut chunks, mut first) = (Vec::new(), 0);
    while first < rows {
        // The most rows that fit, by bisection.
        let (mut fits, mut beyond) = (first + 1, rows + 1);
        while fits + 1 < beyond {
            let middle = fits + (beyond - fits) / 2;
            match bytes(first, middle) <= CHUNK_BYTES {
                true => fits = middle,
                false => beyond = middle,
            }
        }
        chunks.push(Chunk {
            rows: (first, fits),
            parts: parts(first, fits),
        });
        first = fits;
    }
    chunks
}

/// Waits for a launch, if it is one.
pub(super) fn finish(launch: gpuvm::Result<Launch>) -> Result<(), AppError> {
    let ended = launch.and_then(|launch| launch.sync().map(drop));
    ended.map_err(AppError::vm(Step::Run))
}
