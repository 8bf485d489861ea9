// Grids that are cut along their slowest axis: Jacobi's method, diffusion in three dimensions, and an electromagnetic
// wave. A lane takes kDeep points, one behind the other along that axis, and loads all that it needs before it stores;
// lanes beside each other take points beside each other. Points of the grid's border never change.
#include "shared.cuh"

constexpr u32 kDeep = 8;

// As many of a lane's kDeep points as there are of `left`.
__device__ inline u32 depth(u64 left) { return left < kDeep ? static_cast<u32>(left) : kDeep; }

// Whether a lane has all of its points: the compiler need not ask for each.
template <bool Whole>
struct Points {
    u32 deep;
    __device__ bool have(u32 k) const { return Whole || k < deep; }
};

// Runs `use` for a lane's points over what it reads.
template <class Use, class... Arrays>
__device__ void over_points(u32 deep, Use use, const Arrays&... arrays) {
    reading(
        [&](const auto&... arrays) {
            if (deep == kDeep)
                use(Points<true>{deep}, arrays...);
            else
                use(Points<false>{deep}, arrays...);
        },
        arrays...);
}

// Each inner point of rows [first, end) becomes the mean of its four neighbours. Both arrays have the border.
template <class Way>
__global__ void __launch_bounds__(256) jacobi(in<Way, float> from, out<Way, float> to, unsigned long long width,
                                              unsigned long long first, unsigned long long end) {
    u64 x = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    u64 row = first + blockIdx.y * static_cast<u64>(kDeep), begin = row * width + x;
    if (row >= end || x == 0 || x + 1 >= width) return;
    auto points = [&](auto point, const auto& from) {
        float column[kDeep + 2], left[kDeep], right[kDeep];
        column[0] = load(from, begin - width);
        column[1] = load(from, begin);
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            u64 i = begin + k * width;
            column[k + 2] = load(from, i + width), left[k] = load(from, i - 1), right[k] = load(from, i + 1);
        }
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            store(to, begin + k * width, 0.25f * (column[k] + column[k + 2] + (left[k] + right[k])));
        }
    };
    over_points(depth(end - row), points, from);
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
    u64 plane = width * height, begin = z * plane + y * width + x;
    auto points = [&](auto point, const auto& from) {
        float column[kDeep + 2], across[kDeep], down[kDeep];
        column[0] = load(from, begin - plane);
        column[1] = load(from, begin);
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            u64 i = begin + k * plane;
            column[k + 2] = load(from, i + plane);
            across[k] = load(from, i - 1) + load(from, i + 1);
            down[k] = load(from, i - width) + load(from, i + width);
        }
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            float sum = across[k] + down[k] + (column[k] + column[k + 2]);
            store(to, begin + k * plane, fmaf(rate, fmaf(-6.0f, column[k + 1], sum), column[k + 1]));
        }
    };
    over_points(depth(end - z), points, from);
}

// Half a step of the wave, rows [first, end): the electric field by what the magnetic one is around it. Rows begin
// at 1.
template <class Way>
__global__ void __launch_bounds__(256)
    wave_electric(in<Way, float> hz, out<Way, float> ex, out<Way, float> ey, unsigned long long width,
                  unsigned long long first, unsigned long long end, float courant) {
    u64 x = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    u64 row = first + blockIdx.y * static_cast<u64>(kDeep), begin = row * width + x;
    if (row >= end || x == 0 || x >= width) return;
    auto points = [&](auto point, const auto& hz, const auto& old_x, const auto& old_y) {
        float h[kDeep + 1], left[kDeep], now_x[kDeep], now_y[kDeep];
        h[0] = load(hz, begin - width);
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            u64 i = begin + k * width;
            h[k + 1] = load(hz, i), left[k] = load(hz, i - 1);
            now_x[k] = load(old_x, i), now_y[k] = load(old_y, i);
        }
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            u64 i = begin + k * width;
            store(ex, i, fmaf(courant, h[k + 1] - h[k], now_x[k]));
            store(ey, i, fmaf(-courant, h[k + 1] - left[k], now_y[k]));
        }
    };
    over_points(depth(end - row), points, hz, ex, ey);
}

// The other half: the magnetic field by the electric one. Rows end before the last one.
template <class Way>
__global__ void __launch_bounds__(256)
    wave_magnetic(out<Way, float> hz, in<Way, float> ex, in<Way, float> ey, unsigned long long width,
                  unsigned long long first, unsigned long long end, float courant) {
    u64 x = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    u64 row = first + blockIdx.y * static_cast<u64>(kDeep), begin = row * width + x;
    if (row >= end || x + 1 >= width) return;
    auto points = [&](auto point, const auto& old_z, const auto& ex, const auto& ey) {
        float h[kDeep], up[kDeep + 1], left[kDeep], right[kDeep];
        up[0] = load(ex, begin);
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            u64 i = begin + k * width;
            up[k + 1] = load(ex, i + width), h[k] = load(old_z, i);
            left[k] = load(ey, i), right[k] = load(ey, i + 1);
        }
#pragma unroll
        for (u32 k = 0; k < kDeep; ++k) {
            if (!point.have(k)) break;
            float curl = (right[k] - left[k]) - (up[k + 1] - up[k]);
            store(hz, begin + k * width, fmaf(-courant, curl, h[k]));
        }
    };
    over_points(depth(end - row), points, hz, ex, ey);
}
