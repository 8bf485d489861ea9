// gpuvm::array<T>: a region as a kernel sees it. Passed to a kernel by value.
#pragma once

#if defined(GPUVM_LOOKS_UP)
#include "looked_up.cuh"
#else
#include "faulting.cuh"
#endif

// The host checks the element's size and that read-only regions meet read-only arrays.
template <class T>
struct gpuvm_kernel_param<gpuvm::array<T>> {
    static constexpr unsigned kind = 2;
    using element = T;
};
template <class T>
struct gpuvm_kernel_param<gpuvm::array<const T>> {
    static constexpr unsigned kind = 3;
    using element = const T;
};
