// Breadth-first search over a graph whose rows and distances are paged; one launch a level.
#include "search.cuh"

__global__ void bfs_level(gpuvm::array<const unsigned long long> offsets, gpuvm::array<const unsigned> neighbours,
                          gpuvm::array<int> distances, unsigned* visited, const unsigned* frontier, unsigned* next,
                          unsigned* previous, unsigned long long* totals, int level) {
    search_level(offsets, neighbours, distances, visited, frontier, next, previous, totals, level);
}
