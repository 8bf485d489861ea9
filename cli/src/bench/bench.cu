// Kernels of `gpuvm bench`. Whatever they read they compare with what it has to be.
#include <gpuvm/gpuvm.cuh>

// cli/src/bench/mod.rs has the same rule.
static __device__ unsigned long long pattern(unsigned long long index) {
    return index * 0x9e3779b97f4a7c15ull ^ 0x5bd1e995ull;
}

// Every lane reads the first and the last word of pages that no other lane reads.
__global__ void touch_pages(gpuvm::array<const unsigned long long> data, unsigned long long page_words,
                            unsigned long long* wrong) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long pages = data.size() / page_words;
    for (unsigned long long page = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < pages && !gpuvm::failed(); page += lanes) {
        unsigned long long first = page * page_words, last = first + page_words - 1;
        if (data[first] != pattern(first) || data[last] != pattern(last)) atomicAdd(wrong, 1ull);
    }
}

// One lane reads one word of one page after the other and notes how long each took, in nanoseconds.
__global__ void time_faults(gpuvm::array<const unsigned long long> data, unsigned long long page_words,
                            unsigned long long* took, unsigned long long* wrong) {
    unsigned long long pages = data.size() / page_words;
    for (unsigned long long page = 0; page < pages && !gpuvm::failed(); ++page) {
        unsigned long long word = page * page_words + page % page_words;
        unsigned long long began = gpuvm::detail::time_ns();
        unsigned long long value = data[word];
        took[page] = gpuvm::detail::time_ns() - began;
        if (value != pattern(word)) atomicAdd(wrong, 1ull);
    }
}
