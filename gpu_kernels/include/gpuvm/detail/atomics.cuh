// CUDA's atomics on elements of any type.
#pragma once

#include "../kernel_param.cuh"
#include "element.cuh"

namespace gpuvm {
namespace detail {

// CUDA's atomics by size and class of T; what they lack goes through compare-and-swap.
template <class T>
GPUVM_DEVICE T atomic_cas(T* p, T expected, T desired) {
    if constexpr (sizeof(T) == 4)
        return bit_cast<T>(atomicCAS(reinterpret_cast<u32*>(p), bit_cast<u32>(expected), bit_cast<u32>(desired)));
    else
        return bit_cast<T>(atomicCAS(reinterpret_cast<u64*>(p), bit_cast<u64>(expected), bit_cast<u64>(desired)));
}
template <class T>
GPUVM_DEVICE T atomic_exch(T* p, T v) {
    if constexpr (sizeof(T) == 4)
        return bit_cast<T>(atomicExch(reinterpret_cast<u32*>(p), bit_cast<u32>(v)));
    else
        return bit_cast<T>(atomicExch(reinterpret_cast<u64*>(p), bit_cast<u64>(v)));
}
// `change` until nothing came between; compares bits, so that NaNs end it too.
template <class T, class F>
GPUVM_DEVICE T atomic_update(T* p, F change) {
    using B = typename bits_of<sizeof(T)>::type;
    B seen = ld_relaxed_gpu(reinterpret_cast<const B*>(p));
    while (true) {
        B old = bit_cast<B>(atomic_cas(p, bit_cast<T>(seen), change(bit_cast<T>(seen))));
        if (old == seen) return bit_cast<T>(old);
        seen = old;
    }
}
template <class T>
GPUVM_DEVICE T atomic_add(T* p, T v) {
    constexpr bool fractional = static_cast<T>(0.5) != static_cast<T>(0);
    if constexpr (fractional)
        return atomicAdd(p, v);
    else if constexpr (sizeof(T) == 4)
        return static_cast<T>(atomicAdd(reinterpret_cast<u32*>(p), static_cast<u32>(v)));
    else
        return static_cast<T>(atomicAdd(reinterpret_cast<u64*>(p), static_cast<u64>(v)));
}
template <class T>
constexpr bool is_integer = gpuvm_detail::scalar_class<T>() == 1 || gpuvm_detail::scalar_class<T>() == 2;
// CUDA's atomics know four integer types: the one of T's size and sign.
template <int Bytes, bool Signed>
struct atomic_integer {
    using type = typename bits_of<Bytes>::type;
};
template <>
struct atomic_integer<4, true> {
    using type = int;
};
template <>
struct atomic_integer<8, true> {
    using type = i64;
};
template <class T>
using atomic_integer_of = typename atomic_integer<sizeof(T), gpuvm_detail::scalar_class<T>() == 1>::type;
template <class T>
GPUVM_DEVICE T atomic_min(T* p, T v) {
    if constexpr (is_integer<T>) {
        using A = atomic_integer_of<T>;
        return static_cast<T>(atomicMin(reinterpret_cast<A*>(p), static_cast<A>(v)));
    } else {
        return atomic_update(p, [v](T x) { return v < x ? v : x; });
    }
}
template <class T>
GPUVM_DEVICE T atomic_max(T* p, T v) {
    if constexpr (is_integer<T>) {
        using A = atomic_integer_of<T>;
        return static_cast<T>(atomicMax(reinterpret_cast<A*>(p), static_cast<A>(v)));
    } else {
        return atomic_update(p, [v](T x) { return x < v ? v : x; });
    }
}
template <class T>
GPUVM_DEVICE T atomic_or(T* p, T v) {
    if constexpr (sizeof(T) == 4)
        return static_cast<T>(atomicOr(reinterpret_cast<u32*>(p), static_cast<u32>(v)));
    else
        return static_cast<T>(atomicOr(reinterpret_cast<u64*>(p), static_cast<u64>(v)));
}

}  // namespace detail
}  // namespace gpuvm
