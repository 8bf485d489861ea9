#include <gpuvm/gpuvm.cuh>

// By its plain name, for who looks it up in a module of his own.
extern "C" __global__ void count(gpuvm::array<const unsigned> keys, unsigned* bins, unsigned bin_count) {
    unsigned long long threads = gridDim.x * 1ull * blockDim.x;
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < keys.size() && !keys.failed(); i += threads)
        atomicAdd(&bins[keys[i] % bin_count], 1u);
}
GPUVM_EXPORT(count)
