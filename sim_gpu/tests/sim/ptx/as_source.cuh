// What ptx/tests/inputs/lanes.cu calls and the simulated GPU's C++ has not.
#include <math.h>
static bool __isShared(const void* p) {
    auto at = (unsigned long long)p, first = (unsigned long long)gpuvm_sim::dynamic_shared();
    return at - first < gpuvm_sim::lane()->block->dynamic_bytes;
}
static bool __isLocal(const void* p) {
    return (unsigned long long)p / GPUVM_SIM_STACK_BYTES ==
           (unsigned long long)gpuvm_sim::lane() / GPUVM_SIM_STACK_BYTES;
}
static bool __isGlobal(const void* p) { return !__isShared(p) && !__isLocal(p); }
static unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by < 32 ? by : 32));
}
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fsqrt_rn(float a) { return sqrtf(a); }
static unsigned __float2uint_rz(float a) { return a < 0 ? 0u : a >= 4294967296.f ? ~0u : (unsigned)a; }
static long long __double2ll_rz(double a) { return (long long)a; }
static long long __double2ll_rn(double a) { return (long long)rint(a); }
