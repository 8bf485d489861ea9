// Runs a random program: every lane has a list of operations, made by the host, whose outcome does not depend on the
// order in which lanes run. A lane writes only elements of its own; what it reads of others is never written; what all
// of them write changes by operations that commute.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

struct alignas(16) wide16 {
    u64 a, b;
};
struct wide32 {
    u64 a, b, c, d;
};

#ifndef ELEMENT
#define ELEMENT unsigned
#endif

// An element that stands for a number, and the number of an element. Wide ones carry it several times, so that a
// mixture of two values shows.
template <class E>
struct codec {
    __device__ static E make(u64 x) { return static_cast<E>(x); }
    __device__ static u64 get(E e) { return static_cast<u64>(e); }
};
template <>
struct codec<float> {
    __device__ static float make(u64 x) { return static_cast<float>(x & 0xffff); }
    __device__ static u64 get(float e) { return static_cast<u64>(e); }
};
template <>
struct codec<double> {
    __device__ static double make(u64 x) { return static_cast<double>(x & 0xffffffff); }
    __device__ static u64 get(double e) { return static_cast<u64>(e); }
};
template <>
struct codec<wide16> {
    __device__ static wide16 make(u64 x) { return wide16{x, ~x}; }
    __device__ static u64 get(wide16 e) { return e.b == ~e.a ? e.a : 0xbad; }
};
template <>
struct codec<wide32> {
    __device__ static wide32 make(u64 x) { return wide32{x, ~x, x + 1, x * 3}; }
    __device__ static u64 get(wide32 e) { return e.b == ~e.a && e.c == e.a + 1 && e.d == e.a * 3 ? e.a : 0xbad; }
};

__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is kind << 56 | value << 40 | index.
template <class T>
__device__ void interpret(gpuvm::array<T>& a, const gpuvm::array<u64>& shared, const u64* ops, unsigned steps,
                          u64* hashes) {
    typedef codec<T> as;
    constexpr bool number = sizeof(T) <= 8;
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, hash = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 op = ops[lane * steps + step], value = op >> 40 & 0xffff, i = op & 0xffffffffffull;
        switch (op >> 56) {
            case 0:
                hash = fold(hash, as::get(a[i]));
                break;
            case 1:
                a[i] = as::make(value);
                break;
            case 2: {
                T before = a[i];
                a[i] = as::make(as::get(before) + value);
                break;
            }
            case 3:
                if constexpr (number) a[i] += static_cast<T>(value);
                break;
            case 4:
                if (i % 4 == 0) shared.atomic_add(i, value);
                if (i % 4 == 1) shared.atomic_max(i, value << 20);
                if (i % 4 == 2) shared.atomic_or(i, 1ull << value % 64);
                if (i % 4 == 3) shared.atomic_min(i, ~0ull - value);
                break;
            case 5:    // pages of the lane's own
            case 6: {  // a page of the whole warp's
                auto held = a.pin(i);
                if (!held) break;
                hash = fold(fold(hash, held.size()), as::get(held[0]));
                held[0] = as::make(value);
                break;
            }
            case 7: {
                auto near = a.reader();
                for (u64 k = i; k < i + value && k < a.size(); ++k) {
                    u64 found = as::get(near[k]);
                    if (k % 4 == 0) hash = fold(hash, found);
                }
                break;
            }
            case 8:
                a.prefetch(i, value < a.size() - i ? value : a.size() - i);
                break;
            case 9:
                if constexpr (sizeof(T) == 4 || sizeof(T) == 8)
                    hash = fold(hash, as::get(a.atomic_exch(i, as::make(value))));
                break;
            case 10:
                if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
                    T before = a[i];
                    hash = fold(hash, as::get(a.atomic_cas(i, before, as::make(value))));
                    hash = fold(hash, as::get(a[i]));
                }
                break;
        }
    }
    hashes[lane] = hash;
}

__global__ void program(gpuvm::array<ELEMENT> a, gpuvm::array<u64> shared, const u64* ops, unsigned steps,
                        u64* hashes) {
    interpret(a, shared, ops, steps, hashes);
}
