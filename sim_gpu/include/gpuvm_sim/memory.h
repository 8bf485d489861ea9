// Memory accesses with their order and scope. Modules of the seeded mode hand them to the simulator, whose memory is
// weaker than the host's; others use the host compiler's atomics, where every scope is the whole process.
#pragma once

#include "gpuvm_sim/runtime.h"

// Numbers here are mirrored in the host's sim/abi.rs.
enum gpuvm_sim_operation : unsigned {
    GPUVM_SIM_LOAD = 0,
    GPUVM_SIM_STORE = 1,
    GPUVM_SIM_EXCHANGE = 2,
    GPUVM_SIM_ADD = 3,
    GPUVM_SIM_SUB = 4,
    GPUVM_SIM_AND = 5,
    GPUVM_SIM_OR = 6,
    GPUVM_SIM_XOR = 7,
    GPUVM_SIM_NAND = 8,
    GPUVM_SIM_COMPARE = 9,
};

enum gpuvm_sim_order : unsigned {
    GPUVM_SIM_WEAK = 0,
    GPUVM_SIM_RELAXED = 1,
    GPUVM_SIM_ACQUIRE = 2,
    GPUVM_SIM_RELEASE = 3,
    GPUVM_SIM_ACQ_REL = 4,
    GPUVM_SIM_SC = 5,
};

enum gpuvm_sim_scope : unsigned { GPUVM_SIM_CTA = 0, GPUVM_SIM_GPU = 1, GPUVM_SIM_SYS = 2 };

extern "C" {
// In tsan_hooks.cpp, which is not instrumented.
unsigned long long gpuvm_sim_access(unsigned what, void* address, unsigned long long value,
                                    unsigned long long expected);
void gpuvm_sim_fence(unsigned order, unsigned scope);
void gpuvm_sim_move(void* to, const void* from, unsigned long bytes);
}

namespace gpuvm_sim {

constexpr unsigned what(unsigned operation, unsigned order, unsigned scope, unsigned bytes) {
    return operation | order << 8 | scope << 12 | bytes << 16;
}

template <class T>
static inline unsigned long long widen(T value) {
    static_assert(sizeof(T) <= 8, "an access of up to 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T>
static inline T narrow(unsigned long long bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// The host compiler's name of an order; weak accesses are relaxed ones, since plain ones would be races.
constexpr int host_order(unsigned order) {
    return order == GPUVM_SIM_ACQUIRE   ? __ATOMIC_ACQUIRE
           : order == GPUVM_SIM_RELEASE ? __ATOMIC_RELEASE
           : order == GPUVM_SIM_ACQ_REL ? __ATOMIC_ACQ_REL
           : order == GPUVM_SIM_SC      ? __ATOMIC_SEQ_CST
                                        : __ATOMIC_RELAXED;
}

template <unsigned Order, unsigned Scope, class T>
static inline __attribute__((always_inline)) T load(const T* p) {
#if defined(GPUVM_SIM_SEEDED)
    return narrow<T>(gpuvm_sim_access(what(GPUVM_SIM_LOAD, Order, Scope, sizeof(T)), const_cast<T*>(p), 0, 0));
#else
    return __atomic_load_n(p, host_order(Order));
#endif
}

template <unsigned Order, unsigned Scope, class T>
static inline __attribute__((always_inline)) void store(T* p, T value) {
#if defined(GPUVM_SIM_SEEDED)
    gpuvm_sim_access(what(GPUVM_SIM_STORE, Order, Scope, sizeof(T)), p, widen(value), 0);
#else
    __atomic_store_n(p, value, host_order(Order));
#endif
}

// A read-modify-write; the old value.
template <unsigned Operation, unsigned Order, unsigned Scope, class T>
static inline __attribute__((always_inline)) T fetch(T* p, T value) {
#if defined(GPUVM_SIM_SEEDED)
    return narrow<T>(gpuvm_sim_access(what(Operation, Order, Scope, sizeof(T)), p, widen(value), 0));
#else
    constexpr int order = host_order(Order);
    if constexpr (Operation == GPUVM_SIM_EXCHANGE) return __atomic_exchange_n(p, value, order);
    if constexpr (Operation == GPUVM_SIM_ADD) return __atomic_fetch_add(p, value, order);
    if constexpr (Operation == GPUVM_SIM_SUB) return __atomic_fetch_sub(p, value, order);
    if constexpr (Operation == GPUVM_SIM_AND) return __atomic_fetch_and(p, value, order);
    if constexpr (Operation == GPUVM_SIM_OR) return __atomic_fetch_or(p, value, order);
    if constexpr (Operation == GPUVM_SIM_XOR) return __atomic_fetch_xor(p, value, order);
#endif
}

// A compare-and-swap, relaxed where it fails; the old value.
template <unsigned Order, unsigned Scope, class T>
static inline __attribute__((always_inline)) T compare(T* p, T expected, T desired) {
#if defined(GPUVM_SIM_SEEDED)
    return narrow<T>(
        gpuvm_sim_access(what(GPUVM_SIM_COMPARE, Order, Scope, sizeof(T)), p, widen(desired), widen(expected)));
#else
    __atomic_compare_exchange_n(p, &expected, desired, false, host_order(Order), __ATOMIC_RELAXED);
    return expected;
#endif
}

template <unsigned Order, unsigned Scope>
static inline __attribute__((always_inline)) void fence() {
#if defined(GPUVM_SIM_SEEDED)
    gpuvm_sim_fence(Order, Scope);
#else
    __atomic_thread_fence(host_order(Order));
#endif
}

}  // namespace gpuvm_sim
