// Loads and stores of broadcast arrays, and the same by bare pointers to the same memory.
#include <gpuvm/gpuvm.cuh>

typedef unsigned u32;
typedef unsigned long long u64;

struct alignas(16) quad {
    u32 word[4];
};

__device__ inline u64 lane() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return gridDim.x * static_cast<u64>(blockDim.x); }

__device__ inline quad value_at(u64 i, u32 round) {
    u32 low = static_cast<u32>(i) * 4 + round;
    return quad{{low, low + 1, low + 2, low + 3}};
}
__device__ inline u64 sum_of(const quad& q) { return static_cast<u64>(q.word[0]) + q.word[1] + q.word[2] + q.word[3]; }

// Four loads of a lane are under way together.
template <class Load>
__device__ u64 sum_all(Load load, u64 n) {
    u64 sum = 0, i = lane(), step = lanes();
    for (; i + 3 * step < n; i += 4 * step) {
        quad a = load(i), b = load(i + step), c = load(i + 2 * step), d = load(i + 3 * step);
        sum += sum_of(a) + sum_of(b) + sum_of(c) + sum_of(d);
    }
    for (; i < n; i += step) sum += sum_of(load(i));
    return sum;
}

__global__ void __launch_bounds__(256) load_bare(const quad* x, u64 n, u64* out) {
    atomicAdd(out, sum_all([x](u64 i) { return x[i]; }, n));
}
__global__ void __launch_bounds__(256) load_broadcast(gpuvm::broadcast<const quad> x, u64* out) {
    atomicAdd(out, sum_all([&x](u64 i) { return x.load(i); }, x.size()));
}

// To a neighbour's memory alone: what the link carries.
__global__ void __launch_bounds__(256) store_bare(quad* peer, u64 n, u32 round) {
    for (u64 i = lane(); i < n; i += lanes()) peer[i] = value_at(i, round);
}
__global__ void __launch_bounds__(256) store_broadcast(gpuvm::broadcast<quad> x, u32 round) {
    for (u64 i = lane(); i < x.size(); i += lanes()) x.store(i, value_at(i, round));
}

// A lane stores a whole line, 32 words one after the other: lanes that are beside each other are 128 bytes apart.
constexpr u32 kLines = 256;
__global__ void __launch_bounds__(kLines) near_plain(gpuvm::broadcast<u32> x, u32 round) {
    for (u64 line = lane(); line < x.size() / 32; line += lanes())
        for (u32 k = 0; k < 32; ++k) x.store(line * 32 + k, static_cast<u32>(line) * 32 + k + round);
}
__global__ void __launch_bounds__(kLines) near_merged(gpuvm::broadcast<u32> x, u32 round) {
    __shared__ gpuvm::merge_queue<kLines> queue;
    auto out = x.merge_in(queue);
    u64 all = x.size() / 32;
    for (u64 first = blockIdx.x * static_cast<u64>(blockDim.x); first < all; first += lanes()) {
        u64 line = first + threadIdx.x;
        for (u32 k = 0; k < 32 && line < all; ++k) out.store(line * 32 + k, static_cast<u32>(line) * 32 + k + round);
        out.flush();
    }
}
