// Whole regions at a time: every page is written, read ahead, or searched.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }

__global__ void transpose(gpuvm::array<const u64> in, gpuvm::array<u64> out, unsigned side) {
    for (u64 i = first_index(); i < static_cast<u64>(side) * side && !in.failed(); i += lanes())
        out[i % side * side + i / side] = in[i] + 1;
}

// Reads each element of a stretch and changes it, some elements apart.
__global__ void stream(gpuvm::array<u64> a, u64 apart) {
    for (u64 i = first_index() * apart; i < a.size() && !a.failed(); i += lanes() * apart) {
        u64 seen = a[i];
        a[i] = seen * 3 + i;
    }
}

__global__ void prefetch_only(gpuvm::array<const u64> a, u64 first, u64 count) {
    if (first_index() == 0) a.prefetch(first, count);
}

// Each warp asks for its stretch first, then reads it.
__global__ void prefetch_and_sum(gpuvm::array<const u64> a, u64 stretch, u64 apart, u64* out) {
    u64 warp = first_index() / 32, lane = first_index() % 32, first = warp * stretch, total = 0;
    if (lane == 0) a.prefetch(first, stretch);
    for (u64 i = first + lane * apart; i < first + stretch && i < a.size() && !a.failed(); i += 32 * apart)
        total += a[i];
    atomicAdd(out, total);
}

// One level of a breadth-first search; rows lie `apart` elements from each other.
__global__ void bfs_level(gpuvm::array<const unsigned> rows, gpuvm::array<const unsigned> neighbours,
                          gpuvm::array<unsigned> distances, u64 apart, u64 vertices, unsigned level,
                          unsigned* changed) {
    for (u64 v = first_index(); v < vertices && !rows.failed(); v += lanes()) {
        unsigned seen = distances[v * apart];
        if (seen != level) continue;
        auto row = rows.reader();
        for (u64 k = row[v * apart]; k < row[v * apart + 1] && !rows.failed(); ++k) {
            unsigned to = neighbours[k * apart];
            if (distances.atomic_min(to * apart, level + 1) > level + 1) *changed = 1;
        }
    }
}

// Each lane sums a stretch of its own by a cursor, some elements apart.
__global__ void sum_by_cursors(gpuvm::array<const unsigned> a, u64 apart, u64* out) {
    u64 each = (a.size() + lanes() - 1) / lanes(), end = (first_index() + 1) * each, total = 0;
    auto walk = a.cursor();
    for (u64 i = first_index() * each; i < end && i < a.size() && !a.failed(); i += apart) total += walk[i];
    atomicAdd(out, total);
}
