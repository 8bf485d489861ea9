// Frames and slots for the pages that the lanes of a warp miss together.
#pragma once

#include "clock.cuh"

namespace gpuvm {
namespace detail {

// What the poster of a batch tells the other winners.
struct Grant {
    u32 count;  // winners, by rank, that got a frame and a slot
    u32 queue;
    u64 first;   // their slots
    u64 ticket;  // their pool tickets; or, with the top bit, the one frame itself
};
constexpr u64 kDirectFrame = 1ull << 63;
// Turns of the clock for frames that the pool lacks: each frame twice, and as many that are in use.
constexpr u32 kGrantTurns = 2;

// The poster takes frames and slots for up to `want` winners: what there is, at least one unless a lane of the
// warp holds something (`may_wait` false).
GPUVM_NOINLINE Grant take_grant(const layout::VmDesc* vm, u64 id, bool pooled, u32 want, bool may_wait) {
    Grant grant{0, 0, 0, 0};
    u32 frames = pooled ? pool_reserve(&vm->pool, want) : want;
    // Lanes without a frame would wait until the pages of the others have come. This waits for nothing.
    for (u32 turns = 0; frames < want && turns < kGrantTurns; ++turns) {
        turn_clock(vm, window_for(want - frames), want - frames, nullptr, id);
        frames += pool_reserve(&vm->pool, want - frames);
    }
    u32 direct = kNoFrame;
    if (frames == 0) {
        if (!may_wait) return grant;
        direct = wait_for_frame(vm, id);
        if (direct == kNoFrame) return grant;
        frames = 1;
    }
    grant.count = try_reserve_any(vm, id, false, frames, &grant.queue, &grant.first);
    if (grant.count == 0 && may_wait && wait_for_slot(vm, id, false, &grant.queue, &grant.first)) grant.count = 1;
    if (direct != kNoFrame) {
        if (grant.count == 0) pool_give(&vm->pool, direct);
        grant.ticket = kDirectFrame | direct;
    } else if (pooled) {
        pool_unreserve(&vm->pool, frames - grant.count);
        if (grant.count) grant.ticket = pool_tickets(&vm->pool, grant.count);
    }
    return grant;
}

}  // namespace detail
}  // namespace gpuvm
