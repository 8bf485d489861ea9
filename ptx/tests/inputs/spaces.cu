// Addresses of all spaces, through generic pointers, calls, blocks and inline instructions.
#include <cstdio>
using u64 = unsigned long long;

__device__ int counter;
__constant__ int table[16];
__device__ int* held;

// Not inlined: where the pointer comes from is not known in it.
__device__ __noinline__ void put(int* where, int value) { *where = value; }

__device__ __noinline__ int get(const volatile int* where) { return *where; }

extern "C" __global__ void spaces(int* data, int n) {
    __shared__ int block[128];
    int mine[32];
    for (int i = 0; i < 32; ++i) mine[i] = n * i;
    int* any = n > 3 ? block + threadIdx.x : data + threadIdx.x;
    put(any, 1);
    put(mine + n % 32, 2);
    put(block + threadIdx.x, 3);
    put(data + 2, 4);
    __syncthreads();
    counter = table[n % 16] + get(mine) + get(block + n) + get(data + n);
    held = data;
    data[threadIdx.x] += mine[(n + 1) % 32];
}

extern "C" __global__ void atomics(unsigned* a, u64* b, float* f, double* d) {
    atomicCAS(b + threadIdx.x, 1ull, 2ull);
    atomicExch(a, 3u);
    atomicMax(a + 1, 3u);
    atomicAdd_block(a + 2, 1u);
    atomicAdd_system(a + 3, 1u);
    atomicAdd(f, 1.f);
    atomicAdd(d, 1.0);
    a[9] = atomicInc(a + 5, 7u);
    if (a[8]) atomicOr(a + 4, 1u);
}

extern "C" __global__ void orders(int* a, u64* b, float4* v) {
    int r;
    float4 w;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(r) : "l"(a) : "memory");
    asm volatile("st.release.sys.global.s32 [%0+4], %1;" ::"l"(a), "r"(r) : "memory");
    asm volatile("ld.relaxed.gpu.s32 %0, [%1+8];" : "=r"(r) : "l"(a) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u32 [%0+12], %1;" ::"l"(a), "r"(r) : "memory");
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(w.x), "=f"(w.y), "=f"(w.z), "=f"(w.w)
                 : "l"(v));
    asm volatile(
        "{ .reg .pred p; setp.gt.s32 p, %1, 3;\n\t@p ld.global.cs.u64 %0, [%2+-8];\n\t@!p st.global.wt.u64 [%2], %0; }"
        : "+l"(*b)
        : "r"(r), "l"(b + 4));
    asm volatile(
        "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n\t"
        "ld.global.L2::cache_hint.s32 %0, [%1], policy; }"
        : "=r"(r)
        : "l"(a + 5));
    asm volatile("prefetch.global.L2 [%0];\n\tprefetchu.L1 [%0+64];" ::"l"(a));
    *(volatile int*)(a + 6) = r;
    __stcs(a + 7, __ldcg(a + 8) + __ldg(a + 9));
    v[1] = w;
    printf("%d\n", r);
}

extern "C" __global__ void copies(const float4* from, float* out) {
    __shared__ float4 block[64];
    unsigned to = (unsigned)__cvta_generic_to_shared(block + threadIdx.x);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from + threadIdx.x) : "memory");
    asm volatile(
        "{ .reg .pred q; setp.lt.u32 q, %2, 8;\n\t@q cp.async.ca.shared.global [%0+16], [%1+32], 8, %2; }" ::"r"(to),
        "l"(from), "r"(threadIdx.x)
        : "memory");
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[threadIdx.x] = block[63 - threadIdx.x].x;
}
