// Frames that the host takes away while kernels run, and gives back. See docs/PROTOCOL.md, "Frames that come and go".
#pragma once

#include "leave.cuh"

namespace gpuvm {
namespace detail {

// Frames that a lane which looks for one goes over for a change that is under way.
constexpr u32 kHelpWindow = 8;

// Frames of a change that are not done yet: signed, since the host may count some that are done already.
GPUVM_DEVICE i64 change_left(const layout::VmDesc* vm) {
    return static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->change_left));
}
GPUVM_DEVICE void change_done(const layout::VmDesc* vm, u32 frames) {
    atom_add_relaxed_gpu(&pool_of(vm)->change_left, 0 - static_cast<u64>(frames));
}

// A frame that is the caller's: it has no page, and the pool does not have it.
GPUVM_DEVICE void withdraw(const layout::VmDesc* vm, u32 frame) {
    st_relaxed_gpu(page_in_frame(vm, frame), layout::PAGE_WITHDRAWN);
    change_done(vm, 1);
}

// Has the page of a frame leave, if it has one that can: used or not, since its memory is needed elsewhere. A frame
// without a page is the pool's, or on its way: `sift` finds it. `rung`: as in `try_evict_page`.
GPUVM_DEVICE void empty_frame(const layout::VmDesc* vm, u32 frame, u32* rung) {
    u64 id = ld_relaxed_gpu(page_in_frame(vm, frame));
    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;
    u64* word = word_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    if (!is_resident(seen) || frame_of(seen) != frame) return;
    if (try_evict_page(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, frame);
}

// Takes up to `most` frames out of the pool, one at a time so that faults find the others, and puts back those that
// stay.
GPUVM_DEVICE void sift(const layout::VmDesc* vm, u32 first, u32 end, u32 most) {
    i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
    u32 count = available < most ? static_cast<u32>(available < 0 ? 0 : available) : most;
    for (u32 frame; count && pool_pop(&vm->pool, &frame); --count) {
        if (frame >= first && frame < end)
            withdraw(vm, frame);
        else
            pool_give(&vm->pool, frame);
    }
}

// Empties a window of the frames [first, end).
GPUVM_DEVICE void withdraw_some(const layout::VmDesc* vm, u32 first, u32 end, u32 window) {
    u32 rung = kNoFrame;
    u64 at = atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));
    u32 frame = first + static_cast<u32>(at % (end - first));
    for (u32 n = 0; n < window; ++n, frame = frame + 1 < end ? frame + 1 : first) empty_frame(vm, frame, &rung);
    if constexpr (kQueued) {
        if (rung != kNoFrame) ring(Queue(vm, rung));
        reap_all(vm, kClockWindow);
    }
    sift(vm, first, end, window);
}

// Gives the pool those of a window of the frames [first, end) that are to come back. Nothing else goes over the same
// ones.
GPUVM_DEVICE void restore_some(const layout::VmDesc* vm, u32 first, u32 end, u32 window) {
    u64 at = atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));
    if (at >= end - first) return;
    u32 begin = first + static_cast<u32>(at), stop = window < end - begin ? begin + window : end;
    for (u32 frame = begin; frame < stop; ++frame) {
        if (ld_relaxed_gpu(page_in_frame(vm, frame)) != layout::PAGE_RETURNING) continue;
        st_relaxed_gpu(page_in_frame(vm, frame), u64{0});
        pool_give(&vm->pool, frame);
    }
    change_done(vm, stop - begin);
}

// From here to `leave_change` the caller is counted: who ends a change waits for it. What is under way, or 0.
GPUVM_DEVICE u64 join_change(const layout::VmDesc* vm) {
    layout::PoolState* pool = pool_of(vm);
    atom_add_relaxed_gpu(&pool->helpers, 1ull);
    // Store, then load: who ends a change stores `change`, then loads `helpers`. It sees us, or we see that it is over.
    fence_sc_gpu();
    // Acquire: the hand and what is left were written before it.
    return ld_acquire_gpu(&pool->change);
}
GPUVM_DEVICE void leave_change(const layout::VmDesc* vm) {
    // Release at system scope: the host reads the table of frames when it has seen that nothing helps.
    fence_acq_rel_sys();
    atom_add_relaxed_gpu(&pool_of(vm)->helpers, ~0ull);
}

// Who looks for a frame need not look at the change any more. The host may call again meanwhile, which does no harm:
// it ends the change, and writes the limit anew, when nothing is counted.
GPUVM_DEVICE void call_none(const layout::VmDesc* vm) {
    atom_and_relaxed_gpu(&pool_of(vm)->limit, ~layout::POOL_CHANGING_BIT);
}

// Goes over some frames of the change that is under way, and says which one that is; 0 when there is none. It waits for
// nothing.
GPUVM_NOINLINE u64 help_change(const layout::VmDesc* vm, u32 window) {
    u64 change = join_change(vm);
    u32 first = static_cast<u32>(change) & layout::POOL_CHANGE_FRAMES;
    u32 end = static_cast<u32>(change >> layout::POOL_CHANGE_END_SHIFT) & layout::POOL_CHANGE_FRAMES;
    if (change & layout::POOL_RESTORE_BIT)
        restore_some(vm, first, end, window);
    else if (change)
        withdraw_some(vm, first, end, window);
    if (change && change_left(vm) <= 0) call_none(vm);
    leave_change(vm);
    return change;
}

// Ends the change, if it is under way still, and waits for those who work on it. Counted while it does so, since the
// host may have ended it, and begins another one only when nothing is.
GPUVM_DEVICE void end_change(const layout::VmDesc* vm, u64 change) {
    layout::PoolState* pool = pool_of(vm);
    if (join_change(vm) == change) {
        st_relaxed_gpu(&pool->change, u64{0});
        // Or those who look in vain would be waited for, too, one after the other.
        call_none(vm);
    }
    leave_change(vm);
    // Store, then load: see `join_change`.
    fence_sc_gpu();
    while (ld_relaxed_gpu(&pool->helpers) && !aborted(vm)) sleep_ns(64);
}

// All lanes of a kernel work on `change`. Lane 0 ends it when nothing is left to do or the time is over. A kernel that
// found no place in time was asked to stop, and another change may be under way when it starts.
GPUVM_DEVICE void change_frames(const layout::VmDesc* vm, u64 change, u32 lane, u64 limit_ns) {
    u64 begun = time_ns();
    for (u32 pause = 64; !aborted(vm) && help_change(vm, kClockWindow) == change;
         pause = pause < 4096 ? 2 * pause : pause) {
        if (lane == 0 && (change_left(vm) <= 0 || time_ns() - begun > limit_ns)) return end_change(vm, change);
        sleep_ns(pause);
    }
}

}  // namespace detail
}  // namespace gpuvm
