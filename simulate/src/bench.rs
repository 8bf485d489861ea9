//! Kernels on a virtual memory.

use bytemuck::Zeroable;
use gpuvm::{CompileOptions, Kernel, KernelArgs, Launch, LaunchConfig, Module, Region, StreamHandle, Vm, VmBuilder};
use gpuvm_layouts as layout;
use gpuvm_nic::with_causes;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// A source of kernels.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    /// Its name in messages of the compiler.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

impl Kernels {
    /// Every kernel of the source that is no template, in order.
    pub fn names(self) -> Vec<&'static str> {
        let starts = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("__global__ void "));
        starts.filter_map(|rest| rest.split('(').next()).collect()
    }
}

/// Compiled kernels, to be launched by name.
pub struct Bench {
    /// The virtual memory.
    pub vm: Vm,
    module: Module,
}

impl Bench {
    /// `kernels` on a virtual memory of these settings, compiled with these options.
    ///
    /// # Errors
    /// The virtual memory is not available, or the source does not compile.
    pub fn with(builder: VmBuilder, kernels: Kernels, options: &CompileOptions) -> Result<Self, String> {
        let vm = builder.build().map_err(|error| with_causes(&error))?;
        Self::on(vm, kernels, options)
    }

    /// [`Self::with`] in a virtual memory that is there.
    ///
    /// # Errors
    /// The source does not compile.
    pub fn on(vm: Vm, kernels: Kernels, options: &CompileOptions) -> Result<Self, String> {
        let module = vm.compile_with(kernels.name, kernels.text, &kernels.names(), options);
        let module = module.map_err(|error| format!("{} does not compile: {}", kernels.name, with_causes(&error)))?;
        Ok(Self { vm, module })
    }

    /// A kernel.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, String> {
        self.module.kernel(name).map_err(|error| with_causes(&error))
    }
}

/// Pages that are on their way to frames of the pool: read ahead by lanes whose kernel has ended since, or prefetched.
fn on_their_way(vm: &Vm, desc: &layout::VmDesc) -> Result<usize, String> {
    let mut count = 0;
    for place in 0..u64::from(desc.region_count) {
        let mut region = [layout::RegionDesc::zeroed()];
        let at = desc.regions + place * size_of::<layout::RegionDesc>() as u64;
        // The table's memory grows with the regions: behind it no place was ever taken.
        if vm.device().read(at, bytemuck::cast_slice_mut(&mut region)).is_err() {
            break;
        }
        let [region] = region;
        if region.flags & (layout::REGION_LIVE | layout::REGION_NEVER_EVICTED) != layout::REGION_LIVE {
            continue;
        }
        let mut words = vec![0u64; region.pages as usize];
        let read = vm.device().read(region.words, bytemuck::cast_slice_mut(&mut words));
        read.map_err(|error| with_causes(&error))?;
        let state = |word: &u64| (word & layout::STATE_MASK) >> layout::STATE_SHIFT;
        count += words
            .iter()
            .filter(|word| state(word) == layout::STATE_FETCHING)
            .count();
    }
    Ok(count)
}

/// No lane runs: each frame is free, and the pool has it once, or a page's, or withdrawn, as many as the host says that there are not. The
/// others are those of pages on their way, as many as there are.
///
/// # Errors
/// Which one is not, or the error of the GPU.
pub fn check_frames(vm: &Vm) -> Result<(), String> {
    let read = |at, out: &mut [u8]| vm.device().read(at, out).map_err(|error| with_causes(&error));
    let (mut desc, mut pool) = ([layout::VmDesc::zeroed()], [layout::PoolState::zeroed()]);
    read(vm.description_address(), bytemuck::cast_slice_mut(&mut desc))?;
    let [desc] = desc;
    read(desc.pool.state, bytemuck::cast_slice_mut(&mut pool))?;
    let count = u64::from(desc.pool.count);
    let (mut held, mut ring) = (vec![0u64; count as usize], vec![0u64; count as usize]);
    read(desc.frame_pages, bytemuck::cast_slice_mut(&mut held))?;
    read(desc.pool.ring, bytemuck::cast_slice_mut(&mut ring))?;
    let [pool] = pool;
    if pool.tail - pool.head != pool.available || pool.change != 0 || pool.helpers != 0 {
        return Err(format!("a pool that is not at rest: {pool:?}"));
    }
    let mut free = vec![0u32; count as usize];
    let slots = (pool.head..pool.tail).map(|ticket| ring[(ticket % count) as usize] as u32);
    slots.for_each(|frame| free[frame as usize] += 1);
    let mut taken = Vec::new();
    for (frame, (page, free)) in held.iter().zip(&free).enumerate() {
        match (
            page & layout::PAGE_ID_TAKEN_BIT != 0 || *page == layout::PAGE_WITHDRAWN,
            free,
        ) {
            (true, 0) | (false, 1) => {}
            (false, 0) if *page == 0 => taken.push(frame),
            _ => {
                return Err(format!(
                    "frame {frame} has {page:#x} for a page, and is {free} times in the pool"
                ));
            }
        }
    }
    let fetching = on_their_way(vm, &desc)?;
    if taken.len() != fetching {
        return Err(format!(
            "frames {taken:?} are no page's and not in the pool, and {fetching} pages are on their way to frames"
        ));
    }
    let withdrawn = held.iter().filter(|held| **held == layout::PAGE_WITHDRAWN).count() as u64;
    match withdrawn + vm.frames() == count {
        true => Ok(()),
        false => Err(format!(
            "of {count} frames the host counts {} as there, and {withdrawn} are withdrawn",
            vm.frames()
        )),
    }
}

/// Ends all faults of a virtual memory's NICs when it goes, before regions that were made earlier: what they hold can be written back then,
/// also where a launch has failed.
pub struct Calm<'a>(pub &'a Vm);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        self.0.soft_nics().iter().for_each(|nic| nic.calm());
    }
}

/// How a workload went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// Something that was asked of gpuvm ended with an error, which faults may explain.
    Refused(String),
    /// Something is not as the model says. No fault explains that.
    Differs(String),
}

impl From<gpuvm::Error> for Wrong {
    fn from(error: gpuvm::Error) -> Self {
        Self::Refused(with_causes(&error))
    }
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self::Differs(what)
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(what) | Self::Differs(what) => f.write_str(what),
        }
    }
}

impl Wrong {
    /// This difference, with what it was about.
    pub fn of(self, subject: &str) -> Self {
        match self {
            Self::Refused(what) => Self::Refused(format!("{subject}: {what}")),
            Self::Differs(what) => Self::Differs(format!("{subject}: {what}")),
        }
    }
}

/// The first element in which two arrays differ, in words.
///
/// # Errors
/// There is one.
pub fn compare<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} elements instead of {}", found.len(), expected.len()));
    }
    let wrong = found.iter().zip(expected).filter(|(f, e)| f != e).count();
    match found.iter().zip(expected).position(|(f, e)| f != e) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{wrong} elements are wrong, the first at {at}: {:?} instead of {:?}",
            found[at], expected[at]
        )),
    }
}

/// Element `i` of a region's data, by the seed of it: no byte of it is zero, and no two elements are alike, so that a byte that is not
/// copied shows whatever was there before.
pub fn pattern(seed: u64, i: u64) -> u64 {
    let mut x = (seed ^ i.rotate_left(32))
        .wrapping_add(i)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // 0 becomes 0x80.
    let bytes = (x ^ x >> 32)
        .to_le_bytes()
        .map(|byte| if byte == 0 { 0x80 } else { byte });
    u64::from_le_bytes(bytes)
}

/// What lanes make of the words that they read, one after the other: as in the kernels.
pub fn fold(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Launches a kernel by its name.
pub(crate) fn launch(bench: &Bench, name: &str, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch, Wrong> {
    Ok(bench.kernel(name)?.launch(config, args)?)
}

/// Runs a kernel to its end, which is no error.
pub(crate) fn must(bench: &Bench, name: &str, config: LaunchConfig, args: impl KernelArgs) -> Result<(), Wrong> {
    let launched = launch(bench, name, config, args)?;
    launched.sync().map(|_| ()).map_err(|error| Wrong::from(error).of(name))
}

/// What the region's home holds after everything was written there, which closes it.
pub(crate) fn close(bench: &Bench, region: Region<u64>, expected: &[u64]) -> Result<(), Wrong> {
    let _calm = Calm(&bench.vm);
    let found = region.to_vec()?;
    compare(&found, expected)?;
    let home = region.read_home()?;
    compare(&home, expected).map_err(|wrong| format!("at its home: {wrong}"))?;
    Ok(region.close()?)
}

/// Where faults have ended `ran`: nothing that took place may be lost. Once they are over each word of `at_least` (index, value) is no
/// less at its home than that, and no more than in `model`. Gives back what `ran` was.
pub(crate) fn keeps(
    bench: &Bench,
    ran: Result<(), Wrong>,
    region: &Region<u64>,
    at_least: &[(u64, u64)],
    model: &[u64],
) -> Result<(), Wrong> {
    let Err(Wrong::Refused(_)) = &ran else { return ran };
    drop(Calm(&bench.vm));
    let told = |error: gpuvm::Error| Wrong::Differs(format!("after the faults: {}", with_causes(&error)));
    region.flush().map_err(told)?;
    let home = region.read_home().map_err(told)?;
    let lost = at_least.iter().find(|&&(at, least)| home[at as usize] < least);
    if let Some((at, least)) = lost {
        let found = home[*at as usize];
        return Err(Wrong::Differs(format!(
            "word {at}: {found} after the faults, and it was {least} before"
        )));
    }
    if let Some(at) = home.iter().zip(model).position(|(found, most)| found > most) {
        let (found, most) = (home[at], model[at]);
        return Err(Wrong::Differs(format!(
            "word {at}: {found} after the faults, and no launch makes it more than {most}"
        )));
    }
    ran
}

/// Virtual time goes by: the host waits for a launch of another stream.
pub(crate) fn delay(bench: &Bench, beside: &StreamHandle, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
    let ns: u32 = rng.random_range(1_000..60_000);
    let kernel = bench.kernel("delay")?;
    kernel.launch_on(beside, LaunchConfig::new(1, 1), (ns,))?.sync()?;
    Ok(())
}
