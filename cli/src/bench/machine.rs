//! The machine under measurement: a virtual memory, launches that are checked, memory for bare kernels.

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use gpuvm::{
    Buffer, Capabilities, CompileOptions, Kernel, KernelArgs, Launch, LaunchConfig, Module, RegionBuilder, Scope,
    Stats, Transport, Vm, VmBuilder,
};
use gpuvm_gpu::cuda::Managed;
use gpuvm_gpu::{DeviceMemory, Gpu, HostMemory};
use memmap2::{Advice, MmapMut, MmapOptions};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bench::args::{HomeArg, Share};
use crate::bench::report::Row;
use crate::error::CliError;
use crate::machine::MachineArgs;

/// Longest that one launch may run; a kernel that takes longer does not get on.
pub const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// Words of a tally; `common.cuh` names them.
const TALLY_WORDS: usize = 6;

/// What word `index` of the data holds; `common.cuh` has the same rule.
pub fn pattern(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995
}

/// Mixes 32 bits; `common.cuh` has the same rule.
pub fn hash(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// `length` values of `of(index)`, made by all processors.
pub fn fill<T: Copy + Default + Send>(length: u64, of: impl Fn(u64) -> T + Sync) -> Result<Vec<T>, CliError> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(length as usize)
        .map_err(|_| CliError::HostMemory {
            bytes: length.saturating_mul(size_of::<T>() as u64),
        })?;
    values.resize(length as usize, T::default());
    refill(&mut values, of);
    Ok(values)
}

/// Value `index` becomes `of(index)`, by all processors.
pub fn refill<T: Send>(values: &mut [T], of: impl Fn(u64) -> T + Sync) {
    in_parts(values, |first, part| {
        for (index, value) in (first..).zip(part) {
            *value = of(index);
        }
    });
}

/// Pages of this host, huge ones where there are any, that hold the pattern.
pub fn host_words(words: u64) -> Result<MmapMut, CliError> {
    host_pages(words, pattern)
}

/// Pages of this host, huge ones where there are any, with `length` values of `of(index)`.
pub fn host_pages<T: Pod + Send>(length: u64, of: impl Fn(u64) -> T + Sync) -> Result<MmapMut, CliError> {
    let bytes = length * size_of::<T>() as u64;
    let map = MmapOptions::new().len(bytes as usize).map_anon();
    let mut map = map.map_err(|_| CliError::HostMemory { bytes })?;
    // As regions that own their memory ask for them; without them it is slower, not wrong.
    let _ = map.advise(Advice::HugePage);
    refill(bytemuck::cast_slice_mut(&mut map), of);
    Ok(map)
}

/// Runs `work(index of the first one, part)` over parts of `values` on all processors.
fn in_parts<T: Send>(values: &mut [T], work: impl Fn(u64, &mut [T]) + Sync) {
    let part = part_of(values.len());
    std::thread::scope(|scope| {
        for (number, part_of_it) in values.chunks_mut(part).enumerate() {
            let work = &work;
            scope.spawn(move || work((number * part) as u64, part_of_it));
        }
    });
}

/// The sum of `of(index)` for all indices below `length`, by all processors.
pub fn sum(length: u64, of: impl Fn(u64) -> u64 + Sync) -> u64 {
    let part = part_of(length as usize) as u64;
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..length.div_ceil(part))
            .map(|number| {
                let (of, range) = (&of, number * part..length.min((number + 1) * part));
                scope.spawn(move || range.map(of).fold(0, u64::wrapping_add))
            })
            .collect();
        let sums = parts.into_iter().map(|part| part.join().unwrap_or_default());
        sums.fold(0, u64::wrapping_add)
    })
}

fn part_of(length: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    length.div_ceil(threads).max(1 << 16)
}

/// Nothing, where nothing was wrong.
///
/// # Errors
/// [`CliError::WrongData`].
pub fn must_be_right(wrong: u64, of: u64, what: &str) -> Result<(), CliError> {
    match wrong {
        0 => Ok(()),
        wrong => Err(CliError::WrongData {
            wrong,
            of,
            what: what.to_owned(),
        }),
    }
}

/// 0 to `count`, each once, in a random order that is the same in every run.
pub fn shuffled(count: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// The region's home: this host's memory or that of a neighbour GPU.
pub fn at_home<T: Pod>(region: RegionBuilder<T>, home: HomeArg) -> RegionBuilder<T> {
    match home {
        HomeArg::Host => region,
        HomeArg::Gpu(ordinal) => region.home_on_gpu(ordinal),
    }
}

/// The row with what the kernel takes of a multiprocessor, where that is known.
pub fn with_resources(row: Row, kernel: &Kernel) -> Row {
    match &kernel.info().resources {
        Some(resources) => row
            .and("registers", resources.registers.into())
            .and("local bytes", resources.local_bytes.into()),
        None => row,
    }
}

/// The direct transport, where another one was not asked for.
pub fn direct(args: &MachineArgs) -> MachineArgs {
    let mut args = args.clone();
    if matches!(args.transport, Transport::Auto(_)) {
        args.transport = Transport::Direct;
    }
    args
}

/// Runs `body` with the words pinned, so that regions over them come and go quickly.
pub fn pinned<'env, R>(
    machine: &Machine,
    words: &'env [u64],
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, CliError>,
) -> Result<R, CliError> {
    let ran = machine.vm.scope(|scope| {
        let _pinned = scope.read_only("data", words)?;
        Ok(body(scope))
    });
    ran?
}

/// A size in the largest unit that gives a whole number.
pub fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
    {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// How this folder's files are compiled.
pub fn options() -> CompileOptions {
    CompileOptions {
        headers: vec![("bench/common.cuh".to_owned(), include_str!("common.cuh").to_owned())],
        ..CompileOptions::default()
    }
}

/// A virtual memory and what the GPU can do.
pub struct Machine {
    /// The virtual memory.
    pub vm: Vm,
    /// What the GPU can do.
    pub able: Capabilities,
    /// Words of 8 bytes in a page.
    pub page_words: u64,
}

impl Machine {
    /// Brings up a virtual memory of that many frames.
    pub fn open(args: &MachineArgs, page_bytes: u64, frames: u64) -> Result<Self, CliError> {
        Self::open_with(args, page_bytes, frames, false)
    }

    /// [`Self::open`] with regions that may have checksums.
    pub fn open_with(args: &MachineArgs, page_bytes: u64, frames: u64, reliable: bool) -> Result<Self, CliError> {
        let builder = args
            .builder(page_bytes, None)?
            .reliable_regions(reliable)
            .frame_memory(frames.max(1).saturating_mul(page_bytes));
        Self::of(builder, page_bytes)
    }

    /// Brings up that one.
    pub fn of(builder: VmBuilder, page_bytes: u64) -> Result<Self, CliError> {
        let vm = builder.launch_deadline(LAUNCH_LIMIT).build();
        let vm = vm.map_err(CliError::BackEnd)?;
        Ok(Self {
            able: vm.device().capabilities(),
            page_words: page_bytes / 8,
            vm,
        })
    }

    /// A small one, to see what there is and for bare kernels.
    pub fn probe(args: &MachineArgs) -> Result<Self, CliError> {
        Self::open(args, 4096, 256)
    }

    /// Whether it is an NVIDIA GPU.
    pub fn is_cuda(&self) -> bool {
        self.able.compute_capability.is_some()
    }

    /// The clock's rate: the launch's own where it was long enough to tell, since GPUs change theirs.
    pub fn ticks_per_us(&self, said: Said) -> f64 {
        match said.time_ns {
            0..200_000 => self.able.ticks_per_us,
            time_ns => said.ticks as f64 * 1e3 / time_ns as f64,
        }
    }

    /// Frames beside those for the data, so that none has to leave: a part of them all is kept free.
    pub fn reserve(pages: u64) -> u64 {
        (pages / 6 + 64).min(1 << 16)
    }

    /// Frames for a share of the pages; for all of them there are some besides, since some are always kept free.
    pub fn frames_for(pages: u64, Share(share): Share) -> u64 {
        if share == 1.0 {
            return pages + Self::reserve(pages);
        }
        ((pages as f64 * share) as u64).max(1)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        self.vm.device()
    }

    /// Compiles those kernels, with blanks between their names, of one of this folder's files.
    pub fn compile(&self, name: &str, source: &str, kernels: &str) -> Result<Module, CliError> {
        self.compile_for(name, source, kernels, HomeArg::Host)
    }

    /// [`Self::compile`] for pages whose home is there.
    pub fn compile_for(&self, name: &str, source: &str, kernels: &str, home: HomeArg) -> Result<Module, CliError> {
        let mut options = options();
        if matches!(home, HomeArg::Gpu(_)) {
            options.defines.push(("BENCH_NEIGHBOUR".to_owned(), None));
        }
        self.compile_with(name, source, kernels, &options)
    }

    /// [`Self::compile`] in that way.
    pub fn compile_with(
        &self,
        name: &str,
        source: &str,
        kernels: &str,
        options: &CompileOptions,
    ) -> Result<Module, CliError> {
        let kernels: Vec<&str> = kernels.split_ascii_whitespace().collect();
        Ok(self.vm.compile_with(name, source, &kernels, options)?)
    }

    /// A launch of about that many warps, whole blocks; and how many warps it has.
    pub fn warps(&self, warps: u32) -> (LaunchConfig, u64) {
        let per_block = if self.is_cuda() && warps >= 8 * self.able.sm_count {
            8
        } else {
            1
        };
        let blocks = warps.div_ceil(per_block).max(1);
        (LaunchConfig::new(blocks, 32 * per_block), u64::from(blocks * per_block))
    }

    /// As many warps as fill the GPU for a bare kernel that waits for memory.
    pub fn many_warps(&self) -> (LaunchConfig, u64) {
        self.warps(if self.is_cuda() { 32 * self.able.sm_count } else { 16 })
    }

    /// Every multiprocessor full, in blocks of 256.
    pub fn most_warps(&self) -> (LaunchConfig, u64) {
        self.warps(if self.is_cuda() { 64 * self.able.sm_count } else { 16 })
    }

    /// A device buffer that holds `values`.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>, CliError> {
        let buffer = self.vm.buffer(values.len().max(1) as u64)?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// Memory for bare kernels where the home of pages is.
    pub fn memory(&self, home: HomeArg, bytes: u64) -> Result<RawMemory, CliError> {
        let memory = match home {
            HomeArg::Host => self.gpu().allocate_host(bytes).map(RawMemory::Host),
            HomeArg::Gpu(ordinal) => self.gpu().allocate_on(ordinal, bytes).map(RawMemory::Device),
        };
        memory.map_err(|source| CliError::Memory { bytes, source })
    }

    /// Device memory for bare kernels.
    pub fn device_memory(&self, bytes: u64) -> Result<RawMemory, CliError> {
        let memory = self.gpu().allocate(bytes, 256).map(RawMemory::Device);
        memory.map_err(|source| CliError::Memory { bytes, source })
    }

    /// What the virtual memory counts while something is done.
    pub fn counted<R>(&self, work: impl FnOnce() -> Result<R, CliError>) -> Result<(R, Stats), CliError> {
        let before = self.vm.stats()?;
        let done = work()?;
        Ok((done, self.vm.stats()?.difference(&before)))
    }
}

/// Memory that only bare kernels use.
pub enum RawMemory {
    /// Pinned memory of this host.
    Host(HostMemory),
    /// Memory of this GPU or a neighbour.
    Device(DeviceMemory),
    /// CUDA's managed memory.
    Managed(Managed),
}

impl RawMemory {
    /// The first byte, for kernels.
    pub fn addr(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.device_addr(),
            Self::Device(memory) => memory.addr(),
            Self::Managed(memory) => memory.addr(),
        }
    }
}

/// What kernels say of themselves.
pub struct Tally {
    buffer: Buffer<u64>,
}

/// `common.cuh` has the same names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// A sum of what was read.
    pub sum: u64,
    /// Ticks of the whole measurement.
    pub ticks: u64,
    /// Nanoseconds of the same.
    pub time_ns: u64,
}

impl Tally {
    /// For launches on that machine.
    pub fn new(machine: &Machine) -> Result<Self, CliError> {
        Ok(Self {
            buffer: machine.upload(&[0; TALLY_WORDS])?,
        })
    }

    /// The argument for kernels.
    pub fn arg(&self) -> &Buffer<u64> {
        &self.buffer
    }

    /// Runs a kernel that must do `done` units of work; the seconds that it took.
    ///
    /// # Errors
    /// The launch's, [`CliError::DidNotRun`] for a kernel that did not do all of it, [`CliError::WrongData`].
    pub fn run(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        args: impl KernelArgs,
        done: u64,
    ) -> Result<(f64, Said), CliError> {
        let launch = self.start(kernel, config, args)?;
        self.finish(kernel, &launch, done)
    }

    /// Starts a kernel that runs on while the host does something else. One at a time.
    pub fn start(&self, kernel: &Kernel, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch, CliError> {
        self.buffer.write(&[0; TALLY_WORDS])?;
        kernel.launch(config, args).map_err(CliError::Vm)
    }

    /// Waits for what was started and told to stop: how much it had done by then.
    ///
    /// # Errors
    /// As [`Self::run`], but for the stop.
    pub fn stopped(&self, kernel: &Kernel, launch: &Launch) -> Result<u64, CliError> {
        match launch.sync() {
            Ok(_) | Err(gpuvm::Error::Stopped { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let said = self.buffer.to_vec()?;
        must_be_right(said[1], said[0], &kernel.info().name)?;
        Ok(said[0])
    }

    /// Waits for what was started; as [`Self::run`].
    pub fn finish(&self, kernel: &Kernel, launch: &Launch, wanted: u64) -> Result<(f64, Said), CliError> {
        let report = launch.sync()?;
        let said = self.buffer.to_vec()?;
        let (done, kernel) = (said[0], kernel.info().name.clone());
        if done != wanted {
            return Err(CliError::DidNotRun { kernel, done, wanted });
        }
        must_be_right(said[1], wanted, &kernel)?;
        let [sum, ticks, time_ns] = [said[2], said[3], said[4]];
        let said = Said { sum, ticks, time_ns };
        Ok((report.elapsed().as_secs_f64().max(1e-9), said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        let values = fill(1_000_003, pattern).unwrap();
        assert!((0..).zip(&values).all(|(index, value)| pattern(index) == *value));
        let total = values.iter().copied().fold(0, u64::wrapping_add);
        assert_eq!(sum(1_000_003, pattern), total);
        assert_eq!(sum(0, pattern), 0);
    }

    #[test]
    fn an_order_has_each_page_once() {
        let mut order = shuffled(1000, 1);
        assert_ne!(order, shuffled(1000, 2));
        assert_eq!(order, shuffled(1000, 1));
        order.sort_unstable();
        assert!((0..1000).eq(order));
    }

    #[test]
    fn sizes_in_words() {
        for (bytes, text) in [
            (4096, "4 KiB"),
            (2 << 20, "2 MiB"),
            (16 << 30, "16 GiB"),
            (4097, "4097 B"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
