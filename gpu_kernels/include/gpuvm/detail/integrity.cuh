// Regions whose pages have checksums: made when a page is written back, compared when it is fetched.
//
// Lanes store to a page while it is written back, and its checksum may be taken of a mixture that its home never holds.
// That is never seen. A page is fetched only after it left its frame, and it leaves only clean: no lane has stored to
// it since the write-back mark was taken with no pins, or the dirty bit were set again. So of the last write-back
// before an eviction, frame, checksum and home are one. Writers wait for nothing and nothing is copied.
#pragma once

#include "checksum.cuh"
#include "replica.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE u32* checksum_slot(const layout::RegionDesc* region, u64 page) {
    return reinterpret_cast<u32*>(region->checksums) + page;
}

// Puts the checksum of a page whose write-back mark is ours into the table. Before its WRITE is posted: when the page
// leaves its frame, this is there.
GPUVM_NOINLINE void renew_checksum(const layout::VmDesc* vm, u64 id, u32 frame) {
    const layout::RegionDesc* region = region_of(vm, id);
    u32 bytes = source_of(vm, id).bytes;
    // Relaxed: the page table entry's release and acquire carry it to who fetches the page next.
    st_relaxed_gpu(checksum_slot(region, page_of(id)), checksum_alone(frame_address(vm, region, frame), bytes));
}

// Publishes a fetched page with its waiter's pins, dirty where its other copy is to be repaired.
GPUVM_DEVICE void publish_fetched(const layout::VmDesc* vm, u64 id, u32 frame, u32 token, u32 pins) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* word = word_of(vm, id);
    count_fetched(vm, source_of(vm, id).bytes);
    GPUVM_TIMELINE_ONLY(if (token) timeline_prefetched(vm, id, frame);)
    if (is_pooled(region)) st_relaxed_gpu(page_in_frame(vm, frame), at_replica(id, 0));
    if (is_replicated(region) && is_to_be_repaired(vm, id))
        publish_dirty(word, token, frame, pins);
    else
        publish(word, token, frame, pins);
    count_own_frame(region);
}

// The code of a page that came without its checksum.
GPUVM_DEVICE u32 checksum_code(u32 queue, u64 id) {
    return queue << 16 | layout::SYNDROME_CHECKSUM << 8 | replica_of(id);
}

// `publish_fetched` for a page with a checksum, if `found`, that of its bytes in the frame, is right.
GPUVM_NOINLINE u32 publish_checked(const layout::VmDesc* vm, u64 id, u32 queue, u32 frame, u32 token, u32 pins,
                                   u32 found) {
    const layout::RegionDesc* region = region_of(vm, id);
    u32* slot = checksum_slot(region, page_of(id));
    u32 expected = ld_relaxed_gpu(slot);
    if (expected == 0) st_relaxed_gpu(slot, found);
    if (expected == 0 || expected == found) {
        publish_fetched(vm, id, frame, token, pins);
        return layout::OUTCOME_OK;
    }
    count(&counters(vm)->pages_corrupt, 1);
    bool again = is_replicated(region) && leave_replica(vm, id);
    if (again) {
        publish_absent(word_of(vm, id), token);
    } else {
        fail_page(vm, id, token, checksum_code(queue, id));
    }
    give_frame(vm, region, frame);
    return again ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

}  // namespace detail
}  // namespace gpuvm
