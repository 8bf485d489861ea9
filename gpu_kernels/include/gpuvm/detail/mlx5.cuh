// mlx5 work queue entries and completions as a ConnectX reads and writes them: all fields big-endian.
// Source: <infiniband/mlx5dv.h>; nic/src/wire/mlx5 has the same formats for the host, and a test compares.
#pragma once

#include "request.cuh"

namespace gpuvm {
namespace detail {
namespace mlx5 {

constexpr u32 kOpcodeWrite = 0x08;
constexpr u32 kOpcodeRead = 0x10;
constexpr u32 kSignalled = 0x08u << 24;  // fm_ce_se, last of its word: ask for a completion
constexpr u32 kBlockBytes = 64;
constexpr u32 kSegments = 3;  // 16-byte units: control, remote address, data

GPUVM_DEVICE u32 be32(u32 v) { return __byte_perm(v, 0, 0x0123); }
// Two 32-bit words in memory order, big-endian already.
GPUVM_DEVICE u64 words(u32 first, u32 second) { return static_cast<u64>(second) << 32 | first; }
// A word of a control segment: 16 or 24 bits in its middle or its upper part, and the last byte.
GPUVM_DEVICE u32 control16(u32 middle, u32 last) { return __byte_perm(middle, 0, 0x4014) | last << 24; }
GPUVM_DEVICE u32 control24(u32 upper, u32 last) { return __byte_perm(upper, 0, 0x4012) | last << 24; }

// A request's place as the NIC counts it, modulo 2^16: a queue pair that was reset counts from 0 again, lanes go on.
GPUVM_DEVICE u32 position(const layout::QueueDesc* queue, u64 index) {
    return queue->send_start + static_cast<u32>(index);
}

// Control, remote address and data segment in one 64-byte block.
GPUVM_DEVICE void write_request(const layout::QueueDesc* queue, u64 index, const Request& request) {
    u32 place = position(queue, index), slot = place & queue->send_mask;
    u32* block = reinterpret_cast<u32*>(queue->send_ring + static_cast<u64>(slot) * kBlockBytes);
    u64 remote = request.remote, local = request.local;
    st_relaxed_sys_v4(block, control16(place, request.write ? kOpcodeWrite : kOpcodeRead),
                      control24(queue->number, kSegments), kSignalled, 0);
    st_relaxed_sys_v4(block + 4, be32(remote >> 32), be32(remote), be32(request.rkey), 0);
    st_relaxed_sys_v4(block + 8, be32(request.bytes), be32(request.lkey), be32(local >> 32), be32(local));
}

// Index of the next block to be written, as doorbell record and doorbell register carry it.
GPUVM_DEVICE u32 doorbell_record(const layout::QueueDesc* queue, u64 written) {
    return __byte_perm(position(queue, written), 0, 0x0144);
}
GPUVM_DEVICE u64 doorbell(const layout::QueueDesc* queue, u64 written) {
    return words(control16(position(queue, written), 0), control24(queue->number, 0));
}

constexpr u32 kCompletionRequest = 0;
constexpr u32 kCompletionInvalid = 15;

// The completion of request `index`: its slot is its own, its owner bit is the lap's. Acquire at system
// scope: the NIC wrote the page's data and the entry's body before the last byte, which is read first.
GPUVM_DEVICE Completion completion(const layout::QueueDesc* queue, u64 index) {
    u64 entry = completion_slot(queue, index);
    u32 tail = ld_acquire_sys(reinterpret_cast<const u32*>(entry + 60));
    u32 opcode_and_owner = tail >> 24;
    u32 lap = ((queue->completion_start + static_cast<u32>(index)) & (queue->completion_mask + 1)) != 0;
    Completion out{false, false, 0, 0};
    u32 opcode = opcode_and_owner >> 4;
    if (opcode == kCompletionInvalid || (opcode_and_owner & 1) != lap) return out;
    out.arrived = true;
    out.ok = opcode == kCompletionRequest;
    if (!out.ok) {
        // be: vendor syndrome at byte 54, syndrome at byte 55.
        u32 error = ld_relaxed_sys(reinterpret_cast<const u32*>(entry + 52));
        out.vendor_syndrome = error >> 16 & 0xff;
        out.syndrome = error >> 24;
    }
    return out;
}

}  // namespace mlx5
}  // namespace detail
}  // namespace gpuvm
