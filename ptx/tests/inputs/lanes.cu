// What lanes do together, and with memory of all kinds. It is compiled as PTX and as C++ for the simulated GPU, which
// have to agree.
using u64 = unsigned long long;

__device__ unsigned counters[8] = {0, 1, 0xffffffffu, 3};
__device__ u64 wide_counter = 5;
__constant__ int factors[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

struct two {
    int a;
    u64 b;
};

static __device__ __noinline__ two changed(two it, int by, const int* from) {
    return {it.a * by + *from, it.b ^ (u64)by};
}

static __device__ __noinline__ int choose(int which, int x) {
    switch (which) {
        case 0:
            return x + 1;
        case 1:
            return x * 3;
        case 2:
            return x - 7;
        case 3:
            return x ^ 0x55;
        case 4:
            return x << 2;
        case 5:
            return ~x;
        case 6:
            return x / 3;
        case 7:
            return x % 5;
        default:
            return -1;
    }
}

extern "C" __global__ void together(unsigned* out, unsigned seed) {
    unsigned lane = threadIdx.x % 32, x = (seed + threadIdx.x) * 2654435761u;
    unsigned* mine = out + (blockIdx.x * blockDim.x + threadIdx.x) * 32;
    mine[0] = __shfl_sync(~0u, x, seed % 40);
    mine[1] = __shfl_up_sync(~0u, x, 3, 16);
    mine[2] = __shfl_down_sync(~0u, x, 5);
    mine[3] = __shfl_xor_sync(~0u, x, 9, 8);
    mine[4] = __ballot_sync(~0u, x & 4);
    mine[5] = __any_sync(~0u, lane == seed % 64);
    mine[6] = __all_sync(~0u, lane < 32);
    mine[7] = __match_any_sync(~0u, x >> 29);
    int same;
    mine[8] = __match_all_sync(~0u, seed, &same) + same;
    mine[9] = __reduce_add_sync(~0u, x);
    mine[10] = __reduce_max_sync(~0u, (int)x);
    mine[11] = __reduce_xor_sync(~0u, x);
    mine[12] = __syncthreads_count(x & 1);
    mine[13] = __syncthreads_and(threadIdx.x < 1000);
    mine[14] = __syncthreads_or(threadIdx.x == 1000);
    mine[15] = (unsigned)(u64)__double_as_longlong(__shfl_xor_sync(~0u, (double)x, 1));
    if (lane < 16) {
        mine[16] = __shfl_sync(0xffffu, x, 15 - lane);
        __syncwarp(0xffffu);
    }
    mine[17] = blockIdx.y + gridDim.x * 10 + blockDim.x * 100;
}

extern "C" __global__ void spaces_of_memory(unsigned* out, int n) {
    extern __shared__ unsigned row[];
    __shared__ u64 tile[64];
    int held[24];
    for (int i = 0; i < 24; ++i) held[i] = n * i + factors[i % 16];
    row[threadIdx.x] = threadIdx.x * n;
    tile[threadIdx.x % 64] = threadIdx.x % 64 * 7ull;
    __syncthreads();
    unsigned* mine = out + threadIdx.x * 8;
    mine[0] = row[blockDim.x - 1 - threadIdx.x];
    mine[1] = (unsigned)tile[63 - threadIdx.x % 64];
    mine[2] = held[(threadIdx.x + n) % 24];
    two it = changed({n, 1ull << 40}, (int)threadIdx.x, held + threadIdx.x % 24);
    mine[3] = it.a + (unsigned)(it.b >> 20);
    int sum = 0;
    for (int i = 0; i < 9; ++i) sum = choose((i + threadIdx.x) % 9, sum + n);
    mine[4] = sum;
    const unsigned* any = threadIdx.x % 2 ? row : counters;
    mine[5] = any[3];
    mine[6] = __isShared(any) + 2 * __isGlobal(any) + 4 * __isLocal(held);
    atomicAdd(row + threadIdx.x % 3, 1u);
    atomicMax(tile + 5, (u64)threadIdx.x);
    __syncthreads();
    mine[7] = row[threadIdx.x % 3] + (unsigned)tile[5];
}

extern "C" __global__ void atomics_of_all_kinds(int* s, unsigned* u, u64* l, float* f, double* d, unsigned short* h) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(s, (int)i - 50);
    atomicSub(s + 1, (int)i);
    atomicMin(s + 2, 20 - (int)i);
    atomicMax(s + 3, (int)i - 20);
    atomicAdd(u, i);
    atomicAnd(u + 1, ~(1u << i % 32));
    atomicOr(u + 2, 1u << i % 32);
    atomicXor(u + 3, 1u << i % 31);
    atomicMin(u + 4, 1000 - i);
    atomicMax(u + 5, i * 3);
    atomicInc(u + 6, 5);
    atomicDec(u + 7, 5);
    atomicExch(u + 8, 77u);
    atomicAdd(l, (u64)i << 32);
    atomicMin(l + 1, ~0ull - i);
    atomicMax(l + 2, (u64)i << 33);
    atomicOr(l + 3, 1ull << i % 64);
    atomicAdd(f, 1.5f);
    atomicAdd(d, .25);
    while (atomicCAS(u + 9, i, i + 1) != i) __nanosleep(20);
    while (atomicCAS(l + 4, (u64)i, i + 1ull) != i) __nanosleep(20);
    while (atomicCAS(h, (unsigned short)i, (unsigned short)(i + 1)) != i) __nanosleep(20);
    atomicAdd(counters + 1, 1u);
    atomicAdd(&wide_counter, 1ull);
    __threadfence();
    if (atomicAdd(u + 10, 1u) == gridDim.x * blockDim.x - 1) {
        u[11] = *(volatile unsigned*)(counters + 1);
        u[12] = (unsigned)*(volatile u64*)&wide_counter;
    }
}

extern "C" __global__ void numbers(u64* out, u64 seed) {
    u64 i = threadIdx.x, x = (seed + i) * 0x9e3779b97f4a7c15ull, y = x >> 7 | 1;
    u64* mine = out + i * 20;
    mine[0] = x / y;
    mine[1] = x % y;
    mine[2] = (u64)((long long)x / (long long)y);
    mine[3] = __umul64hi(x, y);
    mine[4] = __popcll(x) + __clzll(x >> i) * 100 + __ffsll(x << i) * 10000;
    mine[5] = __brevll(x);
    mine[6] = __byte_perm((unsigned)x, (unsigned)y, (unsigned)(x >> 40));
    mine[7] = __funnelshift_l((unsigned)x, (unsigned)y, (unsigned)i) +
              (u64)__funnelshift_rc((unsigned)x, (unsigned)y, (unsigned)i);
    double a = (double)(x >> 20), b = (double)(y >> 30) + .5;
    mine[8] = __double_as_longlong(a * b) ^ __double_as_longlong(a / b);
    mine[9] = __double_as_longlong(fma(a, b, -a));
    mine[10] = __double_as_longlong(sqrt(a));
    float c = (float)a, d = (float)b;
    mine[11] = __float_as_uint(__fadd_rn(c, d)) | (u64)__float_as_uint(__fmul_rn(c, d)) << 32;
    mine[12] = __float_as_uint(__fmaf_rn(c, d, -c)) | (u64)__float_as_uint(__fdiv_rn(c, d)) << 32;
    mine[13] = __float_as_uint(__fsqrt_rn(c)) | (u64)__float_as_uint(fminf(c, d)) << 32;
    mine[14] = (u64)(unsigned)__float2int_rn(d * 1e-3f) | (u64)__float2uint_rz(d * 1e-3f) << 32;
    mine[15] = __double2ll_rz(a) + __double2ll_rn(b);
    mine[16] = __float_as_uint((float)(long long)x) | (u64)__float_as_uint((float)(unsigned)x) << 32;
    mine[17] = __double_as_longlong(floor(b) + trunc(a) + rint(b) + ceil(a));
    mine[18] = (u64)((signed char)x * (short)(x >> 16)) + (u64)(unsigned char)(x >> 3);
    mine[19] = (u64)((unsigned __int128)x * y >> 50);
}
