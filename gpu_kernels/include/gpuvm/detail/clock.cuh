// Where frames come from when the pool runs low: a clock with a second chance over the frames' frame_pages.
#pragma once

#include "duel.cuh"
#include "write_back.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE bool is_read_once(const layout::RegionDesc* region) { return region->flags & layout::REGION_READ_ONCE; }

// Whether pages of the region stay: as long as others can leave.
GPUVM_DEVICE bool is_spared(const layout::VmDesc* vm, const layout::RegionDesc* region) {
    const layout::PoolState* pool = pool_of(vm);
    return region->flags & layout::REGION_KEEP_RESIDENT &&
           ld_relaxed_gpu(&pool->spared_until) <= ld_relaxed_gpu(&pool->hand);
}

// Looks at a window of frames and releases up to `need`: the first goes to `*direct` when that is given, the
// others to the pool. Referenced pages get their second chance, pinned and busy ones are passed over, dirty ones
// are cleaned: their frames reach the pool when the WRITE ends. It waits for nobody. `for_page`: the page id that
// needs the frames, which displaces no page of another sample of its region; 0 displaces any. A page that is read once
// displaces others only where another window before this one has none of its kind.
GPUVM_NOINLINE u32 turn_clock(const layout::VmDesc* vm, u32 window, u32 need, u32* direct, u64 for_page) {
    if constexpr (kDirect) {
        if (for_page && in_sample(vm, for_page)) return turn_sample(vm, for_page, window, direct);
    }
    if (window > vm->frame_count) window = vm->frame_count;
    u32 n = 0, frame, found = 0, cleaning = 0, rung = kNoFrame;
    // So many frames are searched for pages that are read once, alone.
    u32 once = for_page && is_read_once(region_of(vm, for_page)) ? window : 0;
    window += once;
    over_frames(vm, atom_add_relaxed_gpu(&pool_of(vm)->hand, static_cast<u64>(window)), &frame);
    for (; n < window && found + cleaning < need; ++n, frame = next_frame(vm, frame)) {
        u64 id = ld_relaxed_gpu(page_in_frame(vm, frame));
        if (!(id & layout::PAGE_ID_TAKEN_BIT) || !may_displace(vm, for_page, id)) continue;
        if ((n < once && !is_read_once(region_of(vm, id))) || is_spared(vm, region_of(vm, id))) continue;
        u64* word = word_of(vm, id);
        u64 seen = ld_relaxed_gpu(word);
        if (!is_resident(seen) || frame_of(seen) != frame || pins_of(seen) || (seen & layout::WRITE_BACK_BIT)) continue;
        if (seen & layout::REFERENCED_BIT) {
            atom_and_relaxed_gpu(word, ~layout::REFERENCED_BIT);
            if (!is_read_once(region_of(vm, id))) continue;
            seen &= ~layout::REFERENCED_BIT;
        }
        bool ours = false;
        if (!(seen & layout::DIRTY_BIT)) {
            ours = try_evict(word, seen);
            if (ours) frame_left(vm, frame);
        } else if (is_backed_off(region_of(vm, id)) || !try_clean(word, seen)) {
            continue;
        } else if (is_direct(region_of(vm, id))) {
            write_back_direct(vm, id, word, frame);
            ours = try_leave(vm, word, frame);
        } else if constexpr (kQueued) {
            if (post_clean(vm, id, frame, layout::REQUEST_CLEAN, &rung)) {
                ++cleaning;
            } else {
                // Its queues take nothing now; other pages of the window may go other ways.
                write_back_failed(word);
            }
        }
        if (!ours) continue;
        if (direct && found == 0)
            *direct = frame;
        else
            pool_give(vm, frame);
        ++found;
    }
    // A stream takes frames one after the other, or the page that came last would leave first.
    if (once) atom_add_relaxed_gpu(&pool_of(vm)->hand, static_cast<u64>(n) - window);
    if constexpr (kQueued)
        if (rung != kNoFrame) ring(Queue(vm, rung));
    return found;
}

// Finishes requests of a queue pair that has failed: prefetches on it may have nobody who waits for them, and it is not
// mended before it is at rest. One pair is looked at each time, drawn by the clock.
GPUVM_NOINLINE void pass_by_a_queue(const layout::VmDesc* vm) {
    if (vm->queue_count == 0) return;
    Queue q(vm, static_cast<u32>(multiply_high(ticks() * 0x9e3779b97f4a7c15ull, vm->queue_count)));
    if (q.failed()) reap_queue(q, kClockWindow);
}

// Puts back as many frames as were taken while the pool, with `available` frames, is low: no more, or fetches and
// write-backs would come in turns and each find its direction of the link idle half of the time. More only when it is
// very low.
GPUVM_NOINLINE void refill(const layout::VmDesc* vm, u32 taken, i64 available, u64 for_page) {
    if constexpr (kQueued) pass_by_a_queue(vm);
    turn_clock(vm, kClockWindow, taken + (available * 2 < static_cast<i64>(vm->frames_low) ? 1 : 0), nullptr, for_page);
}
// After a fault, or while its page is on the way.
GPUVM_DEVICE void pay_back(const layout::VmDesc* vm, u32 taken, u64 for_page) {
    if (vm->frames_low == 0) return;
    i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
    if (available < static_cast<i64>(vm->frames_low)) refill(vm, taken, available, for_page);
}

GPUVM_NOINLINE void report_no_frame(const layout::VmDesc* vm, u64 id, u64 waited) {
    Fault fault;
    fault.code = layout::FAULT_FRAMES_PINNED;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.size = vm->frame_count;
    fault.waited_ns = waited;
    for (u32 frame = 0; frame < vm->frame_count; ++frame) {
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
    report(fault);
}

// One frame, waiting for it while the pool is dry. The caller holds no frame and no pin. `kNoFrame` once the limit has
// passed without any page leaving its frame, or at once when the launch was aborted or dirty pages cannot leave any
// more.
constexpr u32 kOwnSampleTurns = 8;
// After so many turns, when no page leaves its frame, pages that are to stay may leave, too.
constexpr u32 kSparingTurns = 64;
GPUVM_NOINLINE void end_sparing(const layout::VmDesc* vm) {
    layout::PoolState* pool = pool_of(vm);
    // For as far as the search went, and once round at least, so that others need not search again.
    u64 searched = static_cast<u64>(kSparingTurns) * kClockWindow;
    st_relaxed_gpu(&pool->spared_until,
                   ld_relaxed_gpu(&pool->hand) + (searched < vm->frame_count ? vm->frame_count : searched));
}
GPUVM_NOINLINE u32 wait_for_frame(const layout::VmDesc* vm, u64 id) {
    u32 frame = kNoFrame;
    if (pool_pop(vm, &frame)) return frame;
    count(&counters(vm)->pool_dry, 1);
    Wait wait(vm->wait_limit_ns);
    note_wait(layout::WAIT_FRAME, id, 0);
    u32 taken = static_cast<u32>(ld_relaxed_gpu(&pool_of(vm)->turnover));
    while (true) {
        // Its sample may have no page that can leave.
        if (turn_clock(vm, kClockWindow, 1, &frame, wait.turns < kOwnSampleTurns ? id : 0)) break;
        if constexpr (kQueued) reap_all(vm, kClockWindow);
        if (pool_pop(vm, &frame)) break;
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
        else if (wait.turns % kSparingTurns == kSparingTurns - 1)
            end_sparing(vm);
        taken = now_taken;
        if (!wait.again()) {
            if (!aborted()) report_no_frame(vm, id, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return frame;
}

}  // namespace detail
}  // namespace gpuvm
