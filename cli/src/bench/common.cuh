// What the kernels of `gpuvm bench` share.
#pragma once

#include <gpuvm/gpuvm.cuh>

namespace bench {

using u64 = unsigned long long;
using u32 = unsigned int;

// What a kernel says of itself; the host checks it after each launch. `kNext`: the next piece of work, for warps that
// take theirs in order.
enum Tally { kDone = 0, kWrong = 1, kSum = 2, kTicks = 3, kTime = 4, kNext = 5 };

// machine.rs has the same rules.
static __device__ __forceinline__ u64 pattern(u64 index) { return index * 0x9e3779b97f4a7c15ull ^ 0x5bd1e995ull; }
static __device__ __forceinline__ u32 hash(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static __device__ __forceinline__ u64 thread_id() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ u64 thread_count() { return static_cast<u64>(gridDim.x) * blockDim.x; }
static __device__ __forceinline__ u64 warp_id() { return thread_id() / 32; }
static __device__ __forceinline__ u64 warp_count() { return thread_count() / 32; }
static __device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }

// The word of a page that a lane touches: the 32 of a warp are spread over the page, and other ones in each page.
static __device__ __forceinline__ u64 word_of(u64 page, u64 page_words, u32 lane) {
    u64 step = page_words / 32;
    return page * page_words + lane * step + page % step;
}

using gpuvm::detail::ticks;

// 16 bytes from memory of the host or of a neighbour, past the caches that nothing keeps coherent.
struct alignas(16) chunk {
    u64 lo, hi;
};
static __device__ __forceinline__ chunk load_system(const chunk* from) {
#ifdef GPUVM_SIM
    return *from;
#else
    chunk c;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1},[%2];" : "=l"(c.lo), "=l"(c.hi) : "l"(from) : "memory");
    return c;
#endif
}
static __device__ __forceinline__ void store_system(chunk* to, chunk c) {
#ifdef GPUVM_SIM
    *to = c;
#else
    asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};" ::"l"(to), "l"(c.lo), "l"(c.hi) : "memory");
#endif
}

// A warp copies one page with eight 16-byte loads a lane in flight.
static __device__ __forceinline__ void copy_page(u64 from, u64 to, u64 page_words) {
    const chunk* source = reinterpret_cast<const chunk*>(from);
    chunk* target = reinterpret_cast<chunk*>(to);
    u32 chunks = static_cast<u32>(page_words / 2);
    for (u32 i = lane_id(); i < chunks; i += 256) {
        chunk held[8];
#pragma unroll
        for (u32 k = 0; k < 8; ++k)
            if (i + 32 * k < chunks) held[k] = load_system(source + i + 32 * k);
#pragma unroll
        for (u32 k = 0; k < 8; ++k)
            if (i + 32 * k < chunks) store_system(target + i + 32 * k, held[k]);
    }
}

static __device__ __forceinline__ void add_tally(u64* tally, Tally what, u64 count) {
    if (count) atomicAdd(tally + what, count);
}

}  // namespace bench
