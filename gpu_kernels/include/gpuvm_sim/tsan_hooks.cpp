// Second translation unit of modules whose kernels are instrumented: the calls that the compiler inserted come here.
// Compiled without instrumentation, and linked instead of the sanitizer's own library.

#include "gpuvm_sim/runtime.h"

// Atomic operations of the instrumented code arrive as calls, so they must be carried out here. Host lanes of the
// seeded mode share one thread, and NIC engines are stepped by it, so sequential consistency is the only order there
// is.

namespace {

enum event : unsigned { READ = 1, WRITE = 2, ATOMIC = 3, FENCE = 4, BLOCK = 5 };

inline __attribute__((always_inline)) void step(unsigned kind) { gpuvm_sim_bound->step(gpuvm_sim::lane(), kind); }

// Global constructors run while the module is loaded: outside any lane, and before anything is bound.
inline __attribute__((always_inline)) void step_if_bound(unsigned kind) {
    if (gpuvm_sim_bound != nullptr) step(kind);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("hidden"), used))

EXPORT void __sanitizer_cov_trace_pc() { step_if_bound(BLOCK); }

EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_read(void**) {}
EXPORT void __tsan_vptr_update(void**, void*) {}
EXPORT void __tsan_read_range(void*, unsigned long) { step_if_bound(READ); }
EXPORT void __tsan_write_range(void*, unsigned long) { step_if_bound(WRITE); }
EXPORT void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    step_if_bound(FENCE);
}
EXPORT void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define ACCESS(size)                                                                 \
    EXPORT void __tsan_read##size(void*) { step_if_bound(READ); }                    \
    EXPORT void __tsan_write##size(void*) { step_if_bound(WRITE); }                  \
    EXPORT void __tsan_read_write##size(void*) { step_if_bound(WRITE); }             \
    EXPORT void __tsan_unaligned_read##size(void*) { step_if_bound(READ); }          \
    EXPORT void __tsan_unaligned_write##size(void*) { step_if_bound(WRITE); }        \
    EXPORT void __tsan_unaligned_read_write##size(void*) { step_if_bound(WRITE); }   \
    EXPORT void __tsan_volatile_read##size(void*) { step_if_bound(READ); }           \
    EXPORT void __tsan_volatile_write##size(void*) { step_if_bound(WRITE); }         \
    EXPORT void __tsan_unaligned_volatile_read##size(void*) { step_if_bound(READ); } \
    EXPORT void __tsan_unaligned_volatile_write##size(void*) { step_if_bound(WRITE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

// The switch point comes before the access: what another lane does in between is what the access sees.
#define FETCH(bits, T, name, builtin)                                \
    EXPORT T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { \
        step_if_bound(ATOMIC);                                       \
        return builtin(p, v, __ATOMIC_SEQ_CST);                      \
    }
#define ATOMICS(bits, T)                                                                                  \
    EXPORT T __tsan_atomic##bits##_load(const volatile T* p, int) {                                       \
        step_if_bound(ATOMIC);                                                                            \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                     \
    EXPORT void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                                    \
        step_if_bound(ATOMIC);                                                                            \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                         \
    }                                                                                                     \
    FETCH(bits, T, exchange, __atomic_exchange_n)                                                         \
    FETCH(bits, T, fetch_add, __atomic_fetch_add)                                                         \
    FETCH(bits, T, fetch_sub, __atomic_fetch_sub)                                                         \
    FETCH(bits, T, fetch_and, __atomic_fetch_and)                                                         \
    FETCH(bits, T, fetch_or, __atomic_fetch_or)                                                           \
    FETCH(bits, T, fetch_xor, __atomic_fetch_xor)                                                         \
    FETCH(bits, T, fetch_nand, __atomic_fetch_nand)                                                       \
    EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T v, int, int) { \
        step_if_bound(ATOMIC);                                                                            \
        return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                                     \
    EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T v, int, int) {   \
        step_if_bound(ATOMIC);                                                                            \
        return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                                     \
    EXPORT T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T v, int, int) {       \
        step_if_bound(ATOMIC);                                                                            \
        __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
        return expected;                                                                                  \
    }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long long)

// Called instead of the C library's functions by clang; they may be called by name, so they must do the work.
EXPORT void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    step_if_bound(WRITE);
    return __builtin_memcpy(to, from, bytes);
}
EXPORT void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    step_if_bound(WRITE);
    return __builtin_memmove(to, from, bytes);
}
EXPORT void* __tsan_memset(void* to, int value, unsigned long bytes) {
    step_if_bound(WRITE);
    return __builtin_memset(to, value, bytes);
}
