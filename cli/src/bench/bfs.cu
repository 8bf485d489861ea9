// The search of search.cuh over memory that is not paged by gpuvm: managed memory, or the host's own in place.
#include "search.cuh"

// What it asks of an array.
template <class T>
struct Plain {
    T* data;
    unsigned long long length;

    __device__ unsigned long long size() const { return length; }
    __device__ T& operator[](unsigned long long i) const { return data[i]; }
    __device__ Plain reader() const { return *this; }
};

__global__ void bfs_level_plain(unsigned long long offsets, unsigned long long vertices, unsigned long long neighbours,
                                unsigned long long edges, unsigned long long distances, unsigned* visited,
                                const unsigned* frontier, unsigned* next, unsigned* previous, unsigned long long* list,
                                unsigned long long* totals, int level) {
    Plain<const unsigned long long> starts{reinterpret_cast<const unsigned long long*>(offsets), vertices + 1};
    Plain<const unsigned> rows{reinterpret_cast<const unsigned*>(neighbours), edges};
    Plain<int> found{reinterpret_cast<int*>(distances), vertices};
    search_level(starts, rows, found, visited, frontier, next, previous, list, totals, level);
}

__global__ void bfs_pieces_plain(unsigned long long vertices, unsigned long long neighbours, unsigned long long edges,
                                 unsigned long long distances, unsigned* visited, unsigned* next,
                                 const unsigned long long* list, unsigned long long* totals, int level) {
    Plain<const unsigned> rows{reinterpret_cast<const unsigned*>(neighbours), edges};
    Plain<int> found{reinterpret_cast<int*>(distances), vertices};
    search_pieces(rows, found, visited, next, list, totals, level);
}
