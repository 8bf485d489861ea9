// mlx5 work queue entries and completions as a ConnectX reads and writes them: all fields big-endian.
// Source: <infiniband/mlx5dv.h>; nic/src/wire/mlx5 has the same formats for the host, and a test compares.
#pragma once

#include "request.cuh"

namespace gpuvm {
namespace detail {
namespace mlx5 {

constexpr u32 kOpcodeNop = 0x00;
constexpr u32 kOpcodeWrite = 0x08;
constexpr u32 kOpcodeRead = 0x10;
constexpr u32 kOpcodeDump = 0x23;        // reads local memory and drops it; not in mlx5dv.h
constexpr u32 kSignalled = 0x08u << 24;  // fm_ce_se, last of its word: ask for a completion
constexpr u32 kFence = 0x80u << 24;      // the same: wait for the queue pair's READs before it
constexpr u32 kSegments = 3;             // 16-byte units: control, remote address, data
constexpr u32 kFlushBytes = 4;

GPUVM_DEVICE u32 be32(u32 v) { return __byte_perm(v, 0, 0x0123); }
// Two 32-bit words in memory order, big-endian already.
GPUVM_DEVICE u64 words(u32 first, u32 second) { return static_cast<u64>(second) << 32 | first; }
// A word of a control segment: 16 or 24 bits in its middle or its upper part, and the last byte.
GPUVM_DEVICE u32 control16(u32 middle, u32 last) { return __byte_perm(middle, 0, 0x4014) | last << 24; }
GPUVM_DEVICE u32 control24(u32 upper, u32 last) { return __byte_perm(upper, 0, 0x4012) | last << 24; }

GPUVM_DEVICE bool flushes_reads(const layout::QueueDesc* queue) { return queue->flags & layout::QUEUE_FLUSHES_READS; }
// Number of a request's first block as the NIC counts, modulo 2^16: a queue pair that was reset counts from 0 again,
// lanes go on. Two blocks a request where READs are flushed, else one.
GPUVM_DEVICE u32 block_of(const layout::QueueDesc* queue, u64 index) {
    return queue->send_start + static_cast<u32>(index) << (flushes_reads(queue) ? 1 : 0);
}

// Control, remote address and data segment in one 64-byte block.
GPUVM_DEVICE void write_request(const layout::QueueDesc* queue, u64 index, const Request& request) {
    u32* block = reinterpret_cast<u32*>(send_slot(queue, index));
    u32 place = block_of(queue, index);
    u64 remote = request.remote, local = request.local;
    bool two = flushes_reads(queue);
    st_relaxed_sys_v4(block, control16(place, request.write ? kOpcodeWrite : kOpcodeRead),
                      control24(queue->number, kSegments), two ? 0 : kSignalled, 0);
    st_relaxed_sys_v4(block + 4, be32(remote >> 32), be32(remote), be32(request.rkey), 0);
    st_relaxed_sys_v4(block + 8, be32(request.bytes), be32(request.lkey), be32(local >> 32), be32(local));
    if (!two) return;
    // A NIC's read of the GPU's memory pushes its earlier writes ahead of it (PCIe ordering), and the fence has it come
    // after the READ. A WRITE left no data here: a NOP completes in its place.
    block += 16;
    if (request.write) {
        st_relaxed_sys_v4(block, control16(place + 1, kOpcodeNop), control24(queue->number, 1), kSignalled, 0);
    } else {
        st_relaxed_sys_v4(block, control16(place + 1, kOpcodeDump), control24(queue->number, 2), kSignalled | kFence,
                          0);
        st_relaxed_sys_v4(block + 4, be32(kFlushBytes), be32(request.lkey), be32(local >> 32), be32(local));
    }
}

// Number of the next block to be written, as doorbell record and doorbell register carry it.
GPUVM_DEVICE u32 doorbell_record(const layout::QueueDesc* queue, u64 written) {
    return __byte_perm(block_of(queue, written), 0, 0x0144);
}
GPUVM_DEVICE u64 doorbell(const layout::QueueDesc* queue, u64 written) {
    return words(control16(block_of(queue, written), 0), control24(queue->number, 0));
}

constexpr u32 kCompletionRequest = 0;
constexpr u32 kCompletionError = 13;
constexpr u32 kCompletionInvalid = 15;

// be: vendor syndrome at byte 54, syndrome at byte 55.
GPUVM_DEVICE void read_syndromes(u64 entry, Completion* out) {
    u32 error = ld_relaxed_sys(reinterpret_cast<const u32*>(entry + 52));
    out->vendor_syndrome = error >> 16 & 0xff;
    out->syndrome = error >> 24;
}

// The completion of a posted request in a collapsed queue. Every completion overwrites entry 0, and the entry names
// the block of the newest one: what it says of the others is worked out here.
//
// Distance. `ahead` is how far the entry is past the request's first block, modulo 2^16. A ring has at most 2^15
// blocks, and a slot is written again only when its request is finished. So while request `index` is not finished,
// nothing later than the ring's length less one block past its first was posted (ahead < 2^15 if it has completed), and
// everything a ring's length before it has completed (the entry is at most 2^15 blocks behind: ahead >= 2^15 if it has
// not). That holds of every look: who finds the record POSTED has, through the slot's release and acquire, seen what
// the slot's last request saw, and looks at one place never go back. A look that is late, at a request that somebody
// finished since, may say anything: the claim of the record fails. So it need not be known how far the NIC was rung.
//
// Success. Requests complete in order and the first error ends the pair, so a success says that everything before
// it did well too. The block named is the request's last; with two blocks a request the first is not signalled.
//
// Errors. An error names the failed block, either of the request's two. Behind it everything posted is flushed, and
// each flush overwrites the entry: the error itself may be lost. Of a request before the named one the entry does not
// say whether it did well, failed, or was flushed, for successes that nothing looked at in time are overwritten too. So
// the named request takes the syndrome, and all before it count as flushed, which has them repeated over another pair:
// a READ or WRITE of a whole page may be done twice. The NIC is done with them in any case, so their frames may go.
// Requests after the named one wait: their flush is still to come, until which the NIC may read their blocks.
//
// Torn looks. Index and opcode are in one word, which is read first (acquire: the NIC wrote the rest before it). The
// syndrome may be that of a later completion, which can only be a flush: an error is taken for a flush at worst.
//
// The owner bit is that of the NIC's own count, which nothing here keeps: what was never written has opcode "invalid".
GPUVM_DEVICE Completion collapsed_completion(const layout::QueueDesc* queue, u64 index) {
    u64 entry = queue->completion_ring;
    u32 tail = ld_acquire_sys(reinterpret_cast<const u32*>(entry + 60));
    u32 opcode = tail >> 28;
    Completion out{false, false, 0, 0};
    if (opcode == kCompletionInvalid) return out;
    u32 counter = be32(tail) >> 16;
    u32 ahead = counter - block_of(queue, index) & 0xffff;
    if (ahead >= 0x8000) return out;
    out.arrived = true;
    out.ok = opcode == kCompletionRequest;
    if (out.ok) return out;
    u32 blocks = flushes_reads(queue) ? 2 : 1;
    if (ahead < blocks)
        read_syndromes(entry, &out);
    else
        out.syndrome = kSyndromeFlushed;
    return out;
}

// The completion of request `index`: its slot is its own, its id bit is the lap's. Acquire at system
// scope: the NIC wrote the page's data and the entry's body before the last byte, which is read first.
GPUVM_DEVICE Completion completion(const layout::QueueDesc* queue, u64 index) {
    if (queue->flags & layout::QUEUE_COLLAPSED) return collapsed_completion(queue, index);
    u64 entry = completion_slot(queue, index);
    u32 tail = ld_acquire_sys(reinterpret_cast<const u32*>(entry + 60));
    u32 opcode_and_owner = tail >> 24;
    u32 lap = ((queue->completion_start + static_cast<u32>(index)) & (queue->completion_mask + 1)) != 0;
    Completion out{false, false, 0, 0};
    u32 opcode = opcode_and_owner >> 4;
    if (opcode == kCompletionInvalid || (opcode_and_owner & 1) != lap) return out;
    out.arrived = true;
    out.ok = opcode == kCompletionRequest;
    if (!out.ok) read_syndromes(entry, &out);
    return out;
}

}  // namespace mlx5
}  // namespace detail
}  // namespace gpuvm
