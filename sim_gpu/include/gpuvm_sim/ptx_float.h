// Rounding of PTX's floating point. Narrow formats and directed modes are computed in double, rounded to odd, and
// rounded once more.
#pragma once

#include "gpuvm_sim/ptx_types.h"

namespace gpuvm_ptx {

GPUVM_PTX double by_one_bit(double v, bool away) {
    const u64 all = put<u64>(v);
    return get<double>(away ? all + 1 : all - 1);
}

// The odd neighbour where `v` is even and `rest` was lost.
GPUVM_PTX double to_odd(double v, double rest) {
    if (rest != rest || rest == 0 || v - v != 0 || put<u64>(v) & 1) return v;
    return by_one_bit(v, (rest > 0) == (v > 0));
}

GPUVM_PTX double sum_to_odd(double a, double b) {
    const double sum = a + b, of_b = sum - a;
    return to_odd(sum, (a - (sum - of_b)) + (b - of_b));
}

// `v` in a format of so many bits of mantissa and exponent. A NaN becomes the format's canonical one.
GPUVM_PTX u64 rounded(double v, int mantissa, int exponent, unsigned mode) {
    const u64 all = put<u64>(v), fraction = all & ((1ull << 52) - 1);
    const bool negative = all >> 63;
    const u64 sign = static_cast<u64>(negative) << (mantissa + exponent);
    const u64 infinity = ((1ull << exponent) - 1) << mantissa;
    const int biased = static_cast<int>(all >> 52 & 0x7ff);
    if (biased == 0x7ff) return fraction != 0 ? infinity | ((1ull << mantissa) - 1) : sign | infinity;
    if (biased == 0 && fraction == 0) return sign;
    const int bias = (1 << (exponent - 1)) - 1, power = (biased != 0 ? biased : 1) - 1023;
    const u64 significand = biased != 0 ? fraction | 1ull << 52 : fraction;
    const bool small = power < 1 - bias;
    const int drop = 52 - mantissa + (small ? 1 - bias - power : 0);
    u64 kept = 0, rest = 1, half = 2;
    if (drop < 54) {
        kept = significand >> drop;
        half = 1ull << (drop - 1);
        rest = significand & (2 * half - 1);
    }
    const bool up = mode == RN   ? rest > half || (rest == half && (kept & 1))
                    : mode == RM ? negative && rest != 0
                    : mode == RP ? !negative && rest != 0
                                 : false;
    kept += up;
    const u64 value = small ? kept : (static_cast<u64>(power + bias - 1) << mantissa) + kept;
    if (value < infinity) return sign | value;
    const bool to_infinity = mode == RN || mode == (negative ? RM : RP);
    return sign | (to_infinity ? infinity : infinity - 1);
}

GPUVM_PTX double wide(double v) { return v; }
GPUVM_PTX double wide(float v) { return v; }
GPUVM_PTX double wide(bf16 v) { return get<float>(static_cast<u32>(v.bits) << 16); }
GPUVM_PTX double wide(f16 v) {
    const u32 sign = (v.bits & 0x8000u) << 16, low = v.bits & 0x7fffu;
    if (low >= 0x7c00) return get<float>(sign | 0x7f800000u | (low & 0x3ff) << 13);
    // A subnormal is a multiple of 2^-24.
    if (low < 0x400) return get<float>(sign | put<u32>(static_cast<float>(low) * 0x1p-24f));
    return get<float>(sign | ((low << 13) + ((127u - 15u) << 23)));
}

template <class T, unsigned Mode>
GPUVM_PTX T narrow(double v) {
    if constexpr (is<T, f64>) return v;
    if constexpr (is<T, f32>) {
        if constexpr (Mode == RN) return v != v ? get<f32>(0x7fffffffu) : static_cast<float>(v);
        return get<f32>(rounded(v, 23, 8, Mode));
    }
    if constexpr (is<T, f16>) return get<f16>(rounded(v, 10, 5, Mode));
    if constexpr (is<T, bf16>) return get<bf16>(rounded(v, 7, 8, Mode));
}

// A subnormal number as zero, with its sign: PTX has that for f32 and f16.
template <class T>
GPUVM_PTX T flushed(T v) {
    if constexpr (is<T, f32>) return (put<u32>(v) & 0x7f800000u) == 0 ? get<f32>(put<u32>(v) & 0x80000000u) : v;
    if constexpr (is<T, f16>) return (v.bits & 0x7c00u) == 0 ? f16{static_cast<u16>(v.bits & 0x8000u)} : v;
    return v;
}
template <unsigned F, class T>
GPUVM_PTX T in(T v) {
    if constexpr ((F & FTZ) != 0) return flushed(v);
    return v;
}

// What an instruction makes of its exact result, which `v` is or stands for.
template <unsigned F, class T>
GPUVM_PTX T out(double v) {
    if constexpr ((F & SAT) != 0) v = v > 0 ? (v < 1 ? v : 1.0) : 0.0;
    if constexpr ((F & RELU) != 0) v = v < 0 ? 0.0 : v;
    return in<F>(narrow<T, F & ROUNDING>(v));
}

}  // namespace gpuvm_ptx
