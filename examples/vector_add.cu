#include <gpuvm/gpuvm.cuh>

__global__ void add(gpuvm::array<const float> a, gpuvm::array<const float> b, gpuvm::array<float> sum) {
    unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    if (i < sum.size()) sum[i] = a[i] + b[i];
}
