// The commonest read miss, kept in registers. fault.cuh serves all that is not common.
#pragma once

#include "fault.cuh"

namespace gpuvm {
namespace detail {

#if GPUVM_STAGED
// What the quick way has to say: a value, or that the long way must be taken.
struct Quick {
    u64 bits;
    bool done;
};

// What the commonest miss needs of the virtual memory, in registers: loads that wait for nothing.
GPUVM_DEVICE layout::VmDesc pool_view(const layout::VmDesc* vm) {
    layout::VmDesc view;
    view.pool.state = ld_weak(&vm->pool.state);
    view.pool.ring = ld_weak(&vm->pool.ring);
    view.pool.reciprocal = ld_weak(&vm->pool.reciprocal);
    view.pool.count = ld_weak(&vm->pool.count);
    view.frame_pages = ld_weak(&vm->frame_pages);
    view.counters = ld_weak(&vm->counters);
    view.counter_shards = ld_weak(&vm->counter_shards);
    view.latencies = ld_weak(&vm->latencies);
    return view;
}

GPUVM_DEVICE Victim one_of() { return Victim{nullptr, 0}; }
GPUVM_DEVICE Victim one_of(const Victim& victim) { return victim; }

GPUVM_DEVICE void count_quick(const layout::VmDesc* view, u32 lanes, u32 bytes) {
    layout::Counters* c = counters(view);
    count(&c->missed_lanes, lanes);
    count(&c->coalesced, lanes - 1);
    count(&c->faults, 1);
    count(&c->pages_fetched, 1);
    count(&c->bytes_fetched, bytes);
}

// Publishes a page in its frame. Not where it came from memory whose loan had ended, or from a copy that is none any
// more: what came is garbage, and the long way fetches the page from its home. Nothing misses such a slot.
GPUVM_DEVICE void end_quickly(const layout::VmDesc* view, u64* word, u32 frame, const Victim& victim, bool lent) {
    if (!lent) {
        st_relaxed_gpu(page_in_frame(view, frame), u64{0});
        pool_give(&view->pool, frame);
        // Not lent any more, it is no one's; but the hand over the slots must not look for the page there.
        if (kVictims && named(victim)) give_slot(victim.victims, named(victim) - 1);
        revert_claim(word);
        return;
    }
    if (kVictims && victim.victims) keep_or_give(victim, frame);
    publish(word, 0, frame, 0);
}

#if defined(GPUVM_HAS_TIMELINE)
// What `timeline_fault` notes of other misses.
GPUVM_NOINLINE void timeline_quick(const layout::VmDesc* vm, u64 id, u32 frame, u64 started, u32 claimed, u32 arrived,
                                   u32 lanes, bool well) {
    if (!timeline_draws(vm, started)) return;
    layout::TimelineEvent event{};
    event.page = id;
    event.took = timeline_since(started);
    event.claimed = event.posted = claimed;
    event.arrived = arrived;
    event.kind = layout::TIMELINE_FAULT;
    event.well = well;
    event.frame = frame;
    event.queue = kNoQueue;
    event.lanes = lanes;
    timeline_put(vm, event);
}
#endif

// The commonest miss in one go and in registers: the lanes that are here miss one page, which goes through the staging
// buffer in one piece, is absent still, and finds a frame in the pool. They read their elements from the buffer while
// the frame is written. Anything else is left to `acquire_round`.
//
// ptxas 13.0 takes a mask that comes of `__activemask` for the same in all lanes that are here, which is wrong where
// two groups meet at the end of a branch: one's leader passed a barrier with the other's mask. `seen` is loaded a lane,
// so a mask that it is or-ed into may differ; its state is 0 here, the page being absent.
//
// `named`: the page's victim, in a program that knows such; in others a parameter more would cost registers.
template <class B, class... Named>
GPUVM_NOINLINE Quick read_quickly(const layout::VmDesc* vm, u64* word, u64 seen, u64 id, u64 home, u64 frames,
                                  u32 bytes, u32 page_shift, u32 offset, Named... named) {
    Quick result{0, false};
    Victim victim = one_of(named...);
    u64 started = ticks();
    const layout::VmDesc view = pool_view(vm);  // looked up while the page is on its way
    static_assert(kAbsent == 0, "the state of an absent page adds nothing to a mask of lanes");
    u32 group = __activemask() | static_cast<u32>(seen & layout::STATE_MASK);
    u32 rank = __popc(group & ((1u << lane_id()) - 1)), leader = __ffs(group) - 1;
    // Two votes instead of a match: this is the way of one page only.
    if (!__all_sync(group, id == __shfl_sync(group, id, leader))) return result;
    // Not `lane_id() == leader`: ptxas takes that for one lane of all that are here, and leaders may meet.
    bool leads = rank == 0;
    u32 lanes = __popc(group);
    Fetch fetch;
    u32 frame = kNoFrame, phase = 0, low = 0;
    i64 available = 0;
    GPUVM_TIMELINE_ONLY(u32 claimed_after = 0;)
    u64* histogram = nullptr;
    if (leads) {
        // Before the claim: only when it succeeds, on the word that the caller acquired, is the data used.
        if constexpr (kVictims) home = nearest(victim, home, page_shift);
        fetch.begin(home, bytes);
        phase = fetch.phase();
        bool claimed = try_claim(word, seen);  // while the page is on its way, as all of this
        available = claimed ? pool_reserve_one(&view.pool) : 0;
        GPUVM_TIMELINE_ONLY(claimed_after = timeline_since(started);)
        if (available) {
            frame = pool_take(&view.pool, pool_tickets(&view.pool, 1));
            low = static_cast<u32>(low_water(&view));
            histogram = latencies(&view);
            st_relaxed_gpu(page_in_frame(&view, frame), id);
            count_quick(&view, lanes, bytes);
            spend_on_fetch(counters(&view), word, page_of(id), page_shift);
        } else {
            if (claimed) revert_claim_to(word, victim.field);
            fetch.cancel();
        }
    }
    u64 found = __shfl_sync(group, static_cast<u64>(frame) << 8 | fetch.buffer() << 1 | phase, leader);
    if (static_cast<u32>(found >> 8) == kNoFrame) return result;
    u32 buffer = (found & 0xff) >> 1;
    u64 target = frames + (found >> 8 << page_shift);
    // The leader's barrier comes before the others' waits at it: a shuffle orders nothing.
    __syncwarp(group);
    Fetch::wait(buffer, found & 1);
    // The arrival comes before every lane's loads, also where the leader alone can wait for it.
    __syncwarp(group);
    GPUVM_TIMELINE_ONLY(u32 arrived_after = timeline_since(started);)
    bool lent = !kVictims || !leads || was_there(vm, victim);
    const unsigned char* staged = Fetch::staged(buffer);
    result.bits = *reinterpret_cast<const B*>(staged + offset);
    result.done = true;
    bool together = lanes >= 8 && !(bytes & 15);
    if (together) store_staged(staged, target, bytes, rank, lanes);
    // All lanes' accesses to the buffer, and their stores to the frame, come before what the leader does now.
    __syncwarp(group);
    if (leads) {
        if (!together) fetch.empty(frames + (static_cast<u64>(frame) << page_shift));
        fetch.release();  // the thread that waits for the buffer need not wait for the frame
        if (!together) Fetch::emptied();
        end_quickly(&view, word, frame, victim, lent);
        count_latency(histogram, ticks() - started);
        GPUVM_TIMELINE_ONLY(timeline_quick(vm, id, frame, started, claimed_after, arrived_after, lanes, lent);)
        if (available <= low) refill(vm, 1, available, id);
    }
    __syncwarp(group);
    if constexpr (kVictims) result.done = __shfl_sync(group, lent, leader);
    return result;
}

// The quick way of an array's page, whose word was `seen`.
template <class B, class... Named>
GPUVM_DEVICE Quick read_quickly_of(const layout::ArrayDesc& array, u64 page, u32 offset, u64 seen, Named... named) {
    Source source = source_of(array, page);
    return read_quickly<B>(vm_of(array), words_of(array) + page, seen, page_id(region_of(array), page), source.home,
                           array.frames, source.bytes, array.page_shift, offset, named...);
}
#endif

}  // namespace detail
}  // namespace gpuvm
