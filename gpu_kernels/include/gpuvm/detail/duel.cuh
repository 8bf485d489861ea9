// Which pages of a region get frames once none is free: three rules, and a sample of the pages that follows each of
// them. What the samples cost is compared, and all other pages follow the cheapest rule (set dueling: Qureshi et al.,
// Adaptive Insertion Policies for High Performance Caching, ISCA 2007).
//
// Costs are in chunks of 16 bytes that go over the link. Only misses are counted. No count
// orders anything: they are hints, relaxed, and a lost one costs time alone.
#pragma once

#include "pool.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kNoSample = layout::PLACEMENT_RULES;
constexpr u32 kChunkShift = 4;
// What a read costs whose lanes are spread over many pages: each needs a request and a translation of its own, as long
// as a quarter of a page of 4 KiB takes (24 ns and 80 ns on an H200 over PCIe 5).
constexpr u32 kScatteredRead = 64;
// Lanes are spread from so many pages on, when half of them have a page for themselves.
constexpr u32 kSpreadPages = 8;

GPUVM_DEVICE layout::TableHead* head_of(u64* words) { return reinterpret_cast<layout::TableHead*>(words) - 1; }

// What a read at the home looks at: the head's `draws` and `block_shift`, by one load.
GPUVM_DEVICE u64 sampling_of(const layout::TableHead* head) {
    return ld_relaxed_gpu(reinterpret_cast<const u64*>(&head->draws));
}
GPUVM_DEVICE u32 block_shift_of(u64 sampling) { return static_cast<u32>(sampling >> 32); }

// The rule whose sample the page is in, or none. Of a block of pages each rule has one, at a place that is drawn by the
// block.
GPUVM_DEVICE u32 place_in_block(u32 block, u32 shift) { return block * 0x9e3779b9u >> 1 >> (31 - shift); }
GPUVM_DEVICE u32 sample_of(u64 page, u32 shift) {
    u32 number = static_cast<u32>(page), at = (number - place_in_block(number >> shift, shift)) & ((1u << shift) - 1);
    return at < kNoSample ? at : kNoSample;
}
GPUVM_DEVICE u64 page_of_sample(u32 block, u32 sample, u32 shift) {
    return (static_cast<u64>(block) << shift) + ((place_in_block(block, shift) + sample) & ((1u << shift) - 1));
}
// The head's draws while no frame is free, when pages of no sample follow `rule`.
GPUVM_DEVICE u32 draws_by(u32 rule) {
    u32 others = rule == layout::RULE_FETCH       ? layout::DRAW_ALL
                 : rule == layout::RULE_FREQUENCY ? layout::DRAW_MANY
                                                  : layout::DRAW_FEW;
    return layout::DRAW_MANY << layout::RULE_FIRST_COME * layout::DRAW_BITS |
           layout::DRAW_ALL << layout::RULE_FETCH * layout::DRAW_BITS |
           layout::DRAW_MANY << layout::RULE_FREQUENCY * layout::DRAW_BITS | others << kNoSample * layout::DRAW_BITS;
}
// Of the reads of a page, which ones ask: a mask for their times.
GPUVM_DEVICE u32 draw_of(u32 draws, u32 sample) {
    return draws >> (sample * layout::DRAW_BITS) & ((1u << layout::DRAW_BITS) - 1);
}
GPUVM_DEVICE bool duels(const layout::RegionDesc* region) { return region->flags & layout::REGION_DUELS; }
GPUVM_DEVICE u32 block_shift_of(const layout::RegionDesc* region) {
    return ld_weak(&head_of(reinterpret_cast<u64*>(region->words))->block_shift);
}
// Whether the page is in a sample of a region that duels.
GPUVM_DEVICE bool in_sample(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    return duels(region) && sample_of(page_of(id), block_shift_of(region)) != kNoSample;
}

// Pages of a region that duels displace those of their own sample alone, so that each rule keeps its part of the
// frames. Whether the page `for_page`, or 0, may take the frame of the page `id`.
GPUVM_DEVICE bool may_displace(const layout::VmDesc* vm, u64 for_page, u64 id) {
    if (!kDirect || !for_page || region_number(for_page) != region_number(id)) return true;
    const layout::RegionDesc* region = region_of(vm, id);
    if (!duels(region)) return true;
    u32 shift = block_shift_of(region);
    return sample_of(page_of(id), shift) == sample_of(page_of(for_page), shift);
}

// The page `id` has left its frame for the page `for_page`, or 0 for any. A function of its own: in the clock's loop it
// would cost registers.
GPUVM_NOINLINE void count_displaced(const layout::VmDesc* vm, u64 for_page, u64 id) {
    bool own = for_page && region_number(for_page) == region_number(id) && duels(region_of(vm, id));
    if (own) count(&counters(vm)->displacements, 1);
}

// A page of the same sample leaves its frame, which goes to `*direct` where that is given, else to the pool. The clock
// of a sample goes over its pages, since few frames are its own. False when none of a window can leave.
GPUVM_NOINLINE bool turn_sample(const layout::VmDesc* vm, u64 id, u32 window, u32* direct) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* words = reinterpret_cast<u64*>(region->words);
    u32 shift = block_shift_of(region), sample = sample_of(page_of(id), shift);
    u32 blocks = static_cast<u32>((region->pages + (1u << shift) - 1) >> shift);
    u32 block = atom_add_relaxed_gpu(&head_of(words)->hands[sample], window) % blocks;
    for (u32 n = 0; n < window && n < blocks; ++n, block = block + 1 < blocks ? block + 1 : 0) {
        u64 page = page_of_sample(block, sample, shift);
        if (page >= region->pages) continue;
        u64 seen = ld_relaxed_gpu(words + page);
        // What duels is read-only: no page is dirty.
        if (!is_resident(seen) || pins_of(seen)) continue;
        if (seen & layout::REFERENCED_BIT) {
            atom_and_relaxed_gpu(words + page, ~layout::REFERENCED_BIT);
            continue;
        }
        if (!try_evict(words + page, seen)) continue;
        u32 frame = frame_of(seen);
        frame_left(vm, frame);
        count(&counters(vm)->displacements, 1);
        if (direct)
            *direct = frame;
        else
            pool_give(vm, frame);
        return true;
    }
    return false;
}

// The samples' costs fade, and the cheapest rule holds if it is cheaper than first come by a tenth, since samples are
// small. Several lanes may decide at a time: a cost that changed meanwhile fades another time.
GPUVM_NOINLINE void decide(layout::TableHead* head) {
    u64 costs[layout::PLACEMENT_RULES];
    u32 best = layout::RULE_FIRST_COME;
    for (u32 rule = 0; rule < layout::PLACEMENT_RULES; ++rule) {
        u64 cost = costs[rule] = ld_relaxed_gpu(&head->cost[rule]);
        atom_cas_relaxed_gpu(&head->cost[rule], cost, cost - (cost * 5 >> 4));
        if (cost < costs[best]) best = rule;
    }
    if (costs[best] * 32 >= costs[layout::RULE_FIRST_COME] * 29) best = layout::RULE_FIRST_COME;
    st_relaxed_gpu(&head->rule, best);
    st_relaxed_gpu(&head->draws, draws_by(best));
}

// A page of a sample has cost so much. Who passes the end of a period decides: nobody takes a lock.
GPUVM_DEVICE void spend(layout::TableHead* head, u32 sample, u64 cost) {
    atom_add_relaxed_gpu(&head->cost[sample], cost);
    u64 before = atom_add_relaxed_gpu(&head->spent, cost);
    if ((before ^ (before + cost)) >> ld_weak(&head->period_shift)) decide(head);
}

// A page of a region that duels was fetched by a fault.
GPUVM_NOINLINE void spend_on_duel(layout::Counters* c, layout::TableHead* head, u64 page, u32 page_shift) {
    // Reads are drawn once one has found no frame free.
    if (ld_relaxed_gpu(&head->draws)) count(&c->admissions, 1);
    u32 sample = sample_of(page, ld_weak(&head->block_shift));
    if (sample != kNoSample) spend(head, sample, 1ull << (page_shift - kChunkShift));
}

// A page was fetched by a fault.
GPUVM_DEVICE void spend_on_fetch(layout::Counters* c, u64* word, u64 page, u32 page_shift) {
    if (!kDirect) return;
    layout::TableHead* head = head_of(word - page);
    // No blocks: the region does not duel.
    if (ld_weak(&head->block_shift)) spend_on_duel(c, head, page, page_shift);
}

// The frame field of an absent page's word counts what reads at its home have cost: 20 bits of chunks, and in which of
// 256 epochs. The count halves with each epoch, and a claim forgets it.
constexpr u64 kUseMask = (1ull << 20) - 1;
GPUVM_DEVICE u32 epoch_of(const layout::TableHead* head) {
    return static_cast<u32>(ld_relaxed_gpu(&head->spent) >> (ld_weak(&head->period_shift) + 2)) & 0xff;
}
GPUVM_DEVICE u64 use_of(u64 word, u32 epoch) {
    u32 field = frame_of(word), age = (epoch - (field >> 20)) & 0xff;
    return age < 20 ? (field & kUseMask) >> age : 0;
}
// False when the word has changed meanwhile. Relaxed: a hint, on a word that stays absent.
GPUVM_DEVICE bool note_use(u64* word, u64 seen, u64 use, u32 epoch) {
    u64 field = (use < kUseMask ? use : kUseMask) | static_cast<u64>(epoch) << 20;
    u64 next = (seen & ~layout::FRAME_MASK) | field << layout::FRAME_SHIFT;
    return atom_cas_relaxed_gpu(word, seen, next) == seen;
}

}  // namespace detail
}  // namespace gpuvm
