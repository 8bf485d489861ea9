// What a kernel calls that came as PTX and was rewritten for arrays whose pages come by faults: `docs/PTX.md`. Where an
// address is one of such an array's, the page is pinned, the kernel's own instruction goes to its frame, and the pin is
// given back:
//
//     place = gpuvm_call_first(call, launch, address, how);
//     do {
//         if (place > kCallFailed) the instruction, at `place`
//         place = gpuvm_call_next(call);
//         if (place == kCallFailed) exit;
//     } while (place != kCallDone);
//
// No lane waits for a frame or for another's fetch while it holds a pin.
#pragma once

#include "detail/access.cuh"

// Seen by the simulated GPU, which has PTX translated behind this file.
#define GPUVM_HAS_CALLS 1

namespace gpuvm {
namespace detail {

// What both functions give back that is no address. None: nothing is pinned, and the lane comes again.
constexpr u64 kCallNothing = 0;
constexpr u64 kCallDone = 1;
constexpr u64 kCallFailed = 2;
// In `how`, above the access's bytes.
constexpr u32 kCallWrites = 1u << 8;
// Bytes that the rewritten text keeps for a `Call`, in local memory.
constexpr u64 kCallBytes = 320;

// An access that is under way.
struct Call {
    // What the last step did.
    enum : u32 {
        kRefused,  // nothing: the address is past the end
        kMissed,   // nothing: the page is not there
        kPinned,   // it pinned a page that was there
        kInPlace,  // nothing: the page is there, and stays
        kRetry,    // a round without an end
        kHeld,     // a round that pinned the page
        kFailed    // a round that told a fault
    } step;
    u32 offset;
    u64 page;
    bool writes;
    const layout::CalledArray* of;
    // A `Miss`, from the first round on.
    alignas(16) unsigned char room[sizeof(Miss)];

    GPUVM_DEVICE Miss* miss() { return reinterpret_cast<Miss*>(room); }
    GPUVM_DEVICE u64* word() const { return words_of(of->array) + page; }
    GPUVM_DEVICE void mark(u64 seen) const {
        if (writes) mark_dirty(word(), seen);
    }
};
static_assert(sizeof(Call) <= kCallBytes, "the rewritten text keeps as much as calls.cuh says");

// The array whose part of the window an address lies in: the last one that begins before it. They come in order.
GPUVM_DEVICE const layout::CalledArray* called_array(const layout::CalledHead* head, u64 address) {
    const layout::CalledArray* found = reinterpret_cast<const layout::CalledArray*>(head + 1);
    for (u64 left = head->count; left > 1 && found[1].base <= address; --left) ++found;
    return found;
}

// Past the end: the index is told in elements, as of any other array.
GPUVM_NOINLINE void report_past_the_end(const layout::CalledArray* of, u64 byte) {
    const layout::ArrayDesc& array = of->array;
    u64 element = array.length ? array.bytes / array.length : 1;
    report_out_of_range(vm_of(array), array.length, array.region, byte / element, layout::FAULT_OUT_OF_RANGE);
}

// The place of the access, if its page is there.
GPUVM_DEVICE u64 first_place(Call* call) {
    const layout::ArrayDesc& array = call->of->array;
    u64* word = call->word();
    u64 seen;
    if (never_evicted(array)) {
        if (!is_in_own_frame(array, call->page)) return kCallNothing;
        // Nothing evicts it: a store needs no pin.
        call->step = Call::kInPlace;
        seen = ld_weak(word);
    } else {
        if (!pin_resident(word, &seen)) return kCallNothing;
        call->step = Call::kPinned;
    }
    call->mark(seen);
    return frame_at(array, seen) + call->offset;
}

// One round for the page, for all lanes that come here together.
GPUVM_DEVICE u64 next_place(Call* call) {
    Miss* miss = call->miss();
    if (call->step == Call::kMissed) *miss = Miss(call->of->array, call->page);
    u32 outcome = acquire_round(miss, true);
    call->step = outcome == kRoundHeld ? Call::kHeld : outcome == kRoundFailed ? Call::kFailed : Call::kRetry;
    if (outcome != kRoundHeld) return kCallNothing;
    call->mark(0);
    return miss->frame_address() + call->offset;
}

}  // namespace detail
}  // namespace gpuvm

extern "C" {

// Begins an access of `how & 0xff` bytes at an address of the window. `launch`: what the kernel was given behind its
// own arguments, which a `layout::CalledHead` begins.
__device__ __noinline__ unsigned long long gpuvm_call_first(unsigned long long at, unsigned long long launch,
                                                            unsigned long long address, unsigned how) {
    using namespace gpuvm::detail;
    Call* call = reinterpret_cast<Call*>(at);
    call->of = called_array(reinterpret_cast<const gpuvm::layout::CalledHead*>(launch), address);
    const gpuvm::layout::ArrayDesc& array = call->of->array;
    u64 byte = address - call->of->base;
    if (byte >= array.bytes || (how & 0xff) > array.bytes - byte) {
        report_past_the_end(call->of, byte);
        call->step = Call::kRefused;
        return kCallNothing;
    }
    call->step = Call::kMissed;
    call->page = byte >> array.page_shift;
    call->offset = static_cast<u32>(byte) & array.offset_mask;
    // A store to an array that kernels never write goes nowhere.
    call->writes = (how & kCallWrites) != 0 && !call->of->read_only;
    return first_place(call);
}

// Gives back what the step before has pinned, and goes on where the access was not made.
__device__ __noinline__ unsigned long long gpuvm_call_next(unsigned long long at) {
    using namespace gpuvm::detail;
    Call* call = reinterpret_cast<Call*>(at);
    u32 step = call->step;
    switch (step) {
        case Call::kRefused:
            return kCallFailed;
        case Call::kInPlace:
            return kCallDone;
        case Call::kPinned:
            unpin_together(call->word());
            return kCallDone;
        case Call::kMissed:
            return next_place(call);
        default:
            break;
    }
    if (step == Call::kHeld) unpin(call->word(), 1);
    // Lanes that hold have given up their pins before those of their round wait for anything.
    if (call->miss()->mixed) __syncwarp(call->miss()->active);
    if (step == Call::kRetry) return next_place(call);
    return step == Call::kHeld ? kCallDone : kCallFailed;
}
}
