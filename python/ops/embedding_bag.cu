// Sums or means of rows of a table: those of bag b are ids[starts[b]] to ids[starts[b + 1] - 1]. A warp takes a bag, a
// lane every 32nd column. Rows are read as `a[i]`: a page has many, and each page's use decides what becomes of it.
#include "access.cuh"

template <class T>
__global__ void __launch_bounds__(128, 4)
    embedding_bag(in<T> table, const long long* ids, const long long* starts, T* out, unsigned long long width,
                  unsigned long long bags, unsigned mean) {
    for (u64 bag = warp(); bag < bags && !__any_sync(kWholeWarp, stopped(table)); bag += warps()) {
        i64 begin = starts[bag], end = starts[bag + 1];
        T scale = mean && end > begin ? T(end - begin) : T(1);
        auto add = [&](const auto& table) {
            for (u64 column = lane(); column < width; column += 32) {
                T sum = 0;
#pragma unroll 4
                for (i64 k = begin; k < end; ++k) sum += table[static_cast<u64>(ids[k]) * width + column];
                out[bag * width + column] = sum / scale;
            }
        };
        nearest(add, table);
    }
}
