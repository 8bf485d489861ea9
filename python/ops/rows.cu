// Rows of a table by their numbers, in the GPU's memory: copied, added to, and summed by bags. A row is the work of a
// few neighbouring lanes, 1 << shift of them; of a whole warp where pages are faults. Numbers are int or long long
// (`wide`). One that is out of range is told in bad[0], in memory of the host, and its row counts as zeros; so is in
// bad[1] where a bag begins. In lists (`wide` is kList) kNone names no row and is no error: they have it behind their
// last.
#include "access.cuh"

#if defined(GPUVM_LOOKS_UP)
constexpr bool kFaults = false;
#else
constexpr bool kFaults = true;
#endif

constexpr u64 kList = 2;
constexpr i64 kNone = -0x7fffffffffffffffll - 1;

// This many bytes of a row, whatever they are.
template <unsigned Bytes>
struct alignas(Bytes) word {
    unsigned char bytes[Bytes];
};
template <>
struct alignas(16) word<16> {
    u32 parts[4];
};
template <>
struct alignas(8) word<8> {
    u32 parts[2];
};
template <>
struct alignas(4) word<4> {
    u32 parts[1];
};
template <>
struct alignas(2) word<2> {
    unsigned short parts[1];
};

__device__ inline i64 number(const void* ids, u64 wide, u64 at) {
    return wide ? static_cast<const i64*>(ids)[at] : static_cast<const i32*>(ids)[at];
}

// Tells of a number that no row has.
__device__ inline void tell(unsigned long long* bad, u64 wide, i64 id) {
    if (wide != kList || id != kNone) bad[0] = static_cast<u64>(id);
}

// Whether the warp is to leave: a fault has met the launch.
template <class A>
__device__ bool over(const A& table) {
    if constexpr (kFaults)
        return __any_sync(kWholeWarp, stopped(table));
    else
        return false;
}

// What of an array's page is there from an element on.
template <class T>
__device__ auto pinned(const gpuvm::array<const T>& a, u64 i, u64 most) {
    return a.pin(i, most);
}
template <class T>
__device__ auto pinned(const gpuvm::array<T>& a, u64 i, u64) {
    return a.pin(i);
}

// Elements [first, first + count) by `lanes` lanes, of which this is one: use(k, element) of the k-th.
template <class A, class Use>
__device__ void part_of(const A& table, u64 first, u64 count, u32 own, u32 lanes, Use use) {
    for (u64 done = 0; done < count;) {
        auto part = pinned(table, first + done, count - done);
        if (!part) return;
        u64 here = least(part.size(), count - done);
#pragma unroll 4
        for (u64 k = own; k < here; k += lanes) use(done + k, part[k]);
        done += here;
    }
}

// out[k] = table[ids[k]], rows of `width` words, from word `first` of the array on.
template <class W>
__global__ void __launch_bounds__(256)
    take(in<W> table, unsigned long long* bad, const void* ids, void* out, unsigned long long wide,
         unsigned long long count, unsigned long long width, unsigned long long rows, unsigned long long first,
         unsigned long long shift) {
    u32 lanes = 1u << shift, own = static_cast<u32>(thread()) & (lanes - 1);
    for (u64 at = thread() >> shift; at < count && !over(table); at += threads() >> shift) {
        i64 id = number(ids, wide, at);
        W* to = static_cast<W*>(out) + at * width;
        if (static_cast<u64>(id) >= rows) {
            if (own == 0) tell(bad, wide, id);
            for (u64 k = own; k < width; k += lanes) to[k] = W{};
            continue;
        }
        part_of(table, first + static_cast<u64>(id) * width, width, own, lanes,
                [&](u64 k, const W& value) { to[k] = value; });
    }
}

// store(table[ids[k]], values[k]) for all elements of rows of `width`, from word `first` of the array on.
template <class W, class Store>
__device__ void each_row(inout<W>& table, unsigned long long* bad, const void* ids, const void* values,
                         unsigned long long wide, unsigned long long count, unsigned long long width,
                         unsigned long long rows, unsigned long long first, unsigned long long shift, Store store) {
    u32 lanes = 1u << shift, own = static_cast<u32>(thread()) & (lanes - 1);
    for (u64 at = thread() >> shift; at < count && !over(table); at += threads() >> shift) {
        i64 id = number(ids, wide, at);
        if (static_cast<u64>(id) >= rows) {
            if (own == 0) tell(bad, wide, id);
            continue;
        }
        const W* from = static_cast<const W*>(values) + at * width;
        part_of(table, first + static_cast<u64>(id) * width, width, own, lanes,
                [&](u64 k, W& to) { store(to, from[k]); });
    }
}

// The reverse of `take`: table[ids[k]] = values[k]. No two ids are the same.
template <class W>
__global__ void __launch_bounds__(256)
    put(inout<W> table, unsigned long long* bad, const void* ids, const void* values, unsigned long long wide,
        unsigned long long count, unsigned long long width, unsigned long long rows, unsigned long long first,
        unsigned long long shift) {
    each_row(table, bad, ids, values, wide, count, width, rows, first, shift,
             [](W& to, const W& value) { to = value; });
}

// IEEE's half precision and bfloat16, which no compiler for the simulated GPU knows.
struct half_t {
    unsigned short bits;
};
struct bfloat16_t {
    unsigned short bits;
};

__device__ inline float real(float value) { return value; }
__device__ inline double real(double value) { return value; }
__device__ inline float real(bfloat16_t value) { return __uint_as_float(static_cast<u32>(value.bits) << 16); }
__device__ inline float real(half_t value) {
    u32 sign = (value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 31, mantissa = value.bits & 0x3ffu;
    // Below 2^-14: multiples of 2^-24.
    float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    if (exponent == 31) magnitude = __uint_as_float(0x7f800000u | mantissa << 13);
    if (exponent != 0 && exponent != 31) magnitude = __uint_as_float((exponent + 112) << 23 | mantissa << 13);
    return __uint_as_float(__float_as_uint(magnitude) | sign);
}

// The nearest, of two that are as near the even one.
template <class T>
__device__ T nearest_of(double value) {
    return static_cast<T>(value);
}
template <class T>
__device__ T nearest_of(float value) {
    return static_cast<T>(value);
}
template <>
__device__ inline bfloat16_t nearest_of<bfloat16_t>(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bfloat16_t{static_cast<unsigned short>(bits >> 16 | 0x40u)};
    return bfloat16_t{static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
template <>
__device__ inline half_t nearest_of<half_t>(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    u32 found;
    if (bits >= 0x7f800000u)
        found = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (bits < 0x38800000u)
        // An addition rounds it to multiples of 2^-24.
        found = __float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000u;
    else {
        found = (bits + 0xfffu + (bits >> 13 & 1) - 0x38000000u) >> 13;
        if (found > 0x7c00u) found = 0x7c00u;
    }
    return half_t{static_cast<unsigned short>(sign | found)};
}

__device__ inline void add(float* to, float value) { atomicAdd(to, value); }
__device__ inline void add(double* to, double value) { atomicAdd(to, value); }
__device__ inline void add(int* to, int value) { atomicAdd(to, value); }
// Two's complement: the sum is the same.
__device__ inline void add(long long* to, long long value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// table[ids[k]] += values[k], rows of `width` elements; ids may occur several times.
template <class T>
__global__ void __launch_bounds__(256)
    index_add(inout<T> table, unsigned long long* bad, const void* ids, const void* values, unsigned long long wide,
              unsigned long long count, unsigned long long width, unsigned long long rows, unsigned long long first,
              unsigned long long shift) {
    each_row(table, bad, ids, values, wide, count, width, rows, first, shift,
             [](T& to, const T& value) { add(&to, value); });
}

// The same for elements of two bytes, two of which are a word of the array. `width` and `first` count elements.
template <class T>
__global__ void __launch_bounds__(256)
    index_add_short(inout<u32> table, unsigned long long* bad, const void* ids, const void* values,
                    unsigned long long wide, unsigned long long count, unsigned long long width,
                    unsigned long long rows, unsigned long long first, unsigned long long shift) {
    u32 lanes = 1u << shift, own = static_cast<u32>(thread()) & (lanes - 1);
    for (u64 at = thread() >> shift; at < count && !over(table); at += threads() >> shift) {
        i64 id = number(ids, wide, at);
        if (static_cast<u64>(id) >= rows) {
            if (own == 0) bad[0] = static_cast<u64>(id);
            continue;
        }
        const T* from = static_cast<const T*>(values) + at * width;
        u64 begin = first + static_cast<u64>(id) * width;
        for (u64 k = own; k < width; k += lanes) {
            u64 word = (begin + k) / 2;
            u32 apart = (begin + k) % 2 * 16;
            float value = real(from[k]);
            for (u32 seen = static_cast<const inout<u32>&>(table)[word];;) {
                float sum = real(T{static_cast<unsigned short>(seen >> apart)}) + value;
                u32 next = (seen & ~(0xffffu << apart)) | static_cast<u32>(nearest_of<T>(sum).bits) << apart;
                u32 found = table.atomic_cas(word, seen, next);
                if (found == seen || (kFaults && table.failed())) break;
                seen = found;
            }
        }
    }
}

// Sums, or means, of rows: those of bag b are ids[offsets[b]] to ids[offsets[b + 1] - 1], of the last one the rest,
// each times its weight if there are weights.
template <class T>
__global__ void __launch_bounds__(256)
    embedding_bag(in<T> table, unsigned long long* bad, const void* ids, const void* offsets, const void* weights,
                  void* out, unsigned long long wide, unsigned long long wide_offsets, unsigned long long count,
                  unsigned long long bags, unsigned long long width, unsigned long long rows, unsigned long long first,
                  unsigned long long mean, unsigned long long shift) {
    using R = decltype(real(T{}));
    u32 lanes = 1u << shift, own = static_cast<u32>(thread()) & (lanes - 1);
    const T* weight = static_cast<const T*>(weights);
    for (u64 bag = thread() >> shift; bag < bags && !over(table); bag += threads() >> shift) {
        i64 begin = number(offsets, wide_offsets, bag), last = static_cast<i64>(count);
        i64 end = bag + 1 < bags ? number(offsets, wide_offsets, bag + 1) : last;
        if (begin < 0 || begin > end || end > last || (bag == 0 && begin != 0)) {
            if (own == 0) bad[1] = static_cast<u64>(bag == 0 && begin == 0 ? end : begin) | 1ull << 63;
            begin = end = 0;
        }
        R scale = mean && end > begin ? static_cast<R>(end - begin) : R(1);
        for (u64 column = own; column < width; column += lanes) {
            R sum = 0;
#pragma unroll 4
            for (i64 k = begin; k < end; ++k) {
                i64 id = number(ids, wide, static_cast<u64>(k));
                bool inside = static_cast<u64>(id) < rows;
                if (!inside) bad[0] = static_cast<u64>(id);
                R value = real(static_cast<T>(table[first + (inside ? static_cast<u64>(id) : 0) * width + column]));
                if (weight) value *= real(weight[k]);
                if (inside) sum += value;
            }
            static_cast<T*>(out)[bag * width + column] = nearest_of<T>(sum / scale);
        }
    }
}
