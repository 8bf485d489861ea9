// Rows of a table, in the order of their ids. A warp takes a row, and holds the page of the part of it that it reads.
#include "access.cuh"

// out[k] = table[ids[k]], rows of `width` elements.
template <class T>
__global__ void __launch_bounds__(128, 4)
    take(in<T> table, const long long* ids, T* out, unsigned long long width, unsigned long long count) {
    for (u64 at = warp(); at < count && !__any_sync(kWholeWarp, stopped(table)); at += warps()) {
        u64 first = static_cast<u64>(ids[at]) * width, to = at * width;
        auto copy = [&](const auto& table) {
            share(table, first, width, [&](u64 i, T value) { out[to + (i - first)] = value; });
        };
        nearest(copy, table);
    }
}
