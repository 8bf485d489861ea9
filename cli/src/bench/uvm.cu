// Managed memory: the driver serves the faults.
#include "bench/common.cuh"

using namespace bench;

// A warp on one page at a time, as touch_warps in faults.cu.
__global__ void touch_managed(u64 memory, const u32* order, u64 count, u64 page_words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        u64 word = word_of(order[n], page_words, lane_id());
        wrong += reinterpret_cast<const u64*>(memory)[word] != pattern(word);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// One lane reads one word every `stride` words and notes how many ticks each took.
__global__ void time_managed(u64 memory, u64 count, u64 stride, u64* took, u64* tally) {
    u64 wrong = 0, began_ns = gpuvm::detail::time_ns(), began = ticks();
    for (u64 n = 0; n < count; ++n) {
        u64 word = n * stride, start = ticks();
        u64 value = gpuvm::detail::ld_relaxed_gpu(reinterpret_cast<const u64*>(memory) + word);
        // The clock is read after the value is there.
        bool bad = __any_sync(1u, value != pattern(word));
        took[n] = ticks() - start;
        wrong += bad;
    }
    add_tally(tally, kDone, count);
    add_tally(tally, kWrong, wrong);
    add_tally(tally, kTicks, ticks() - began);
    add_tally(tally, kTime, gpuvm::detail::time_ns() - began_ns);
}
