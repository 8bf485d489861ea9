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

// Writes home a page of a region with replicas or checksums whose write-back mark is ours, and waits for it: OUTCOME_*
// with the syndromes of a failure, or 0 when a wait ended first.
GPUVM_NOINLINE u32 flush_guarded(const layout::VmDesc* vm, u64 owner, u32 frame, u32* queue, u64* index) {
    const layout::RegionDesc* region = region_of(vm, owner);
    u64* word = word_of(vm, owner);
    *queue = stripe_of(vm, owner)->queue_first;
    *index = 0;
    u32 pending = is_replicated(region) ? begin_replicas(vm, owner) : 1;
    if (!pending) {
        write_back_failed(word);
        if (is_unreachable(vm, owner)) return layout::OUTCOME_FAILED;
        // A pair is being mended, once its requests are finished, which nobody but us may be there to do.
        reap_all(vm, kClockWindow);
        return layout::OUTCOME_FLUSHED;
    }
    if (is_checked(region)) renew_checksum(vm, owner, frame);
    u32 posted = 0, worst = 0, queues[layout::REPLICAS_MAX];
    u64 indexes[layout::REPLICAS_MAX];
    bool written = false, dirty = false, again = false, ended = true;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (!(pending >> n & 1)) continue;
        u64 way = at_replica(owner, n);
        if (!wait_for_slot(vm, way, true, &queues[n], &indexes[n])) {
            bool gone = all_queues_gone(vm, way);
            u32 end = kEndedBadly;
            if (is_replicated(region)) end = end_replica(vm, way, gone ? kMissed : kToRepeat);
            if (end != kNotLast) end_write_back(vm, owner, frame, end == kEndedWell, false);
            ended = ended && gone;
            continue;
        }
        Queue q(vm, queues[n]);
        write_slot(q, indexes[n], layout::REQUEST_FLUSH, way, frame, 1, 0);
        commit(q, indexes[n], 1);
        ring(q);
        posted |= 1u << n;
    }
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (!(posted >> n & 1)) continue;
        u32 outcome = wait_outcome(Queue(vm, queues[n]), indexes[n]);
        if ((outcome & 0xff) == layout::OUTCOME_OK) {
            written = true;
            continue;
        }
        *queue = queues[n];
        *index = indexes[n];
        ended = ended && outcome != 0;
        again = again || (outcome & 0xff) == layout::OUTCOME_FLUSHED;
        if ((outcome & 0xff) != layout::OUTCOME_FAILED) continue;
        worst = outcome;
        dirty = dirty || is_own_fault(outcome >> 8 & 0xff);
    }
    if (!ended) return 0;
    if (again) return layout::OUTCOME_FLUSHED;
    // A replica that missed it is stale; after an error of our own none is, and the page is dirty.
    if (written && !dirty) return layout::OUTCOME_OK;
    return worst ? worst : layout::OUTCOME_FAILED;
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
        u32 queue, outcome;
        u64 index;
        if (is_guarded(region_of(vm, owner))) {
            outcome = flush_guarded(vm, owner, frame, &queue, &index);
        } else {
            if (!wait_for_slot(vm, owner, true, &queue, &index)) {
                write_back_failed(word);
                return false;
            }
            Queue q(vm, queue);
            write_slot(q, index, layout::REQUEST_FLUSH, owner, frame, 1, 0);
            commit(q, index, 1);
            ring(q);
            outcome = wait_outcome(q, index);
        }
        if ((outcome & 0xff) == layout::OUTCOME_OK) return true;
        // Bounded: see `finish_demand`.
        bool again = (outcome & 0xff) == layout::OUTCOME_FLUSHED;
        if (again && wait.again()) continue;
        if (again || outcome == 0) {
            if (!aborted()) report_wait(layout::FAULT_COMPLETION_TIMEOUT, owner, queue, index, wait.waited());
            return false;
        }
        Fault fault;
        fault.code = layout::FAULT_WRITE_BACK;
        fault.region = region_number(owner);
        fault.page = page_of(owner);
        fault.queue = queue;
        fault.index = index;
        fault.syndrome = outcome >> 8 & 0xff;
        fault.vendor_syndrome = outcome >> 16 & 0xff;
        report(fault);
        return false;
    }
}

// Finishes what has completed on a queue pair that the host brings to rest. It asks again until nothing is in flight:
// lanes that are at work on the pair get on meanwhile.
GPUVM_DEVICE void reap_for_host(const layout::VmDesc* vm, u32 queue) {
    reap_queue(Queue(vm, queue), ~0u);
    sleep_ns(1000);
}

// Whatever a home holds of a page counts no more. No WRITE to it may be in flight.
GPUVM_DEVICE void age_page(const layout::VmDesc* vm, u64 owner, u32 home) {
    const layout::RegionDesc* region = region_of(vm, owner);
    for (u32 n = 0; n < region->replicas; ++n) {
        // Row n is moved on by n homes; a region whose rows have one home each has home n in row n.
        u64 at = region->homes == 1 ? n : (page_of(owner) + n) % region->homes;
        if (at == home) set_stale(vm, at_replica(owner, n));
    }
}

// Whether a copy of the page is stale at a home that can be reached, and answers.
GPUVM_DEVICE bool is_behind(const layout::VmDesc* vm, u64 owner) {
    u64 other = other_replica(owner);
    return (is_stale(vm, owner) && !is_silent(vm, owner) && !all_queues_gone(vm, owner)) ||
           (is_stale(vm, other) && !is_silent(vm, other) && !all_queues_gone(vm, other));
}

// Has a page with a stale copy written back to both homes, as if a kernel had written it. False after a fault.
GPUVM_NOINLINE bool catch_up_page(const layout::ArrayDesc& array, u64 page) {
    if constexpr (!kGuarded) return true;
    Miss miss(array, page);
    const layout::VmDesc* vm = miss.vm();
    if (!is_behind(vm, miss.owner())) return true;
    while (true) {
        u32 outcome = acquire_round(&miss, true);
        if (outcome == kRoundHeld) {
            mark_dirty(miss.word(), 0);
            unpin(miss.word(), 1);
        }
        // Lanes that hold give up their pins before those of this round that do not wait for anything.
        if (miss.mixed) __syncwarp(miss.active);
        if (outcome == kRoundFailed) return false;
        if (outcome == kRoundHeld) return flush_page(vm, miss.owner());
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
        if (!busy && keep) {
            // A loop, not a call of itself: a GPU reserves no stack for a depth that is not known.
            if (!flush_page(vm, owner)) return false;
            continue;
        }
        if (!busy) {
            if (state_of(seen) == kAbsent) return true;
            const layout::RegionDesc* region = region_of(vm, owner);
            bool own = is_resident(seen) && !is_pooled(region);
            if (own) count_absent(reinterpret_cast<u64*>(region->words));
            if (!try_evict(word, seen)) {
                if (own) count_resident(reinterpret_cast<u64*>(region->words));
                continue;
            }
            if (is_resident(seen) && !own) {
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
