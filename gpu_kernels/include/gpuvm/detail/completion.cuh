// Completions: anyone may finish a request, and its waiter learns the outcome.
#pragma once

#include "integrity.cuh"
#include "pair.cuh"
#include "pool.cuh"
#include "replica.cuh"
#include "wait.cuh"
#include "wire.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE u64 record_state(u64 index, u64 phase) { return index << layout::RECORD_INDEX_SHIFT | phase; }

// A page error's code in the word: queue, syndrome, vendor syndrome.
GPUVM_DEVICE u32 error_code(u32 queue, const Completion& c) {
    return queue << 16 | c.syndrome << 8 | c.vendor_syndrome;
}

// Ends a fetch that brought nothing: its page is absent again, for another request, or in the error state. A fetch that
// nothing waits for, which has a token, puts no page there: who needs the page asks for it, and gets an error of its
// own.
GPUVM_DEVICE u32 end_failed_fetch(const Queue& q, u64 id, u32 frame, u32 token, const Completion& done, bool repeat) {
    repeat = repeat || token;
    if (repeat)
        publish_absent(word_of(q.vm, id), token);
    else
        fail_page(q.vm, id, token, error_code(q.number, done));
    give_frame(q.vm, region_of(q.vm, id), frame);
    return repeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// `finish_fetch` for a region with replicas or checksums. With a checksum the waiter's warp compares and publishes the
// page; where nothing waits any more, this lane does.
GPUVM_NOINLINE u32 finish_reliable_fetch(const Queue& q, u64 id, u32 frame, u32 token, const Completion& done,
                                         u32 pins) {
    const layout::VmDesc* vm = q.vm;
    const layout::RegionDesc* region = region_of(vm, id);
    if (done.ok) q.note_answer();
    // The claim is ours, so a copy that was not stale when it was chosen is stale now only because its home was lost
    // and returned before the request was reserved. None is in flight while a home returns.
    bool returned = done.ok && is_replicated(region) && is_stale(vm, id);
    if (done.ok && !returned && is_checked(region)) {
        if (pins) return layout::OUTCOME_ARRIVED;
        u32 found = checksum_alone(frame_address(vm, region, frame), source_of(vm, id).bytes);
        return publish_checked(vm, id, q.number, frame, token, pins, found);
    }
    if (done.ok && !returned) {
        publish_fetched(vm, id, frame, token, pins);
        return layout::OUTCOME_OK;
    }
    // Refused by one home, it is asked of the other.
    bool repeat = returned || q.to_repeat(done) ||
                  (is_replicated(region) && !is_own_fault(done.syndrome) && leave_replica(vm, id));
    return end_failed_fetch(q, id, frame, token, done, repeat);
}

// Publishes the page of a completed READ with the waiter's pins, or fails it. After a READ that is to be repeated the
// page is absent again, for another request to fetch.
GPUVM_DEVICE u32 finish_fetch(const Queue& q, const layout::RequestRecord* record, const Completion& done, u32 pins) {
    const layout::VmDesc* vm = q.vm;
    u64 id = ld_relaxed_gpu(&record->page_id);
    u32 frame = ld_relaxed_gpu(&record->frame);
    u32 token = ld_relaxed_gpu(&record->token);
    if (is_reliable(region_of(vm, id))) return finish_reliable_fetch(q, id, frame, token, done, pins);
    if (!done.ok) return end_failed_fetch(q, id, frame, token, done, q.to_repeat(done));
    publish_fetched(vm, id, frame, token, pins);
    return layout::OUTCOME_OK;
}

// In write_back.cuh.
GPUVM_DEVICE u32 finish_write(const Queue& q, const layout::RequestRecord* record, const Completion& done,
                              bool release_frame);

// Release: record and completion entry are read before the slot may be written for a later request.
GPUVM_DEVICE void free_slot(const Queue& q, u64 index) {
    st_release_gpu(&q.record(index)->state, record_state(index + q.entries(), layout::RECORD_FREE));
}

// Finishes request `index` if its completion is there. True when it is finished, by whomever.
GPUVM_NOINLINE bool reap(const Queue& q, u64 index, bool own) {
    layout::RequestRecord* record = q.record(index);
    // Acquire: pairs with the poster's release, so the record's fields are those of this request.
    u64 state = ld_acquire_gpu(&record->state);
    if (state >> layout::RECORD_INDEX_SHIFT != index) return state >> layout::RECORD_INDEX_SHIFT > index;
    if (state == record_state(index, layout::RECORD_DONE)) return true;
    if (state != record_state(index, layout::RECORD_POSTED)) return false;
    Completion done = completion(q.desc, index);
    if (!done.arrived) return false;
    // One handler: acquire, so that nothing of the handling comes before the claim.
    if (atom_cas_acq_rel_gpu(&record->state, state, record_state(index, layout::RECORD_CLAIMED)) != state) return false;
    layout::Counters* c = counters(q.vm);
    if (!own) count(&c->helped, 1);
    if (!done.ok) {
        count(&c->errors, 1);
        // The first error stays: what follows it is flushed.
        atom_cas_acquire_gpu(&q.state()->failed, 0u,
                             layout::QUEUE_FAILED | done.syndrome << 8 | done.vendor_syndrome << 16);
        // Nothing reserves from here on until the host has recovered the pair. Before this request's slot is free, and
        // so before the host takes the pair to be at rest: acq_rel carries `failed` to it.
        if (q.desc->recoverable) atom_or_acq_rel_gpu(&q.state()->reserved, layout::RESERVED_CLOSED);
    }
    u32 kind = ld_relaxed_gpu(&record->kind);
    // The waiter's claim to the outcome, or 0 when nothing waits any more. acq_rel: pairs with the exchange in
    // `wait_outcome`.
    u32 waiter = atom_exch_acq_rel_gpu(&record->pins, 0u);
    u32 outcome = layout::OUTCOME_OK;
    if (kind == layout::REQUEST_FETCH) outcome = finish_fetch(q, record, done, waiter);
    if (kind == layout::REQUEST_CLEAN || kind == layout::REQUEST_FLUSH)
        outcome = finish_write(q, record, done, kind == layout::REQUEST_CLEAN);
    if (waiter) {
        st_relaxed_gpu(&record->token, outcome | done.syndrome << 8 | done.vendor_syndrome << 16);
        // Release: who reads DONE reads the outcome. The waiter frees the slot.
        st_release_gpu(&record->state, record_state(index, layout::RECORD_DONE));
    } else {
        free_slot(q, index);
    }
    return true;
}

// Finishes what has completed on a queue, oldest first, at most `most` requests. Completions come in posting
// order, so the first that is missing ends the walk.
GPUVM_NOINLINE u32 reap_queue(const Queue& q, u32 most) {
    layout::QueueState* s = q.state();
    q.close_if_failed();
    u64 hint = ld_relaxed_gpu(&s->cursor);
    u64 end = ld_relaxed_gpu(&s->written);
    // What lies a whole ring back is finished: its slot was written again.
    u64 oldest = end > q.entries() ? end - q.entries() : 0;
    u64 index = hint > oldest ? hint : oldest;
    u32 reaped = 0;
    while (index < end && reaped < most && reap(q, index, false)) {
        ++index;
        ++reaped;
    }
    // Who loses this exchange leaves an older hint, which costs a walk, no more.
    if (index != hint) atom_cas_acquire_gpu(&s->cursor, hint, index);
    return reaped;
}

GPUVM_DEVICE void reap_all(const layout::VmDesc* vm, u32 most) {
    for (u32 n = 0; n < vm->queue_count; ++n) reap_queue(Queue(vm, n), most);
}

// Helps the request behind a FETCHING page's token.
GPUVM_DEVICE void reap_token(const layout::VmDesc* vm, u32 token) {
    u32 slot = (token & ((1u << layout::TOKEN_SLOT_BITS) - 1)) - 1;
    Queue q(vm, token >> layout::TOKEN_SLOT_BITS);
    u64 state = ld_acquire_gpu(&q.record(slot)->state);
    if ((state & 3) == layout::RECORD_POSTED) reap(q, state >> layout::RECORD_INDEX_SHIFT, false);
}

// Finishes what has completed on the queues that reach a page, in every replica.
GPUVM_NOINLINE void reap_replicas_of(const layout::VmDesc* vm, u64 id, u32 most) {
    for (u32 replica = 0; replica < region_of(vm, id)->replicas; ++replica) {
        const layout::StripeDesc* stripe = stripe_of(vm, at_replica(id, replica));
        for (u32 n = 0; n < stripe->queue_count; ++n) reap_queue(Queue(vm, stripe->queue_first + n), most);
    }
}
GPUVM_DEVICE void reap_queues_of(const layout::VmDesc* vm, u64 id, u32 most) {
    if (is_replicated(region_of(vm, id))) return reap_replicas_of(vm, id, most);
    const layout::StripeDesc* stripe = stripe_of(vm, id);
    for (u32 n = 0; n < stripe->queue_count; ++n) reap_queue(Queue(vm, stripe->queue_first + n), most);
}

// Waits for the outcome of a request that was written with `pins` not 0, finishing it when nothing else does.
// Returns OUTCOME_* with the syndrome in bits 8 to 15 and the vendor's in 16 to 23, or 0 when the wait ended first:
// then the thread that finishes the request later does so without us.
GPUVM_NOINLINE u32 wait_outcome(const Queue& q, u64 index) {
    layout::RequestRecord* record = q.record(index);
    Wait wait(q.vm);
    note_wait(layout::WAIT_COMPLETION, q.number, index);
    bool given_up = false;
    // Acquire: pairs with the handler's release of the outcome and, through it, with the publication.
    while (ld_acquire_gpu(&record->state) != record_state(index, layout::RECORD_DONE)) {
        if (reap(q, index, true)) continue;
        if (given_up) {
            // The handler took our pins already and is about to say DONE.
            sleep_ns(32);
        } else if (!wait.again()) {
            if (atom_exch_acq_rel_gpu(&record->pins, 0u) != 0) {
                note_wait(layout::WAIT_NOTHING, 0, 0);
                return 0;
            }
            given_up = true;
        } else if ((wait.turns & 15) == 0) {
            q.close_if_failed();
        }
    }
    u32 outcome = ld_relaxed_gpu(&record->token);
    free_slot(q, index);
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return outcome;
}

}  // namespace detail
}  // namespace gpuvm
