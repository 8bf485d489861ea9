// A sparse matrix of compressed rows times a vector. A warp takes a row, and holds a page of columns and one of values.
#include "access.cuh"

template <class T, class I>
__global__ void __launch_bounds__(128, 4)
    spmv(const long long* starts, in<I> columns, in<T> values, const T* x, T* y, unsigned long long rows) {
    for (u64 row = warp(); row < rows && !__any_sync(kWholeWarp, stopped(values)); row += warps()) {
        u64 begin = static_cast<u64>(starts[row]), end = static_cast<u64>(starts[row + 1]);
        T sum = 0;
        auto multiply = [&](const auto& columns, const auto& values) {
            for (u64 at = begin; at < end;) {
                auto column = hold(columns, at, end - at);
                auto value = hold(values, at, end - at);
                if (!column || !value) return;
                u64 here = least(column.size(), value.size(), end - at);
                for (u64 k = lane(); k < here; k += 32) sum += value[k] * x[column[k]];
                at += here;
            }
        };
        nearest(multiply, columns, values);
        sum = sum_of_warp(sum);
        if (lane() == 0) y[row] = sum;
    }
}
