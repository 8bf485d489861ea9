// Where frames come from when the pool runs low: a clock with a second chance over the frames' frame_pages.
#pragma once

#include "resize.cuh"

namespace gpuvm {
namespace detail {

// Whether pages of the region stay, since those of a lower rank can leave. `rank`: pages up to this one may leave.
GPUVM_DEVICE bool is_spared(const layout::VmDesc* vm, const layout::RegionDesc* region, u32 rank) {
    u32 its = region->flags >> layout::REGION_RANK_SHIFT & layout::REGION_RANK_MAX;
    if (its <= rank) return false;
    const layout::PoolState* pool = pool_of(vm);
    u64 spared = ld_relaxed_gpu(&pool->spared), until = spared & ((1ull << layout::POOL_RANK_SHIFT) - 1);
    return its > spared >> layout::POOL_RANK_SHIFT || until <= ld_relaxed_gpu(&pool->hand);
}

// Blocks whose pages in a sample its clock looks at: enough to find one that can leave.
constexpr u32 kSampleWindow = 128;
// A page of the sample that the page `id` is in leaves its frame, which goes to `*direct` where that is given, else to
// the pool. The clock of a sample goes over its pages, since few frames are its own. False when none of a window can
// leave. `idle_alone`: a page that was used stays. Else one leaves although all were: a sample that grew whenever its
// pages are hot would have all of them in the end, and look cheap.
GPUVM_DEVICE bool turn_sample(const layout::VmDesc* vm, u64 id, u32 window, u32* direct, bool idle_alone = false) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* words = reinterpret_cast<u64*>(region->words);
    u32 shift = block_shift_of(region), sample = sample_of(page_of(id), shift), rung = kNoFrame;
    u32 blocks = static_cast<u32>((region->pages + (1u << shift) - 1) >> shift);
    u32 block = atom_add_relaxed_gpu(&head_of(words)->hands[sample], window) % blocks;
    if (window > blocks) window = blocks;
    for (u32 n = 0; n < (idle_alone ? window : 2 * window); ++n, block = block + 1 < blocks ? block + 1 : 0) {
        if (n == window) block = (block + blocks - window) % blocks;
        u64 page = page_of_sample(block, sample, shift);
        if (page >= region->pages) continue;
        u64 seen = ld_relaxed_gpu(words + page);
        u64 other = page_id(region_number(id), page);
        // A frame that is to be withdrawn is nothing else's to free.
        if (is_resident(seen) && frame_of(seen) >= clock_limit(vm)) continue;
        if (!is_resident(seen) || try_evict_page(vm, other, words + page, seen, &rung, n >= window) != kLeft) continue;
        count(&counters(vm)->displacements, 1);
        if (direct)
            *direct = frame_of(seen);
        else
            pool_give(&vm->pool, frame_of(seen));
        return true;
    }
    return false;
}

// A bit for each frame of a window.
constexpr u32 kWidestWindow = 64;
static_assert(2 * kClockWindow <= kWidestWindow, "a window, and as much for pages that are read once");
// Frames to look at for this many that are needed. A page that was used is passed twice before it leaves.
GPUVM_DEVICE u32 window_for(u32 need) { return need <= kClockWindow / 2 ? kClockWindow : kWidestWindow; }

// Looks at a window of frames and releases up to `need`: the first goes to `*direct` when that is given, the
// others to the pool. It waits for nothing. `for_page`: the page id that needs the frames, which displaces no page of
// another sample of its region; 0 displaces any. A page that is read once displaces others only where another window
// before this one has none of its kind. `idle_alone`: pages that were used stay, and none of them loses its second
// chance. `rank`: as in `is_spared`.
GPUVM_NOINLINE u32 turn_clock(const layout::VmDesc* vm, u32 window, u32 need, u32* direct, u64 for_page,
                              bool idle_alone = false, u32 rank = 0) {
    u64 limits = ld_relaxed_gpu(&pool_of(vm)->limit);
    if constexpr (kResizable)
        if (limits & layout::POOL_CHANGING_BIT) help_change(vm, kHelpWindow);
    if constexpr (kDirect) {
        if (for_page && in_sample(vm, for_page)) {
            bool idle = window < kClockWindow;
            return turn_sample(vm, for_page, idle ? window : kSampleWindow, direct, idle);
        }
    }
    u32 limit = static_cast<u32>(limits);
    if (window > limit) window = limit;
    u32 n = 0, found = 0, cleaning = 0, rung = kNoFrame;
    // This many frames are searched for pages that are read once, alone.
    u32 once = for_page && is_read_once(region_of(vm, for_page)) ? window : 0;
    if (once + window > kWidestWindow) once = window = kWidestWindow / 2;
    window += once;
    u32 first = static_cast<u32>(atom_add_relaxed_gpu(&pool_of(vm)->hand, static_cast<u64>(window))) % limit;
    u32 frame = first;
    u64 left = 0;  // by place in the window
    for (; n < window && found + cleaning < need; ++n, frame = frame + 1 < limit ? frame + 1 : 0) {
        u64 id = ld_relaxed_gpu(page_in_frame(vm, frame));
        if (!(id & layout::PAGE_ID_TAKEN_BIT) || !may_displace(vm, for_page, id)) continue;
        if ((n < once && !is_read_once(region_of(vm, id))) || is_spared(vm, region_of(vm, id), rank)) continue;
        u64* word = word_of(vm, id);
        u64 seen = ld_relaxed_gpu(word);
        if (!is_resident(seen) || frame_of(seen) != frame) continue;
        if (idle_alone && (seen & layout::REFERENCED_BIT) && !is_read_once(region_of(vm, id))) continue;
        u32 what = try_evict_page(vm, id, word, seen, &rung);
        if (what == kCleaning) ++cleaning;
        if (what != kLeft) continue;
        if constexpr (kDirect) count_displaced(vm, for_page, id);
        if (direct && found == 0)
            *direct = frame;
        else
            left |= 1ull << n;
        ++found;
    }
    // Together, so that neighbours stay neighbours.
    if (left) pool_give_run(&vm->pool, first, left, limit);
    // A stream takes frames one after the other, or the page that came last would leave first.
    if (once) atom_add_relaxed_gpu(&pool_of(vm)->hand, static_cast<u64>(n) - window);
    if constexpr (kQueued)
        if (rung != kNoFrame) ring(Queue(vm, rung));
    return found;
}

// Finishes requests of a queue pair that has failed: prefetches on it may have no one who waits for them, and it is not
// recovered before it is at rest. One pair is looked at each time, drawn by the clock.
GPUVM_NOINLINE void reap_random_queue(const layout::VmDesc* vm) {
    if (vm->queue_count == 0) return;
    Queue q(vm, static_cast<u32>(multiply_high(ticks() * 0x9e3779b97f4a7c15ull, vm->queue_count)));
    if (q.failed()) reap_queue(q, kClockWindow);
}

// Puts back as many frames as were taken while the pool, with `available` frames, is low: no more, or fetches and
// write-backs would come in turns and each find its direction of the link idle half of the time. More only when it is
// very low.
GPUVM_NOINLINE void refill(const layout::VmDesc* vm, u32 taken, i64 available, u64 for_page) {
    if constexpr (kQueued) reap_random_queue(vm);
    // The last pages that come while frames are free displace none, and one of a sample has displaced another before.
    if (kDirect && for_page && (note_full(vm, for_page, available * 2 >= low_water(vm)) || in_sample(vm, for_page)))
        return;
    u32 need = taken + (available * 2 < low_water(vm) ? 1 : 0);
    turn_clock(vm, window_for(need), need, nullptr, for_page);
}
// After a fault, or while its page is on the way.
GPUVM_DEVICE void pay_back(const layout::VmDesc* vm, u32 taken, u64 for_page) {
    if (low_water(vm) == 0) return;
    i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
    if (available < low_water(vm)) refill(vm, taken, available, for_page);
}

GPUVM_NOINLINE void report_no_frame(const layout::VmDesc* vm, u64 id, u64 waited) {
    Fault fault;
    fault.code = layout::FAULT_FRAMES_PINNED;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.size = clock_limit(vm);
    fault.waited_ns = waited;
    for (u32 frame = 0; frame < vm->pool.count; ++frame) {
        u64 held = ld_relaxed_gpu(page_in_frame(vm, frame));
        if (!(held & layout::PAGE_ID_TAKEN_BIT)) continue;
        u64 word = ld_relaxed_gpu(word_of(vm, held));
        if (state_of(word) == kFetching) ++fault.frames_fetching;
        if (!is_resident(word) || frame_of(word) != frame) continue;
        if (pins_of(word)) ++fault.frames_pinned;
        if (word & layout::WRITE_BACK_BIT) ++fault.frames_written_back;
    }
    i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
    fault.frames_free = available > 0 ? static_cast<u32>(available) : 0;
    report(vm, fault);
}

// One frame, waiting for it while the pool is dry. The caller holds no frame and no pin. `kNoFrame` once the limit has
// passed without any page leaving its frame, or at once when the launch was aborted or dirty pages cannot leave any
// more.
constexpr u32 kOwnSampleTurns = 8;
// After this many turns, when no page leaves its frame, pages of the next rank may leave, too.
constexpr u32 kSparingTurns = 64;
// Pages up to `rank` leave: for as far as the search went, and once round at least, so that others need not search
// again.
GPUVM_NOINLINE void lower_protection(const layout::VmDesc* vm, u32 rank) {
    layout::PoolState* pool = pool_of(vm);
    u64 searched = static_cast<u64>(kSparingTurns) * kClockWindow;
    u64 until = ld_relaxed_gpu(&pool->hand) + (searched < vm->pool.count ? vm->pool.count : searched);
    st_relaxed_gpu(&pool->spared, static_cast<u64>(rank) << layout::POOL_RANK_SHIFT | until);
}
GPUVM_DEVICE u32 wait_for_frame(const layout::VmDesc* vm, u64 id) {
    u32 frame = kNoFrame;
    if (pool_pop(&vm->pool, &frame)) return frame;
    count(&counters(vm)->pool_dry, 1);
    if (kDirect) note_full(vm, id, false);
    Wait wait(vm);
    note_wait(layout::WAIT_FRAME, id, 0);
    u32 taken = static_cast<u32>(ld_relaxed_gpu(&pool_of(vm)->turnover));
    u32 rank = 0;
    while (true) {
        // Its sample may have no page that can leave.
        if (turn_clock(vm, kClockWindow, 1, &frame, wait.turns < kOwnSampleTurns ? id : 0, false, rank)) {
            if (rank) lower_protection(vm, rank);
            break;
        }
        if constexpr (kQueued) reap_all(vm, kClockWindow);
        if (pool_pop(&vm->pool, &frame)) break;
        frame = kNoFrame;
        if constexpr (kQueued)
            if (!is_direct(region_of(vm, id)) && is_unreachable(vm, id)) {
                report_queues_failed(vm, id);
                break;
            }
        // Frames that others got meanwhile: this is contention, not a lack of frames.
        u32 now_taken = static_cast<u32>(ld_relaxed_gpu(&pool_of(vm)->turnover));
        if (now_taken != taken)
            wait.restart();
        else if (wait.turns % kSparingTurns == kSparingTurns - 1 && rank < layout::REGION_RANK_MAX)
            ++rank;
        taken = now_taken;
        if (!wait.again()) {
            if (!aborted(vm)) report_no_frame(vm, id, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return frame;
}

}  // namespace detail
}  // namespace gpuvm
