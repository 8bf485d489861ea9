// Bare kernels without paging: what paging is compared with.
#include "bench/common.cuh"

using namespace bench;

// Fills words with the pattern of their index.
__global__ void fill_pattern(u64 memory, u64 words, u64* tally) {
    u64 done = 0;
    for (u64 word = thread_id(); word < words; word += thread_count(), ++done)
        reinterpret_cast<u64*>(memory)[word] = pattern(word);
    add_tally(tally, kDone, done);
}

// Zeros.
__global__ void clear_words(u64 memory, u64 words, u64* tally) {
    u64 done = 0;
    for (u64 word = thread_id(); word < words; word += thread_count(), ++done) reinterpret_cast<u64*>(memory)[word] = 0;
    add_tally(tally, kDone, done);
}

// Page order[n] of `home` to slot n of `frames`, or back.
__global__ void copy_pages(u64 home, u64 frames, const u32* order, u64 count, u64 page_words, u32 back, u64* tally) {
    u64 done = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        u64 page = home + order[n] * page_words * 8, slot = frames + n * page_words * 8;
        copy_page(back ? slot : page, back ? page : slot, page_words);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
}

// As `copy_pages`, of memory in several parts: page p is page p / part_count of part p % part_count.
__global__ void copy_parts(const u64* parts, u32 part_count, u64 frames, const u32* order, u64 count, u64 page_words,
                           u32 back, u64* tally) {
    u64 done = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        u64 page = parts[order[n] % part_count] + order[n] / part_count * page_words * 8;
        u64 slot = frames + n * page_words * 8;
        copy_page(back ? slot : page, back ? page : slot, page_words);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
}

// Warps with an even number bring the first `reads` pages of the order, those with an odd number write the pages from
// `split` on back.
__global__ void copy_both(u64 home, u64 frames, const u32* order, u64 reads, u64 split, u64 writes, u64 page_words,
                          u64* tally) {
    u64 done = 0;
    bool back = warp_id() & 1;
    u64 count = back ? writes : reads, first = back ? split : 0;
    for (u64 n = warp_id() / 2; n < count; n += warp_count() / 2, ++done) {
        u64 page = home + order[first + n] * page_words * 8, slot = frames + (first + n) * page_words * 8;
        copy_page(back ? slot : page, back ? page : slot, page_words);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
}

// Compares pages with the pattern of page order[n]: at their place in the home, or in slot n.
__global__ void check_pages(u64 memory, const u32* order, u64 first, u64 count, u64 page_words, u32 in_slots,
                            u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = first + warp_id(); n < first + count; n += warp_count(), ++done) {
        const u64* words = reinterpret_cast<const u64*>(memory) + (in_slots ? n : order[n]) * page_words;
        for (u64 k = lane_id(); k < page_words; k += 32) wrong += words[k] != pattern(order[n] * page_words + k);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// One warp copies one page after the other and notes how many ticks each took.
__global__ void time_pages(u64 home, u64 frames, const u32* order, u64 count, u64 page_words, u64* took, u64* tally) {
    u64 began_ns = gpuvm::detail::time_ns(), began = ticks();
    for (u64 n = 0; n < count; ++n) {
        u64 start = ticks();
        copy_page(home + order[n] * page_words * 8, frames + n * page_words * 8, page_words);
        __syncwarp();
        // As a fault's publication: the page is there for the whole GPU.
        gpuvm::detail::fence_acq_rel_gpu();
        if (lane_id() == 0) took[n] = ticks() - start;
    }
    if (lane_id() == 0) {
        add_tally(tally, kDone, count);
        add_tally(tally, kTicks, ticks() - began);
        add_tally(tally, kTime, gpuvm::detail::time_ns() - began_ns);
    }
}

// All warps of the launch copy one page together, each a part of it; the longest time of a warp is noted.
__global__ void time_crowd(u64 page, u64 frame, u64 page_words, u64* took, u64* tally) {
    u64 start = ticks(), part = page_words / warp_count(), first = warp_id() * part;
    copy_page(page + first * 8, frame + first * 8, part);
    __syncwarp();
    gpuvm::detail::fence_acq_rel_gpu();
    if (lane_id() == 0) {
        atomicMax(took, ticks() - start);
        add_tally(tally, kDone, 1);
    }
}

// Each load's address comes from the value of the load before.
__global__ void time_loads(u64 home, u64 words, u64 count, u64* tally) {
    u64 word = 0, began_ns = gpuvm::detail::time_ns();
    for (u64 n = 0; n < count; ++n) {
        u64 value = load_system(reinterpret_cast<const chunk*>(home) + word / 2).lo;
        word = hash(static_cast<u32>(value >> 8) + static_cast<u32>(n)) % words / 2 * 2;
    }
    add_tally(tally, kDone, count);
    add_tally(tally, kSum, word);
    add_tally(tally, kTime, gpuvm::detail::time_ns() - began_ns);
}

// Writes n into one word of pinned memory and waits until the processor has written it into another one.
__global__ void time_round_trips(u64 words, u32 count, u64* tally) {
    u32 *bell = reinterpret_cast<u32*>(words), *answer = bell + 32;
    u64 began_ns = gpuvm::detail::time_ns(), spins = 0;
    u32 n = 0;
    // Bounded: the processor may have given up.
    while (n < count && spins < 20000000) {
        gpuvm::detail::st_relaxed_sys(bell, ++n);
        for (spins = 0; gpuvm::detail::ld_relaxed_sys(answer) != n && spins < 20000000; ++spins) {
#ifdef GPUVM_SIM
            gpuvm::detail::sleep_ns(100);
#endif
        }
    }
    if (spins < 20000000) add_tally(tally, kDone, n);
    add_tally(tally, kTime, gpuvm::detail::time_ns() - began_ns);
}

// Compares words with the pattern of their index.
__global__ void check_words(u64 memory, u64 words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 word = thread_id(); word < words; word += thread_count(), ++done)
        wrong += reinterpret_cast<const u64*>(memory)[word] != pattern(word);
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
