// Warp collectives, block barriers and fences of CUDA C++.
#pragma once

#include "gpuvm_sim/memory.h"

namespace gpuvm_sim {

template <class T>
static inline unsigned long long to_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp collectives move values of 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T>
static inline T from_bits(unsigned long long bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T>
static inline T shuffle(unsigned kind, unsigned mask, T value, unsigned source) {
    return from_bits<T>(collective(kind, mask, to_bits(value), source));
}

}  // namespace gpuvm_sim

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    unsigned me = gpuvm_sim::lane_id(), low = me & ~(width - 1u);
    return gpuvm_sim::shuffle(GPUVM_SIM_SHFL, mask, value, low | (static_cast<unsigned>(source) & (width - 1u)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned me = gpuvm_sim::lane_id(), in_group = me & (width - 1u);
    return gpuvm_sim::shuffle(GPUVM_SIM_SHFL_UP, mask, value, delta <= in_group ? me - delta : me);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned me = gpuvm_sim::lane_id(), in_group = me & (width - 1u);
    bool inside = delta < static_cast<unsigned>(width) - in_group;
    return gpuvm_sim::shuffle(GPUVM_SIM_SHFL_DOWN, mask, value, inside ? me + delta : me);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    unsigned me = gpuvm_sim::lane_id(), source = me ^ static_cast<unsigned>(lane_mask);
    // CUDA lets a lane read from its own or an earlier group, not from a later one.
    bool inside = source < (me & ~(width - 1u)) + width && source < 32;
    return gpuvm_sim::shuffle(GPUVM_SIM_SHFL_XOR, mask, value, inside ? source : me);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu) { gpuvm_sim::collective(GPUVM_SIM_SYNCWARP, mask); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(gpuvm_sim::collective(GPUVM_SIM_BALLOT, mask, predicate != 0));
}
static inline int __any_sync(unsigned mask, int predicate) {
    return static_cast<int>(gpuvm_sim::collective(GPUVM_SIM_ANY, mask, predicate != 0));
}
static inline int __all_sync(unsigned mask, int predicate) {
    return static_cast<int>(gpuvm_sim::collective(GPUVM_SIM_ALL, mask, predicate != 0));
}
template <class T>
static inline unsigned __match_any_sync(unsigned mask, T value) {
    return static_cast<unsigned>(gpuvm_sim::collective(GPUVM_SIM_MATCH_ANY, mask, gpuvm_sim::to_bits(value)));
}
template <class T>
static inline unsigned __match_all_sync(unsigned mask, T value, int* all) {
    unsigned same = static_cast<unsigned>(gpuvm_sim::collective(GPUVM_SIM_MATCH_ALL, mask, gpuvm_sim::to_bits(value)));
    *all = same != 0;
    return same;
}

#define GPUVM_SIM_REDUCE(name, T, kind)                                                         \
    static inline T name(unsigned mask, T value) {                                              \
        return static_cast<T>(gpuvm_sim::collective(kind, mask, static_cast<unsigned>(value))); \
    }
GPUVM_SIM_REDUCE(__reduce_add_sync, unsigned, GPUVM_SIM_REDUCE_ADD)
GPUVM_SIM_REDUCE(__reduce_add_sync, int, GPUVM_SIM_REDUCE_ADD)
GPUVM_SIM_REDUCE(__reduce_min_sync, unsigned, GPUVM_SIM_REDUCE_MIN_U)
GPUVM_SIM_REDUCE(__reduce_min_sync, int, GPUVM_SIM_REDUCE_MIN_S)
GPUVM_SIM_REDUCE(__reduce_max_sync, unsigned, GPUVM_SIM_REDUCE_MAX_U)
GPUVM_SIM_REDUCE(__reduce_max_sync, int, GPUVM_SIM_REDUCE_MAX_S)
GPUVM_SIM_REDUCE(__reduce_and_sync, unsigned, GPUVM_SIM_REDUCE_AND)
GPUVM_SIM_REDUCE(__reduce_or_sync, unsigned, GPUVM_SIM_REDUCE_OR)
GPUVM_SIM_REDUCE(__reduce_xor_sync, unsigned, GPUVM_SIM_REDUCE_XOR)
#undef GPUVM_SIM_REDUCE

// Not inlined: its return address is the call site by which lanes are grouped.
__attribute__((noinline)) static unsigned __activemask() {
    return static_cast<unsigned>(gpuvm_sim_bound->gather(gpuvm_sim::lane(), __builtin_return_address(0), 0, 0) >> 32);
}

static inline void __syncthreads() { gpuvm_sim_bound->barrier(gpuvm_sim::lane(), GPUVM_SIM_BARRIER, 0); }
static inline int __syncthreads_count(int predicate) {
    return static_cast<int>(gpuvm_sim_bound->barrier(gpuvm_sim::lane(), GPUVM_SIM_BARRIER_COUNT, predicate != 0));
}
static inline int __syncthreads_and(int predicate) {
    return static_cast<int>(gpuvm_sim_bound->barrier(gpuvm_sim::lane(), GPUVM_SIM_BARRIER_AND, predicate != 0));
}
static inline int __syncthreads_or(int predicate) {
    return static_cast<int>(gpuvm_sim_bound->barrier(gpuvm_sim::lane(), GPUVM_SIM_BARRIER_OR, predicate != 0));
}

// CUDA's fences are sequentially consistent at their scope.
static inline void __threadfence() { gpuvm_sim::fence<GPUVM_SIM_SC, GPUVM_SIM_GPU>(); }
static inline void __threadfence_block() { gpuvm_sim::fence<GPUVM_SIM_SC, GPUVM_SIM_CTA>(); }
static inline void __threadfence_system() { gpuvm_sim::fence<GPUVM_SIM_SC, GPUVM_SIM_SYS>(); }

static inline void __nanosleep(unsigned ns) { gpuvm_sim_bound->sleep(gpuvm_sim::lane(), ns); }
