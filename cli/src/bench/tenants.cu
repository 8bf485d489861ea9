// Two processes on one GPU: the one that pages.
#include "bench/common.cuh"

using namespace bench;

// A warp reads one page at a time, all of it. Visit `first + n` is of a random page, the same one in every run.
__global__ void read_by_chance(gpuvm::array<const u64> data, u64 pages, u64 first, u64 visits, u64 page_words,
                               u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < visits; n += warp_count(), ++done) {
        u32 chance = hash(hash(static_cast<u32>(first + n)) + static_cast<u32>((first + n) >> 32));
        u64 word = (chance * pages >> 32) * page_words;
        auto span = data.pin(word);
        // Lanes that found the page wait for those that did not: ahead of them they would fault for each page alone.
        if (__any_sync(~0u, !span || (done % 64 == 63 && data.failed()))) break;
#pragma unroll 4
        for (u64 k = lane_id(); k < page_words; k += 32) wrong += span[k] != pattern(word + k);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
