// Regions whose pages have checksums: write-backs go by way of a copy, and what is fetched is compared.
//
// Lanes store to a page while it is written back. A WRITE from the page's own frame would hold some of these stores and
// not others, in an order that no checksum can know. So whoever owns the write-back mark copies the page into a frame
// of staging, runs the checksum over the very bytes that it copies, and has them written. Writers wait for nobody; a
// store that comes too late for the copy has marked the page dirty, as ever.
#pragma once

#include "checksum.cuh"
#include "replica.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE u32* checksum_slot(const layout::RegionDesc* region, u64 page) {
    return reinterpret_cast<u32*>(region->checksums) + page;
}

// A frame of staging: its place plus one, or 0 when a look at some of them finds none.
GPUVM_DEVICE u32 take_staging(const layout::VmDesc* vm) {
    constexpr u32 kLooks = 16;
    u32* taken = reinterpret_cast<u32*>(vm->staging);
    u32 first = (multiprocessor_id() * 61 + warp_slot() * 17 + lane_id()) % vm->staging_count;
    for (u32 n = 0; n < kLooks && n < vm->staging_count; ++n) {
        u32 place = (first + n) % vm->staging_count;
        // Acquire: the last write-back has read it.
        if (ld_relaxed_gpu(taken + place) == 0 && atom_cas_acquire_gpu(taken + place, 0u, 1u) == 0) return place + 1;
    }
    return 0;
}
GPUVM_DEVICE void give_staging(const layout::VmDesc* vm, u32 staged) {
    // Release: pairs with the next taker.
    if (staged) st_release_gpu(reinterpret_cast<u32*>(vm->staging) + (staged - 1), 0u);
}
GPUVM_DEVICE u64 staging_address(const layout::VmDesc* vm, u32 staged) {
    return vm->staging_frames + (static_cast<u64>(staged - 1) << vm->page_shift);
}

// Copies a page whose write-back mark is ours to staging, with its checksum into the table: the page cannot leave its
// frame, and so is not compared, before these bytes are at its home. 0 when there was no room.
GPUVM_NOINLINE u32 stage_page(const layout::VmDesc* vm, u64 owner, u32 frame) {
    const layout::RegionDesc* region = region_of(vm, owner);
    u32 staged = take_staging(vm);
    if (!staged) return 0;
    u64 copy = staging_address(vm, staged);
    u32 crc = crc_run(~0u, frame_address(vm, region, frame), copy, 0, page_bytes(vm, region, page_of(owner)));
    st_relaxed_gpu(checksum_slot(region, page_of(owner)), kept(crc));
    return staged;
}

// Ends the write-back of a page with a checksum or with replicas.
GPUVM_NOINLINE void end_write_back(const layout::VmDesc* vm, u64 owner, u32 frame, u32 staged, bool well,
                                   bool release_frame) {
    u64* word = word_of(vm, owner);
    give_staging(vm, staged);
    if (!well) {
        write_back_failed(word);
        return;
    }
    count_written_back(vm, page_bytes(vm, region_of(vm, owner), page_of(owner)));
    write_back_done(word);
    if (release_frame && try_leave(vm, word, frame)) pool_give(vm, frame);
}

// Publishes a fetched page, dirty where its other copy is to be mended.
GPUVM_NOINLINE void publish_fetched(const layout::VmDesc* vm, u64 owner, u32 frame, u32 token, u32 pins) {
    const layout::RegionDesc* region = region_of(vm, owner);
    u64* word = word_of(vm, owner);
    count_fetched(vm, page_bytes(vm, region, page_of(owner)));
    if (is_pooled(region)) st_relaxed_gpu(owner_slot(vm, frame), at_replica(owner, 0));
    if (is_replicated(region) && is_to_be_mended(vm, owner))
        publish_to_mend(word, token, frame, pins);
    else
        publish(word, token, frame, pins);
}

// The same, or not, for a page with a checksum and what its bytes in the frame come to.
GPUVM_NOINLINE u32 publish_checked(const layout::VmDesc* vm, u64 owner, u32 queue, u32 frame, u32 token, u32 pins,
                                   u32 found) {
    const layout::RegionDesc* region = region_of(vm, owner);
    u32* slot = checksum_slot(region, page_of(owner));
    u32 expected = ld_relaxed_gpu(slot);
    if (expected == 0) st_relaxed_gpu(slot, found);
    if (expected == 0 || expected == found) {
        publish_fetched(vm, owner, frame, token, pins);
        return layout::OUTCOME_OK;
    }
    count(&counters(vm)->pages_corrupt, 1);
    bool again = is_replicated(region) && leave_replica(vm, owner);
    if (again) {
        publish_absent(word_of(vm, owner), token);
    } else {
        count(&counters(vm)->pages_failed, 1);
        publish_error(word_of(vm, owner), token, queue << 16 | layout::SYNDROME_CHECKSUM << 8 | replica_of(owner));
    }
    give_frame(vm, region, frame);
    return again ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

}  // namespace detail
}  // namespace gpuvm
