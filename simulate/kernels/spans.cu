// Warps and lanes that hold pages while they touch others, or until they come to the next one.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

// Each warp holds the page of its row, changes its lanes' words there through the span, and meanwhile reads elsewhere.
__global__ void warp_spans(gpuvm::array<u64> a, const u64* where, unsigned steps, u64* sums) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, sum = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 first = where[(lane / 32 * steps + step) * 2], other = where[(lane / 32 * steps + step) * 2 + 1];
        {
            auto held = a.pin(first);
            if (!held) break;
            held[lane % 32] = held[lane % 32] * 5 + step + 1;
            sum += a[other + lane % 32];
        }
        // A warp's lanes hold one page: none goes on to the next while another is here still.
        __syncwarp();
    }
    sums[lane] = sum;
}

// The warps of every `apart`-th block read `lines` lines of the pages that they hold, through spans alone: by weak
// loads, which nothing orders but the pin. The others leave at once.
__global__ void read_spans(gpuvm::array<const u64> a, const u64* where, unsigned steps, unsigned apart, unsigned lines,
                           u64* sums) {
    u64 sum = 0;
    for (unsigned step = 0; step < steps && blockIdx.x % apart == 0 && !a.failed(); ++step) {
        {
            auto held = a.pin(where[blockIdx.x * steps + step]);
            if (!held) break;
            for (unsigned line = 0; line < lines; ++line) sum = sum * 3 + held[line * 16 + threadIdx.x];
        }
        __syncwarp();
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Every lane holds a page of its own for a moment.
__global__ void thread_spans(gpuvm::array<u64> a, const u64* where, unsigned steps) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        auto held = a.pin(where[lane * steps + step]);
        if (!held) break;
        held[0] = held[0] * 7 + lane + 1;
    }
}

// Every lane walks stretches of `length` neighbours by a cursor.
__global__ void read_cursors(gpuvm::array<const u64> a, const u64* where, unsigned steps, unsigned length, u64* sums) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, sum = 0;
    auto walk = a.cursor();
    for (unsigned step = 0; step < steps && !a.failed(); ++step)
        for (unsigned k = 0; k < length; ++k) sum = sum * 3 + walk[where[lane * steps + step] + k];
    sums[lane] = sum;
}

// The same for words `apart` from each other, which the lane alone changes.
__global__ void write_cursors(gpuvm::array<u64> a, const u64* where, unsigned steps, unsigned length, u64 apart) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    auto walk = a.cursor();
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        for (unsigned k = 0; k < length; ++k) {
            u64 i = where[lane * steps + step] + k * apart;
            walk.write(i, walk[i] * 5 + lane + 1);
        }
    }
}

// Each warp writes a stretch of words: pages that the stretch covers come to frames that hold anything.
__global__ void overwrite_stretches(gpuvm::array<u64> a, const u64* stretches, u64 factor) {
    u64 warp = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x) / 32;
    for (u64 at = stretches[2 * warp], end = stretches[2 * warp + 1]; at < end;) {
        auto held = a.overwrite(at, end - at);
        if (!held) return;
        u64 count = held.size() < end - at ? held.size() : end - at;
        for (u64 k = threadIdx.x % 32; k < count; k += 32) held[k] = (at + k) * factor;
        at += count;
    }
}
