// Fetches over queue pairs that nothing waits for: what kernels ask for ahead, and the pages to which the faults of a
// warp lead. A walk is noticed by faults alone: an access whose page is there does nothing for it.
#pragma once

#include "clock.cuh"

namespace gpuvm {
namespace detail {

// A fetch that nothing waits for. It lies in the lane's local memory, so that its steps cost the kernel few registers.
struct Unawaited {
    layout::ArrayDesc array;
    u64* counter;  // of such fetches
    u32 rung;      // the queue pair whose doorbell is still to be rung, or kNoFrame
    u32 frame;
    u64 page;
    u64 id;
    u32 queue;
    u64 index;

    GPUVM_DEVICE Unawaited(const layout::ArrayDesc& of, u64* c) : array(of), counter(c), rung(kNoFrame) {}
    GPUVM_DEVICE const layout::VmDesc* vm() const { return vm_of(array); }
    GPUVM_DEVICE u64* word() const { return words_of(array) + page; }
    GPUVM_DEVICE bool pooled() const { return !never_evicted(array); }
    GPUVM_DEVICE void ring_last() const {
        if (rung != kNoFrame) ring(Queue(vm(), rung));
    }
};

GPUVM_NOINLINE bool reserve_for(Unawaited* fetch) {
    return try_reserve_any(fetch->vm(), fetch->id, false, 1, &fetch->queue, &fetch->index);
}

// Posts a READ for an absent page, whose word was `seen`, with a token in the word so that anyone can finish it. False
// when no frame, slot or copy is available now.
GPUVM_DEVICE bool post_unawaited(Unawaited* fetch, u64 page, u64 seen) {
    const layout::VmDesc* vm = fetch->vm();
    fetch->page = page;
    fetch->id = page_id(region_of(fetch->array), page);
    fetch->frame = static_cast<u32>(page);
    if (fetch->pooled() && !pool_pop(&vm->pool, &fetch->frame)) return false;
    bool claimed = try_claim(fetch->word(), seen);
    // As if it had been used, so that it is there when somebody comes. A page that is read once would leave at once.
    if (claimed && !is_read_once(region_of(vm, fetch->id))) touch(fetch->word(), seen);
    if (claimed) fetch->id = replica_to_fetch(vm, fetch->id);
    if (!claimed || !fetch->id || !reserve_for(fetch)) {
        if (claimed) revert_claim(fetch->word());
        if (fetch->pooled()) pool_give(&fetch->vm()->pool, fetch->frame);
        return !claimed;
    }
    Queue q(fetch->vm(), fetch->queue);
    u32 token = q.number << layout::TOKEN_SLOT_BITS | (static_cast<u32>(fetch->index & q.desc->mask) + 1);
    // Before the request is written, so that the thread that finishes it takes the token away.
    set_token(fetch->word(), token);
    write_slot(q, fetch->index, layout::REQUEST_FETCH, fetch->id, fetch->frame, 0, token);
    commit(q, fetch->index, 1);
    count(fetch->counter, 1);
    if (fetch->rung != q.number) fetch->ring_last();
    fetch->rung = q.number;
    return true;
}

// How far a walk is read ahead at most: in strides, which are no more than it has come, and in bytes, a page at least.
constexpr u32 kStridesMost = 16;
constexpr u32 kReadAheadBytes = 1 << 20;
// Strides in a row, after the first, from which on a walk is believed.
constexpr u32 kTrusted = 2;
// Longer strides are none.
constexpr u32 kStrideBits = 9;

// What the faults of a lane show of its walk through pages.
struct Walk {
    u32 page;    // of the last fault: the low half of its number
    int stride;  // in pages; 0: not known
    u32 ahead;   // strides from there for which pages are fetched, or were there
    u32 trust;   // faults in a row that came where the stride leads, counted to kStridesMost

    GPUVM_DEVICE explicit Walk(u64 bits)
        : page(static_cast<u32>(bits)),
          stride(static_cast<int>(bits >> 32 << 16) >> 16),
          ahead(static_cast<u32>(bits >> 48) & 0xff),
          trust(static_cast<u32>(bits >> 56)) {}
    GPUVM_DEVICE u64 bits() const {
        return static_cast<u64>(trust) << 56 | static_cast<u64>(ahead) << 48 |
               static_cast<u64>(static_cast<u32>(stride) & 0xffff) << 32 | page;
    }
};

// Where walks of the calling warp near a page are remembered. `lane`: the walk's, where several lanes have one each.
// Others may use the same place: then both are forgotten, no more.
GPUVM_DEVICE layout::StreamState* stream_of(const layout::ArrayDesc& array, u64 page, u32 lane) {
    u32 number =
        (multiprocessor_id() << 11 | warp_slot() << 5 | lane) + static_cast<u32>(page >> kStrideBits) * 0x85ebu;
    return head_of(words_of(array))->streams + (number * 0x9e3779b9u >> 16) % layout::STREAMS;
}

// What the fault of a lane leaves for `read_ahead`.
struct Ahead {
    layout::StreamState* stream;  // where the lane's walk is remembered; null: nothing is read ahead
    u32 strides;                  // for which pages are to be on their way
};

// A fault whose page is on its way: takes the walk of its lane there, and sees for how many strides from there on pages
// are to be on their way, too: as many as the warp walks in the time of two fetches.
GPUVM_NOINLINE void follow(const layout::ArrayDesc& array, u64 page, u32 lane, u32 started, Ahead* ahead) {
    u32 flags = region_of(vm_of(array), page_id(region_of(array), page))->flags;
    if (flags & layout::REGION_RANDOM) return;
    bool ascending = flags & layout::REGION_ASCENDING;
    layout::StreamState* stream = stream_of(array, page, lane);
    Walk walk(ld_relaxed_gpu(&stream->walk));
    u32 passed = started - ld_relaxed_gpu(&stream->ended), took = ld_relaxed_gpu(&stream->took);
    int way = static_cast<int>(static_cast<u32>(page) - walk.page), most = 1 << kStrideBits;
    bool near = way < most * static_cast<int>(kStridesMost) && way > -most * static_cast<int>(kStridesMost);
    u32 steps = near && walk.stride ? static_cast<u32>(way / walk.stride) : 0;
    // Where nothing is known yet, as far as may be.
    u64 fetches = ~0ull;
    // Where the stride leads, past no page that was not read ahead.
    if (steps - 1 <= walk.ahead && static_cast<int>(steps) * walk.stride == way) {
        walk.ahead -= steps <= walk.ahead ? steps : walk.ahead;
        walk.trust += walk.trust < kStridesMost;
        fetches = static_cast<u64>(took) * steps * 2;
    } else if (way || ascending) {
        bool goes_on = walk.trust >= kTrusted;
        if (!goes_on) walk.stride = way < most && way > -most ? way : 0;
        if (ascending) walk.stride = 1;
        walk.trust = ascending ? kStridesMost : goes_on;
        walk.ahead = 0;
    }
    walk.page = static_cast<u32>(page);
    u32 strides = walk.trust >= kTrusted, bytes = kReadAheadBytes >> array.page_shift;
    while (strides && strides < walk.trust && strides < bytes && static_cast<u64>(passed) * strides < fetches)
        ++strides;
    ahead->stream = stream;
    // Several at a time, with one doorbell.
    ahead->strides = walk.ahead * 2 > strides ? 0 : strides;
    st_relaxed_gpu(&stream->walk, walk.bits());
}

// Frames for up to `want` pages that nothing has asked for yet: what the pool has above its low mark, and those of
// pages that were not used since they came, or since the clock saw them last.
GPUVM_NOINLINE u32 frames_to_spare(const Unawaited* fetch, u32 want) {
    const layout::VmDesc* vm = fetch->vm();
    i64 spare = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) - low_water(vm);
    if (spare >= static_cast<i64>(want)) return want;
    u32 above = spare > 0 ? static_cast<u32>(spare) : 0;
    return above + turn_clock(vm, kClockWindow, want - above, nullptr, page_id(region_of(fetch->array), 0), true);
}

// Begins to fetch the pages that follow the fault's on its walk, as far as frames and slots are free.
GPUVM_DEVICE void fetch_ahead(Unawaited* fetch, u64 page, Walk* walk, u32 strides) {
    u32 frames = 0;
    for (; walk->ahead < strides; ++walk->ahead) {
        u64 next = page + static_cast<i64>(walk->stride) * static_cast<i64>(walk->ahead + 1);
        if (next >= region_of(fetch->vm(), page_id(region_of(fetch->array), 0))->pages) return;
        u64 seen = ld_acquire_gpu(words_of(fetch->array) + next);
        if (state_of(seen) != kAbsent) continue;
        u32 want = strides - walk->ahead;
        if (frames == 0) frames = fetch->pooled() ? frames_to_spare(fetch, want) : want;
        if (frames == 0 || !post_unawaited(fetch, next, seen)) {
            // It is believed anew, so that not each fault looks for frames in vain.
            walk->trust = 0;
            return;
        }
        --frames;
    }
}

// The fault is over, after a fetch of its own if `posted`, and what it left is done: its warp has the page and walks
// on.
GPUVM_NOINLINE void read_ahead(const layout::ArrayDesc& array, u64 page, const Ahead* ahead, u32 started, bool posted) {
    layout::StreamState* stream = ahead->stream;
    u32 took = static_cast<u32>(ticks()) - started;
    if (posted || took > ld_relaxed_gpu(&stream->took)) st_relaxed_gpu(&stream->took, took);
    if (ahead->strides) {
        Unawaited fetch(array, &counters(vm_of(array))->read_ahead);
        Walk walk(ld_relaxed_gpu(&stream->walk));
        fetch_ahead(&fetch, page, &walk, ahead->strides);
        fetch.ring_last();
        st_relaxed_gpu(&stream->walk, walk.bits());
    }
    st_relaxed_gpu(&stream->ended, static_cast<u32>(ticks()));
}

}  // namespace detail
}  // namespace gpuvm
