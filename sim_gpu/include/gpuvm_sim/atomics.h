// CUDA's atomic functions. They are relaxed, as CUDA's are: order comes from fences.
#pragma once

#include "gpuvm_sim/memory.h"
#include "gpuvm_sim/types.h"

namespace gpuvm_sim {

template <unsigned Scope, class T, class Bits, class Next>
static inline T atomic_update(T* p, Next next) {
    Bits* bits = reinterpret_cast<Bits*>(p);
    Bits seen = load<GPUVM_SIM_RELAXED, Scope>(bits);
    for (;;) {
        T old = narrow<T>(seen);
        Bits found = compare<GPUVM_SIM_RELAXED, Scope>(bits, seen, static_cast<Bits>(widen(next(old))));
        if (found == seen) return old;
        seen = found;
    }
}

}  // namespace gpuvm_sim

// Each function at its three scopes.
#define GPUVM_SIM_SCOPES(name, T, params, body)    \
    static inline T name params {                  \
        constexpr unsigned kScope = GPUVM_SIM_GPU; \
        body                                       \
    }                                              \
    static inline T name##_block params {          \
        constexpr unsigned kScope = GPUVM_SIM_CTA; \
        body                                       \
    }                                              \
    static inline T name##_system params {         \
        constexpr unsigned kScope = GPUVM_SIM_SYS; \
        body                                       \
    }

#define GPUVM_SIM_FETCH(name, T, operation) \
    GPUVM_SIM_SCOPES(name, T, (T * p, T v), return (gpuvm_sim::fetch<operation, GPUVM_SIM_RELAXED, kScope>(p, v));)
#define GPUVM_SIM_UPDATE(name, T, Bits, expression) \
    GPUVM_SIM_SCOPES(name, T, (T * p, T v),         \
                     return (gpuvm_sim::atomic_update<kScope, T, Bits>(p, [v](T old) -> T { return expression; }));)
#define GPUVM_SIM_COMPARE_AND_SWAP(T)                        \
    GPUVM_SIM_SCOPES(atomicCAS, T, (T * p, T expected, T v), \
                     return (gpuvm_sim::compare<GPUVM_SIM_RELAXED, kScope>(p, expected, v));)
#define GPUVM_SIM_INTEGER(T)                               \
    GPUVM_SIM_FETCH(atomicAnd, T, GPUVM_SIM_AND)           \
    GPUVM_SIM_FETCH(atomicOr, T, GPUVM_SIM_OR)             \
    GPUVM_SIM_FETCH(atomicXor, T, GPUVM_SIM_XOR)           \
    GPUVM_SIM_UPDATE(atomicMin, T, T, (old < v ? old : v)) \
    GPUVM_SIM_UPDATE(atomicMax, T, T, (old > v ? old : v)) \
    GPUVM_SIM_FETCH(atomicExch, T, GPUVM_SIM_EXCHANGE)     \
    GPUVM_SIM_COMPARE_AND_SWAP(T)

GPUVM_SIM_FETCH(atomicAdd, int, GPUVM_SIM_ADD)
GPUVM_SIM_FETCH(atomicAdd, unsigned, GPUVM_SIM_ADD)
GPUVM_SIM_FETCH(atomicAdd, unsigned long long, GPUVM_SIM_ADD)
GPUVM_SIM_UPDATE(atomicAdd, float, unsigned, (old + v))
GPUVM_SIM_UPDATE(atomicAdd, double, unsigned long long, (old + v))
GPUVM_SIM_FETCH(atomicSub, int, GPUVM_SIM_SUB)
GPUVM_SIM_FETCH(atomicSub, unsigned, GPUVM_SIM_SUB)
GPUVM_SIM_INTEGER(int)
GPUVM_SIM_INTEGER(unsigned)
GPUVM_SIM_INTEGER(long long)
GPUVM_SIM_INTEGER(unsigned long long)
GPUVM_SIM_COMPARE_AND_SWAP(unsigned short)
GPUVM_SIM_UPDATE(atomicExch, float, unsigned, (static_cast<void>(old), v))
GPUVM_SIM_UPDATE(atomicExch, double, unsigned long long, (static_cast<void>(old), v))
GPUVM_SIM_UPDATE(atomicInc, unsigned, unsigned, (old >= v ? 0u : old + 1u))
GPUVM_SIM_UPDATE(atomicDec, unsigned, unsigned, (old == 0u || old > v ? v : old - 1u))

#undef GPUVM_SIM_SCOPES
#undef GPUVM_SIM_FETCH
#undef GPUVM_SIM_UPDATE
#undef GPUVM_SIM_COMPARE_AND_SWAP
#undef GPUVM_SIM_INTEGER
