// Whole regions at a time: writing dirty pages back, and giving every frame of a region back.
#pragma once

#include "fault.cuh"

namespace gpuvm {
namespace detail {

// Brings the writes to one page that happened before this call home. False after a fault, which is reported;
// the page is dirty then.
GPUVM_NOINLINE bool flush_page(const layout::VmDesc* vm, u64 id) {
    u64* word = word_of(vm, id);
    Wait wait(vm);
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        if (seen & layout::WRITE_BACK_BIT) {
            // A WRITE that may have begun before those writes: it ends first, then the page is looked at again.
            note_wait(layout::WAIT_WRITE_BACK, id, 0);
            if constexpr (kQueued) reap_all(vm, kClockWindow);
            if (!wait.again()) {
                if (!aborted(vm)) report_wait(vm, layout::FAULT_COMPLETION_TIMEOUT, id, 0, 0, wait.waited());
                return false;
            }
            continue;
        }
        if (!is_resident(seen) || !(seen & layout::DIRTY_BIT)) return true;
        u32 frame = begin_flush(word, seen);
        if (frame == kNoFrame) {
            // Holders come and go: bounded like any wait.
            if (wait.again()) continue;
            if (!aborted(vm)) report_wait(vm, layout::FAULT_PAGE_TIMEOUT, id, 0, 0, wait.waited());
            return false;
        }
        if (is_direct(region_of(vm, id))) {
            write_back_direct(vm, id, word, frame);
            return true;
        }
        if constexpr (!kQueued) return false;
        u32 queue, outcome;
        u64 index;
        if (is_reliable(region_of(vm, id))) {
            outcome = flush_reliable(vm, id, frame, &queue, &index);
        } else {
            if (!wait_for_slot(vm, id, true, &queue, &index)) {
                write_back_failed(word);
                return false;
            }
            Queue q(vm, queue);
            write_slot(q, index, layout::REQUEST_FLUSH, id, frame, 1, 0);
            commit(q, index, 1);
            ring(q);
            outcome = wait_outcome(q, index);
        }
        if ((outcome & 0xff) == layout::OUTCOME_OK) return true;
        // Bounded: see `finish_demand`.
        bool again = (outcome & 0xff) == layout::OUTCOME_FLUSHED;
        if (again && wait.again()) continue;
        if (again || outcome == 0) {
            if (!aborted(vm)) report_wait(vm, layout::FAULT_COMPLETION_TIMEOUT, id, queue, index, wait.waited());
            return false;
        }
        Fault fault;
        fault.code = layout::FAULT_WRITE_BACK;
        fault.region = region_number(id);
        fault.page = page_of(id);
        fault.queue = queue;
        fault.index = index;
        fault.syndrome = outcome >> 8 & 0xff;
        fault.vendor_syndrome = outcome >> 16 & 0xff;
        report(vm, fault);
        return false;
    }
}

// Finishes what has completed on a queue pair that the host brings to rest. It asks again until nothing is in flight:
// lanes that are at work on the pair get on meanwhile.
GPUVM_DEVICE void reap_for_host(const layout::VmDesc* vm, u32 queue) {
    reap_queue(Queue(vm, queue), ~0u);
    sleep_ns(1000);
}

// Takes one page of a region that no launch uses out of its frame. A page that is dirty still is dropped only with
// `discard`. False after a fault.
GPUVM_NOINLINE bool release_page(const layout::VmDesc* vm, u64 id, bool discard) {
    u64* word = word_of(vm, id);
    Wait wait(vm);
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        bool busy = state_of(seen) == kFetching || (seen & layout::WRITE_BACK_BIT) || pins_of(seen);
        bool keep = (seen & layout::DIRTY_BIT) && !discard;
        if (!busy && keep) {
            // A loop, not a call of itself: a GPU reserves no stack for a depth that is not known.
            if (!flush_page(vm, id)) return false;
            continue;
        }
        if (!busy) {
            const layout::RegionDesc* region = region_of(vm, id);
            if (state_of(seen) == kAbsent) {
                // The home may change after this: its victim goes as well.
                if (victim_in(region, seen)) {
                    if (!try_evict(word, seen)) continue;
                    drop_victim(region, seen);
                }
                return true;
            }
            bool own = is_resident(seen) && !is_pooled(region);
            // A write-back that failed may have left the checksum of what is dropped: the home's is not known.
            if ((seen & layout::DIRTY_BIT) && is_checked(region))
                st_relaxed_gpu(checksum_slot(region, page_of(id)), 0u);
            if (own) count_absent(reinterpret_cast<u64*>(region->words));
            if (!try_evict(word, seen)) {
                if (own) count_resident(reinterpret_cast<u64*>(region->words));
                continue;
            }
            if (is_resident(seen) && !own) {
                drop_kept(region, frame_of(seen), true);
                frame_left(vm, frame_of(seen));
                pool_give(&vm->pool, frame_of(seen));
            }
            return true;
        }
        note_wait(layout::WAIT_PAGE, id, 0);
        if constexpr (kQueued) reap_all(vm, kClockWindow);
        if (!wait.again()) {
            if (!aborted(vm)) report_wait(vm, layout::FAULT_PAGE_TIMEOUT, id, 0, 0, wait.waited());
            return false;
        }
    }
}

}  // namespace detail
}  // namespace gpuvm
