// A matrix of n x n times vectors, by its rows and by its columns: MVT, ATAX and BICG of PolyBench.
#include "access.cuh"

// y[i] += the product of row i with x, for rows [first, first + count). A warp takes a row.
__global__ void __launch_bounds__(128, 4) row_products(in<float> matrix, const float* x, float* y, unsigned long long n,
                                                       unsigned long long first, unsigned long long count) {
    for (u64 row = first + warp(); row < first + count && !stopped(matrix); row += warps()) {
        float sum = 0;
        auto multiply = [&](const auto& matrix) {
            share(matrix, row * n, n, [&](u64 i, float value) { sum += value * x[i - row * n]; });
        };
        nearest(multiply, matrix);
        sum = sum_of_warp(sum);
        if (lane() == 0) y[row] += sum;
    }
}

// Columns and rows of a tile that a warp takes: its lanes hold the sums of all columns.
constexpr u32 kColumns = 1024;
constexpr u64 kRows = 64;

// y[j] += the product of column j with x, over rows [first, first + count). A warp takes a tile.
__global__ void __launch_bounds__(128, 4)
    column_products(in<float> matrix, const float* x, float* y, unsigned long long n, unsigned long long first,
                    unsigned long long count) {
    u64 across = (n + kColumns - 1) / kColumns, tiles = across * ((count + kRows - 1) / kRows);
    for (u64 tile = warp(); tile < tiles && !stopped(matrix); tile += warps()) {
        u64 column = tile % across * kColumns, top = first + tile / across * kRows;
        u64 width = least(kColumns, n - column), bottom = least(top + kRows, first + count);
        float sums[kColumns / 32] = {};
        auto add_rows = [&](const auto& matrix) {
            for (u64 row = top; row < bottom; ++row) {
                auto part = hold(matrix, row * n + column, width);
                if (!part) return;
                bool whole = part.size() >= width;
#pragma unroll
                for (u32 k = 0; k < kColumns / 32; ++k) {
                    u64 at = lane() + k * 32;
                    // A row that begins within a page may end in the next one.
                    if (at < width)
                        sums[k] += x[row] * (whole || at < part.size() ? part[at] : matrix[row * n + column + at]);
                }
            }
        };
        nearest(add_rows, matrix);
#pragma unroll
        for (u32 k = 0; k < kColumns / 32; ++k)
            if (lane() + k * 32 < width) atomicAdd(&y[column + lane() + k * 32], sums[k]);
    }
}
