// Kernels that hold pages, wait for each other, and prefetch.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }

// A span that its lane never gives back.
template <class T>
union kept {
    gpuvm::span<T> held;
    __device__ kept(gpuvm::array<T>& a, u64 i) : held(a.pin(i)) {}
    __device__ ~kept() {}
};

template <class Array>
__device__ void wait_for(const Array& a, volatile unsigned* flag, unsigned value) {
    while (*flag < value && !a.failed()) __nanosleep(200);
}

// As `sum` of basic.cu.
__global__ void sum(gpuvm::array<const unsigned> a, u64* out) {
    u64 total = 0;
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) total += a[i];
    atomicAdd(out, total);
}

// Block 0 holds page 0 dirty by a span; block 1 reads that page. Neither may wait for the other's hold.
__global__ void read_while_dirty(gpuvm::array<unsigned> a, volatile unsigned* flags, unsigned* out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        auto held = a.pin(0);
        if (held) held[5] = 4711;
        __threadfence();
        flags[0] = 1;
        wait_for(a, flags + 1, 1);
    } else {
        wait_for(a, flags, 1);
        *out = a[5];
        flags[1] = 1;
    }
}

// Block 0 holds page 0 clean, as a reader; block 1 writes into it meanwhile.
__global__ void write_while_clean(gpuvm::array<const unsigned> reading, gpuvm::array<unsigned> a,
                                  volatile unsigned* flags, unsigned* out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        auto held = reading.pin(0);
        flags[0] = 1;
        wait_for(a, flags + 1, 1);
        *out = held ? *const_cast<const volatile unsigned*>(held.data() + 7) : 0;
    } else {
        wait_for(a, flags, 1);
        a[7] = 815;
        a[8] += 1;
        a.atomic_add(9, 3);
        __threadfence();
        flags[1] = 1;
    }
}

// Block 0 holds page 0 until block 1 has read all the others.
__global__ void walk_beside_a_pin(gpuvm::array<const unsigned> a, u64 page_words, volatile unsigned* flags, u64* out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x) return;
        auto held = a.pin(0);
        flags[0] = 1;
        wait_for(a, flags + 1, 1);
        out[1] = held ? held[3] : 0;
    } else {
        wait_for(a, flags, 1);
        u64 total = 0;
        for (u64 i = page_words + threadIdx.x; i < a.size() && !a.failed(); i += blockDim.x) total += a[i];
        atomicAdd(out, total);
        __syncthreads();
        if (threadIdx.x == 0) flags[1] = 1;
    }
}

// Warp 0 reads page 0, warp 1 all the others; each says when it was done.
__global__ void walk_beside_a_fetch(gpuvm::array<const unsigned> a, u64 page_words, u64* done_at) {
    u64 total = 0;
    if (threadIdx.x < 32) {
        total = a[threadIdx.x];
    } else {
        for (u64 i = page_words + threadIdx.x - 32; i < a.size() && !a.failed(); i += 32) total += a[i];
    }
    if (threadIdx.x % 32 == 0 && total != ~0ull) done_at[threadIdx.x / 32] = gpuvm::detail::time_ns();
}

// Every lane holds `each` spans of page 0 at once, until all lanes do. peak: spans at that time.
template <unsigned Each>
struct holders {
    __device__ static void hold(gpuvm::array<unsigned>& a, u64 i, unsigned* count, volatile unsigned* arrived,
                                unsigned* bad) {
        auto held = a.pin(i % a.size());
        if (!held) atomicAdd(bad, 1u);
        atomicAdd(count, 1u);
        holders<Each - 1>::hold(a, i + 1, count, arrived, bad);
    }
};
template <>
struct holders<0> {
    __device__ static void hold(gpuvm::array<unsigned>& a, u64, unsigned* count, volatile unsigned* arrived,
                                unsigned*) {
        atomicAdd(const_cast<unsigned*>(arrived), 1u);
        wait_for(a, arrived, static_cast<unsigned>(lanes()));
        (void)count;
    }
};
__global__ void hold_many(gpuvm::array<unsigned> a, unsigned* counts) {
    holders<32>::hold(a, first_index(), counts, counts + 1, counts + 2);
}

// Takes `each` spans of page 0 a lane and gives none of them back.
__global__ void leak_pins(gpuvm::array<unsigned> a, unsigned each) {
    for (unsigned n = 0; n < each && !a.failed(); ++n) kept<unsigned> held(a, 0);
}

// Each lane holds one page of its own, then touches one more.
__global__ void pin_and_touch(gpuvm::array<unsigned> a, u64 page_words, volatile unsigned* arrived, u64* out) {
    u64 page = first_index() % (a.size() / page_words);
    auto held = a.pin(page * page_words);
    atomicAdd(const_cast<unsigned*>(arrived), 1u);
    wait_for(a, arrived, static_cast<unsigned>(lanes()));
    u64 total = held ? held[1] : 0;
    for (u64 i = 0; i < a.size() && !a.failed(); i += page_words) total += a[i + 1];
    atomicAdd(out, total);
}

// Each lane touches two pages at a time: a[i] + a[j] with i and j in different pages.
__global__ void two_pages(gpuvm::array<const unsigned> a, u64 page_words, unsigned rounds, u64* out) {
    u64 pages = a.size() / page_words, total = 0;
    for (unsigned n = 0; n < rounds && !a.failed(); ++n) {
        u64 p = (first_index() / 32 * 7 + n * 3) % pages;
        u64 mine = threadIdx.x % 2 ? p : (p + 1) % pages;
        total += a[mine * page_words + threadIdx.x % page_words];
    }
    atomicAdd(out, total);
}

// Pins of two arrays at once, one of each, as a kernel over edges does.
__global__ void two_spans(gpuvm::array<const unsigned> a, gpuvm::array<unsigned> b, u64 page_words) {
    u64 pages = a.size() / page_words;
    for (u64 p = first_index() / 32; p < pages; p += lanes() / 32) {
        auto from = a.pin(p * page_words);
        auto to = b.pin(p * page_words);
        if (!from || !to) return;
        for (u64 k = threadIdx.x % 32; k < to.size(); k += 32) to[k] = from[k] + 1;
    }
}

// Prefetches and leaves.
__global__ void prefetch_only(gpuvm::array<const unsigned> a, u64 first, u64 count) {
    if (first_index() == 0) a.prefetch(first, count);
}
// Every warp asks for pages of its own and leaves.
__global__ void prefetch_each(gpuvm::array<const unsigned> a, u64 page_words) {
    if (threadIdx.x % 32 == 0) {
        u64 p = first_index() / 32 * 4 * page_words;
        if (p + 4 * page_words <= a.size()) a.prefetch(p, 4 * page_words);
    }
}

// Lane 0 waits for a flag in the array that a lane of another block sets late.
__global__ void spin_on_element(gpuvm::array<unsigned> a, unsigned* out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        while (a[3] == 0) {
            if (a.failed()) return;
        }
        *out = a[4];
    } else {
        for (int n = 0; n < 100; ++n) __nanosleep(1000);
        a[4] = 99;
        __threadfence();
        a[3] = 1;
    }
}

// Waits for a word of plain memory, in an empty loop. All threads of one block of one warp.
__global__ void spin_on_word(volatile unsigned* flag, gpuvm::array<const unsigned> a, unsigned* out) {
    if (threadIdx.x == 0) {
        while (*flag == 0) {
        }
        *out = a[4];
    } else if (threadIdx.x == 31) {
        unsigned value = a[a.size() - 1];
        *flag = value ? 1 : 2;
    }
}

// Adds 1 to each element, round after round, until it is told to stop: all elements have been added to as often.
// `words`: whether to stop, whether it has begun, and rounds of block 0. Blocks have elements of their own.
__global__ void churn(gpuvm::array<unsigned> a, volatile unsigned* words) {
    __shared__ unsigned stop;
    if (first_index() == 0) words[1] = 1;
    unsigned rounds = 0;
    do {
        for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) a[i] += 1;
        ++rounds;
        __nanosleep(1000);
        __syncthreads();
        if (threadIdx.x == 0) stop = words[0] || a.failed();
        __syncthreads();
    } while (!stop);
    if (threadIdx.x == 0) words[2 + blockIdx.x] = rounds;
}

// Counts elements up until it is told to stop, without a pause: where all its blocks are, others have no place.
// `words`: whether to stop, whether it has begun, and how often it counted.
__global__ void churn_on(gpuvm::array<unsigned> a, volatile unsigned* words) {
    if (first_index() == 0) words[1] = 1;
    unsigned counted = 0;
    for (u64 i = first_index(); !words[0] && !a.failed(); i = i + lanes() < a.size() ? i + lanes() : first_index())
        if (i < a.size()) {
            a[i] += 1;
            ++counted;
        }
    atomicAdd(const_cast<unsigned*>(words) + 2, counted);
}

// Each block holds a page until it is told to stop. `words`: whether to stop, and the blocks that hold theirs.
__global__ void hold_pages(gpuvm::array<unsigned> a, u64 page_words, volatile unsigned* words) {
    if (threadIdx.x) return;
    auto held = a.pin(blockIdx.x * page_words);
    if (held) held[1] += 1;
    atomicAdd(const_cast<unsigned*>(words) + 1, 1u);
    wait_for(a, words, 1);
}

// Waits for a flag that nothing sets.
__global__ void wait_for_ever(volatile unsigned* flag) {
    while (!*flag) __nanosleep(1000);
}
// A barrier that half of the block never reaches.
__global__ void half_a_barrier(unsigned* out) {
    if (threadIdx.x < 32) {
        while (true) {
            __syncwarp();
            __nanosleep(1000);
            if (*reinterpret_cast<volatile unsigned*>(out) == 77) break;
        }
    }
    __syncthreads();
}
// Says that it is there and waits for the other.
__global__ void meet(volatile unsigned* flags, unsigned me) {
    if (threadIdx.x) return;
    flags[me] = 1;
    while (!flags[1 - me]) __nanosleep(200);
}
