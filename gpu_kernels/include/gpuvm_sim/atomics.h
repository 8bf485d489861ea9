// CUDA's atomic functions. They are relaxed, as CUDA's are: order comes from fences.
#pragma once

#include "gpuvm_sim/types.h"

namespace gpuvm_sim {

template <class T, class Bits, class Next>
static inline T atomic_update(T* p, Next next) {
    Bits seen = __atomic_load_n(reinterpret_cast<Bits*>(p), __ATOMIC_RELAXED);
    for (;;) {
        T old;
        __builtin_memcpy(&old, &seen, sizeof(T));
        T value = next(old);
        Bits wanted;
        __builtin_memcpy(&wanted, &value, sizeof(T));
        if (__atomic_compare_exchange_n(reinterpret_cast<Bits*>(p), &seen, wanted, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return old;
    }
}

}  // namespace gpuvm_sim

// Each function at its three scopes: on the simulated GPU all are the system's.
#define GPUVM_SIM_SCOPES(name, T, params, body)  \
    static inline T name params { body }         \
    static inline T name##_block params { body } \
    static inline T name##_system params { body }

#define GPUVM_SIM_FETCH(name, T, builtin) \
    GPUVM_SIM_SCOPES(name, T, (T * p, T v), return __atomic_fetch_##builtin(p, v, __ATOMIC_RELAXED);)
#define GPUVM_SIM_UPDATE(name, T, Bits, expression) \
    GPUVM_SIM_SCOPES(name, T, (T * p, T v),         \
                     return (gpuvm_sim::atomic_update<T, Bits>(p, [v](T old) -> T { return expression; }));)
#define GPUVM_SIM_EXCHANGE(T) \
    GPUVM_SIM_SCOPES(atomicExch, T, (T * p, T v), return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);)
#define GPUVM_SIM_COMPARE(T)                                                                                  \
    GPUVM_SIM_SCOPES(atomicCAS, T, (T * p, T expected, T v),                                                  \
                     __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
                     return expected;)
#define GPUVM_SIM_INTEGER(T)                               \
    GPUVM_SIM_FETCH(atomicAnd, T, and)                     \
    GPUVM_SIM_FETCH(atomicOr, T, or)                       \
    GPUVM_SIM_FETCH(atomicXor, T, xor)                     \
    GPUVM_SIM_UPDATE(atomicMin, T, T, (old < v ? old : v)) \
    GPUVM_SIM_UPDATE(atomicMax, T, T, (old > v ? old : v)) \
    GPUVM_SIM_EXCHANGE(T)                                  \
    GPUVM_SIM_COMPARE(T)

GPUVM_SIM_FETCH(atomicAdd, int, add)
GPUVM_SIM_FETCH(atomicAdd, unsigned, add)
GPUVM_SIM_FETCH(atomicAdd, unsigned long long, add)
GPUVM_SIM_UPDATE(atomicAdd, float, unsigned, (old + v))
GPUVM_SIM_UPDATE(atomicAdd, double, unsigned long long, (old + v))
GPUVM_SIM_FETCH(atomicSub, int, sub)
GPUVM_SIM_FETCH(atomicSub, unsigned, sub)
GPUVM_SIM_INTEGER(int)
GPUVM_SIM_INTEGER(unsigned)
GPUVM_SIM_INTEGER(long long)
GPUVM_SIM_INTEGER(unsigned long long)
GPUVM_SIM_COMPARE(unsigned short)
GPUVM_SIM_UPDATE(atomicExch, float, unsigned, (static_cast<void>(old), v))
GPUVM_SIM_UPDATE(atomicExch, double, unsigned long long, (static_cast<void>(old), v))
GPUVM_SIM_UPDATE(atomicInc, unsigned, unsigned, (old >= v ? 0u : old + 1u))
GPUVM_SIM_UPDATE(atomicDec, unsigned, unsigned, (old == 0u || old > v ? v : old - 1u))

#undef GPUVM_SIM_SCOPES
#undef GPUVM_SIM_FETCH
#undef GPUVM_SIM_UPDATE
#undef GPUVM_SIM_EXCHANGE
#undef GPUVM_SIM_COMPARE
#undef GPUVM_SIM_INTEGER
