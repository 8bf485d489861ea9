// PageRank, as the GAP benchmark has it: rank = (1 - d) / V + d * the sum of what each neighbour contributes, its own
// rank over its degree. An iteration pulls contributions along all edges, a warp a piece of 512 edges, and then makes
// ranks of sums.
#include "rows.cuh"

// What each vertex gives of its rank to each neighbour, and contributes first.
__global__ void __launch_bounds__(128, 4) pagerank_start(in<unsigned long long> offsets, float* share_of,
                                                         float* contributions, float* sums, unsigned vertices) {
    for (u64 v = thread(); v < vertices && !stopped(offsets); v += threads()) {
        u64 begin = offsets[v], degree = offsets[v + 1] - begin;
        share_of[v] = degree ? 1.0f / static_cast<float>(degree) : 0.0f;
        contributions[v] = share_of[v] / static_cast<float>(vertices);
        sums[v] = 0;
    }
}

// Pieces [first, first + count).
__global__ void __launch_bounds__(128, 4)
    pagerank_pull(in<unsigned long long> offsets, in<unsigned> neighbours, const unsigned* owners,
                  const float* contributions, float* sums, unsigned vertices, unsigned long long edges,
                  unsigned long long first, unsigned long long count) {
    for (u64 piece = first + warp(); piece < first + count && !stopped(neighbours); piece += warps()) {
        // A lane adds up as long as its edges are of one row.
        u32 summed = 0;
        float sum = 0;
        auto pull = [&](const auto& offsets, const auto& neighbours) {
            auto ends = walk(neighbours);
            walk_piece(offsets, vertices, owners[piece], piece, edges, [&](bool there, u32 row, u64 edge) {
                if (!there) return;
                if (row != summed) {
                    if (sum != 0) atomicAdd(&sums[summed], sum);
                    summed = row, sum = 0;
                }
                sum += contributions[ends[edge]];
            });
        };
        nearest(pull, offsets, neighbours);
        if (sum != 0) atomicAdd(&sums[summed], sum);
    }
}

// A warp takes ranks that lie beside each other.
constexpr u64 kRanks = 1024;
// Changes are whole numbers, whose sum is the same in any order: all ranks together are at most 1.
constexpr float kChangeUnits = 1ull << 60;

// `alone`: the rank that vertices without edges had. `change`, where it is `asked` for, grows by how far each rank
// goes.

__global__ void __launch_bounds__(128, 4)
    pagerank_rank(inout<float> ranks, const float* share_of, float* contributions, float* sums, float base,
                  float damping, unsigned vertices, float alone, unsigned asked, unsigned long long* change) {
    u64 changed = 0;
    for (u64 begin = warp() * kRanks; begin < vertices && !stopped(ranks); begin += warps() * kRanks) {
        fill(ranks, begin, least(kRanks, vertices - begin), [&](u64 v) {
            float rank = base + damping * sums[v];
            if (asked) {
                float before = share_of[v] > 0 ? contributions[v] / share_of[v] : alone;
                changed += static_cast<u64>(fabsf(rank - before) * kChangeUnits);
            }
            contributions[v] = rank * share_of[v];
            sums[v] = 0;
            return rank;
        });
    }
    changed = sum_of_warp(changed);
    if (lane() == 0 && changed) atomicAdd(change, changed);
}
