// Kernels that the runtime itself launches.
#include <gpuvm/detail/flush.cuh>
#include <gpuvm/gpuvm.cuh>

// Layout version that this machine's device code was compiled with, and the element of a sanity check.
// One thread alone stores: equal values from several would race all the same.
__global__ void gpuvm_version(unsigned* out) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *out = gpuvm::layout::LAYOUT_VERSION;
}

// Writes the dirty pages [first, last) of a region home.
__global__ void gpuvm_flush(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                            unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::flush_page(vm, gpuvm::detail::owner_of(region, page))) return;
}

// Finishes what has completed on queue pairs [first, first + count), and closes those that have failed to reservations.
__global__ void gpuvm_reap(const gpuvm::layout::VmDesc* vm, unsigned first, unsigned count) {
    if (blockIdx.x != 0) return;
    for (unsigned n = threadIdx.x; n < count; n += blockDim.x)
        gpuvm::detail::reap_queue(gpuvm::detail::Queue(vm, first + n), ~0u);
}

// Marks the copies of the pages [first, last) of a region at one of its homes as stale.
__global__ void gpuvm_age(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned home, unsigned long long first,
                          unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        gpuvm::detail::age_page(vm, gpuvm::detail::owner_of(region, page), home);
}

// Brings the stale copies of the pages [first, last) of a region up to date, at homes that can be reached.
__global__ void gpuvm_catch_up(gpuvm::layout::ArrayDesc array, unsigned long long first, unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::catch_up_page(array, page)) return;
}

// Gives every frame of the pages [first, last) of a region back. Dirty pages are written home, or dropped with
// `discard`.
__global__ void gpuvm_release(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                              unsigned long long last, unsigned discard) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::release_page(vm, gpuvm::detail::owner_of(region, page), discard != 0)) return;
}
