// How a page leaves its frame.
#pragma once

#include "duel.cuh"
#include "write_back.cuh"

namespace gpuvm {
namespace detail {

// Frames that the clock goes over. Relaxed: one that is withdrawn meanwhile has no page.
GPUVM_DEVICE u32 clock_limit(const layout::VmDesc* vm) { return static_cast<u32>(ld_relaxed_gpu(&pool_of(vm)->limit)); }

// What became of a page that the clock looked at.
constexpr u32 kStays = 0;
constexpr u32 kLeft = 1;      // its frame is the caller's
constexpr u32 kCleaning = 2;  // its frame reaches the pool when its WRITE ends

// Lets a page leave its frame: a referenced one gets its second chance, but for one that is read once; pinned and busy
// ones are passed over, a dirty one is cleaned. `rung`: the queue pair whose doorbell is to be rung, or kNoFrame.
// `even_used`: there is no second chance.
GPUVM_DEVICE u32 try_evict_page(const layout::VmDesc* vm, u64 id, u64* word, u64 seen, u32* rung,
                                bool even_used = false) {
    u32 frame = frame_of(seen);
    if (pins_of(seen) || (seen & layout::WRITE_BACK_BIT)) return kStays;
    if (!even_used && seen & layout::REFERENCED_BIT) {
        atom_and_relaxed_gpu(word, ~layout::REFERENCED_BIT);
        if (!is_read_once(region_of(vm, id))) return kStays;
        seen &= ~layout::REFERENCED_BIT;
    }
    if (!(seen & layout::DIRTY_BIT)) {
        if (!leave_frame(vm, id, word, seen)) return kStays;
        frame_left(vm, frame);
        return kLeft;
    }
    if (is_backed_off(region_of(vm, id)) || !try_clean(word, seen)) return kStays;
    if (is_direct(region_of(vm, id))) {
        write_back_direct(vm, id, word, frame);
        return leave_cleaned(vm, id, word, frame) ? kLeft : kStays;
    }
    if constexpr (kQueued) {
        if (post_clean(vm, id, frame, layout::REQUEST_CLEAN, rung)) return kCleaning;
        // Its queues take nothing now; other pages of the window may go other ways.
        write_back_failed(word);
    }
    return kStays;
}

}  // namespace detail
}  // namespace gpuvm
