// NVIDIA GPUs: PTX. Every statement that orders memory clobbers "memory", so that the compiler keeps the
// order that the instruction promises. Orders and scopes: PTX ISA, "Memory Consistency Model".
#pragma once

#define GPUVM_DEVICE __device__ __forceinline__
// Static: files of one program may choose different features.
#define GPUVM_NOINLINE static __device__ __noinline__
#define GPUVM_LIKELY(x) (x)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#error "gpuvm needs independent thread scheduling: compute capability 7.0 or newer"
#endif

namespace gpuvm {
namespace detail {

template <int Bytes>
struct access;

#define GPUVM_LOADS(BYTES, PTX, REG, TYPE)                                                           \
    template <>                                                                                      \
    struct access<BYTES> {                                                                           \
        using type = TYPE;                                                                           \
        static __device__ __forceinline__ TYPE relaxed_gpu(const void* p) {                          \
            TYPE v;                                                                                  \
            asm volatile("ld.relaxed.gpu.global." PTX " %0,[%1];" : "=" REG(v) : "l"(p) : "memory"); \
            return v;                                                                                \
        }                                                                                            \
        static __device__ __forceinline__ TYPE acquire_gpu(const void* p) {                          \
            TYPE v;                                                                                  \
            asm volatile("ld.acquire.gpu.global." PTX " %0,[%1];" : "=" REG(v) : "l"(p) : "memory"); \
            return v;                                                                                \
        }                                                                                            \
        static __device__ __forceinline__ TYPE relaxed_sys(const void* p) {                          \
            TYPE v;                                                                                  \
            asm volatile("ld.relaxed.sys.global." PTX " %0,[%1];" : "=" REG(v) : "l"(p) : "memory"); \
            return v;                                                                                \
        }                                                                                            \
        static __device__ __forceinline__ TYPE acquire_sys(const void* p) {                          \
            TYPE v;                                                                                  \
            asm volatile("ld.acquire.sys.global." PTX " %0,[%1];" : "=" REG(v) : "l"(p) : "memory"); \
            return v;                                                                                \
        }                                                                                            \
        static __device__ __forceinline__ void store_relaxed_gpu(void* p, TYPE v) {                  \
            asm volatile("st.relaxed.gpu.global." PTX " [%0],%1;" ::"l"(p), REG(v) : "memory");      \
        }                                                                                            \
        static __device__ __forceinline__ void store_relaxed_sys(void* p, TYPE v) {                  \
            asm volatile("st.relaxed.sys.global." PTX " [%0],%1;" ::"l"(p), REG(v) : "memory");      \
        }                                                                                            \
        static __device__ __forceinline__ void store_release_gpu(void* p, TYPE v) {                  \
            asm volatile("st.release.gpu.global." PTX " [%0],%1;" ::"l"(p), REG(v) : "memory");      \
        }                                                                                            \
        static __device__ __forceinline__ void store_release_sys(void* p, TYPE v) {                  \
            asm volatile("st.release.sys.global." PTX " [%0],%1;" ::"l"(p), REG(v) : "memory");      \
        }                                                                                            \
    };
// A byte travels in a 16-bit register: PTX has no 8-bit ones.
GPUVM_LOADS(1, "u8", "h", u16)
GPUVM_LOADS(2, "u16", "h", u16)
GPUVM_LOADS(4, "u32", "r", u32)
GPUVM_LOADS(8, "u64", "l", u64)
#undef GPUVM_LOADS

template <class T>
GPUVM_DEVICE T ld_relaxed_gpu(const T* p) {
    return static_cast<T>(access<sizeof(T)>::relaxed_gpu(p));
}
template <class T>
GPUVM_DEVICE T ld_acquire_gpu(const T* p) {
    return static_cast<T>(access<sizeof(T)>::acquire_gpu(p));
}
template <class T>
GPUVM_DEVICE T ld_relaxed_sys(const T* p) {
    return static_cast<T>(access<sizeof(T)>::relaxed_sys(p));
}
template <class T>
GPUVM_DEVICE T ld_acquire_sys(const T* p) {
    return static_cast<T>(access<sizeof(T)>::acquire_sys(p));
}
template <class T>
GPUVM_DEVICE void st_relaxed_gpu(T* p, T v) {
    access<sizeof(T)>::store_relaxed_gpu(p, v);
}
template <class T>
GPUVM_DEVICE void st_relaxed_sys(T* p, T v) {
    access<sizeof(T)>::store_relaxed_sys(p, v);
}
template <class T>
GPUVM_DEVICE void st_release_gpu(T* p, T v) {
    access<sizeof(T)>::store_release_gpu(p, v);
}
template <class T>
GPUVM_DEVICE void st_release_sys(T* p, T v) {
    access<sizeof(T)>::store_release_sys(p, v);
}
// Weak: through L1, unordered. Volatile keeps these loads in program order for the compiler, no more.
GPUVM_DEVICE u8 ld_weak(const u8* p) {
    u16 v;
    asm volatile("ld.global.u8 %0,[%1];" : "=h"(v) : "l"(p));
    return static_cast<u8>(v);
}
GPUVM_DEVICE u16 ld_weak(const u16* p) {
    u16 v;
    asm volatile("ld.global.u16 %0,[%1];" : "=h"(v) : "l"(p));
    return v;
}
GPUVM_DEVICE u32 ld_weak(const u32* p) {
    u32 v;
    asm volatile("ld.global.u32 %0,[%1];" : "=r"(v) : "l"(p));
    return v;
}
GPUVM_DEVICE u64 ld_weak(const u64* p) {
    u64 v;
    asm volatile("ld.global.u64 %0,[%1];" : "=l"(v) : "l"(p));
    return v;
}
GPUVM_DEVICE pair64 ld_weak(const pair64* p) {
    pair64 v;
    asm volatile("ld.global.v2.u64 {%0,%1},[%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p));
    return v;
}
// Any value that the word has had will do: a look at a hint that others store meanwhile.
template <class T>
GPUVM_DEVICE T ld_hint(const T* p) {
    return ld_weak(p);
}
// Of what nothing changes while the kernel runs: compilers move such a load, and join it with others.
GPUVM_DEVICE u64 ld_constant(const u64* p) { return __ldg(p); }
// Memory of that address, for loads and stores that need not ask in which space it is.
template <class T>
GPUVM_DEVICE T* global(u64 address) {
    return static_cast<T*>(__cvta_global_to_generic(address));
}
GPUVM_DEVICE pair64 ld_relaxed_gpu_v2(const pair64* p) {
    pair64 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
    return v;
}
GPUVM_DEVICE pair64 ld_relaxed_sys_v2(const pair64* p) {
    pair64 v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1},[%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
    return v;
}
GPUVM_DEVICE void st_relaxed_gpu_v2(pair64* p, pair64 v) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
GPUVM_DEVICE void st_relaxed_sys_v2(pair64* p, pair64 v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
// 16 bytes from 4-byte words: pairing them first costs moves.
GPUVM_DEVICE void st_relaxed_gpu_v4(void* p, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
GPUVM_DEVICE void st_relaxed_sys_v4(void* p, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

#define GPUVM_ATOM(NAME, PTX)                                                               \
    GPUVM_DEVICE u64 NAME(u64* p, u64 v) {                                                  \
        u64 old;                                                                            \
        asm volatile("atom." PTX "64 %0,[%1],%2;" : "=l"(old) : "l"(p), "l"(v) : "memory"); \
        return old;                                                                         \
    }                                                                                       \
    GPUVM_DEVICE u32 NAME(u32* p, u32 v) {                                                  \
        u32 old;                                                                            \
        asm volatile("atom." PTX "32 %0,[%1],%2;" : "=r"(old) : "l"(p), "r"(v) : "memory"); \
        return old;                                                                         \
    }
GPUVM_ATOM(atom_add_relaxed_gpu, "add.relaxed.gpu.global.u")
GPUVM_ATOM(atom_add_acquire_gpu, "add.acquire.gpu.global.u")
GPUVM_ATOM(atom_add_release_gpu, "add.release.gpu.global.u")
GPUVM_ATOM(atom_and_relaxed_gpu, "and.relaxed.gpu.global.b")
GPUVM_ATOM(atom_and_release_gpu, "and.release.gpu.global.b")
GPUVM_ATOM(atom_or_relaxed_gpu, "or.relaxed.gpu.global.b")
GPUVM_ATOM(atom_or_acq_rel_gpu, "or.acq_rel.gpu.global.b")
GPUVM_ATOM(atom_exch_acq_rel_gpu, "exch.acq_rel.gpu.global.b")
#undef GPUVM_ATOM

#define GPUVM_CAS(NAME, PTX)                                   \
    GPUVM_DEVICE u64 NAME(u64* p, u64 expected, u64 desired) { \
        u64 old;                                               \
        asm volatile("atom.cas." PTX "64 %0,[%1],%2,%3;"       \
                     : "=l"(old)                               \
                     : "l"(p), "l"(expected), "l"(desired)     \
                     : "memory");                              \
        return old;                                            \
    }                                                          \
    GPUVM_DEVICE u32 NAME(u32* p, u32 expected, u32 desired) { \
        u32 old;                                               \
        asm volatile("atom.cas." PTX "32 %0,[%1],%2,%3;"       \
                     : "=r"(old)                               \
                     : "l"(p), "r"(expected), "r"(desired)     \
                     : "memory");                              \
        return old;                                            \
    }
GPUVM_CAS(atom_cas_relaxed_gpu, "relaxed.gpu.global.b")
GPUVM_CAS(atom_cas_acquire_gpu, "acquire.gpu.global.b")
GPUVM_CAS(atom_cas_acq_rel_gpu, "acq_rel.gpu.global.b")
GPUVM_CAS(atom_cas_relaxed_sys, "relaxed.sys.global.b")
#undef GPUVM_CAS

GPUVM_DEVICE void fence_acq_rel_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
GPUVM_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
GPUVM_DEVICE void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
GPUVM_DEVICE void fence_sc_gpu() { asm volatile("fence.sc.gpu;" ::: "memory"); }
// One 8-byte transaction to a device register.
GPUVM_DEVICE void st_mmio_sys(u64* p, u64 v) {
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}

GPUVM_DEVICE void copy_bytes(void* to, const void* from, u64 bytes) { memcpy(to, from, bytes); }

// The T at byte `offset` of a chunk, by shifts: an index would move the chunk to local memory.
template <class T>
GPUVM_DEVICE T pick(const pair64& chunk, u32 offset) {
    u64 half = (offset & 8 ? chunk.hi : chunk.lo) >> (offset & 7) * 8;
    T value;
    memcpy(&value, &half, sizeof(T));
    return value;
}

GPUVM_DEVICE u32 lane_id() {
    u32 v;
    asm("mov.u32 %0,%%laneid;" : "=r"(v));
    return v;
}
GPUVM_DEVICE u32 multiprocessor_id() {
    u32 v;
    asm volatile("mov.u32 %0,%%smid;" : "=r"(v));
    return v;
}
GPUVM_DEVICE u32 warp_slot() {
    u32 v;
    asm volatile("mov.u32 %0,%%warpid;" : "=r"(v));
    return v;
}
GPUVM_DEVICE u64 time_ns() {
    u64 v;
    asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(v));
    return v;
}
// The multiprocessor's clock: finer than %globaltimer, and only good for differences.
GPUVM_DEVICE u64 ticks() { return static_cast<u64>(clock64()); }
GPUVM_DEVICE u64 multiply_high(u64 a, u64 b) { return __umul64hi(a, b); }
GPUVM_DEVICE void sleep_ns(u32 ns) { __nanosleep(ns); }
// Only the simulated GPU has a watchdog that asks.
GPUVM_DEVICE void note_wait(u32, u64, u64) {}

GPUVM_DEVICE u32 match_active(u64 key, u32* active) {
    u32 here = __activemask();
    *active = here;
    return __match_any_sync(here, key);
}
GPUVM_DEVICE void ballot2(u32 mask, bool a, bool b, u32* with_a, u32* with_b) {
    *with_a = __ballot_sync(mask, a);
    *with_b = __ballot_sync(mask, b);
}

}  // namespace detail
}  // namespace gpuvm
