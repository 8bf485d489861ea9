//! What the doctor looks at, in the order of the report.

use crate::doctor::finding::Check;
use crate::doctor::{gpu, peers, platform, rdma};

/// All checks.
pub const CHECKS: [Check; 17] = [
    Check {
        id: "gpu",
        title: "NVIDIA GPU",
        why: "kernels run on it; without one they run on the simulated GPU, which is for correctness, not for speed",
        look: gpu::gpu,
    },
    Check {
        id: "driver",
        title: "NVIDIA kernel driver",
        why: "the open kernel modules hand GPU memory to a NIC as a dma-buf; the proprietary ones need nvidia-peermem",
        look: gpu::driver,
    },
    Check {
        id: "cuda",
        title: "CUDA driver library (libcuda.so.1)",
        why: "every call to the GPU goes through it; it is loaded at run time and comes with the driver",
        look: gpu::cuda,
    },
    Check {
        id: "nvrtc",
        title: "CUDA run-time compiler (NVRTC)",
        why: "it compiles kernels for an NVIDIA GPU; it is loaded at run time and no part of the driver",
        look: gpu::nvrtc,
    },
    Check {
        id: "compiler",
        title: "C++ compiler",
        why: "it compiles kernels for the simulated GPU; an NVIDIA GPU needs none",
        look: gpu::compiler,
    },
    Check {
        id: "bar1",
        title: "BAR1 of the GPU",
        why: "the window through which a NIC reaches GPU memory: frames beyond it cannot be registered",
        look: gpu::bar1,
    },
    Check {
        id: "peers",
        title: "peer GPUs",
        why: "a GPU borrows memory of a peer (--borrow), has regions there (home_on_gpu), and stores to its copies of \
              broadcast arrays; without a peer, pages come from the host alone",
        look: peers::peers,
    },
    Check {
        id: "verbs_libraries",
        title: "verbs libraries",
        why: "memory nodes (librdmacm) and ConnectX NICs (libmlx5) are set up through them; they are loaded at run time",
        look: rdma::libraries,
    },
    Check {
        id: "nics",
        title: "RDMA NICs",
        why: "a ConnectX is what GPU threads post their page requests to (transport mlx5); other NICs serve as memory \
              nodes only",
        look: rdma::nics,
    },
    Check {
        id: "dma_buf",
        title: "GPU memory as dma-buf",
        why: "the way to register frames in GPU memory with a NIC: needs the open modules, CUDA 11.7, Linux 5.12",
        look: rdma::dma_buf,
    },
    Check {
        id: "peermem",
        title: "nvidia-peermem",
        why: "the older way to register frames in GPU memory; without this and without dma-buf frames lie in host memory",
        look: rdma::peermem,
    },
    Check {
        id: "rxe",
        title: "SoftRoCE (rdma_rxe)",
        why: "paging from other machines over any network interface, with the simulated GPU (transport rxe)",
        look: rdma::rxe,
    },
    Check {
        id: "iommu",
        title: "IOMMU",
        why: "where it translates, a GPU's store to a NIC's doorbell faults, and GPUs and NICs do not reach each other \
              directly",
        look: platform::iommu,
    },
    Check {
        id: "device_nodes",
        title: "device nodes",
        why: "the driver and the NIC are opened through them; containers do not have them by themselves",
        look: platform::device_nodes,
    },
    Check {
        id: "memlock",
        title: "limit of locked memory",
        why: "memory that a NIC reads and writes is locked; registering more than the limit fails",
        look: platform::memlock,
    },
    Check {
        id: "io_uring",
        title: "io_uring",
        why: "files larger than memory (file_memory) are read and written by it, many blocks at a time; else by threads",
        look: platform::io_uring,
    },
    Check {
        id: "gpudirect_storage",
        title: "GPUDirect Storage",
        why: "cuFile brings blocks of files into GPU memory past the host's (file_memory_on_gpu); else they come by way \
              of host memory (file_memory)",
        look: platform::gpudirect_storage,
    },
];
