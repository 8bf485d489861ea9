// PTX's types for kernels that were translated from it: registers are bits, and operations see them as a type.
#pragma once

#include "gpuvm_sim/types.h"

#define GPUVM_PTX static inline __attribute__((always_inline))

namespace gpuvm_ptx {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using u128 = unsigned __int128;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long long;
using f32 = float;
using f64 = double;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
template <class F>
struct pair {
    F lo, hi;
};
using f16x2 = pair<f16>;
using bf16x2 = pair<bf16>;

// What an instruction's modifiers say.
enum flags : unsigned {
    RN = 0,
    RZ = 1,
    RM = 2,
    RP = 3,
    ROUNDING = 3,
    FTZ = 4,
    SAT = 8,
    // `min` and `max` pass a NaN on.
    NANS = 16,
    RELU = 32,
    // To an integral number.
    INTEGRAL = 64,
};

template <class T>
struct bits {
    using type = T;
};
template <>
struct bits<f32> {
    using type = u32;
};
template <>
struct bits<f64> {
    using type = u64;
};
template <>
struct bits<f16> {
    using type = u16;
};
template <>
struct bits<bf16> {
    using type = u16;
};
template <class F>
struct bits<pair<F>> {
    using type = u32;
};

template <class T>
struct plain {
    using type = T;
};
template <>
struct plain<s8> {
    using type = u8;
};
template <>
struct plain<s16> {
    using type = u16;
};
template <>
struct plain<s32> {
    using type = u32;
};
template <>
struct plain<s64> {
    using type = u64;
};
template <class T>
using unsigned_of = typename plain<T>::type;

template <class A, class B>
constexpr bool is = false;
template <class A>
constexpr bool is<A, A> = true;
template <class T>
constexpr bool is_pair = is<T, f16x2> || is<T, bf16x2>;
template <class T>
constexpr bool is_float = is<T, f32> || is<T, f64> || is<T, f16> || is<T, bf16>;
template <class T>
constexpr bool is_signed = is<T, s8> || is<T, s16> || is<T, s32> || is<T, s64>;
template <class T>
constexpr u32 width = sizeof(T) * 8;

// A register's bits as a type: the lower ones where the register has more.
template <class T, class B>
GPUVM_PTX T get(B all) {
    const auto low = static_cast<typename bits<T>::type>(all);
    T value;
    __builtin_memcpy(&value, &low, sizeof(T));
    return value;
}

// A value as bits of a register, extended by its sign where that has more.
template <class D, class T>
GPUVM_PTX D put(T value) {
    typename bits<T>::type low;
    __builtin_memcpy(&low, &value, sizeof(T));
    return static_cast<D>(low);
}

}  // namespace gpuvm_ptx
