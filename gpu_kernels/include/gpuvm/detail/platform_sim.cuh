// The simulated GPU: accesses with their order and scope. In the fast mode the host compiler's atomics, where a GPU
// scope becomes the whole process, which is wider and therefore right; in the seeded mode the simulator's weak memory.
#pragma once

#define GPUVM_DEVICE __device__ inline __attribute__((always_inline))
#define GPUVM_NOINLINE __device__ __attribute__((noinline))
#define GPUVM_LIKELY(x) __builtin_expect(!!(x), 1)

namespace gpuvm {
namespace detail {

template <class T>
GPUVM_DEVICE T ld_relaxed_gpu(const T* p) {
    return gpuvm_sim::load<GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p);
}
template <class T>
GPUVM_DEVICE T ld_acquire_gpu(const T* p) {
    return gpuvm_sim::load<GPUVM_SIM_ACQUIRE, GPUVM_SIM_GPU>(p);
}
template <class T>
GPUVM_DEVICE T ld_acquire_sys(const T* p) {
    return gpuvm_sim::load<GPUVM_SIM_ACQUIRE, GPUVM_SIM_SYS>(p);
}
template <class T>
GPUVM_DEVICE T ld_relaxed_sys(const T* p) {
    return gpuvm_sim::load<GPUVM_SIM_RELAXED, GPUVM_SIM_SYS>(p);
}
template <class T>
GPUVM_DEVICE void st_relaxed_gpu(T* p, T v) {
    gpuvm_sim::store<GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE void st_relaxed_sys(T* p, T v) {
    gpuvm_sim::store<GPUVM_SIM_RELAXED, GPUVM_SIM_SYS>(p, v);
}
template <class T>
GPUVM_DEVICE void st_release_gpu(T* p, T v) {
    gpuvm_sim::store<GPUVM_SIM_RELEASE, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE void st_release_sys(T* p, T v) {
    gpuvm_sim::store<GPUVM_SIM_RELEASE, GPUVM_SIM_SYS>(p, v);
}
// Weak on a GPU. Relaxed here, where a plain load would be a race.
template <class T>
GPUVM_DEVICE T ld_weak(const T* p) {
    return gpuvm_sim::load<GPUVM_SIM_WEAK, GPUVM_SIM_GPU>(p);
}
GPUVM_DEVICE pair64 ld_weak(const pair64* p) { return pair64{ld_weak(&p->lo), ld_weak(&p->hi)}; }
// Weak on a GPU, where any value that the word has had will do. Strong here: no race that is to be told.
template <class T>
GPUVM_DEVICE T ld_hint(const T* p) {
    return ld_relaxed_gpu(p);
}
// Of what nothing changes while the kernel runs.
GPUVM_DEVICE u64 ld_constant(const u64* p) { return ld_weak(p); }
template <class T>
GPUVM_DEVICE T* global(u64 address) {
    return reinterpret_cast<T*>(address);
}
// 16 bytes by two 8-byte accesses: each half is whole, as on the GPU each 8-byte element is.
GPUVM_DEVICE pair64 ld_relaxed_gpu_v2(const pair64* p) {
    return pair64{ld_relaxed_gpu(&p->lo), ld_relaxed_gpu(&p->hi)};
}
GPUVM_DEVICE pair64 ld_relaxed_sys_v2(const pair64* p) {
    return pair64{ld_relaxed_sys(&p->lo), ld_relaxed_sys(&p->hi)};
}
GPUVM_DEVICE void st_relaxed_gpu_v2(pair64* p, pair64 v) {
    st_relaxed_gpu(&p->lo, v.lo);
    st_relaxed_gpu(&p->hi, v.hi);
}
GPUVM_DEVICE void st_relaxed_sys_v2(pair64* p, pair64 v) {
    st_relaxed_sys(&p->lo, v.lo);
    st_relaxed_sys(&p->hi, v.hi);
}
GPUVM_DEVICE void st_relaxed_sys_v4(void* p, u32 a, u32 b, u32 c, u32 d) {
    st_relaxed_sys_v2(static_cast<pair64*>(p), pair64{static_cast<u64>(b) << 32 | a, static_cast<u64>(d) << 32 | c});
}
GPUVM_DEVICE void st_relaxed_gpu_v4(void* p, u32 a, u32 b, u32 c, u32 d) {
    st_relaxed_gpu_v2(static_cast<pair64*>(p), pair64{static_cast<u64>(b) << 32 | a, static_cast<u64>(d) << 32 | c});
}
template <class T>
GPUVM_DEVICE T atom_add_relaxed_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_ADD, GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_add_acquire_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_ADD, GPUVM_SIM_ACQUIRE, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_add_release_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_ADD, GPUVM_SIM_RELEASE, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_and_relaxed_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_AND, GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_and_release_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_AND, GPUVM_SIM_RELEASE, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_or_relaxed_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_OR, GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_or_acq_rel_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_OR, GPUVM_SIM_ACQ_REL, GPUVM_SIM_GPU>(p, v);
}
template <class T>
GPUVM_DEVICE T atom_exch_acq_rel_gpu(T* p, T v) {
    return gpuvm_sim::fetch<GPUVM_SIM_EXCHANGE, GPUVM_SIM_ACQ_REL, GPUVM_SIM_GPU>(p, v);
}
// Each compare-and-swap returns the old value; it succeeded when that equals `expected`.
template <class T>
GPUVM_DEVICE T atom_cas_relaxed_gpu(T* p, T expected, T desired) {
    return gpuvm_sim::compare<GPUVM_SIM_RELAXED, GPUVM_SIM_GPU>(p, expected, desired);
}
template <class T>
GPUVM_DEVICE T atom_cas_acquire_gpu(T* p, T expected, T desired) {
    return gpuvm_sim::compare<GPUVM_SIM_ACQUIRE, GPUVM_SIM_GPU>(p, expected, desired);
}
template <class T>
GPUVM_DEVICE T atom_cas_acq_rel_gpu(T* p, T expected, T desired) {
    return gpuvm_sim::compare<GPUVM_SIM_ACQ_REL, GPUVM_SIM_GPU>(p, expected, desired);
}
template <class T>
GPUVM_DEVICE T atom_cas_relaxed_sys(T* p, T expected, T desired) {
    return gpuvm_sim::compare<GPUVM_SIM_RELAXED, GPUVM_SIM_SYS>(p, expected, desired);
}
GPUVM_DEVICE void fence_acq_rel_cta() { gpuvm_sim::fence<GPUVM_SIM_ACQ_REL, GPUVM_SIM_CTA>(); }
GPUVM_DEVICE void fence_acq_rel_gpu() { gpuvm_sim::fence<GPUVM_SIM_ACQ_REL, GPUVM_SIM_GPU>(); }
GPUVM_DEVICE void fence_acq_rel_sys() { gpuvm_sim::fence<GPUVM_SIM_ACQ_REL, GPUVM_SIM_SYS>(); }
GPUVM_DEVICE void fence_sc_gpu() { gpuvm_sim::fence<GPUVM_SIM_SC, GPUVM_SIM_GPU>(); }
GPUVM_DEVICE void st_mmio_sys(u64* p, u64 v) { gpuvm_sim::mmio_store64(p, v); }

GPUVM_DEVICE void copy_bytes(void* to, const void* from, u64 bytes) { __builtin_memcpy(to, from, bytes); }

// The T at byte `offset` of a chunk: on a CPU the chunk lies on the stack.
template <class T>
GPUVM_DEVICE T pick(const pair64& chunk, u32 offset) {
    T value;
    __builtin_memcpy(&value, reinterpret_cast<const char*>(&chunk) + offset, sizeof(T));
    return value;
}

GPUVM_DEVICE u32 lane_id() { return gpuvm_sim::lane_id(); }
GPUVM_DEVICE u32 multiprocessor_id() { return gpuvm_sim::sm_id(); }
GPUVM_DEVICE u32 warp_slot() { return gpuvm_sim::warp_slot(); }
GPUVM_DEVICE u64 time_ns() { return gpuvm_sim::globaltimer(); }
GPUVM_DEVICE u64 ticks() { return time_ns(); }
GPUVM_DEVICE u64 multiply_high(u64 a, u64 b) { return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64); }
GPUVM_DEVICE void sleep_ns(u32 ns) { __nanosleep(ns); }
GPUVM_DEVICE void note_wait(u32 what, u64 a, u64 b) { gpuvm_sim::wait_note(what, a, b); }

// The lanes of this warp that are here together, and those of them with the caller's key.
GPUVM_DEVICE u32 match_active(u64 key, u32* active) { return gpuvm_sim::match_active(key, active); }
GPUVM_DEVICE void ballot2(u32 mask, bool a, bool b, u32* with_a, u32* with_b) {
    gpuvm_sim::ballot2(mask, a, b, with_a, with_b);
}

}  // namespace detail
}  // namespace gpuvm
