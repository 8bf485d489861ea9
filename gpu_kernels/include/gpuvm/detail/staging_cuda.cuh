// Staging buffers in a block's shared memory, and the copy engines between them and global memory: bulk copies on
// compute capability 9.0, 16-byte asynchronous copies on 8.x.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

// A piece: what a buffer holds. A system page, whose edges pieces end at.
constexpr u32 kStagingBytes = 4096;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// Staging buffers of a block. What its lanes copy goes through them, one copy at a time through each.
#if !defined(GPUVM_STAGING_BUFFERS)
#define GPUVM_STAGING_BUFFERS 2
#endif
constexpr u32 kStagingBuffers = GPUVM_STAGING_BUFFERS;
static_assert((kStagingBuffers & (kStagingBuffers - 1)) == 0, "tickets wrap at a power of two");

struct Staging {
    // More than a piece: the hull of one that is aligned to 128 bytes, since the engine is slower on less.
    unsigned char bytes[kStagingBuffers][kStagingBytes + 128];
    u64 barrier[kStagingBuffers];  // mbarriers
    u64 key;                       // says that all of this was made ready
    u32 next;                      // tickets; ticket t is for buffer t % kStagingBuffers
    u32 serving[kStagingBuffers];  // the ticket that holds the buffer, or may take it
    u32 phase[kStagingBuffers];    // parity of the barrier's phase that the next copy completes; the holder's
};
static __shared__ __align__(128) Staging staging;

GPUVM_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Shared memory is not initialised, so what was made ready is told from garbage by a key that no other block has:
// %gridid is unique for a launch. A block that lay here before leaves words that look right, and barriers that are
// gone.
GPUVM_DEVICE u64 staging_key() {
    u64 grid;
    asm("mov.u64 %0,%%gridid;" : "=l"(grid));
    u64 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * static_cast<u64>(blockIdx.z));
    return (grid * 0x9e3779b97f4a7c15ull ^ block) << 1;
}
// Once for all copies of the block, which go on from phase to phase.
GPUVM_DEVICE void make_barrier(u32 buffer) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0],1;" ::"r"(shared_address(&staging.barrier[buffer])) : "memory");
#endif
}
GPUVM_NOINLINE void make_staging_lock(u64 key) {
    volatile u64* shown = &staging.key;
    while (true) {
        u64 seen = *shown;
        if (seen == key) return;
        if (seen == (key | 1)) {
            // Another lane is at it: a few instructions.
            sleep_ns(20);
        } else if (atomicCAS(const_cast<u64*>(shown), seen, key | 1) == seen) {
            staging.next = 0;
            for (u32 n = 0; n < kStagingBuffers; ++n) {
                staging.serving[n] = n;
                staging.phase[n] = 0;
                make_barrier(n);
            }
            // All of it comes before the key that shows it.
            __threadfence_block();
            *shown = key;
            return;
        }
    }
}
// Acquire within the block: the last holder's accesses to the buffer come before ours.
GPUVM_DEVICE u32 ld_acquire_cta(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.cta.shared.u32 %0,[%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
    return v;
}
// Takes a buffer, in order of arrival, and returns which. The holder waits for nothing but its own copies.
GPUVM_DEVICE u32 lock_staging() {
    u64 key = staging_key();
    if (*static_cast<volatile u64*>(&staging.key) != key) make_staging_lock(key);
    u32 ticket = atomicAdd(&staging.next, 1u), buffer = ticket % kStagingBuffers;
    while (ld_acquire_cta(&staging.serving[buffer]) != ticket) sleep_ns(40);
    return buffer;
}
// Takes the buffer that is next in turn if nothing waits for it; else `kStagingBuffers`. The caller may hold another.
GPUVM_DEVICE u32 try_lock_staging() {
    u32 ticket = *static_cast<volatile u32*>(&staging.next), buffer = ticket % kStagingBuffers;
    bool free = ld_acquire_cta(&staging.serving[buffer]) == ticket;
    return free && atomicCAS(&staging.next, ticket, ticket + 1) == ticket ? buffer : kStagingBuffers;
}
// Release within the block: our accesses to the buffer come before the next holder's.
GPUVM_DEVICE void unlock_staging(u32 buffer) {
    u32 next = *static_cast<volatile u32*>(&staging.serving[buffer]) + kStagingBuffers;
    asm volatile("st.release.cta.shared.u32 [%0],%1;" ::"r"(shared_address(&staging.serving[buffer])), "r"(next)
                 : "memory");
}

// The parity of the phase that the holder's next copy completes.
GPUVM_DEVICE u32 staging_phase(u32 buffer) { return *static_cast<volatile u32*>(&staging.phase[buffer]); }
// After every waiter has seen a copy end, and before the buffer's next copy.
GPUVM_DEVICE void stage_in_end(u32 buffer) {
    *static_cast<volatile u32*>(&staging.phase[buffer]) = staging_phase(buffer) ^ 1;
}

#if __CUDA_ARCH__ >= 900
// The copy engine is a proxy of its own: a fence between it and ordinary accesses, both ways (PTX ISA, "Async proxy").
GPUVM_DEVICE void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The machine takes the buffer's and the barrier's addresses of a bulk copy from registers that a warp has once, and
// ptxas 13.0 fills them from one of the lanes that are here: where leaders of two groups met, one copy went to the
// other's buffer. So each buffer has code of its own, with addresses that are the same for all lanes. The texts differ,
// or the compiler would make one of them again.
#define GPUVM_STAGE_IN(BUFFER)                                                                                       \
    do {                                                                                                             \
        u32 barrier = shared_address(&staging.barrier[BUFFER]);                                                      \
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1; // buffer " #BUFFER ::"r"(barrier), "r"(bytes) \
                     : "memory");                                                                                    \
        asm volatile(                                                                                                \
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3]; // "               \
            "buffer " #BUFFER ::"r"(shared_address(staging.bytes[BUFFER])),                                          \
            "l"(from), "r"(bytes), "r"(barrier)                                                                      \
            : "memory");                                                                                             \
    } while (false)

// The barrier, and all accesses to the buffer that the lock has ordered before us, come before the engine's. What it
// reads was written by an engine too, or by who fenced afterwards.
GPUVM_DEVICE void stage_in_begin(u32 buffer, u64 from, u32 bytes) {
    static_assert(kStagingBuffers <= 2, "code for each buffer");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (buffer == 0)
        GPUVM_STAGE_IN(0);
    else
        GPUVM_STAGE_IN(kStagingBuffers - 1);
}
#undef GPUVM_STAGE_IN
// Any number of lanes may wait for the copy of this phase; each then sees the data.
GPUVM_DEVICE void stage_in_wait(u32 buffer, u32 phase) {
    u32 barrier = shared_address(&staging.barrier[buffer]), arrived = 0;
    while (!arrived)
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared.b64 p,[%1],%2;\n"
            "selp.u32 %0,1,0,p; }"
            : "=r"(arrived)
            : "r"(barrier), "r"(phase)
            : "memory");
}
// Begins the way out of `bytes`, a multiple of 16, from `skip` bytes into a buffer.
GPUVM_DEVICE void stage_out(u32 buffer, u32 skip, u64 to, u32 bytes) {
    fence_proxy();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(shared_address(staging.bytes[buffer]) + skip), "r"(bytes)
                 : "memory");
}
// The buffers of all that is on the way out may be filled again.
GPUVM_DEVICE void stage_out_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// All that was on the way out has arrived, for ordinary accesses too.
GPUVM_DEVICE void stage_out_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    fence_proxy();
}
#else
GPUVM_DEVICE void fence_proxy() {}

GPUVM_DEVICE void stage_in_begin(u32 buffer, u64 from, u32 bytes) {
    u32 to = shared_address(staging.bytes[buffer]);
    // Past L1, which may hold lines of an earlier visit.
    for (u32 at = 0; at < bytes; at += 16)
        asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + at), "l"(from + at) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// The lane that began it sees the data; others do after a barrier with it.
GPUVM_DEVICE void stage_in_wait(u32, u32) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
GPUVM_DEVICE void stage_out(u32 buffer, u32 skip, u64 to, u32 bytes) {
    for (u32 at = 0; at < bytes; at += 16)
        st_relaxed_sys_v2(reinterpret_cast<pair64*>(to + at),
                          *reinterpret_cast<const pair64*>(staging.bytes[buffer] + skip + at));
}
GPUVM_DEVICE void stage_out_read() {}
GPUVM_DEVICE void stage_out_wait() {}
#endif
#endif

}  // namespace detail
}  // namespace gpuvm
