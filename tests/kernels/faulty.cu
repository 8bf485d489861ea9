// Kernels that do what a kernel must not.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__global__ void wild_store(unsigned* p, u64 offset) { *(p + offset) = 1; }
__global__ void null_load(unsigned* out) {
    volatile unsigned* nothing = reinterpret_cast<volatile unsigned*>(16);
    *out = *nothing;
}
__global__ void divide(unsigned* out, unsigned by) { *out = 7 / by; }
__global__ void asserts(gpuvm::array<unsigned> a) {
    u64 i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i] = 5;
    assert(i != 33);
}
__global__ void traps(gpuvm::array<unsigned> a) {
    a[threadIdx.x] = 6;
    if (threadIdx.x == 2) __trap();
}
__global__ void read_at(gpuvm::array<const unsigned> a, u64 i, unsigned* out) { *out = a[i] + 1; }
__global__ void write_at(gpuvm::array<unsigned> a, u64 i, unsigned way) {
    if (way == 0) a[i] = 9;
    if (way == 1) a[i] += 9;
    if (way == 2) a.atomic_add(i, 9);
    if (way == 3) {
        auto held = a.pin(i);
        if (held) held[0] = 9;
    }
    if (way == 4) a.prefetch(0, i);
    if (way == 5) {
        auto near = a.reader();
        if (near[i] != 0) a[0] = 9;
    }
    if (way == 6) a[i]++;
}
// The index that a mistake with signs makes.
__global__ void read_negative(gpuvm::array<const unsigned> a, int i, unsigned* out) { *out = a[i] + 1; }
__global__ void numbers(int a, unsigned b, float c, double d, long long e, unsigned char f, u64* out) {
    *out = static_cast<u64>(a + b + c + d + e + f);
}
__global__ void takes_arrays(gpuvm::array<const float> a, gpuvm::array<unsigned> b) {
    if (threadIdx.x == 0) b[0] = static_cast<unsigned>(a[0]);
}
struct pair32 {
    unsigned a, b;
};
__global__ void takes_struct(pair32 p, gpuvm::array<pair32> a) {
    if (threadIdx.x == 0) a[0] = p;
}
__global__ void nothing() {}
__global__ void count_blocks(unsigned* out) {
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) atomicAdd(out, 1u);
}
