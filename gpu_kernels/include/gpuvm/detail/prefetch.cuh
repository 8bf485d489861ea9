// Prefetch: fetches that nobody waits for.
#pragma once

#include "access.cuh"

namespace gpuvm {
namespace detail {

// Fetches an absent page if a frame is there. False when none is.
GPUVM_NOINLINE bool prefetch_directly(Miss* miss) {
    u32 status = open_directly(miss, 0, true, false);
    if (status == kHeld) count(&counters(miss->vm())->prefetches, 1);
    return status != kNone;
}

// Posts READs for absent pages of a byte range, each with a token in the word so that anyone can finish it.
GPUVM_NOINLINE void prefetch(const layout::ArrayDesc& array, u32 element_bytes, u64 first, u64 count_) {
    if (count_ == 0) return;
    if (first >= array.length || count_ > array.length - first) {
        report_out_of_range(array.length, array.region, first >= array.length ? first : array.length,
                            layout::FAULT_OUT_OF_RANGE_SPAN);
        return;
    }
    const layout::VmDesc* vm = vm_of(array);
    u64 last = ((first + count_) * element_bytes - 1) >> array.page_shift;
    u32 rung = kNoFrame;
    for (u64 page = first * element_bytes >> array.page_shift; page <= last && !aborted(); ++page) {
        u64* word = words_of(array) + page;
        u64 seen = ld_acquire_gpu(word);
        if (state_of(seen) != kAbsent) continue;
        Miss miss(array, page);
        if (miss.transport() == Transport::kCopied) {
            if (!prefetch_directly(&miss)) break;
            continue;
        }
        u64 id = miss.id();
        u32 frame = static_cast<u32>(page), queue;
        u64 index;
        if (miss.pooled()) {
            pay_back(vm, 1, id);
            if (!pool_pop(vm, &frame)) break;
        }
        if (!try_claim(word, seen)) {
            give_frame_back(&miss, frame);
            continue;
        }
        id = replica_to_fetch(vm, id);
        if (!id || !try_reserve_any(vm, id, false, 1, &queue, &index)) {
            revert_claim(word);
            give_frame_back(&miss, frame);
            break;
        }
        Queue q(vm, queue);
        u32 token = queue << layout::TOKEN_SLOT_BITS | (static_cast<u32>(index & q.desc->mask) + 1);
        // Before the request is written, so that whoever finishes it takes the token away.
        set_token(word, token);
        write_slot(q, index, layout::REQUEST_FETCH, id, frame, 0, token);
        commit(q, index, 1);
        count(&counters(vm)->prefetches, 1);
        if (rung != queue && rung != kNoFrame) ring(Queue(vm, rung));
        rung = queue;
    }
    if (rung != kNoFrame) ring(Queue(vm, rung));
}

}  // namespace detail
}  // namespace gpuvm
