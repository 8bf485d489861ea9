// Second translation unit of modules whose kernels are instrumented: the calls that the compiler inserted come here.
// Compiled without instrumentation, and linked instead of the sanitizer's own library.

#include "gpuvm_sim/memory.h"

// Atomic operations of the instrumented code arrive as calls, and the simulator carries them out: what a lane sees is
// its memory model's to say. Plain accesses are announced, and done by the code itself after the call.

namespace {

constexpr unsigned BLOCK = 5;

// Global constructors run while the module is loaded: outside any lane, and before anything is bound.
inline __attribute__((always_inline)) bool bound() { return gpuvm_sim_bound != nullptr; }

inline __attribute__((always_inline)) void plain(unsigned kind, const volatile void* address, unsigned long bytes,
                                                 const void* site) {
    if (bound()) gpuvm_sim_bound->plain(gpuvm_sim::lane(), kind, const_cast<void*>(address), bytes, site);
}

// A C++ order in the simulator's numbers; consume is acquire.
unsigned order_of(int order) {
    return order == __ATOMIC_RELAXED   ? GPUVM_SIM_RELAXED
           : order == __ATOMIC_CONSUME ? GPUVM_SIM_ACQUIRE
           : order == __ATOMIC_ACQUIRE ? GPUVM_SIM_ACQUIRE
           : order == __ATOMIC_RELEASE ? GPUVM_SIM_RELEASE
           : order == __ATOMIC_ACQ_REL ? GPUVM_SIM_ACQ_REL
                                       : GPUVM_SIM_SC;
}

// An atomic of the host's C++, which is of system scope.
template <class T>
T atomic(unsigned operation, volatile T* p, int order, unsigned long long value = 0, unsigned long long expected = 0) {
    T* q = const_cast<T*>(p);
    if (bound())
        return static_cast<T>(gpuvm_sim_access(gpuvm_sim::what(operation, order_of(order), GPUVM_SIM_SYS, sizeof(T)), q,
                                               value, expected));
    T old = *q, v = static_cast<T>(value);
    switch (operation) {
        case GPUVM_SIM_LOAD:
            break;
        case GPUVM_SIM_ADD:
            *q = static_cast<T>(old + v);
            break;
        case GPUVM_SIM_SUB:
            *q = static_cast<T>(old - v);
            break;
        case GPUVM_SIM_AND:
            *q = old & v;
            break;
        case GPUVM_SIM_OR:
            *q = old | v;
            break;
        case GPUVM_SIM_XOR:
            *q = old ^ v;
            break;
        case GPUVM_SIM_NAND:
            *q = static_cast<T>(~(old & v));
            break;
        case GPUVM_SIM_COMPARE:
            if (old == static_cast<T>(expected)) *q = v;
            break;
        default:
            *q = v;
    }
    return old;
}

// Byte by byte, so that the compiler makes no call to the functions below of it.
void move_plainly(unsigned char* to, const unsigned char* from, unsigned long bytes) {
    for (unsigned long n = 0; n < bytes; ++n) {
        to[n] = from[n];
        asm volatile("" ::: "memory");
    }
}

constexpr unsigned long kPiece = 256;

// Through a buffer of the lane's own, announced piece by piece; from the end where the ranges overlap so.
void move(void* to, const void* from, unsigned long bytes, const void* site) {
    unsigned char buffer[kPiece];
    unsigned char* target = static_cast<unsigned char*>(to);
    const unsigned char* source = static_cast<const unsigned char*>(from);
    bool backwards = target > source && target < source + bytes;
    for (unsigned long done = 0; done < bytes;) {
        unsigned long piece = bytes - done < kPiece ? bytes - done : kPiece;
        unsigned long at = backwards ? bytes - done - piece : done;
        plain(GPUVM_SIM_READ, source + at, piece, site);
        move_plainly(buffer, source + at, piece);
        plain(GPUVM_SIM_WRITE, target + at, piece, site);
        move_plainly(target + at, buffer, piece);
        done += piece;
    }
}

void fill(void* to, int value, unsigned long bytes, const void* site) {
    unsigned char* target = static_cast<unsigned char*>(to);
    plain(GPUVM_SIM_WRITE, to, bytes, site);
    for (unsigned long n = 0; n < bytes; ++n) {
        target[n] = static_cast<unsigned char>(value);
        asm volatile("" ::: "memory");
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("hidden"), used))
#define SITE __builtin_return_address(0)

EXPORT void __sanitizer_cov_trace_pc() {
    if (bound()) gpuvm_sim_bound->step(gpuvm_sim::lane(), BLOCK);
}

EXPORT unsigned long long gpuvm_sim_access(unsigned what, void* address, unsigned long long value,
                                           unsigned long long expected) {
    return gpuvm_sim_bound->access(gpuvm_sim::lane(), what, address, value, expected);
}
EXPORT void gpuvm_sim_fence(unsigned order, unsigned scope) { gpuvm_sim_bound->fence(gpuvm_sim::lane(), order, scope); }
EXPORT void gpuvm_sim_move(void* to, const void* from, unsigned long bytes) { move(to, from, bytes, SITE); }

EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
EXPORT void __tsan_vptr_read(void**) {}
EXPORT void __tsan_vptr_update(void**, void*) {}
EXPORT void __tsan_read_range(void* p, unsigned long bytes) { plain(GPUVM_SIM_READ, p, bytes, SITE); }
EXPORT void __tsan_write_range(void* p, unsigned long bytes) { plain(GPUVM_SIM_WRITE, p, bytes, SITE); }
EXPORT void __tsan_atomic_thread_fence(int order) {
    if (bound() && order != __ATOMIC_RELAXED) gpuvm_sim_fence(order_of(order), GPUVM_SIM_SYS);
}
EXPORT void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define ANNOUNCE(name, size, kind) \
    EXPORT void __tsan_##name##size(void* p) { plain(kind, p, size, SITE); }
#define ACCESS(size)                                                             \
    ANNOUNCE(read, size, GPUVM_SIM_READ)                                         \
    ANNOUNCE(write, size, GPUVM_SIM_WRITE)                                       \
    ANNOUNCE(read_write, size, GPUVM_SIM_READ | GPUVM_SIM_WRITE)                 \
    ANNOUNCE(unaligned_read, size, GPUVM_SIM_READ)                               \
    ANNOUNCE(unaligned_write, size, GPUVM_SIM_WRITE)                             \
    ANNOUNCE(unaligned_read_write, size, GPUVM_SIM_READ | GPUVM_SIM_WRITE)       \
    ANNOUNCE(volatile_read, size, GPUVM_SIM_READ | GPUVM_SIM_VOLATILE)           \
    ANNOUNCE(volatile_write, size, GPUVM_SIM_WRITE | GPUVM_SIM_VOLATILE)         \
    ANNOUNCE(unaligned_volatile_read, size, GPUVM_SIM_READ | GPUVM_SIM_VOLATILE) \
    ANNOUNCE(unaligned_volatile_write, size, GPUVM_SIM_WRITE | GPUVM_SIM_VOLATILE)
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define FETCH(bits, T, name, operation) \
    EXPORT T __tsan_atomic##bits##_##name(volatile T* p, T v, int order) { return atomic<T>(operation, p, order, v); }
#define ATOMICS(bits, T)                                                                                             \
    EXPORT T __tsan_atomic##bits##_load(const volatile T* p, int order) {                                            \
        return atomic<T>(GPUVM_SIM_LOAD, const_cast<volatile T*>(p), order);                                         \
    }                                                                                                                \
    EXPORT void __tsan_atomic##bits##_store(volatile T* p, T v, int order) {                                         \
        atomic<T>(GPUVM_SIM_STORE, p, order, v);                                                                     \
    }                                                                                                                \
    FETCH(bits, T, exchange, GPUVM_SIM_EXCHANGE)                                                                     \
    FETCH(bits, T, fetch_add, GPUVM_SIM_ADD)                                                                         \
    FETCH(bits, T, fetch_sub, GPUVM_SIM_SUB)                                                                         \
    FETCH(bits, T, fetch_and, GPUVM_SIM_AND)                                                                         \
    FETCH(bits, T, fetch_or, GPUVM_SIM_OR)                                                                           \
    FETCH(bits, T, fetch_xor, GPUVM_SIM_XOR)                                                                         \
    FETCH(bits, T, fetch_nand, GPUVM_SIM_NAND)                                                                       \
    EXPORT T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T v, int order, int) {            \
        return atomic<T>(GPUVM_SIM_COMPARE, p, order, v, expected);                                                  \
    }                                                                                                                \
    EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T v, int order, int) {      \
        T wanted = *expected, old = atomic<T>(GPUVM_SIM_COMPARE, p, order, v, wanted);                               \
        *expected = old;                                                                                             \
        return old == wanted;                                                                                        \
    }                                                                                                                \
    EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T v, int order, int failed) { \
        return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, order, failed);                         \
    }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long long)

// The C library's functions that kernels call reach memory of the device: the module's own, found before the library's.
// Clang calls the first three instead.
EXPORT void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    move(to, from, bytes, SITE);
    return to;
}
EXPORT void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    move(to, from, bytes, SITE);
    return to;
}
EXPORT void* __tsan_memset(void* to, int value, unsigned long bytes) {
    fill(to, value, bytes, SITE);
    return to;
}
EXPORT void* memcpy(void* to, const void* from, unsigned long bytes) {
    move(to, from, bytes, SITE);
    return to;
}
EXPORT void* memmove(void* to, const void* from, unsigned long bytes) {
    move(to, from, bytes, SITE);
    return to;
}
EXPORT void* memset(void* to, int value, unsigned long bytes) {
    fill(to, value, bytes, SITE);
    return to;
}
