// gpuvm: arrays larger than GPU memory, for CUDA kernels. Include this one file.
//
//   __global__ void scale(gpuvm::array<float> a, float f) {
//       unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
//       if (i < a.size()) a[i] *= f;
//   }
//
// C++17, no other headers; nvcc, NVRTC and the simulated GPU compile it. Compute capability 7.0 and up.
#pragma once

#include "array.cuh"
#include "broadcast.cuh"
