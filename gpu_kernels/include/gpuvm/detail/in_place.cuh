// Reads of pages where they live: an element of a read-only region whose page has no frame is read at its home, and the
// page stays there.
//
// Nobody writes the home of such a region, so what it holds is right at any time, whatever the page's word says: the
// word only tells whether a frame is nearer. So one look will do, and no order is needed. A region that kernels write
// needs a second look behind the load, and strong loads; its pages are fetched.
#pragma once

#include "clock.cuh"
#include "element.cuh"

namespace gpuvm {
namespace detail {

// Pages up to this size are there before a read at their home would be.
constexpr u32 kSmallPageShift = 12;

GPUVM_DEVICE bool reads_in_place(const layout::ArrayDesc& array) {
    return kDirect && array.region & layout::ARRAY_IN_PLACE;
}

// Counts what reads at the home stand for, one of `drawn` of which is weighed. False when the page is to be fetched, by
// this lane.
GPUVM_DEVICE bool weigh(const layout::VmDesc* vm, layout::TableHead* head, u64* word, u64 id, u64 seen, u64 chunk,
                        u32 drawn, u32 rule, u32 sample) {
    u32 here, sharing = match_active(chunk, &here), lane = lane_id();
    u64 page = page_of(id);
    u32 neighbours = __match_any_sync(here, static_cast<u32>(page)), first = __ffs(neighbours) - 1;
    // Chunks that several lanes read travel once; how many of them there are, and on how many pages.
    u32 chunks, pages;
    ballot2(here, lane == static_cast<u32>(__ffs(sharing)) - 1, lane == first, &chunks, &pages);
    if (lane != first) return true;
    u32 own = __popc(chunks & neighbours), spread = __popc(pages);
    count(&counters(vm)->chunks_in_place, static_cast<u64>(own) * drawn);
    // Weak: the host writes it before the launch.
    u64 page_chunks = ld_weak(&head->page_chunks);
    if (page_chunks) count(reinterpret_cast<u64*>(page_chunks) + page, static_cast<u64>(own) * drawn);
    bool scattered = spread >= kSpreadPages && spread * 2 > static_cast<u32>(__popc(here));
    u64 cost = static_cast<u64>(scattered ? own * kScatteredRead : own) * drawn;
    if (sample != kNoSample) spend(head, sample, cost);
    if (rule != layout::RULE_FREQUENCY || state_of(seen) != kAbsent) return true;
    u32 epoch = epoch_of(head);
    u64 use = use_of(seen, epoch) + cost, enough = 1ull << (vm->page_shift - kChunkShift);
    if (use >= enough) {
        // Worth a fetch. Whether it is worth more than a page that has a frame: one that was used of late stays.
        i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
        u32 frame;
        if (available > 0 && available * 2 >= static_cast<i64>(vm->frames_low)) return false;
        if (turn_clock(vm, kClockWindow, 1, &frame, id)) {
            pool_give(vm, frame);
            return false;
        }
        use = enough / 2;
    }
    note_use(word, seen, use, epoch);
    return true;
}

// Whether a page without a frame, whose word is `seen`, is to be read in place now, rather than fetched. `draw`: the
// mask by which the read was drawn.
GPUVM_NOINLINE bool stays_at_home(const layout::VmDesc* vm, u64* words, u64 page, u64 seen, u64 chunk, u32 region,
                                  u32 draw) {
    layout::TableHead* head = head_of(words);
    u64 sampling = sampling_of(head);
    u32 draws = static_cast<u32>(sampling), shift = block_shift_of(sampling), rule = layout::RULE_FIRST_COME;
    u32 sample = shift ? sample_of(page, shift) : kNoSample;
    if (region & layout::ARRAY_FETCH_WHILE_FREE) {
        bool free = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) > static_cast<i64>(vm->frames_low);
        bool competes = region & layout::ARRAY_DUELS;
        if (free) {
            if (draws) st_relaxed_gpu(&head->draws, 0u);
            // A large page shows its first element early, and is fetched for the second one.
            if (!competes || vm->page_shift <= kSmallPageShift) return false;
            if (state_of(seen) == kFetching) return true;
            return !(seen & layout::FRAME_MASK) && note_use(words + page, seen, 1, epoch_of(head));
        }
        if (competes) {
            u32 others = ld_relaxed_gpu(&head->rule);
            rule = sample == kNoSample ? others : sample;
            if (!draws) st_relaxed_gpu(&head->draws, draws_by(others));
        } else if (!draws) {
            st_relaxed_gpu(&head->draws, layout::DRAWS_AT_HOME);
        }
        if (rule == layout::RULE_FETCH) return false;
    }
    u64 id = page_id(region & (layout::REGIONS_MAX - 1), page);
    return weigh(vm, head, words + page, id, seen, chunk, draw + 1, rule, sample);
}

// Reads an element at its page's home. False when the page has a frame, is to get one, or cannot be had.
template <class T>
GPUVM_DEVICE bool read_at_home(const layout::ArrayDesc& array, Place place, T* value) {
    u64 byte = (place.page << array.page_shift) + place.offset;
    // A chunk of several elements may reach past the array's end, and the home need not.
    if (byte + sizeof(T) > array.bytes) return false;
    // Relaxed: an acquire would empty the L1 cache, from which a lane's next elements come.
    u64 seen = ld_relaxed_gpu(words_of(array) + place.page);
    u64 sampling = sampling_of(head_of(words_of(array)));
    if (state_of(seen) != kAbsent && state_of(seen) != kFetching) return false;
    // Most reads ask nobody. Drawn by the clock, which lanes that come together read together.
    u32 draw = draw_of(static_cast<u32>(sampling), sample_of(place.page, block_shift_of(sampling)));
    if (!(static_cast<u32>(ticks()) * 0x9e3779b9u >> 16 & draw) &&
        !stays_at_home(vm_of(array), words_of(array), place.page, seen, (array.home + byte) >> kChunkShift,
                       array.region, draw))
        return false;
    *value = load_weak<T>(array.home + byte);
    return true;
}

}  // namespace detail
}  // namespace gpuvm
