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

// GPUVM_EXPORT(kernel): behind a kernel that is compiled to a cubin, a fat binary or PTX, for a host that loads that
// file and launches the kernel as one of its own sources: it describes the parameters, and with what the file was
// compiled. The kernel is named without its namespace, and is no template.
#define GPUVM_EXPORT(kernel)                                                                                     \
    extern "C" {                                                                                                 \
    GPUVM_TABLE_STORAGE unsigned gpuvm_export_code_##kernel[2] = {gpuvm::layout::LAYOUT_VERSION,                 \
                                                                  gpuvm::detail::kFeatures};                     \
    GPUVM_TABLE_STORAGE typename gpuvm_detail::signature<decltype(&kernel)>::table gpuvm_export_table_##kernel = \
        gpuvm_detail::signature<decltype(&kernel)>::make();                                                      \
    }
