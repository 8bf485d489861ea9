// A fault: lanes that miss the same page form a group, one leader claims the page, and the warp posts what its
// leaders claimed under one reservation and one doorbell.
//
// No lane waits for a frame, or for another warp's fetch, while a lane of its gathered group holds a frame or a
// pin: those lanes use and give up their pages first, and the others come back for another round.
#pragma once

#include "grant.cuh"
#include "read_ahead.cuh"

namespace gpuvm {
namespace detail {

// One access that missed. It lies in the lane's local memory: what a step needs is loaded there, so that the many steps
// of a fault cost the kernel few registers.
struct Miss {
    layout::ArrayDesc array;
    u64 page;
    u64 seen;     // the page's entry, as `look` acquired it last
    u64 started;  // in ticks
    // What the last round left.
    u32 frame;       // kRoundHeld, kRoundOurs: the page's frame
    u32 token;       // kRoundOurs: what the page's entry holds, or the queue that the page came over
    u64 fetched_id;  // kRoundOurs over queue pairs: the page id, with the replica it came from
    u32 group;       // the lanes with this page
    u32 active;      // the lanes of the round
    bool mixed;      // not all of them are done: they meet again before anyone waits
    u32 parts;       // the round's winners, if they are several parts by what their pages need; else 0
    bool first;      // waits if none of the parts gets anything
    Ahead ahead;     // what is to be fetched ahead
#if defined(GPUVM_HAS_TIMELINE)
    u32 claimed, posted, arrived;  // in ticks from `started`
    bool on_way = false;           // a request of the round is posted
#endif

    GPUVM_DEVICE Miss(const layout::ArrayDesc& of, u64 number) : array(of), page(number), started(ticks()) {}
    GPUVM_DEVICE const layout::VmDesc* vm() const { return vm_of(array); }
    GPUVM_DEVICE u64* word() const { return words_of(array) + page; }
    GPUVM_DEVICE bool pooled() const { return !never_evicted(array); }
    GPUVM_DEVICE void count_own_frame() const {
        if (!pooled()) count_resident(words_of(array));
    }
    GPUVM_DEVICE u64 id() const { return page_id(region_of(array), page); }
    GPUVM_DEVICE Transport transport() const { return transport_of(array); }
    GPUVM_DEVICE Source source() const { return source_of(array, page); }
    // Looks at the word again. Acquire: pairs with publication, and with what an evictor did to the home.
    GPUVM_DEVICE u64 look() { return seen = ld_acquire_gpu(word()); }
    GPUVM_DEVICE u64 frame_address() const { return array.frames + (static_cast<u64>(frame) << array.page_shift); }
    GPUVM_DEVICE u32 leader() const { return __ffs(group) - 1; }
    GPUVM_DEVICE bool leads() const { return lane_id() == leader(); }
};

// The outcome of a round for one lane.
constexpr u32 kRoundRetry = 0;
constexpr u32 kRoundHeld = 1;  // the page is resident, with one pin for this lane
constexpr u32 kRoundOurs = 2;  // its frame is filled and only this group knows: `publish_ours` publishes it
constexpr u32 kRoundFailed = 3;

#if defined(GPUVM_HAS_TIMELINE)
// A demand fetch is over: `well`, its page came.
GPUVM_NOINLINE void timeline_fault(const Miss* miss, u32 queue, bool well) {
    if (!timeline_draws(miss->vm(), miss->started)) return;
    layout::TimelineEvent event{};
    event.page = miss->id();
    event.took = timeline_since(miss->started);
    event.claimed = miss->claimed;
    event.posted = miss->posted;
    event.arrived = miss->arrived;
    event.kind = layout::TIMELINE_FAULT;
    event.well = well;
    event.frame = miss->frame;
    event.queue = queue;
    event.lanes = __popc(miss->group);
    timeline_put(miss->vm(), event);
}
// The lane's request is posted, and its doorbell rung.
GPUVM_DEVICE void timeline_on_way(Miss* miss) {
    miss->posted = timeline_since(miss->started);
    miss->on_way = true;
}
// After a lane's round over queue pairs: of a fetch that it posted.
GPUVM_DEVICE void timeline_round(Miss* miss, u32 outcome) {
    if (miss->transport() != Transport::kQueued || !miss->on_way) return;
    miss->arrived = timeline_since(miss->started);
    timeline_fault(miss, miss->token, outcome == kRoundHeld || outcome == kRoundOurs);
    miss->on_way = false;
}
#endif

// What a leader finds at its page's entry.
constexpr u32 kFollower = 0;
constexpr u32 kHeld = 1;
constexpr u32 kWon = 2;     // the page is FETCHING and ours
constexpr u32 kBusy = 3;    // the page is FETCHING and another's, or used in place
constexpr u32 kFailed = 4;  // the page is in the error state, or has too many pins
constexpr u32 kNone = 5;    // nothing available now

// `code`: of the page's error, as its word has it.
GPUVM_NOINLINE void report_page_error(const layout::VmDesc* vm, u64 id, u32 code, u32 fault_code) {
    Fault fault;
    fault.code = fault_code;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.queue = code >> 16;
    if ((code >> 8 & 0xff) == layout::SYNDROME_CHECKSUM) fault.code = layout::FAULT_CHECKSUM;
    fault.syndrome = code >> 8 & 0xff;
    fault.vendor_syndrome = code & 0xff;
    report(vm, fault);
}

// What a leader can do with a word that it read: pin a resident page, report a failed one. kWon: the page is absent,
// and nothing uses it in place.
GPUVM_DEVICE u32 look_at_page(const layout::VmDesc* vm, u64* word, u64 id, u64 seen, u32 pins, u32* frame) {
    if (is_resident(seen)) {
        u64 old = add_pins(word, pins);
        if (pins_held(old)) {
            touch(word, old);
            *frame = frame_of(old);
            return kHeld;
        }
        undo_pins(word, pins);
        if (!is_resident(old)) return kNone;
        report_wait(vm, layout::FAULT_TOO_MANY_PINS, id, 0, pins_of(old), 0);
        return kFailed;
    }
    if (state_of(seen) == kAbsent) {
        if (!kDirect || !pins_of(seen)) return kWon;
        // Used in place: those who come from now on see the mark, and wait for the fetch.
        touch(word, seen);
        return kBusy;
    }
    if (state_of(seen) == kFetching) return kBusy;
    report_page_error(vm, id, frame_of(seen), layout::FAULT_PAGE_ERROR);
    return kFailed;
}

// Takes `pins` pins of a resident page or claims an absent one.
GPUVM_DEVICE u32 open_page(Miss* miss, u32 pins) {
    while (true) {
        u64 seen = miss->look();
        u32 status = look_at_page(miss->vm(), miss->word(), miss->id(), seen, pins, &miss->frame);
        if (status != kNone && (status != kWon || try_claim(miss->word(), seen))) return status;
    }
}

// Waits until another's fetch of the page has ended, finishing it when its poster has left, or until nothing uses the
// page in place. False at the limit.
GPUVM_NOINLINE bool wait_for_page(const layout::VmDesc* vm, u64* word, u64 id) {
    Wait wait(vm);
    note_wait(layout::WAIT_PAGE, id, 0);
    u64 taken = ld_relaxed_gpu(&pool_of(vm)->turnover);
    bool ended;
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        bool fetching = state_of(seen) == kFetching;
        // Of a page that is used in place: its pins go soon, since who holds them waits for nothing.
        ended = !fetching && !(kDirect && state_of(seen) == kAbsent && pins_of(seen));
        if (ended) break;
        u32 token = fetching ? frame_of(seen) : 0;
        if (is_direct(region_of(vm, id))) {
            if (token) {
                if (fill_chunk(fill_at(vm, token - 1), id)) continue;
                // The last chunks are on their way.
                wait.keep_short();
            }
        } else if constexpr (kQueued) {
            if (token) reap_token(vm, token);
            // A demand fetch whose poster gave up has no token, and a pair that the host declared failed waits for
            // somebody to close it.
            if ((wait.turns & 7) == 7) reap_queues_of(vm, id, kClockWindow);
        }
        if (!wait.again()) {
            // Who fetches it may wait for a frame, with a limit that starts again as long as others get frames: so does
            // this one.
            u64 now_taken = ld_relaxed_gpu(&pool_of(vm)->turnover);
            if (now_taken != taken && !aborted(vm)) {
                taken = now_taken;
                wait.restart();
                continue;
            }
            if (!aborted(vm)) report_wait(vm, layout::FAULT_PAGE_TIMEOUT, id, 0, 0, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return ended;
}

// Turns the end of a demand fetch into the lane's outcome.
GPUVM_DEVICE u32 finish_demand(const Queue& q, u64 index, u64 id, u64 started) {
    u32 ended = wait_outcome(q, index), outcome = ended & 0xff;
    u64 took = ticks() - started;
    if (outcome == layout::OUTCOME_OK) {
        count_latency(latencies(q.vm), took);
        return kRoundHeld;
    }
    if (outcome == layout::OUTCOME_ARRIVED) return kRoundOurs;
    // Bounded: a pair that is recovered again and again answers nothing.
    u64 took_ns = took * 1000 / q.vm->ticks_per_us;
    if (outcome == layout::OUTCOME_FLUSHED && took_ns < q.vm->wait_limit_ns) return kRoundRetry;
    // Not what the page's entry has: the error may be forgotten by now.
    if (outcome == layout::OUTCOME_FAILED)
        report_page_error(q.vm, id, q.number << 16 | (ended & 0xff00) | ended >> 16, layout::FAULT_FETCH);
    else if (!aborted(q.vm))
        report_wait(q.vm, layout::FAULT_COMPLETION_TIMEOUT, id, q.number, index, took_ns);
    return kRoundFailed;
}

// A frame for a page of the miss: its own, or one from the pool.
GPUVM_DEVICE u32 wait_for_frame_of(const Miss* miss) {
    return miss->pooled() ? wait_for_frame(miss->vm(), miss->id()) : static_cast<u32>(miss->page);
}
GPUVM_DEVICE void give_frame_back(const Miss* miss, u32 frame) {
    if (miss->pooled()) pool_give(&miss->vm()->pool, frame);
}

// A page of which no copy can be read.
GPUVM_NOINLINE u32 fail_claim(const Miss* miss) {
    revert_claim(miss->word());
    report_no_replica(miss->vm(), miss->id());
    return kRoundFailed;
}
// After a wait for a slot that ended without one: its reason was reported, but for a replica that was lost meanwhile.
GPUVM_DEVICE u32 without_slot(const layout::VmDesc* vm, u64 id) {
    return is_replicated(region_of(vm, id)) && !aborted(vm) ? kRoundRetry : kRoundFailed;
}

// While the page is on its way, for which `taken` frames were taken: sees where the lane's faults lead, and puts frames
// back.
GPUVM_DEVICE void go_on_after(Miss* miss, u32 taken) {
    follow(miss->array, miss->page, miss->mixed ? lane_id() : 0, static_cast<u32>(miss->started), &miss->ahead);
    if (taken) pay_back(miss->vm(), taken, miss->id());
}

// The common case: all gathered lanes miss one page, and the leader does everything alone.
GPUVM_DEVICE u32 fetch_alone(Miss* miss, u32 pins) {
    const layout::VmDesc* vm = miss->vm();
    u64* word = miss->word();
    GPUVM_TIMELINE_ONLY(miss->claimed = timeline_since(miss->started);)
    u64 id = replica_to_fetch(vm, miss->id());
    if (!id) return fail_claim(miss);
    u32 got = wait_for_frame_of(miss);
    u32 queue;
    u64 index;
    if (got == kNoFrame) {
        revert_claim(word);
        return kRoundFailed;
    }
    if (!wait_for_slot(vm, id, false, &queue, &index)) {
        give_frame_back(miss, got);
        revert_claim(word);
        return without_slot(vm, id);
    }
    Queue q(vm, queue);
    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);
    commit(q, index, 1);
    ring(q);
    count(&counters(vm)->faults, 1);
    GPUVM_TIMELINE_ONLY(timeline_on_way(miss);)
    go_on_after(miss, 1);
    miss->frame = got;
    miss->token = queue;
    miss->fetched_id = id;
    return finish_demand(q, index, id, miss->started);
}

// A second try for a leader whose claim was taken back: it may wait.
GPUVM_NOINLINE u32 open_alone(Miss* miss, u32 pins) {
    switch (open_page(miss, pins)) {
        case kHeld:
            return kRoundHeld;
        case kWon:
            return fetch_alone(miss, pins);
        case kFailed:
            return kRoundFailed;
        default:
            return kRoundRetry;
    }
}

// All winners of a round whose pages the same queues reach. Returns the lane's outcome; those without a frame take
// their claim back. Winners of other queues are a part of their own.
GPUVM_NOINLINE u32 fetch_batch(Miss* miss, u32 pins, u32 won, bool may_wait) {
    const layout::VmDesc* vm = miss->vm();
    u64* word = miss->word();
    u64 id = replica_to_fetch(vm, miss->id());
    GPUVM_TIMELINE_ONLY(miss->claimed = timeline_since(miss->started);)
    // Lanes whose frames come from elsewhere are a part as well; those with a page that is not available, too.
    u64 part = id ? stripe_of(vm, id)->queue_first << 1 | (miss->pooled() ? 0 : 1) : ~0ull;
    if (miss->parts) won = __match_any_sync(won, part);
    if (!id) return fail_claim(miss);
    u32 poster = __ffs(won) - 1;
    u32 rank = __popc(won & ((1u << lane_id()) - 1));
    Grant grant{0, 0, 0, 0};
    if (lane_id() == poster) grant = take_grant(vm, id, miss->pooled(), __popc(won), may_wait);
    u64 packed = __shfl_sync(won, grant.first << 18 | grant.queue << 6 | grant.count, poster);
    grant.ticket = __shfl_sync(won, grant.ticket, poster);
    grant.count = packed & 63;
    grant.queue = packed >> 6 & (layout::QUEUES_MAX - 1);
    grant.first = packed >> 18;
    if (rank >= grant.count) {
        revert_claim(word);
        // Nothing was available although the poster could wait: it reported why.
        return grant.count == 0 && may_wait ? without_slot(vm, id) : kRoundRetry;
    }
    Queue q(vm, grant.queue);
    u64 index = grant.first + rank;
    u32 got = !miss->pooled()               ? static_cast<u32>(miss->page)
              : grant.ticket & kDirectFrame ? static_cast<u32>(grant.ticket)
                                            : pool_take(&vm->pool, grant.ticket + rank);
    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);
    u32 granted = 0, left = won;
    for (u32 n = 0; n < grant.count; ++n) {
        granted |= left & (0 - left);
        left &= left - 1;
    }
    // All blocks are written before the poster hands them over.
    __syncwarp(granted);
    if (lane_id() == poster) {
        commit(q, grant.first, grant.count);
        ring(q);
        count(&counters(vm)->faults, grant.count);
    }
    GPUVM_TIMELINE_ONLY(timeline_on_way(miss);)
    go_on_after(miss, lane_id() == poster ? grant.count : 0);
    miss->frame = got;
    miss->token = grant.queue;
    miss->fetched_id = id;
    return finish_demand(q, index, id, miss->started);
}

// A page with a checksum has arrived: the lanes that wait for it compare, and their leader publishes it with their
// pins.
GPUVM_NOINLINE u32 check_arrived(Miss* miss) {
    const layout::VmDesc* vm = miss->vm();
    // The leader has acquired the completion: it comes before the others' loads of the data.
    __syncwarp(miss->group);
    u32 bytes = miss->source().bytes;
    u32 found = checksum_together(miss->frame_address(), bytes, miss->group);
    u32 result = kRoundRetry;
    if (miss->leads()) {
        u32 outcome = publish_checked(vm, miss->fetched_id, miss->token, miss->frame, 0,
                                      static_cast<u32>(__popc(miss->group)), found);
        if (outcome == layout::OUTCOME_OK) {
            count_latency(latencies(vm), ticks() - miss->started);
            result = kRoundHeld;
        } else if (outcome == layout::OUTCOME_FAILED) {
            report_page_error(vm, miss->fetched_id, checksum_code(miss->token, miss->fetched_id), layout::FAULT_FETCH);
            result = kRoundFailed;
        }
    }
    return __shfl_sync(miss->group, result, miss->leader());
}

// The outcome for a leader of a round over queue pairs; lanes that lead no group wait here for those that do.
GPUVM_NOINLINE u32 queued_round(Miss* miss, u32 lanes, bool leads, bool* busy) {
    u32 status = kFollower;
    if (leads) status = aborted(miss->vm()) ? kFailed : open_page(miss, lanes);
    *busy = status == kBusy;
    u32 outcome = status == kHeld ? kRoundHeld : status == kFailed ? kRoundFailed : kRoundRetry;
    if (!miss->mixed) {
        if (status == kWon) outcome = fetch_alone(miss, lanes);
        return outcome;
    }
    u32 held, won;
    ballot2(miss->active, status == kHeld, status == kWon, &held, &won);
    if (held || won) *busy = false;
    if (status != kWon) return outcome;
    bool split = miss->vm()->queue_groups > 1 || __any_sync(won, !miss->pooled());
    miss->parts = split ? won : 0;
    miss->first = held == 0 && (won & (0 - won)) == 1u << lane_id();
    outcome = fetch_batch(miss, lanes, won, held == 0 && !split);
    // No part waits while another may get something: its lanes can keep their pins until the round has met again. When
    // nothing got anything, one of them waits, all claims having been taken back.
    if (miss->parts && !__any_sync(miss->parts, outcome != kRoundRetry) && miss->first)
        outcome = open_alone(miss, lanes);
    return outcome;
}

// After the data was delivered: counts the fetch, and puts a frame back while the pool is low.
GPUVM_NOINLINE void account_for(const Miss* miss) {
    const layout::VmDesc* vm = miss->vm();
    count_latency(latencies(vm), ticks() - miss->started);
    count(&counters(vm)->faults, 1);
    GPUVM_TIMELINE_ONLY(timeline_fault(miss, kNoQueue, true);)
    count_fetched(vm, miss->source().bytes);
    if (!miss->pooled()) return;
    spend_on_fetch(counters(vm), miss->word(), miss->page, miss->array.page_shift);
    pay_back(vm, 1, miss->id());
}

// Claims an absent page and copies it into a frame, all by one lane. The data is on its way while the claim is made and
// the frame is found. `keep`: the page is published with `pins` for the group; else it stays the group's own.
GPUVM_NOINLINE u32 open_directly(Miss* miss, u32 pins, bool keep, bool may_wait) {
    const layout::VmDesc* vm = miss->vm();
    u64* word = miss->word();
    Source source = miss->source();
    // Stores in place come and go and leave the word as it was: a copy that began before the claim may lack them.
    bool late = source.bytes > layout::FILL_PAGE_BYTES || stores_in_place(miss->array);
    u32 frame = kNoFrame;
    while (true) {
        u64 seen = miss->look();
        u32 status = look_at_page(vm, word, miss->id(), seen, pins, &miss->frame);
        if (status != kWon && frame != kNoFrame) {
            give_frame_back(miss, frame);
            frame = kNoFrame;
        }
        if (status == kNone) continue;
        if (status != kWon) return status;
        if (miss->pooled() && frame == kNoFrame && swaps(vm, miss->id()))
            turn_sample(vm, miss->id(), kSampleWindow, &frame);
        Victim victim = victim_of(miss->array, seen);
        u64 from = nearest(victim, source.home, miss->array.page_shift);
        Fetch fetch;
        // Before the claim: only when it succeeds, on this very word, is the data used. The acquire of the word comes
        // before the copy.
        if (!late) fetch.begin(from, source.bytes);
        bool claimed = try_claim(word, seen);
        if (!miss->pooled())
            frame = static_cast<u32>(miss->page);
        else if (frame == kNoFrame && !pool_pop(&vm->pool, &frame))
            frame = kNoFrame;
        if (!claimed || frame == kNoFrame) {
            if (!late) fetch.cancel();
            if (!claimed) continue;
            // Nothing waits for a frame while a page is claimed: evicting may need the staging buffer, and others the
            // page.
            revert_claim_to(word, victim.field);
            if (!may_wait) return kNone;
            frame = wait_for_frame(vm, miss->id());
            if (frame == kNoFrame) return kFailed;
            continue;
        }
        miss->frame = frame;
        miss->token = 0;
        GPUVM_TIMELINE_ONLY(miss->claimed = miss->posted = timeline_since(miss->started);)
        if (late)
            miss->token = fill_page(vm, word, miss->id(), from, miss->frame_address(), source.bytes);
        else
            fetch.finish(miss->frame_address());
        if (!was_there(vm, victim)) {
            fetch.begin(source.home, source.bytes);
            fetch.finish(miss->frame_address());
        }
        GPUVM_TIMELINE_ONLY(miss->arrived = timeline_since(miss->started);)
        if (victim.victims) keep_or_give(victim, frame);
        if (!keep) return kWon;
        if (miss->pooled()) st_relaxed_gpu(page_in_frame(vm, frame), miss->id());
        publish(word, miss->token, frame, pins);
        miss->count_own_frame();
        account_for(miss);
        return kHeld;
    }
}

// The same round for pages that lanes copy themselves: the leaders take turns at the block's copy engine.
GPUVM_DEVICE u32 direct_round(Miss* miss, u32 lanes, bool leads, bool keep, bool* busy) {
    u32 status = kFollower;
    if (!miss->mixed) {
        if (leads) status = aborted(miss->vm()) ? kFailed : open_directly(miss, lanes, keep, true);
        *busy = status == kBusy;
    } else {
        u32 unused, rest;
        ballot2(miss->active, false, leads, &unused, &rest);
        u32 held = 0;
        while (rest) {
            u32 turn = rest & (0 - rest);
            rest -= turn;
            // Who holds a page waits for no frame: its own lanes use it first.
            if (turn & 1u << lane_id())
                status = aborted(miss->vm()) ? kFailed : open_directly(miss, lanes, keep, held == 0);
            ballot2(miss->active, status == kHeld || status == kWon, false, &held, &unused);
        }
        *busy = status == kBusy && held == 0;
    }
    switch (status) {
        case kHeld:
            return kRoundHeld;
        case kWon:
            return kRoundOurs;
        case kFailed:
            return kRoundFailed;
        default:
            return kRoundRetry;
    }
}

// Lanes whose page came, or was there. A function of its own: ptxas 13.0 drops `acquire_round`'s load whose value
// nothing uses, though not its order, and with it the memory descriptor that the function's other accesses to global
// memory would need.
GPUVM_NOINLINE void count_lanes(const layout::VmDesc* vm, u32 lanes, bool waited) {
    layout::Counters* c = counters(vm);
    count(&c->missed_lanes, lanes);
    count(&c->coalesced, waited ? lanes : lanes - 1);
}

// Waits where the leader found a page `busy`, and tells the group how its round ended.
GPUVM_DEVICE u32 end_round(Miss* miss, bool leads, u32 lanes, bool busy, u32 outcome) {
    if (busy && !wait_for_page(miss->vm(), miss->word(), miss->id())) outcome = kRoundFailed;
    if (leads && (outcome == kRoundHeld || outcome == kRoundOurs)) count_lanes(miss->vm(), lanes, busy);
    u64 result = __shfl_sync(miss->group, static_cast<u64>(miss->frame) << 2 | outcome, miss->leader());
    miss->frame = static_cast<u32>(result >> 2);
    outcome = result & 3;
    if constexpr (kReliable)
        if (outcome == kRoundOurs && miss->transport() == Transport::kQueued) outcome = check_arrived(miss);
    // Only the leader has acquired the page so far, and a shuffle orders nothing: each follower pairs with the
    // publication itself, so that its accesses to the frame come after the fill.
    // What it reads is looked at, since ptxas 13.0 would drop the load, and with it the memory descriptor of others.
    if (!leads && outcome == kRoundHeld && state_of(ld_acquire_gpu(miss->word())) == kError) outcome = kRoundFailed;
    // A page that is not published yet: the leader's copy comes before its group's accesses.
    if (outcome == kRoundOurs) __syncwarp(miss->group);
    return outcome;
}

// One round for every lane that comes here together. Each returns with one pin on its page, with a page that is its
// group's own (not with `keep`), or with the reason why not.
GPUVM_NOINLINE u32 acquire_round(Miss* miss, bool keep) {
    u64 id = miss->id();
    u32 group = match_active(id, &miss->active);
    // Lanes whose pages come by different transports part here: nothing below may wait for a lane of another
    // transport. They are as lanes that came one after the other.
    if constexpr (kDirect && kQueued)
        miss->active = __match_any_sync(miss->active, static_cast<u32>(miss->transport()));
    miss->ahead.stream = nullptr;
    miss->group = group;
    miss->mixed = group != miss->active;
    bool leads = miss->leads(), busy = false;
    u32 lanes = __popc(group), outcome;
    if (miss->transport() == Transport::kCopied)
        // One lane of the group that keeps its page is enough: lanes come here from several places in a kernel.
        outcome = direct_round(miss, lanes, leads, __any_sync(group, keep), &busy);
    else if constexpr (kQueued)
        outcome = queued_round(miss, lanes, leads, &busy);
    else
        outcome = kRoundFailed;
    bool waited = busy;
    GPUVM_TIMELINE_ONLY(timeline_round(miss, outcome);)
    if constexpr (kQueued)
        if (busy && miss->transport() == Transport::kQueued) go_on_after(miss, 0);
    outcome = end_round(miss, leads, lanes, busy, outcome);
    if constexpr (kQueued)
        if (miss->ahead.stream)
            read_ahead(miss->array, miss->page, &miss->ahead, static_cast<u32>(miss->started), !waited);
    return outcome;
}

// The group has used its page: it becomes everybody's.
GPUVM_NOINLINE void publish_ours(Miss* miss, bool written) {
    written = __any_sync(miss->group, written);
    // The group's stores come before the leader's release.
    __syncwarp(miss->group);
    if (miss->leads()) {
        const layout::VmDesc* vm = miss->vm();
        if (miss->pooled()) st_relaxed_gpu(page_in_frame(vm, miss->frame), miss->id());
        if (written)
            publish_dirty(miss->word(), miss->token, miss->frame, 0);
        else
            publish(miss->word(), miss->token, miss->frame, 0);
        miss->count_own_frame();
        account_for(miss);
    }
    // The group goes on together: lanes that ran ahead of their leader would meet the next page one by one.
    __syncwarp(miss->group);
}

}  // namespace detail
}  // namespace gpuvm
