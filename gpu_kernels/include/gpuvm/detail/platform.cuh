// The few operations that differ between machines: loads, stores, atomics and fences with their order
// and scope in the name, warp groups, time. One function an instruction; everything above is one source.
#pragma once

#include "../layouts.h"

namespace gpuvm {
namespace detail {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
// Two words that travel in one 16-byte access.
struct alignas(16) pair64 {
    u64 lo;
    u64 hi;
};
}  // namespace detail
}  // namespace gpuvm

#if defined(GPUVM_SIM)
#include "platform_sim.cuh"
#else
#include "platform_cuda.cuh"
#endif
