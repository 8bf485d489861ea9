// A decode step of attention over sequences whose keys and values lie in one of four ways, from one text: a kernel is a
// template of the way. The numbers of a token, a head behind the other, are a row; four of them, a lane's, are a quad.
#include <gpuvm/gpuvm.cuh>

using u32 = unsigned;
using u64 = unsigned long long;

// Warps of a thread block, and lanes of a warp: a head has a quad for each, 128 numbers.
constexpr u32 kWarps = 4, kLanes = 32;
// Tokens that a warp loads at once, and of a block of the pool. A way's tokens lie side by side within a tile.
constexpr u32 kTile = 8, kBlock = 16;

// As the host has it: the most tokens that a sequence comes to; quads of a row; the launch's first sequence, from which
// `sequence` counts below.
struct Shape {
    u32 capacity, row, first;
};

// Each way's `base` and `first` say where a token's row is, and those of its tile behind it: from quad `first` of
// `base` on. This one has room for `capacity` tokens a sequence, one sequence behind the other.
struct preallocated {
    using in = const float4*;
    using out = float4*;
    template <class Side>
    __device__ static Side& base(Side& side, u32) {
        return side;
    }
    __device__ static u64 first(const u32*, const Shape& shape, u32 sequence, u32 token) {
        return (u64{sequence} * shape.capacity + token) * shape.row;
    }
    __device__ static bool stopped(const void*) { return false; }
};

// A buffer of its own for each sequence, at an address that never changes: `side` has the addresses.
struct elastic : preallocated {
    using in = const u64*;
    using out = const u64*;
    __device__ static float4* base(const u64* side, u32 sequence) { return reinterpret_cast<float4*>(side[sequence]); }
    __device__ static u64 first(const u32*, const Shape& shape, u32, u32 token) { return u64{token} * shape.row; }
};

// Blocks of some tokens out of a pool, and a table that says which ones a sequence has.
struct blocks : preallocated {
    __device__ static u64 first(const u32* table, const Shape& shape, u32 sequence, u32 token) {
        u64 block = table[sequence * ((shape.capacity + kBlock - 1) / kBlock) + token / kBlock];
        return (block * kBlock + token % kBlock) * shape.row;
    }
};

// Room as in the first way, in gpuvm arrays, of which frames hold a part. A launch ends where a fault cannot be served.
struct paged : preallocated {
    using in = gpuvm::array<const float4>;
    using out = gpuvm::array<float4>;
    template <class Array>
    __device__ static bool stopped(const Array& side) {
        return side.failed();
    }
};

// What a model would compute: here a number of [-1, 1) by hashing, which the host repeats exactly.
constexpr u32 kKey = 0, kValue = 1, kQuery = 2;
__device__ inline float drawn(u32 which, u32 sequence, u32 token, u64 index) {
    u64 hash = u64{sequence} << 42 | u64{token} << 20 | which << 18 | index;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
    return static_cast<float>((hash ^ hash >> 31) >> 40) * (1.0f / (1 << 23)) - 1.0f;
}
__device__ inline float4 drawn_quad(u32 which, u32 sequence, u32 token, u64 quad) {
    u64 i = quad * 4;
    return make_float4(drawn(which, sequence, token, i), drawn(which, sequence, token, i + 1),
                       drawn(which, sequence, token, i + 2), drawn(which, sequence, token, i + 3));
}

// Keys and values of the token of this step; before the first one, those of the prompt. Sequences lie along y.
template <class Way>
__global__ void __launch_bounds__(kLanes* kWarps, 4)
    append(typename Way::out keys, typename Way::out values, const u32* table, const u32* prompts, float4*, Shape shape,
           u32 step) {
    u32 sequence = blockIdx.y, number = shape.first + sequence, end = prompts[number] + step,
        first = step ? end - 1 : 0;
    u64 quads = u64{end - first} * shape.row;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < quads && !Way::stopped(keys); i += gridDim.x * blockDim.x) {
        u32 token = first + static_cast<u32>(i / shape.row);
        u64 quad = i % shape.row, at = Way::first(table, shape, sequence, token) + quad;
        Way::base(keys, sequence)[at] = drawn_quad(kKey, number, token, quad);
        Way::base(values, sequence)[at] = drawn_quad(kValue, number, token, quad);
    }
}

// What a warp has of the softmax: the largest score, and sums of weights and of weighted values relative to it.
struct Part {
    float4 sum;
    float most, weight;
};
constexpr float kLeast = -3.0e38f;  // Below every score.

// Sums and products are spelt as the operations that they are to be, so that each form has the same bits.
__device__ inline void scale_by(float4& sum, float by) {
    sum = make_float4(__fmul_rn(sum.x, by), __fmul_rn(sum.y, by), __fmul_rn(sum.z, by), __fmul_rn(sum.w, by));
}
__device__ inline void add_times(Part& part, float by, float weight, const float4& value) {
    part.weight = __fadd_rn(part.weight, weight);
    part.sum = make_float4(fmaf(by, value.x, part.sum.x), fmaf(by, value.y, part.sum.y), fmaf(by, value.z, part.sum.z),
                           fmaf(by, value.w, part.sum.w));
}
__device__ inline float dot(const float4& a, const float4& b) {
    float sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, __fmul_rn(a.x, b.x))));
    for (u32 apart = kLanes / 2; apart > 0; apart /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, apart));
    return sum;
}
// Makes the largest score at least `most`.
__device__ inline void raise(Part& part, float most) {
    most = fmaxf(part.most, most);
    float by = expf(part.most - most);
    part.most = most;
    part.weight = __fmul_rn(part.weight, by);
    scale_by(part.sum, by);
}

// Softmax over the keys, times the values, for the query of this step: a thread block a head (x) and sequence (y), a
// warp every fourth tile, a lane a quad.
template <class Way>
__global__ void __launch_bounds__(kLanes* kWarps, 4)
    attend(typename Way::in keys, typename Way::in values, const u32* table, const u32* prompts, float4* out,
           Shape shape, u32 step) {
    __shared__ Part parts[kWarps][kLanes];
    u32 sequence = blockIdx.y, warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    u32 number = shape.first + sequence, tokens = prompts[number] + step;
    u64 quad = blockIdx.x * kLanes + lane;
    auto&& key = Way::base(keys, sequence);
    auto&& value = Way::base(values, sequence);
    float4 query = drawn_quad(kQuery, number, tokens - 1, quad), held[kTile];
    scale_by(query, 0.08838834764f);  // 1 by the root of a head's 128 numbers.
    Part part{make_float4(0, 0, 0, 0), kLeast, 0};
    for (u32 tile = warp * kTile; tile < tokens && !Way::stopped(keys); tile += kWarps * kTile) {
        u32 count = tokens - tile < kTile ? tokens - tile : kTile;
        u64 at = Way::first(table, shape, sequence, tile) + quad;
        float scores[kTile], most = kLeast;
#pragma unroll
        for (u32 n = 0; n < kTile; ++n) held[n] = n < count ? float4(key[at + n * shape.row]) : float4();
#pragma unroll
        for (u32 n = 0; n < kTile; ++n) {
            float score = dot(query, held[n]);
            most = fmaxf(most, scores[n] = n < count ? score : kLeast);
        }
#pragma unroll
        for (u32 n = 0; n < kTile; ++n) held[n] = n < count ? float4(value[at + n * shape.row]) : float4();
        raise(part, most);
#pragma unroll
        for (u32 n = 0; n < kTile; ++n) {
            float weight = n < count ? expf(scores[n] - part.most) : 0.0f;
            add_times(part, weight, weight, held[n]);
        }
    }
    parts[warp][lane] = part;
    __syncthreads();
    if (warp) return;
    for (u32 other = 1; other < kWarps; ++other) {
        Part& more = parts[other][lane];
        raise(part, more.most);
        raise(more, part.most);
        add_times(part, 1.0f, more.weight, more.sum);
    }
    scale_by(part.sum, 1.0f / part.weight);
    out[u64{number} * shape.row + quad] = part.sum;
}
