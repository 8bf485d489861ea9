// A fault: lanes that miss the same page form a group, one leader claims the page, and the warp posts what its
// leaders claimed under one reservation and one doorbell.
//
// No lane waits for a frame, or for another warp's fetch, while a lane of its gathered group holds a frame or a
// pin: those lanes use and give up their pages first, and the others come back for another round.
#pragma once

#include "clock.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kRoundRetry = 0;
constexpr u32 kRoundHeld = 1;
constexpr u32 kRoundFailed = 2;

// The outcome of a round for one lane.
struct Round {
    u32 outcome;
    u32 frame;   // kRoundHeld: the page's frame, with one pin for this lane
    u32 active;  // the lanes of this round
    bool mixed;  // not all of them are done: they meet again before anyone waits
};

// What a leader finds at its page's word.
constexpr u32 kFollower = 0;
constexpr u32 kHeld = 1;
constexpr u32 kWon = 2;     // the page is FETCHING and ours
constexpr u32 kBusy = 3;    // the page is FETCHING and another's
constexpr u32 kFailed = 4;  // the page is in the error state, or has too many pins

GPUVM_NOINLINE void report_page_error(u64 owner, u64 word, u32 fault_code) {
    Fault fault;
    u32 code = frame_of(word);
    fault.code = fault_code;
    fault.region = static_cast<u32>((owner & ~layout::OWNER_TAKEN_BIT) >> layout::OWNER_REGION_SHIFT);
    fault.page = page_of(owner);
    fault.queue = code >> 16;
    fault.syndrome = code >> 8 & 0xff;
    fault.vendor_syndrome = code & 0xff;
    report(fault);
}

// Takes `count` pins of a resident page or claims an absent one.
GPUVM_DEVICE u32 open_page(u64* word, u64 owner, u32 count_, u32* frame) {
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        if (is_resident(seen)) {
            u64 old = add_pins(word, count_);
            if (pins_held(old)) {
                touch(word, old);
                *frame = frame_of(old);
                return kHeld;
            }
            undo_pins(word, count_);
            if (is_resident(old)) {
                report_wait(layout::FAULT_TOO_MANY_PINS, owner, 0, pins_of(old), 0);
                return kFailed;
            }
        } else if (state_of(seen) == kAbsent) {
            if (try_claim(word, seen)) return kWon;
        } else if (state_of(seen) == kFetching) {
            return kBusy;
        } else {
            report_page_error(owner, seen, layout::FAULT_PAGE_ERROR);
            return kFailed;
        }
    }
}

// Waits until another's fetch of the page has ended, finishing it when its poster has left. False at the limit.
GPUVM_NOINLINE bool wait_for_page(const layout::VmDesc* vm, u64* word, u64 owner) {
    Wait wait(vm->wait_limit_ns);
    note_wait(layout::WAIT_PAGE, owner, 0);
    bool ended;
    while (true) {
        u64 seen = ld_acquire_gpu(word);
        ended = state_of(seen) != kFetching;
        if (ended) break;
        u32 token = frame_of(seen);
        if (token)
            reap_token(vm, token);
        else if ((wait.turns & 7) == 7)  // a demand fetch whose poster gave up has no token
            reap_queues_of(vm, owner, kClockWindow);
        if (!wait.again()) {
            if (!aborted()) report_wait(layout::FAULT_PAGE_TIMEOUT, owner, 0, 0, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return ended;
}

// Waits until one slot of the queues that reach the page is free and reserves it. False at the limit or when every
// queue failed.
GPUVM_NOINLINE bool wait_for_slot(const layout::VmDesc* vm, u64 owner, bool write, u32* queue, u64* index) {
    if (try_reserve_any(vm, owner, write, 1, queue, index)) return true;
    Wait wait(vm->wait_limit_ns);
    u32 first = stripe_of(vm, owner)->queue_first;
    note_wait(layout::WAIT_QUEUE, first, owner);
    bool got = false;
    while (!got) {
        if (all_queues_gone(vm, owner)) {
            report_queues_failed(vm, owner);
            break;
        }
        reap_queues_of(vm, owner, kClockWindow);
        got = try_reserve_any(vm, owner, write, 1, queue, index) != 0;
        if (!got && !wait.again()) {
            if (!aborted()) report_wait(layout::FAULT_QUEUE_TIMEOUT, owner, first, 0, wait.waited());
            break;
        }
    }
    note_wait(layout::WAIT_NOTHING, 0, 0);
    return got;
}

// Turns the end of a demand fetch into the lane's outcome.
GPUVM_DEVICE u32 finish_demand(const Queue& q, u64 index, u64* word, u64 owner, u64 started) {
    u32 outcome = wait_outcome(q, index) & 0xff;
    if (outcome == layout::OUTCOME_OK) {
        count_latency(q.vm, time_ns() - started);
        return kRoundHeld;
    }
    // Bounded: a pair that is mended again and again answers nobody.
    if (outcome == layout::OUTCOME_FLUSHED && time_ns() - started < q.vm->wait_limit_ns) return kRoundRetry;
    if (outcome == layout::OUTCOME_FAILED)
        report_page_error(owner, ld_relaxed_gpu(word), layout::FAULT_FETCH);
    else if (!aborted())
        report_wait(layout::FAULT_COMPLETION_TIMEOUT, owner, q.number, index, time_ns() - started);
    return kRoundFailed;
}

// The common case: all gathered lanes miss one page, and the leader does everything alone.
GPUVM_DEVICE u32 fetch_alone(const layout::VmDesc* vm, u64* word, u64 owner, u32 pins, u64 started, u32* frame) {
    u32 got = wait_for_frame(vm, owner);
    u32 queue;
    u64 index;
    if (got == kNoFrame) {
        revert_claim(word);
        return kRoundFailed;
    }
    if (!wait_for_slot(vm, owner, false, &queue, &index)) {
        pool_give(vm, got);
        revert_claim(word);
        return kRoundFailed;
    }
    Queue q(vm, queue);
    write_slot(q, index, layout::REQUEST_FETCH, owner, got, pins, 0);
    commit(q, index, 1);
    ring(q);
    count(&counters(vm)->faults, 1);
    pay_back(vm, 1);
    *frame = got;
    return finish_demand(q, index, word, owner, started);
}

// What the poster of a batch tells the other winners.
struct Grant {
    u32 count;  // winners, by rank, that got a frame and a slot
    u32 queue;
    u64 first;   // their slots
    u64 ticket;  // their pool tickets; or, with the top bit, the one frame itself
};
constexpr u64 kDirectFrame = 1ull << 63;

// The poster takes frames and slots for up to `want` winners: what there is, at least one unless a lane of the
// warp holds something (`may_wait` false).
GPUVM_NOINLINE Grant take_grant(const layout::VmDesc* vm, u64 owner, u32 want, bool may_wait) {
    Grant grant{0, 0, 0, 0};
    u32 frames = pool_reserve(vm, want);
    u32 direct = kNoFrame;
    if (frames == 0) {
        if (!may_wait) return grant;
        direct = wait_for_frame(vm, owner);
        if (direct == kNoFrame) return grant;
        frames = 1;
    }
    grant.count = try_reserve_any(vm, owner, false, frames, &grant.queue, &grant.first);
    if (grant.count == 0 && may_wait && wait_for_slot(vm, owner, false, &grant.queue, &grant.first)) grant.count = 1;
    if (direct != kNoFrame) {
        if (grant.count == 0) pool_give(vm, direct);
        grant.ticket = kDirectFrame | direct;
    } else {
        pool_unreserve(vm, frames - grant.count);
        if (grant.count) grant.ticket = pool_tickets(vm, grant.count);
    }
    return grant;
}

// All winners of a round whose pages the same queues reach. Returns the lane's outcome; those without a frame take
// their claim back. Winners of other queues are a group of their own: neither waits for the other before its lanes
// have used and unpinned their pages.
GPUVM_NOINLINE u32 fetch_batch(const layout::VmDesc* vm, u64* word, u64 owner, u32 pins, u32 won, bool may_wait,
                               u64 started, u32* frame) {
    if (vm->queue_groups > 1) won = __match_any_sync(won, stripe_of(vm, owner)->queue_first);
    u32 poster = __ffs(won) - 1;
    u32 rank = __popc(won & ((1u << lane_id()) - 1));
    Grant grant{0, 0, 0, 0};
    if (lane_id() == poster) grant = take_grant(vm, owner, __popc(won), may_wait);
    u64 packed = __shfl_sync(won, grant.first << 18 | grant.queue << 6 | grant.count, poster);
    grant.ticket = __shfl_sync(won, grant.ticket, poster);
    grant.count = packed & 63;
    grant.queue = packed >> 6 & (layout::QUEUES_MAX - 1);
    grant.first = packed >> 18;
    if (rank >= grant.count) {
        revert_claim(word);
        // Nothing was to be had although the poster could wait: it reported why.
        return grant.count == 0 && may_wait ? kRoundFailed : kRoundRetry;
    }
    Queue q(vm, grant.queue);
    u64 index = grant.first + rank;
    u32 got = grant.ticket & kDirectFrame ? static_cast<u32>(grant.ticket) : pool_take(vm, grant.ticket + rank);
    write_slot(q, index, layout::REQUEST_FETCH, owner, got, pins, 0);
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
        pay_back(vm, grant.count);
    }
    *frame = got;
    return finish_demand(q, index, word, owner, started);
}

// One round for every lane that comes here together. Each returns with one pin on its page, or with the reason why not.
GPUVM_NOINLINE Round acquire_round(layout::ArrayDesc array, u64 page, u64 started) {
    const layout::VmDesc* vm = reinterpret_cast<const layout::VmDesc*>(array.vm);
    u64* word = reinterpret_cast<u64*>(array.words) + page;
    u64 owner = owner_of(array.region, page);
    Round round{kRoundRetry, 0, 0, false};
    u32 group = match_active(owner, &round.active);
    u32 leader = __ffs(group) - 1;
    u32 lanes = __popc(group);
    bool leads = lane_id() == leader;
    u32 status = kFollower;
    if (leads) status = aborted() ? kFailed : open_page(word, owner, lanes, &round.frame);
    bool may_wait = true;
    u32 outcome = status == kHeld ? kRoundHeld : status == kFailed ? kRoundFailed : kRoundRetry;
    if (group == round.active) {
        if (status == kWon) outcome = fetch_alone(vm, word, owner, lanes, started, &round.frame);
    } else {
        u32 held, won;
        ballot2(round.active, status == kHeld, status == kWon, &held, &won);
        may_wait = held == 0;
        if (status == kWon) outcome = fetch_batch(vm, word, owner, lanes, won, may_wait, started, &round.frame);
        may_wait = may_wait && won == 0;
        round.mixed = true;
    }
    if (status == kBusy && may_wait && !wait_for_page(vm, word, owner)) outcome = kRoundFailed;
    if (leads && outcome == kRoundHeld) {
        count(&counters(vm)->missed_lanes, lanes);
        count(&counters(vm)->coalesced, status == kWon ? lanes - 1 : lanes);
    }
    u64 result = __shfl_sync(group, static_cast<u64>(round.frame) << 2 | outcome, leader);
    round.outcome = result & 3;
    round.frame = static_cast<u32>(result >> 2);
    // Only the leader has acquired the page so far, and a shuffle orders nothing: each follower pairs with the
    // publication itself, so that its weak accesses to the frame come after the fill.
    if (!leads && round.outcome == kRoundHeld) ld_acquire_gpu(word);
    return round;
}

}  // namespace detail
}  // namespace gpuvm
