// Queue pairs driven by lanes: reservation, in-order hand-over to the NIC, completions that anyone may finish.
#pragma once

#include "integrity.cuh"
#include "page_word.cuh"
#include "platform.cuh"
#include "pool.cuh"
#include "region.cuh"
#include "replica.cuh"
#include "report.cuh"
#include "wire.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE u64 record_state(u64 index, u64 phase) { return index << layout::RECORD_INDEX_SHIFT | phase; }

// A page error's code in the word: queue, syndrome, vendor syndrome.
GPUVM_DEVICE u32 error_code(u32 queue, const Completion& c) {
    return queue << 16 | c.syndrome << 8 | c.vendor_syndrome;
}

// `finish_fetch` for a region with replicas or checksums. With a checksum the waiter's warp compares and publishes the
// page; where nobody waits any more, this lane does.
GPUVM_NOINLINE u32 finish_guarded_fetch(const Queue& q, u64 owner, u32 frame, u32 token, const Completion& done,
                                        u32 pins) {
    const layout::VmDesc* vm = q.vm;
    const layout::RegionDesc* region = region_of(vm, owner);
    if (done.ok) q.note_answer();
    // The claim is ours, so a copy that was not stale when it was chosen is stale now only because its home was lost
    // and returned before the request was reserved. None is in flight while a home returns.
    bool returned = done.ok && is_replicated(region) && is_stale(vm, owner);
    if (done.ok && !returned && is_checked(region)) {
        if (pins) return layout::OUTCOME_ARRIVED;
        u32 found = checksum_alone(frame_address(vm, region, frame), source_of(vm, owner).bytes);
        return publish_checked(vm, owner, q.number, frame, token, pins, found);
    }
    if (done.ok && !returned) {
        publish_fetched(vm, owner, frame, token, pins);
        return layout::OUTCOME_OK;
    }
    // Refused by one home, it is asked of the other.
    bool repeat = returned || q.to_repeat(done) ||
                  (is_replicated(region) && !is_own_fault(done.syndrome) && leave_replica(vm, owner));
    u64* word = word_of(vm, owner);
    if (repeat)
        publish_absent(word, token);
    else
        fail_page(vm, owner, token, error_code(q.number, done));
    give_frame(vm, region, frame);
    return repeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// Publishes the page of a completed READ with the waiter's pins, or fails it. After a READ that is to be repeated the
// page is absent again, for another request to fetch.
GPUVM_DEVICE u32 finish_fetch(const Queue& q, const layout::RequestRecord* record, const Completion& done, u32 pins) {
    const layout::VmDesc* vm = q.vm;
    u64 owner = ld_relaxed_gpu(&record->owner);
    u32 frame = ld_relaxed_gpu(&record->frame);
    u32 token = ld_relaxed_gpu(&record->token);
    u64* word = word_of(vm, owner);
    const layout::RegionDesc* region = region_of(vm, owner);
    if (is_guarded(region)) return finish_guarded_fetch(q, owner, frame, token, done, pins);
    if (done.ok) {
        count_fetched(vm, source_of(vm, owner).bytes);
        if (is_pooled(region)) st_relaxed_gpu(owner_slot(vm, frame), owner);
        publish(word, token, frame, pins);
        count_own_frame(region);
        return layout::OUTCOME_OK;
    }
    bool repeat = q.to_repeat(done);
    if (repeat)
        publish_absent(word, token);
    else
        fail_page(vm, owner, token, error_code(q.number, done));
    give_frame(vm, region, frame);
    return repeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// `finish_write` for a region with replicas or checksums: the last of the page's WRITEs ends the write-back.
GPUVM_NOINLINE u32 finish_guarded_write(const Queue& q, u64 owner, u32 frame, const Completion& done,
                                        bool release_frame) {
    const layout::VmDesc* vm = q.vm;
    if (done.ok) q.note_answer();
    bool replicated = is_replicated(region_of(vm, owner));
    bool repeat = !done.ok && q.to_repeat(done), own_fault = !done.ok && is_own_fault(done.syndrome);
    u32 how = done.ok ? kWritten : repeat && !(replicated && all_queues_gone(vm, owner)) ? kToRepeat : kMissed;
    // An error of our own leaves the home's copy what it was, and the page dirty.
    u32 end = replicated        ? end_replica(vm, owner, own_fault ? kToRepeat : how)
              : how == kWritten ? kEndedWell
                                : kEndedBadly;
    // No home takes it.
    if ((end == kEndedBadly && !done.ok && !repeat) || own_fault) let_rest(vm, region_of(vm, owner));
    if (end != kNotLast) end_write_back(vm, owner, frame, end == kEndedWell, release_frame);
    return how == kWritten ? layout::OUTCOME_OK : how == kToRepeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// Ends the write-back of a completed WRITE; a page that was cleaned for its frame leaves it now.
GPUVM_DEVICE u32 finish_write(const Queue& q, const layout::RequestRecord* record, const Completion& done,
                              bool release_frame) {
    const layout::VmDesc* vm = q.vm;
    u64 owner = ld_relaxed_gpu(&record->owner);
    u32 frame = ld_relaxed_gpu(&record->frame);
    u64* word = word_of(vm, owner);
    if (is_guarded(region_of(vm, owner))) return finish_guarded_write(q, owner, frame, done, release_frame);
    if (!done.ok) {
        bool repeat = q.to_repeat(done);
        if (!repeat) let_rest(vm, region_of(vm, owner));
        write_back_failed(word);
        return repeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
    }
    wake_up(region_of(vm, owner));
    count_written_back(vm, source_of(vm, owner).bytes);
    write_back_done(word);
    if (release_frame && try_leave(vm, word, frame)) pool_give(vm, frame);
    return layout::OUTCOME_OK;
}

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
        // Nobody reserves from here on until the host has mended the pair. Before this request's slot is free, and so
        // before the host takes the pair to be at rest: acq_rel carries `failed` to it.
        if (q.desc->mended) atom_or_acq_rel_gpu(&q.state()->reserved, layout::RESERVED_CLOSED);
    }
    u32 kind = ld_relaxed_gpu(&record->kind);
    // The waiter's claim to the outcome, or 0 when nobody waits any more. acq_rel: pairs with the exchange in
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
        // Acquire: pairs with the host's release when it has mended the pair, so the ring's new positions are read.
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
GPUVM_DEVICE u32 try_reserve_any(const layout::VmDesc* vm, u64 owner, bool write, u32 want, u32* queue, u64* first) {
    const layout::StripeDesc* stripe = stripe_of(vm, owner);
    if (is_lost(stripe)) return 0;
    if (write && is_being_mended(vm, stripe)) return 0;
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

// Finishes what has completed on the queues that reach a page, in every replica.
GPUVM_NOINLINE void reap_replicas_of(const layout::VmDesc* vm, u64 owner, u32 most) {
    for (u32 replica = 0; replica < region_of(vm, owner)->replicas; ++replica) {
        const layout::StripeDesc* stripe = stripe_of(vm, at_replica(owner, replica));
        for (u32 n = 0; n < stripe->queue_count; ++n) reap_queue(Queue(vm, stripe->queue_first + n), most);
    }
}
GPUVM_DEVICE void reap_queues_of(const layout::VmDesc* vm, u64 owner, u32 most) {
    if (is_replicated(region_of(vm, owner))) return reap_replicas_of(vm, owner, most);
    const layout::StripeDesc* stripe = stripe_of(vm, owner);
    for (u32 n = 0; n < stripe->queue_count; ++n) reap_queue(Queue(vm, stripe->queue_first + n), most);
}

// Writes request and record of a reserved slot. `pins` go to the page at publication; `token` is in the word already.
GPUVM_DEVICE void write_slot(const Queue& q, u64 index, u32 kind, u64 owner, u32 frame, u32 pins, u32 token) {
    const layout::VmDesc* vm = q.vm;
    Source source = source_of(vm, owner);
    // Found before anything is stored, so that all loads are on their way at once.
    layout::RequestRecord* record = q.record(index);
    write_request(q.desc, index,
                  Request{kind != layout::REQUEST_FETCH, frame_address(vm, region_of(vm, owner), frame), source.home,
                          source.stripe->rkey, frame_key(vm, q.desc, source.stripe, frame), source.bytes});
    st_relaxed_gpu(&record->owner, owner);
    st_relaxed_gpu_v4(&record->frame, frame, kind, pins, token);
    // Release: whoever reads POSTED reads this record.
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
        }
        // Release: record, register and `posted` before the next ringer's.
        st_release_gpu(&s->ringer, 0u);
        fence_sc_gpu();
        if (ld_relaxed_gpu(&s->written) == written) return;
    }
}

// Both homes of a replicated page are stale or lost.
GPUVM_NOINLINE void report_no_replica(const layout::VmDesc* vm, u64 owner) {
    Fault fault;
    fault.code = is_unreachable(vm, owner) ? layout::FAULT_QUEUES_FAILED : layout::FAULT_NO_REPLICA;
    fault.region = region_number(owner);
    fault.page = page_of(owner);
    fault.queue = stripe_of(vm, owner)->queue_first;
    report(fault);
}

// Every queue pair that reaches the page is in the error state for good. The first one's own error says why.
GPUVM_DEVICE void report_queues_failed(const layout::VmDesc* vm, u64 owner) {
    u32 queue = stripe_of(vm, owner)->queue_first;
    u32 first = ld_relaxed_gpu(&Queue(vm, queue).state()->failed);
    Fault fault;
    fault.code = layout::FAULT_QUEUES_FAILED;
    fault.region = region_number(owner);
    fault.page = page_of(owner);
    fault.queue = queue;
    fault.syndrome = first >> 8 & 0xff;
    fault.vendor_syndrome = first >> 16 & 0xff;
    report(fault);
}

// Waits for the outcome of a request that was written with `pins` not 0, finishing it when nobody else does.
// Returns OUTCOME_* with the syndrome in bits 8 to 15 and the vendor's in 16 to 23, or 0 when the wait ended first:
// then whoever finishes the request later does so without us.
GPUVM_NOINLINE u32 wait_outcome(const Queue& q, u64 index) {
    layout::RequestRecord* record = q.record(index);
    Wait wait(q.vm->wait_limit_ns);
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
