// What all queue pair formats share: a request, its completion, and where both lie in the rings.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

// One page between its frame and its home.
struct Request {
    bool write;  // to the home
    u64 local;   // address in the frame memory
    u64 remote;  // address at the home
    u32 rkey;    // of the home
    u32 lkey;    // of the frame memory
    u32 bytes;
};

// Syndromes are mlx5's in every format; the vendor's own code says more.
struct Completion {
    bool arrived;
    bool ok;
    u32 syndrome;
    u32 vendor_syndrome;
};

constexpr u32 kSyndromeLocalLength = 0x01;
constexpr u32 kSyndromeLocalOperation = 0x02;
constexpr u32 kSyndromeLocalProtection = 0x04;
constexpr u32 kSyndromeFlushed = 0x05;
constexpr u32 kSyndromeWindowBind = 0x06;
constexpr u32 kSyndromeBadResponse = 0x10;
constexpr u32 kSyndromeLocalAccess = 0x11;
constexpr u32 kSyndromeRetriesExceeded = 0x15;
constexpr u32 kSyndromeReceiverNotReady = 0x16;
constexpr u32 kSyndromeRemoteAborted = 0x22;

GPUVM_DEVICE u64 send_slot(const layout::QueueDesc* queue, u64 index) {
    return queue->send_ring + ((queue->send_start + index & queue->send_mask) << queue->send_shift);
}
GPUVM_DEVICE u64 completion_slot(const layout::QueueDesc* queue, u64 index) {
    return queue->completion_ring +
           ((queue->completion_start + index & queue->completion_mask) << queue->completion_shift);
}

}  // namespace detail
}  // namespace gpuvm
