// Sums of rows of an embedding table, as recommendation models have them: the rows of bag b are those of
// ids [b * each, (b + 1) * each). A thread takes four columns of a bag, so that a warp reads 512 neighbouring bytes of
// a row. Rows are read as `a[i]`: a page has many, and one popular row is seldom worth a fetch of the others, so each
// page's use decides. Spans would fetch every page that is met.
#include "access.cuh"

// Rows are of `quads` times four columns.
__global__ void __launch_bounds__(128, 4)
    sum_bags(in<float4> table, const unsigned* ids, float4* sums, unsigned long long quads, unsigned long long each,
             unsigned long long bags) {
    auto sum_all = [&](const auto& table) {
        for (u64 at = thread(); at < bags * quads && !stopped(table); at += threads()) {
            u64 column = at % quads;
            const u32* bag = ids + at / quads * each;
            float4 sum = make_float4(0, 0, 0, 0);
            for (u64 k = 0; k < each; ++k) {
                float4 part = table[bag[k] * quads + column];
                sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
            }
            sums[at] = sum;
        }
    };
    nearest(sum_all, table);
}
