// y = alpha A x + beta B x for matrices of n x n: GESUMMV of PolyBench. A warp takes a row of both.
#include "access.cuh"

// Rows [first, first + count).
__global__ void __launch_bounds__(128, 4)
    gesummv(in<float> a, in<float> b, const float* x, float* y, float alpha, float beta, unsigned long long n,
            unsigned long long first, unsigned long long count) {
    for (u64 row = first + warp(); row < first + count && !stopped(a); row += warps()) {
        float of_a = 0, of_b = 0;
        auto multiply = [&](const auto& a, const auto& b) {
            for (u64 at = row * n, end = at + n; at < end;) {
                auto p = hold(a, at, end - at);
                auto q = hold(b, at, end - at);
                if (!p || !q) break;
                u64 here = least(p.size(), q.size(), end - at);
#pragma unroll 4
                for (u64 k = lane(); k < here; k += 32) {
                    float with = x[at + k - row * n];
                    of_a += p[k] * with;
                    of_b += q[k] * with;
                }
                at += here;
            }
        };
        nearest(multiply, a, b);
        float sum = sum_of_warp(alpha * of_a + beta * of_b);
        if (lane() == 0) y[row] = sum;
    }
}
