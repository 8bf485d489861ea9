// Breadth-first search over a graph whose rows and distances are paged. Each level takes two launches.
#include "search.cuh"

// Registers for 8 blocks of 64 threads: other warps hide the time of a read, and only a fault needs more registers. 16
// blocks make a search no faster, and a few large frames are not enough for their warps.
__global__ void __launch_bounds__(64, 8)
    bfs_level(gpuvm::array<const unsigned long long> offsets, gpuvm::array<const unsigned> neighbours,
              gpuvm::array<int> distances, unsigned* visited, const unsigned* frontier, unsigned* next,
              unsigned* previous, unsigned long long* list, unsigned long long* totals, int level) {
    search_level(offsets, neighbours, distances, visited, frontier, next, previous, list, totals, level);
}

__global__ void __launch_bounds__(64, 8)
    bfs_pieces(gpuvm::array<const unsigned> neighbours, gpuvm::array<int> distances, unsigned* visited, unsigned* next,
               const unsigned long long* list, unsigned long long* totals, int level) {
    search_pieces(neighbours, distances, visited, next, list, totals, level);
}
