// One queue pair of a virtual memory, and whether anything can be sent over those that reach a page.
#pragma once

#include "request.cuh"
#include "source.cuh"

namespace gpuvm {
namespace detail {

// The error is this machine's doing: the request, the frame's key. It says nothing of the copy at the home.
GPUVM_DEVICE bool is_own_fault(u32 syndrome) {
    return syndrome == kSyndromeLocalLength || syndrome == kSyndromeLocalOperation ||
           syndrome == kSyndromeLocalProtection || syndrome == kSyndromeWindowBind || syndrome == kSyndromeLocalAccess;
}

// One queue pair of a virtual memory.
struct Queue {
    const layout::VmDesc* vm;
    const layout::QueueDesc* desc;
    u32 number;  // index in the table of queues

    GPUVM_DEVICE Queue(const layout::VmDesc* of, u32 n)
        : vm(of), desc(reinterpret_cast<const layout::QueueDesc*>(of->queues) + n), number(n) {}
    GPUVM_DEVICE layout::QueueState* state() const { return reinterpret_cast<layout::QueueState*>(desc->state); }
    GPUVM_DEVICE layout::RequestRecord* record(u64 index) const {
        return reinterpret_cast<layout::RequestRecord*>(desc->records) + (index & desc->mask);
    }
    GPUVM_DEVICE u64 entries() const { return static_cast<u64>(desc->mask) + 1; }
    GPUVM_DEVICE bool failed() const { return ld_relaxed_gpu(&state()->failed) != 0; }
    // Failed, and nothing will recover it.
    GPUVM_DEVICE bool gone() const {
        u32 seen = ld_relaxed_gpu(&state()->failed);
        return seen != 0 && (!desc->recoverable || (seen & layout::QUEUE_LOST));
    }
    // A request that says nothing of its page: it was flushed with its pair, or got no answer, or was not taken, over a
    // pair that the host recovers.
    GPUVM_DEVICE bool to_repeat(const Completion& done) const {
        if (done.syndrome == kSyndromeFlushed) return true;
        return desc->recoverable &&
               (done.syndrome == kSyndromeRetriesExceeded || done.syndrome == kSyndromeReceiverNotReady ||
                done.syndrome == kSyndromeRemoteAborted);
    }
    // The home has answered. Relaxed: a hint to the host, which may come late.
    GPUVM_DEVICE void note_answer() const {
        if (!ld_relaxed_gpu(&state()->answered)) st_relaxed_gpu(&state()->answered, 1u);
    }
    // The host saw that completions do not come and set `failed`: nothing reserves from here on. A look that is late
    // may close a pair that is recovered by now; the host opens it again.
    GPUVM_DEVICE void close_if_failed() const {
        if (!desc->recoverable || !failed()) return;
        if (!(ld_relaxed_gpu(&state()->reserved) & layout::RESERVED_CLOSED))
            atom_or_acq_rel_gpu(&state()->reserved, layout::RESERVED_CLOSED);
    }
};

// No request can reach the page any more. Of a replicated region: its copy in the replica that the page id names.
GPUVM_DEVICE bool all_queues_gone(const layout::VmDesc* vm, u64 id) {
    const layout::StripeDesc* stripe = stripe_of(vm, id);
    if (is_lost(stripe)) return true;
    for (u32 n = 0; n < stripe->queue_count; ++n)
        if (!Queue(vm, stripe->queue_first + n).gone()) return false;
    return true;
}

// Whether a pair that reaches the page is being recovered. Until its far end was reset too, a WRITE of it that got no
// answer may still arrive there: no later WRITE may be posted to another pair, or it would be overwritten.
GPUVM_DEVICE bool is_recovering(const layout::VmDesc* vm, const layout::StripeDesc* stripe) {
    for (u32 n = 0; n < stripe->queue_count; ++n) {
        Queue q(vm, stripe->queue_first + n);
        if (q.failed() && q.desc->recoverable) return true;
    }
    return false;
}

// Whether the home of the copy that the page id names can be reached and does not answer.
GPUVM_DEVICE bool is_silent(const layout::VmDesc* vm, u64 id) {
    return ld_relaxed_gpu(&Queue(vm, stripe_of(vm, id)->queue_first).state()->silent) != 0;
}

}  // namespace detail
}  // namespace gpuvm
