// c = a + b. A warp takes a piece of the vectors, of whole pages up to 64 KiB.
#include "access.cuh"

constexpr u64 kPiece = 16384;

// Elements [first, first + count).
__global__ void __launch_bounds__(128, 4)
    vector_add(in<float> a, in<float> b, inout<float> c, unsigned long long first, unsigned long long count) {
    u64 end = first + count;
    for (u64 piece = first + warp() * kPiece; piece < end && !stopped(c); piece += warps() * kPiece) {
        u64 past = least(piece + kPiece, end);
        auto add = [&](const auto& a, const auto& b) {
            for (u64 at = piece; at < past;) {
                auto x = hold(a, at, past - at);
                auto y = hold(b, at, past - at);
                auto z = overwrite(c, at, past - at);
                if (!x || !y || !z) return;
                u64 here = least(x.size(), y.size(), z.size(), past - at);
#pragma unroll 4
                for (u64 k = lane(); k < here; k += 32) z[k] = x[k] + y[k];
                at += here;
            }
        };
        nearest(add, a, b);
    }
}
