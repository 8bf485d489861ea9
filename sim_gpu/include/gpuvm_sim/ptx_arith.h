// PTX's arithmetic, a function an instruction; modifiers are the flags `F`.
#pragma once

#include "gpuvm_sim/ptx_float.h"

#include <math.h>

namespace gpuvm_ptx {

template <unsigned F, class T>
GPUVM_PTX T add(T a, T b) {
    if constexpr (is_pair<T>) {
        return T{add<F>(a.lo, b.lo), add<F>(a.hi, b.hi)};
    } else if constexpr (is<T, f64>) {
        return a + b;
    } else if constexpr (is<T, f32> && (F & ROUNDING) == RN) {
        return out<F, f32>(in<F>(a) + in<F>(b));
    } else if constexpr (is_float<T>) {
        return out<F, T>(sum_to_odd(wide(in<F>(a)), wide(in<F>(b))));
    } else if constexpr ((F & SAT) != 0) {
        T sum;
        if (!__builtin_add_overflow(a, b, &sum)) return sum;
        return a < 0 ? static_cast<T>(1ull << (width<T> - 1)) : static_cast<T>((1ull << (width<T> - 1)) - 1);
    } else {
        return static_cast<T>(static_cast<unsigned_of<T>>(a) + static_cast<unsigned_of<T>>(b));
    }
}

template <unsigned F, class T>
GPUVM_PTX T neg(T a) {
    if constexpr (is_pair<T>) {
        return T{neg<F>(a.lo), neg<F>(a.hi)};
    } else if constexpr (is_float<T>) {
        using B = typename bits<T>::type;
        return get<T>(static_cast<B>(put<B>(in<F>(a)) ^ static_cast<B>(B{1} << (width<T> - 1))));
    } else {
        return static_cast<T>(0 - static_cast<unsigned_of<T>>(a));
    }
}

template <unsigned F, class T>
GPUVM_PTX T abs(T a) {
    if constexpr (is_pair<T>) {
        return T{abs<F>(a.lo), abs<F>(a.hi)};
    } else if constexpr (is_float<T>) {
        using B = typename bits<T>::type;
        return get<T>(static_cast<B>(put<B>(in<F>(a)) & static_cast<B>(~(B{1} << (width<T> - 1)))));
    } else {
        return a < 0 ? neg<0>(a) : a;
    }
}

template <unsigned F, class T>
GPUVM_PTX T sub(T a, T b) {
    if constexpr (is_pair<T>) {
        return T{sub<F>(a.lo, b.lo), sub<F>(a.hi, b.hi)};
    } else if constexpr (is_float<T>) {
        return add<F>(a, neg<0>(b));
    } else if constexpr ((F & SAT) != 0) {
        T difference;
        if (!__builtin_sub_overflow(a, b, &difference)) return difference;
        return a < 0 ? static_cast<T>(1ull << (width<T> - 1)) : static_cast<T>((1ull << (width<T> - 1)) - 1);
    } else {
        return static_cast<T>(static_cast<unsigned_of<T>>(a) - static_cast<unsigned_of<T>>(b));
    }
}

template <unsigned F, class T>
GPUVM_PTX T mul(T a, T b) {
    if constexpr (is_pair<T>) {
        return T{mul<F>(a.lo, b.lo), mul<F>(a.hi, b.hi)};
    } else if constexpr (is<T, f64>) {
        return a * b;
    } else if constexpr (is<T, f32> && (F & ROUNDING) == RN) {
        return out<F, f32>(in<F>(a) * in<F>(b));
    } else {
        // The product of two narrow numbers is exact.
        return out<F, T>(wide(in<F>(a)) * wide(in<F>(b)));
    }
}

template <unsigned F, class T>
GPUVM_PTX T fma(T a, T b, T c) {
    if constexpr (is_pair<T>) {
        return T{fma<F>(a.lo, b.lo, c.lo), fma<F>(a.hi, b.hi, c.hi)};
    } else if constexpr (is<T, f64>) {
        return __builtin_fma(a, b, c);
    } else if constexpr (is<T, f32> && (F & ROUNDING) == RN) {
        return out<F, f32>(__builtin_fmaf(in<F>(a), in<F>(b), in<F>(c)));
    } else {
        return out<F, T>(sum_to_odd(wide(in<F>(a)) * wide(in<F>(b)), wide(in<F>(c))));
    }
}

template <unsigned F, class T>
GPUVM_PTX T div(T a, T b) {
    if constexpr (is<T, f64>) {
        return a / b;
    } else if constexpr (is<T, f32> && (F & ROUNDING) == RN) {
        return out<F, f32>(in<F>(a) / in<F>(b));
    } else if constexpr (is<T, f32>) {
        const double x = in<F>(a), y = in<F>(b), quotient = x / y, rest = __builtin_fma(-quotient, y, x);
        return out<F, f32>(to_odd(quotient, y < 0 ? -rest : rest));
    } else {
        // A GPU divides by zero without a trap; its quotient has all bits set.
        if (b == 0) return static_cast<T>(~0ull);
        if (is_signed<T> && b == static_cast<T>(-1)) return neg<0>(a);
        return static_cast<T>(a / b);
    }
}

template <unsigned F, class T>
GPUVM_PTX T rem(T a, T b) {
    if (b == 0) return a;
    if (is_signed<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
}

template <unsigned F, class T>
GPUVM_PTX T sqrt(T a) {
    if constexpr (is<T, f64>) return __builtin_sqrt(a);
    if constexpr (is<T, f32> && (F & ROUNDING) == RN) return out<F, f32>(__builtin_sqrtf(in<F>(a)));
    if constexpr (is<T, f32>) {
        const double x = in<F>(a), root = __builtin_sqrt(x);
        return out<F, f32>(to_odd(root, __builtin_fma(-root, root, x)));
    }
}
template <unsigned F, class T>
GPUVM_PTX T rcp(T a) {
    return div<F>(static_cast<T>(1), a);
}

// Approximations: what the host's library says, rounded to the type.
#define GPUVM_PTX_HOST(name, expression)            \
    template <unsigned F, class T>                  \
    GPUVM_PTX T name(T a) {                         \
        if constexpr (is_pair<T>) {                 \
            return T{name<F>(a.lo), name<F>(a.hi)}; \
        } else {                                    \
            const double x = wide(in<F>(a));        \
            return out<F, T>(expression);           \
        }                                           \
    }
GPUVM_PTX_HOST(rsqrt, 1.0 / __builtin_sqrt(x))
GPUVM_PTX_HOST(ex2, ::exp2(x))
GPUVM_PTX_HOST(lg2, ::log2(x))
GPUVM_PTX_HOST(sin, ::sin(x))
GPUVM_PTX_HOST(cos, ::cos(x))
GPUVM_PTX_HOST(tanh, ::tanh(x))
#undef GPUVM_PTX_HOST

// Whether `a` is less, where zeros have signs.
template <class T>
GPUVM_PTX bool below(T a, T b) {
    if constexpr (is_float<T>) {
        const double x = wide(a), y = wide(b);
        return x < y || (x == y && __builtin_signbit(x) && !__builtin_signbit(y));
    } else {
        return a < b;
    }
}
template <unsigned F, bool Least, class T>
GPUVM_PTX T extreme(T a, T b) {
    if constexpr (is_pair<T>) {
        return T{extreme<F, Least>(a.lo, b.lo), extreme<F, Least>(a.hi, b.hi)};
    } else if constexpr (is_float<T>) {
        const T x = in<F>(a), y = in<F>(b);
        const double nan = __builtin_nan("");
        const bool x_is = wide(x) != wide(x), y_is = wide(y) != wide(y);
        if (x_is && y_is) return narrow<T, RN>(nan);
        if (x_is || y_is) return (F & NANS) != 0 ? narrow<T, RN>(nan) : x_is ? y : x;
        return below(y, x) == Least ? y : x;
    } else {
        const T least = a < b ? a : b, most = a < b ? b : a;
        const T value = Least ? least : most;
        return (F & RELU) != 0 && value < 0 ? T{0} : value;
    }
}
template <unsigned F, class T>
GPUVM_PTX T min(T a, T b) {
    return extreme<F, true>(a, b);
}
template <unsigned F, class T>
GPUVM_PTX T max(T a, T b) {
    return extreme<F, false>(a, b);
}

// Products of integers.
template <class T>
struct twice;
template <>
struct twice<u16> {
    using type = u32;
};
template <>
struct twice<u32> {
    using type = u64;
};
template <>
struct twice<u64> {
    using type = u128;
};
template <>
struct twice<s16> {
    using type = s32;
};
template <>
struct twice<s32> {
    using type = s64;
};
template <>
struct twice<s64> {
    using type = __int128;
};
template <class T>
using twice_of = typename twice<T>::type;

template <unsigned F, class T>
GPUVM_PTX twice_of<T> mul_wide(T a, T b) {
    return static_cast<twice_of<T>>(a) * b;
}
template <unsigned F, class T>
GPUVM_PTX T mul_lo(T a, T b) {
    return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
}
template <unsigned F, class T>
GPUVM_PTX T mul_hi(T a, T b) {
    return static_cast<T>(mul_wide<0>(a, b) >> width<T>);
}
template <unsigned F, class T>
GPUVM_PTX twice_of<T> mad_wide(T a, T b, twice_of<T> c) {
    return add<0>(mul_wide<0>(a, b), c);
}
template <unsigned F, class T>
GPUVM_PTX T mad_lo(T a, T b, T c) {
    return add<0>(mul_lo<0>(a, b), c);
}
template <unsigned F, class T>
GPUVM_PTX T mad_hi(T a, T b, T c) {
    return add<F>(mul_hi<0>(a, b), c);
}
template <class T>
GPUVM_PTX T low24(T a) {
    return static_cast<T>(static_cast<unsigned_of<T>>(a) << 8) >> 8;
}
template <unsigned F, class T>
GPUVM_PTX T mul24_lo(T a, T b) {
    return mul_lo<0>(low24(a), low24(b));
}
template <unsigned F, class T>
GPUVM_PTX T mul24_hi(T a, T b) {
    return static_cast<T>(mul_wide<0>(low24(a), low24(b)) >> 16);
}
template <unsigned F, class T>
GPUVM_PTX T mad24_lo(T a, T b, T c) {
    return add<0>(mul24_lo<0>(a, b), c);
}
template <unsigned F, class T>
GPUVM_PTX T mad24_hi(T a, T b, T c) {
    return add<F>(mul24_hi<0>(a, b), c);
}
template <unsigned F, class T>
GPUVM_PTX T sad(T a, T b, T c) {
    return add<0>(c, a < b ? sub<0>(b, a) : sub<0>(a, b));
}

// With the carry flag.
template <class T>
GPUVM_PTX T add_carry(T a, T b, bool in, bool* out) {
    using U = unsigned_of<T>;
    U one, sum;
    const bool first = __builtin_add_overflow(static_cast<U>(a), static_cast<U>(b), &one);
    const bool second = __builtin_add_overflow(one, static_cast<U>(in), &sum);
    *out = first || second;
    return static_cast<T>(sum);
}
template <class T>
GPUVM_PTX T sub_carry(T a, T b, bool in, bool* out) {
    using U = unsigned_of<T>;
    U one, difference;
    const bool first = __builtin_sub_overflow(static_cast<U>(a), static_cast<U>(b), &one);
    const bool second = __builtin_sub_overflow(one, static_cast<U>(in), &difference);
    *out = first || second;
    return static_cast<T>(difference);
}

// Bits.
template <unsigned F, class T>
GPUVM_PTX T and_(T a, T b) {
    return static_cast<T>(a & b);
}
template <unsigned F, class T>
GPUVM_PTX T or_(T a, T b) {
    return static_cast<T>(a | b);
}
template <unsigned F, class T>
GPUVM_PTX T xor_(T a, T b) {
    return static_cast<T>(a ^ b);
}
template <unsigned F, class T>
GPUVM_PTX T not_(T a) {
    if constexpr (is<T, bool>) return !a;
    return static_cast<T>(~a);
}
template <unsigned F, class T>
GPUVM_PTX T cnot(T a) {
    return a == 0 ? T{1} : T{0};
}
template <unsigned F, class T>
GPUVM_PTX T shl(T a, u32 by) {
    return by >= width<T> ? T{0} : static_cast<T>(static_cast<unsigned_of<T>>(a) << by);
}
template <unsigned F, class T>
GPUVM_PTX T shr(T a, u32 by) {
    if (by < width<T>) return static_cast<T>(a >> by);
    return is_signed<T> && a < 0 ? static_cast<T>(-1) : T{0};
}
template <unsigned F, class T>
GPUVM_PTX u32 popc(T a) {
    return static_cast<u32>(__builtin_popcountll(a));
}
template <unsigned F, class T>
GPUVM_PTX u32 clz(T a) {
    return a == 0 ? width<T> : static_cast<u32>(__builtin_clzll(a)) - (64 - width<T>);
}
template <unsigned F, class T>
GPUVM_PTX u32 bfind(T a) {
    const auto v = static_cast<unsigned_of<T>>(is_signed<T> && a < 0 ? ~a : a);
    return v == 0 ? ~0u : width<T> - 1 - clz<0>(v);
}
template <unsigned F, class T>
GPUVM_PTX u32 bfind_shiftamt(T a) {
    const u32 at = bfind<0>(a);
    return at == ~0u ? at : width<T> - 1 - at;
}
template <unsigned F, class T>
GPUVM_PTX T brev(T a) {
    T reversed = 0;
    for (u32 n = 0; n < width<T>; ++n) reversed = static_cast<T>(reversed << 1 | (a >> n & 1));
    return reversed;
}
template <unsigned F, class T>
GPUVM_PTX T bfe(T a, u32 from, u32 length) {
    from &= 0xff;
    length &= 0xff;
    const u32 last = from + length - 1 < width<T> - 1 ? from + length - 1 : width<T> - 1;
    const auto all = static_cast<unsigned_of<T>>(a);
    const bool sign = is_signed<T> && length != 0 && (all >> last & 1);
    unsigned_of<T> field = 0;
    for (u32 n = 0; n < width<T>; ++n) {
        const bool bit = n < length && from + n < width<T> ? all >> (from + n) & 1 : sign;
        field |= static_cast<unsigned_of<T>>(bit) << n;
    }
    return static_cast<T>(field);
}
template <unsigned F, class T>
GPUVM_PTX T bfi(T a, T b, u32 from, u32 length) {
    from &= 0xff;
    length &= 0xff;
    for (u32 n = 0; n < length && from + n < width<T>; ++n) {
        const T one = static_cast<T>(T{1} << (from + n));
        b = static_cast<T>((b & ~one) | (a >> n & 1 ? one : T{0}));
    }
    return b;
}
template <unsigned F, class T>
GPUVM_PTX T lop3(T a, T b, T c, u32 table) {
    T found = 0;
    if (table & 0x01) found |= ~a & ~b & ~c;
    if (table & 0x02) found |= ~a & ~b & c;
    if (table & 0x04) found |= ~a & b & ~c;
    if (table & 0x08) found |= ~a & b & c;
    if (table & 0x10) found |= a & ~b & ~c;
    if (table & 0x20) found |= a & ~b & c;
    if (table & 0x40) found |= a & b & ~c;
    if (table & 0x80) found |= a & b & c;
    return found;
}
GPUVM_PTX u32 funnel(u32 low, u32 high, u32 by, bool left) {
    const u64 both = static_cast<u64>(high) << 32 | low;
    return left ? static_cast<u32>(both << by >> 32) : static_cast<u32>(both >> by);
}
template <unsigned F, class T>
GPUVM_PTX T shf_l_wrap(T a, T b, u32 by) {
    return funnel(a, b, by & 31, true);
}
template <unsigned F, class T>
GPUVM_PTX T shf_r_wrap(T a, T b, u32 by) {
    return funnel(a, b, by & 31, false);
}
template <unsigned F, class T>
GPUVM_PTX T shf_l_clamp(T a, T b, u32 by) {
    return funnel(a, b, by < 32 ? by : 32, true);
}
template <unsigned F, class T>
GPUVM_PTX T shf_r_clamp(T a, T b, u32 by) {
    return funnel(a, b, by < 32 ? by : 32, false);
}

// Bytes by a selector of four nibbles, or by a mode.
template <unsigned F, class T>
GPUVM_PTX T prmt(T a, T b, u32 selector) {
    const u64 all = static_cast<u64>(b) << 32 | a;
    u32 chosen = 0;
    for (u32 n = 0; n < 4; ++n) {
        const u32 nibble = selector >> (4 * n) & 15;
        u32 byte = static_cast<u32>(all >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        chosen |= byte << (8 * n);
    }
    return chosen;
}
#define GPUVM_PTX_PRMT(mode, nibble)                                      \
    template <unsigned F, class T>                                        \
    GPUVM_PTX T prmt_##mode(T a, T b, u32 which) {                        \
        const u32 c = which & 3;                                          \
        u32 selector = 0;                                                 \
        for (u32 n = 0; n < 4; ++n) selector |= ((nibble)&7u) << (4 * n); \
        return prmt<0>(a, b, selector);                                   \
    }
GPUVM_PTX_PRMT(f4e, c + n)
GPUVM_PTX_PRMT(b4e, c - n)
GPUVM_PTX_PRMT(rc8, c)
GPUVM_PTX_PRMT(ecl, n > c ? n : c)
GPUVM_PTX_PRMT(ecr, n < c ? n : c)
GPUVM_PTX_PRMT(rc16, (c & 1) * 2 + (n & 1))
#undef GPUVM_PTX_PRMT

// Dot products of the four bytes, or of two halves and two bytes.
template <class A, class B>
GPUVM_PTX u32 dp4a(u32 a, u32 b, u32 c) {
    for (u32 n = 0; n < 4; ++n)
        c += static_cast<u32>(static_cast<s32>(get<A>(a >> (8 * n))) * static_cast<s32>(get<B>(b >> (8 * n))));
    return c;
}
template <class A, class B>
GPUVM_PTX u32 dp2a(u32 a, u32 b, u32 c) {
    for (u32 n = 0; n < 2; ++n)
        c += static_cast<u32>(static_cast<s32>(get<A>(a >> (16 * n))) * static_cast<s32>(get<B>(b >> (8 * n))));
    return c;
}

// The sign of `a` and the rest of `b`.
template <unsigned F, class T>
GPUVM_PTX T copysign(T a, T b) {
    using B = typename bits<T>::type;
    constexpr B sign = B{1} << (width<T> - 1);
    return get<T>(static_cast<B>((put<B>(a) & sign) | (put<B>(b) & ~sign)));
}
template <unsigned F, class T>
GPUVM_PTX bool testp_finite(T a) {
    return a - a == 0;
}
template <unsigned F, class T>
GPUVM_PTX bool testp_infinite(T a) {
    return a == a && a - a != 0;
}
template <unsigned F, class T>
GPUVM_PTX bool testp_number(T a) {
    return a == a;
}
template <unsigned F, class T>
GPUVM_PTX bool testp_notanumber(T a) {
    return a != a;
}
template <unsigned F, class T>
GPUVM_PTX bool testp_subnormal(T a) {
    return a != 0 && __builtin_fabs(a) < (is<T, f32> ? 0x1p-126 : 0x1p-1022);
}
template <unsigned F, class T>
GPUVM_PTX bool testp_normal(T a) {
    return a - a == 0 && a != 0 && !testp_subnormal<0>(a);
}

template <unsigned F, class T>
GPUVM_PTX T selp(T a, T b, bool first) {
    return first ? a : b;
}

// Comparisons. Those that end in `u` are true of a NaN.
enum comparison { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NOT_A_NUM };
template <comparison C, class T>
GPUVM_PTX bool holds(T a, T b) {
    constexpr comparison c = C < EQU ? C : static_cast<comparison>(C - EQU);
    return c == EQ ? a == b : c == NE ? a != b : c == LT ? a < b : c == LE ? a <= b : c == GT ? a > b : a >= b;
}
template <comparison C, unsigned F, class T>
GPUVM_PTX bool compare(T a, T b) {
    if constexpr (is_float<T>) {
        const double x = wide(in<F>(a)), y = wide(in<F>(b));
        const bool numbers = x == x && y == y;
        if constexpr (C == NUM) return numbers;
        if constexpr (C == NOT_A_NUM) return !numbers;
        return numbers ? holds<C>(x, y) : C >= EQU;
    } else {
        return holds<C>(a, b);
    }
}

// Conversions.
GPUVM_PTX double integral(double v, unsigned mode) {
    return mode == RN   ? __builtin_rint(v)
           : mode == RZ ? __builtin_trunc(v)
           : mode == RM ? __builtin_floor(v)
                        : __builtin_ceil(v);
}
// A 64-bit integer in a double, rounded to odd.
template <class S>
GPUVM_PTX double odd(S v) {
    const bool negative = is_signed<S> && v < 0;
    u64 size = negative ? 0 - static_cast<u64>(v) : static_cast<u64>(v);
    if (size >> 53 != 0) size = (size & ~0x7ffull) | static_cast<u64>((size & 0x7ff) != 0) << 11;
    const double wide = static_cast<double>(size);
    return negative ? -wide : wide;
}
template <unsigned F, class D, class S>
GPUVM_PTX D cvt(S v) {
    if constexpr (is_float<S> && is_float<D>) {
        double x = wide(in<F>(v));
        if constexpr ((F & INTEGRAL) != 0) x = integral(x, F & ROUNDING);
        if constexpr (is<S, D> && (F & ~FTZ) == 0) return in<F>(v);
        return out<F, D>(x);
    } else if constexpr (is_float<D>) {
        if constexpr (is<D, f64>) return static_cast<f64>(v);
        return out<F, D>(odd(v));
    } else if constexpr (is_float<S>) {
        const double x = integral(wide(in<F>(v)), F & ROUNDING);
        constexpr double end = is_signed<D> ? static_cast<double>(1ull << (width<D> - 1))
                                            : 2.0 * static_cast<double>(1ull << (width<D> - 1));
        if (x != x) return D{0};
        if (x >= end) return static_cast<D>(is_signed<D> ? (1ull << (width<D> - 1)) - 1 : ~0ull);
        if (x < (is_signed<D> ? -end : 0.0)) return static_cast<D>(is_signed<D> ? 1ull << (width<D> - 1) : 0ull);
        return static_cast<D>(x);
    } else {
        if constexpr ((F & SAT) != 0) {
            const __int128 x = v;
            const __int128 end = static_cast<__int128>(1) << (is_signed<D> ? width<D> - 1 : width<D>);
            if (x >= end) return static_cast<D>(end - 1);
            if (x < (is_signed<D> ? -end : 0)) return static_cast<D>(is_signed<D> ? -end : 0);
        }
        return static_cast<D>(v);
    }
}
// Two numbers in one register, the first above.
template <unsigned F, class F2, class S>
GPUVM_PTX F2 cvt_pair(S high, S low) {
    using D = decltype(F2{}.lo);
    return F2{cvt<F, D>(low), cvt<F, D>(high)};
}

}  // namespace gpuvm_ptx
