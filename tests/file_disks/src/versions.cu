// Pages of which every word says its page, its place and its version; `Pages` of pages.rs has the same on the host.

#include <gpuvm/gpuvm.cuh>

using u64 = unsigned long long;

__device__ inline unsigned mixed(unsigned x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

__device__ inline unsigned word(unsigned seed, u64 page, unsigned at, unsigned version) {
    return mixed(seed + static_cast<unsigned>(page) * 1024u + at) + version * 0x9e3779b1u;
}

__device__ inline u64 first_warp() { return (blockIdx.x * 1ull * blockDim.x + threadIdx.x) / 32; }
__device__ inline u64 warps() { return gridDim.x * 1ull * blockDim.x / 32; }

// A warp a page: pages first to end of which the draw takes this many of a hundred get a version. All lanes hold the
// page before one writes and until all have written, so no page is written back with a part of a version, not even from
// a launch that is stopped.
__global__ void stamp(gpuvm::array<unsigned> a, unsigned seed, unsigned version, unsigned percent, u64 first, u64 end) {
    for (u64 page = first + first_warp(); page < end && !a.failed(); page += warps()) {
        if (mixed(seed ^ mixed(version * 0x10001u + static_cast<unsigned>(page))) % 100 >= percent) continue;
        auto held = a.pin(page * 1024);
        if (!__all_sync(0xffffffffu, held ? 1 : 0)) return;
        for (unsigned at = threadIdx.x % 32; at < held.size(); at += 32) held[at] = word(seed, page, at, version);
        __syncwarp();
    }
}

// Counts the words that are not those of their page's version; a page of version 0 is zeros.
__global__ void verify(gpuvm::array<const unsigned> a, unsigned seed, const unsigned* versions, u64 first, u64 end,
                       u64* wrong) {
    for (u64 page = first + first_warp(); page < end && !a.failed(); page += warps()) {
        auto held = a.pin(page * 1024);
        if (!held) return;
        u64 bad = 0;
        for (unsigned at = threadIdx.x % 32; at < held.size(); at += 32) {
            unsigned version = versions[page];
            bad += held[at] != (version == 0 ? 0 : word(seed, page, at, version));
        }
        if (bad) atomicAdd(wrong, bad);
    }
}
