// Sums over plain memory, wherever it lies.
#include "bench/common.cuh"

using namespace bench;

static __device__ __forceinline__ u64 of_warp(u64 value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
    return value;
}

__global__ void sum_words(u64 memory, u64 words, u64* tally) {
    const chunk* chunks = reinterpret_cast<const chunk*>(memory);
    u64 sum = 0, done = 0;
#pragma unroll 4
    for (u64 i = thread_id(); i < words / 2; i += thread_count()) {
        chunk c = chunks[i];
        sum += c.lo + c.hi;
        done += 2;
    }
    sum = of_warp(sum);
    done = of_warp(done);
    if (lane_id() == 0) {
        add_tally(tally, kSum, sum);
        add_tally(tally, kDone, done);
    }
}

// A warp sums a row at a time.
__global__ void sum_rows(u64 memory, u64 row_words, u64 rows, u64* sums, u64* tally) {
    u64 done = 0;
    for (u64 row = warp_id(); row < rows; row += warp_count(), ++done) {
        const chunk* chunks = reinterpret_cast<const chunk*>(memory) + row * row_words / 2;
        u64 sum = 0;
#pragma unroll 4
        for (u64 i = lane_id(); i < row_words / 2; i += 32) {
            chunk c = chunks[i];
            sum += c.lo + c.hi;
        }
        sum = of_warp(sum);
        if (lane_id() == 0) sums[row] = sum;
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
}
