// Pages that lanes overwrite whole: a claim and a frame, and nothing is fetched.
//
// The lanes that share such a page come to it as one group. If some of them came earlier, the page could be written
// home and leave before the others came, who would claim it again and know nothing of what it had.
#pragma once

#include "fault.cuh"

namespace gpuvm {
namespace detail {

// Pins a resident page, or claims an absent one in a frame that holds anything. It is published dirty at once, since
// what its home has is not the page any more, and with `pins` for the group, which keep it from being written back
// before the group has written it.
GPUVM_NOINLINE u32 open_blank(Miss* miss, u32 pins) {
    const layout::VmDesc* vm = miss->vm();
    u64* word = miss->word();
    const layout::RegionDesc* region = region_of(vm, miss->id());
    u32 frame = kNoFrame;
    u64 seen;
    while (true) {
        seen = miss->look();
        u32 status = look_at_page(vm, word, miss->id(), seen, pins, &miss->frame);
        if (status == kNone || (status == kWon && !try_claim(word, seen))) continue;
        if (status != kWon) {
            if (frame != kNoFrame) give_frame_back(miss, frame);
            // Under its pins, and before the first store.
            if (status == kHeld) mark_dirty(word, 0);
            return status;
        }
        if (!miss->pooled())
            frame = static_cast<u32>(miss->page);
        else if (frame == kNoFrame && !pool_pop(&vm->pool, &frame))
            frame = kNoFrame;
        if (frame != kNoFrame) break;
        // Nothing waits for a frame while a page is claimed: others may need the page to go on.
        revert_claim_to(word, kVictims && region->victims ? frame_of(seen) : 0);
        frame = wait_for_frame(vm, miss->id());
        if (frame == kNoFrame) return kFailed;
    }
    // What it has is not the page any more.
    drop_victim(region, seen);
    miss->frame = frame;
    if (miss->pooled()) st_relaxed_gpu(page_in_frame(vm, frame), miss->id());
    publish_dirty(word, 0, frame, pins);
    miss->count_own_frame();
    count(&counters(vm)->pages_overwritten, 1);
    if (miss->pooled()) pay_back(vm, 1, miss->id());
    return kHeld;
}

// Address of the element at `offset` of the page, with one pin for each lane of the miss's group, or 0.
GPUVM_NOINLINE u64 pin_blank(Miss* miss, u32 offset) {
    bool leads = miss->leads();
    u32 lanes = __popc(miss->group), outcome = kRoundRetry;
    while (outcome == kRoundRetry) {
        u32 status = !leads ? kFollower : aborted(miss->vm()) ? kFailed : open_blank(miss, lanes);
        outcome = status == kHeld ? kRoundHeld : status == kFailed ? kRoundFailed : kRoundRetry;
        outcome = end_round(miss, leads, lanes, status == kBusy, outcome);
    }
    return outcome == kRoundHeld ? miss->frame_address() + offset : 0;
}

// Whether elements [index, index + count) are all that the page has which begins with the first of them.
template <class T>
GPUVM_DEVICE bool is_whole_page(const layout::ArrayDesc& array, u64 index, u64 count, Place place) {
    if (place.offset || index >= array.length) return false;
    u64 left = array.length - index, start = place.page << array.page_shift;
    return (count < left ? count : left) * sizeof(T) >= page_length(array.bytes, start, array.offset_mask + 1);
}

}  // namespace detail
}  // namespace gpuvm
