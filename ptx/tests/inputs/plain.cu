// Loops as users write them, over plain pointers.
using u64 = unsigned long long;

static __device__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }

static __device__ u64 threads() { return gridDim.x * (u64)blockDim.x; }

extern "C" __global__ void total(const float* x, u64 n, double* out) {
    double sum = 0;
    for (u64 i = first(); i < n; i += threads()) sum += x[i];
    atomicAdd(out, sum);
}

extern "C" __global__ void axpy(const float* x, float* y, float a, u64 n) {
    for (u64 i = first(); i < n; i += threads()) y[i] += a * x[i];
}

extern "C" __global__ void five_points(const float* x, float* y, u64 w, u64 n) {
    for (u64 i = first() + w; i < n - w; i += threads())
        y[i] = .2f * (x[i] + x[i - 1] + x[i + 1] + x[i - w] + x[i + w]);
}

extern "C" __global__ void row_sums(const float* x, u64 w, u64 rows, float* out) {
    for (u64 r = first() / 32; r < rows; r += threads() / 32) {
        float sum = 0;
        for (u64 c = threadIdx.x % 32; c < w; c += 32) sum += x[r * w + c];
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (threadIdx.x % 32 == 0) out[r] = sum;
    }
}

extern "C" __global__ void gathered(const float* x, const unsigned* at, float* out, u64 n) {
    for (u64 i = first(); i < n; i += threads()) out[i] = x[at[i]];
}

extern "C" __global__ void pieces(const float* x, u64 n, double* out) {
    double sum = 0;
    for (u64 i = first(); i < n / 32; i += threads())
        for (int k = 0; k < 32; ++k) sum += x[i * 32 + k];
    atomicAdd(out, sum);
}

extern "C" __global__ void rows_of_vectors(const float4* t, const unsigned* ids, float4* out, u64 rows) {
    for (u64 r = first() / 32; r < rows; r += threads() / 32) {
        u64 lane = threadIdx.x % 32;
        out[r * 32 + lane] = t[(u64)ids[r] * 32 + lane];
    }
}
