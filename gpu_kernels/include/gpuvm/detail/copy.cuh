// The direct transport's mover: one lane copies a page between its home (pinned host memory, or a neighbour GPU's) and
// its frame.
//
// On compute capability 9.0 the bulk copy engine does it through a staging buffer in the block's shared memory: one
// lane is as fast as a warp, and needs no registers for the data (docs/PERFORMANCE.md has both). 8.0 has the 16-byte
// asynchronous copies, 7.x loads and stores.
#pragma once

#include "platform.cuh"
#if !defined(GPUVM_SIM)
#include "staging_cuda.cuh"
#endif

namespace gpuvm {
namespace detail {

// Plain copies by the widest accesses that both addresses and the length allow. Strong on both sides: a weak load of
// the home may hit a line of an earlier visit.
template <class T, bool ToHome>
GPUVM_DEVICE u64 copy_elements(u64 to, u64 from, u64 at, u64 end, u32 step = sizeof(T)) {
    for (; at + sizeof(T) <= end; at += step) {
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

GPUVM_DEVICE void fence_proxy() {}

// A fetch in two steps, so that the claim and the frame are found while the data is on its way; where copies are
// synchronous the second does it all.
class Fetch {
  public:
    // The copy's loads come before what the lane loads from now on.
    GPUVM_DEVICE static void end_reads() { fence_acq_rel_gpu(); }
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

GPUVM_DEVICE void copy_to_home(u64 home, u64 frame, u32 bytes) {
#if defined(GPUVM_SIM)
    // The copy engine promises neither units nor an order in which bytes arrive. Here all lower halves of words do,
    // then all upper ones, so that a reader of the home who relies on more is seen.
    if (!((home | frame) & 3)) {
        u64 done = bytes & ~7u;
        copy_elements<u32, true>(home, frame, 0, done, 8);
        copy_elements<u32, true>(home, frame, 4, done, 8);
        copy_elements<u8, true>(home, frame, done, bytes);
    } else {
        copy_plainly<true>(home, frame, bytes);
    }
#else
    copy_plainly<true>(home, frame, bytes);
#endif
}

#else

#define GPUVM_STAGED 1

// From a buffer, `skip` bytes in, to memory by the widest stores that its address allows.
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
    if (!(to & 7)) at = unstage_as<u64>(buffer, to, skip, at, end);
    if (!(to & 3)) at = unstage_as<u32>(buffer, to, skip, at, end);
    unstage_as<u8>(buffer, to, skip, at, end);
    fence_proxy();
}
// Begins to empty a buffer. The engine takes whole 16-byte units; the rest goes by stores.
GPUVM_DEVICE void unload(u32 buffer, u32 skip, u64 to, u32 bytes) {
    u32 whole = (skip | to) & 15 ? 0 : bytes & ~15u;
    if (whole) stage_out(buffer, skip, to, whole);
    if (whole < bytes) unstage(buffer, to, skip, whole, bytes);
}

// A page of `bytes` bytes is copied in pieces that end where the home's system pages do: memory that a program lends is
// pinned in ranges of whole system pages, and a copy across the edge of one is an error to compute-sanitizer. The
// length of the piece that begins at byte `at`.
GPUVM_DEVICE u32 piece_at(u64 home, u32 at, u32 bytes) {
    u32 to_edge = kStagingBytes - ((static_cast<u32>(home) + at) & (kStagingBytes - 1)), left = bytes - at;
    return left < to_edge ? left : to_edge;
}

// The frame by ordinary stores of several lanes: with a whole warp it is done sooner than by the copy engine. For a
// page of one piece in units of 16 bytes.
GPUVM_DEVICE void store_staged(const unsigned char* staged, u64 frame, u32 bytes, u32 rank, u32 lanes) {
    for (u32 at = rank * 16; at < bytes; at += lanes * 16)
        st_relaxed_gpu_v2(reinterpret_cast<pair64*>(frame + at), *reinterpret_cast<const pair64*>(staged + at));
}

// A fetch in two steps: the claim and the frame are found while the first piece is on its way. A page of several pieces
// has two of them on their way where the block has a buffer to spare.
class Fetch {
  public:
    GPUVM_DEVICE void begin(u64 home, u32 bytes) {
        home_ = home;
        bytes_ = bytes;
        buffer_ = lock_staging();
        issue(buffer_, 0);
    }
    // Forgets it: the data that is on its way lands in the buffer only.
    GPUVM_DEVICE void cancel() {
        arrive(buffer_);
        unlock_staging(buffer_);
    }
    // Returns when the frame holds the page, for ordinary loads too.
    GPUVM_DEVICE void finish(u64 frame) {
        u32 asked = piece(0), other = asked < bytes_ ? try_lock_staging() : kStagingBuffers, buffer = buffer_;
        bool two = other != kStagingBuffers;
        if (two) asked += issue(other, asked);
        for (u32 at = 0; at < bytes_; at += piece(at)) {
            arrive(buffer);
            unload(buffer, skip(at), frame + at, piece(at));
            stage_out_read();
            if (asked < bytes_) asked += issue(buffer, asked);
            if (two) buffer = buffer == buffer_ ? other : buffer_;
        }
        // The buffers were read: the thread that waits for them need not wait for the frame.
        if (two) unlock_staging(other);
        unlock_staging(buffer_);
        stage_out_wait();
    }

    // The copy's loads come before what the lane loads from now on: an engine's reads are over before the arrival that
    // the lane has waited for.
    GPUVM_DEVICE static void end_reads() {}

    // `finish` in parts, for a page of one piece, whose bytes other lanes read in the staging buffer.
    GPUVM_DEVICE u32 buffer() const { return buffer_; }
    GPUVM_DEVICE u32 phase() const { return staging_phase(buffer_); }
    GPUVM_DEVICE static void wait(u32 buffer, u32 phase) { stage_in_wait(buffer, phase); }
    GPUVM_DEVICE static const unsigned char* staged(u32 buffer) { return staging.bytes[buffer]; }
    // Begins to fill the frame, and returns when the buffer was read.
    GPUVM_DEVICE void empty(u64 frame) {
        unload(buffer_, 0, frame, bytes_);
        stage_out_read();
    }
    // The frame holds what was read of buffers, for ordinary loads too.
    GPUVM_DEVICE static void emptied() { stage_out_wait(); }
    // After every lane's accesses to the buffer.
    GPUVM_DEVICE void release() {
        stage_in_end(buffer_);
        unlock_staging(buffer_);
    }

  private:
    // A piece is read with what lies before it to the next multiple of 128, and after it of 16: all of the same system
    // page, so they may be read. Only the first begins off such a multiple.
    GPUVM_DEVICE u32 skip(u32 at) const { return at ? 0 : static_cast<u32>(home_) & 127; }
    GPUVM_DEVICE u32 piece(u32 at) const { return piece_at(home_, at, bytes_); }
    GPUVM_DEVICE static void arrive(u32 buffer) {
        stage_in_wait(buffer, staging_phase(buffer));
        stage_in_end(buffer);
    }
    // Begins a piece and returns its length.
    GPUVM_DEVICE u32 issue(u32 buffer, u32 at) {
        u32 before = skip(at), bytes = piece(at);
        stage_in_begin(buffer, home_ + at - before, (before + bytes + 15) & ~15u);
        return bytes;
    }

    u64 home_;
    u32 bytes_;
    u32 buffer_ = 0;
};

// Returns when the home holds the page; the caller's fence makes that known.
GPUVM_NOINLINE void copy_to_home(u64 home, u64 frame, u32 bytes) {
    u32 buffer = lock_staging();
    // The stores of those who held the page come before the engine's reads: it was cleaned after they had let it go.
    fence_proxy();
    for (u32 at = 0; at < bytes; at += piece_at(home, at, bytes)) {
        // The engine reads whole units of 16 bytes. What lies around a piece is the same frame, which is whole pages.
        u32 piece = piece_at(home, at, bytes), before = at & 15;
        stage_in_begin(buffer, frame + at - before, (before + piece + 15) & ~15u);
        stage_in_wait(buffer, staging_phase(buffer));
        stage_in_end(buffer);
        unload(buffer, before, home + at, piece);
        stage_out_read();
    }
    unlock_staging(buffer);
    stage_out_wait();
}

#endif

}  // namespace detail
}  // namespace gpuvm
