// The pool of free frames: a counter of what is available, two tickets, and a ring of exactly as many
// slots as there are frames. A slot is `(2 * lap) << 32` when empty and `(2 * lap + 1) << 32 | frame` when full.
#pragma once

#include "platform.cuh"
#include "region.cuh"
#include "timeline.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kNoFrame = ~0u;
constexpr u32 kClockWindow = 32;  // frames that the clock looks at in one turn; completions that one look reaps

GPUVM_DEVICE layout::PoolState* pool_of(const layout::PoolDesc* pool) {
    return reinterpret_cast<layout::PoolState*>(pool->state);
}
GPUVM_DEVICE layout::PoolState* pool_of(const layout::VmDesc* vm) { return pool_of(&vm->pool); }

// The pool is refilled while it has fewer frames. A plain load: a hint.
GPUVM_DEVICE i64 low_water(const layout::VmDesc* vm) { return static_cast<i64>(pool_of(vm)->frames_low); }

// `value` divided by the number of frames.
GPUVM_DEVICE u64 over_frames(const layout::PoolDesc* pool, u64 value, u32* rest) {
    return divide(value, pool->count, pool->reciprocal, rest);
}

GPUVM_DEVICE u32 next_frame(const layout::PoolDesc* pool, u32 frame) { return frame + 1 < pool->count ? frame + 1 : 0; }

// Reserves up to `want` frames and returns how many: what was not there is given back at once. Relaxed: who takes a
// frame acquires its slot.
GPUVM_DEVICE u32 pool_reserve(const layout::PoolDesc* pool, u32 want) {
    u64* available = &pool_of(pool)->available;
    if (static_cast<i64>(ld_relaxed_gpu(available)) <= 0) return 0;
    i64 old = static_cast<i64>(atom_add_relaxed_gpu(available, 0 - static_cast<u64>(want)));
    u32 granted = old <= 0 ? 0 : old < want ? static_cast<u32>(old) : want;
    if (granted < want) atom_add_relaxed_gpu(available, static_cast<u64>(want - granted));
    return granted;
}
GPUVM_DEVICE void pool_unreserve(const layout::PoolDesc* pool, u32 count) {
    if (count) atom_add_relaxed_gpu(&pool_of(pool)->available, static_cast<u64>(count));
}

// Reserves one frame and returns how many there were, or 0. Relaxed: who takes the frame acquires its slot.
GPUVM_DEVICE u32 pool_reserve_one(const layout::PoolDesc* pool) {
    u64* available = &pool_of(pool)->available;
    i64 old = static_cast<i64>(atom_add_relaxed_gpu(available, ~0ull));
    if (old > 0) return static_cast<u32>(old);
    atom_add_relaxed_gpu(available, 1ull);
    return 0;
}

// Tickets for `count` reserved frames; the caller, or lanes that it tells, then take each of them.
GPUVM_DEVICE u64 pool_tickets(const layout::PoolDesc* pool, u32 count) {
    return atom_add_relaxed_gpu(&pool_of(pool)->head, static_cast<u64>(count));
}

// Takes the frame of a ticket. It waits only for a giver between its ticket and its store.
GPUVM_DEVICE u32 pool_take(const layout::PoolDesc* pool, u64 ticket) {
    u32 place;
    u64 lap = over_frames(pool, ticket, &place);
    u64* slot = reinterpret_cast<u64*>(pool->ring) + place;
    u64 seen;
    // Acquire: whatever the giver did to the frame comes before our use of it.
    while ((seen = ld_acquire_gpu(slot)) >> 32 != static_cast<u32>(2 * lap + 1)) sleep_ns(32);
    // Relaxed: the same word was read before, and no access to one word overtakes another of the same lane.
    st_relaxed_gpu(slot, (2 * lap + 2) << 32);
    return static_cast<u32>(seen);
}

// Gives frames that have no page and that nothing else knows, in the order of a clock over `limit` frames: `first`
// where bit 0 of `which` is set, and so on. They take neighbouring slots of the ring, so who takes frames for
// neighbouring pages gets neighbours, which one copy can fill. It waits only for takers between their tickets and their
// stores.
GPUVM_DEVICE void pool_give_run(const layout::PoolDesc* desc, u32 first, u64 which, u32 limit) {
    layout::PoolState* pool = pool_of(desc);
    u64 given = static_cast<u64>(__popcll(which));
    u64 ticket = atom_add_relaxed_gpu(&pool->tail, given);
    for (; which; which &= which - 1, ++ticket) {
        u32 frame = first + static_cast<u32>(__ffsll(static_cast<long long>(which))) - 1;
        while (frame >= limit) frame -= limit;
        u32 place;
        u64 lap = over_frames(desc, ticket, &place);
        u64* slot = reinterpret_cast<u64*>(desc->ring) + place;
        while (ld_acquire_gpu(slot) >> 32 != static_cast<u32>(2 * lap)) sleep_ns(32);
        // Release: what we did to the frame comes before its next id's use of it.
        st_release_gpu(slot, (2 * lap + 1) << 32 | frame);
    }
    // Relaxed: who sees it early waits at a slot, a moment.
    atom_add_relaxed_gpu(&pool->available, given);
}
GPUVM_DEVICE void pool_give(const layout::PoolDesc* pool, u32 frame) { pool_give_run(pool, frame, 1, ~0u); }

// One frame, or false when the pool is dry.
GPUVM_DEVICE bool pool_pop(const layout::PoolDesc* pool, u32* frame) {
    if (pool_reserve(pool, 1) == 0) return false;
    *frame = pool_take(pool, pool_tickets(pool, 1));
    return true;
}

// The page that a frame belongs to, or 0. Relaxed: a hint that the page's entry confirms.
GPUVM_DEVICE u64* page_in_frame(const layout::VmDesc* vm, u32 frame) {
    return reinterpret_cast<u64*>(vm->frame_pages) + frame;
}

// After an eviction: the frame has no page, and the thread that waits for a frame sees that frames do turn over.
GPUVM_DEVICE void frame_left(const layout::VmDesc* vm, u32 frame) {
    count(&counters(vm)->evictions, 1);
    GPUVM_TIMELINE_ONLY(timeline_eviction(vm, ld_relaxed_gpu(page_in_frame(vm, frame)), frame);)
    st_relaxed_gpu(page_in_frame(vm, frame), u64{0});
    atom_add_relaxed_gpu(&pool_of(vm)->turnover, 1ull);
}

// Gives back a frame that was taken for a page of `region`: a frame of its own stays where it is.
GPUVM_DEVICE void give_frame(const layout::VmDesc* vm, const layout::RegionDesc* region, u32 frame) {
    if (is_pooled(region)) pool_give(&vm->pool, frame);
}

// Whether a page is clean in that frame, and nothing holds it or has used it of late.
GPUVM_DEVICE bool is_idle_in(u64 seen, u32 frame) {
    return is_resident(seen) && frame_of(seen) == frame && pins_of(seen) == 0 &&
           !(seen & (layout::DIRTY_BIT | layout::WRITE_BACK_BIT | layout::REFERENCED_BIT));
}

// A clean page that nothing holds or has used since leaves its frame, after its write-back. True when the frame is
// ours.
GPUVM_DEVICE bool try_leave(const layout::VmDesc* vm, u64* word, u32 frame) {
    u64 seen = ld_relaxed_gpu(word);
    if (!is_idle_in(seen, frame) || !try_evict(word, seen)) return false;
    frame_left(vm, frame);
    return true;
}

}  // namespace detail
}  // namespace gpuvm
