// A decode step of attention over sequences whose keys and values lie in one of four ways, from one text: a kernel is a
// template of the way.
//
//   preallocated  room for `capacity` tokens a sequence, one sequence behind the other
//   elastic       a buffer of its own for each sequence, at an address that never changes
//   blocks        blocks of some tokens out of a pool, and a table that says which ones a sequence has
//   paged         gpuvm arrays with such room, of which frames hold a part
//
// The numbers of a token, a head behind the other, are a row; four of them are a quad.
#include <gpuvm/gpuvm.cuh>

using u32 = unsigned;
using u64 = unsigned long long;

// As the host has it.
struct Shape {
    u32 heads;
    u32 quads;         // of a head
    u32 capacity;      // tokens that a sequence may come to
    u32 block_tokens;  // of a block of the pool
    u32 blocks;        // that a sequence may come to: entries of its row of the table
    u32 first;         // the launch's first sequence
};

__device__ inline u64 row_quads(const Shape& shape) { return static_cast<u64>(shape.heads) * shape.quads; }

// Each way's `tokens` finds the rows of a token and those behind it, as far as its tile reaches (kTile). `sequence`
// counts from the launch's first one.
struct preallocated {
    using in = const float4*;
    using out = float4*;
    template <class T>
    __device__ static T* tokens(T* side, const u32*, const Shape& shape, u32 sequence, u32 token) {
        return side + (static_cast<u64>(sequence) * shape.capacity + token) * row_quads(shape);
    }
    __device__ static bool stopped(const void*) { return false; }
};

struct elastic {
    // Addresses of the sequences' buffers.
    using in = const u64*;
    using out = const u64*;
    __device__ static float4* tokens(const u64* side, const u32*, const Shape& shape, u32 sequence, u32 token) {
        return reinterpret_cast<float4*>(side[sequence]) + token * row_quads(shape);
    }
    __device__ static bool stopped(const void*) { return false; }
};

struct blocks {
    using in = const float4*;
    using out = float4*;
    template <class T>
    __device__ static T* tokens(T* side, const u32* table, const Shape& shape, u32 sequence, u32 token) {
        u64 block = table[static_cast<u64>(sequence) * shape.blocks + token / shape.block_tokens];
        return side + (block * shape.block_tokens + token % shape.block_tokens) * row_quads(shape);
    }
    __device__ static bool stopped(const void*) { return false; }
};

template <class Array>
struct PagedRows {
    Array& array;
    u64 first;
};

struct paged {
    using in = gpuvm::array<const float4>;
    using out = gpuvm::array<float4>;
    template <class Array>
    __device__ static PagedRows<Array> tokens(Array& side, const u32*, const Shape& shape, u32 sequence, u32 token) {
        return {side, (static_cast<u64>(sequence) * shape.capacity + token) * row_quads(shape)};
    }
    template <class Array>
    __device__ static bool stopped(const Array& side) {
        return side.failed();
    }
};

__device__ inline float4 get(const float4* rows, u64 quad) { return rows[quad]; }
template <class Array>
__device__ float4 get(const PagedRows<Array>& rows, u64 quad) {
    return rows.array[rows.first + quad];
}
__device__ inline void put(float4* rows, u64 quad, float4 value) { rows[quad] = value; }
template <class Array>
__device__ void put(const PagedRows<Array>& rows, u64 quad, float4 value) {
    rows.array[rows.first + quad] = value;
}

__device__ inline u64 mixed(u64 number) {
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9ull;
    number = (number ^ number >> 27) * 0x94d049bb133111ebull;
    return number ^ number >> 31;
}

// What a model would compute: here a number of [-1, 1) by hashing, which the host repeats exactly.
constexpr u32 kKey = 0, kValue = 1, kQuery = 2;
__device__ inline float drawn(u32 which, u32 sequence, u32 token, u64 index) {
    u64 hash = mixed(static_cast<u64>(sequence) << 42 | static_cast<u64>(token) << 20 | which << 18 | index);
    return static_cast<float>(hash >> 40) * (1.0f / (1 << 23)) - 1.0f;
}
__device__ inline float4 drawn_quad(u32 which, u32 sequence, u32 token, u64 quad) {
    u64 index = quad * 4;
    return make_float4(drawn(which, sequence, token, index), drawn(which, sequence, token, index + 1),
                       drawn(which, sequence, token, index + 2), drawn(which, sequence, token, index + 3));
}

constexpr u32 kWarps = 4;
// Tokens that a warp loads at once. A way's tokens lie side by side within a tile.
constexpr u32 kTile = 8;
constexpr u32 kWholeWarp = 0xffffffffu;
// Below every score.
constexpr float kLeast = -3.0e38f;

// Keys and values of the token of this step; before the first one, those of the prompt. Sequences lie along y.
template <class Way>
__global__ void __launch_bounds__(32 * kWarps, 4) append(typename Way::out keys, typename Way::out values,
                                                         const u32* table, const u32* prompts, Shape shape, u32 step) {
    u32 sequence = blockIdx.y, prompt = prompts[shape.first + sequence];
    u32 first = step ? prompt + step - 1 : 0, end = prompt + step;
    u64 row = row_quads(shape), quads = (end - first) * row;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < quads && !Way::stopped(keys); i += gridDim.x * blockDim.x) {
        u32 token = first + static_cast<u32>(i / row);
        u64 quad = i % row;
        put(Way::tokens(keys, table, shape, sequence, token), quad,
            drawn_quad(kKey, shape.first + sequence, token, quad));
        put(Way::tokens(values, table, shape, sequence, token), quad,
            drawn_quad(kValue, shape.first + sequence, token, quad));
    }
}

// What a warp has of the softmax: the largest score, and sums of weights and of weighted values relative to it.
struct Part {
    float4 sum;
    float most;
    float weight;
};

// Sums and products are spelt as the operations that they are to be, so that each form has the same bits.
__device__ inline void scale_by(float4& sum, float by) {
    sum = make_float4(__fmul_rn(sum.x, by), __fmul_rn(sum.y, by), __fmul_rn(sum.z, by), __fmul_rn(sum.w, by));
}
__device__ inline void add_times(float4& sum, float by, const float4& value) {
    sum = make_float4(fmaf(by, value.x, sum.x), fmaf(by, value.y, sum.y), fmaf(by, value.z, sum.z),
                      fmaf(by, value.w, sum.w));
}
__device__ inline float dot(const float4& a, const float4& b) {
    float sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, __fmul_rn(a.x, b.x))));
    for (u32 apart = 16; apart > 0; apart /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kWholeWarp, sum, apart));
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

// Adds the first `count` tokens of a tile to a warp's part. `Rows` of a head begin at `quad`, the lane's, if it has
// one.
template <class Keys, class Values>
__device__ void add_tile(Part& part, const Keys& keys, const Values& values, const float4& query, u64 row, u64 quad,
                         u32 count, bool has_quad) {
    float4 held[kTile];
    float scores[kTile];
    float most = kLeast;
#pragma unroll
    for (u32 n = 0; n < kTile; ++n)
        held[n] = has_quad && n < count ? get(keys, n * row + quad) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (u32 n = 0; n < kTile; ++n) {
        float score = dot(query, held[n]);
        scores[n] = n < count ? score : kLeast;
        most = fmaxf(most, scores[n]);
    }
#pragma unroll
    for (u32 n = 0; n < kTile; ++n)
        held[n] = has_quad && n < count ? get(values, n * row + quad) : make_float4(0, 0, 0, 0);
    raise(part, most);
#pragma unroll
    for (u32 n = 0; n < kTile; ++n) {
        float weight = n < count ? expf(scores[n] - part.most) : 0.0f;
        part.weight = __fadd_rn(part.weight, weight);
        add_times(part.sum, weight, held[n]);
    }
}

// Softmax over the keys, times the values, for the query of this step: a thread block a head (x) and sequence (y), a
// warp every fourth tile, a lane a quad. `digests` take in the results of each step.
template <class Way>
__global__ void __launch_bounds__(32 * kWarps, 4)
    attend(typename Way::in keys, typename Way::in values, const u32* table, const u32* prompts, float4* out,
           u64* digests, Shape shape, float scale, u32 step) {
    __shared__ Part parts[kWarps][32];
    u32 head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 number = shape.first + sequence, tokens = prompts[number] + step;
    bool has_quad = lane < shape.quads;
    u64 row = row_quads(shape), quad = static_cast<u64>(head) * shape.quads + lane;
    float4 query = make_float4(0, 0, 0, 0);
    if (has_quad) query = drawn_quad(kQuery, number, tokens - 1, quad);
    scale_by(query, scale);
    Part part{make_float4(0, 0, 0, 0), kLeast, 0};
    for (u32 tile = warp * kTile; tile < tokens && !Way::stopped(keys); tile += kWarps * kTile) {
        auto tile_keys = Way::tokens(keys, table, shape, sequence, tile);
        auto tile_values = Way::tokens(values, table, shape, sequence, tile);
        u32 count = tokens - tile < kTile ? tokens - tile : kTile;
        add_tile(part, tile_keys, tile_values, query, row, quad, count, has_quad);
    }
    parts[warp][lane] = part;
    __syncthreads();
    if (warp || !has_quad) return;
    for (u32 other = 1; other < kWarps; ++other) {
        Part& more = parts[other][lane];
        raise(part, more.most);
        raise(more, part.most);
        part.weight = __fadd_rn(part.weight, more.weight);
        add_times(part.sum, 1.0f, more.sum);
    }
    scale_by(part.sum, 1.0f / part.weight);
    u64 at = number * row + quad, digest = digests[at];
    out[at] = part.sum;
    digest = mixed(digest ^ (static_cast<u64>(__float_as_uint(part.sum.x)) << 32 | __float_as_uint(part.sum.y)));
    digests[at] = mixed(digest ^ (static_cast<u64>(__float_as_uint(part.sum.z)) << 32 | __float_as_uint(part.sum.w)));
}
