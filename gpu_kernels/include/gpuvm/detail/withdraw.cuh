// Frames that the host takes away while kernels run, and gives back. See docs/PROTOCOL.md, "Frames that come and go".
#pragma once

#include "clock.cuh"

namespace gpuvm {
namespace detail {

// The frames [first, end), of which `left` are not withdrawn yet.
struct Withdrawal {
    u32 first;
    u32 end;
    u32* left;
};

// A frame that is the caller's: it has no page, and the pool does not have it.
GPUVM_DEVICE void withdraw(const layout::VmDesc* vm, const Withdrawal& what, u32 frame) {
    st_relaxed_gpu(page_in_frame(vm, frame), layout::PAGE_WITHDRAWN);
    atom_add_relaxed_gpu(what.left, ~0u);
}

// Has the page of a frame leave, if it has one that can: used or not, since its memory is needed elsewhere. A frame
// without a page is the pool's, or on its way: `sift` finds it. `rung`: as in `let_leave`.
GPUVM_DEVICE void empty_frame(const layout::VmDesc* vm, const Withdrawal& what, u32 frame, u32* rung) {
    u64 id = ld_relaxed_gpu(page_in_frame(vm, frame));
    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;
    u64* word = word_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    if (!is_resident(seen) || frame_of(seen) != frame) return;
    if (let_leave(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, what, frame);
}

// Takes so many frames out of the pool, one at a time so that faults find the others, and puts back those that stay.
GPUVM_DEVICE void sift(const layout::VmDesc* vm, const Withdrawal& what, u32 count) {
    for (u32 frame; count && pool_pop(vm, &frame); --count) {
        if (frame >= what.first && frame < what.end)
            withdraw(vm, what, frame);
        else
            pool_give(vm, frame);
    }
}

// One of `lanes` lanes that withdraw frames together, until all are or the time is over.
GPUVM_DEVICE void withdraw_frames(const layout::VmDesc* vm, const Withdrawal& what, u32 lane, u32 lanes, u64 limit_ns) {
    u64 begun = time_ns();
    // Who was asked to end before it had a place does nothing.
    for (u32 pause = 64; ld_relaxed_gpu(what.left) && !aborted(); pause = pause < 4096 ? 2 * pause : pause) {
        u32 rung = kNoFrame;
        for (u32 frame = what.first + lane; frame < what.end; frame += lanes) empty_frame(vm, what, frame, &rung);
        // Next another block's share: that one may have no place on the GPU.
        lane = (lane + blockDim.x) % lanes;
        if constexpr (kQueued) {
            if (rung != kNoFrame) ring(Queue(vm, rung));
            reap_all(vm, kClockWindow);
        }
        i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
        // All that the pool has goes round once, whatever others do meanwhile.
        if (available > 0) sift(vm, what, static_cast<u32>(available) / lanes + 1);
        if (time_ns() - begun > limit_ns) return;
        sleep_ns(pause);
    }
}

// A frame that was withdrawn and has memory again.
GPUVM_DEVICE void restore_frame(const layout::VmDesc* vm, u32 frame) {
    // One that was not withdrawn after all is somebody's.
    if (ld_relaxed_gpu(page_in_frame(vm, frame)) != layout::PAGE_WITHDRAWN) return;
    st_relaxed_gpu(page_in_frame(vm, frame), u64{0});
    pool_give(vm, frame);
}

}  // namespace detail
}  // namespace gpuvm
