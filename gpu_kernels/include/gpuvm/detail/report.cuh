// What the device library tells the host: the first fault of a launch, counters, latencies. No trap, no printf.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

// The launch that this lane belongs to: its virtual memory's description lies in its state. `vm` must be what an
// argument of the kernel names, and no part that was copied to registers.
GPUVM_DEVICE layout::LaunchState* launch_of(const layout::VmDesc* vm) {
    // Its first field.
    return reinterpret_cast<layout::LaunchState*>(const_cast<layout::VmDesc*>(vm));
}
GPUVM_DEVICE bool aborted(const layout::VmDesc* vm) { return ld_relaxed_sys(&launch_of(vm)->abort) != 0; }

GPUVM_DEVICE u64 linear_block() {
    return blockIdx.x + static_cast<u64>(gridDim.x) * (blockIdx.y + static_cast<u64>(gridDim.y) * blockIdx.z);
}
GPUVM_DEVICE u32 linear_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

struct Fault {
    u32 code = 0;
    u32 region = 0;
    u32 queue = 0;
    u64 page = 0;
    u64 index = 0;
    u64 size = 0;
    u64 waited_ns = 0;
    u32 syndrome = 0;
    u32 vendor_syndrome = 0;
    u32 frames_pinned = 0;
    u32 frames_written_back = 0;
    u32 frames_fetching = 0;
    u32 frames_free = 0;
};

// Records the launch's first fault and stops its slow paths, unless it does each page for itself. Later ones are
// counted.
GPUVM_NOINLINE void report(const layout::VmDesc* vm, const Fault& fault) {
    layout::LaunchState* launch = launch_of(vm);
    layout::FaultRecord* record = &launch->fault;
    if (atom_cas_relaxed_sys(&record->claim, 0u, 1u) == 0) {
        record->code = fault.code;
        record->region = fault.region;
        record->queue = fault.queue;
        record->page = fault.page;
        record->index = fault.index;
        record->size = fault.size;
        record->waited_ns = fault.waited_ns;
        record->syndrome = fault.syndrome;
        record->vendor_syndrome = fault.vendor_syndrome;
        record->block = linear_block();
        record->thread = linear_thread();
        record->multiprocessor = multiprocessor_id();
        record->frames_pinned = fault.frames_pinned;
        record->frames_written_back = fault.frames_written_back;
        record->frames_fetching = fault.frames_fetching;
        record->frames_free = fault.frames_free;
        // Release: the host that acquires 2 reads a whole record.
        st_release_sys(&record->claim, 2u);
        // The host looks at it when the launch has ended.
        st_relaxed_sys(reinterpret_cast<u32*>(launch->told), 1u);
    } else {
        atom_add_relaxed_gpu(&launch->later_faults, 1u);
    }
    if (!ld_relaxed_gpu(&launch->continues)) st_relaxed_sys(&launch->abort, 1u);
}

GPUVM_DEVICE layout::Counters* counters(const layout::VmDesc* vm) {
    u32 shard = (multiprocessor_id() * 4 + (warp_slot() & 3)) & (vm->counter_shards - 1);
    return reinterpret_cast<layout::Counters*>(vm->counters) + shard;
}
// Relaxed: counters order nothing; the host reads them after the launch.
GPUVM_DEVICE void count(u64* counter, u64 n) { atom_add_relaxed_gpu(counter, n); }

GPUVM_DEVICE void count_fetched(const layout::VmDesc* vm, u32 bytes) {
    layout::Counters* c = counters(vm);
    count(&c->pages_fetched, 1);
    count(&c->bytes_fetched, bytes);
}
GPUVM_DEVICE void count_written_back(const layout::VmDesc* vm, u32 bytes) {
    layout::Counters* c = counters(vm);
    count(&c->pages_written_back, 1);
    count(&c->bytes_written_back, bytes);
}

// Adds one demand fetch to the histogram. The bucket keeps the three bits below the leading one.
GPUVM_DEVICE void count_latency(u64* buckets, u64 took) {
    u32 bucket = static_cast<u32>(took);
    if (took >= 2u << layout::LATENCY_SUB_BITS) {
        u32 octave = 63 - __clzll(static_cast<long long>(took));
        u32 sub =
            static_cast<u32>(took >> (octave - layout::LATENCY_SUB_BITS)) & ((1u << layout::LATENCY_SUB_BITS) - 1);
        bucket = ((octave - layout::LATENCY_SUB_BITS + 1) << layout::LATENCY_SUB_BITS) + sub;
    }
    if (bucket >= layout::LATENCY_BUCKETS) bucket = layout::LATENCY_BUCKETS - 1;
    count(&buckets[bucket], 1);
}
GPUVM_DEVICE u64* latencies(const layout::VmDesc* vm) {
    return reinterpret_cast<layout::LatencyHistogram*>(vm->latencies)->buckets;
}

}  // namespace detail
}  // namespace gpuvm
