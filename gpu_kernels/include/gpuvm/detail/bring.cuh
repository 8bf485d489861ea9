// Where pages are that launches look up, and how they come there between launches: to a frame, or where none is free to
// a slot in memory that neighbour GPUs lend (docs/PROTOCOL.md, T3 and T16). A slot has what the home has, and nothing
// stores there but who fills it.
#pragma once

#include "look_up.cuh"
#include "victim.cuh"

namespace gpuvm {
namespace detail {

// The place of a held page, with kAtHome for one without a frame. In a window, as rewritten kernels look it up
// (ptx/src/table.rs): less the page's address there.
GPUVM_DEVICE u64 entry_of(const layout::VmDesc* vm, u64 id, u64 window) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64 start = page_of(id) << vm->page_shift, seen = ld_relaxed_gpu(word_of(vm, id));
    bool in_frame = is_resident(seen);
    u64 place = in_frame ? frame_address(vm, region, frame_of(seen)) : region->home + start;
    if (u32 slot = victim_in(region, seen)) place = slot_address(victims_of(region), slot - 1, vm->page_shift);
    return (window ? place - (window + start) : place) | (in_frame ? 0 : kAtHome);
}

// What became of a page that was to come: it has a frame, nothing used it, or no frame was free. One for which none was
// is not marked any more: it comes if it is used again. It may have a slot since.
constexpr u32 kHasFrame = 0;
constexpr u32 kUnused = 1;
constexpr u32 kNoneFree = 2;
constexpr u32 kHasSlot = 3;

// Copies `bytes` bytes by a whole warp.
GPUVM_DEVICE void copy_by_warp(u64 to, u64 from, u64 bytes) {
    u64 chunks = bytes / sizeof(pair64);
    // Several loads a lane are on their way: one crosses the bus in more than a microsecond.
    constexpr u32 kTogether = 8;
    for (u64 first = lane_id(); first < chunks; first += 32 * kTogether) {
        pair64 piece[kTogether];
#pragma unroll
        for (u32 k = 0; k < kTogether; ++k)
            if (first + 32 * k < chunks) piece[k] = ld_weak(reinterpret_cast<const pair64*>(from) + first + 32 * k);
#pragma unroll
        for (u32 k = 0; k < kTogether; ++k)
            if (first + 32 * k < chunks) st_relaxed_gpu_v2(reinterpret_cast<pair64*>(to) + first + 32 * k, piece[k]);
    }
    for (u64 at = chunks * sizeof(pair64) + lane_id(); at < bytes; at += 32)
        st_relaxed_gpu(reinterpret_cast<u8*>(to + at), ld_weak(reinterpret_cast<const u8*>(from + at)));
    // All lanes' copies come before the leader's release.
    __syncwarp();
}

// Bytes of the page that begins at byte `start` of a region.
GPUVM_DEVICE u64 bytes_from(const layout::VmDesc* vm, const layout::RegionDesc* region, u64 start) {
    u64 rest = region->bytes - start, whole = 1ull << vm->page_shift;
    return rest < whole ? rest : whole;
}

// Copies such a page from its home into a frame, by a whole warp. Its bytes.
GPUVM_DEVICE u64 copy_from_home(const layout::VmDesc* vm, const layout::RegionDesc* region, u64 start, u32 frame) {
    u64 bytes = bytes_from(vm, region, start);
    copy_by_warp(frame_address(vm, region, frame), region->home + start, bytes);
    return bytes;
}

// A page of a held region that was claimed has its bytes in a frame.
GPUVM_DEVICE void came(const layout::VmDesc* vm, u64* word, u64 id, u32 frame, u64 bytes) {
    st_relaxed_gpu(page_in_frame(vm, frame), id);
    publish(word, 0, frame, 1);
    count(&counters(vm)->pages_fetched, 1);
    count(&counters(vm)->bytes_fetched, bytes);
}

// A free slot plus one to which the caller may copy, until `end_copy`; or 0.
GPUVM_DEVICE u32 take_slot(const layout::RegionDesc* region) {
    const layout::VictimsDesc* victims = victims_of(region);
    u32 slot;
    if (!pool_pop(&victims->free, &slot)) return 0;
    if (begin_copy(victims, slot)) return slot + 1;
    // Of memory that was taken back: no one's.
    end_copy(victims, slot);
    return 0;
}

// Copies a claimed page from its home to a slot of the caller's, and names that in its word. By a whole warp.
GPUVM_DEVICE void come_to_slot(const layout::VmDesc* vm, u64 id, u32 slot) {
    const layout::RegionDesc* region = region_of(vm, id);
    const layout::VictimsDesc* victims = victims_of(region);
    u64 start = page_of(id) << vm->page_shift, to = slot_address(victims, slot - 1, vm->page_shift);
    copy_by_warp(to, region->home + start, bytes_from(vm, region, start));
    if (lane_id() != 0) return;
    end_copy(victims, slot - 1);
    revert_claim_to(word_of(vm, id), slot);
}

// A page that has a slot is at its home alone from now on. With `unlent` only if the slot's memory was taken back. No
// launch runs that may read it there.
GPUVM_DEVICE void leave_slot(const layout::VmDesc* vm, u64 id, bool unlent) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* word = word_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    u32 slot = victim_in(region, seen);
    if (!slot || (unlent && is_lent(victims_of(region), slot - 1)) || !try_claim(word, seen)) return;
    give_slot(victims_of(region), slot - 1);
    revert_claim(word);
}

// Brings a page of a held region that was used into a free frame, from its slot or its home. With `own`, bits of frames
// that are the caller's alone, into the frame `its` of those or none, and with `all` used or not. With `slots` a page
// at home for which no frame is free comes to a slot, if one is. By a whole warp.
GPUVM_DEVICE u32 bring_page(const layout::VmDesc* vm, u64 id, u64* own, u32 its, bool all, bool slots) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64 start = page_of(id) << vm->page_shift;
    u64* word = word_of(vm, id);
    u8* mark = mark_of(vm, id);
    u32 frame = kNoFrame, became = kHasFrame, had = 0, slot = 0;
    if (lane_id() == 0) {
        u64 seen = ld_relaxed_gpu(word);
        bool comes = state_of(seen) == kAbsent && ((own && all) || ld_weak(mark));
        if (!is_resident(seen)) became = kUnused;
        if (comes && own) {
            u64 bit = 1ull << its % 64;
            // Relaxed: the end of the kernel that took the frames orders it.
            comes = atom_and_relaxed_gpu(own + its / 64, ~bit) & bit;
            if (comes) frame = its;
        }
        if (comes && frame == kNoFrame && !pool_pop(&vm->pool, &frame)) {
            frame = kNoFrame;
            became = kNoneFree;
            *mark = 0;
            if (slots && kVictims && region->victims && !victim_in(region, seen)) slot = take_slot(region);
        }
        if (frame != kNoFrame && !(comes && try_claim(word, seen))) {
            pool_give(&vm->pool, frame);
            frame = kNoFrame;
        }
        if (slot && !try_claim(word, seen)) {
            end_copy(victims_of(region), slot - 1);
            give_slot(victims_of(region), slot - 1);
            slot = 0;
        }
        had = victim_in(region, seen);
    }
    // The leader's acquires come before the group's copy: a shuffle orders nothing.
    __syncwarp();
    if (kVictims && (slot = __shfl_sync(~0u, slot, 0)) != 0) {
        come_to_slot(vm, id, slot);
        return kHasSlot;
    }
    frame = __shfl_sync(~0u, frame, 0);
    if (frame == kNoFrame) return __shfl_sync(~0u, became, 0);
    u64 from = region->home + start, bytes = bytes_from(vm, region, start);
    if (kVictims && (had = __shfl_sync(~0u, had, 0)) != 0)
        from = slot_address(victims_of(region), had - 1, vm->page_shift);
    copy_by_warp(frame_address(vm, region, frame), from, bytes);
    if (lane_id() == 0) {
        if (kVictims && had) {
            give_slot(victims_of(region), had - 1);
            count(&counters(vm)->victims_fetched, 1);
        }
        *mark = 0;
        came(vm, word, id, frame, bytes);
    }
    return kHasFrame;
}

// The frame of a page, or none.
GPUVM_DEVICE u32 frame_of_page(const layout::VmDesc* vm, u64 id) {
    u64 seen = ld_relaxed_gpu(word_of(vm, id));
    return is_resident(seen) ? frame_of(seen) : kNoFrame;
}

}  // namespace detail
}  // namespace gpuvm
