// Kernels over bare pointers, whose memory grows and shrinks.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }

__global__ void fill(unsigned* at, u64 first, u64 end, unsigned base) {
    for (u64 i = first + first_index(); i < end; i += lanes()) at[i] = base + static_cast<unsigned>(i);
}

__global__ void count_wrong(const unsigned* at, u64 first, u64 end, unsigned base, u64* wrong) {
    u64 bad = 0;
    for (u64 i = first + first_index(); i < end; i += lanes()) bad += at[i] != base + static_cast<unsigned>(i);
    if (bad) atomicAdd(wrong, bad);
}

__global__ void add(unsigned* at, u64 first, u64 end, unsigned by) {
    for (u64 i = first + first_index(); i < end; i += lanes()) atomicAdd(at + i, by);
}

// One block adds 1 to all elements, again and again, until it is told to stop; says when it has begun.
__global__ void churn(unsigned* at, u64 end, volatile unsigned* told, volatile unsigned* begun) {
    __shared__ unsigned stop;
    *begun = 1;
    do {
        for (u64 i = first_index(); i < end; i += lanes()) at[i] += 1;
        __nanosleep(1000);
        __syncthreads();
        // All lanes stop after the same round.
        if (threadIdx.x == 0) stop = *told;
        __syncthreads();
    } while (!stop);
}
