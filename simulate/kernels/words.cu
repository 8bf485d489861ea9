// Single words that many lanes change: what each operation returned, and when it was made.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 lane_number() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }

// An operation is kind << 56 | value << 24 | index; of each the log gets begin, end and what it returned. A value that
// is stored stands in both halves of its word, so that halves of two stores make none.
__global__ void linear(gpuvm::array<u64> a, const u64* ops, unsigned steps, u64* log) {
    u64 lane = lane_number(), seen = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 at = lane * steps + step, op = ops[at], value = op >> 24 & 0xffffffff, i = op & 0xffffff;
        if (op >> 56 != 3) value |= value << 32;
        log[at * 4] = gpuvm::detail::time_ns();
        u64 expected = seen, found = 0;
        switch (op >> 56) {
            case 0:
                found = a[i];
                break;
            case 1:
                a[i] = value;
                break;
            case 2:
                found = a.atomic_exch(i, value);
                break;
            case 3:
                found = a.atomic_add(i, value);
                break;
            case 4:
                found = a.atomic_cas(i, expected, value);
                break;
        }
        if (op >> 56 != 1) seen = found;
        log[at * 4 + 1] = gpuvm::detail::time_ns();
        log[at * 4 + 2] = found;
        log[at * 4 + 3] = expected;
    }
}

// All lanes count on a few words, and keep what each addition returned.
__global__ void counters(gpuvm::array<u64> a, const u64* where, unsigned steps, u64* found) {
    u64 lane = lane_number();
    for (unsigned step = 0; step < steps && !a.failed(); ++step)
        found[lane * steps + step] = a.atomic_add(where[lane * steps + step], 1);
}

// As `counters`, but words with the highest bit set are read.
__global__ void count_and_read(gpuvm::array<u64> a, const u64* where, unsigned steps, u64* found) {
    u64 lane = lane_number();
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 at = lane * steps + step, i = where[at] & ~0ull >> 1;
        found[at] = where[at] >> 63 ? a[i] : a.atomic_add(i, 1);
    }
}

// Each lane stores rising numbers into a word of its own, and says afterwards how far it is.
__global__ void writers(gpuvm::array<u64> a, u64 apart, unsigned turns, u64* progress) {
    u64 lane = lane_number();
    for (unsigned turn = 1; turn <= turns && !a.failed(); ++turn) {
        a[lane * apart] = turn;
        __threadfence_system();
        // A store that missed while its launch failed did not take place.
        if (!a.failed()) atomicExch(progress + lane, static_cast<u64>(turn));
    }
}

// The first lanes store rising numbers, in both halves of words of their own, in turns on two pages. The others read
// these words all the while. Who reads what nothing stored, or what is older than before, says which word, what it read
// and what before.
constexpr unsigned RISING = 3;
__global__ void rising(gpuvm::array<u64> a, gpuvm::array<u64> b, unsigned turns, u64* wrong) {
    u64 lane = lane_number();
    if (lane < RISING) {
        for (u64 turn = 1; turn <= turns && !a.failed(); ++turn) {
            a[lane] = turn | turn << 32;
            b[lane] = turn | turn << 32;
        }
        return;
    }
    u64 last[2 * RISING] = {};
    for (u64 turn = lane; turn < lane + 4 * turns && !a.failed(); ++turn) {
        unsigned at = turn % (2 * RISING);
        u64 found = at < RISING ? a[at] : b[at - RISING];
        if (found >> 32 != (found & 0xffffffff) || found < last[at]) {
            wrong[0] = at + 1;
            wrong[1] = found;
            wrong[2] = last[at];
        }
        last[at] = found;
    }
}

// Lets time go by.
__global__ void delay(unsigned ns) {
    u64 end = gpuvm::detail::time_ns() + ns;
    while (gpuvm::detail::time_ns() < end) __nanosleep(ns < 1000 ? ns : 1000);
}
