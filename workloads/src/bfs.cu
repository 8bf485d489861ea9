// Breadth-first search over a graph whose rows and distances are paged; one launch a level.
//
// A set of vertices is a bitmap in plain device memory: one word for 32 vertices, and behind those words a summary with
// one bit for each word that is not zero. So a level's vertices are walked in ascending order, and the rows that lie on
// one page are read together.
#include <gpuvm/gpuvm.cuh>

// A row this long is walked by all lanes of the warp, a shorter one by one lane.
constexpr unsigned long long kLongRow = 256;
// Neighbours that a lane reads at once: one 16-byte chunk.
constexpr unsigned kChunk = 4;
constexpr unsigned kWholeWarp = 0xffffffffu;

struct Found {
    unsigned long long vertices = 0;  // reached by this lane
    unsigned long long edges = 0;     // walked by this lane
    unsigned long long accesses = 0;  // elements of paged arrays read or written by this lane
};

__device__ inline void insert(unsigned* set, unsigned words, unsigned vertex) {
    unsigned word = vertex / 32;
    // The first vertex of a word announces the word.
    if (atomicOr(&set[word], 1u << vertex % 32) == 0) atomicOr(&set[words + word / 32], 1u << word % 32);
}

struct Search {
    gpuvm::array<int>& distances;
    unsigned* visited;
    unsigned* next;
    unsigned words;
    int level;
    Found found;

    __device__ void visit(unsigned vertex) {
        unsigned bit = 1u << vertex % 32;
        // A look first: most neighbours were reached before. An old value only costs the atomic.
        if (visited[vertex / 32] & bit) return;
        if (atomicOr(&visited[vertex / 32], bit) & bit) return;
        distances[vertex] = level;
        insert(next, words, vertex);
        ++found.vertices;
        ++found.accesses;
    }

    // Walks every `stride`-th chunk of the edges from `begin` to `end`.
    template <class Reader>
    __device__ void walk(Reader& neighbours, unsigned long long begin, unsigned long long end, unsigned first,
                         unsigned stride) {
        for (unsigned long long chunk = begin / kChunk + first; chunk * kChunk < end; chunk += stride) {
            if (gpuvm::failed()) return;
            unsigned long long edge = chunk * kChunk < begin ? begin : chunk * kChunk;
            unsigned long long stop = chunk * kChunk + kChunk < end ? chunk * kChunk + kChunk : end;
            found.edges += stop - edge;
            found.accesses += stop - edge;
            for (; edge < stop; ++edge) visit(neighbours[edge]);
        }
    }
};

// Walks the rows of the vertices in `frontier`, gives every vertex that is met for the first time the distance `level`
// and puts it into `next`. `previous` is the frontier of the level before: it is emptied to be the next `next`.
// `totals` counts vertices reached, edges walked and accesses to paged elements. Blocks are whole warps.
__global__ void bfs_level(gpuvm::array<const unsigned long long> offsets, gpuvm::array<const unsigned> neighbours,
                          gpuvm::array<int> distances, unsigned* visited, const unsigned* frontier, unsigned* next,
                          unsigned* previous, unsigned long long* totals, int level) {
    unsigned words = static_cast<unsigned>((offsets.size() - 1 + 31) / 32);
    unsigned groups = (words + 31) / 32;
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned lane = thread % 32;
    Search search{distances, visited, next, words, level, {}};
    auto starts = offsets.reader();
    auto rows = neighbours.reader();

    // A warp takes 32 words, so 1024 vertices, at a time.
    for (unsigned group = thread / 32; group < groups; group += gridDim.x * blockDim.x / 32) {
        unsigned own = group * 32 + lane;
        if (own < words && previous[own]) previous[own] = 0;
        if (lane == 0) previous[words + group] = 0;

        // All lanes read the same words, so they meet in the collectives. None leaves early: after a fault the accesses
        // return at once and the rest of the level is short.
        for (unsigned pending = frontier[words + group]; pending; pending &= pending - 1) {
            unsigned word = group * 32 + __ffs(pending) - 1;
            unsigned long long begin = 0, end = 0;
            if (frontier[word] >> lane & 1) {
                begin = starts[word * 32ull + lane];
                end = starts[word * 32ull + lane + 1];
                search.found.accesses += 2;
            }
            bool is_long = end - begin >= kLongRow;
            unsigned long_rows = __ballot_sync(kWholeWarp, is_long);
            if (!is_long) search.walk(rows, begin, end, 0, 1);
            for (; long_rows; long_rows &= long_rows - 1) {
                int owner = __ffs(long_rows) - 1;
                search.walk(rows, __shfl_sync(kWholeWarp, begin, owner), __shfl_sync(kWholeWarp, end, owner), lane, 32);
            }
        }
    }
    if (search.found.accesses) {
        atomicAdd(&totals[0], search.found.vertices);
        atomicAdd(&totals[1], search.found.edges);
        atomicAdd(&totals[2], search.found.accesses);
    }
}
