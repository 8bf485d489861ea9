// Rows of a table, in the order of their ids, and the other way: rows that are added to those of a table. A warp takes
// a row, and holds the page of the part of it that it reads.
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

__device__ inline void add(float* to, float value) { atomicAdd(to, value); }
__device__ inline void add(double* to, double value) { atomicAdd(to, value); }
__device__ inline void add(int* to, int value) { atomicAdd(to, value); }
// Two's complement: the sum is the same.
__device__ inline void add(long long* to, long long value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// table[ids[k]] += values[k], rows of `width` elements; ids may occur several times.
template <class T>
__global__ void __launch_bounds__(128, 4) scatter_add(inout<T> table, const long long* ids, const T* values,
                                                      unsigned long long width, unsigned long long count) {
    for (u64 at = warp(); at < count && !__any_sync(kWholeWarp, stopped(table)); at += warps()) {
        u64 first = static_cast<u64>(ids[at]) * width, from = at * width;
        for (u64 done = 0; done < width;) {
            auto part = table.pin(first + done);
            if (!part) break;
            u64 here = least(part.size(), width - done);
            for (u64 k = lane(); k < here; k += 32) add(&part[k], values[from + done + k]);
            done += here;
        }
    }
}
