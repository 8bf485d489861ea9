// Breadth-first search and PageRank by one of several GPUs: it works on the rows of its own vertices [first, end), a
// warp a row.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 warp() { return (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) / 32; }
__device__ inline u64 warps() { return gridDim.x * static_cast<u64>(blockDim.x) / 32; }
__device__ inline unsigned lane() { return threadIdx.x % 32; }

// Marks the neighbours of those of its vertices that are in the frontier. Both are bitmaps of all vertices.
__global__ void expand(gpuvm::array<const u64> offsets, gpuvm::array<const unsigned> neighbours,
                       gpuvm::array<const unsigned> frontier, gpuvm::array<unsigned> found, unsigned first,
                       unsigned end) {
    for (u64 v = first + warp(); v < end && !offsets.failed(); v += warps()) {
        if (!(frontier[v / 32] >> v % 32 & 1)) continue;
        u64 stop = offsets[v + 1];
        for (u64 edge = offsets[v] + lane(); edge < stop; edge += 32) {
            unsigned to = neighbours[edge];
            // Most are marked already.
            if (!(found[to / 32] >> to % 32 & 1)) found.atomic_or(to / 32, 1u << to % 32);
        }
    }
}

// The ranks of its vertices, by what each neighbour contributes.
__global__ void pull(gpuvm::array<const u64> offsets, gpuvm::array<const unsigned> neighbours,
                     gpuvm::array<const float> contributions, gpuvm::array<float> ranks, unsigned first, unsigned end,
                     float base, float damping) {
    for (u64 v = first + warp(); v < end && !offsets.failed(); v += warps()) {
        u64 stop = offsets[v + 1];
        float sum = 0;
        for (u64 edge = offsets[v] + lane(); edge < stop; edge += 32) sum += contributions[neighbours[edge]];
        for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (lane() == 0) ranks[v - first] = base + damping * sum;
    }
}
