// gpuvm for C and C++: arrays larger than GPU memory, for CUDA kernels. docs/C.md is the page for users; gpuvm/host.hpp is the same in C++.
// Generated from the crate gpuvm-capi by its test tests/c_header.rs: do not edit. GPUVM_BLESS=1 cargo test -p gpuvm-capi writes it again.
//
// Functions return a gpuvm_code, 0 where all went well; gpuvm_last_error() tells the rest. None of them throws, and none ends the process.
//
// Handles are numbers in structures of their own. They are looked up: one that was freed, the null handle, one of another kind and any other
// number are errors. A handle may be used by several threads at once. Freeing it waits for calls of other threads that use it; whoever frees
// it second gets an error. What it names lives as long as something else needs it.
//
// Pointers: NULL is an error unless the function says otherwise, and so is one that is not aligned. What a pointer points to belongs to the
// program: it stays, and is not changed by others, until the function has returned. Texts are UTF-8 and end with a zero.
//
// Structures whose first field is `size` may grow in later versions. Set it to sizeof, and the rest to zero.

#ifndef GPUVM_H
#define GPUVM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// The version of this header: see gpuvm_version().
#define GPUVM_VERSION 256u
#define GPUVM_VERSION_TEXT "0.1.0"

// The layout version that device code has to have been compiled with: gpuvm_device_code.
#define GPUVM_LAYOUT_VERSION 19u

/// What became of a call. The numbers stay what they are in every version.
typedef enum gpuvm_code {
    /// It was done.
    GPUVM_CODE_OK = 0,
    /// A handle that was freed, that nobody made, or the null handle.
    GPUVM_CODE_INVALID_HANDLE = 1,
    /// A handle of something else than the function takes.
    GPUVM_CODE_WRONG_KIND = 2,
    /// A pointer that may not be NULL, or that is not aligned.
    GPUVM_CODE_INVALID_POINTER = 3,
    /// A text that is not UTF-8.
    GPUVM_CODE_INVALID_TEXT = 4,
    /// A value, a setting or an enumeration's number that cannot be.
    GPUVM_CODE_INVALID_VALUE = 5,
    /// A GPU, a transport or a feature that this machine, this build or this Vm does not have.
    GPUVM_CODE_UNAVAILABLE = 6,
    /// GPU or host memory is short, and whoever holds it gives none. Nothing was changed, and the same may work later.
    GPUVM_CODE_OUT_OF_MEMORY = 7,
    /// The GPU refused.
    GPUVM_CODE_GPU = 8,
    /// The NIC refused.
    GPUVM_CODE_NIC = 9,
    /// A memory node refused, or cannot be reached.
    GPUVM_CODE_NODE = 10,
    /// A region that cannot be, or that does not take what was asked of it.
    GPUVM_CODE_REGION = 11,
    /// A file that cannot be read or written.
    GPUVM_CODE_FILE = 12,
    /// Two regions over the same memory or file, not both read-only.
    GPUVM_CODE_OVERLAP = 13,
    /// Elements past the end.
    GPUVM_CODE_OUT_OF_RANGE = 14,
    /// Bytes that are no whole number of elements.
    GPUVM_CODE_PART_OF_AN_ELEMENT = 15,
    /// Arguments that do not fit the kernel.
    GPUVM_CODE_ARGUMENTS = 16,
    /// Memory that belongs to another GPU of the Vm.
    GPUVM_CODE_OTHER_GPU = 17,
    /// A launch that declares more spans than the frames can carry.
    GPUVM_CODE_SPANS = 18,
    /// An access of a kernel, or a flush, could not be served.
    GPUVM_CODE_FAULT = 19,
    /// The launch was stopped before its end.
    GPUVM_CODE_STOPPED = 20,
    /// The GPU is lost, or the Vm cannot be used any more.
    GPUVM_CODE_LOST = 21,
    /// Writes of kernels may be lost with a GPU.
    GPUVM_CODE_WRITES_LOST = 22,
    /// The source text of a module does not compile.
    GPUVM_CODE_COMPILE = 23,
    /// The module has no such kernel.
    GPUVM_CODE_NO_KERNEL = 24,
    /// The launch has not ended within the time.
    GPUVM_CODE_STILL_RUNS = 25,
    /// An elastic buffer whose contents are in host memory.
    GPUVM_CODE_PAUSED = 26,
    /// An elastic buffer would be longer than it may be.
    GPUVM_CODE_BEYOND_MAX = 27,
    /// A page has no good copy, or not its checksum.
    GPUVM_CODE_DAMAGED = 28,
    /// Memory that was lent, or borrowed, is still used.
    GPUVM_CODE_STILL_USED = 29,
    /// The process was forked after it had used the library.
    GPUVM_CODE_FORKED = 30,
    /// A callback of the program said that it failed.
    GPUVM_CODE_CALLBACK = 31,
    /// A mistake of the library itself.
    GPUVM_CODE_INTERNAL = 32,
} gpuvm_code;

/// The type of an element or a value.
typedef enum gpuvm_type {
    /// A structure of the program's, with its size and alignment.
    GPUVM_TYPE_STRUCTURE = 0,
    /// `uint8_t`, `unsigned char` of a kernel.
    GPUVM_TYPE_U8 = 1,
    /// `uint16_t`.
    GPUVM_TYPE_U16 = 2,
    /// `uint32_t`, `unsigned` of a kernel.
    GPUVM_TYPE_U32 = 3,
    /// `uint64_t`, `unsigned long long` of a kernel.
    GPUVM_TYPE_U64 = 4,
    /// `int8_t`.
    GPUVM_TYPE_I8 = 5,
    /// `int16_t`.
    GPUVM_TYPE_I16 = 6,
    /// `int32_t`, `int` of a kernel.
    GPUVM_TYPE_I32 = 7,
    /// `int64_t`, `long long` of a kernel.
    GPUVM_TYPE_I64 = 8,
    /// `float`.
    GPUVM_TYPE_F32 = 9,
    /// `double`.
    GPUVM_TYPE_F64 = 10,
} gpuvm_type;

/// What fills the frames.
typedef enum gpuvm_transport {
    /// The software NIC.
    GPUVM_TRANSPORT_SOFT = 0,
    /// Linux SoftRoCE.
    GPUVM_TRANSPORT_RXE = 1,
    /// ConnectX NICs.
    GPUVM_TRANSPORT_MLX5 = 2,
    /// Copies by the faulting warp.
    GPUVM_TRANSPORT_DIRECT = 3,
} gpuvm_transport;

/// How a process shares a GPU's memory with others.
typedef enum gpuvm_tenancy {
    /// As `GPUVM_MEMORY_LIMIT`, `GPUVM_MEMORY_MIN` and `GPUVM_PRIORITY` say.
    GPUVM_TENANCY_ENVIRONMENT = 0,
    /// It asks nobody, and nobody asks it.
    GPUVM_TENANCY_NONE = 1,
    /// As the options say.
    GPUVM_TENANCY_TERMS = 2,
} gpuvm_tenancy;

/// What a read does with a page that has no frame. It never changes results.
typedef enum gpuvm_placement {
    /// The page is fetched.
    GPUVM_PLACEMENT_FETCH = 0,
    /// The element is read where the page lives.
    GPUVM_PLACEMENT_IN_PLACE = 1,
    /// The page is fetched while frames are free, and read in place from then on.
    GPUVM_PLACEMENT_WHILE_FREE = 2,
    /// The GPU decides for each page.
    GPUVM_PLACEMENT_AUTO = 3,
} gpuvm_placement;

/// Whether pages have checksums.
typedef enum gpuvm_integrity {
    /// None.
    GPUVM_INTEGRITY_UNCHECKED = 0,
    /// CRC-32C, made when a page is written home and compared when it is fetched. The Vm has `guarded_regions`.
    GPUVM_INTEGRITY_CRC32C = 1,
} gpuvm_integrity;

/// How kernels will use a region. It changes what launches cost, never what they compute.
typedef enum gpuvm_advice {
    /// Nothing is known: takes back what was advised.
    GPUVM_ADVICE_NORMAL = 0,
    /// Pages are used in ascending order, each for a short time.
    GPUVM_ADVICE_SEQUENTIAL = 1,
    /// Pages are used in no order.
    GPUVM_ADVICE_RANDOM = 2,
    /// Each page is used for a short time, and not again.
    GPUVM_ADVICE_READ_ONCE = 3,
    /// Pages leave when no others can.
    GPUVM_ADVICE_KEEP_RESIDENT = 4,
    /// Elements are stored once, and not used again soon: they go to the page's home.
    GPUVM_ADVICE_WRITE_ONCE = 5,
    /// As `GPUVM_PLACEMENT_IN_PLACE`, from now on.
    GPUVM_ADVICE_IN_PLACE = 6,
    /// As `GPUVM_PLACEMENT_FETCH`, from now on.
    GPUVM_ADVICE_FETCH = 7,
} gpuvm_advice;

/// Which GPUs hold which pages of a new broadcast array.
typedef enum gpuvm_subscribers {
    /// All GPUs hold all pages.
    GPUVM_SUBSCRIBERS_ALL = 0,
    /// Each page is held by one GPU, and by those that have read it.
    GPUVM_SUBSCRIBERS_READERS = 1,
    /// Each page is held by one GPU, until `gpuvm_broadcast_subscribe` or `gpuvm_vm_track`.
    GPUVM_SUBSCRIBERS_OWNERS = 2,
} gpuvm_subscribers;

/// What an argument is.
typedef enum gpuvm_arg_kind {
    /// A value, which the kernel takes by value.
    GPUVM_ARG_KIND_VALUE = 0,
    /// A region.
    GPUVM_ARG_KIND_REGION = 1,
    /// A buffer.
    GPUVM_ARG_KIND_BUFFER = 2,
    /// An elastic buffer.
    GPUVM_ARG_KIND_ELASTIC = 3,
    /// A broadcast array.
    GPUVM_ARG_KIND_BROADCAST = 4,
    /// A device address of memory that gpuvm does not know.
    GPUVM_ARG_KIND_ADDRESS = 5,
} gpuvm_arg_kind;

/// A virtual memory, with one GPU or several. Its GPUs, and what they hold, end when its handle and those of all regions, buffers, modules,
/// kernels and launches of it are freed.
typedef struct gpuvm_vm {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_vm;

/// What a broadcast array is to be. Every field but `size` may be 0 or NULL.
typedef struct gpuvm_broadcast_options {
    /// `sizeof(gpuvm_broadcast_options)`.
    uint64_t size;
    /// The name that errors use. NULL: the element's type.
    const char *name;
    /// `gpuvm_subscribers`.
    uint32_t subscribers;
    /// Not 0: every store is counted, not those to one line in 256 alone.
    uint32_t count_all;
} gpuvm_broadcast_options;

/// The type of a region's or a buffer's elements, or of a value. `gpuvm_number(GPUVM_TYPE_F32)` and `gpuvm_structure("point", 16, 8)` make
/// one.
typedef struct gpuvm_element {
    /// `gpuvm_type`.
    uint32_t kind;
    /// Of a structure: bytes that its address is a multiple of, a power of two. Else not looked at.
    uint32_t align;
    /// Of a structure: its bytes. Else not looked at.
    uint64_t bytes;
    /// Of a structure: what messages call it, or NULL. Else not looked at.
    const char *name;
} gpuvm_element;

/// An array of which each subscribed GPU of a virtual memory holds a copy: the argument for a `gpuvm::broadcast<T>` parameter.
typedef struct gpuvm_broadcast {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_broadcast;

/// Device memory of a fixed number of elements: the argument for a pointer parameter. It is not paged.
typedef struct gpuvm_buffer {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_buffer;

/// What an elastic buffer is to be. Every field but `size` may be 0 or NULL.
typedef struct gpuvm_elastic_options {
    /// `sizeof(gpuvm_elastic_options)`.
    uint64_t size;
    /// The name that errors use. NULL: the element's type.
    const char *name;
    /// The group that `gpuvm_vm_pause` takes, or NULL.
    const char *tag;
    /// Elements that it has at first. What they hold is unspecified.
    uint64_t length;
    /// The GPU of the Vm, by its place.
    uint32_t gpu;
    /// Who gives up unused memory first when it is short: those of low priority.
    int32_t priority;
} gpuvm_elastic_options;

/// Device memory that grows and shrinks at one address: the argument for a pointer parameter. It is not paged.
typedef struct gpuvm_elastic {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_elastic;

/// What a growth was.
typedef struct gpuvm_grown {
    /// `sizeof(gpuvm_grown)`.
    uint64_t size;
    /// The first new element.
    uint64_t first;
    /// Bytes that were copied, since another buffer began where this one grew.
    uint64_t moved_bytes;
    /// Nanoseconds that the caller was held.
    uint64_t took_ns;
    /// 1 where the memory was mapped before, else 0.
    uint64_t foreseen;
} gpuvm_grown;

/// What the elastic buffers of a GPU have, and what their growth cost.
typedef struct gpuvm_elastic_stats {
    /// `sizeof(gpuvm_elastic_stats)`.
    uint64_t size;
    /// Buffers, paused ones included.
    uint64_t buffers;
    /// Buffers that are paused.
    uint64_t paused;
    /// Bytes of the elements that there are, without those of paused buffers.
    uint64_t used_bytes;
    /// Bytes of paused buffers, in host memory.
    uint64_t paused_bytes;
    /// Bytes that buffers have beyond their lengths.
    uint64_t ahead_bytes;
    /// Bytes of handles in use that no buffer has.
    uint64_t rest_bytes;
    /// Growths that only moved a length.
    uint64_t foreseen;
    /// Growths that had to wait for memory.
    uint64_t unforeseen;
    /// Nanoseconds of all foreseen growths together.
    uint64_t foreseen_ns;
    /// Nanoseconds of all unforeseen growths together.
    uint64_t unforeseen_ns;
    /// Bytes that were copied, since a buffer grew where another's began.
    uint64_t moved_bytes;
    /// Times that nothing could be mapped ahead.
    uint64_t refused;
    /// Bytes of a handle of memory.
    uint64_t handle_bytes;
    /// Handles in use.
    uint64_t handles_held;
    /// Handles that wait to be used again.
    uint64_t handles_free;
    /// Handles that the driver made.
    uint64_t handles_from_driver;
    /// Handles that went back to the driver.
    uint64_t handles_to_driver;
    /// Handles that were used again.
    uint64_t handles_reused;
} gpuvm_elastic_stats;

/// A kernel of a module. It keeps the module.
typedef struct gpuvm_kernel {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_kernel;

/// A further stream of a GPU: launches of one stream run in order, those of different streams beside each other.
typedef struct gpuvm_stream {
    /// 0: the GPU's default stream, where a launch takes it.
    uint64_t id;
} gpuvm_stream;

/// The shape of a launch. Every field but `size`, `grid[0]` and `block[0]` may be 0 or null.
typedef struct gpuvm_launch_options {
    /// `sizeof(gpuvm_launch_options)`.
    uint64_t size;
    /// Blocks in x, y, z. y and z may be 0, which is 1.
    uint32_t grid[3];
    /// Threads of a block in x, y, z. y and z may be 0, which is 1.
    uint32_t block[3];
    /// Longest that it may run in nanoseconds. 0: the Vm's `launch_deadline_ns`.
    uint64_t deadline_ns;
    /// Spans that one lane holds at once.
    uint64_t lane_spans;
    /// Spans that one warp holds at once.
    uint64_t warp_spans;
    /// The stream. Null: the GPU's default one.
    struct gpuvm_stream stream;
    /// Dynamic shared memory of a block in bytes.
    uint32_t dynamic_shared_bytes;
    /// Not 0: its report does not say how long it took, which spares the caller about 2 us on an NVIDIA GPU.
    uint32_t untimed;
} gpuvm_launch_options;

/// An argument of a kernel. `gpuvm_arg_u32(5)`, `gpuvm_arg_region(region)` and their like make one; in C11 `GPUVM_ARG(x)` does.
typedef struct gpuvm_arg {
    /// `gpuvm_arg_kind`.
    uint32_t kind;
    /// 0.
    uint32_t reserved;
    /// The type of a value, or of what lies at an address.
    struct gpuvm_element element;
    /// The `id` of a handle; an address; or the bytes of a number, from the first on, where `data` is NULL.
    uint64_t value;
    /// The bytes of a value, which stay until the launch function returns.
    const void *data;
} gpuvm_arg;

/// A launch in flight.
typedef struct gpuvm_launch {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_launch;

/// What is known of a launch that has ended.
typedef struct gpuvm_launch_report {
    /// `sizeof(gpuvm_launch_report)`.
    uint64_t size;
    /// Blocks that ran to their end.
    uint64_t blocks;
    /// Nanoseconds from its start to its last block's end; 0 of an untimed launch.
    uint64_t elapsed_ns;
} gpuvm_launch_report;

/// How a source is compiled. Every field but `size` may be 0 or NULL.
typedef struct gpuvm_compile_options {
    /// `sizeof(gpuvm_compile_options)`.
    uint64_t size;
    /// `include_dir_count` folders, searched for `#include` in order.
    const char *const *include_dirs;
    /// Folders in `include_dirs`.
    uint64_t include_dir_count;
    /// `define_count` macros, `NAME` or `NAME=VALUE`.
    const char *const *defines;
    /// Macros in `defines`.
    uint64_t define_count;
    /// `header_count` paths for `#include`.
    const char *const *header_names;
    /// The texts of the headers in `header_names`.
    const char *const *header_texts;
    /// Headers.
    uint64_t header_count;
    /// Not 0: for a debugger.
    uint32_t debug;
    /// 0.
    uint32_t reserved;
} gpuvm_compile_options;

/// Compiled source text, for one GPU of a virtual memory.
typedef struct gpuvm_module {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_module;

/// What a kernel's program was compiled with. `gpuvm::host::device_code()` of gpuvm/launch.cuh is that of the file that calls it.
typedef struct gpuvm_device_code {
    /// `gpuvm::layout::LAYOUT_VERSION`.
    uint32_t layout_version;
    /// `GPUVM_FEATURES` as the program defined it, else `gpuvm::layout::FEATURES_ALL`.
    uint32_t features;
} gpuvm_device_code;

/// Memory that a launch uses: a region, a buffer, an elastic buffer or a broadcast array.
typedef struct gpuvm_use {
    /// The memory.
    struct gpuvm_arg arg;
    /// Not 0: the launch may write it. 0: a region is for a `gpuvm::array<const T>`, a broadcast array for a `gpuvm::broadcast<const T>`.
    uint32_t writes;
    /// 0.
    uint32_t reserved;
} gpuvm_use;

/// What a region is to be. Every field but `size` may be 0 or NULL.
typedef struct gpuvm_region_options {
    /// `sizeof(gpuvm_region_options)`.
    uint64_t size;
    /// The name that errors use. NULL: the element's type.
    const char *name;
    /// The GPU of the Vm that it is made on, by its place. Kernels of all take it.
    uint32_t gpu;
    /// Not 0: kernels may only read it.
    uint32_t read_only;
    /// Not 0: it has frames of its own, and its pages never leave.
    uint32_t never_evicted;
    /// `gpuvm_placement`.
    uint32_t placement;
    /// Not 0: its pages stay in this host's memory although the Vm has memory nodes.
    uint32_t at_host;
    /// Not 0: its pages live in the memory of the neighbour GPU `home_gpu`.
    uint32_t home_on_gpu;
    /// The ordinal of a neighbour GPU; simulated ones are counted from 1 on.
    uint32_t home_gpu;
    /// Homes that hold each page, 1 or 2. 0: 1.
    uint32_t replicas;
    /// `gpuvm_integrity`.
    uint32_t integrity;
    /// Whose pages stay while frames are short: see `gpuvm_region_set_priority`.
    int32_t priority;
} gpuvm_region_options;

/// An array whose pages kernels fetch: the argument for a `gpuvm::array<T>` parameter.
typedef struct gpuvm_region {
    /// 0: the null handle.
    uint64_t id;
} gpuvm_region;

/// How a region's homes are.
typedef struct gpuvm_region_health {
    /// `sizeof(gpuvm_region_health)`.
    uint64_t size;
    /// Pages of which no home that can be reached has a good copy.
    uint64_t pages_without_copy;
    /// Copies of pages that are not what was written back last.
    uint64_t stale_pages;
    /// Homes.
    uint64_t homes;
    /// Homes that cannot be reached.
    uint64_t lost_homes;
} gpuvm_region_health;

/// Memory of a neighbour GPU as a place between frames and homes.
typedef struct gpuvm_loan {
    /// Bytes; 0: what is free there.
    uint64_t bytes;
    /// The neighbour GPU.
    uint32_t ordinal;
    /// 0.
    uint32_t reserved;
} gpuvm_loan;

/// What RDMA devices do: of the transports `rxe`, `mlx5` and of memory nodes. A field that is 0 has its default.
typedef struct gpuvm_rdma_options {
    /// How often a request that was not answered is sent again, 1 to 6; 7 is for ever. 0: 6.
    uint32_t retries;
    /// How long an answer may take: 4.096 us doubled this many times, 1 to 31. 0: 14.
    uint32_t ack_timeout;
    /// `mlx5`: the port. 0: 1.
    uint32_t port;
    /// `mlx5`: one more than the index of the port's GID. 0: a RoCE v2 one.
    uint32_t gid_index_plus_1;
    /// `mlx5`: most bytes of a packet's data. 0: what the port has.
    uint32_t mtu;
    /// `mlx5`: service level, 0 to 15.
    uint32_t service_level;
    /// `mlx5`: traffic class, 0 to 255.
    uint32_t traffic_class;
    /// `mlx5`: not 0 for queues that are made by DevX.
    uint32_t devx;
} gpuvm_rdma_options;

/// What a virtual memory is to be. Set `size`; every field that is 0 or NULL has its default, so begin with
/// `gpuvm_vm_options options = {.size = sizeof options};`. Texts and lists need to stay until `gpuvm_vm_new` returns.
typedef struct gpuvm_vm_options {
    /// `sizeof(gpuvm_vm_options)`.
    uint64_t size;
    /// `gpu_count` names: `auto`, `sim`, `cuda:N` or `cuda:GPU-UUID`.
    const char *const *gpus;
    /// 0: one, `auto`, which is the first NVIDIA GPU, or the simulated one where there is none.
    uint64_t gpu_count;
    /// `auto`, `direct`, `soft`, `rxe` or `mlx5`. NULL: `auto`, which is `direct` on an NVIDIA GPU and `soft` on the simulated one; with memory
    /// nodes whichever leads there.
    const char *transport;
    /// `nic_count` devices: one of `rxe`, any of `mlx5`. NULL: the first, or the nearest.
    const char *const *nics;
    /// Names in `nics`.
    uint64_t nic_count;
    /// `memory_node_count` addresses of memory nodes, `host:port` each.
    const char *const *memory_nodes;
    /// 0: pages live in this host's memory.
    uint64_t memory_node_count;
    /// The secret of the memory nodes, or NULL.
    const char *memory_node_secret;
    /// Longest step with a memory node in nanoseconds. 0: 10 s.
    uint64_t memory_node_timeout_ns;
    /// `loan_count` loans of neighbour GPUs.
    const struct gpuvm_loan *loans;
    /// 0: nothing is borrowed.
    uint64_t loan_count;
    /// Bytes of frames. 0: 64 MiB.
    uint64_t frame_memory;
    /// Most bytes of frames, where their number is to change. 0: it stays as it is.
    uint64_t frame_capacity;
    /// Bytes of frames that stay when buffers find no memory. 0: an eighth of `frame_memory`.
    uint64_t frame_minimum;
    /// Bytes of the GPU's memory that are to be free, whoever uses it: where fewer are, frames give memory to the driver, down to
    /// `frame_minimum`; where more are and pages leave their frames, they grow. With `frame_capacity`. 0: nobody looks.
    uint64_t frames_leave_free;
    /// Bytes of host memory by way of which files are read and written as kernels need them: for files larger than memory. 0: files are
    /// mapped.
    uint64_t file_memory;
    /// Bytes of a page, a power of two from 4 KiB to 2 MiB. 0: 4 KiB.
    uint64_t page_size;
    /// Longest wait of a lane in nanoseconds. 0: 10 s.
    uint64_t wait_limit_ns;
    /// Longest launch in nanoseconds. 0: 10 minutes.
    uint64_t launch_deadline_ns;
    /// With `frame_capacity`: when memory is short frames and elastic buffers of low priority give it first.
    int32_t frame_priority;
    /// Regions that may live at one time. 0: 256.
    uint32_t regions_max;
    /// Not 0: regions may have replicas and checksums.
    uint32_t guarded_regions;
    /// Queue pairs of each home and NIC. 0: as many as the transport takes.
    uint32_t queue_pairs;
    /// Requests of a queue pair, a power of two. 0: 256.
    uint32_t queue_depth;
    /// Homes in this host's memory, 1 or 2. 0: 1.
    uint32_t host_homes;
    /// Engine threads of the software NIC. 0: 1.
    uint32_t soft_engines;
    /// Not 0: each READ is followed by a read of its frame. `soft` and `mlx5`.
    uint32_t flush_reads;
    /// Not 0: all completions of a queue pair come to one entry. `soft`.
    uint32_t collapsed_completions;
    /// `gpuvm_tenancy`.
    uint32_t tenancy;
    /// With `GPUVM_TENANCY_TERMS`: bytes that the process keeps whoever asks.
    uint64_t tenancy_minimum;
    /// With `GPUVM_TENANCY_TERMS`: bytes that it holds at most. 0: no limit.
    uint64_t tenancy_limit;
    /// With `GPUVM_TENANCY_TERMS`: -100 to 100.
    int32_t tenancy_priority;
    /// Simulated GPU: worker threads. 0: one a core.
    uint32_t sim_workers;
    /// The registry's folder, or NULL for the user's.
    const char *tenancy_folder;
    /// Simulated GPU: bytes of its memory. 0: frames and bookkeeping plus 1 GiB.
    uint64_t sim_memory;
    /// Simulated GPU: the seed that it follows, if `sim_seeded`.
    uint64_t sim_seed;
    /// Simulated GPU: the name under which it is shared with other processes, or NULL.
    const char *sim_shared_as;
    /// Simulated GPU: not 0 to follow `sim_seed`.
    uint32_t sim_seeded;
    /// Simulated GPU: lanes of a worker. 0: 256.
    uint32_t sim_lanes;
    /// Simulated GPU: neighbours. 0: as many as lend.
    uint32_t sim_neighbours;
    /// Simulated GPU: not 0 for launches that wait for room as on hardware, so that one which waits for a launch behind it waits for ever.
    /// 0: each finds room for a block on each worker.
    uint32_t sim_waits_for_room;
    /// Simulated GPU: a folder of modules that were compiled before by the same version of the library, or NULL. What is found there needs no
    /// compiler on this machine; with `sim_seeded` all is compiled anew.
    const char *sim_precompiled;
    /// Simulated GPU: a folder that gets each module which is compiled, for `sim_precompiled`, or NULL. What a module is compiled with depends
    /// on the transport and on `guarded_regions`.
    const char *sim_precompile_into;
    /// What RDMA devices do.
    struct gpuvm_rdma_options rdma;
    /// The file of a timeline, which Perfetto opens, or NULL: that of `GPUVM_TRACE`, if it is set. `%p` in it becomes the number of the process.
    const char *timeline;
    /// With `timeline`: most bytes of the file. 0: 256 MiB.
    uint64_t timeline_file_bytes;
    /// With `timeline`: events that have room in GPU memory before the host has read them. 0: 65,536.
    uint64_t timeline_ring_events;
    /// With `timeline`: one of so many faults, evictions and so on is noted. 0: 64. 1: all.
    uint32_t timeline_one_in;
    /// 1: `file_memory` is the GPU's own, which blocks of files reach past the host's memory by GPUDirect Storage. 0: it is the host's.
    uint32_t file_memory_on_gpu;
} gpuvm_vm_options;

/// A GPU of a virtual memory.
typedef struct gpuvm_gpu_info {
    /// `sizeof(gpuvm_gpu_info)`.
    uint64_t size;
    /// Bytes of a page.
    uint64_t page_size;
    /// Frames that there are.
    uint64_t frames;
    /// Frames that there may be.
    uint64_t frame_capacity;
    /// Bytes of page tables and of what is kept of each frame.
    uint64_t bookkeeping_bytes;
    /// Bytes that neighbour GPUs lend.
    uint64_t borrowed_bytes;
    /// `gpuvm_transport`.
    uint32_t transport;
    /// Queue pairs, of all homes and NICs together.
    uint32_t queue_pairs;
} gpuvm_gpu_info;

/// What became of a change of the number of frames.
typedef struct gpuvm_resized {
    /// `sizeof(gpuvm_resized)`.
    uint64_t size;
    /// Bytes of frames that there are now.
    uint64_t bytes;
    /// Bytes of frames that were to go and stay. Asking once more goes on.
    uint64_t kept_bytes;
    /// Bytes of frames that were to come and for which there is no memory.
    uint64_t missing_bytes;
    /// Nanoseconds that it took.
    uint64_t took_ns;
} gpuvm_resized;

/// Counts of one GPU since the virtual memory began. Exact when no launch runs.
typedef struct gpuvm_stats {
    /// `sizeof(gpuvm_stats)`.
    uint64_t size;
    /// Lanes whose access found its page not resident.
    uint64_t missed_lanes;
    /// Demand fetches posted: one for each group of lanes that won a page.
    uint64_t faults;
    /// Lanes that missed and were served by another lane's fetch.
    uint64_t coalesced;
    /// Pages fetched, prefetches included.
    uint64_t pages_fetched;
    /// Pages written home.
    uint64_t pages_written_back;
    /// Bytes fetched.
    uint64_t bytes_fetched;
    /// Bytes written home.
    uint64_t bytes_written_back;
    /// Pages that left their frame.
    uint64_t evictions;
    /// Prefetches posted because a kernel asked.
    uint64_t prefetches;
    /// Fetches posted because the faults of a warp came in strides: see Advice.
    uint64_t read_ahead;
    /// Doorbells rung by GPU threads.
    uint64_t doorbells;
    /// Doorbell calls that a proxy made for GPU threads: the only processor work on a fault's way. 0 where the NIC
    /// sees the doorbells by itself.
    uint64_t doorbell_calls;
    /// Queue pairs to memory nodes that were taken out of the error state while kernels ran.
    uint64_t queue_pairs_mended;
    /// Work requests posted by GPU threads.
    uint64_t requests;
    /// Completions handled by a lane that had not posted the request.
    uint64_t helped;
    /// Completions with an error.
    uint64_t errors;
    /// Times that a lane found the frame pool empty.
    uint64_t pool_dry;
    /// Times that a lane found every ring full.
    uint64_t queue_full;
    /// Pages that were fetched and did not have their checksum.
    uint64_t pages_corrupt;
    /// Copies that became stale, since a home was lost, refused a write-back, or gave bad data.
    uint64_t replicas_missed;
    /// Stale copies that a write-back has mended.
    uint64_t replicas_mended;
    /// Bytes that were read at the pages' homes, in place: chunks of 16 bytes, estimated from a sample of the reads.
    /// Not among them: the first read of a page above 4 KiB, and all but 16 bytes of a wider element.
    uint64_t bytes_in_place;
    /// Bytes that were stored at the pages' homes, in place.
    uint64_t bytes_stored_in_place;
    /// Pages that lanes overwrote whole by `array::overwrite`, so that they came to a frame without a fetch.
    uint64_t pages_overwritten;
    /// Pages of regions with Placement::Auto that a fault fetched while no frame was free: the rule that held let
    /// them in, or a span asked for them. The other pages of such regions came while frames were free.
    uint64_t admissions;
    /// Evictions of pages of such regions for another page of their own region. The other evictions are for pages of
    /// other regions, or for whoever waits for a frame too long.
    uint64_t displacements;
    /// Clean pages that left their frames and were copied to borrowed memory of a neighbour GPU. A page that came
    /// from there and was not written is there still, and leaves uncopied.
    uint64_t victims_copied;
    /// Pages that were fetched from there; `pages_fetched` and `bytes_fetched` have them, too.
    uint64_t victims_fetched;
    /// Pages that lost their place there to a page that was fetched more often, and are at their home alone.
    uint64_t victims_displaced;
    /// Pages that came from their home since the neighbour had its memory back.
    uint64_t victims_lost;
    /// Stores of single lanes to broadcast arrays that went to other GPUs, estimated from every 256th line;
    /// Broadcast::traffic tells them by array and GPU, with bytes.
    uint64_t broadcast_stores;
    /// Lines, or parts of them, in which those left: stores that were merged, of a warp or in a `gpuvm::merge_queue`,
    /// are one.
    uint64_t broadcast_lines;
    /// Bytes that neighbours lend at the time of these counts. Of a difference: at its end.
    uint64_t bytes_borrowed;
    /// Bytes of borrowed memory that the neighbours have back.
    uint64_t bytes_given_back;
    /// Bytes of a page.
    uint64_t page_bytes;
} gpuvm_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// What the last function that failed in this thread has to say: what failed and why, the chain of causes, and what to do. Empty where none
/// has failed. It is the library's, and stays until another function fails in this thread, or the thread ends.
const char *gpuvm_last_error(void);

/// The number's name, such as `GPUVM_CODE_OUT_OF_RANGE`. It stays for good.
const char *gpuvm_code_name(int32_t code);

/// The library's version: major, minor and patch version in its bytes 2, 1 and 0. Compare it with `GPUVM_VERSION` of the header that a
/// program was compiled with: while the major version is 0, the minor versions have to be equal.
uint32_t gpuvm_version(void);

/// The library's version as text, such as `0.1.0`. It stays for good.
const char *gpuvm_version_text(void);

/// Makes a broadcast array of `length` elements whose bytes are zero. `options`: NULL for the defaults. Free it by `gpuvm_broadcast_free`. After
/// an error `*broadcast` is the null handle.
enum gpuvm_code gpuvm_broadcast_zeroed(struct gpuvm_vm vm,
                                       const struct gpuvm_broadcast_options *options,
                                       struct gpuvm_element element,
                                       uint64_t length,
                                       struct gpuvm_broadcast *broadcast);

/// Makes a broadcast array of a copy of `bytes` bytes, a whole number of elements. Else as `gpuvm_broadcast_zeroed`.
enum gpuvm_code gpuvm_broadcast_copied(struct gpuvm_vm vm,
                                       const struct gpuvm_broadcast_options *options,
                                       struct gpuvm_element element,
                                       const void *data,
                                       uint64_t bytes,
                                       struct gpuvm_broadcast *broadcast);

/// Frees the handle, after the launches that name the array.
enum gpuvm_code gpuvm_broadcast_free(struct gpuvm_broadcast broadcast);

/// Stores its length in elements.
enum gpuvm_code gpuvm_broadcast_length(struct gpuvm_broadcast broadcast, uint64_t *length);

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the array.
enum gpuvm_code gpuvm_broadcast_read(struct gpuvm_broadcast broadcast, uint64_t first, void *data, uint64_t bytes);

/// As `gpuvm_broadcast_read`, as the home has the elements: what the array was made of, or what the last flush wrote. It asks no GPU.
enum gpuvm_code gpuvm_broadcast_read_home(struct gpuvm_broadcast broadcast,
                                          uint64_t first,
                                          void *data,
                                          uint64_t bytes);

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, in all copies, after the launches that name the array.
enum gpuvm_code gpuvm_broadcast_write(struct gpuvm_broadcast broadcast,
                                      uint64_t first,
                                      const void *data,
                                      uint64_t bytes);

/// Writes what the GPUs hold to the array's home in host memory, after the launches that name it.
enum gpuvm_code gpuvm_broadcast_flush(struct gpuvm_broadcast broadcast);

/// Has a GPU of the virtual memory hold copies of all pages that have one of `count` elements from `first` on. Waits for the launches that name
/// the array.
enum gpuvm_code gpuvm_broadcast_subscribe(struct gpuvm_broadcast broadcast,
                                          uint32_t gpu,
                                          uint64_t first,
                                          uint64_t count);

/// Has a GPU of the virtual memory give back its copies of the pages that have no other elements than `count` from `first` on. Waits for the
/// launches that name the array.
enum gpuvm_code gpuvm_broadcast_unsubscribe(struct gpuvm_broadcast broadcast,
                                            uint32_t gpu,
                                            uint64_t first,
                                            uint64_t count);

/// Stores the GPUs that hold a copy of the element's page: bit `n` is that of the GPU at place `n`.
enum gpuvm_code gpuvm_broadcast_subscribers(struct gpuvm_broadcast broadcast, uint64_t element, uint32_t *gpus);

/// Stores the place of the GPU that owns the element's page.
enum gpuvm_code gpuvm_broadcast_owner(struct gpuvm_broadcast broadcast, uint64_t element, uint32_t *gpu);

/// Makes a buffer of `length` elements whose bytes are zero, on a GPU of the virtual memory. Free it by `gpuvm_buffer_free`. After an error
/// `*buffer` is the null handle.
enum gpuvm_code gpuvm_buffer_new(struct gpuvm_vm vm,
                                 uint32_t gpu,
                                 struct gpuvm_element element,
                                 uint64_t length,
                                 struct gpuvm_buffer *buffer);

/// Frees the handle. The memory goes when the launches that name it have ended.
enum gpuvm_code gpuvm_buffer_free(struct gpuvm_buffer buffer);

/// Stores its length in elements.
enum gpuvm_code gpuvm_buffer_length(struct gpuvm_buffer buffer, uint64_t *length);

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
enum gpuvm_code gpuvm_buffer_read(struct gpuvm_buffer buffer, uint64_t first, void *data, uint64_t bytes);

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
enum gpuvm_code gpuvm_buffer_write(struct gpuvm_buffer buffer, uint64_t first, const void *data, uint64_t bytes);

/// Makes an elastic buffer of up to `max` elements. It takes no memory until it grows. `options`: NULL for the defaults. Free it by
/// `gpuvm_elastic_free`. After an error `*elastic` is the null handle.
enum gpuvm_code gpuvm_elastic_new(struct gpuvm_vm vm,
                                  const struct gpuvm_elastic_options *options,
                                  struct gpuvm_element element,
                                  uint64_t max,
                                  struct gpuvm_elastic *elastic);

/// Frees the handle. The memory goes to others when the launches that name it have ended.
enum gpuvm_code gpuvm_elastic_free(struct gpuvm_elastic elastic);

/// Makes it longer by `elements`, whose contents are unspecified. `grown` may be NULL. After an error it is as before.
enum gpuvm_code gpuvm_elastic_grow(struct gpuvm_elastic elastic, uint64_t elements, struct gpuvm_grown *grown);

/// Makes it `elements` long, if it is shorter. `grown` may be NULL. After an error it is as before.
enum gpuvm_code gpuvm_elastic_ensure(struct gpuvm_elastic elastic, uint64_t elements, struct gpuvm_grown *grown);

/// Makes it shorter by `elements`. What is behind the new length must not be used any more, also by launches that run.
enum gpuvm_code gpuvm_elastic_shrink(struct gpuvm_elastic elastic, uint64_t elements);

/// Stores its length in elements.
enum gpuvm_code gpuvm_elastic_length(struct gpuvm_elastic elastic, uint64_t *length);

/// Stores how many elements it can have without waiting for memory; 0 while it is paused.
enum gpuvm_code gpuvm_elastic_capacity(struct gpuvm_elastic elastic, uint64_t *capacity);

/// Stores the device address of its first element, which stays as long as the buffer lives.
enum gpuvm_code gpuvm_elastic_pointer(struct gpuvm_elastic elastic, uint64_t *address);

/// Says who gives up memory that is mapped and not in use when GPU memory is short: those of low priority first, among elastic buffers and
/// frames (`gpuvm_vm_set_frame_priority`). It holds for the next who is short.
enum gpuvm_code gpuvm_elastic_set_priority(struct gpuvm_elastic elastic,
                                           int32_t priority);

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
enum gpuvm_code gpuvm_elastic_read(struct gpuvm_elastic elastic, uint64_t first, void *data, uint64_t bytes);

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
enum gpuvm_code gpuvm_elastic_write(struct gpuvm_elastic elastic, uint64_t first, const void *data, uint64_t bytes);

/// Stores what the elastic buffers of a GPU have, and what their growth cost.
enum gpuvm_code gpuvm_vm_elastic_stats(struct gpuvm_vm vm, uint32_t gpu, struct gpuvm_elastic_stats *stats);

/// Enqueues a launch and returns at once, unless a launch on another GPU has to end before. The arguments are checked against the kernel's
/// parameters. What they name stays until the launch has ended, whatever is freed meanwhile. Its errors come out of `gpuvm_launch_sync`. Free
/// the launch by `gpuvm_launch_free`. After an error nothing runs, and `*launch` is the null handle.
enum gpuvm_code gpuvm_kernel_launch(struct gpuvm_kernel kernel,
                                    const struct gpuvm_launch_options *options,
                                    const struct gpuvm_arg *args,
                                    uint64_t arg_count,
                                    struct gpuvm_launch *launch);

/// Waits for the end of a launch. Returns its error, if it had one, as often as it is asked. `end` may be NULL.
enum gpuvm_code gpuvm_launch_sync(struct gpuvm_launch launch, struct gpuvm_launch_report *end);

/// As `gpuvm_launch_sync`, for `timeout_ns` nanoseconds at most: then it returns `GPUVM_CODE_STILL_RUNS`. 0 looks and does not wait.
enum gpuvm_code gpuvm_launch_wait(struct gpuvm_launch launch,
                                  uint64_t timeout_ns,
                                  struct gpuvm_launch_report *end);

/// Stores whether a launch has ended.
enum gpuvm_code gpuvm_launch_is_done(struct gpuvm_launch launch, bool *done);

/// Asks the kernel to stop: `failed()` of its arrays becomes true, and accesses that miss return at once.
enum gpuvm_code gpuvm_launch_abort(struct gpuvm_launch launch);

/// Stops the kernel where it stands, and with it the other launches in flight on its GPU. No dirty page is lost.
enum gpuvm_code gpuvm_launch_kill(struct gpuvm_launch launch);

/// Frees the handle. The kernel goes on; an error of its that was not asked for is lost.
enum gpuvm_code gpuvm_launch_free(struct gpuvm_launch launch);

/// Compiles CUDA C++ source text, which messages call `name`, for a GPU of the virtual memory, and finds `kernel_count` kernels in it, which
/// `gpuvm_module_kernel` takes. `options`: NULL for the defaults. Free the module by `gpuvm_module_free`. After an error, which has the
/// compiler's log, `*module` is the null handle.
enum gpuvm_code gpuvm_module_compile(struct gpuvm_vm vm,
                                     uint32_t gpu,
                                     const char *name,
                                     const char *source,
                                     const char *const *kernels,
                                     uint64_t kernel_count,
                                     const struct gpuvm_compile_options *options,
                                     struct gpuvm_module *module);

/// Compiles the CUDA C++ file at `path`. Else as `gpuvm_module_compile`.
enum gpuvm_code gpuvm_module_compile_file(struct gpuvm_vm vm,
                                          uint32_t gpu,
                                          const char *path,
                                          const char *const *kernels,
                                          uint64_t kernel_count,
                                          const struct gpuvm_compile_options *options,
                                          struct gpuvm_module *module);

/// Loads a cubin, a fat binary or PTX of `bytes` bytes that nvcc made with the device library's headers, which messages call `name`.
/// `GPUVM_EXPORT(kernel)` follows each of its `kernel_count` kernels in the source. Else as `gpuvm_module_compile`; the simulated GPU refuses
/// it.
enum gpuvm_code gpuvm_module_load(struct gpuvm_vm vm,
                                  uint32_t gpu,
                                  const char *name,
                                  const void *image,
                                  uint64_t bytes,
                                  const char *const *kernels,
                                  uint64_t kernel_count,
                                  struct gpuvm_module *module);

/// Loads the file at `path`. Else as `gpuvm_module_load`.
enum gpuvm_code gpuvm_module_load_file(struct gpuvm_vm vm,
                                       uint32_t gpu,
                                       const char *path,
                                       const char *const *kernels,
                                       uint64_t kernel_count,
                                       struct gpuvm_module *module);

/// Frees the handle. Its kernels stay.
enum gpuvm_code gpuvm_module_free(struct gpuvm_module module);

/// Finds a kernel by the name that was given when the module was compiled. Free it by `gpuvm_kernel_free`. After an error `*kernel` is the
/// null handle.
enum gpuvm_code gpuvm_module_kernel(struct gpuvm_module module,
                                    const char *name,
                                    struct gpuvm_kernel *kernel);

/// Frees the handle. Launches of the kernel go on.
enum gpuvm_code gpuvm_kernel_free(struct gpuvm_kernel kernel);

/// Stores how many parameters the kernel has.
enum gpuvm_code gpuvm_kernel_param_count(struct gpuvm_kernel kernel, uint32_t *count);

/// Copies the C++ type of a parameter, counted from 0, to `text` as `gpuvm_vm_gpu_name` does.
enum gpuvm_code gpuvm_kernel_param_type(struct gpuvm_kernel kernel,
                                        uint32_t param,
                                        char *text,
                                        uint64_t capacity,
                                        uint64_t *length);

/// Makes a further stream of a GPU of the virtual memory. Free it by `gpuvm_stream_free`. After an error `*stream` is the null handle.
enum gpuvm_code gpuvm_stream_new(struct gpuvm_vm vm,
                                 uint32_t gpu,
                                 struct gpuvm_stream *stream);

/// Frees the handle. Launches on the stream go on.
enum gpuvm_code gpuvm_stream_free(struct gpuvm_stream stream);

/// Stores what kernels of a GPU of the virtual memory use of the device library, no more and no less: a program that compiles kernels while it
/// runs defines `GPUVM_FEATURES` as its `features`.
enum gpuvm_code gpuvm_vm_device_code(struct gpuvm_vm vm,
                                     uint32_t gpu,
                                     struct gpuvm_device_code *code);

/// A launch of a kernel that gpuvm did not compile, such as one that nvcc compiled into the program. `enqueue` puts it on the stream, is called
/// once, before this returns, and returns 0, or a number, such as a cudaError_t, when it could not. It gets `context`, the stream as a
/// cudaStream_t, and for each of the `use_count` in `uses` the address of what the kernel takes by value: a `gpuvm::array`, a
/// `gpuvm::broadcast`, or a pointer. These are of this launch alone and lie there until the callback returns. It calls nothing of gpuvm, and
/// throws nothing. `name` is for messages. `options` say what shape the kernel has; its dynamic shared memory does not matter. gpuvm/launch.cuh
/// has all this for C++. Else as `gpuvm_kernel_launch`. When the callback failed, this waits for whatever it had enqueued.
enum gpuvm_code gpuvm_launch_by(struct gpuvm_vm vm,
                                uint32_t gpu,
                                const char *name,
                                const struct gpuvm_device_code *code,
                                const struct gpuvm_launch_options *options,
                                const struct gpuvm_use *uses,
                                uint64_t use_count,
                                int32_t (*enqueue)(void *context, void *stream, const void *const *views),
                                void *context,
                                struct gpuvm_launch *launch);

/// Makes a handle of a stream that the program made and uses, for launches in its order: a `cudaStream_t` or `CUstream` of the GPU's primary
/// context, which is CUDA's runtime's. NULL is the default stream. It is live until the handle was freed and launches on it have ended. Free the
/// handle by `gpuvm_stream_free`, which leaves the stream. Not on the simulated GPU. After an error `*stream` is the null handle.
enum gpuvm_code gpuvm_stream_borrow(struct gpuvm_vm vm,
                                    uint32_t gpu,
                                    void *cuda_stream,
                                    struct gpuvm_stream *stream);

/// Stores the `cudaStream_t` of a stream, for other work in its order; NULL on the simulated GPU.
enum gpuvm_code gpuvm_stream_raw(struct gpuvm_stream stream, void **cuda_stream);

/// Makes a region of `length` elements whose bytes are zero. `options`: NULL for the defaults. Free it by `gpuvm_region_free`. After an error
/// `*region` is the null handle.
enum gpuvm_code gpuvm_region_zeroed(struct gpuvm_vm vm,
                                    const struct gpuvm_region_options *options,
                                    struct gpuvm_element element,
                                    uint64_t length,
                                    struct gpuvm_region *region);

/// Makes a region of a copy of `bytes` bytes, a whole number of elements. Else as `gpuvm_region_zeroed`.
enum gpuvm_code gpuvm_region_copied(struct gpuvm_vm vm,
                                    const struct gpuvm_region_options *options,
                                    struct gpuvm_element element,
                                    const void *data,
                                    uint64_t bytes,
                                    struct gpuvm_region *region);

/// Makes a region over `length` elements in the program's memory, in place. Until `gpuvm_region_free` has returned the memory stays, and is
/// read and written through the region only; where the region is read-only it may be read by others, too. If that returns
/// `GPUVM_CODE_STILL_USED`, the memory stays until the process ends. Else as `gpuvm_region_zeroed`.
enum gpuvm_code gpuvm_region_borrowed(struct gpuvm_vm vm,
                                      const struct gpuvm_region_options *options,
                                      struct gpuvm_element element,
                                      void *memory,
                                      uint64_t length,
                                      struct gpuvm_region *region);

/// Makes a region of a copy of all bytes of the file at `path`. It is as long as the file. Else as `gpuvm_region_zeroed`.
enum gpuvm_code gpuvm_region_from_file(struct gpuvm_vm vm,
                                       const struct gpuvm_region_options *options,
                                       struct gpuvm_element element,
                                       const char *path,
                                       struct gpuvm_region *region);

/// Makes a region over the pages of the file at `path`, in place: what kernels write goes into the file, unless the options say read-only. It
/// is as long as the file, which nobody makes shorter while the region lives. Else as `gpuvm_region_zeroed`.
enum gpuvm_code gpuvm_region_map_file(struct gpuvm_vm vm,
                                      const struct gpuvm_region_options *options,
                                      struct gpuvm_element element,
                                      const char *path,
                                      struct gpuvm_region *region);

/// Makes a region over `length` elements of the file at `path`, from byte `offset_bytes` on, a multiple of the element's alignment. Regions over
/// spans of one file may overlap if all of them are read-only; what is around a span stays as it is. Else as `gpuvm_region_map_file`.
enum gpuvm_code gpuvm_region_map_file_span(struct gpuvm_vm vm,
                                           const struct gpuvm_region_options *options,
                                           struct gpuvm_element element,
                                           const char *path,
                                           uint64_t offset_bytes,
                                           uint64_t length,
                                           struct gpuvm_region *region);

/// Lets other processes read the region, which is read-only and lies at memory nodes without replicas: they attach to it by a name, bytes that
/// go to them by any way that they have. Stores how many bytes the name has in `length`, and copies it to `name` where `capacity` is that many
/// at least. `name`: NULL with capacity 0. Its memory stays until the last process that has it leaves the nodes.
enum gpuvm_code gpuvm_region_share(struct gpuvm_region region,
                                   void *name,
                                   uint64_t capacity,
                                   uint64_t *length);

/// Makes a read-only region over what another process has shared by the name of `bytes` bytes. The Vm has the same memory nodes, in the same
/// order, and pages of the same size. Else as `gpuvm_region_zeroed`.
enum gpuvm_code gpuvm_region_attach(struct gpuvm_vm vm,
                                    const struct gpuvm_region_options *options,
                                    struct gpuvm_element element,
                                    const void *name,
                                    uint64_t bytes,
                                    struct gpuvm_region *region);

/// Ends the region: waits for the launches that name it and for calls of other threads that use it, writes its dirty pages home, and frees
/// the handle. It is freed also after an error of the runtime, which says what could not be written: flush first where that must not be.
/// `GPUVM_CODE_STILL_USED`: memory that it borrowed may still be reached.
enum gpuvm_code gpuvm_region_free(struct gpuvm_region region);

/// Stores its length in elements.
enum gpuvm_code gpuvm_region_length(struct gpuvm_region region, uint64_t *length);

/// Stores how many pages it has.
enum gpuvm_code gpuvm_region_pages(struct gpuvm_region region, uint64_t *pages);

/// Stores the device address of its first element, where all elements lie as plain memory for good: of a region that is never evicted, on the
/// GPU that it was made on, once kernels have touched each of its pages. Else 0. It is for reading: stores there never reach the home.
enum gpuvm_code gpuvm_region_resident_address(struct gpuvm_region region,
                                              uint64_t *address);

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the region.
enum gpuvm_code gpuvm_region_read(struct gpuvm_region region, uint64_t first, void *data, uint64_t bytes);

/// As `gpuvm_region_read`; or, when the GPU is lost, as the home holds the elements: without what was only in GPU memory.
enum gpuvm_code gpuvm_region_read_home(struct gpuvm_region region,
                                       uint64_t first,
                                       void *data,
                                       uint64_t bytes);

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the region. Later launches see them.
enum gpuvm_code gpuvm_region_write(struct gpuvm_region region,
                                   uint64_t first,
                                   const void *data,
                                   uint64_t bytes);

/// Writes home what launches wrote that were enqueued before, and waits for them.
enum gpuvm_code gpuvm_region_flush(struct gpuvm_region region);

/// Writes dirty pages home without waiting for launches.
enum gpuvm_code gpuvm_region_flush_beside(struct gpuvm_region region);

/// Writes dirty pages home and gives the frames back. Waits for the launches that name the region.
enum gpuvm_code gpuvm_region_evict(struct gpuvm_region region);

/// Says how the launches to come will use the region, by a `gpuvm_advice`. Stores whether this region follows it; `followed` may be NULL.
enum gpuvm_code gpuvm_region_advise(struct gpuvm_region region,
                                    uint32_t advice,
                                    bool *followed);

/// Says whose pages stay: while frames are short, pages of a region leave when no page of a region of lower priority can. Launches that run
/// follow it from some moment on. The eight lowest priorities of the regions that are there are told apart, those above are one. A region that
/// is never evicted has no use for it.
enum gpuvm_code gpuvm_region_set_priority(struct gpuvm_region region,
                                          int32_t priority);

/// Stores the priority that was said last: by the options, or by `gpuvm_region_set_priority`.
enum gpuvm_code gpuvm_region_priority(struct gpuvm_region region, int32_t *priority);

/// Drops the pages that lie wholly in `count` elements from `first` on, without writing them home: each holds what its home holds. Waits for
/// the launches that name the region.
enum gpuvm_code gpuvm_region_discard(struct gpuvm_region region,
                                     uint64_t first,
                                     uint64_t count);

/// Stores how the region's homes are.
enum gpuvm_code gpuvm_region_get_health(struct gpuvm_region region, struct gpuvm_region_health *health);

/// Makes a virtual memory. `options`: NULL for the defaults, which are the first NVIDIA GPU, or the simulated one where there is none, with 64
/// MiB of frames. Free it by `gpuvm_vm_free`. After an error `*vm` is the null handle.
enum gpuvm_code gpuvm_vm_new(const struct gpuvm_vm_options *options,
                             struct gpuvm_vm *vm);

/// Frees the handle. Regions, buffers and all else that was made of the virtual memory go on, each until it is freed itself.
enum gpuvm_code gpuvm_vm_free(struct gpuvm_vm vm);

/// Stores how many GPUs the virtual memory has. Each is named by its place, from 0 on.
enum gpuvm_code gpuvm_vm_gpu_count(struct gpuvm_vm vm, uint32_t *count);

/// Stores what is known of a GPU of the virtual memory.
enum gpuvm_code gpuvm_vm_gpu_info(struct gpuvm_vm vm, uint32_t gpu, struct gpuvm_gpu_info *info);

/// Copies a GPU's name, with a zero at its end, to `text`, which has room for `capacity` bytes, as far as it fits. Stores its length without
/// the zero in `*length`, unless that is NULL.
enum gpuvm_code gpuvm_vm_gpu_name(struct gpuvm_vm vm,
                                  uint32_t gpu,
                                  char *text,
                                  uint64_t capacity,
                                  uint64_t *length);

/// Gives a GPU `bytes` bytes of frames while kernels run: for a virtual memory with `frame_capacity`. Frames that are to go have `within_ns`
/// nanoseconds to empty, a second if that is 0. `resized` may be NULL.
enum gpuvm_code gpuvm_vm_resize_frames(struct gpuvm_vm vm,
                                       uint32_t gpu,
                                       uint64_t bytes,
                                       uint64_t within_ns,
                                       struct gpuvm_resized *resized);

/// Says when frames of a GPU give up their memory for others: those of low priority do first, among frames and elastic buffers
/// (`gpuvm_elastic_set_priority`). It holds for the next who is short, in a virtual memory with `frame_capacity`; without, frames stay.
enum gpuvm_code gpuvm_vm_set_frame_priority(struct gpuvm_vm vm,
                                            uint32_t gpu,
                                            int32_t priority);

/// Brings the contents of the elastic buffers with the tag, on all GPUs, to host memory, and gives their GPU memory to others. It waits for the
/// launches that name them. Stores how many bytes those are; `bytes` may be NULL.
enum gpuvm_code gpuvm_vm_pause(struct gpuvm_vm vm,
                               const char *tag,
                               uint64_t *bytes);

/// Brings the contents of paused elastic buffers with the tag back to where they were. `bytes` may be NULL.
enum gpuvm_code gpuvm_vm_resume(struct gpuvm_vm vm, const char *tag, uint64_t *bytes);

/// Gives up to `most` bytes of GPU memory that elastic buffers do not use back to the driver. Stores how many there were; `bytes` may be NULL.
enum gpuvm_code gpuvm_vm_trim(struct gpuvm_vm vm,
                              uint32_t gpu,
                              uint64_t most,
                              uint64_t *bytes);

/// Gives `most` bytes of memory of neighbour GPUs back to them, in whole chunks, while launches run. Stores how many those were; `bytes` may
/// be NULL.
enum gpuvm_code gpuvm_vm_give_back_borrowed(struct gpuvm_vm vm,
                                            uint32_t gpu,
                                            uint64_t most,
                                            uint64_t *bytes);

/// Borrows up to `most` bytes again of what was given back. It waits for the launches that run. `bytes` may be NULL.
enum gpuvm_code gpuvm_vm_borrow_again(struct gpuvm_vm vm, uint32_t gpu, uint64_t most, uint64_t *bytes);

/// Takes back homes that were lost and are there again, and catches up with them.
enum gpuvm_code gpuvm_vm_catch_up(struct gpuvm_vm vm);

/// Calls `iteration(context)` once in this thread, and notes which pages of broadcast arrays each GPU reads meanwhile. Then each GPU subscribes
/// to those, and to no others. `iteration` returns 0; any other value is `GPUVM_CODE_CALLBACK`. It must not throw.
enum gpuvm_code gpuvm_vm_track(struct gpuvm_vm vm,
                               int32_t (*iteration)(void *context),
                               void *context);

/// Stores what the device library counted on a GPU of the virtual memory.
enum gpuvm_code gpuvm_vm_stats(struct gpuvm_vm vm, uint32_t gpu, struct gpuvm_stats *stats);

/// Stores the nanoseconds from miss to publication that the share `quantile` (0 to 1) of the demand fetches did not exceed. 0 when there was
/// no fetch.
enum gpuvm_code gpuvm_vm_fault_ns(struct gpuvm_vm vm,
                                  uint32_t gpu,
                                  double quantile,
                                  uint64_t *ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPUVM_H */

// What C writes in short. From here on this is capi/tail.h, which the generator appends.

// The type of numbers: gpuvm_number(GPUVM_TYPE_F32).
static inline gpuvm_element gpuvm_number(uint32_t kind) {
    gpuvm_element element;
    memset(&element, 0, sizeof element);
    element.kind = kind;
    return element;
}

// The type of structures of the program's: gpuvm_structure("point", sizeof(point), 8).
static inline gpuvm_element gpuvm_structure(const char* name, uint64_t bytes, uint32_t align) {
    gpuvm_element element;
    memset(&element, 0, sizeof element);
    element.kind = GPUVM_TYPE_STRUCTURE;
    element.bytes = bytes;
    element.align = align;
    element.name = name;
    return element;
}

// An argument by its parts.
static inline gpuvm_arg gpuvm_arg_of(uint32_t kind, uint64_t value) {
    gpuvm_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.kind = kind;
    arg.value = value;
    return arg;
}

static inline gpuvm_arg gpuvm_arg_region(gpuvm_region region) { return gpuvm_arg_of(GPUVM_ARG_KIND_REGION, region.id); }
static inline gpuvm_arg gpuvm_arg_buffer(gpuvm_buffer buffer) { return gpuvm_arg_of(GPUVM_ARG_KIND_BUFFER, buffer.id); }
static inline gpuvm_arg gpuvm_arg_elastic(gpuvm_elastic elastic) {
    return gpuvm_arg_of(GPUVM_ARG_KIND_ELASTIC, elastic.id);
}
static inline gpuvm_arg gpuvm_arg_broadcast(gpuvm_broadcast broadcast) {
    return gpuvm_arg_of(GPUVM_ARG_KIND_BROADCAST, broadcast.id);
}

// Memory that a launch of gpuvm_launch_by() only reads, and memory that it may write.
static inline gpuvm_use gpuvm_reads(gpuvm_arg arg) {
    gpuvm_use use;
    memset(&use, 0, sizeof use);
    use.arg = arg;
    return use;
}
static inline gpuvm_use gpuvm_writes(gpuvm_arg arg) {
    gpuvm_use use = gpuvm_reads(arg);
    use.writes = 1;
    return use;
}

// A device address of memory that gpuvm does not know. Kernels of the GPU reach it until the launch has ended.
static inline gpuvm_arg gpuvm_arg_address(gpuvm_element element, uint64_t address) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_ADDRESS, address);
    arg.element = element;
    return arg;
}

// A structure that the kernel takes by value. Its bytes stay until the launch function has returned.
static inline gpuvm_arg gpuvm_arg_structure(gpuvm_element element, const void* data) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_VALUE, 0);
    arg.element = element;
    arg.data = data;
    return arg;
}

// A number, which has exactly the parameter's type.
static inline gpuvm_arg gpuvm_arg_number(uint32_t kind, const void* number, uint64_t bytes) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_VALUE, 0);
    arg.element.kind = kind;
    memcpy(&arg.value, number, bytes < sizeof arg.value ? bytes : sizeof arg.value);
    return arg;
}

static inline gpuvm_arg gpuvm_arg_u8(uint8_t x) { return gpuvm_arg_number(GPUVM_TYPE_U8, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u16(uint16_t x) { return gpuvm_arg_number(GPUVM_TYPE_U16, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u32(uint32_t x) { return gpuvm_arg_number(GPUVM_TYPE_U32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u64(uint64_t x) { return gpuvm_arg_number(GPUVM_TYPE_U64, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i8(int8_t x) { return gpuvm_arg_number(GPUVM_TYPE_I8, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i16(int16_t x) { return gpuvm_arg_number(GPUVM_TYPE_I16, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i32(int32_t x) { return gpuvm_arg_number(GPUVM_TYPE_I32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i64(int64_t x) { return gpuvm_arg_number(GPUVM_TYPE_I64, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_f32(float x) { return gpuvm_arg_number(GPUVM_TYPE_F32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_f64(double x) { return gpuvm_arg_number(GPUVM_TYPE_F64, &x, sizeof x); }

#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
// The argument that x is: a number, a region, a buffer, an elastic buffer or a broadcast array.
#define GPUVM_ARG(x)                              \
    _Generic((x), uint8_t                         \
             : gpuvm_arg_u8, uint16_t             \
             : gpuvm_arg_u16, uint32_t            \
             : gpuvm_arg_u32, uint64_t            \
             : gpuvm_arg_u64, int8_t              \
             : gpuvm_arg_i8, int16_t              \
             : gpuvm_arg_i16, int32_t             \
             : gpuvm_arg_i32, int64_t             \
             : gpuvm_arg_i64, float               \
             : gpuvm_arg_f32, double              \
             : gpuvm_arg_f64, gpuvm_region        \
             : gpuvm_arg_region, gpuvm_buffer     \
             : gpuvm_arg_buffer, gpuvm_elastic    \
             : gpuvm_arg_elastic, gpuvm_broadcast \
             : gpuvm_arg_broadcast)(x)
#endif
