// Kernels of the paging bench. Each adds up what it reads, and the host checks the sum.
#include <gpuvm/gpuvm.cuh>

using u64 = unsigned long long;

__device__ u64 mixed(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    return x;
}

// Each thread reads `each` random elements.
__global__ void gather_raw(const unsigned* data, u64 length, u64 each, u64* sum) {
    u64 thread = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, total = 0;
    for (u64 n = 0; n < each; ++n) total += data[mixed(thread * each + n) & (length - 1)];
    atomicAdd(sum, total);
}
__global__ void gather_array(gpuvm::array<const unsigned> data, u64 each, u64* sum) {
    u64 thread = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, total = 0, mask = data.size() - 1;
    for (u64 n = 0; n < each; ++n) total += data[mixed(thread * each + n) & mask];
    atomicAdd(sum, total);
}

// Each thread reads `each` neighbouring elements.
__global__ void walk_raw(const unsigned* data, u64 each, u64* sum) {
    u64 first = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) * each, total = 0;
    for (u64 n = first; n < first + each; ++n) total += data[n];
    atomicAdd(sum, total);
}
__global__ void walk_array(gpuvm::array<const unsigned> data, u64 each, u64* sum) {
    u64 first = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) * each, total = 0;
    for (u64 n = first; n < first + each; ++n) total += data[n];
    atomicAdd(sum, total);
}
__global__ void walk_reader(gpuvm::array<const unsigned> data, u64 each, u64* sum) {
    u64 first = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) * each, total = 0;
    auto reader = data.reader();
    for (u64 n = first; n < first + each; ++n) total += reader[n];
    atomicAdd(sum, total);
}
__global__ void walk_span(gpuvm::array<const unsigned> data, u64 each, u64* sum) {
    u64 first = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) * each, total = 0;
    for (u64 n = first; n < first + each;) {
        auto span = data.pin(n);
        if (!span) break;
        u64 count = span.size() < first + each - n ? span.size() : first + each - n;
        for (u64 k = 0; k < count; ++k) total += span[k];
        n += count;
    }
    atomicAdd(sum, total);
}

// Each lane reads one element, of its warp's random page or of a random page of its own: nearly every access faults.
__global__ void fault_warps(gpuvm::array<const unsigned> data, u64 page_elements, u64 each, u64* sum) {
    u64 warp = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) / 32, total = 0,
        pages = data.size() / page_elements;
    for (u64 n = 0; n < each; ++n) total += data[mixed(warp * each + n) % pages * page_elements + threadIdx.x % 32];
    atomicAdd(sum, total);
}
__global__ void fault_lanes(gpuvm::array<const unsigned> data, u64 page_elements, u64 each, u64* sum) {
    u64 thread = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, total = 0,
        pages = data.size() / page_elements;
    for (u64 n = 0; n < each; ++n) total += data[mixed(thread * each + n) % pages * page_elements + threadIdx.x];
    atomicAdd(sum, total);
}
