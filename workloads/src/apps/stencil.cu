// One step of a stencil of five points over a grid of `rows` x `width`: each inner point becomes the mean of its
// neighbours. A warp takes a piece of a row.
#include "access.cuh"

constexpr u64 kPiece = 1024;

// Rows [first, first + count).
__global__ void __launch_bounds__(128, 4)
    stencil(in<float> from, inout<float> to, unsigned long long rows, unsigned long long width,
            unsigned long long first, unsigned long long count) {
    u64 across = (width + kPiece - 1) / kPiece;
    for (u64 piece = warp(); piece < across * count && !stopped(to); piece += warps()) {
        u64 row = first + piece / across, begin = piece % across * kPiece, end = least(begin + kPiece, width);
        bool inside = row > 0 && row + 1 < rows;
        auto step = [&](const auto& from) {
            for (u64 column = begin; column < end;) {
                u64 at = row * width + column;
                auto up = hold(from, inside ? at - width : at, end - column);
                auto here = hold(from, at, end - column);
                auto down = hold(from, inside ? at + width : at, end - column);
                if (!up || !here || !down) return;
                u64 points = least(up.size(), here.size(), down.size(), end - column);
                auto out = overwrite(to, at, points);
                if (!out) return;
                points = least(points, out.size());
                for (u64 k = lane(); k < points; k += 32) {
                    u64 x = column + k;
                    if (!inside || x == 0 || x + 1 == width) {
                        out[k] = here[k];
                        continue;
                    }
                    // The neighbours of a page's first and last point may lie in other pages.
                    float left = k > 0 ? here[k - 1] : from[at + k - 1];
                    float right = k + 1 < points ? here[k + 1] : from[at + k + 1];
                    out[k] = 0.25f * (up[k] + down[k] + left + right);
                }
                column += points;
            }
        };
        nearest(step, from);
    }
}
