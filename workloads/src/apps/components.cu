// Connected components: each edge joins the trees of its ends, the larger root below the smaller one, and paths are
// halved on the way (Jaiganesh and Burtscher, ECL-CC, HPDC 2018). Edges are read once; a warp takes a piece of 512. In
// the end each vertex has its root: the least vertex of its component.
#include "rows.cuh"

__device__ u32 root_of(u32* parents, u32 vertex) {
    u32 above = now(&parents[vertex]);
    while (above != vertex) {
        u32 higher = now(&parents[above]);
        // Parents only ever fall, so an old one is still above.
        if (higher != above) parents[vertex] = higher;
        vertex = above, above = higher;
    }
    return vertex;
}

__device__ void join(u32* parents, u32 one, u32 other) {
    one = root_of(parents, one), other = root_of(parents, other);
    while (one != other) {
        if (one < other) {
            u32 less = one;
            one = other, other = less;
        }
        u32 before = atomicCAS(&parents[one], one, other);
        if (before == one) return;
        // It got a parent meanwhile.
        one = root_of(parents, before);
    }
}

__global__ void __launch_bounds__(128, 4) components_start(unsigned* parents, unsigned vertices) {
    for (u64 v = thread(); v < vertices; v += threads()) parents[v] = static_cast<u32>(v);
}

// Pieces [first, first + count). An edge stored in the rows of both ends (`both`) is taken from the row of the larger
// one.
__global__ void __launch_bounds__(128, 4)
    components_join(in<unsigned long long> offsets, in<unsigned> neighbours, const unsigned* owners, unsigned* parents,
                    unsigned vertices, unsigned long long edges, unsigned both, unsigned long long first,
                    unsigned long long count) {
    for (u64 piece = first + warp(); piece < first + count && !stopped(neighbours); piece += warps()) {
        auto join_all = [&](const auto& offsets, const auto& neighbours) {
            auto ends = walk(neighbours);
            walk_piece(offsets, vertices, owners[piece], piece, edges, [&](bool there, u32 row, u64 edge) {
                if (!there) return;
                u32 vertex = ends[edge];
                // After a fault it is 0, which is a vertex, too.
                if (!both || vertex < row) join(parents, row, vertex);
            });
        };
        nearest(join_all, offsets, neighbours);
    }
}

__global__ void __launch_bounds__(128, 4) components_flatten(unsigned* parents, unsigned vertices) {
    for (u64 v = thread(); v < vertices; v += threads()) parents[v] = root_of(parents, static_cast<u32>(v));
}
