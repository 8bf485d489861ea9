// Merges a block's stores to a broadcast array to whole lines, in shared memory.
#pragma once

#include "detail/broadcast.cuh"

namespace gpuvm {

// Lines of one block that wait: a `__shared__` variable, used by one array at a time.
template <unsigned Lines = 32>
struct merge_queue {
    static_assert((Lines & (Lines - 1)) == 0, "gpuvm: the lines of a queue are a power of two");
    // Of each place: whether a lane uses it, the line's number plus one, which of its 4-byte words wait, and those.
    unsigned busy[Lines];
    unsigned words[Lines];
    unsigned long long line[Lines];
    alignas(16) unsigned data[Lines][detail::kLineBytes / 4];
};

// Stores through a queue. Its lanes are those of one block; all of them make it and `flush` it together. The GPU's own
// copy has each store at once, other GPUs when the line's place is needed, or flushed. The order of stores to one
// element that the block's lanes order is kept.
template <class T, unsigned Lines>
class merging {
    static_assert(sizeof(T) >= 4 && sizeof(T) <= 16, "gpuvm: stores of 4, 8 and 16 bytes are merged");

  public:
    __device__ merging(const layout::BroadcastDesc& desc, merge_queue<Lines>& queue) : desc_(desc), queue_(queue) {
        for (u32 n = rank(); n < Lines; n += block()) queue.busy[n] = queue.words[n] = 0, queue.line[n] = 0;
        __syncthreads();
    }

    __device__ void store(unsigned long long i, T value) const {
        u64 byte = i * sizeof(T);
        *reinterpret_cast<T*>(desc_.own + byte) = value;
        if (!detail::may_have_others(desc_, byte) || !detail::others_of(desc_, byte)) return;
        u64 line = byte >> layout::BROADCAST_LINE_SHIFT;
        u32 at = static_cast<u32>(line) & (Lines - 1), word = static_cast<u32>(byte % detail::kLineBytes) / 4;
        // The lanes that are here with one line use its place together.
        u32 active, group = detail::match_active(line, &active), leader = __ffs(group) - 1;
        u32 own = __popc(group & ((1u << detail::lane_id()) - 1));
        if (detail::lane_id() == leader && detail::is_counted(desc_, byte))
            detail::count_sent(detail::sending_of(desc_), 0, static_cast<u32>(__popc(group)), 0, 0);
        if (detail::lane_id() == leader)
            while (atomicExch_block(&queue_.busy[at], 1u)) __nanosleep(20);
        // After the leader's lock, of which the fence makes an acquire.
        detail::fence_acq_rel_cta();
        __syncwarp(group);
        if (queue_.line[at] != line + 1) {
            if (queue_.line[at]) send(at, own, __popc(group));
            __syncwarp(group);
            if (detail::lane_id() == leader) queue_.line[at] = line + 1, queue_.words[at] = 0;
            __syncwarp(group);
        }
        detail::copy_bytes(&queue_.data[at][word], &value, sizeof(T));
        atomicOr_block(&queue_.words[at], ((1u << sizeof(T) / 4) - 1) << word);
        __syncwarp(group);
        // Behind their meeting: it makes the leader's unlock a release of what all of them have stored.
        detail::fence_acq_rel_cta();
        if (detail::lane_id() == leader) atomicExch_block(&queue_.busy[at], 0u);
    }

    // All lanes of the block come. What waited has left for the other GPUs.
    __device__ void flush() const {
        __syncthreads();
        // 8 lanes a line, of 16 bytes each. Lanes that are not 8 together wait, unless there are no others.
        u32 lanes = block() < 8 ? block() : 8, groups = block() / lanes;
        if (rank() < groups * lanes)
            for (u32 n = rank() / lanes; n < Lines; n += groups)
                if (queue_.line[n]) send(n, rank() % lanes, lanes);
        __syncthreads();
        for (u32 n = rank(); n < Lines; n += block()) queue_.words[n] = 0, queue_.line[n] = 0;
        __syncthreads();
    }

  private:
    using u32 = detail::u32;
    using u64 = detail::u64;

    __device__ static u32 rank() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
    __device__ static u32 block() { return blockDim.x * blockDim.y * blockDim.z; }

    // The line in place `at` to other GPUs, by `lanes` lanes that come here, of which this is number `lane`.
    __device__ void send(u32 at, u32 lane, u32 lanes) const {
        u64 line = queue_.line[at] - 1, byte = line << layout::BROADCAST_LINE_SHIFT;
        u32 words = queue_.words[at], others = detail::others_of(desc_, byte);
        if (lane == 0 && detail::is_counted(desc_, byte))
            detail::count_sent(detail::sending_of(desc_), others, 0, 1, u64{static_cast<u32>(__popc(words))} * 4);
        for (; others; others &= others - 1) {
            u64 to = detail::in_view(desc_, __ffs(others) - 1, byte);
            for (u32 four = lane; four < 8; four += lanes) {
                u32 wait = words >> 4 * four & 15;
                const u32* from = &queue_.data[at][4 * four];
                if (wait == 15) {
                    // Not in one assignment: of one from memory to memory the simulator sees the store before the load.
                    detail::pair64 whole = *reinterpret_cast<const detail::pair64*>(from);
                    *reinterpret_cast<detail::pair64*>(to + 16 * four) = detail::pair64{whole.lo, whole.hi};
                    continue;
                }
                while (wait) {
                    u32 n = __ffs(wait) - 1;
                    u64 there = to + 16 * four + 4 * n;
                    // An element whole: nothing sees half of it.
                    if (sizeof(T) == 8 && (wait >> n & 3) == 3) {
                        u64 whole = *reinterpret_cast<const u64*>(from + n);
                        *reinterpret_cast<u64*>(there) = whole;
                        wait &= ~(3u << n);
                    } else {
                        *reinterpret_cast<u32*>(there) = from[n];
                        wait &= wait - 1;
                    }
                }
            }
        }
    }

    const layout::BroadcastDesc& desc_;
    merge_queue<Lines>& queue_;
};

}  // namespace gpuvm
