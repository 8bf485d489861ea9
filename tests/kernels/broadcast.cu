// What kernels do with arrays of which each GPU holds a copy.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 lane() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return gridDim.x * static_cast<u64>(blockDim.x); }

// to[i] = from[i] + by, for i in [first, end).
__global__ void add(gpuvm::broadcast<const unsigned> from, gpuvm::broadcast<unsigned> to, u64 first, u64 end,
                    unsigned by) {
    for (u64 i = first + lane(); i < end; i += lanes()) to[i] = from[i] + by;
}

// x[i] += by, for i in [first, end).
__global__ void increment(gpuvm::broadcast<unsigned> x, u64 first, u64 end, unsigned by) {
    for (u64 i = first + lane(); i < end; i += lanes()) x[i] += by;
}

// The same by `data()`, and each lane's elements lie side by side: merged in shared memory.
__global__ void increment_merged(gpuvm::broadcast<unsigned> x, u64 first, u64 end, unsigned by) {
    __shared__ gpuvm::merge_queue<128> queue;
    auto out = x.merge_in(queue);
    u64 each = (end - first + lanes() - 1) / lanes();
    for (u64 n = 0; n < each; ++n) {
        u64 i = first + lane() * each + n;
        if (i < end) out.store(i, x.data()[i] + by);
    }
    out.flush();
}

// Long after it began, one lane stores an element.
__global__ void store_late(gpuvm::broadcast<unsigned> x, u64 i, unsigned value, unsigned rests) {
    if (lane() != 0) return;
    while (rests--) __nanosleep(1000000);
    x[i] = value;
}

// What this GPU's lanes read of elements [first, end).
__global__ void copy_out(gpuvm::broadcast<const unsigned> x, u64 first, u64 end, unsigned* out) {
    for (u64 i = first + lane(); i < end; i += lanes()) out[i - first] = x[i];
}

// Every lane adds to elements all over the array; then it reads one as the owner has it.
__global__ void add_anywhere(gpuvm::broadcast<unsigned> x, u64 times, u64 seed, unsigned* wrong) {
    for (u64 n = lane(); n < times; n += lanes()) {
        u64 i = (n * 0x9e3779b97f4a7c15ull + seed) % x.size();
        unsigned before = x.atomic_add(i, 1u);
        if (x.load_system(i) < before + 1) atomicAdd(wrong, 1u);
    }
}

// The other operations at the owner, on elements of their own.
__global__ void at_owner(gpuvm::broadcast<unsigned> x, unsigned place) {
    if (lane() != 0) return;
    x.atomic_min(0, 19 - place);
    x.atomic_max(1, 10 + place);
    x.atomic_or(2, 1u << place);
    if (x.atomic_cas(3, 0, 7) == 7) x.store_system(4, 9);
    if (x.atomic_exch(5, 100 + place) >= 100) x.atomic_add(6, 1);
}

// Bytes a second of plain loads, against a pointer's.
__global__ void sum(gpuvm::broadcast<const unsigned> x, u64* out) {
    u64 own = 0;
    for (u64 i = lane(); i < x.size(); i += lanes()) own += x[i];
    atomicAdd(out, own);
}

// One thing with element i, by `way`; what it returns goes into the element, too.
__device__ inline void do_with(const gpuvm::broadcast<unsigned>& x, u64 i, unsigned way, unsigned by) {
    unsigned n = by + static_cast<unsigned>(i);
    if (way == 0) x[i] = n;
    if (way == 1) x[i] = (x[i] += n) ^ 1u;
    if (way == 2) x[i] = (x[i] -= n) ^ 2u;
    if (way == 3) x[i] = (x[i] *= n) ^ 3u;
    if (way == 4) x.atomic_add(i, n);
    if (way == 5) x.store_system(i, x.load_system(i) * n);
    if (way == 6) x.atomic_exch(i, x.atomic_max(i, n) ^ 4u);
    if (way == 7) x.atomic_cas(i, x.atomic_min(i, n), ~n);
    if (way != 8) return;
    x[i] = x[i];
    x.atomic_or(i, n);
}
__global__ void operate(gpuvm::broadcast<unsigned> x, u64 first, u64 end, unsigned way, unsigned by) {
    for (u64 i = first + lane(); i < end; i += lanes()) do_with(x, i, way, by);
}

// The same with 100 elements, each in a line of its own, until the first lane ends the launch where the others stand.
__global__ void operate_until(gpuvm::broadcast<unsigned> x, unsigned way, unsigned by, unsigned steps) {
    for (u64 n = lane(); n < 100 && lane(); n += lanes() - 1) do_with(x, n * 37, way, by);
    for (unsigned n = 0; n < steps; ++n) x.load_system(0);
    if (!lane()) *reinterpret_cast<volatile unsigned*>(8) = 1;
}
