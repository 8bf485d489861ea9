// Triangles of a graph whose rows hold lower vertices alone: for each edge (v, u), how many of u's row are in v's. A
// warp takes a piece of 512 edges. It keeps the rows of these edges' v in shared memory, 2048 edges at a time, walks
// the rows of 32 u end to end, and looks each of their edges up.
#include "rows.cuh"

constexpr u32 kKept = 2048;
constexpr u32 kBlock = 128;

// Whether `vertex` is in kept[low, high), which ascends.
__device__ bool holds(const u32* kept, u32 low, u32 high, u32 vertex) {
    u32 past = high;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (kept[middle] < vertex)
            low = middle + 1;
        else
            high = middle;
    }
    return low < past && kept[low] == vertex;
}

__global__ void __launch_bounds__(kBlock, 4) triangles_start(unsigned long long* total) {
    if (thread() == 0) *total = 0;
}

// Triangles with an edge of the piece, of those that this lane finds. `row` is the row of the piece's first edge, and
// `last_row` of its last one.
template <class Offsets, class Neighbours>
__device__ u64 count_piece(const Offsets& offsets, const Neighbours& neighbours, u32* kept, u32 row, u32 last_row,
                           u64 piece, u32 vertices, u64 edges) {
    u64 found = 0, begin = offsets[row], end = offsets[last_row + 1ull];
    // After a fault lanes may have read zeros.
    if (__any_sync(kWholeWarp, stopped(neighbours))) return 0;
    for (u64 low = begin; low < end; low += kKept) {
        u64 high = least(low + kKept, end);
        __syncwarp();
        for (u64 edge = low + lane(); edge < high; edge += 32) kept[edge - low] = neighbours[edge];
        __syncwarp();
        walk_piece(offsets, vertices, row, piece, edges, [&](bool there, u32 v, u64 edge) {
            // What is kept of v's row, and u's row.
            u64 from = 0, past = 0, first = 0, last = 0;
            if (there) from = offsets[v], past = least(offsets[v + 1ull], high);
            if (from < low) from = low;
            if (from < past) {
                u32 u = neighbours[edge];
                first = offsets[u], last = offsets[u + 1ull];
            }
            if (__any_sync(kWholeWarp, stopped(neighbours))) return;
            u32 range = static_cast<u32>(from - low) << 16 | static_cast<u32>(past - low);
            walk_rows(neighbours, first, static_cast<u32>(last - first), range,
                      [&](u64 at, u32 in) { found += holds(kept, in >> 16, in & 0xffff, neighbours[at]); });
        });
    }
    return found;
}

// `owners` has the row of each piece's first edge, and of its last one.
__global__ void __launch_bounds__(kBlock, 4)
    triangles_count(in<unsigned long long> offsets, in<unsigned> neighbours, const unsigned* owners,
                    unsigned long long* total, unsigned vertices, unsigned long long edges) {
    __shared__ u32 rooms[kBlock / 32][kKept];
    u32* kept = rooms[threadIdx.x / 32];
    u64 found = 0, pieces = (edges + kPiece - 1) / kPiece;
    for (u64 piece = warp(); piece < pieces && !__any_sync(kWholeWarp, stopped(neighbours)); piece += warps()) {
        auto count = [&](const auto& offsets, const auto& neighbours) {
            found += count_piece(offsets, neighbours, kept, owners[piece * 2], owners[piece * 2 + 1], piece, vertices,
                                 edges);
        };
        nearest(count, offsets, neighbours);
    }
    found = sum_of_warp(found);
    if (lane() == 0) atomicAdd(total, found);
}
