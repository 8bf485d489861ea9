// CUDA's integer and floating-point intrinsics over the host's.
#pragma once

#include <math.h>
#include <stdlib.h>

#define GPUVM_SIM_MIN_MAX(R, A, B)                                                            \
    static inline constexpr R min(A a, B b) {                                                 \
        return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
    }                                                                                         \
    static inline constexpr R max(A a, B b) {                                                 \
        return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
    }
GPUVM_SIM_MIN_MAX(int, int, int)
GPUVM_SIM_MIN_MAX(unsigned, unsigned, unsigned)
GPUVM_SIM_MIN_MAX(unsigned, int, unsigned)
GPUVM_SIM_MIN_MAX(unsigned, unsigned, int)
GPUVM_SIM_MIN_MAX(long, long, long)
GPUVM_SIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
GPUVM_SIM_MIN_MAX(unsigned long, long, unsigned long)
GPUVM_SIM_MIN_MAX(unsigned long, unsigned long, long)
GPUVM_SIM_MIN_MAX(long long, long long, long long)
GPUVM_SIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
GPUVM_SIM_MIN_MAX(unsigned long long, long long, unsigned long long)
GPUVM_SIM_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef GPUVM_SIM_MIN_MAX
// CUDA's min and max of floating point ignore a NaN, as fmin and fmax do.
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
static inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    v = ((v >> 1) & 0x55555555u) | ((v & 0x55555555u) << 1);
    v = ((v >> 2) & 0x33333333u) | ((v & 0x33333333u) << 2);
    v = ((v >> 4) & 0x0f0f0f0fu) | ((v & 0x0f0f0f0fu) << 4);
    return __builtin_bswap32(v);
}
static inline unsigned long long __brevll(unsigned long long v) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 |
           __brev(static_cast<unsigned>(v >> 32));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned long long all = static_cast<unsigned long long>(y) << 32 | x;
    unsigned r = 0;
    for (unsigned i = 0; i < 4; ++i) {
        // CUDA takes three bits of each nibble: the sign of a byte is what the instruction has besides.
        r |= (static_cast<unsigned>(all >> (8 * (s >> (4 * i) & 7))) & 0xff) << (8 * i);
    }
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) {
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> (shift & 31));
}
static inline int __mul24(int a, int b) {
    return static_cast<int>((a << 8 >> 8) * static_cast<long long>(b << 8 >> 8));
}
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
static inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }

namespace gpuvm_sim {
template <class To, class From>
static inline To cast_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "both types have one size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
}  // namespace gpuvm_sim
static inline int __float_as_int(float v) { return gpuvm_sim::cast_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return gpuvm_sim::cast_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return gpuvm_sim::cast_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return gpuvm_sim::cast_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return gpuvm_sim::cast_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return gpuvm_sim::cast_bits<double>(v); }

static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline double rsqrt(double v) { return 1.0 / sqrt(v); }
static inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
// The C library declares functions of its own by these names.
#define __expf(v) expf(v)
#define __exp10f(v) exp10f(v)
#define __logf(v) logf(v)
#define __log2f(v) log2f(v)
#define __log10f(v) log10f(v)
#define __sinf(v) sinf(v)
#define __cosf(v) cosf(v)
#define __tanf(v) tanf(v)
#define __powf(a, b) powf(a, b)
static inline int __float2int_rn(float v) { return static_cast<int>(rintf(v)); }
static inline int __float2int_rz(float v) { return static_cast<int>(v); }
static inline int __float2int_rd(float v) { return static_cast<int>(floorf(v)); }
static inline int __float2int_ru(float v) { return static_cast<int>(ceilf(v)); }
static inline float __int2float_rn(int v) { return static_cast<float>(v); }

// Cached loads and stores: the host's caches are coherent, so each is a plain one.
template <class T>
static inline T __ldg(const T* p) {
    return *p;
}
template <class T>
static inline T __ldcg(const T* p) {
    return *p;
}
template <class T>
static inline T __ldca(const T* p) {
    return *p;
}
template <class T>
static inline T __ldcs(const T* p) {
    return *p;
}
template <class T>
static inline T __ldlu(const T* p) {
    return *p;
}
template <class T>
static inline T __ldcv(const T* p) {
    return *static_cast<const volatile T*>(p);
}
template <class T>
static inline void __stcg(T* p, T v) {
    *p = v;
}
template <class T>
static inline void __stcs(T* p, T v) {
    *p = v;
}
template <class T>
static inline void __stwb(T* p, T v) {
    *p = v;
}
template <class T>
static inline void __stwt(T* p, T v) {
    *static_cast<volatile T*>(p) = v;
}
