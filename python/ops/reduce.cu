// What is known of all elements of an array: their sum; the least and the largest. Each warp goes through pieces of it
// and leaves one result.
#include "access.cuh"

constexpr u64 kElements = 1024;

template <class T, class Use>
__device__ void each(const in<T>& a, u64 count, Use use) {
    auto walk = [&](const auto& a) {
        for (u64 begin = warp() * kElements; begin < count && !__any_sync(kWholeWarp, stopped(a));
             begin += warps() * kElements)
            share(a, begin, least(kElements, count - begin), [&](u64, T value) { use(value); });
    };
    nearest(walk, a);
}

// S: `double`, or `long long`, which wraps.
template <class T, class S>
__global__ void __launch_bounds__(128, 4) sum(in<T> a, S* sums, unsigned long long count) {
    S own = 0;
    each<T>(a, count, [&](T value) { own += static_cast<S>(value); });
    own = sum_of_warp(own);
    if (lane() == 0) sums[warp()] = own;
}

// The least and the largest that a warp has met are two of `bounds`. An unsigned number above those of `long long` is
// the largest of these.
template <class T>
__global__ void __launch_bounds__(128, 4) bounds(in<T> a, long long* bounds, unsigned long long count) {
    constexpr i64 kLargest = 0x7fffffffffffffffll;
    i64 low = kLargest, high = -kLargest - 1;
    each<T>(a, count, [&](T value) {
        i64 one = static_cast<i64>(value);
        if (one < 0 && !(value < T(1))) one = kLargest;
        low = one < low ? one : low;
        high = one > high ? one : high;
    });
    for (u32 apart = 16; apart; apart /= 2) {
        i64 lower = __shfl_xor_sync(kWholeWarp, low, apart), higher = __shfl_xor_sync(kWholeWarp, high, apart);
        low = lower < low ? lower : low;
        high = higher > high ? higher : high;
    }
    if (lane() != 0) return;
    bounds[2 * warp()] = low;
    bounds[2 * warp() + 1] = high;
}
