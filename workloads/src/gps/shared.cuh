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
__device__ T load(const T* a, u64 i) {
    return a[i];
}
template <class T>
__device__ auto load(const gpuvm::broadcast<T>& a, u64 i) {
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

template <class T>
__device__ bool tracked(const T*) {
    return false;
}
template <class T>
__device__ bool tracked(const gpuvm::broadcast<T>& a) {
    return a.tracked();
}
template <class T>
__device__ const T* memory_of(const T* a) {
    return a;
}
template <class T>
__device__ auto memory_of(const gpuvm::broadcast<T>& a) {
    return a.data();
}

// Runs `use` with plain memory in place of arrays that it reads, unless their reads are tracked: what looks at each
// read keeps the loads of a lane from being under way together.
template <class Use, class... Arrays>
__device__ void reading(Use use, const Arrays&... arrays) {
    if ((... || tracked(arrays)))
        use(arrays...);
    else
        use(memory_of(arrays)...);
}

constexpr u32 kWholeWarp = 0xffffffffu;
