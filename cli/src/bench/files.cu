// Pages of a file, as a program that keeps this many requests under way asks for them.
#include "bench/common.cuh"

using namespace bench;

// Each lane reads the first and the last touched word of a page, and then takes the next one of the order: so pages are
// asked for in the order, and no lane waits for the end of another's work.
__global__ void read_next(gpuvm::array<const u64> data, const u32* order, u64 count, u64 page_words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n; (n = atomicAdd(tally + kNext, u64(1))) < count && !data.failed(); ++done) {
        u64 page = order[n];
        u64 first = word_of(page, page_words, 0), last = word_of(page, page_words, 31);
        wrong += data[first] != pattern(first) || data[last] != pattern(last);
    }
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
