// How pages of a held region leave their frames for others that are used more. See docs/PROTOCOL.md, section 19.
#pragma once

#include "bring.cuh"
#include "leave.cuh"

namespace gpuvm {
namespace detail {

// Has a page leave its frame, whose region is held and which no launch looks up. True when the pool has the frame.
GPUVM_DEVICE bool give_way(const layout::VmDesc* vm, u64 id) {
    u64* word = word_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    if (!is_resident(seen)) return false;
    // What was stored counts as dirty before the page can leave.
    fold_mark(vm, id, false);
    unpin(word, 1);
    seen = ld_relaxed_gpu(word);
    u32 rung = kNoFrame;
    if (is_resident(seen) && try_evict_page(vm, id, word, seen, &rung, true) == kLeft) {
        pool_give(&vm->pool, frame_of(seen));
        return true;
    }
    hold_page(vm, id);
    return false;
}

// Whether fewer slots at neighbours are free than that, and than a sixteenth of those that are lent, of which
// `spare_min` is a quarter: of few slots only some leave. A hint.
GPUVM_DEVICE bool has_few_slots(const layout::VmDesc* vm, u32 region, u64 few) {
    const layout::RegionDesc* desc = regions_of(vm) + region;
    if (!kVictims || !desc->victims) return false;
    u64 most = 4ull * victims_of(desc)->spare_min + 1;
    i64 free = static_cast<i64>(ld_relaxed_gpu(&pool_of(&victims_of(desc)->free)->available));
    return free < static_cast<i64>(few < most ? few : most);
}

}  // namespace detail
}  // namespace gpuvm
