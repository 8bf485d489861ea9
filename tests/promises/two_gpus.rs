//! A virtual memory over two GPUs that use regions of their own: each runs its kernels, and what becomes of one is nothing to the other.
//! Regions that both use are in `shared_regions.rs`.

use std::time::Duration;

use crate::common::{PAGE_WORDS, STEP, compare, refused, says, scaled, simulated_gpu, stepped, with_causes, words};
use gpuvm::{Error, LaunchConfig, Placement, Queues, Soft, Transport, Vm, VmGpu};

const FRAMES: u64 = 8;
const COUNT: u64 = 40 * PAGE_WORDS + 7;

/// Two simulated GPUs, with frames for a fifth of each region.
fn pair(transport: impl Into<Transport>) -> Vm {
    let vm = Vm::builder()
        .placement(Placement::Fetch)
        .gpus([simulated_gpu(FRAMES).workers(1), simulated_gpu(FRAMES).workers(1)])
        .transport(transport)
        .frame_memory(FRAMES * 4096)
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)))
        .build();
    vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

fn transports() -> [Transport; 2] {
    [
        Soft::new().queues(Queues::new().pairs(2).depth(16)).into(),
        Transport::Direct,
    ]
}

/// A region of [`words`] by this seed.
fn filled(gpu: &VmGpu, seed: u64) -> gpuvm::Region<u32> {
    let region = gpu
        .region()
        .name(format!("of GPU {}", gpu.index()))
        .from_slice(&words(seed, COUNT));
    region.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

const INCREMENT: &str = r"
#include <gpuvm/gpuvm.cuh>
__global__ void increment(gpuvm::array<unsigned> a, unsigned by) {
    unsigned long long lanes = gridDim.x * 1ull * blockDim.x;
    for (unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += lanes) a[i] += by;
}";

#[test]
fn both_run_kernels_over_regions_of_their_own_at_one_time() {
    for transport in transports() {
        let vm = pair(transport);
        assert_eq!(vm.gpus().len(), 2);
        let kernels: Vec<_> = vm
            .gpus()
            .iter()
            .map(|gpu| gpu.kernel("increment.cu", INCREMENT, "increment").unwrap())
            .collect();
        let regions: Vec<_> = vm.gpus().iter().map(|gpu| filled(gpu, gpu.index() as u64)).collect();
        // Enough rounds that pages leave and come back on both while the other runs.
        for _ in 0..3 {
            let launches: Vec<_> = kernels
                .iter()
                .zip(&regions)
                .map(|(kernel, region)| kernel.launch(LaunchConfig::new(2, 64), (region, STEP)).unwrap())
                .collect();
            for launch in launches {
                launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
            }
        }
        for (gpu, region) in vm.gpus().iter().zip(&regions) {
            let expected = stepped(&words(gpu.index() as u64, COUNT), 3);
            compare(&region.to_vec().unwrap(), &expected).unwrap();
            let stats = gpu.stats().unwrap();
            assert!(
                stats.pages_fetched >= 3 * 41 && stats.pages_written_back >= 41,
                "{stats:?}"
            );
        }
        // What the handle of the virtual memory does, it does on the first.
        assert_eq!(vm.index(), 0);
        assert_eq!(vm.stats().unwrap().faults, vm.gpu(0).unwrap().stats().unwrap().faults);
        // In the order in which they were made, and the other way round over the other transport.
        let mut regions = regions;
        if vm.transport().name() == "direct" {
            regions.reverse();
        }
        drop(vm);
        for region in regions {
            region.close().unwrap();
        }
    }
}

#[test]
fn a_kernel_does_not_take_another_gpus_buffers_and_streams() {
    let vm = pair(Transport::Direct);
    let (first, second) = (vm.gpu(0).unwrap(), vm.gpu(1).unwrap());
    let store = "__global__ void store(unsigned* out) { *out = 1; }";
    let kernel = first.kernel("store.cu", store, "store").unwrap();
    let buffer = second.buffer::<u32>(1).unwrap();
    let mixed = kernel.launch(LaunchConfig::new(1, 1), (&buffer,));
    let Err(Error::OtherGpu { gpu: 0, of: 1, .. }) = &mixed else {
        panic!("{:?}", mixed.map(|launch| launch.sync()));
    };
    says(&refused(mixed), &["GPU 0", "a buffer of", "GPU 1"]);
    let stream = second.stream().unwrap();
    let own = first.buffer::<u32>(1).unwrap();
    let message = refused(kernel.launch_on(&stream, LaunchConfig::new(1, 1), (&own,)));
    assert!(message.contains("the stream belongs to another GPU"), "{message}");
    let message = refused(vm.gpu(2).cloned());
    assert!(message.contains("GPU is 2") && message.contains("has 2"), "{message}");
}

#[test]
fn two_gpus_do_not_write_the_same_memory() {
    let vm = pair(Transport::Direct);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), vec![0u8; COUNT as usize * 4]).unwrap();
    let map = |gpu: usize| vm.gpu(gpu).unwrap().region::<u32>().map_file_mut(path.path());
    let one = map(0).unwrap();
    let other = map(1);
    assert!(matches!(other, Err(Error::Overlap { .. })), "{}", refused(other));
    drop(one);
    drop(map(1).unwrap());
}

#[test]
fn a_kernel_that_is_killed_stops_its_own_gpu_alone() {
    for transport in transports() {
        let vm = pair(transport);
        let (first, second) = (vm.gpu(0).unwrap(), vm.gpu(1).unwrap());
        let (theirs, ours) = (filled(first, 0), filled(second, 0));
        let endless = r"
#include <gpuvm/gpuvm.cuh>
__global__ void endless(gpuvm::array<unsigned> a) {
    while (!a.failed()) a[(blockIdx.x * blockDim.x + threadIdx.x) * 1024ull % a.size()] += 1;
}";
        let endless = first.kernel("endless.cu", endless, "endless").unwrap();
        let increment = second.kernel("increment.cu", INCREMENT, "increment").unwrap();
        let endless = endless.launch(LaunchConfig::new(1, 64), (&theirs,)).unwrap();
        let beside = increment.launch(LaunchConfig::new(2, 64), (&ours, STEP)).unwrap();
        endless.kill();
        assert!(endless.sync().is_err());
        beside.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        increment
            .launch(LaunchConfig::new(2, 64), (&ours, STEP))
            .unwrap()
            .sync()
            .unwrap();
        compare(&ours.to_vec().unwrap(), &stepped(&words(0, COUNT), 2)).unwrap();
        // The first is recovered, and goes on as well.
        let again = first.kernel("increment.cu", INCREMENT, "increment").unwrap();
        again
            .launch(LaunchConfig::new(1, 32), (&theirs, 1u32))
            .unwrap()
            .sync()
            .unwrap();
        theirs.close().unwrap();
    }
}
