// Grids that are cut along their slowest axis: Jacobi's method, diffusion in three dimensions, and an electromagnetic
// wave. A lane takes kDeep points, one behind the other along that axis, whose loads are all under way together; lanes
// beside each other take points beside each other. Points of the grid's border never change.
#include "shared.cuh"

constexpr u32 kDeep = 8;

// Where a lane's points are: the first one, of rows [row, end).
struct Place {
    u64 x, row, end;

    __device__ Place(u64 first, u64 end)
        : x(blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x),
          row(first + blockIdx.y * static_cast<u64>(kDeep)),
          end(end) {}
    __device__ u32 deep() const { return row >= end ? 0 : end - row < kDeep ? static_cast<u32>(end - row) : kDeep; }
};

// Each inner point of rows [first, end) becomes the mean of its four neighbours. Both arrays have the border.
template <class Way>
__global__ void __launch_bounds__(256) jacobi(in<Way, float> from, out<Way, float> to, unsigned long long width,
                                              unsigned long long first, unsigned long long end) {
    Place at(first, end);
    u32 deep = at.deep();
    if (!deep || at.x == 0 || at.x + 1 >= width) return;
    u64 begin = at.row * width + at.x;
    float column[kDeep + 2];
#pragma unroll
    for (u32 k = 0; k < kDeep + 2; ++k)
        if (k < deep + 2) column[k] = load(from, begin + k * width - width);
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        u64 i = begin + k * width;
        float beside = load(from, i - 1) + load(from, i + 1);
        store(to, i, 0.25f * (column[k] + column[k + 2] + beside));
    }
}

// Heat flows between each inner point of planes [first, end) and its six neighbours. Both arrays have the border.
template <class Way>
__global__ void __launch_bounds__(256)
    diffusion(in<Way, float> from, out<Way, float> to, unsigned long long width, unsigned long long height,
              unsigned long long first, unsigned long long end, float rate) {
    u64 x = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    u64 y = blockIdx.y * static_cast<u64>(blockDim.y) + threadIdx.y;
    u64 z = first + blockIdx.z * static_cast<u64>(kDeep);
    if (x == 0 || x + 1 >= width || y == 0 || y + 1 >= height || z >= end) return;
    u32 deep = end - z < kDeep ? static_cast<u32>(end - z) : kDeep;
    u64 plane = width * height, begin = z * plane + y * width + x;
    float column[kDeep + 2];
#pragma unroll
    for (u32 k = 0; k < kDeep + 2; ++k)
        if (k < deep + 2) column[k] = load(from, begin + k * plane - plane);
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        u64 i = begin + k * plane;
        float sum = load(from, i - 1) + load(from, i + 1) + (load(from, i - width) + load(from, i + width));
        sum += column[k] + column[k + 2];
        store(to, i, fmaf(rate, fmaf(-6.0f, column[k + 1], sum), column[k + 1]));
    }
}

// Half a step of the wave, rows [first, end): the electric field by what the magnetic one is around it. Rows begin
// at 1.
template <class Way>
__global__ void __launch_bounds__(256)
    wave_electric(in<Way, float> hz, out<Way, float> ex, out<Way, float> ey, unsigned long long width,
                  unsigned long long first, unsigned long long end, float courant) {
    Place at(first, end);
    u32 deep = at.deep();
    if (!deep || at.x == 0 || at.x >= width) return;
    u64 begin = at.row * width + at.x;
    float h[kDeep + 1], left[kDeep], x[kDeep], y[kDeep];
#pragma unroll
    for (u32 k = 0; k < kDeep + 1; ++k)
        if (k < deep + 1) h[k] = load(hz, begin + k * width - width);
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        u64 i = begin + k * width;
        left[k] = load(hz, i - 1), x[k] = load(ex, i), y[k] = load(ey, i);
    }
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        u64 i = begin + k * width;
        store(ex, i, fmaf(courant, h[k + 1] - h[k], x[k]));
        store(ey, i, fmaf(-courant, h[k + 1] - left[k], y[k]));
    }
}

// The other half: the magnetic field by the electric one. Rows end before the last one.
template <class Way>
__global__ void __launch_bounds__(256)
    wave_magnetic(out<Way, float> hz, in<Way, float> ex, in<Way, float> ey, unsigned long long width,
                  unsigned long long first, unsigned long long end, float courant) {
    Place at(first, end);
    u32 deep = at.deep();
    if (!deep || at.x + 1 >= width) return;
    u64 begin = at.row * width + at.x;
    float x[kDeep + 1], y[kDeep], right[kDeep], h[kDeep];
#pragma unroll
    for (u32 k = 0; k < kDeep + 1; ++k)
        if (k < deep + 1) x[k] = load(ex, begin + k * width);
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        u64 i = begin + k * width;
        y[k] = load(ey, i), right[k] = load(ey, i + 1), h[k] = load(hz, i);
    }
#pragma unroll
    for (u32 k = 0; k < kDeep; ++k) {
        if (k >= deep) break;
        float curl = (right[k] - y[k]) - (x[k + 1] - x[k]);
        store(hz, begin + k * width, fmaf(-courant, curl, h[k]));
    }
}
