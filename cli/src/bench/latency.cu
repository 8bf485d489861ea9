// The time of one fault.
#include "bench/common.cuh"

using namespace bench;

// Some lanes of one warp read neighbouring words of one page after the other; noted is how many ticks it took until
// all of them had their value.
__global__ void time_faults(gpuvm::array<const u64> data, u64 page_words, u64* took, u64* tally) {
    u64 pages = data.size() / page_words, wrong = 0;
    u32 lane = lane_id(), here = __activemask();
    u64 began_ns = gpuvm::detail::time_ns(), began = ticks();
    for (u64 page = 0; page < pages; ++page) {
        u64 word = page * page_words + page % (page_words / 32) * 32 + lane;
        __syncwarp(here);
        u64 start = ticks();
        u64 value = data[word];
        // The clock is read after every lane's value is there.
        bool bad = __any_sync(here, value != pattern(word));
        u64 end = ticks();
        if (lane == 0) took[page] = end - start;
        wrong += bad;
    }
    if (lane == 0) {
        add_tally(tally, kDone, pages);
        add_tally(tally, kWrong, wrong);
        add_tally(tally, kTicks, ticks() - began);
        add_tally(tally, kTime, gpuvm::detail::time_ns() - began_ns);
    }
}

// Every warp of the launch reads the same page; noted is the longest time of a warp.
__global__ void time_crowd_fault(gpuvm::array<const u64> data, u64 page, u64 page_words, u64* took, u64* tally) {
    u64 word = page * page_words + (warp_id() * 32 + lane_id()) % page_words;
    u64 start = ticks();
    u64 value = data[word];
    bool bad = __any_sync(~0u, value != pattern(word));
    u64 end = ticks();
    if (lane_id() == 0) {
        atomicMax(took, end - start);
        add_tally(tally, kDone, 1);
        add_tally(tally, kWrong, bad);
    }
}
