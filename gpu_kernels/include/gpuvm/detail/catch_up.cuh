// Copies of pages at a home that was away: what it holds counts no more, and is written anew.
#pragma once

#include "flush.cuh"

namespace gpuvm {
namespace detail {

// Whatever a home holds of a page counts no more. No WRITE to it may be in flight.
GPUVM_DEVICE void mark_page_stale(const layout::VmDesc* vm, u64 id, u32 home) {
    const layout::RegionDesc* region = region_of(vm, id);
    for (u32 n = 0; n < region->replicas; ++n) {
        // Row n is moved on by n homes; a region whose rows have one home each has home n in row n.
        u32 at = n;
        if (region->homes > 1) divide(page_of(id) + n, region->homes, region->homes_reciprocal, &at);
        if (at == home) set_stale(vm, at_replica(id, n));
    }
}

// Whether a copy of the page is stale at a home that can be reached, and answers.
GPUVM_DEVICE bool is_behind(const layout::VmDesc* vm, u64 id) {
    u64 other = other_replica(id);
    return (is_stale(vm, id) && !is_silent(vm, id) && !all_queues_gone(vm, id)) ||
           (is_stale(vm, other) && !is_silent(vm, other) && !all_queues_gone(vm, other));
}

// Has a page with a stale copy written back to both homes, as if a kernel had written it. False after a fault.
GPUVM_NOINLINE bool catch_up_page(const layout::ArrayDesc& array, u64 page) {
    if constexpr (!kReliable) return true;
    Miss miss(array, page);
    const layout::VmDesc* vm = miss.vm();
    if (!is_behind(vm, miss.id())) return true;
    while (true) {
        u32 outcome = acquire_round(&miss, true);
        if (outcome == kRoundHeld) {
            mark_dirty(miss.word(), 0);
            unpin(miss.word(), 1);
        }
        // Lanes that hold give up their pins before those of this round that do not wait for anything.
        if (miss.mixed) __syncwarp(miss.active);
        if (outcome == kRoundFailed) return false;
        if (outcome == kRoundHeld) return flush_page(vm, miss.id());
    }
}

}  // namespace detail
}  // namespace gpuvm
