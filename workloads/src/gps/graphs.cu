// PageRank and shortest paths over the edges that come in: a block takes 256 rows, each of which becomes one value.
// Stores of a warp lie side by side, so that they leave for other GPUs as whole lines.
#include "shared.cuh"

// Rows of a block, one for each of its lanes.
constexpr u32 kRows = 256;
// Lanes of a row.
constexpr u32 kTeam = 8;
// A row with more edges is walked by the whole block.
constexpr u64 kLong = 1024;

template <class Value>
struct Rows {
    Value values[kRows];
    Value of_warps[kRows / 32];
    u32 long_rows[kRows];
    u32 count;
};

template <class Value, class Join>
__device__ Value join_lanes(Value value, u32 lanes, Join join) {
    for (u32 apart = lanes / 2; apart; apart /= 2) value = join(value, __shfl_xor_sync(kWholeWarp, value, apart));
    return value;
}

// Joins `edge(e)` over the edges of the block's rows of `rows`; each lane gets the value of its row. The order in which
// the values of a row are joined depends on the row alone.
template <class Value, class Edge, class Join>
__device__ Value join_rows(Rows<Value>& shared, const u64* offsets, u64 rows, Value none, Edge edge, Join join) {
    u64 first = blockIdx.x * static_cast<u64>(kRows);
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    u32 lane = threadIdx.x % kTeam;
    for (u32 r = threadIdx.x / kTeam; r < kRows; r += kRows / kTeam) {
        Value value = none;
        if (first + r < rows) {
            u64 e = offsets[first + r] + lane, end = offsets[first + r + 1];
            if (end - e + lane > kLong) {
                if (lane == 0) shared.long_rows[atomicAdd(&shared.count, 1u)] = r;
                end = e;
            }
#pragma unroll 4
            for (; e < end; e += kTeam) value = join(value, edge(e));
        }
        value = join_lanes(value, kTeam, join);
        if (lane == 0) shared.values[r] = value;
    }
    __syncthreads();
    for (u32 n = 0; n < shared.count; ++n) {
        u32 r = shared.long_rows[n];
        Value value = none;
#pragma unroll 4
        for (u64 e = offsets[first + r] + threadIdx.x; e < offsets[first + r + 1]; e += kRows)
            value = join(value, edge(e));
        value = join_lanes(value, 32, join);
        if (threadIdx.x % 32 == 0) shared.of_warps[threadIdx.x / 32] = value;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 k = 1; k < kRows / 32; ++k) value = join(value, shared.of_warps[k]);
            shared.values[r] = value;
        }
        __syncthreads();
    }
    return shared.values[threadIdx.x];
}

// Rows of vertices [first, first + rows): a rank by what each neighbour contributes, and what the vertex contributes
// next, its rank over its degree.
template <class Way>
__global__ void __launch_bounds__(256)
    pagerank(in<Way, float> from, out<Way, float> to, const unsigned long long* offsets, const unsigned* neighbours,
             const float* shares, unsigned long long first, unsigned long long rows, float base, float damping) {
    __shared__ Rows<float> shared;
    float sum = 0;
    auto add = [](float a, float b) { return a + b; };
    reading(
        [&](const auto& from) {
            auto edge = [&](u64 e) { return load(from, neighbours[e]); };
            sum = join_rows(shared, offsets, rows, 0.0f, edge, add);
        },
        from);
    u64 row = blockIdx.x * static_cast<u64>(kRows) + threadIdx.x;
    if (row < rows) store(to, first + row, fmaf(damping, sum, base) * shares[row]);
}

// A round of Bellman and Ford over rows of vertices [first, first + rows): the shortest path known so far.
template <class Way>
__global__ void __launch_bounds__(256)
    shortest(in<Way, unsigned> from, out<Way, unsigned> to, const unsigned long long* offsets,
             const unsigned* neighbours, const unsigned* weights, unsigned long long first, unsigned long long rows) {
    __shared__ Rows<u32> shared;
    u32 least = ~0u, before = ~0u;
    u64 row = blockIdx.x * static_cast<u64>(kRows) + threadIdx.x;
    auto lower = [](u32 a, u32 b) { return a < b ? a : b; };
    reading(
        [&](const auto& from) {
            auto edge = [&](u64 e) {
                u32 path = load(from, neighbours[e]), weight = weights[e];
                return path == ~0u ? path : path + weight;
            };
            least = join_rows(shared, offsets, rows, ~0u, edge, lower);
            if (row < rows) before = load(from, first + row);
        },
        from);
    if (row < rows) store(to, first + row, lower(least, before));
}
