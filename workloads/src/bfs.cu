// Breadth-first search over a graph whose rows and distances are large arrays. Each level takes two launches.
#include "search.cuh"

// A warp clears the distances of this many vertices.
constexpr u64 kCleared = 1024;

// Nothing but the source is reached.
__global__ void __launch_bounds__(128, 4)
    bfs_start(inout<int> distances, unsigned* visited, unsigned* frontier, unsigned* next, unsigned* previous,
              unsigned long long* list, unsigned long long* totals, unsigned vertices, unsigned source) {
    for (u64 begin = warp() * kCleared; begin < vertices && !stopped(distances); begin += warps() * kCleared)
        fill(distances, begin, least(kCleared, vertices - begin),
             [&](u64 vertex) { return vertex == source ? 0 : -1; });
    for (u64 word = thread(); word < (vertices + 31ull) / 32; word += threads()) {
        visited[word] = frontier[word] = word == source / 32 ? 1u << source % 32 : 0;
        next[word] = previous[word] = 0;
    }
    if (thread() < kListHead) list[thread()] = 0;
    if (thread() < 3) totals[thread()] = thread() == 0;
}

// Registers for 8 blocks of 64 threads: other warps hide the time of a read, and only a fault needs more registers. 16
// blocks make a search no faster, and a few large frames are not enough for their warps.
__global__ void __launch_bounds__(64, 8)
    bfs_level(in<unsigned long long> offsets, in<unsigned> neighbours, inout<int> distances, unsigned* visited,
              const unsigned* frontier, unsigned* next, unsigned* previous, unsigned long long* list,
              unsigned long long* totals, unsigned vertices, int level) {
    auto search = [&](const auto& offsets, const auto& neighbours) {
        search_level(offsets, neighbours, distances, visited, frontier, next, previous, list, totals, vertices, level);
    };
    nearest(search, offsets, neighbours);
}

__global__ void __launch_bounds__(64, 8)
    bfs_pieces(in<unsigned> neighbours, inout<int> distances, unsigned* visited, unsigned* next,
               const unsigned long long* list, unsigned long long* totals, int level) {
    auto search = [&](const auto& neighbours) {
        search_pieces(neighbours, distances, visited, next, list, totals, level);
    };
    nearest(search, neighbours);
}
