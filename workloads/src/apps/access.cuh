// How the kernels of an application reach its large arrays: paged, or by plain pointers, from one text. ACCESS_PLAIN,
// which the host defines as 1 for pointers, chooses.
//
//   in<T>     an array that is read: gpuvm::array<const T>, or const T*
//   inout<T>  an array that is read and written: gpuvm::array<T>, or T*
#pragma once

#include <gpuvm/gpuvm.cuh>

#ifndef ACCESS_PLAIN
#define ACCESS_PLAIN 0
#endif

using u32 = unsigned;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

#if ACCESS_PLAIN
template <class T>
using in = const T*;
template <class T>
using inout = T*;
#else
template <class T>
using in = gpuvm::array<const T>;
template <class T>
using inout = gpuvm::array<T>;
#endif

constexpr u32 kWholeWarp = 0xffffffffu;

__device__ inline u32 lane() { return threadIdx.x % 32; }
__device__ inline u64 thread() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 threads() { return gridDim.x * static_cast<u64>(blockDim.x); }
__device__ inline u64 warp() { return thread() / 32; }
__device__ inline u64 warps() { return threads() / 32; }

// Whether the launch has met a fault: reads give zero then, and long loops are to end. Plain memory knows none.
template <class T>
__device__ bool stopped(T*) {
    return false;
}
template <class T>
__device__ bool stopped(const gpuvm::array<T>& a) {
    return a.failed();
}

// Runs `use` with plain pointers in place of the arrays when all their pages are there for good, else with the arrays.
// By a warp whose lanes all come here, so that they go one way.
template <class Use, class... Arrays>
__device__ void nearest(Use use, const Arrays&... arrays) {
#if !ACCESS_PLAIN
    if (__all_sync(kWholeWarp, (... && (arrays.resident() != nullptr)))) {
        use(arrays.resident()...);
        return;
    }
#endif
    use(arrays...);
}

// For a lane that walks neighbouring elements.
template <class T>
__device__ const T* walk(const T* a) {
    return a;
}
template <class T>
__device__ gpuvm::reader<T> walk(const gpuvm::array<const T>& a) {
    return a.reader();
}

// Elements of a plain array, as a span of a paged one has them.
template <class T>
struct held {
    T* data;
    __device__ explicit operator bool() const { return true; }
    __device__ u64 size() const { return ~0ull; }
    __device__ T& operator[](u64 k) const { return data[k]; }
};

// Raw elements from i on, to the end of their page, of which at most `most` are used. The lane holds the page as long
// as the value lives.
template <class T>
__device__ held<T> hold(T* a, u64 i, u64) {
    return held<T>{a + i};
}
template <class T>
__device__ auto hold(const gpuvm::array<const T>& a, u64 i, u64 most) {
    return a.pin(i, most);
}

// The same for a warp whose lanes all come here, and that writes the next `count` of these elements, without a look at
// what they were, before it lets them go: a page of which they are all need not be fetched.
template <class T>
__device__ held<T> overwrite(T* a, u64 i, u64) {
    return held<T>{a + i};
}
template <class T>
__device__ auto overwrite(const gpuvm::array<T>& a, u64 i, u64 count) {
    return a.overwrite(i, count);
}

__device__ inline u64 least(u64 one) { return one; }
template <class... More>
__device__ u64 least(u64 one, More... more) {
    u64 other = least(more...);
    return one < other ? one : other;
}

// Elements [first, first + count) by a warp whose lanes all come here: each lane gets some of them, as `use(i, a[i])`,
// neighbours beside each other. The warp holds one page at a time, which its launch declares: `warp_spans(1)`.
template <class Array, class Use>
__device__ void share(const Array& a, u64 first, u64 count, Use use) {
    for (u64 at = first, end = first + count; at < end;) {
        auto part = hold(a, at, end - at);
        if (!part) return;
        u64 here = least(part.size(), end - at);
#pragma unroll 8
        for (u64 k = lane(); k < here; k += 32) use(at + k, part[k]);
        at += here;
    }
}

// Elements [first, first + count) become `make(i)`, by a warp whose lanes all come here. It holds one page at a time.
template <class Array, class Make>
__device__ void fill(const Array& a, u64 first, u64 count, Make make) {
    for (u64 at = first, end = first + count; at < end;) {
        auto part = overwrite(a, at, end - at);
        if (!part) return;
        u64 here = least(part.size(), end - at);
        for (u64 k = lane(); k < here; k += 32) part[k] = make(at + k);
        at += here;
    }
}

// Atomics at GPU scope; they return the old value.
template <class T>
__device__ T add_at(T* a, u64 i, T v) {
    return atomicAdd(a + i, v);
}
template <class T>
__device__ T add_at(const gpuvm::array<T>& a, u64 i, T v) {
    return a.atomic_add(i, v);
}
template <class T>
__device__ T min_at(T* a, u64 i, T v) {
    return atomicMin(a + i, v);
}
template <class T>
__device__ T min_at(const gpuvm::array<T>& a, u64 i, T v) {
    return a.atomic_min(i, v);
}

// The sum of a warp's values, in all lanes.
template <class T>
__device__ T sum_of_warp(T value) {
    for (u32 apart = 16; apart; apart /= 2) value += __shfl_xor_sync(kWholeWarp, value, apart);
    return value;
}
