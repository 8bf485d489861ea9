// Loops as people write them: plain `a[i]`, from one text for paged arrays and, with NATURAL_PLAIN, for pointers.
// natural.rs says which, and compares.
#include "bench/common.cuh"

using namespace bench;

#if NATURAL_PLAIN
template <class T>
struct in {
    const T* first;
    __device__ __forceinline__ const T& operator[](u64 i) const { return first[i]; }
};
template <class T>
struct inout {
    T* first;
    __device__ __forceinline__ T& operator[](u64 i) const { return first[i]; }
};
#else
template <class T>
using in = gpuvm::array<const T>;
template <class T>
using inout = gpuvm::array<T>;
#endif

__global__ void sum(in<float> x, u64 n, double* out) {
    double s = 0;
    for (u64 i = thread_id(); i < n; i += thread_count()) s += x[i];
    atomicAdd(out, s);
}

__global__ void saxpy(in<float> x, inout<float> y, float a, u64 n) {
    for (u64 i = thread_id(); i < n; i += thread_count()) y[i] += a * x[i];
}

// Five points of a grid that is `w` wide.
__global__ void stencil(in<float> x, inout<float> y, float c, u64 w, u64 n) {
    for (u64 i = thread_id() + w; i < n - w; i += thread_count())
        y[i] = c * (x[i] + x[i - 1] + x[i + 1] + x[i - w] + x[i + w]);
}

// A warp a row.
__global__ void row_sums(in<float> x, u64 w, u64 rows, float* out) {
    for (u64 r = warp_id(); r < rows; r += warp_count()) {
        float s = 0;
        for (u64 c = lane_id(); c < w; c += 32) s += x[r * w + c];
        for (u32 apart = 16; apart; apart /= 2) s += __shfl_xor_sync(~0u, s, apart);
        if (lane_id() == 0) out[r] = s;
    }
}

// 32 neighbouring words a thread.
__global__ void neighbours(in<float> x, u64 n, double* out) {
    double s = 0;
    for (u64 i = thread_id(); i < n / 32; i += thread_count())
        for (u32 k = 0; k < 32; ++k) s += x[i * 32 + k];
    atomicAdd(out, s);
}

__global__ void gather(in<float> x, const long long* idx, float* out, u64 n) {
    for (u64 i = thread_id(); i < n; i += thread_count()) out[i] = x[idx[i]];
}

// A warp a row of 512 bytes.
__global__ void gather_rows(in<float4> table, const long long* ids, float4* out, u64 rows) {
    for (u64 r = warp_id(); r < rows; r += warp_count()) out[r * 32 + lane_id()] = table[ids[r] * 32 + lane_id()];
}

// What word `i` holds; natural.rs has the same rule. Below 1024: the loops' sums have one result in any order.
static __device__ __forceinline__ float value_of(u64 i) {
    return static_cast<float>((i * 0x9e3779b97f4a7c15ull) >> 54);
}

__global__ void fill_values(inout<float> x, u64 n, u64* tally) {
    u64 done = 0;
    for (u64 i = thread_id(); i < n; i += thread_count(), ++done) x[i] = value_of(i);
    add_tally(tally, kDone, done);
}

// What y has become, whose words were those behind the n of x: of stencils the last one alone, c times the five points;
// with w = 0 of saxpy, whose factors together are c.
__global__ void check_y(in<float> y, float c, u64 w, u64 n, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 i = thread_id(); i < n; i += thread_count(), ++done) {
        float wanted = value_of(n + i);
        if (w == 0) wanted += c * value_of(i);
        if (w != 0 && i >= w && i < n - w)
            wanted = c * (value_of(i) + value_of(i - 1) + value_of(i + 1) + value_of(i - w) + value_of(i + w));
        wrong += y[i] != wanted;
    }
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// Both leave nothing that the next launch could pass off as its own.
__global__ void check_row_sums(float* sums, u64 w, u64 rows, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 r = thread_id(); r < rows; r += thread_count(), ++done) {
        float wanted = 0;
        for (u64 c = 0; c < w; ++c) wanted += value_of(r * w + c);
        wrong += sums[r] != wanted;
        sums[r] = -1;
    }
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
// Rows of `w` words by their numbers.
__global__ void check_gathered(void* out, const long long* ids, u64 w, u64 n, u64* tally) {
    u64 done = 0, wrong = 0;
    float* found = static_cast<float*>(out);
    for (u64 i = thread_id(); i < n; i += thread_count(), ++done) {
        wrong += found[i] != value_of(ids[i / w] * w + i % w);
        found[i] = -1;
    }
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
