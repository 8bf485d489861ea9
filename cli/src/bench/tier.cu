// Memory that a neighbour GPU lends: who uses it, and the lender.
#include "bench/common.cuh"

using namespace bench;

// As in faults.cu: a neighbour's pages come so soon that twice as many warps have to wait side by side.
#if defined(BENCH_NEIGHBOUR)
#define READ_BOUNDS __launch_bounds__(256, 2)
#else
#define READ_BOUNDS
#endif

// A warp reads one page at a time, all of it, in the order's turn, which begins anew where it ends.
__global__ void READ_BOUNDS read_pages(gpuvm::array<const u64> data, const u32* order, u64 pages, u64 visits,
                                       u64 page_words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < visits; n += warp_count(), ++done) {
        u64 first = order[n % pages] * page_words;
        auto span = data.pin(first);
        // Lanes that found the page wait for those that did not: ahead of them they would fault for each page alone.
        if (__any_sync(~0u, !span || (done % 64 == 63 && data.failed()))) break;
#pragma unroll 4
        for (u64 k = lane_id(); k < page_words; k += 32) wrong += span[k] != pattern(first + k);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// The lender's own kernel: copies 16 bytes a thread and load, four in flight, bound by its GPU's memory.
__global__ void stream_copy(u64 from, u64 to, u64 chunks, u64 passes, u64* tally) {
    const uint4* source = reinterpret_cast<const uint4*>(from);
    uint4* target = reinterpret_cast<uint4*>(to);
    u64 done = 0, step = thread_count();
    for (u64 pass = 0; pass < passes; ++pass) {
        for (u64 first = thread_id(); first < chunks; first += 4 * step) {
            uint4 held[4];
#pragma unroll
            for (u32 k = 0; k < 4; ++k)
                if (first + k * step < chunks) held[k] = source[first + k * step];
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                if (first + k * step >= chunks) continue;
                target[first + k * step] = held[k];
                ++done;
            }
        }
    }
    add_tally(tally, kDone, done);
}
