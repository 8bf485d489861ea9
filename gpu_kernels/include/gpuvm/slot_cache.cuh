// A cache of records: slots in GPU memory for records of tables in home memory, which calls fill without the host.
//
// A call is a few kernels in stream order. Of up to a few thousand ids one block plans all of it; else each step below
// is a kernel. The ends of kernels, or of the block's steps, order what one step stores before what the next one loads.
//
//   claim    ids find their records' slots and mark them as used by this call; of each other record one id enters the
//            list of misses
//   survey   slots that this call does not use, and that are not held, are counted by class
//   choose   of which classes slots leave
//   pick     slots that leave lose their record, and get one of the misses
//   give_out ids of misses find their slots
//   fetch    misses are copied, and each is entered in the index when all of it is in its slot
//
// One call of a cache runs at a time. A thread that reads frames or the index is behind a call, or ahead of it, by its
// stream.
#pragma once

#include "detail/platform.cuh"

namespace gpuvm {
namespace slots {

using namespace detail;

using i32 = int;
using SlotCache = layout::SlotCacheDesc;

constexpr u32 kAllLanes = ~0u;
// The class of a slot that stays, and that of one which has no record.
constexpr u32 kStays = layout::SLOT_BUCKETS;
constexpr u32 kFree = layout::SLOT_BUCKETS - 1;
// An id that stands for none, and the slot of such an id, or of one that got none; what stands in place of a slot's
// number within a call until it is known.
constexpr i32 kPadding = -1;
constexpr i32 kPending = -2;
// Ids, and slots, that a thread looks at at a time: their loads are under way together.
constexpr u32 kIdsAtOnce = 4;
constexpr u32 kSlotsAtOnce = 8;
constexpr u32 kCountBits = 16;
// What `busy` counts: calls by these, and blocks that hold slots or release them by ones.
constexpr u32 kACall = 1u << 24;

// What of a cache is told to the host, by its word.
enum SlotTold : u32 { kNoSuchRecord, kTooManyRecords, kCallsBeside, kNotHeld };

// Ids of 32 bits, or of 64 where they are wide, and where their slots' numbers go. A call that is `ahead` of those that
// need the records fetches what there is room for.
struct SlotCall {
    const void* ids;
    u64 wide;
    u64 count;
    i32* out;
    u64 ahead;
};

// The threads that work on a step, whole blocks of whole warps.
struct SlotTeam {
    u64 rank;
    u64 size;
};

// Shared memory of a block by which its threads take numbers, zero at first.
struct SlotNumbers {
    u32 count;
    u32 base;
};

GPUVM_DEVICE SlotTeam block_team() { return {threadIdx.x, blockDim.x}; }
GPUVM_DEVICE SlotTeam grid_team() {
    return {blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, gridDim.x * static_cast<u64>(blockDim.x)};
}

GPUVM_DEVICE u32* index_of(const SlotCache& c, u64 record) { return reinterpret_cast<u32*>(c.index) + record; }
GPUVM_DEVICE u32* record_of(const SlotCache& c, u32 slot) { return reinterpret_cast<u32*>(c.records) + slot; }
GPUVM_DEVICE u64* used_of(const SlotCache& c, u32 slot) { return reinterpret_cast<u64*>(c.used) + slot; }
GPUVM_DEVICE u64* came_of(const SlotCache& c, u32 slot) { return reinterpret_cast<u64*>(c.came) + slot; }
GPUVM_DEVICE u32* held_of(const SlotCache& c, u32 slot) { return reinterpret_cast<u32*>(c.held) + slot; }
GPUVM_DEVICE layout::SlotMiss* miss_of(const SlotCache& c, u32 n) {
    return reinterpret_cast<layout::SlotMiss*>(c.misses) + n;
}
GPUVM_DEVICE layout::SlotCacheState* state_of(const SlotCache& c) {
    return reinterpret_cast<layout::SlotCacheState*>(c.state);
}
GPUVM_DEVICE void tell(const SlotCache& c, SlotTold what, u64 value) {
    st_relaxed_sys(reinterpret_cast<u64*>(c.told) + what, value);
}

GPUVM_DEVICE i64 id_at(const SlotCall& call, u64 k) {
    return call.wide ? static_cast<const i64*>(call.ids)[k] : static_cast<const i32*>(call.ids)[k];
}
GPUVM_DEVICE bool has_slot(u32 entry) { return entry != layout::SLOT_NONE && !(entry & layout::SLOT_CLAIMED_BIT); }
// Slots with this mark of use stay: of an ensuring call its own number, and of one ahead that of the last such call.
GPUVM_DEVICE u64 kept_by(const SlotCache& c, const SlotCall& call) {
    return ld_relaxed_gpu(&state_of(c)->epoch) - call.ahead;
}

// The first of `mine` numbers from a counter. The whole block comes. Where the counter is not the block's own, `block`
// is shared memory: atomics of each warp on one word of the GPU's memory would be in each other's way.
GPUVM_DEVICE u32 take_numbers(u32* counter, u32 mine, SlotNumbers* block) {
    u32 lane = lane_id(), through = mine, first = 0;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 before = __shfl_up_sync(kAllLanes, through, step);
        if (lane >= step) through += before;
    }
    if (lane == 31 && through) first = atomicAdd(block ? &block->count : counter, through);
    first = __shfl_sync(kAllLanes, first, 31) + through - mine;
    if (!block) return first;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 all = block->count;
        block->base = all ? atomicAdd(counter, all) : 0;
        block->count = 0;
    }
    __syncthreads();
    return first + block->base;
}

// Uses are counted for as many records as there are counts, by a hash, and halved now and then: each count has the era
// of its last use. They are hints: one that is lost, or is of an era that came round, costs a miss at most.
GPUVM_DEVICE u32 era_of(const SlotCache& c) {
    const auto* state = state_of(c);
    return static_cast<u32>((ld_relaxed_gpu(&state->hits) + ld_relaxed_gpu(&state->misses)) >> c.era_shift) & 0xffff;
}
GPUVM_DEVICE u32* uses_of(const SlotCache& c, u32 record) {
    return reinterpret_cast<u32*>(c.uses) + (record * 0x9e3779b1u >> 5 & c.uses_mask);
}
GPUVM_DEVICE u32 uses_by(u32 word, u32 era) {
    u32 halved = (era - (word >> kCountBits)) & 0xffff;
    return halved < kCountBits ? (word & 0xffff) >> halved : 0;
}
GPUVM_DEVICE void count_use(const SlotCache& c, u32 record, u32 era) {
    u32* uses = uses_of(c, record);
    u32 count = uses_by(ld_relaxed_gpu(uses), era);
    st_relaxed_gpu(uses, era << kCountBits | (count < 0xffff ? count + 1 : count));
}

// One id: what stands in its place in the output, and whether its record has just become a miss of this id's.
GPUVM_DEVICE i32 find_slot(const SlotCache& c, i64 id, u32 entry, u64 keeps, bool* first) {
    if (id == kPadding) return kPadding;
    if (static_cast<u64>(id) >= c.record_count) {
        tell(c, kNoSuchRecord, static_cast<u64>(id));
        return kPadding;
    }
    if (has_slot(entry)) {
        // From here on it stays: those who look for slots that leave are behind the end of this step.
        st_relaxed_gpu(used_of(c, entry - 1), keeps);
        return static_cast<i32>(entry - 1);
    }
    // One of all ids of the record finds it as it was.
    if (entry == layout::SLOT_NONE)
        *first = atom_cas_relaxed_gpu(index_of(c, id), u32{layout::SLOT_NONE}, u32{layout::SLOT_CLAIMING}) ==
                 layout::SLOT_NONE;
    return kPending;
}

// Returns which of the thread's ids are misses, a bit each, of the first 32.
GPUVM_DEVICE u32 claim(const SlotCache& c, layout::SlotCounts* counts, SlotNumbers* block, const SlotCall& call,
                       SlotTeam team) {
    u64 keeps = kept_by(c, call);
    u32 hits = 0, missed = 0, round = 0, era = c.uses ? era_of(c) : 0;
    // All threads of a block go round as often.
    for (u64 base = team.rank - threadIdx.x; base < call.count; base += kIdsAtOnce * team.size) {
        i64 id[kIdsAtOnce];
        u32 entry[kIdsAtOnce], firsts = 0;
#pragma unroll
        for (u32 n = 0; n < kIdsAtOnce; ++n) {
            u64 k = base + threadIdx.x + n * team.size;
            id[n] = k < call.count ? id_at(call, k) : i64{kPadding};
        }
#pragma unroll
        for (u32 n = 0; n < kIdsAtOnce; ++n)
            entry[n] = static_cast<u64>(id[n]) < c.record_count ? ld_relaxed_gpu(index_of(c, id[n])) : u32{0};
#pragma unroll
        for (u32 n = 0; n < kIdsAtOnce; ++n) {
            u64 k = base + threadIdx.x + n * team.size;
            bool first = false;
            i32 slot = find_slot(c, id[n], entry[n], keeps, &first);
            hits += __popc(__ballot_sync(kAllLanes, slot >= 0));
            firsts |= static_cast<u32>(first) << n;
            if (slot == kPending && round < 8) missed |= 1u << (round * kIdsAtOnce + n);
            if (c.uses && slot != kPadding) count_use(c, static_cast<u32>(id[n]), era);
            if (k < call.count && call.out) call.out[k] = slot;
        }
        u32 miss = take_numbers(&counts->misses, static_cast<u32>(__popc(firsts)), block);
#pragma unroll
        for (u32 n = 0; n < kIdsAtOnce; ++n) {
            if (!(firsts >> n & 1)) continue;
            if (miss < c.slot_count) {
                miss_of(c, miss)->record = static_cast<u32>(id[n]);
                st_relaxed_gpu(index_of(c, id[n]), layout::SLOT_CLAIMED_BIT | miss);
            }
            ++miss;
        }
        ++round;
    }
    if (lane_id() == 0 && hits && !call.ahead) atom_add_relaxed_gpu(&state_of(c)->hits, u64{hits});
    return missed;
}

// Exact up to 15, then eight steps an octave.
GPUVM_DEVICE u32 class_of_age(u64 age) {
    if (age < 16) return static_cast<u32>(age);
    u32 octave = 63 - static_cast<u32>(__clzll(static_cast<i64>(age)));
    u32 found = 8 * (octave - 2) + (static_cast<u32>(age >> (octave - 3)) & 7);
    return found < kFree ? found : kFree - 1;
}
// Sixteen steps of how seldom a record is used, and within each sixteen of its age.
GPUVM_DEVICE u32 class_of_uses(u32 uses, u64 age) {
    u32 level = uses, octave = 31 - static_cast<u32>(__clz(static_cast<int>(uses | 1)));
    if (uses >= 4) level = 2 * octave + (uses >> (octave - 1) & 1);
    u32 aged = 64 - static_cast<u32>(__clzll(static_cast<i64>(age)));
    u32 found = (15 - (level < 15 ? level : 15)) * 16 + (aged < 15 ? aged : 15);
    return found < kFree ? found : kFree - 1;
}

// How soon a slot leaves, which was used last by the call `used`: those of the highest class first.
GPUVM_DEVICE u32 class_of_slot(const SlotCache& c, u32 slot, u64 used, u64 keeps, u32 rule, u32 era) {
    if (!used) return kFree;
    if (rule == layout::SLOTS_FIRST_COME) return kFree - 1 - class_of_age(keeps - ld_relaxed_gpu(came_of(c, slot)));
    if (rule == layout::SLOTS_FREQUENCY && c.uses) {
        u32 record = ld_relaxed_gpu(record_of(c, slot)) - 1;
        return class_of_uses(uses_by(ld_relaxed_gpu(uses_of(c, record)), era), keeps - used);
    }
    return class_of_age(keeps - used);
}
// Of some slots at a time, the thread's own from `base` on.
GPUVM_DEVICE void classes_of(const SlotCache& c, u64 base, u64 keeps, SlotTeam team, u32* its) {
    u32 rule = ld_relaxed_gpu(&state_of(c)->rule), era = c.uses ? era_of(c) : 0, held[kSlotsAtOnce];
    u64 used[kSlotsAtOnce];
#pragma unroll
    for (u32 n = 0; n < kSlotsAtOnce; ++n) {
        u64 slot = base + threadIdx.x + n * team.size;
        used[n] = slot < c.slot_count ? ld_relaxed_gpu(used_of(c, static_cast<u32>(slot))) : keeps;
        held[n] = slot < c.slot_count ? ld_relaxed_gpu(held_of(c, static_cast<u32>(slot))) : 0;
    }
#pragma unroll
    for (u32 n = 0; n < kSlotsAtOnce; ++n) {
        u64 slot = base + threadIdx.x + n * team.size;
        bool stays = used[n] == keeps || held[n];
        its[n] = stays ? kStays : class_of_slot(c, static_cast<u32>(slot), used[n], keeps, rule, era);
    }
}

// Counts slots by class in `histogram`, shared memory that was zeroed.
GPUVM_DEVICE void survey(const SlotCache& c, u32* histogram, const SlotCall& call, SlotTeam team) {
    u64 keeps = kept_by(c, call);
    for (u64 base = team.rank - threadIdx.x; base < c.slot_count; base += kSlotsAtOnce * team.size) {
        u32 its[kSlotsAtOnce];
        classes_of(c, base, keeps, team, its);
#pragma unroll
        for (u32 n = 0; n < kSlotsAtOnce; ++n) {
            if (base + n * team.size >= c.slot_count) break;
            // Most neighbours are of one class: they are added together.
            u32 peers = __match_any_sync(kAllLanes, its[n]);
            if (its[n] != kStays && lane_id() == static_cast<u32>(__ffs(peers) - 1))
                atomicAdd(&histogram[its[n]], static_cast<u32>(__popc(peers)));
        }
    }
}

// Finds of which classes slots leave. By the lanes of one warp.
GPUVM_DEVICE void choose(layout::SlotCounts* counts, const u32* histogram) {
    constexpr u32 each = layout::SLOT_BUCKETS / 32;
    u32 lane = lane_id(), top = layout::SLOT_BUCKETS - 1 - lane * each, own = 0;
    for (u32 n = 0; n < each; ++n) own += histogram[top - n];
    u32 through = own;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 before = __shfl_up_sync(kAllLanes, through, step);
        if (lane >= step) through += before;
    }
    u32 all = __shfl_sync(kAllLanes, through, 31), misses = counts->misses, served = misses < all ? misses : all;
    u32 above = through - own;
    if (lane == 0) {
        counts->served = served;
        counts->free = own ? histogram[kFree] : 0;
    }
    if (above >= served || served > through) return;
    u32 threshold = top;
    for (; above + histogram[threshold] < served; --threshold) above += histogram[threshold];
    counts->threshold = threshold;
    counts->above = above;
}

// A slot leaves its record, if it has one, for a miss.
GPUVM_DEVICE void give_slot(const SlotCache& c, u32 slot, u32 number, u64 keeps) {
    layout::SlotMiss* miss = miss_of(c, number);
    u32 old = ld_relaxed_gpu(record_of(c, slot));
    // Nothing finds the old record here any more; its bytes are overwritten behind the end of this step.
    if (old) st_relaxed_gpu(index_of(c, old - 1), u32{layout::SLOT_NONE});
    st_relaxed_gpu(record_of(c, slot), miss->record + 1);
    st_relaxed_gpu(used_of(c, slot), keeps);
    st_relaxed_gpu(came_of(c, slot), keeps);
    miss->slot = slot;
    miss->pieces_left = c.pieces;
}

GPUVM_DEVICE void pick(const SlotCache& c, layout::SlotCounts* counts, SlotNumbers* block, const SlotCall& call,
                       SlotTeam team) {
    u64 keeps = kept_by(c, call);
    u32 threshold = counts->threshold, above = counts->above, served = counts->served;
    if (!served) return;
    for (u64 base = team.rank - threadIdx.x; base < c.slot_count; base += kSlotsAtOnce * team.size) {
        u32 its[kSlotsAtOnce], go = 0, may_go = 0;
        classes_of(c, base, keeps, team, its);
#pragma unroll
        for (u32 n = 0; n < kSlotsAtOnce; ++n) {
            go |= static_cast<u32>(its[n] != kStays && its[n] > threshold) << n;
            may_go |= static_cast<u32>(its[n] == threshold) << n;
        }
        u32 sure = take_numbers(&counts->taken_above, static_cast<u32>(__popc(go)), block);
        u32 perhaps = above + take_numbers(&counts->taken_at, static_cast<u32>(__popc(may_go)), block);
        for (u32 n = 0; n < kSlotsAtOnce; ++n) {
            if (!((go | may_go) >> n & 1)) continue;
            u32 number = go >> n & 1 ? sure++ : perhaps++;
            if (number < served) give_slot(c, static_cast<u32>(base + threadIdx.x + n * team.size), number, keeps);
        }
    }
}

// The slot of a record that was missed; none where all slots are needed, and then it is no longer claimed.
GPUVM_DEVICE i32 slot_of_miss(const SlotCache& c, const layout::SlotCounts* counts, u64 record) {
    u32 entry = ld_relaxed_gpu(index_of(c, record));
    if (has_slot(entry)) return static_cast<i32>(entry - 1);
    u32 miss = entry & ~layout::SLOT_CLAIMED_BIT;
    if (entry != layout::SLOT_NONE && miss < counts->served) return static_cast<i32>(miss_of(c, miss)->slot);
    st_relaxed_gpu(index_of(c, record), u32{layout::SLOT_NONE});
    return kPadding;
}

GPUVM_DEVICE void give_out(const SlotCache& c, const layout::SlotCounts* counts, const SlotCall& call, u64 k) {
    u64 id = static_cast<u64>(id_at(call, k));
    if (id >= c.record_count) return;
    i32 slot = slot_of_miss(c, counts, id);
    if (call.out) call.out[k] = slot;
}
GPUVM_DEVICE void give_out_all(const SlotCache& c, const layout::SlotCounts* counts, const SlotCall& call,
                               SlotTeam team) {
    for (u64 k = team.rank; k < call.count; k += team.size)
        if (!call.out || call.out[k] == kPending) give_out(c, counts, call, k);
}

// Copies part `piece` of a record to its slot, by the lanes of a group, of which this is number `own`.
GPUVM_DEVICE void copy_piece(const layout::SlotTable& table, u32 record, u32 slot, u64 piece, u32 own) {
    constexpr u32 each = layout::SLOT_CHUNKS_A_LANE;
    u64 chunks = table.record_bytes / sizeof(pair64), lanes = u64{1} << table.lanes_shift;
    const pair64* from = reinterpret_cast<const pair64*>(table.home) + record * chunks;
    pair64* to = reinterpret_cast<pair64*>(table.frames) + slot * chunks;
    u64 first = piece * each * lanes + own;
    pair64 kept[each];
    // Nothing writes the home while calls run: weak loads find what is there. All are under way before the first store.
#pragma unroll
    for (u32 n = 0; n < each; ++n)
        if (first + n * lanes < chunks) kept[n] = ld_weak(from + first + n * lanes);
#pragma unroll
    for (u32 n = 0; n < each; ++n)
        if (first + n * lanes < chunks) st_relaxed_gpu_v2(to + first + n * lanes, kept[n]);
}

// Enters a miss in the index, once all parts of it are in the slot. By one lane of the group, behind the others'
// stores.
GPUVM_DEVICE void publish(const SlotCache& c, layout::SlotMiss* miss) {
    if (c.pieces > 1) {
        // Release of this part, and acquire of those before it by the thread that is last.
        fence_acq_rel_gpu();
        if (atom_add_relaxed_gpu(&miss->pieces_left, ~0u) != 1) return;
        fence_acq_rel_gpu();
    }
    // Release: who finds the entry finds the bytes.
    st_release_gpu(index_of(c, miss->record), miss->slot + 1);
}

GPUVM_DEVICE void fetch(const SlotCache& c, SlotTeam team) {
    u64 served = ld_weak(&state_of(c)->counts.served);
    for (u32 n = 0; n < c.table_count; ++n) {
        const layout::SlotTable& table = c.tables[n];
        u32 lanes = 1u << table.lanes_shift, own = lane_id() & (lanes - 1);
        u32 group = (lanes == 32 ? kAllLanes : (1u << lanes) - 1) << (lane_id() & ~(lanes - 1));
        u64 all = served * table.pieces;
        for (u64 at = team.rank >> table.lanes_shift;; at += team.size >> table.lanes_shift) {
            u64 number = table.pieces == 1 ? at : at / table.pieces;
            if (number >= c.slot_count) break;
            layout::SlotMiss* miss = miss_of(c, static_cast<u32>(number));
            // On its way beside the number of misses: of the first it may be none.
            u32 record = ld_weak(&miss->record), slot = ld_weak(&miss->slot);
            if (at >= all) break;
            copy_piece(table, record, slot, at - number * table.pieces, own);
            __syncwarp(group);
            if (own == 0) publish(c, miss);
        }
    }
}

// The call is over when all blocks of its last kernel are: its counts are added, and taken back for the next one.
GPUVM_DEVICE void finish(const SlotCache& c, const SlotCall& call) {
    layout::SlotCacheState* state = state_of(c);
    __syncthreads();
    if (threadIdx.x != 0) return;
    // Release of what this block has done with the counts, and acquire of the others' by the last one.
    fence_acq_rel_gpu();
    if (atom_add_relaxed_gpu(&state->blocks_done, 1u) + 1 != gridDim.x) return;
    fence_acq_rel_gpu();
    layout::SlotCounts& counts = state->counts;
    u64 served = counts.served;
    if (counts.misses > served && !call.ahead) tell(c, kTooManyRecords, counts.misses - served);
    (call.ahead ? state->prefetched : state->misses) += served;
    // Those without a record go first.
    if (counts.free < served && counts.misses) state->evictions += served - counts.free;
    state->bytes += served * c.bytes;
    counts.misses = counts.served = counts.threshold = counts.above = 0;
    counts.taken_above = counts.taken_at = counts.free = 0;
    st_relaxed_gpu(&state->blocks_done, 0u);
    st_relaxed_gpu(&state->surveyed, 0u);
    st_relaxed_gpu(&state->epoch, ld_relaxed_gpu(&state->epoch) + 1 - call.ahead);
    atom_add_relaxed_gpu(&state->busy, 0 - kACall);
}

// A call begins. Others that run beside it are told here, since what ends it counts blocks, which those count, too.
GPUVM_DEVICE void begin(const SlotCache& c, SlotTeam team) {
    if (team.rank == 0 && atom_add_relaxed_gpu(&state_of(c)->busy, kACall) != 0) tell(c, kCallsBeside, 1);
}

// All steps but the fetch, by one block. `counts` and `histogram` are shared memory.
GPUVM_DEVICE void plan(const SlotCache& c, layout::SlotCounts* counts, u32* histogram, const SlotCall& call) {
    SlotTeam team = block_team();
    begin(c, team);
    if (team.rank == 0) *counts = layout::SlotCounts{};
    for (u64 n = team.rank; n < layout::SLOT_BUCKETS; n += team.size) histogram[n] = 0;
    __syncthreads();
    u32 missed = claim(c, counts, nullptr, call, team);
    __syncthreads();
    if (!counts->misses) return;
    survey(c, histogram, call, team);
    __syncthreads();
    if (team.rank < 32) choose(counts, histogram);
    __syncthreads();
    pick(c, counts, nullptr, call, team);
    __syncthreads();
    for (u32 n = 0; n < 32 && missed >> n; ++n)
        if (missed >> n & 1) give_out(c, counts, call, team.rank + n * team.size);
    if (team.rank != 0) return;
    // Not in one assignment: of one from memory to memory the simulator sees the store before the load.
    u32 misses = counts->misses, served = counts->served, free = counts->free;
    layout::SlotCounts& kept = state_of(c)->counts;
    kept.misses = misses, kept.served = served, kept.free = free;
}

// The survey of a call of several blocks, whose last one chooses. `histogram` and `last` are shared memory.
GPUVM_DEVICE void survey_all(const SlotCache& c, u32* histogram, u32* last, const SlotCall& call) {
    layout::SlotCacheState* state = state_of(c);
    if (!state->counts.misses) return;
    for (u32 n = threadIdx.x; n < layout::SLOT_BUCKETS; n += blockDim.x) histogram[n] = 0;
    __syncthreads();
    survey(c, histogram, call, grid_team());
    __syncthreads();
    for (u32 n = threadIdx.x; n < layout::SLOT_BUCKETS; n += blockDim.x)
        if (histogram[n]) atom_add_relaxed_gpu(&state->histogram[n], histogram[n]);
    __syncthreads();
    if (threadIdx.x == 0) {
        // Release of this block's counts, and acquire of the others' by the last one.
        fence_acq_rel_gpu();
        *last = atom_add_relaxed_gpu(&state->surveyed, 1u) + 1 == gridDim.x;
        fence_acq_rel_gpu();
    }
    __syncthreads();
    if (!*last) return;
    for (u32 n = threadIdx.x; n < layout::SLOT_BUCKETS; n += blockDim.x) {
        histogram[n] = ld_relaxed_gpu(&state->histogram[n]);
        st_relaxed_gpu(&state->histogram[n], 0u);
    }
    __syncthreads();
    if (threadIdx.x < 32) choose(&state->counts, histogram);
}

// Slots are held once more, or once less, each as often as it is named. Calls beside are told, which may have counted
// slots before and take them behind.
GPUVM_DEVICE void hold(const SlotCache& c, const i32* slots, u64 count, bool release, SlotTeam team) {
    u32* busy = &state_of(c)->busy;
    if (threadIdx.x == 0 && atom_add_relaxed_gpu(busy, 1u) >= kACall) tell(c, kCallsBeside, 1);
    for (u64 k = team.rank; k < count; k += team.size) {
        u32 slot = static_cast<u32>(slots[k]);
        if (slot >= c.slot_count) continue;
        if (!release) {
            atom_add_relaxed_gpu(held_of(c, slot), 1u);
        } else if (atom_add_relaxed_gpu(held_of(c, slot), ~0u) == 0) {
            atom_add_relaxed_gpu(held_of(c, slot), 1u);
            tell(c, kNotHeld, u64{slot} + 1);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) atom_add_relaxed_gpu(busy, ~0u);
}

// The homes have changed: slots lose their records, but for those that are held, which become misses again.
GPUVM_DEVICE void refresh(const SlotCache& c, SlotNumbers* block, SlotTeam team) {
    begin(c, team);
    for (u64 base = team.rank - threadIdx.x; base < c.slot_count; base += team.size) {
        u32 slot = static_cast<u32>(base + threadIdx.x);
        u32 record = slot < c.slot_count ? ld_relaxed_gpu(record_of(c, slot)) : 0;
        bool stays = record && ld_relaxed_gpu(held_of(c, slot));
        u32 number = take_numbers(&state_of(c)->counts.served, stays, block);
        if (stays) {
            *miss_of(c, number) = layout::SlotMiss{record - 1, slot, c.pieces, 0};
        } else if (record) {
            st_relaxed_gpu(index_of(c, record - 1), u32{layout::SLOT_NONE});
            st_relaxed_gpu(record_of(c, slot), 0u);
            st_relaxed_gpu(used_of(c, slot), u64{0});
        }
    }
}

}  // namespace slots
}  // namespace gpuvm
