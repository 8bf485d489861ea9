// How the kernels of an application reach the arrays that GPUs share, from one text: a kernel is a template of the way,
// `pointers` or `broadcasts`.
//
//   in<Way, T>   an array that is read: const T*, or gpuvm::broadcast<const T>
//   out<Way, T>  an array that is read and written: T*, or gpuvm::broadcast<T>
#pragma once

#include <gpuvm/gpuvm.cuh>

using u32 = unsigned;
using u64 = unsigned long long;

struct pointers {
    template <class T>
    using in = const T*;
    template <class T>
    using out = T*;
};
struct broadcasts {
    template <class T>
    using in = gpuvm::broadcast<const T>;
    template <class T>
    using out = gpuvm::broadcast<T>;
};
template <class Way, class T>
using in = typename Way::template in<T>;
template <class Way, class T>
using out = typename Way::template out<T>;

template <class T>
__device__ T load(T* a, u64 i) {
    return a[i];
}
template <class Array>
__device__ auto load(const Array& a, u64 i) {
    return a.load(i);
}
template <class T>
__device__ void store(T* a, u64 i, T value) {
    a[i] = value;
}
template <class T>
__device__ void store(const gpuvm::broadcast<T>& a, u64 i, T value) {
    a.store(i, value);
}

constexpr u32 kWholeWarp = 0xffffffffu;
