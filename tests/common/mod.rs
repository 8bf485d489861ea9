//! Small virtual memories, the tests' kernels, and device libraries with one bug planted.

use std::time::Duration;

use gpuvm::{
    CompileOptions, Error, Gpu, Kernel, Launch, LaunchConfig, LaunchReport, MemoryNodes, Queues, Rdma, Retransmission,
    Rxe, SimulatedGpu, SoftNic, Transport, Vm, VmBuilder,
};
pub use gpuvm_nic::with_causes;
pub use gpuvm_simulate::adjust::Adjust;
pub use gpuvm_simulate::bench::{Kernels, check_frames, compare, pattern};

/// The page size of tests that do not try several.
pub const PAGE: u64 = 4096;
/// `u32` elements of such a page.
pub const PAGE_WORDS: u64 = PAGE / 4;

/// What kernels add to elements of [`words`]: every byte of each changes, so that one that is not written back shows.
pub const STEP: u32 = 0x1357_9bdf;

/// `n` elements without a zero byte, by [`pattern`].
pub fn words(seed: u64, n: u64) -> Vec<u32> {
    (0..n).map(|i| pattern(seed, i) as u32).collect()
}

/// `words` after `times` additions of [`STEP`].
pub fn stepped(words: &[u32], times: u32) -> Vec<u32> {
    let by = STEP.wrapping_mul(times);
    words.iter().map(|word| word.wrapping_add(by)).collect()
}

/// Settings of a small virtual memory: few frames, a short queue, and bounds that end a test that would hang. It uses the
/// GPU and the transport that the environment asks for.
pub fn small(frames: u64) -> VmBuilder {
    over_environment(sized(frames))
}

/// Settings like [`small`] but always on the simulated GPU, for tests of what only it survives or does: a kernel that traps or is stopped
/// where it stands, a deadline of a kernel that does not look at `failed()`.
pub fn simulated(frames: u64) -> VmBuilder {
    // The transport alone comes from the environment.
    small(frames).gpu(simulated_gpu(frames))
}

/// A limit of a wait or of a launch: `GPUVM_TEST_SCALE=20` makes all of them 20 times as long, for machines and tools that
/// slow a GPU down, such as compute-sanitizer.
pub fn scaled(limit: Duration) -> Duration {
    let Ok(text) = std::env::var("GPUVM_TEST_SCALE") else {
        return limit;
    };
    match text.parse::<u32>() {
        Ok(times @ 1..=1000) => limit * times,
        _ => panic!("GPUVM_TEST_SCALE is `{text}`; it is a whole number from 1 to 1000"),
    }
}

/// The GPU that the environment has named.
fn gpu() -> Option<Gpu> {
    let text = std::env::var("GPUVM_TEST_GPU").ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{error}")))
}

/// The GPUs that `GPUVM_TEST_GPUS` names, such as `cuda:0,cuda:1`, to be used in place of simulated ones.
pub fn named_gpus() -> Option<Vec<Gpu>> {
    let names = std::env::var("GPUVM_TEST_GPUS").ok()?;
    let gpu = |name: &str| name.parse().expect("a GPU's name");
    Some(names.split(',').map(gpu).collect())
}

/// Numbers of GPUs for a test that has no opinion: `usual` ones, or those of `GPUVM_TEST_COUNTS=4,8,16`. Of named GPUs it is theirs.
pub fn counts(usual: &[usize]) -> Vec<usize> {
    if let Some(gpus) = named_gpus() {
        return vec![gpus.len()];
    }
    let Ok(text) = std::env::var("GPUVM_TEST_COUNTS") else {
        return usual.to_vec();
    };
    let count = |text: &str| match text.parse() {
        Ok(count @ 1..=16) => count,
        _ => panic!("GPUVM_TEST_COUNTS is `{text}`; it is numbers from 1 to 16 with commas between"),
    };
    text.split(',').map(count).collect()
}

/// The simulated GPU, with memory for this many frames.
pub fn simulated_gpu(frames: u64) -> SimulatedGpu {
    SimulatedGpu::new().memory(frames * PAGE + (64 << 20))
}

fn transport() -> Option<Transport> {
    let text = std::env::var("GPUVM_TEST_TRANSPORT").ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{error}")))
}

/// `GPUVM_TEST_GPU=cuda:0` runs tests on that GPU instead of the simulated one, `GPUVM_TEST_TRANSPORT=direct` over that
/// transport. `GPUVM_TEST_RDMA=rxe0` runs tests over that SoftRoCE device instead of the software NIC, `GPUVM_TEST_NODE=HOST:PORT`,
/// perhaps several with commas, with regions at those memory nodes. `GPUVM_TEST_RETRIES` and `GPUVM_TEST_ACK_TIMEOUT` set
/// what the RDMA device does about packets that are lost.
pub fn over_environment(builder: VmBuilder) -> VmBuilder {
    let builder = match gpu() {
        // One that is simulated has its settings.
        None | Some(Gpu::Simulated(_)) => builder,
        Some(gpu) => builder.gpu(gpu),
    };
    let nodes = std::env::var("GPUVM_TEST_NODE").ok();
    let builder = match &nodes {
        // Losses cost seconds where the connection manager repeats itself, to join and to recover a queue pair.
        Some(_) => builder
            .wait_limit(scaled(Duration::from_secs(60)))
            .launch_deadline(scaled(Duration::from_secs(180))),
        None => builder,
    };
    let nodes = nodes.map(|nodes| MemoryNodes::at(nodes.split(',')).timeout(scaled(Duration::from_secs(30))));
    let transport = match (std::env::var("GPUVM_TEST_RDMA"), nodes) {
        (Ok(device), nodes) => {
            let rxe = Rxe::new().device(device).retransmission(retransmission());
            Transport::from(match nodes {
                Some(nodes) => rxe.memory_nodes(nodes),
                None => rxe,
            })
        }
        (Err(_), Some(nodes)) => Rdma::to(nodes).retransmission(retransmission()).into(),
        (Err(_), None) => match transport() {
            Some(transport) => transport,
            None => return builder,
        },
    };
    let queues = builder.transport_asked().queues().unwrap_or_default();
    builder.transport(transport.with_queues(queues))
}

/// What the RDMA device does about packets that are lost.
fn retransmission() -> Retransmission {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u8>().expect("a small number"))
    };
    let mut again = Retransmission::new();
    if let Some(count) = number("GPUVM_TEST_RETRIES") {
        again = again.retries(count);
    }
    if let Some(code) = number("GPUVM_TEST_ACK_TIMEOUT") {
        again = again.ack_timeout(code);
    }
    again
}

/// Settings like [`small`] but over the software NIC, for tests that plant its faults or watch its statistics: on the simulated GPU, unless
/// the environment asks for the software NIC on another.
pub fn small_soft(frames: u64) -> VmBuilder {
    match (gpu(), transport()) {
        (Some(Gpu::Cuda(gpu)), Some(Transport::Soft(_))) => sized(frames).gpu(gpu).over_soft(),
        _ => sized(frames).over_soft(),
    }
}

/// Settings like [`small_soft`] but always on the simulated GPU, for tests that follow a seed or hang a kernel.
pub fn simulated_soft(frames: u64) -> VmBuilder {
    sized(frames).over_soft()
}

/// Settings like [`small`] where lanes copy.
pub fn direct(frames: u64) -> VmBuilder {
    small(frames).transport(Transport::Direct)
}

/// Lanes copy, and a NIC does.
pub fn transports(frames: u64) -> [VmBuilder; 2] {
    [direct(frames), small_soft(frames)]
}

/// Two blocks of two warps: the shape of most launches.
pub fn config() -> LaunchConfig {
    LaunchConfig::new(2, 64)
}

fn sized(frames: u64) -> VmBuilder {
    Vm::builder()
        .frame_memory(frames * PAGE)
        .page_size(PAGE)
        .gpu(simulated_gpu(frames))
        .transport(Transport::Auto(Queues::new().pairs(2).depth(16)))
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)))
}

/// Element-wise kernels: fill, sums, copies, updates.
pub const BASIC: Kernels = Kernels {
    name: "basic.cu",
    text: include_str!("../kernels/basic.cu"),
};
/// Kernels that hold pages, wait for each other, prefetch.
pub const HOLDING: Kernels = Kernels {
    name: "holding.cu",
    text: include_str!("../kernels/holding.cu"),
};
/// Kernels that do what a kernel must not.
pub const FAULTY: Kernels = Kernels {
    name: "faulty.cu",
    text: include_str!("../kernels/faulty.cu"),
};

/// Compiled kernels that a test launches by name. What does not work is a panic.
pub struct Bench(gpuvm_simulate::bench::Bench);

impl std::ops::Deref for Bench {
    type Target = gpuvm_simulate::bench::Bench;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Bench {
    /// `kernels` on a virtual memory of these settings.
    pub fn new(builder: VmBuilder, kernels: Kernels) -> Self {
        Self::with(builder, kernels, &CompileOptions::default())
    }

    /// `kernels` on a virtual memory of these settings, compiled with options, such as a planted bug.
    pub fn with(builder: VmBuilder, kernels: Kernels, options: &CompileOptions) -> Self {
        let bench = gpuvm_simulate::bench::Bench::with(builder, kernels, options);
        Self(bench.unwrap_or_else(|wrong| panic!("{wrong}")))
    }

    /// A kernel.
    pub fn kernel(&self, name: &str) -> Kernel {
        self.0.kernel(name).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// Launches `name`.
    pub fn launch(&self, name: &str, config: LaunchConfig, args: impl gpuvm::KernelArgs) -> Launch {
        let launched = self.kernel(name).launch(config, args);
        launched.unwrap_or_else(|error| panic!("launch of {name}: {}", with_causes(&error)))
    }

    /// Launches `name` and waits for it.
    pub fn run(&self, name: &str, config: LaunchConfig, args: impl gpuvm::KernelArgs) -> Result<LaunchReport, Error> {
        self.kernel(name).launch(config, args)?.sync()
    }

    /// Launches `name`, which must end well.
    pub fn must(&self, name: &str, config: LaunchConfig, args: impl gpuvm::KernelArgs) -> LaunchReport {
        let ran = self.run(name, config, args);
        ran.unwrap_or_else(|error| panic!("{name}: {}", with_causes(&error)))
    }

    /// Reads a whole other region of `pages` pages, so that what was resident leaves its frames.
    pub fn sweep(&self, pages: u64) {
        let other = self
            .vm
            .region::<u32>()
            .name("sweep")
            .read_only()
            .zeroed(pages * PAGE_WORDS);
        let other = other.expect("a region to sweep through");
        let sink = self.vm.buffer::<u64>(1).expect("a sink");
        self.must("sum", LaunchConfig::new(2, 64), (&other, &sink));
    }

    /// The software NIC of a test that uses one.
    pub fn soft_nic(&self) -> &SoftNic {
        self.vm.soft_nic().expect("the test uses the software NIC")
    }

    /// No rule of the queues was broken so far, as far as a software NIC has watched.
    pub fn no_violations(&self) {
        let violations: Vec<_> = self.vm.soft_nics().iter().flat_map(|nic| nic.violations()).collect();
        assert!(violations.is_empty(), "{violations:?}");
    }
}

/// A file that a region can map to write. Since Linux 6.5 memory of most file systems cannot be pinned for a GPU's stores:
/// for a real one it lies in memory.
pub fn file_to_map() -> tempfile::NamedTempFile {
    let made = match gpu() {
        None | Some(Gpu::Simulated(_)) => tempfile::NamedTempFile::new(),
        Some(_) => tempfile::NamedTempFile::new_in("/dev/shm"),
    };
    made.unwrap_or_else(|error| panic!("a file to map: {error}"))
}

/// The message of an error that has to be there.
pub fn refused<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => panic!("this had to be refused"),
        Err(error) => with_causes(&error),
    }
}

/// The device library with `from`, which must be in `header` exactly once, replaced by `to`: a bug that a test must
/// find, or it finds nothing.
pub fn planted(header: &str, from: &str, to: &str) -> CompileOptions {
    let found = gpuvm_gpu::headers().iter().find(|(name, _)| *name == header);
    let (_, text) = found.unwrap_or_else(|| panic!("no header {header}"));
    assert_eq!(
        text.matches(from).count(),
        1,
        "`{from}` is not in {header} exactly once: plant the bug where that code is now"
    );
    CompileOptions {
        headers: vec![(header.to_owned(), text.replacen(from, to, 1))],
        ..CompileOptions::default()
    }
}

/// Asserts that a text has all of these in it.
#[track_caller]
pub fn says(text: &impl std::fmt::Display, parts: &[&str]) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}
