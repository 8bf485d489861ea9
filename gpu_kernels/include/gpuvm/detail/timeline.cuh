// The timeline: what lanes note of single faults, evictions, write-backs, prefetches and doorbells, for the host to
// draw. Only in programs whose GPUVM_FEATURES has FEATURE_TIMELINE, and there only in launches over a virtual memory
// that has a timeline. In all other programs its hooks are no text at all.
#pragma once

#include "report.cuh"

// The preprocessor knows no constants: layout::FEATURE_TIMELINE is 32.
#if defined(GPUVM_FEATURES)
#if (GPUVM_FEATURES) & 32
#define GPUVM_HAS_TIMELINE 1
#endif
#endif

#if defined(GPUVM_HAS_TIMELINE)
#define GPUVM_TIMELINE_ONLY(...) __VA_ARGS__

namespace gpuvm {
namespace detail {

constexpr bool kTimeline = true;
constexpr u32 kNoQueue = ~0u;

GPUVM_DEVICE const layout::TimelineDesc* timeline_of(const layout::VmDesc* vm) {
    return reinterpret_cast<const layout::TimelineDesc*>(launch_of(vm)->timeline);
}

// Draws one event of this many, by a number that differs from event to event; none where there is no timeline.
GPUVM_DEVICE bool timeline_draws(const layout::VmDesc* vm, u64 number) {
    const layout::TimelineDesc* timeline = timeline_of(vm);
    return timeline && static_cast<u32>(number * 0x9e3779b97f4a7c15ull >> 32) <= timeline->threshold;
}

// Ticks since `started`, as many as fit.
GPUVM_DEVICE u32 timeline_since(u64 started) {
    u64 took = ticks() - started;
    return took < ~0u ? static_cast<u32>(took) : ~0u;
}

// Puts an event into the ring, or counts it as dropped where the ring is full: lanes wait for nothing here.
GPUVM_NOINLINE void timeline_put(const layout::VmDesc* vm, const layout::TimelineEvent& event) {
    const layout::TimelineDesc* timeline = timeline_of(vm);
    layout::TimelineState* state = reinterpret_cast<layout::TimelineState*>(timeline->state);
    u64 number = ld_relaxed_gpu(&state->head);
    for (u32 tries = 0; tries < 64; ++tries) {
        // Acquire: the host has copied what was in the slot before it moved the tail past it.
        i64 unread = static_cast<i64>(number - ld_acquire_sys(&state->tail));
        if (unread > static_cast<i64>(timeline->mask)) break;
        u64 seen = atom_cas_relaxed_gpu(&state->head, number, number + 1);
        if (seen != number) {
            number = seen;
            continue;
        }
        layout::TimelineEvent* slot =
            reinterpret_cast<layout::TimelineEvent*>(timeline->events) + (static_cast<u32>(number) & timeline->mask);
        st_relaxed_gpu(&slot->page, event.page);
        st_relaxed_gpu(&slot->at_ns, time_ns());
        st_relaxed_gpu_v4(&slot->posted, event.posted, event.arrived, event.kind, event.well);
        st_relaxed_gpu(&slot->took, event.took);
        st_relaxed_gpu(&slot->claimed, event.claimed);
        st_relaxed_gpu_v4(&slot->frame, event.frame, event.queue, multiprocessor_id() << 8 | (warp_slot() & 0xff),
                          event.lanes);
        // Release: who reads the number reads the event.
        st_release_sys(&slot->number, number + 1);
        return;
    }
    count(&state->dropped, 1);
}

// An event without a duration.
GPUVM_NOINLINE void timeline_mark(const layout::VmDesc* vm, u32 kind, u64 page, u32 frame, u32 queue, u32 took) {
    layout::TimelineEvent event{};
    event.page = page;
    event.took = took;
    event.kind = kind;
    event.frame = frame;
    event.queue = queue;
    timeline_put(vm, event);
}

// Both ends of a request draw alike: by its page and frame.
GPUVM_DEVICE bool timeline_draws_request(const layout::VmDesc* vm, u64 id, u32 frame) {
    constexpr u64 kReplica = static_cast<u64>(layout::REPLICAS_MAX - 1) << layout::PAGE_ID_REPLICA_SHIFT;
    return timeline_draws(vm, (id & ~kReplica) ^ static_cast<u64>(frame) << 36);
}

GPUVM_DEVICE void timeline_eviction(const layout::VmDesc* vm, u64 id, u32 frame) {
    if (timeline_draws(vm, ticks() ^ frame)) timeline_mark(vm, layout::TIMELINE_EVICTION, id, frame, kNoQueue, 0);
}

GPUVM_DEVICE void timeline_doorbell(const layout::VmDesc* vm, u32 queue, u64 written) {
    if (timeline_draws(vm, ticks() ^ queue)) timeline_mark(vm, layout::TIMELINE_DOORBELL, written, 0, queue, 0);
}

// A request is written. Of a demand fetch, which has no token, the fault tells.
GPUVM_DEVICE void timeline_posted(const layout::VmDesc* vm, u64 id, u32 frame, u32 kind, u32 token, u32 queue) {
    bool fetch = kind == layout::REQUEST_FETCH;
    if ((fetch && !token) || !timeline_draws_request(vm, id, frame)) return;
    timeline_mark(vm, fetch ? layout::TIMELINE_PREFETCH_POSTED : layout::TIMELINE_WRITE_POSTED, id, frame, queue, 0);
}

// A page is written back, by the calling lane if that took some ticks.
GPUVM_DEVICE void timeline_written(const layout::VmDesc* vm, u64 id, u32 frame, u32 took) {
    if (timeline_draws_request(vm, id, frame)) timeline_mark(vm, layout::TIMELINE_WRITTEN, id, frame, kNoQueue, took);
}

// A fetch that nothing waits for has brought its page.
GPUVM_DEVICE void timeline_prefetched(const layout::VmDesc* vm, u64 id, u32 frame) {
    if (timeline_draws_request(vm, id, frame)) timeline_mark(vm, layout::TIMELINE_PREFETCHED, id, frame, kNoQueue, 0);
}

}  // namespace detail
}  // namespace gpuvm
#else
#define GPUVM_TIMELINE_ONLY(...)

namespace gpuvm {
namespace detail {

constexpr bool kTimeline = false;

}  // namespace detail
}  // namespace gpuvm
#endif
