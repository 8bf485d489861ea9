// CUDA's built-in vector types and qualifiers for the simulated GPU.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// A module's thread-local image is exactly a block's shared memory.
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
// libstdc++ spells attributes with __noinline__, so it cannot be a macro of its own there: the attribute takes either.
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))

#define GPUVM_SIM_VECTOR1(T, name, a) \
    struct name##1 {                  \
        T x;                          \
    };                                \
    static inline constexpr name##1 make_##name##1(T x) { return {x}; }
#define GPUVM_SIM_VECTOR2(T, name, a) \
    struct alignas(a) name##2 {       \
        T x, y;                       \
    };                                \
    static inline constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }
#define GPUVM_SIM_VECTOR3(T, name, a) \
    struct name##3 {                  \
        T x, y, z;                    \
    };                                \
    static inline constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define GPUVM_SIM_VECTOR4(T, name, a) \
    struct alignas(a) name##4 {       \
        T x, y, z, w;                 \
    };                                \
    static inline constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define GPUVM_SIM_VECTORS(T, name, a2, a4) \
    GPUVM_SIM_VECTOR1(T, name, 0)          \
    GPUVM_SIM_VECTOR2(T, name, a2)         \
    GPUVM_SIM_VECTOR3(T, name, 0)          \
    GPUVM_SIM_VECTOR4(T, name, a4)

GPUVM_SIM_VECTORS(signed char, char, 2, 4)
GPUVM_SIM_VECTORS(unsigned char, uchar, 2, 4)
GPUVM_SIM_VECTORS(short, short, 4, 8)
GPUVM_SIM_VECTORS(unsigned short, ushort, 4, 8)
GPUVM_SIM_VECTORS(int, int, 8, 16)
GPUVM_SIM_VECTORS(unsigned, uint, 8, 16)
GPUVM_SIM_VECTORS(long, long, 16, 16)
GPUVM_SIM_VECTORS(unsigned long, ulong, 16, 16)
GPUVM_SIM_VECTORS(long long, longlong, 16, 16)
GPUVM_SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
GPUVM_SIM_VECTORS(float, float, 8, 16)
GPUVM_SIM_VECTORS(double, double, 16, 16)

#undef GPUVM_SIM_VECTORS
#undef GPUVM_SIM_VECTOR1
#undef GPUVM_SIM_VECTOR2
#undef GPUVM_SIM_VECTOR3
#undef GPUVM_SIM_VECTOR4

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
