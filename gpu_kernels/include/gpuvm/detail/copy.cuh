// The direct transport's mover: one lane copies a page between its home (pinned host memory, or a neighbour GPU's) and
// its frame.
//
// On compute capability 9.0 the bulk copy engine does it through a staging buffer in the block's shared memory: one
// lane is as fast as a warp, and needs no registers for the data (docs/PERFORMANCE.md has both). 8.0 has the 16-byte
// asynchronous copies, 7.x loads and stores.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

// A piece: what a staging buffer holds.
constexpr u32 kStagingBytes = 4096;

// Plain copies by the widest accesses that both addresses and the length allow. Strong on both sides: a weak load of
// the home may hit a line of an earlier visit.
template <class T, bool ToHome>
GPUVM_DEVICE u64 copy_elements(u64 to, u64 from, u64 at, u64 end) {
    for (; at + sizeof(T) <= end; at += sizeof(T)) {
        const T* source = reinterpret_cast<const T*>(from + at);
        T* target = reinterpret_cast<T*>(to + at);
        if constexpr (ToHome)
            st_relaxed_sys(target, ld_relaxed_gpu(source));
        else
            st_relaxed_gpu(target, ld_relaxed_sys(source));
    }
    return at;
}
template <bool ToHome>
GPUVM_NOINLINE void copy_plainly(u64 to, u64 from, u64 bytes) {
    u64 at = 0;
    if (!((to | from) & 7)) at = copy_elements<u64, ToHome>(to, from, at, bytes);
    if (!((to | from) & 3)) at = copy_elements<u32, ToHome>(to, from, at, bytes);
    copy_elements<u8, ToHome>(to, from, at, bytes);
}

#if defined(GPUVM_SIM) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)

#define GPUVM_STAGED 0

// A fetch in two steps, so that the claim and the frame are found while the data is on its way; where copies are
// synchronous the second does it all.
class Fetch {
  public:
    GPUVM_DEVICE void begin(u64 home, u32 bytes) {
        home_ = home;
        bytes_ = bytes;
    }
    GPUVM_DEVICE void cancel() {}
    GPUVM_DEVICE void finish(u64 frame) { copy_plainly<false>(frame, home_, bytes_); }

  private:
    u64 home_;
    u32 bytes_;
};

GPUVM_DEVICE void copy_to_home(u64 home, u64 frame, u32 bytes) { copy_plainly<true>(home, frame, bytes); }

#else

#define GPUVM_STAGED 1

// Staging buffers of a block. What its lanes copy goes through them, one copy at a time through each.
#if !defined(GPUVM_STAGING_BUFFERS)
#define GPUVM_STAGING_BUFFERS 1
#endif
constexpr u32 kStagingBuffers = GPUVM_STAGING_BUFFERS;

struct Staging {
    // More than a piece: the aligned hull of one that begins in the middle of 16 bytes. The copy engine is slower on a
    // buffer that is not aligned to 128.
    unsigned char bytes[kStagingBuffers][kStagingBytes + 128];
    u64 barrier[kStagingBuffers];  // mbarriers
    u64 key;                       // says that the lock below is one
    u32 next;                      // tickets; ticket t is for buffer t % kStagingBuffers
    u32 serving[kStagingBuffers];
};
static __shared__ __align__(128) Staging staging;

GPUVM_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Shared memory is not initialised, so a lock is told from garbage by a key that no other launch has: %gridid is unique
// for a launch. An earlier block of the same launch left a key that is right, and its lock free.
GPUVM_DEVICE u64 staging_key() {
    u64 grid;
    asm("mov.u64 %0,%%gridid;" : "=l"(grid));
    return (grid ^ 0x5bd1e9955bd1e995ull) << 1;
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
            for (u32 n = 0; n < kStagingBuffers; ++n) *static_cast<volatile u32*>(&staging.serving[n]) = 0;
            // The lock comes before the key that shows it.
            __threadfence_block();
            *shown = key;
            return;
        }
    }
}
// Takes a buffer, in order of arrival, and returns which. The holder waits for nothing but its own copies.
GPUVM_DEVICE u32 lock_staging() {
    u64 key = staging_key();
    if (*static_cast<volatile u64*>(&staging.key) != key) make_staging_lock(key);
    u32 ticket = atomicAdd(&staging.next, 1u), buffer = ticket % kStagingBuffers;
    while (*static_cast<volatile u32*>(&staging.serving[buffer]) != ticket / kStagingBuffers) sleep_ns(40);
    // The last holder's accesses to the buffer come before ours.
    __threadfence_block();
    return buffer;
}
GPUVM_DEVICE void unlock_staging(u32 buffer) {
    // Ours come before the next holder's.
    __threadfence_block();
    volatile u32* serving = &staging.serving[buffer];
    *serving = *serving + 1;
}

#if __CUDA_ARCH__ >= 900
// The copy engine is a proxy of its own: a fence between it and ordinary accesses, both ways (PTX ISA, "Async proxy").
GPUVM_DEVICE void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

GPUVM_DEVICE void stage_in_begin(u32 buffer, u64 from, u32 bytes) {
    u32 barrier = shared_address(&staging.barrier[buffer]);
    asm volatile("mbarrier.init.shared.b64 [%0],1;" ::"r"(barrier) : "memory");
    fence_proxy();
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(
                     shared_address(staging.bytes[buffer])),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Any number of lanes may wait; each then sees the data.
GPUVM_DEVICE void stage_in_wait(u32 buffer) {
    u32 barrier = shared_address(&staging.barrier[buffer]), arrived = 0;
    while (!arrived)
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared.b64 p,[%1],0;\n"
            "selp.u32 %0,1,0,p; }"
            : "=r"(arrived)
            : "r"(barrier)
            : "memory");
}
// After every waiter has seen the data, and before the barrier's next use.
GPUVM_DEVICE void stage_in_end(u32 buffer) {
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(&staging.barrier[buffer])) : "memory");
}
// `bytes` is a multiple of 16. Returns when the data has arrived.
GPUVM_DEVICE void stage_out(u32 buffer, u64 to, u32 bytes) {
    fence_proxy();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;" ::"l"(to),
                 "r"(shared_address(staging.bytes[buffer])), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
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
GPUVM_DEVICE void stage_in_wait(u32) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
GPUVM_DEVICE void stage_in_end(u32) {}
GPUVM_DEVICE void stage_out(u32 buffer, u64 to, u32 bytes) {
    for (u32 at = 0; at < bytes; at += 16)
        st_relaxed_sys_v2(reinterpret_cast<pair64*>(to + at),
                          *reinterpret_cast<const pair64*>(staging.bytes[buffer] + at));
}
#endif

// From the staging buffer, `skip` bytes in, to memory by the widest stores that its address allows.
template <class T>
GPUVM_DEVICE u32 unstage_as(u32 buffer, u64 to, u32 skip, u32 at, u32 end) {
    for (; at + sizeof(T) <= end; at += sizeof(T)) {
        u64 value = 0;
        for (u32 byte = 0; byte < sizeof(T); ++byte)
            value |= static_cast<u64>(staging.bytes[buffer][skip + at + byte]) << 8 * byte;
        st_relaxed_sys(reinterpret_cast<T*>(to + at), static_cast<T>(value));
    }
    return at;
}
GPUVM_NOINLINE void unstage(u32 buffer, u64 to, u32 skip, u32 at, u32 end) {
    fence_proxy();
    if (!(to & 7)) at = unstage_as<u64>(buffer, to, skip, at, end);
    if (!(to & 3)) at = unstage_as<u32>(buffer, to, skip, at, end);
    unstage_as<u8>(buffer, to, skip, at, end);
    fence_proxy();
}

// The frame by ordinary stores of several lanes: with a whole warp it is done sooner than by the copy engine. For a
// page of one piece whose home is aligned.
GPUVM_DEVICE void store_staged(u32 buffer, u64 frame, u32 bytes, u32 rank, u32 lanes) {
    for (u32 at = rank * 16; at < bytes; at += lanes * 16)
        st_relaxed_gpu_v2(reinterpret_cast<pair64*>(frame + at),
                          *reinterpret_cast<const pair64*>(staging.bytes[buffer] + at));
}

// A fetch in two steps: the claim and the frame are found while the first piece is on its way.
class Fetch {
  public:
    GPUVM_DEVICE void begin(u64 home, u32 bytes) {
        home_ = home;
        bytes_ = bytes;
        buffer_ = lock_staging();
        // What the claim's acquire, or the lock, has ordered before us comes before the engine's accesses too.
        fence_proxy();
        stage_in_begin(buffer_, hull(home), hull_bytes(home, piece(0)));
    }
    // Forgets it: the data that is on its way lands in the buffer only.
    GPUVM_DEVICE void cancel() {
        stage_in_wait(buffer_);
        stage_in_end(buffer_);
        unlock_staging(buffer_);
    }
    // Returns when the frame holds the page, for ordinary loads too.
    GPUVM_DEVICE void finish(u64 frame) {
        for (u32 at = 0; at < bytes_; at += kStagingBytes) {
            if (at) stage_in_begin(buffer_, hull(home_ + at), hull_bytes(home_ + at, piece(at)));
            stage_in_wait(buffer_);
            stage_in_end(buffer_);
            unload(frame + at, piece(at));
        }
        unlock_staging(buffer_);
    }

    // The same in parts, for a page of one piece, whose bytes other lanes read where they are staged.
    GPUVM_DEVICE u32 buffer() const { return buffer_; }
    GPUVM_DEVICE static const unsigned char* staged(u32 buffer, u64 home) {
        return staging.bytes[buffer] + (home & 15);
    }
    GPUVM_DEVICE void finish_staged(u64 frame) {
        stage_in_end(buffer_);
        unload(frame, bytes_);
        unlock_staging(buffer_);
    }
    GPUVM_DEVICE void finish_stored() {
        stage_in_end(buffer_);
        unlock_staging(buffer_);
    }

  private:
    // The 16-byte units that hold a piece: they lie in the same system page, so they may be read.
    static GPUVM_DEVICE u64 hull(u64 from) { return from & ~15ull; }
    static GPUVM_DEVICE u32 hull_bytes(u64 from, u32 bytes) {
        return static_cast<u32>((from & 15) + bytes + 15) & ~15u;
    }
    GPUVM_DEVICE void unload(u64 frame, u32 bytes) const {
        u32 skip = static_cast<u32>(home_) & 15, whole = skip ? 0 : bytes & ~15u;
        if (whole) stage_out(buffer_, frame, whole);
        if (whole < bytes) unstage(buffer_, frame, skip, whole, bytes);
    }
    GPUVM_DEVICE u32 piece(u32 at) const { return bytes_ - at < kStagingBytes ? bytes_ - at : kStagingBytes; }

    u64 home_;
    u32 bytes_;
    u32 buffer_ = 0;
};

// Returns when the home holds the page; the caller's fence makes that known.
GPUVM_NOINLINE void copy_to_home(u64 home, u64 frame, u32 bytes) {
    u32 buffer = lock_staging();
    // Stores to the frame by ordinary accesses, ordered before us by the page's word, before the engine's loads.
    fence_proxy();
    for (u32 at = 0; at < bytes; at += kStagingBytes) {
        u32 left = bytes - at, piece = left < kStagingBytes ? left : kStagingBytes;
        // A frame is whole pages: what lies behind the last page's end may be read.
        stage_in_begin(buffer, frame + at, (piece + 15) & ~15u);
        stage_in_wait(buffer);
        stage_in_end(buffer);
        u32 whole = home & 15 ? 0 : piece & ~15u;
        if (whole) stage_out(buffer, home + at, whole);
        if (whole < piece) unstage(buffer, home + at, 0, whole, piece);
    }
    unlock_staging(buffer);
}

#endif

}  // namespace detail
}  // namespace gpuvm
