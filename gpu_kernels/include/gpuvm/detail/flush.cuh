// Whole regions at a time: writing dirty pages home, and giving every frame of a region back.
#pragma once

#include "fault.cuh"

namespace gpuvm {
namespace detail {

// Begins the WRITE of a dirty page and returns its frame, or kNoFrame when the word changed meanwhile.
// A pinned page is copied as it is and stays dirty: its holders may store during the WRITE.
GPUVM_DEVICE u32 begin_flush(u64* word, u64 seen) {
    if (pins_of(seen) == 0) return try_clean(word, seen) ? frame_of(seen) : kNoFrame;
    u64 old = atom_or_acq_rel_gpu(word, layout::WRITE_BACK_BIT);
    if (old & layout::WRITE_BACK_BIT) return kNoFrame;  // another's mark
    if (is_resident(old)) return frame_of(old);
    atom_and_relaxed_gpu(word, ~layout::WRITE_BACK_BIT);
    return kNoFrame;
}

// Brings the writes to one page that happened before this call home. False after a fault, which is reported;
// the page is dirty then.
GPUVM_NOINLINE bool flush_page(const layout::VmDesc* vm, u64 owner) {
    u64* word = word_of(vm, owner);
    Wait wait(vm->wait_limit_ns);
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        if (seen & layout::WRITE_BACK_BIT) {
            // A WRITE that may have begun before those writes: it ends first, then the page is looked at again.
            note_wait(layout::WAIT_WRITE_BACK, owner, 0);
            if constexpr (kQueued) reap_all(vm, kClockWindow);
            if (!wait.again()) {
                if (!aborted()) report_wait(layout::FAULT_COMPLETION_TIMEOUT, owner, 0, 0, wait.waited());
                return false;
            }
            continue;
        }
        if (!is_resident(seen) || !(seen & layout::DIRTY_BIT)) return true;
        u32 frame = begin_flush(word, seen);
        if (frame == kNoFrame) {
            // Holders come and go: bounded like any wait.
            if (wait.again()) continue;
            if (!aborted()) report_wait(layout::FAULT_PAGE_TIMEOUT, owner, 0, 0, wait.waited());
            return false;
        }
        if (is_direct(region_of(vm, owner))) {
            write_back_direct(vm, owner, word, frame);
            return true;
        }
        if constexpr (!kQueued) return false;
        u32 queue;
        u64 index;
        if (!wait_for_slot(vm, owner, true, &queue, &index)) {
            write_back_failed(word);
            return false;
        }
        Queue q(vm, queue);
        write_slot(q, index, layout::REQUEST_FLUSH, owner, frame, 1, 0);
        commit(q, index, 1);
        ring(q);
        u64 posted = time_ns();
        u32 outcome = wait_outcome(q, index);
        if ((outcome & 0xff) == layout::OUTCOME_OK) return true;
        // Bounded: see `finish_demand`.
        if ((outcome & 0xff) == layout::OUTCOME_FLUSHED && wait.again()) continue;
        if (outcome == 0) {
            if (!aborted()) report_wait(layout::FAULT_COMPLETION_TIMEOUT, owner, queue, index, time_ns() - posted);
            return false;
        }
        Fault fault;
        fault.code = layout::FAULT_WRITE_BACK;
        fault.region = static_cast<u32>((owner & ~layout::OWNER_TAKEN_BIT) >> layout::OWNER_REGION_SHIFT);
        fault.page = page_of(owner);
        fault.queue = queue;
        fault.index = index;
        fault.syndrome = outcome >> 8 & 0xff;
        fault.vendor_syndrome = outcome >> 16 & 0xff;
        report(fault);
        return false;
    }
}

// Takes one page of a region that no launch uses out of its frame. A page that is dirty still is dropped only with
// `discard`. False after a fault.
GPUVM_NOINLINE bool release_page(const layout::VmDesc* vm, u64 owner, bool discard) {
    u64* word = word_of(vm, owner);
    Wait wait(vm->wait_limit_ns);
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        bool busy = state_of(seen) == kFetching || (seen & layout::WRITE_BACK_BIT) || pins_of(seen);
        bool keep = (seen & layout::DIRTY_BIT) && !discard;
        if (!busy && keep) return flush_page(vm, owner) && release_page(vm, owner, false);
        if (!busy) {
            if (state_of(seen) == kAbsent) return true;
            if (!try_evict(word, seen)) continue;
            if (is_resident(seen) && is_pooled(region_of(vm, owner))) {
                frame_left(vm, frame_of(seen));
                pool_give(vm, frame_of(seen));
            }
            return true;
        }
        note_wait(layout::WAIT_PAGE, owner, 0);
        if constexpr (kQueued) reap_all(vm, kClockWindow);
        if (!wait.again()) {
            if (!aborted()) report_wait(layout::FAULT_PAGE_TIMEOUT, owner, 0, 0, wait.waited());
            return false;
        }
    }
}

}  // namespace detail
}  // namespace gpuvm
