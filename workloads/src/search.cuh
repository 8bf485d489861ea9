// One level of a breadth-first search over arrays of any kind: gpuvm's or plain pointers.
//
// A set of vertices is a bitmap in plain device memory. A level takes two kernels. `search_level` walks the rows of the
// frontier and lists the pieces of long rows; `search_pieces` walks these pieces. So a row of a million edges does not
// keep one warp busy while the others have ended.
//
// SEARCH_WORD_A_LANE, which the host defines (`Shape` in bfs.rs), chooses one of two shapes. 0: a warp takes a word of
// the frontier (32 neighbouring vertices) or a piece. Its lanes read neighbouring edges, so they mostly fetch one page
// together. 1: a lane takes a word or a piece. The lanes of a warp miss different pages, and
// these are fetched together.
#pragma once

#include "rows.cuh"

constexpr bool kWordALane = SEARCH_WORD_A_LANE;

template <class Neighbours, class Distances>
struct Search {
    Distances& distances;
    decltype(walk(*static_cast<const Neighbours*>(nullptr))) neighbours;
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

    __device__ void step(unsigned long long edge) {
        unsigned vertex = neighbours[edge];
        visit(vertex);
        ++edges;
        ++accesses;
    }

    // Edges [begin, end) of a lane that has them to itself.
    __device__ void walk_alone(unsigned long long begin, unsigned long long end) {
        for (; begin < end; ++begin) step(begin);
    }

    // This lane's share of edges that a warp walks.
    __device__ void walk_together(unsigned lane, unsigned long long begin, unsigned long long end) {
        for (begin += lane; begin < end && !stopped(distances); begin += 32) step(begin);
    }

    __device__ void add_to(unsigned long long* totals) {
        if (!accesses) return;
        atomicAdd(&totals[0], reached);
        atomicAdd(&totals[1], edges);
        atomicAdd(&totals[2], accesses);
    }
};

// The rows of a word of the frontier, whose vertices the lanes share.
template <class Starts, class Neighbours, class Distances>
__device__ void search_word(Starts& starts, Search<Neighbours, Distances>& search, unsigned word, unsigned members,
                            unsigned long long* list, unsigned lane) {
    if (!members) return;
    unsigned long long begin = 0, end = 0;
    if (members >> lane & 1) {
        begin = starts[word * 32ull + lane], end = starts[word * 32ull + lane + 1];
        search.accesses += 2;
    }
    // After a fault lanes may have read zeros.
    if (__any_sync(kWholeWarp, stopped(search.distances))) return;
    bool listed = end - begin >= kListedRow;
    walk_rows(search.distances, begin, listed ? 0 : static_cast<unsigned>(end - begin), 0,
              [&](unsigned long long edge, unsigned) { search.step(edge); });
    for (unsigned owners = __ballot_sync(kWholeWarp, listed); owners; owners &= owners - 1) {
        unsigned owner = __ffs(owners) - 1;
        list_row(list, search.level, __shfl_sync(kWholeWarp, begin, owner), __shfl_sync(kWholeWarp, end, owner),
                 [](unsigned long long) {});
    }
}

// The rows of words of the frontier, one a lane.
template <class Starts, class Neighbours, class Distances>
__device__ void search_words(Starts& starts, Search<Neighbours, Distances>& search, unsigned word, unsigned members,
                             unsigned long long* list, unsigned lane) {
    unsigned long_rows = 0;
    for (; members && !stopped(search.distances); members &= members - 1) {
        unsigned member = __ffs(members) - 1;
        unsigned long long begin = starts[word * 32ull + member], end = starts[word * 32ull + member + 1];
        search.accesses += 2;
        if (end - begin < kListedRow)
            search.walk_alone(begin, end);
        else
            long_rows |= 1u << member;
    }
    for (unsigned owners = __ballot_sync(kWholeWarp, long_rows != 0); owners; owners &= owners - 1) {
        unsigned owner = __ffs(owners) - 1, first = __shfl_sync(kWholeWarp, word, owner);
        for (unsigned rows = __shfl_sync(kWholeWarp, long_rows, owner); rows; rows &= rows - 1) {
            unsigned long long vertex = first * 32ull + __ffs(rows) - 1;
            unsigned long long begin = starts[vertex], end = starts[vertex + 1];
            search.accesses += 2;
            // After a fault lanes may have read zeros, and would diverge here.
            if (__any_sync(kWholeWarp, stopped(search.distances))) continue;
            list_row(list, search.level, begin, end, [](unsigned long long) {});
        }
    }
}

// Walks the rows of the vertices in `frontier`, except long ones. A vertex that is met for the first time gets the
// distance `level` and goes into `next`. `previous` is the frontier of the level before, which is cleared to become the
// next `next`. `list` takes the pieces of long rows; its count for the next level is cleared. `totals` counts vertices
// reached, edges walked and accesses to paged elements. Blocks are whole warps.
template <class Offsets, class Neighbours, class Distances>
__device__ void search_level(const Offsets& offsets, const Neighbours& neighbours, Distances& distances,
                             unsigned* visited, const unsigned* frontier, unsigned* next, unsigned* previous,
                             unsigned long long* list, unsigned long long* totals, unsigned vertices, int level) {
    unsigned words = (vertices + 31) / 32;
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned lane = thread % 32;
    auto starts = walk(offsets);
    Search<Neighbours, Distances> search{distances, walk(neighbours), visited, next, level};
    if (thread == 0) list[(level + 1) % 2] = 0;

    // A warp takes 32 words at a time, or one. No lane leaves the loop early, since all meet in the collectives; after
    // a fault the walks end at once, so the loop is short.
    unsigned lanes = gridDim.x * blockDim.x;
    unsigned stride = kWordALane ? lanes : lanes / 32;
    for (unsigned first = kWordALane ? thread - lane : thread / 32; first < words; first += stride) {
        unsigned word = kWordALane ? first + lane : first;
        unsigned members = word < words ? frontier[word] : 0;
        if (word < words && (kWordALane || lane == 0) && previous[word]) previous[word] = 0;
        if (kWordALane)
            search_words(starts, search, word, members, list, lane);
        else
            search_word(starts, search, word, members, list, lane);
    }
    search.add_to(totals);
}

// Walks the pieces that `search_level` has listed at this level.
template <class Neighbours, class Distances>
__device__ void search_pieces(const Neighbours& neighbours, Distances& distances, unsigned* visited, unsigned* next,
                              const unsigned long long* list, unsigned long long* totals, int level) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned lanes = gridDim.x * blockDim.x;
    Search<Neighbours, Distances> search{distances, walk(neighbours), visited, next, level};
    unsigned long long pieces = list[level % 2];
    unsigned stride = kWordALane ? lanes : lanes / 32;
    for (unsigned long long at = kWordALane ? thread : thread / 32; at < pieces && !stopped(distances); at += stride) {
        unsigned long long piece = list[kListHead + at];
        unsigned long long begin = piece / kPieceUnit, end = begin + piece % kPieceUnit;
        if (kWordALane) {
            search.walk_alone(begin, end);
        } else {
            search.walk_together(thread % 32, begin, end);
        }
    }
    search.add_to(totals);
}
