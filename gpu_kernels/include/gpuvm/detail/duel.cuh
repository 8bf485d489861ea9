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
// Decisions of each round for which no sample rests.
constexpr u32 kTurnsAwake = 3;
// A rule holds when its sample costs less than this many 32nds of what the sample of first come costs.
constexpr u64 kLeastByFetching = 29;
constexpr u64 kLeastByCounting = 22;
// Lanes are spread from this many pages on, when half of them have a page for themselves.
constexpr int kSpreadPages = 8;

GPUVM_DEVICE layout::TableHead* head_of(u64* words) { return reinterpret_cast<layout::TableHead*>(words) - 1; }

GPUVM_DEVICE u64 sampling_of(const layout::TableHead* head) { return ld_relaxed_gpu(&head->sampling); }
GPUVM_DEVICE u32 block_shift_of(u64 sampling) {
    return static_cast<u32>(sampling >> layout::SAMPLING_BLOCK_SHIFT) & 0xff;
}
// The block's size never changes: a lane may store what it read of it. What several lanes store at a time is a hint.
GPUVM_DEVICE void set_draws(layout::TableHead* head, u64 sampling, u32 draws) {
    st_relaxed_gpu(&head->sampling, (sampling >> 32 << 32) | draws);
}
// The rule that pages of the sample follow now.
GPUVM_DEVICE u32 rule_of(const layout::TableHead* head, u64 sampling, u32 sample) {
    bool rests = sample == layout::RULE_FETCH && sampling & layout::SAMPLING_RESTS_BIT;
    return sample == kNoSample || rests ? ld_relaxed_gpu(&head->rule) : sample;
}

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
// What a field of the head's draws is where pages are fetched.
GPUVM_DEVICE u32 draw_fetch(u32 page_shift) {
    return page_shift > layout::SMALL_PAGE_SHIFT ? layout::DRAW_ALL : layout::DRAW_FETCH;
}
// The head's draws while frames are free: all pages are fetched, but for scattered reads (DRAWS_COUNTED).
GPUVM_DEVICE u32 draws_free(u32 page_shift) { return draw_fetch(page_shift) * layout::DRAWS_ALIKE; }
GPUVM_DEVICE bool is_free(u32 draws, u32 page_shift) {
    return draws == draws_free(page_shift) || draws == layout::DRAWS_COUNTED;
}
// The head's draws while no frame is free, when pages of no sample follow `rule`.
GPUVM_DEVICE u32 draws_by(u64 sampling, u32 rule, u32 page_shift) {
    u32 fetch = draw_fetch(page_shift);
    u32 others = rule == layout::RULE_FETCH       ? fetch
                 : rule == layout::RULE_FREQUENCY ? layout::DRAW_MANY
                                                  : layout::DRAW_FEW;
    // Few, whatever others do: fields that are all alike stand for free frames.
    u32 rested = sampling & layout::SAMPLING_RESTS_BIT ? layout::DRAW_FEW : fetch;
    return layout::DRAW_MANY << layout::RULE_FIRST_COME * layout::DRAW_BITS |
           rested << layout::RULE_FETCH * layout::DRAW_BITS |
           layout::DRAW_MANY << layout::RULE_FREQUENCY * layout::DRAW_BITS | others << kNoSample * layout::DRAW_BITS;
}
// Of the reads of a page, which ones ask: a mask for their times.
GPUVM_DEVICE u32 draw_of(u32 draws, u32 sample) {
    return draws >> (sample * layout::DRAW_BITS) & ((1u << layout::DRAW_BITS) - 1);
}
GPUVM_DEVICE bool duels(const layout::RegionDesc* region) { return region->flags & layout::REGION_DUELS; }
GPUVM_DEVICE u32 block_shift_of(const layout::RegionDesc* region) {
    return block_shift_of(sampling_of(head_of(reinterpret_cast<u64*>(region->words))));
}
// Whether the page is in a sample of a region that duels.
GPUVM_DEVICE bool in_sample(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    return duels(region) && sample_of(page_of(id), block_shift_of(region)) != kNoSample;
}

// Each sample keeps its part of the frames: its pages are displaced by those of their own sample alone. Whether the
// page `for_page`, which is in none, or 0 for any, may take the frame of the page `id`.
GPUVM_DEVICE bool may_displace(const layout::VmDesc* vm, u64 for_page, u64 id) {
    return !kDirect || !for_page || !in_sample(vm, id);
}

// Whether the page `id`, which is to be fetched, takes the frame of another page of its sample first. If it did so
// afterwards a sample of pages that many lanes want would have a frame for each of them. One that follows the frequency
// rule has displaced a page before.
GPUVM_DEVICE bool swaps(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    if (!kDirect || !duels(region)) return false;
    layout::TableHead* head = head_of(reinterpret_cast<u64*>(region->words));
    u64 sampling = sampling_of(head);
    u32 sample = sample_of(page_of(id), block_shift_of(sampling));
    return sample != kNoSample && !is_free(static_cast<u32>(sampling), vm->page_shift) &&
           rule_of(head, sampling, sample) != layout::RULE_FREQUENCY;
}

// The page `id` has left its frame for the page `for_page`, or 0 for any. A function of its own: in the clock's loop it
// would cost registers.
GPUVM_NOINLINE void count_displaced(const layout::VmDesc* vm, u64 for_page, u64 id) {
    bool own = for_page && region_number(for_page) == region_number(id) && duels(region_of(vm, id));
    if (own) count(&counters(vm)->displacements, 1);
}

// The page `id` took a frame of a pool that runs low; `enough`: it still has half of what it should have. From now on
// none is free for the page's region; for one that duels, whose pages may displace others later, when it has not. True
// when the page is to displace none.
GPUVM_NOINLINE bool note_full(const layout::VmDesc* vm, u64 id, bool enough) {
    u32 flags = region_of(vm, id)->flags;
    if (!(flags & layout::REGION_FETCH_WHILE_FREE)) return false;
    layout::TableHead* head = head_of(reinterpret_cast<u64*>(region_of(vm, id)->words));
    u64 sampling = sampling_of(head);
    bool competes = flags & layout::REGION_DUELS, free = is_free(static_cast<u32>(sampling), vm->page_shift);
    if (free && !(competes && enough))
        set_draws(head, sampling,
                  competes ? draws_by(sampling, ld_relaxed_gpu(&head->rule), vm->page_shift) : layout::DRAWS_AT_HOME);
    return enough && (free || !competes);
}

// The samples' costs fade, and the cheapest rule holds if it is cheaper than first come by a tenth or more, since
// samples are small. A sample that fetches may cost many times its share of all pages: when that is more than twice
// what the best costs it rests for the other decisions of a round, and goes into the next one with a cost that fades
// before it can be the best again. Several lanes may decide at a time: a cost that changed meanwhile fades another
// time.
GPUVM_NOINLINE void decide(layout::TableHead* head, u32 page_shift) {
    u64 costs[layout::PLACEMENT_RULES], sampling = sampling_of(head), rests = sampling & layout::SAMPLING_RESTS_BIT;
    u32 best = layout::RULE_FIRST_COME, turn = sampling >> layout::SAMPLING_TURN_SHIFT & (layout::SAMPLING_TURNS - 1);
    for (u32 rule = 0; rule < layout::PLACEMENT_RULES; ++rule) {
        u64 cost = costs[rule] = ld_relaxed_gpu(&head->cost[rule]);
        if (rests && rule == layout::RULE_FETCH) continue;
        atom_cas_relaxed_gpu(&head->cost[rule], cost, cost - (cost * 5 >> 4));
        if (cost < costs[best]) best = rule;
    }
    // Nothing adds to the cost of a sample that rests.
    if (rests) st_relaxed_gpu(&head->cost[layout::RULE_FETCH], costs[best] * 5 / 2);
    if (turn < kTurnsAwake)
        rests = 0;
    else if (!rests && costs[layout::RULE_FETCH] > 2 * costs[best])
        rests = layout::SAMPLING_RESTS_BIT;
    // Counting reads takes the lanes' time, too: about a third of what reads in place take.
    u64 least = best == layout::RULE_FREQUENCY ? kLeastByCounting : kLeastByFetching;
    if (costs[best] * 32 >= costs[layout::RULE_FIRST_COME] * least) best = layout::RULE_FIRST_COME;
    st_relaxed_gpu(&head->rule, best);
    u64 next = (turn + 1) & (layout::SAMPLING_TURNS - 1);
    sampling = static_cast<u64>(block_shift_of(sampling)) << layout::SAMPLING_BLOCK_SHIFT | rests |
               next << layout::SAMPLING_TURN_SHIFT;
    // Frames that are free are taken whatever the samples cost.
    u32 draws = static_cast<u32>(sampling_of(head));
    set_draws(head, sampling, is_free(draws, page_shift) ? draws : draws_by(sampling, best, page_shift));
}

// A page of a sample has cost so much. Who passes the end of a period decides: nothing takes a lock.
GPUVM_DEVICE void spend(layout::TableHead* head, u32 sample, u64 cost, u32 page_shift) {
    if (sample == layout::RULE_FETCH && sampling_of(head) & layout::SAMPLING_RESTS_BIT) return;
    atom_add_relaxed_gpu(&head->cost[sample], cost);
    u64 before = atom_add_relaxed_gpu(&head->spent, cost);
    if ((before ^ (before + cost)) >> ld_weak(&head->period_shift)) decide(head, page_shift);
}

GPUVM_NOINLINE void spend_on_duel(layout::Counters* c, layout::TableHead* head, u64 page, u32 page_shift) {
    u64 sampling = sampling_of(head);
    if (!is_free(static_cast<u32>(sampling), page_shift)) count(&c->admissions, 1);
    u32 sample = sample_of(page, block_shift_of(sampling));
    if (sample != kNoSample) spend(head, sample, 1ull << (page_shift - kChunkShift), page_shift);
}

// A page was fetched by a fault.
GPUVM_DEVICE void spend_on_fetch(layout::Counters* c, u64* word, u64 page, u32 page_shift) {
    if (!kDirect) return;
    layout::TableHead* head = head_of(word - page);
    // No blocks: the region does not duel.
    if (block_shift_of(sampling_of(head))) spend_on_duel(c, head, page, page_shift);
}

// The frame field of an absent page's entry counts what reads at its home have cost: 20 bits of chunks, and in which of
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
