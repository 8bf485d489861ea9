// Linux SoftRoCE: work queue entries and completions as the kernel driver rdma_rxe reads and writes them in the rings
// that it maps to user space, little-endian.
// Source: <rdma/rdma_user_rxe.h> and <rdma/ib_user_verbs.h>; nic/src/wire/rxe has the same formats for the host.
#pragma once

#include "request.cuh"

namespace gpuvm {
namespace detail {
namespace rxe {

constexpr u32 kOpcodeWrite = 0;
constexpr u32 kOpcodeRead = 4;
constexpr u32 kSignalled = 2;
constexpr u32 kEntryPairs = 14;  // struct rxe_send_wqe with one struct rxe_sge: 224 bytes

GPUVM_DEVICE u64 words(u32 first, u32 second) { return static_cast<u64>(second) << 32 | first; }

// The driver keeps its own progress in the entry, so all of it is written anew, and never between publication and
// completion.
GPUVM_DEVICE void write_request(const layout::QueueDesc* queue, u64 index, const Request& request) {
    pair64* entry = reinterpret_cast<pair64*>(send_slot(queue, index));
    u64 opcode = words(0, request.write ? kOpcodeWrite : kOpcodeRead);
    st_relaxed_sys_v2(entry, pair64{index, opcode});
    st_relaxed_sys_v2(entry + 1, pair64{words(kSignalled, 0), request.remote});
    st_relaxed_sys_v2(entry + 2, pair64{request.rkey, 0});
    for (u32 n = 3; n < kEntryPairs; ++n) {
        pair64 pair{0, 0};
        if (n == 9) pair.hi = request.remote;                                           // iova
        if (n == 11) pair.hi = words(request.bytes, request.bytes);                     // dma.length, dma.resid
        if (n == 12) pair.lo = words(0, 1);                                             // dma.num_sge
        if (n == 13) pair = pair64{request.local, words(request.bytes, request.lkey)};  // the one sge
        st_relaxed_sys_v2(entry + n, pair);
    }
}

// The producer index, which is always stored masked.
GPUVM_DEVICE u32 doorbell_record(const layout::QueueDesc* queue, u64 written) {
    return queue->send_start + static_cast<u32>(written) & queue->send_mask;
}

// Makes room in the completion ring: a slot of the send ring is written again only after its completion was read, so
// whatever lies a whole queue behind `written` has been read. The driver drops completions for which there is no room.
GPUVM_DEVICE void free_completions(const layout::QueueDesc* queue, u64 written) {
    u64 depth = static_cast<u64>(queue->mask) + 1;
    u64 read = written > depth ? written - depth : 0;
    st_relaxed_sys(reinterpret_cast<u32*>(queue->completion_consumed),
                   queue->completion_start + static_cast<u32>(read) & queue->completion_mask);
}

// The completion of request `index`, which is not finished yet: completions come in posting order, so it is there once
// the producer index has passed it. The ring has two slots a request, so a masked distance of 1 to the queue's depth
// means "passed" and any other "not yet".
GPUVM_DEVICE Completion completion(const layout::QueueDesc* queue, u64 index) {
    // Acquire at system scope: the driver stores data and entry before it releases the index.
    u32 produced = ld_acquire_sys(reinterpret_cast<const u32*>(queue->completion_produced));
    u32 distance = produced - queue->completion_start - static_cast<u32>(index) & queue->completion_mask;
    Completion out{false, false, 0, 0};
    if (distance == 0 || distance > queue->mask + 1) return out;
    u64 entry = completion_slot(queue, index);
    out.arrived = true;
    // Above 32 bits the opcode.
    u32 status = ld_relaxed_sys(reinterpret_cast<const u32*>(entry + 8));
    bool ours = ld_relaxed_sys(reinterpret_cast<const u64*>(entry)) == index;
    out.ok = status == 0 && ours;
    if (!out.ok) {
        // enum ib_wc_status in mlx5's numbers.
        out.syndrome = !ours ? kSyndromeBadResponse : status < 7 ? status : status + 9;
        out.vendor_syndrome = status & 0xff;
    }
    return out;
}

}  // namespace rxe
}  // namespace detail
}  // namespace gpuvm
