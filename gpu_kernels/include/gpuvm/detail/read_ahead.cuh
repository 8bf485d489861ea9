// Fetches over queue pairs that nobody waits for: what kernels ask for ahead, and what follows a page that is read in
// order.
#pragma once

#include "clock.cuh"

namespace gpuvm {
namespace detail {

// Posts a READ for an absent page, whose word was `seen`, with a token in the word so that anyone can finish it. False
// when no frame, slot or copy is to be had now. `rung`: the queue pair whose doorbell is still to be rung.
GPUVM_DEVICE bool post_unawaited(const layout::ArrayDesc& array, u64 page, u64 seen, u32* rung) {
    const layout::VmDesc* vm = vm_of(array);
    u64* word = words_of(array) + page;
    u64 id = page_id(region_of(array), page);
    bool pooled = !never_evicted(array);
    u32 frame = static_cast<u32>(page), queue;
    u64 index;
    if (pooled && !pool_pop(vm, &frame)) return false;
    bool claimed = try_claim(word, seen);
    if (claimed) id = replica_to_fetch(vm, id);
    if (!claimed || !id || !try_reserve_any(vm, id, false, 1, &queue, &index)) {
        if (claimed) revert_claim(word);
        if (pooled) pool_give(vm, frame);
        return !claimed;
    }
    Queue q(vm, queue);
    u32 token = queue << layout::TOKEN_SLOT_BITS | (static_cast<u32>(index & q.desc->mask) + 1);
    // Before the request is written, so that whoever finishes it takes the token away.
    set_token(word, token);
    write_slot(q, index, layout::REQUEST_FETCH, id, frame, 0, token);
    commit(q, index, 1);
    count(&counters(vm)->prefetches, 1);
    if (*rung != queue && *rung != kNoFrame) ring(Queue(vm, *rung));
    *rung = queue;
    return true;
}

// So much follows a page that is read in order, a page at least.
constexpr u32 kReadAheadBytes = 64 << 10;

// Begins to fetch the pages that follow a page, up to the first that is not absent, as far as frames and slots are
// free, and returns how many. It leaves the pool what demand fetches need at once.
GPUVM_NOINLINE u32 read_ahead(const layout::ArrayDesc& array, u64 page) {
    const layout::VmDesc* vm = vm_of(array);
    u64 pages = region_of(vm, page_id(region_of(array), 0))->pages, last = page + (kReadAheadBytes >> array.page_shift);
    if (last == page) ++last;
    u32 rung = kNoFrame, begun = 0;
    while (++page <= last && page < pages) {
        if (static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) * 2 <= static_cast<i64>(vm->frames_low)) break;
        u64 seen = ld_acquire_gpu(words_of(array) + page);
        if (state_of(seen) != kAbsent || !post_unawaited(array, page, seen, &rung)) break;
        ++begun;
    }
    if (rung != kNoFrame) ring(Queue(vm, rung));
    return begun;
}

// After the fetch of a page was posted, for which `taken` frames were taken: reads ahead where the region wants that,
// and puts frames back.
GPUVM_DEVICE void go_on_after(const layout::ArrayDesc& array, u64 page, u32 taken) {
    const layout::VmDesc* vm = vm_of(array);
    u64 id = page_id(region_of(array), page);
    if constexpr (kReadsAhead)
        if (region_of(vm, id)->flags & layout::REGION_READ_AHEAD) taken += read_ahead(array, page);
    if (taken) pay_back(vm, taken, id);
}

}  // namespace detail
}  // namespace gpuvm
