// Prefetch: fetches that nothing waits for.
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
        report_out_of_range(vm_of(array), array.length, array.region, first >= array.length ? first : array.length,
                            layout::FAULT_OUT_OF_RANGE_SPAN);
        return;
    }
    u64 last = ((first + count_) * element_bytes - 1) >> array.page_shift;
    Unawaited fetch(array, &counters(vm_of(array))->prefetches);
    for (u64 page = first * element_bytes >> array.page_shift; page <= last && !aborted(vm_of(array)); ++page) {
        u64 seen = ld_acquire_gpu(words_of(array) + page);
        if (state_of(seen) != kAbsent) continue;
        if (transport_of(array) == Transport::kCopied) {
            Miss miss(array, page);
            if (!prefetch_directly(&miss)) break;
        } else if constexpr (kQueued) {
            if (!never_evicted(array)) pay_back(vm_of(array), 1, page_id(region_of(array), page));
            if (!post_unawaited(&fetch, page, seen)) break;
        }
    }
    if constexpr (kQueued) fetch.ring_last();
}

}  // namespace detail
}  // namespace gpuvm
