// One level of a breadth-first search over arrays of any kind: gpuvm's, or others with `size`, `[]` and `reader`.
//
// A set of vertices is a bitmap in plain device memory.
//
// Two shapes, by SEARCH_WORD_A_LANE, which the host defines as it launches (`Shape` in bfs.rs). 0: a warp takes a word
// of it, so 32 neighbouring vertices, a lane each; the lanes of a warp read neighbouring edges, and of most pages they
// fetch one together. 1: a lane takes a word; the lanes of a warp miss different pages, which are fetched together.
#pragma once

#include <gpuvm/gpuvm.cuh>

constexpr bool kWordALane = SEARCH_WORD_A_LANE;
// A row this long is shared by the lanes of a warp, which take such pieces of it in turn: about a page, or an edge.
constexpr unsigned long long kLongRow = kWordALane ? 4096 : 24;
constexpr unsigned long long kPiece = kWordALane ? 1024 : 1;
constexpr unsigned kWholeWarp = 0xffffffffu;

template <class Neighbours, class Distances, class Row>
struct Search {
    const Neighbours& all;
    Distances& distances;
    Row neighbours;
    unsigned* visited;
    unsigned* next;
    int level;
    // Vertices reached, edges walked, elements of paged arrays read or written, all by this lane.
    unsigned long long reached = 0, edges = 0, accesses = 0;

    __device__ void visit(unsigned vertex) {
        unsigned bit = 1u << vertex % 32;
        // A look first: most neighbours were reached before. An old value only costs the atomic.
        if (visited[vertex / 32] & bit) return;
        if (atomicOr(&visited[vertex / 32], bit) & bit) return;
        distances[vertex] = level;
        atomicOr(&next[vertex / 32], bit);
        ++reached;
        ++accesses;
    }

    // One edge of many that the lanes walk side by side: a chunk for each lane would be read for one element.
    __device__ void step(unsigned long long edge) {
        visit(all[edge]);
        ++edges;
        ++accesses;
    }

    __device__ void walk(unsigned long long begin, unsigned long long end) {
        for (unsigned long long edge = begin; edge < end; ++edge) {
            visit(neighbours[edge]);
            ++edges;
            ++accesses;
        }
    }
};

// Walks the rows of the vertices in `frontier`, gives every vertex that is met for the first time the distance `level`
// and puts it into `next`. `previous` is the frontier of the level before: it is emptied to be the next `next`.
// `totals` counts vertices reached, edges walked and accesses to paged elements. Blocks are whole warps.
template <class Offsets, class Neighbours, class Distances>
__device__ void search_level(const Offsets& offsets, const Neighbours& neighbours, Distances& distances,
                             unsigned* visited, const unsigned* frontier, unsigned* next, unsigned* previous,
                             unsigned long long* totals, int level) {
    unsigned words = static_cast<unsigned>((offsets.size() - 1 + 31) / 32);
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned lane = thread % 32;
    auto starts = offsets.reader();
    auto row = neighbours.reader();
    Search<Neighbours, Distances, decltype(row)> search{neighbours, distances, row, visited, next, level};

    // A warp takes 32 words at a time, or one. No lane leaves the loop early, since all meet in the collectives; after
    // a fault the walks end at once, so the loop is short.
    unsigned lanes = gridDim.x * blockDim.x;
    unsigned stride = kWordALane ? lanes : lanes / 32;
    for (unsigned first = kWordALane ? thread - lane : thread / 32; first < words; first += stride) {
        unsigned word = kWordALane ? first + lane : first;
        unsigned members = word < words ? frontier[word] : 0;
        unsigned long_rows = 0;
        if (word < words && (kWordALane || lane == 0) && previous[word]) previous[word] = 0;
        if (!kWordALane) members &= 1u << lane;
        for (; members && !gpuvm::failed(); members &= members - 1) {
            unsigned member = __ffs(members) - 1;
            unsigned long long begin = starts[word * 32ull + member], end = starts[word * 32ull + member + 1];
            search.accesses += 2;
            if (end - begin < kLongRow) {
                search.walk(begin, end);
            } else {
                long_rows |= 1u << member;
            }
        }
        for (unsigned owners = __ballot_sync(kWholeWarp, long_rows != 0); owners; owners &= owners - 1) {
            unsigned owner = __ffs(owners) - 1;
            for (unsigned rows = __shfl_sync(kWholeWarp, long_rows, owner); rows; rows &= rows - 1) {
                unsigned long long vertex = (kWordALane ? first + owner : first) * 32ull + __ffs(rows) - 1;
                unsigned long long begin = starts[vertex], end = starts[vertex + 1];
                search.accesses += 2;
                for (begin += lane * kPiece; begin < end && !gpuvm::failed(); begin += 32 * kPiece) {
                    if (kPiece == 1)
                        search.step(begin);
                    else
                        search.walk(begin, begin + kPiece < end ? begin + kPiece : end);
                }
            }
        }
    }
    if (search.accesses) {
        atomicAdd(&totals[0], search.reached);
        atomicAdd(&totals[1], search.edges);
        atomicAdd(&totals[2], search.accesses);
    }
}
