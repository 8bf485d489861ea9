// The send ring of a queue pair, driven by lanes: reservation, requests, in-order hand-over to the NIC, doorbell.
#pragma once

#include "completion.cuh"

namespace gpuvm {
namespace detail {

// How many of the `want` slots from `index` on are free now, one after the other.
GPUVM_DEVICE u32 free_slots(const Queue& q, u64 index, u32 want) {
    // Acquire: pairs with the release that freed the slot.
    if (want == 1) return ld_acquire_gpu(&q.record(index)->state) == record_state(index, layout::RECORD_FREE);
    constexpr u32 kAtOnce = 4;  // looks that are on their way at a time: each is a trip to the L2 cache
    const layout::RequestRecord* records = reinterpret_cast<const layout::RequestRecord*>(q.desc->records);
    u32 mask = q.desc->mask, free = 0;
    if (want > mask + 1) want = mask + 1;
    for (bool more = true; more && free < want;) {
        u64 states[kAtOnce];
        for (u32 n = 0; n < kAtOnce; ++n)
            states[n] = ld_relaxed_gpu(&records[static_cast<u32>(index) + free + n & mask].state);
        for (u32 n = 0; n < kAtOnce && more; ++n) {
            more = free < want && states[n] == record_state(index + free, layout::RECORD_FREE);
            free += more;
        }
    }
    // Acquire, once for all: pairs with the releases that freed the slots.
    fence_acq_rel_gpu();
    return free;
}

// Reserves up to `want` neighbouring slots that are free now, and returns how many. It never waits: a slot
// is looked at before it is reserved, so a reserved slot can be written at once.
GPUVM_DEVICE u32 try_reserve(const Queue& q, u32 want, u64* first) {
    layout::QueueState* s = q.state();
    if (q.failed()) {
        q.close_if_failed();
        return 0;
    }
    u64 index = ld_relaxed_gpu(&s->reserved);
    for (u32 tries = 0; tries < 16; ++tries) {
        if (index & layout::RESERVED_CLOSED) return 0;
        u32 free = free_slots(q, index, want);
        if (free == 0) {
            u64 now = ld_relaxed_gpu(&s->reserved);
            if (now == index && (index < q.entries() || !reap(q, index - q.entries(), false))) return 0;
            index = ld_relaxed_gpu(&s->reserved);
            continue;
        }
        // Acquire: pairs with the host's release when it has recovered the pair, so the ring's new positions are read.
        u64 seen = atom_cas_acquire_gpu(&s->reserved, index, index + free);
        if (seen == index) {
            *first = index;
            return free;
        }
        index = seen;
    }
    return 0;
}

// Looks through the queues that reach a page, its home queue by multiprocessor first. The queue, or none when all are
// full, or when a write has to wait.
GPUVM_DEVICE u32 try_reserve_any(const layout::VmDesc* vm, u64 id, bool write, u32 want, u32* queue, u64* first) {
    const layout::StripeDesc* stripe = stripe_of(vm, id);
    if (is_lost(stripe)) return 0;
    if (write && is_recovering(vm, stripe)) return 0;
    u32 home = (multiprocessor_id() + warp_slot()) % stripe->queue_count;
    for (u32 n = 0; n < stripe->queue_count; ++n) {
        u32 candidate = stripe->queue_first + (home + n) % stripe->queue_count;
        u32 got = try_reserve(Queue(vm, candidate), want, first);
        if (got) {
            *queue = candidate;
            return got;
        }
    }
    count(&counters(vm)->queue_full, 1);
    return 0;
}

// Writes request and record of a reserved slot. `pins` go to the page at publication; `token` is in the word already.
GPUVM_DEVICE void write_slot(const Queue& q, u64 index, u32 kind, u64 id, u32 frame, u32 pins, u32 token) {
    const layout::VmDesc* vm = q.vm;
    Source source = source_of(vm, id);
    // Found before anything is stored, so that all loads are on their way at once.
    layout::RequestRecord* record = q.record(index);
    write_request(q.desc, index,
                  Request{kind != layout::REQUEST_FETCH, frame_address(vm, region_of(vm, id), frame), source.home,
                          source.stripe->rkey, frame_key(vm, q.desc, source.stripe, frame), source.bytes});
    st_relaxed_gpu(&record->page_id, id);
    st_relaxed_gpu_v4(&record->frame, frame, kind, pins, token);
    GPUVM_TIMELINE_ONLY(timeline_posted(vm, id, frame, kind, token, q.number);)
    // Release: the thread that reads POSTED reads this record.
    st_release_gpu(&record->state, record_state(index, layout::RECORD_POSTED));
}

// Hands `count` written slots over, in order. It waits only for posters between their reservation and this call.
GPUVM_DEVICE void commit(const Queue& q, u64 first, u32 count_) {
    layout::QueueState* s = q.state();
    // Acquire and release: this hand-over carries the blocks of all earlier posters to the ringer.
    while (ld_acquire_gpu(&s->written) != first) sleep_ns(20);
    st_release_gpu(&s->written, first + count_);
    count(&counters(q.vm)->requests, count_);
}

// Rings for everything that is written. One ringer at a time, so that record and doorbell never step back;
// the second look after the unlock makes sure that the last hand-over is never missed.
GPUVM_NOINLINE void ring(const Queue& q) {
    layout::QueueState* s = q.state();
    while (true) {
        // Our hand-over before our look at the lock; pairs with the ringer's fence between unlock and second look.
        fence_sc_gpu();
        if (atom_exch_acq_rel_gpu(&s->ringer, 1u) != 0) return;
        u64 written = ld_acquire_gpu(&s->written);
        if (written != ld_relaxed_gpu(&s->posted)) {
            announce(q.desc, written);
            st_relaxed_gpu(&s->posted, written);
            count(&counters(q.vm)->doorbells, 1);
            GPUVM_TIMELINE_ONLY(timeline_doorbell(q.vm, q.number, written);)
        }
        // Release: record, register and `posted` before the next ringer's.
        st_release_gpu(&s->ringer, 0u);
        fence_sc_gpu();
        if (ld_relaxed_gpu(&s->written) == written) return;
    }
}

// Both homes of a replicated page are stale or lost.
GPUVM_NOINLINE void report_no_replica(const layout::VmDesc* vm, u64 id) {
    Fault fault;
    fault.code = is_unreachable(vm, id) ? layout::FAULT_QUEUES_FAILED : layout::FAULT_NO_REPLICA;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.queue = stripe_of(vm, id)->queue_first;
    report(vm, fault);
}

// Every queue pair that reaches the page is in the error state for good. The first one's own error says why.
GPUVM_DEVICE void report_queues_failed(const layout::VmDesc* vm, u64 id) {
    u32 queue = stripe_of(vm, id)->queue_first;
    u32 first = ld_relaxed_gpu(&Queue(vm, queue).state()->failed);
    Fault fault;
    fault.code = layout::FAULT_QUEUES_FAILED;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.queue = queue;
    fault.syndrome = first >> 8 & 0xff;
    fault.vendor_syndrome = first >> 16 & 0xff;
    report(vm, fault);
}

// Slots that were reserved so far on the queues that reach the page, modulo 2^32. Relaxed: a hint.
GPUVM_NOINLINE u32 reserved_on_queues_of(const layout::VmDesc* vm, u64 id) {
    const layout::StripeDesc* stripe = stripe_of(vm, id);
    u32 sum = 0;
    for (u32 n = 0; n < stripe->queue_count; ++n)
        sum += static_cast<u32>(ld_relaxed_gpu(&Queue(vm, stripe->queue_first + n).state()->reserved));
    return sum;
}

// Waits until one slot of the queues that reach the page is free and reserves it. False when nothing got one for as
// long as the limit, or when every queue failed.
GPUVM_NOINLINE bool wait_for_slot(const layout::VmDesc* vm, u64 id, bool write, u32* queue, u64* index) {
    if (try_reserve_any(vm, id, write, 1, queue, index)) return true;
    Wait wait(vm);
    u32 first = stripe_of(vm, id)->queue_first;
    note_wait(layout::WAIT_QUEUE, first, id);
    u32 taken = reserved_on_queues_of(vm, id);
    bool got = false;
    while (!got) {
        if (all_queues_gone(vm, id)) {
            // Of a replicated page the other copy is tried.
            if (!is_replicated(region_of(vm, id))) report_queues_failed(vm, id);
            break;
        }
        reap_queues_of(vm, id, kClockWindow);
        got = try_reserve_any(vm, id, write, 1, queue, index) != 0;
        if (!got && !wait.again()) {
            // Slots that others got meanwhile: this is contention, not a queue that stands.
            u32 now_taken = reserved_on_queues_of(vm, id);
            if (now_taken != taken && !aborted(vm)) {
                taken = now_taken;
                wait.restart();
                continue;
            }
            if (!aborted(vm)) report_wait(vm, layout::FAULT_QUEUE_TIMEOUT, id, first, 0, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return got;
}

}  // namespace detail
}  // namespace gpuvm
