//! Arrays larger than GPU memory for CUDA kernels: GPU threads serve their own page faults through NIC queues that they
//! drive themselves.
//!
//! A [`Region`] is an array whose home is host memory. A kernel takes it as `gpuvm::array<T>` and indexes it; a thread
//! that touches a page that is not in GPU memory takes a frame, posts an RDMA READ to a NIC queue pair, rings its
//! doorbell, polls the completion and goes on. Pages that were written are written back by RDMA WRITE when their frame is needed.
//! Over [`Transport::Direct`] the faulting warp copies the page itself, from host memory where it is or from a neighbour
//! GPU's memory.
//!
//! ```
//! use gpuvm::{LaunchConfig, Vm};
//!
//! const SOURCE: &str = r"
//! #include <gpuvm/gpuvm.cuh>
//! __global__ void scale(gpuvm::array<float> a, float factor) {
//!     unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
//!     if (i < a.size()) a[i] *= factor;
//! }";
//!
//! # fn main() -> Result<(), gpuvm::Error> {
//! let vm = Vm::builder().frame_memory(1 << 20).build()?; // 256 frames of 4 KiB
//! let n = 1 << 20; // 4 MiB of floats: four times the frames
//! let data = vm.region::<f32>().name("data").from_iter((0..n).map(|i| i as f32))?;
//! let scale = vm.kernel("scale.cu", SOURCE, "scale")?;
//! scale.launch(LaunchConfig::new(n as u32 / 256, 256), (&data, 2.0f32))?.sync()?;
//! let mut few = [0.0; 3];
//! data.read(1000, &mut few)?;
//! assert_eq!(few, [2000.0, 2002.0, 2004.0]);
//! assert!(vm.stats()?.pages_fetched >= 1024);
//! # Ok(()) }
//! ```
//!
//! | with CUDA's managed memory | here |
//! |---|---|
//! | `cudaMallocManaged` | [`Vm::region`](VmGpu::region) |
//! | a pointer argument | `gpuvm::array<T>` (paged), `T*` ([`Buffer`], not paged) |
//! | a pointer to managed memory, for libraries | [`Vm::tiered_buffer`](VmGpu::tiered_buffer): a `T*` to more than the GPU has memory for |
//! | `cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`, `cuMemSetAccess` | [`Vm::elastic_buffer`](VmGpu::elastic_buffer): a `T*` whose memory grows and shrinks |
//! | a fault served by the CPU | a fault served by the warp that missed |
//! | `cudaMemPrefetchAsync` | `a.prefetch(first, count)` in the kernel |
//! | `cudaMemAdviseSetReadMostly` | [`RegionBuilder::read_only`] |
//! | `cudaMemAdviseSetPreferredLocation` | [`RegionBuilder::never_evicted`]: frames of the region's own; [`RegionBuilder::home_on_gpu`] |
//! | `cudaMemcpyPeer` of what other GPUs read, after each iteration | [`Vm::broadcast`]: stores go to every GPU's copy as they happen |
//! | `cudaHostRegister` | [`Vm::scope`](VmGpu::scope) lends a slice, [`RegionBuilder::map_file`] maps a file, in place |
//! | `cudaDeviceSynchronize`, then a host access | [`Launch::sync`], then [`Region::read`] or [`Region::to_vec`] |
//! | an illegal address kills the context | [`Launch::sync`] returns an [`Error::Fault`] that names index, region and cause |
//! | after a trap every call fails | [`Error::GpuLost`] names the regions that may miss writes; [`Region::read_home`] |
//!
//! Types that are known at run time alone, as a C or a Python face has them: [`Vm::raw_region`](VmGpu::raw_region), [`Vm::raw_buffer`](VmGpu::raw_buffer),
//! [`Vm::raw_elastic`](VmGpu::raw_elastic), [`Vm::raw_tiered`](VmGpu::raw_tiered), [`Vm::raw_broadcast`], [`Kernel::launch_raw`].
//!
//! Errors are [`Error`]. Everything may be used from several threads. Dropping anything at any time is safe: a region
//! waits for its launches, and a virtual memory ends with its last handle.
//!
//! Without an NVIDIA GPU the kernels run on a simulated one, over a software NIC; the README says what else there is.

mod ahead_of_time;
mod arena;
mod args;
mod background;
mod backoff;
mod broadcast;
mod buffer;
mod calling;
mod catch_up;
mod coherence;
mod crowd;
mod device;
mod device_code;
mod elastic;
mod element;
mod error;
mod error_kind;
mod fault;
mod frames;
mod given;
mod gpu;
mod handles;
mod home;
mod kernel;
mod kernel_nic;
mod launch;
mod launch_state;
mod launched;
mod local_home;
mod mapped;
pub mod metrics;
mod mover;
mod node;
mod nvtx;
mod pages;
mod placement;
mod plan;
mod precompiled;
mod profile;
mod queues;
mod region;
mod rewritten;
mod scope;
mod settings;
mod shared;
mod slot_cache;
mod slot_fault;
mod stats;
mod stored;
mod tenancy;
mod texts;
mod tier_place;
mod tiered;
mod timeline;
mod turns;
mod unchanged;
mod vm;

pub use ahead_of_time::Precompiler;
pub use args::{Arg, KernelArg, KernelArgs, Value};
pub use broadcast::{Broadcast, BroadcastBuilder, RawBroadcast, Subscribers, Traffic};
pub use buffer::{Buffer, RawBuffer};
pub use catch_up::NODES_CALLED_AT_ONCE;
pub use device_code::DeviceCode;
pub use elastic::{ElasticBuffer, ElasticBuilder, ElasticStats, Grown, RawElasticBuffer};
pub use element::{ElementType, Untyped};
pub use error::{Error, Result};
pub use error_kind::ErrorKind;
pub use fault::{Fault, FaultKind};
pub use frames::FrameAccess;
pub use gpu::{ReadCosts, Resized};
pub use gpuvm_files::{FileError, Look, Storage, TierStats};
pub use gpuvm_gpu::{Capabilities, CompileOptions, GpuError, KernelInfo, LaunchReport, ParamInfo, ParamKind};
pub use gpuvm_gpu::{
    cuda::{OthersContext, look_for_nvrtc_in},
    headers, write_headers,
};
pub use gpuvm_layouts::{ArrayDesc, BroadcastDesc};
pub use gpuvm_memory_node::NodeError;
pub use gpuvm_nic::mlx5::QueueMaking;
pub use gpuvm_nic::{NicCapabilities, NicError, NicLimits, SoftNic, soft};
pub use gpuvm_sim_gpu as sim;
pub use gpuvm_tenants as tenants;
pub use handles::HandleStats;
pub use kernel::{Kernel, Module};
pub use kernel_nic::{KernelNic, KernelNicStats, Serving};
pub use launch::LaunchConfig;
pub use launched::{Launch, StreamHandle};
pub use local_home::HostHome;
pub use placement::{Effective, Placement};
pub use plan::Loan;
pub use precompiled::Use;
pub use profile::{HeatColumn, PageProfile, Profile, Profiler, RegionProfile, Suggestion};
pub use region::{
    Advice, DirtyPage, HomeHealth, HomeMemory, Integrity, RawRegion, Region, RegionBuilder, RegionHealth, Series,
    SharedRegion, TellWords,
};
pub use scope::{Scope, ScopedRegion};
pub use settings::{
    CudaGpu, Gpu, MemoryNodes, Mlx5, NamedSetting, NicEngine, Queues, Rdma, RdmaPath, Retransmission, Rxe,
    SimulatedGpu, Soft, Transport, TransportKind, VmBuilder,
};
pub use slot_cache::{Ids, SlotCache, SlotCacheBuilder, SlotPolicy, SlotStats};
pub use slot_fault::SlotFault;
pub use stats::Stats;
pub use tenancy::Tenancy;
pub use tier_place::TierPlace;
pub use tiered::{Moved, RawTieredBuffer, TieredBuffer, TieredBuilder};
pub use timeline::Timeline;
pub use vm::{Vm, VmGpu};

/// The README's program is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeIsTested;
