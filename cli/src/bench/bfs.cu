// The search of search.cuh over memory that is not paged by gpuvm: managed memory, or the host's own in place.
#include "search.cuh"

__global__ void bfs_level_plain(unsigned long long offsets, unsigned long long vertices, unsigned long long neighbours,
                                unsigned long long edges, unsigned long long distances, unsigned* visited,
                                const unsigned* frontier, unsigned* next, unsigned* previous, unsigned long long* list,
                                unsigned long long* totals, int level) {
    auto starts = reinterpret_cast<const unsigned long long*>(offsets);
    auto rows = reinterpret_cast<const unsigned*>(neighbours);
    auto found = reinterpret_cast<int*>(distances);
    search_level(starts, rows, found, visited, frontier, next, previous, list, totals, static_cast<unsigned>(vertices),
                 level);
}

__global__ void bfs_pieces_plain(unsigned long long vertices, unsigned long long neighbours, unsigned long long edges,
                                 unsigned long long distances, unsigned* visited, unsigned* next,
                                 const unsigned long long* list, unsigned long long* totals, int level) {
    auto rows = reinterpret_cast<const unsigned*>(neighbours);
    auto found = reinterpret_cast<int*>(distances);
    search_pieces(rows, found, visited, next, list, totals, level);
}
