// CUDA C++ as the host's C++ compiler understands it: included before every kernel source of the simulated GPU.
#pragma once

#define GPUVM_SIM 1

// Standard headers first: some use names that are CUDA's qualifiers.
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpuvm_sim/types.h"

#include "gpuvm_sim/memory.h"

#include "gpuvm_sim/atomics.h"
#include "gpuvm_sim/math.h"
#include "gpuvm_sim/runtime.h"
#include "gpuvm_sim/warp.h"

#include "gpuvm/kernel_param.cuh"

namespace gpuvm_sim {

// One line, one write: lines of different threads never mix.
__attribute__((format(printf, 1, 2), noinline)) static int device_printf(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (wanted < 0) return -1;
    unsigned long bytes =
        static_cast<unsigned>(wanted) < sizeof(text) ? static_cast<unsigned>(wanted) : sizeof(text) - 1;
    gpuvm_sim_bound->print(lane(), text, bytes);
    return wanted;
}

__attribute__((noinline, cold)) static void assert_failed(const char* expression, const char* file, unsigned line) {
    gpuvm_sim_bound->fail(lane(), GPUVM_SIM_ASSERT, expression, file, line);
}

}  // namespace gpuvm_sim

#define printf(...) gpuvm_sim::device_printf(__VA_ARGS__)

#undef assert
#ifdef NDEBUG
#define assert(expression) static_cast<void>(0)
#else
#define assert(expression) \
    (static_cast<bool>(expression) ? static_cast<void>(0) : gpuvm_sim::assert_failed(#expression, __FILE__, __LINE__))
#endif
// <assert.h> included once more by the user brings the C library's macro back; this is what it calls.
#ifdef __GLIBC__
extern "C" __attribute__((visibility("hidden"), used, noreturn)) inline void __assert_fail(const char* expression,
                                                                                           const char* file,
                                                                                           unsigned line,
                                                                                           const char*) noexcept {
    gpuvm_sim::assert_failed(expression, file, line);
    __builtin_unreachable();
}
#endif

__attribute__((cold)) static inline void __trap() {
    gpuvm_sim_bound->fail(gpuvm_sim::lane(), GPUVM_SIM_TRAP, "", "", 0);
}

static inline long long clock64() {
#if defined(__x86_64__)
    if (!gpuvm_sim::seeded()) return static_cast<long long>(__builtin_ia32_rdtsc());
#endif
    return static_cast<long long>(gpuvm_sim::globaltimer());
}
static inline int clock() { return static_cast<int>(clock64()); }

// What is not instrumented: what the loader calls outside lanes, and what is no access of the kernel's.
#if defined(__clang__)
#define GPUVM_SIM_PLAIN __attribute__((no_sanitize("coverage", "thread")))
#else
#define GPUVM_SIM_PLAIN __attribute__((no_sanitize_coverage, no_sanitize_thread))
#endif

namespace gpuvm_sim {
// Which variant of its code a source runs that holds several: `SimOptions::variant`. A call that is not instrumented,
// so that no lane is switched and no access is seen here.
GPUVM_SIM_PLAIN __attribute__((const, noinline)) static unsigned variant() { return lane()->block->variant; }
}  // namespace gpuvm_sim

// What the loader looks for: who to call, and the thread-local image by its first variable.
extern "C" {
__attribute__((visibility("hidden"))) const gpuvm_sim_hooks* gpuvm_sim_bound;
__attribute__((visibility("default"), used)) thread_local unsigned char gpuvm_sim_tls_mark;
__attribute__((visibility("default"), used)) GPUVM_SIM_PLAIN inline void gpuvm_sim_bind(const gpuvm_sim_hooks* hooks) {
    gpuvm_sim_bound = hooks;
}
__attribute__((visibility("default"), used, noinline)) GPUVM_SIM_PLAIN inline void* gpuvm_sim_tls() {
    return &gpuvm_sim_tls_mark;
}
}

namespace gpuvm_sim {
// Calls a kernel with arguments that lie at the given addresses.
template <class F, F Kernel>
struct invoker;
template <class... A, void (*Kernel)(A...)>
struct invoker<void (*)(A...), Kernel> {
    template <unsigned... I>
    struct numbers {};
    template <unsigned N, unsigned... I>
    struct count_up : count_up<N - 1, N - 1, I...> {};
    template <unsigned... I>
    struct count_up<0, I...> {
        static void call(void* const* arguments) {
            (void)arguments;
            Kernel(*static_cast<typename gpuvm_detail::plain<A>::type*>(arguments[I])...);
        }
    };
    static void run(void* const* arguments) { count_up<sizeof...(A)>::call(arguments); }
};
}  // namespace gpuvm_sim

// GPUVM_SIM_KERNEL(n, kernel): the n-th kernel's table and entry.
#define GPUVM_SIM_KERNEL(n, ...)                                                                                  \
    GPUVM_KERNEL_TABLE(n, __VA_ARGS__)                                                                            \
    extern "C" __attribute__((visibility("default"), used)) void gpuvm_kernel_entry_##n(void* const* arguments) { \
        gpuvm_sim::invoker<decltype(&__VA_ARGS__), &__VA_ARGS__>::run(arguments);                                 \
    }
