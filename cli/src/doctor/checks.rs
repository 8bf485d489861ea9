//! What the doctor looks at, in the order of the report.

use crate::doctor::finding::Check;
use crate::doctor::{gpu, peers, platform, rdma};

/// Makes the table: a name for scripts, who looks, what is looked at, why it matters.
macro_rules! checks {
    ($($id:literal, $look:path, $title:literal: $why:literal;)*) => {
        /// All checks.
        pub const CHECKS: &[Check] = &[$(Check { id: $id, title: $title, why: $why, look: $look }),*];
    };
}

checks! {
    "gpu", gpu::gpu, "NVIDIA GPU":
        "kernels run on it; without one they run on the simulated GPU, which is for correctness, not for speed";
    "driver", gpu::driver, "NVIDIA kernel driver":
        "the open kernel modules hand GPU memory to a NIC as a dma-buf; the proprietary ones need nvidia-peermem";
    "cuda", gpu::cuda, "CUDA driver library (libcuda.so.1)":
        "every call to the GPU goes through it; it is loaded at run time and comes with the driver";
    "nvrtc", gpu::nvrtc, "CUDA run-time compiler (NVRTC)":
        "it compiles kernels for an NVIDIA GPU; it is loaded at run time and no part of the driver";
    "compiler", gpu::compiler, "C++ compiler":
        "it compiles kernels for the simulated GPU; an NVIDIA GPU needs none";
    "bar1", gpu::bar1, "BAR1 of the GPU":
        "the window through which a NIC reaches GPU memory: frames beyond it cannot be registered";
    "peers", peers::peers, "peer GPUs":
        "a GPU borrows memory of a peer (--borrow), has regions there (home_on_gpu), and stores to its copies of \
         broadcast arrays; without a peer, pages come from the host alone";
    "verbs_libraries", rdma::libraries, "verbs libraries":
        "memory nodes (librdmacm) and ConnectX NICs (libmlx5) are set up through them; they are loaded at run time";
    "nics", rdma::nics, "RDMA NICs":
        "a ConnectX is what GPU threads post their page requests to (transport mlx5); other NICs serve as memory \
         nodes only";
    "dma_buf", rdma::dma_buf, "GPU memory as dma-buf":
        "the way to register frames in GPU memory with a NIC: needs the open modules, CUDA 11.7, Linux 5.12";
    "peermem", rdma::peermem, "nvidia-peermem":
        "the older way to register frames in GPU memory; without this and without dma-buf frames lie in host memory";
    "rxe", rdma::rxe, "SoftRoCE (rdma_rxe)":
        "paging from other machines over any network interface, with the simulated GPU (transport rxe)";
    "iommu", platform::iommu, "IOMMU":
        "where it translates, a GPU's store to a NIC's doorbell faults, and GPUs and NICs do not reach each other \
         directly";
    "device_nodes", platform::device_nodes, "device nodes":
        "the driver and the NIC are opened through them; containers do not have them by themselves";
    "memlock", platform::memlock, "limit of locked memory":
        "memory that a NIC reads and writes is locked; registering more than the limit fails";
    "io_uring", platform::io_uring, "io_uring":
        "files larger than memory (file_cache) are read and written by it, many blocks at a time; else by threads";
    "gpudirect_storage", platform::gpudirect_storage, "GPUDirect Storage":
        "cuFile reads blocks of files directly into GPU memory (file_cache_on_gpu); without it they go through host memory (file_cache)";
}
