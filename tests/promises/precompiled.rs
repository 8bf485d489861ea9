//! Kernels that were not compiled by the runtime: their callers enqueue them, and the runtime does for them what it does for its own.

use crate::common::{refused, says, words};
use gpuvm::{
    Arg, DeviceCode, ElementType, Gpu, GpuError, Launch, LaunchConfig, Timeline, Transport, Use, Vm, VmBuilder,
    sim::SimGpu,
};
use gpuvm_gpu::{CompileOptions, Gpu as Device, Kernel, Module, Source};
use std::{path::Path, sync::Arc};

const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>
__global__ void add(gpuvm::array<const unsigned> from, gpuvm::array<unsigned> to, unsigned* done) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < from.size() && !to.failed(); i += gridDim.x * blockDim.x) {
        to[i] += from[i];
        atomicAdd(done, 1u);
    }
}
__global__ void past_the_end(gpuvm::array<const unsigned> from, gpuvm::array<unsigned> to, unsigned* done) {
    *done = from[from.size() + 3];
}
__global__ void endless(gpuvm::array<const unsigned> from, gpuvm::array<unsigned> to, unsigned* done) {
    while (!from.failed()) __nanosleep(1000);
}
";
const N: u64 = 20_000;

/// A virtual memory, and kernels that something else compiled for its GPU, for any virtual memory.
struct World {
    device: Arc<dyn Device>,
    module: Arc<dyn Module>,
    vm: Vm,
}

impl World {
    fn new(transport: Transport, set: impl FnOnce(VmBuilder) -> VmBuilder) -> Self {
        Self::compiled_with(&CompileOptions::default(), transport, set)
    }

    fn compiled_with(options: &CompileOptions, transport: Transport, set: impl FnOnce(VmBuilder) -> VmBuilder) -> Self {
        let gpu = SimGpu::builder().memory_bytes(64 << 20).workers(2).build();
        let device: Arc<dyn Device> = Arc::new(gpu.unwrap());
        let names = ["add", "past_the_end", "endless"];
        let module = device.compile(&Source::new("own.cu", SOURCE), &names, options);
        let builder = Vm::builder().gpu(Gpu::Device(Arc::clone(&device))).transport(transport);
        let vm = set(builder.frame_memory(4 * 4096)).build().unwrap();
        Self {
            device,
            module: module.unwrap(),
            vm,
        }
    }

    fn launch(&self, name: &str, code: DeviceCode, uses: &[Use<'_>]) -> gpuvm::Result<Launch> {
        let kernel: Arc<dyn Kernel> = self.module.kernel(name).unwrap();
        let config = LaunchConfig::new(2, 64);
        let enqueue = |raw: Option<u64>, views: &[Vec<u8>]| {
            assert_eq!(raw, None, "the simulated GPU has no CUDA streams");
            let args: Vec<&[u8]> = views.iter().map(Vec::as_slice).collect();
            let stream = self.device.stream().map_err(|error| error.to_string())?;
            let shape = gpuvm_gpu::LaunchConfig::linear(2, 64);
            let launched = stream.launch(&kernel, &shape, &args, 0, Box::new(|_| ()));
            launched.map(drop).map_err(|error| error.to_string())
        };
        // SAFETY: the kernels use their arguments as `uses` says, and were compiled with these headers.
        unsafe { self.vm.launch_by(None, (name, code), &config, uses, enqueue) }
    }
}

#[test]
fn they_page_their_arrays_and_end_as_others_do() {
    for transport in [Transport::Direct, Transport::Soft(gpuvm::Soft::default())] {
        let world = World::new(transport, |builder| builder);
        let (first, second) = (words(1, N), words(2, N));
        let from = world.vm.region::<u32>().read_only().from_slice(&first).unwrap();
        let to = world.vm.region::<u32>().from_slice(&second).unwrap();
        let done = world.vm.buffer::<u32>(1).unwrap();
        let uses = [Use::reads(&from), Use::writes(&to), Use::writes(&done)];
        let launches = [0; 2].map(|_| world.launch("add", DeviceCode::ALL, &uses).unwrap());
        // The host waits for both, as for launches of its own kernels.
        let sums = to.to_vec().unwrap();
        assert!((0..N as usize).all(|i| sums[i] == second[i].wrapping_add(first[i]).wrapping_add(first[i])));
        for launch in launches {
            launch.sync().unwrap();
        }
        assert_eq!(done.to_vec().unwrap(), [2 * N as u32]);
        assert!(world.vm.stats().unwrap().evictions > 0);
    }
}

#[test]
fn each_of_them_has_its_own_fault_and_its_own_end() {
    let world = World::new(Transport::Direct, |builder| builder);
    let from = world.vm.region::<u32>().from_iter(0..N as u32).unwrap();
    let to = world.vm.region::<u32>().zeroed(N).unwrap();
    let done = world.vm.buffer::<u32>(1).unwrap();
    let uses = [Use::reads(&from), Use::writes(&to), Use::writes(&done)];
    let bad = world.launch("past_the_end", DeviceCode::ALL, &uses).unwrap();
    let good = world.launch("add", DeviceCode::ALL, &uses).unwrap();
    let endless = world.launch("endless", DeviceCode::ALL, &uses).unwrap();
    let (faulted, added, spinning) = (bad.sync(), good.sync(), !endless.is_done());
    endless.abort();
    let stopped = endless.sync();
    says(&refused(faulted), &["kernel `past_the_end`", "20003"]);
    added.unwrap();
    assert!(spinning);
    let told = refused(stopped);
    assert!(told.contains("kernel `endless` was stopped"), "{told}");
    assert_eq!(to.to_vec().unwrap(), (0..N as u32).collect::<Vec<_>>());
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_runs() {
    let world = World::new(Transport::Direct, |builder| {
        builder.frame_memory(2 << 20).frame_capacity(4 << 20)
    });
    let from = world.vm.region::<u32>().read_only().from_iter(0..8).unwrap();
    let to = world.vm.region::<u32>().zeroed(8).unwrap();
    let done = world.vm.buffer::<u32>(1).unwrap();
    let uses = [Use::reads(&from), Use::writes(&to), Use::writes(&done)];
    let refuses = |code, uses: &[Use<'_>], what: &str| {
        let told = refused(world.launch("add", code, uses).map(drop));
        assert!(told.contains(what), "{told}");
    };
    let older = DeviceCode {
        layout_version: 16,
        ..DeviceCode::ALL
    };
    refuses(older, &uses, "recompile it with this library's headers");
    let direct = DeviceCode {
        features: gpuvm_layouts::FEATURE_DIRECT,
        ..DeviceCode::ALL
    };
    refuses(direct, &uses, "FEATURE_RESIZABLE");
    refuses(
        DeviceCode::ALL,
        &[Use::writes(&from), Use::writes(&to)],
        "read-only region",
    );
    let other = World::new(Transport::Direct, |builder| builder);
    let theirs = other.vm.region::<u32>().zeroed(8).unwrap();
    refuses(DeviceCode::ALL, &[Use::reads(&theirs)], "belongs to another Vm");
    // Two arguments of three: the simulated GPU refuses what the caller enqueues.
    refuses(DeviceCode::ALL, &uses[..2], "did not enqueue kernel");
    // SAFETY: nothing is enqueued.
    let told = unsafe {
        let config = LaunchConfig::new(1, 32);
        world
            .vm
            .launch_by(None, ("none", DeviceCode::ALL), &config, &[], |_, _| Ok(()))
    };
    assert!(refused(told.map(drop)).contains("it launched nothing"));
    // SAFETY: a null stream, which is refused.
    let borrowed = unsafe { world.vm.borrow_stream(0) };
    assert!(matches!(
        borrowed.map(drop),
        Err(gpuvm::Error::Gpu {
            source: GpuError::Unsupported { .. },
            ..
        })
    ));
    world.launch("add", DeviceCode::ALL, &uses).unwrap().sync().unwrap();
    assert_eq!(to.to_vec().unwrap(), (0..8).collect::<Vec<u32>>());
}

/// How many slices of the timeline at `path` are faults.
fn faults_in(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let faults = events
        .iter()
        .filter(|event| event["name"] == "fault" && event["ph"] == "X");
    faults.count() as u64
}

#[test]
fn their_faults_are_in_the_timeline_if_they_were_compiled_to_note_them() {
    let folder = tempfile::tempdir().unwrap();
    for (transport, moved) in [
        (Transport::Direct, DeviceCode::DIRECT),
        (Transport::Soft(gpuvm::Soft::default()), DeviceCode::QUEUED),
    ] {
        // Compiled to note them and over a timeline, each without the other.
        for (notes, drawn) in [(true, true), (true, false), (false, true)] {
            let path = folder.path().join(format!("{moved}-{notes}-{drawn}.json"));
            let code = DeviceCode::with(moved | if notes { DeviceCode::TIMELINE } else { 0 });
            let options = CompileOptions {
                defines: vec![("GPUVM_FEATURES".into(), Some(code.features.to_string()))],
                ..CompileOptions::default()
            };
            let world = World::compiled_with(&options, transport.clone(), |builder| match drawn {
                true => builder.timeline(Timeline::to(&path).one_in(1)),
                false => builder,
            });
            let from = world.vm.region::<u32>().read_only().from_iter(0..N as u32).unwrap();
            let to = world.vm.region::<u32>().zeroed(N).unwrap();
            let done = world.vm.buffer::<u32>(1).unwrap();
            let uses = [Use::reads(&from), Use::writes(&to), Use::writes(&done)];
            world.launch("add", code, &uses).unwrap().sync().unwrap();
            let served = world.vm.stats().unwrap().faults;
            assert_eq!(to.to_vec().unwrap(), (0..N as u32).collect::<Vec<_>>());
            drop((from, to, done, world));
            assert!(served > 0);
            match (notes, drawn) {
                (true, true) => assert_eq!(faults_in(&path), served),
                (_, true) => assert_eq!(faults_in(&path), 0),
                _ => assert!(!path.exists()),
            }
        }
    }
}

#[test]
fn memory_that_the_runtime_does_not_know_is_an_argument_beside_regions() {
    let world = World::new(Transport::Direct, |builder| builder);
    let from = world.vm.region::<u32>().read_only().from_iter(0..N as u32).unwrap();
    let to = world.vm.region::<u32>().zeroed(N).unwrap();
    // Of a library beside gpuvm.
    let theirs = world.device.allocate(4, 256).unwrap();
    world.device.write(theirs.addr(), &[0; 4]).unwrap();
    // SAFETY: the memory outlives the launches, and nothing else uses it.
    let address = |element| unsafe { Arg::address(element, theirs.addr()) };
    let add = world.vm.kernel("own.cu", SOURCE, "add").unwrap();
    let config = LaunchConfig::new(2, 64);
    let launch = |element| add.launch(config.clone(), (&from, &to, address(element)));
    launch(ElementType::U32).unwrap().sync().unwrap();
    let told = refused(launch(ElementType::F64).map(drop));
    assert!(told.contains("argument 3: a buffer of f64 was given"), "{told}");
    let told = refused(
        add.launch(config.clone(), (&from, address(ElementType::U32), &to))
            .map(drop),
    );
    assert!(told.contains("argument 2"), "{told}");
    // And of a kernel that its caller enqueues.
    let done = Use::writes(address(ElementType::U32));
    let uses = [Use::reads(&from), Use::writes(&to), done];
    world.launch("add", DeviceCode::ALL, &uses).unwrap().sync().unwrap();
    let mut counted = [0; 4];
    world.device.read(theirs.addr(), &mut counted).unwrap();
    assert_eq!(u32::from_ne_bytes(counted), 2 * N as u32);
    assert_eq!(to.to_vec().unwrap(), (0..N as u32).map(|i| 2 * i).collect::<Vec<_>>());
}

#[test]
fn what_a_kernel_takes_of_a_region_is_an_array_desc() {
    let world = World::new(Transport::Direct, |builder| builder);
    let from = world.vm.region::<u32>().read_only().from_iter(0..N as u32).unwrap();
    let done = world.vm.buffer::<u32>(1).unwrap();
    let config = LaunchConfig::new(2, 64);
    let mut seen = None;
    // SAFETY: nothing is enqueued.
    let launched = unsafe {
        let uses = [Use::reads(&from), Use::writes(&done)];
        let own = ("none", world.vm.device_code());
        world.vm.launch_by(None, own, &config, &uses, |_, views| {
            let array: gpuvm::ArrayDesc = bytemuck::pod_read_unaligned(&views[0]);
            seen = Some((array.length, array.bytes, views[1].len()));
            Err("nothing to launch".into())
        })
    };
    assert!(refused(launched.map(drop)).contains("nothing to launch"));
    assert_eq!(seen, Some((N, 4 * N, 8)));
}
