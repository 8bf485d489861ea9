//! The whole runtime over the ConnectX back end, behind which the fake executes the queues: bring-up, kernels that page,
//! the ways to register frames, the ways to ring, tear-down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Fake, StandIn, in_child};
use crate::mock_gpu::MockGpu;
use gpuvm::{
    Error, FrameAccess, LaunchConfig, MemoryNodes, Mlx5, QueueMaking, Queues, RdmaPath, SimulatedGpu, TransportKind,
    Vm, VmBuilder,
};
use gpuvm_gpu::ForNics;

const PAGE: u64 = 4096;
const WORDS: u64 = PAGE / 4;
const PAGES: u64 = 48;
const FRAMES: u64 = 8;
const SOURCE: &str = "#include <gpuvm/gpuvm.cuh>
__global__ void add(gpuvm::array<unsigned> a, unsigned by) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < a.size() && !a.failed(); i += gridDim.x * blockDim.x)
        a[i] = a[i] + by;
}";

const FAKE: [StandIn; 2] = [StandIn::Fake, StandIn::Fake];

fn settings(mlx5: Mlx5) -> VmBuilder {
    Vm::builder()
        .gpu(SimulatedGpu::new().memory(64 << 20))
        .transport(mlx5)
        .page_size(PAGE)
        .frame_memory(FRAMES * PAGE)
        .wait_limit(Duration::from_secs(20))
}

/// Queues of 16 requests, as many as the latency asks for.
fn queues() -> Queues {
    Queues::new().depth(16)
}

fn mlx5() -> Mlx5 {
    Mlx5::new().queues(queues())
}

/// This many queue pairs.
fn pairs(count: u32) -> Mlx5 {
    mlx5().queues(queues().pairs(count))
}

/// Adds to every element of a region that is larger than the frames, twice, and looks at the home.
fn pages_come_and_go(vm: &Vm) {
    let kernel = vm.kernel("add.cu", SOURCE, "add").unwrap();
    let region = vm.region::<u32>().from_iter(0..(PAGES * WORDS - 3) as u32);
    let region = region.unwrap();
    for _ in 0..2 {
        kernel
            .launch(LaunchConfig::new(2, 64), (&region, 7u32))
            .unwrap()
            .sync()
            .unwrap();
    }
    let found = region.to_vec().unwrap();
    assert!((0..).zip(&found).all(|(i, value)| *value == i + 14), "a wrong word");
    region.close().unwrap();
    let stats = vm.stats().unwrap();
    assert!(
        stats.pages_fetched >= 2 * PAGES - 8 && stats.pages_written_back >= 2 * PAGES - 8,
        "{stats:?}"
    );
    assert_eq!(stats.errors, 0);
}

#[test]
fn kernels_page_over_its_queues() {
    in_child("kernels_page_over_its_queues", FAKE, &[], || {
        let begun = Instant::now();
        let vm = settings(mlx5()).build().unwrap();
        let up = begun.elapsed();
        assert_eq!(
            (vm.transport(), vm.frame_access()),
            (TransportKind::Mlx5, FrameAccess::Address)
        );
        assert_eq!(vm.proxied_queue_pairs(), 0);
        let nics = vm.nics();
        assert!(nics.len() == 1 && nics[0].makes_rings, "{nics:?}");
        println!("# {} queue pairs by the latency that was measured", vm.queue_pairs());
        let kernel = vm.kernel("add.cu", SOURCE, "add").unwrap();
        let one = vm.region::<u32>().from_iter(0..WORDS as u32).unwrap();
        // The first launch's kernel is compiled; what a user waits for every time comes after that.
        let faulted = Instant::now();
        kernel
            .launch(LaunchConfig::new(1, 32), (&one, 1u32))
            .unwrap()
            .sync()
            .unwrap();
        println!(
            "# {up:.1?} from nothing to a virtual memory, {:.1?} to the end of a first launch",
            faulted.elapsed()
        );
        one.close().unwrap();
        pages_come_and_go(&vm);
        drop(kernel);
        drop(vm);
        Fake::new().assert_clean();
    });
}

#[test]
fn queue_pairs_follow_from_the_latency_unless_they_are_asked_for() {
    in_child(
        "queue_pairs_follow_from_the_latency_unless_they_are_asked_for",
        FAKE,
        &[],
        || {
            assert_eq!(settings(pairs(3)).build().unwrap().queue_pairs(), 3);
            let measured = settings(mlx5()).build().unwrap().queue_pairs();
            assert!((1..=256).contains(&measured), "{measured}");
        },
    );
}

#[test]
fn reads_that_are_flushed() {
    in_child("reads_that_are_flushed", FAKE, &[], || {
        let vm = settings(mlx5().flush_reads(true)).build().unwrap();
        pages_come_and_go(&vm);
    });
}

/// A GPU that is no process: its memory and its reach have to be registered.
fn hardware(dma_buf: bool, maps_registers: bool, writes_ordered_for: u32) -> Arc<MockGpu> {
    let gpu = MockGpu::new(Some((9, 0)));
    let able = ForNics {
        pci_address: "0000:17:00.0".into(),
        rdma: true,
        dma_buf,
        writes_ordered_for,
    };
    gpu.serve_nics(able, maps_registers);
    gpu
}

#[test]
fn frames_of_a_gpu_are_dma_bufs_and_its_lanes_ring() {
    in_child("frames_of_a_gpu_are_dma_bufs_and_its_lanes_ring", FAKE, &[], || {
        let gpu = hardware(true, true, 100);
        let vm = settings(pairs(4)).gpu(gpu.clone()).build().unwrap();
        assert_eq!(vm.frame_access(), FrameAccess::DmaBuf);
        assert_eq!((vm.proxied_queue_pairs(), gpu.exported().len()), (0, 1));
        assert!(gpu.mapped() >= 1);
        pages_come_and_go(&vm);
        assert_eq!(vm.stats().unwrap().doorbell_calls, 0);
        // Frames of a region's own as well.
        let kept = vm.region::<u32>().never_evicted().zeroed(WORDS).unwrap();
        assert_eq!(gpu.exported().len(), 2);
        kept.close().unwrap();
        drop(vm);
        let fake = Fake::new();
        assert!(
            fake.log().iter().any(|call| call.contains("ibv_reg_dmabuf_mr")),
            "{:?}",
            fake.log()
        );
        fake.assert_clean();
    });
}

#[test]
fn where_dma_bufs_fail_peer_memory_serves_and_then_the_hosts() {
    in_child(
        "where_dma_bufs_fail_peer_memory_serves_and_then_the_hosts",
        FAKE,
        &[],
        || {
            let fake = Fake::new();
            fake.fail("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP);
            let vm = settings(pairs(2)).gpu(hardware(true, true, 100)).build().unwrap();
            assert_eq!(vm.frame_access(), FrameAccess::PeerMemory);
            pages_come_and_go(&vm);
            drop(vm);
            fake.clear();
            // The first plain registration is then the frames'.
            fake.fail("ibv_reg_mr", 1, libc::EFAULT);
            let vm = settings(pairs(2)).gpu(hardware(false, true, 100)).build().unwrap();
            assert_eq!(vm.frame_access(), FrameAccess::HostMemory);
            pages_come_and_go(&vm);
            drop(vm);
            fake.assert_clean();
        },
    );
}

#[test]
fn where_registers_are_out_of_reach_a_proxy_rings() {
    in_child("where_registers_are_out_of_reach_a_proxy_rings", FAKE, &[], || {
        let vm = settings(pairs(3)).gpu(hardware(true, false, 100)).build().unwrap();
        assert_eq!(vm.proxied_queue_pairs(), 3);
        pages_come_and_go(&vm);
        assert!(vm.stats().unwrap().doorbell_calls > 0);
        drop(vm);
        Fake::new().assert_clean();
    });
}

#[test]
fn a_gpu_that_orders_no_writes_has_its_reads_flushed() {
    in_child("a_gpu_that_orders_no_writes_has_its_reads_flushed", FAKE, &[], || {
        let vm = settings(pairs(2)).gpu(hardware(true, true, 0)).build().unwrap();
        assert!(vm.flushes_reads());
        pages_come_and_go(&vm);
        drop(vm);
        let vm = settings(pairs(2)).gpu(hardware(true, true, 100)).build().unwrap();
        assert!(!vm.flushes_reads());
    });
}

#[test]
fn queues_that_are_made_by_devx() {
    in_child("queues_that_are_made_by_devx", FAKE, &[], || {
        let devx = |gpu: Option<Arc<MockGpu>>| {
            let settings = settings(pairs(3).queue_making(QueueMaking::Devx));
            match gpu {
                Some(gpu) => settings.gpu(gpu),
                None => settings,
            }
        };
        for flush_reads in [false, true] {
            let mlx5 = pairs(3).queue_making(QueueMaking::Devx).flush_reads(flush_reads);
            pages_come_and_go(&settings(mlx5).build().unwrap());
        }
        // A GPU's own memory, where it can be exported; else the host's.
        for dma_buf in [true, false] {
            let gpu = hardware(dma_buf, true, 100);
            let vm = devx(Some(gpu.clone())).build().unwrap();
            pages_come_and_go(&vm);
            assert_eq!(gpu.exported().len() > 1, dma_buf, "frames, and rings");
        }
        // Frames that fell back to the host's memory keep the queues there: data and completion must not part.
        let fake = Fake::new();
        fake.fail("ibv_reg_dmabuf_mr", 1, libc::EOPNOTSUPP);
        fake.fail("ibv_reg_mr", 1, libc::EFAULT);
        let gpu = hardware(true, true, 100);
        let vm = devx(Some(gpu.clone())).build().unwrap();
        assert_eq!(vm.frame_access(), FrameAccess::HostMemory);
        assert_eq!(gpu.exported().len(), 1, "of the frames alone");
        pages_come_and_go(&vm);
        drop(vm);
        fake.clear();
        Fake::new().assert_clean();
    });
}

fn refused(builder: VmBuilder) -> String {
    let Err(error) = builder.build() else {
        panic!("it was built")
    };
    gpuvm_nic::with_causes(&error)
}

#[test]
fn what_cannot_be_says_why() {
    in_child("what_cannot_be_says_why", FAKE, &[], || {
        let unknown = settings(mlx5().devices(["mlx5_99"])).build();
        let Err(error @ Error::Unavailable { .. }) = unknown else {
            panic!("no such device")
        };
        assert!(error.to_string().contains("mlx5_99"), "{error}");
        let path = RdmaPath {
            gid_index: Some(77),
            ..RdmaPath::default()
        };
        let text = refused(settings(mlx5().path(path)));
        assert!(text.contains("77") && text.to_lowercase().contains("gid"), "{text}");
        let text = refused(settings(mlx5()).gpu(SimulatedGpu::new().seed(3)));
        assert!(text.contains("seed"), "{text}");
        let deep = Mlx5::new().queues(Queues::new().pairs(1).depth(32_768));
        let text = refused(settings(deep.clone().flush_reads(true)));
        assert!(text.contains("queue depth"), "{text}");
        // So it is where only the frames tell that READs are flushed.
        let gpu = hardware(true, true, 0);
        let text = refused(settings(deep).gpu(gpu));
        assert!(text.contains("queue depth") && text.contains("flushed"), "{text}");
        // Before any node is asked.
        let nodes = MemoryNodes::at(["192.0.2.9:7471"]);
        for (path, what) in [
            (
                RdmaPath {
                    mtu: Some(1024),
                    ..RdmaPath::default()
                },
                "MTU",
            ),
            (
                RdmaPath {
                    service_level: 2,
                    ..RdmaPath::default()
                },
                "service level",
            ),
            (
                RdmaPath {
                    gid_index: Some(1),
                    ..RdmaPath::default()
                },
                "GID index",
            ),
        ] {
            let text = refused(settings(mlx5().path(path).memory_nodes(nodes.clone())));
            assert!(text.contains(what) && text.contains("memory nodes"), "{text}");
        }
        let fake = Fake::new();
        fake.fail("ibv_create_qp_ex", 1, libc::ENOMEM);
        let text = refused(settings(pairs(2)));
        assert!(text.contains("queue pair") && text.contains("memory"), "{text}");
        fake.assert_clean();
    });
}

#[test]
fn without_the_libraries_the_error_names_them() {
    let other = [StandIn::Other, StandIn::Other];
    in_child("without_the_libraries_the_error_names_them", other, &[], || {
        let text = refused(settings(mlx5()));
        assert!(text.contains("mlx5") && text.contains("install"), "{text}");
    });
}
