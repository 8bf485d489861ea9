// Alternating least squares: rows of one factor by those of the other and by ratings, a warp a row. It adds up the
// normal equations, of kRank unknowns, and solves them by Cholesky's method.
#include "shared.cuh"

constexpr u32 kRank = 16;
constexpr u32 kWarps = 4;

struct Room {
    // Of 32 ratings, the rows of the other factor.
    alignas(16) float rows[32][kRank];
    float matrix[kRank][kRank + 1];
};

// The rows of 32 ratings, `other` a lane's; past `count` there are none. A half of the warp takes one.
template <class From>
__device__ void bring(Room& room, const From& from, u32 other, u32 count) {
    u32 lane = threadIdx.x % 32, column = lane % kRank;
    float held[kRank];
#pragma unroll
    for (u32 n = 0; n < kRank; ++n) {
        u32 k = 2 * n + lane / kRank;
        u64 at = static_cast<u64>(__shfl_sync(kWholeWarp, other, k)) * kRank + column;
        held[n] = k < count ? load(from, at) : 0.0f;
    }
    __syncwarp();
#pragma unroll
    for (u32 n = 0; n < kRank; ++n) room.rows[2 * n + lane / kRank][column] = held[n];
    __syncwarp();
}

// Of the symmetric matrix, the part of a lane: two rows of four columns.
constexpr u32 kTall = 2, kWide = 4;

// Adds 32 ratings, the later ones perhaps without any: zeroes.
__device__ inline void add_ratings(const Room& room, float rating, float (&part)[kTall][kWide], float& right) {
    u32 lane = threadIdx.x % 32, top = lane / 4 * kTall, left = lane % 4 * kWide;
#pragma unroll 4
    for (u32 k = 0; k < 32; ++k) {
        const float* row = room.rows[k];
        float2 tall = *reinterpret_cast<const float2*>(row + top);
        float4 wide = *reinterpret_cast<const float4*>(row + left);
        float a[kTall] = {tall.x, tall.y}, b[kWide] = {wide.x, wide.y, wide.z, wide.w};
        for (u32 i = 0; i < kTall; ++i)
            for (u32 j = 0; j < kWide; ++j) part[i][j] = fmaf(a[i], b[j], part[i][j]);
        right = fmaf(__shfl_sync(kWholeWarp, rating, k), row[lane % kRank], right);
    }
}

// Solves the equations of room.matrix; lane i < kRank has right side i, and gets unknown i.
__device__ inline float solve(Room& room, float right) {
    u32 lane = threadIdx.x % 32, own = lane % kRank;
    float row[kRank];
#pragma unroll
    for (u32 j = 0; j < kRank; ++j) row[j] = room.matrix[own][j];
#pragma unroll
    for (u32 k = 0; k < kRank; ++k) {
        float root = sqrtf(__shfl_sync(kWholeWarp, row[k], k));
        row[k] = own == k ? root : row[k] / root;
#pragma unroll
        for (u32 j = k + 1; j < kRank; ++j) row[j] = fmaf(-row[k], __shfl_sync(kWholeWarp, row[k], j), row[j]);
    }
#pragma unroll
    for (u32 k = 0; k < kRank; ++k) {
        float known = __shfl_sync(kWholeWarp, right, k) / __shfl_sync(kWholeWarp, row[k], k);
        right = own == k ? known : own > k ? fmaf(-row[k], known, right) : right;
    }
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < kRank; ++j)
        if (lane < kRank) room.matrix[own][j] = row[j];
    __syncwarp();
#pragma unroll
    for (u32 n = 0; n < kRank; ++n) {
        u32 k = kRank - 1 - n;
        float known = __shfl_sync(kWholeWarp, right, k) / room.matrix[k][k];
        right = own == k ? known : own < k ? fmaf(-room.matrix[k][own], known, right) : right;
    }
    return right;
}

// Rows [first, first + rows) of `to`. The ratings of a row lie side by side.
template <class Way>
__global__ void __launch_bounds__(128)
    als(in<Way, float> from, out<Way, float> to, const unsigned long long* offsets, const unsigned* others,
        const float* ratings, unsigned long long first, unsigned long long rows, float regular) {
    __shared__ Room rooms[kWarps];
    Room& room = rooms[threadIdx.x / 32];
    u32 lane = threadIdx.x % 32, top = lane / 4 * kTall, left = lane % 4 * kWide;
    for (u64 row = blockIdx.x * static_cast<u64>(kWarps) + threadIdx.x / 32; row < rows;
         row += gridDim.x * static_cast<u64>(kWarps)) {
        float part[kTall][kWide] = {}, right = 0;
        u64 begin = offsets[row], end = offsets[row + 1];
        reading(
            [&](const auto& from) {
                for (u64 e = begin; e < end; e += 32) {
                    bool there = e + lane < end;
                    u32 other = there ? others[e + lane] : 0;
                    float rating = there ? ratings[e + lane] : 0.0f;
                    bring(room, from, other, end - e < 32 ? static_cast<u32>(end - e) : 32);
                    add_ratings(room, rating, part, right);
                }
            },
            from);
        float more = regular * static_cast<float>(end > begin ? end - begin : 1);
        __syncwarp();
        for (u32 i = 0; i < kTall; ++i)
            for (u32 j = 0; j < kWide; ++j)
                room.matrix[top + i][left + j] = part[i][j] + (top + i == left + j ? more : 0.0f);
        __syncwarp();
        float found = solve(room, right);
        if (lane < kRank) store(to, (first + row) * kRank + lane, found);
    }
}
