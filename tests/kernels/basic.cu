// Element-wise kernels. Each takes any grid: lanes stride over the array.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }

// Sums what it reads, so that the reads are there.
__global__ void sum(gpuvm::array<const unsigned> a, u64* out) {
    u64 total = 0;
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) total += a[i];
    atomicAdd(out, total);
}

// Reads one element a page.
__global__ void touch(gpuvm::array<const unsigned> a, u64 page_words, u64* out) {
    u64 total = 0;
    for (u64 i = first_index() * page_words; i < a.size() && !a.failed(); i += lanes() * page_words) total += a[i];
    atomicAdd(out, total);
}

__global__ void fill(gpuvm::array<unsigned> a, unsigned base) {
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) a[i] = base + static_cast<unsigned>(i);
}

__global__ void copy(gpuvm::array<const unsigned> from, gpuvm::array<unsigned> to) {
    for (u64 i = first_index(); i < to.size() && !from.failed(); i += lanes()) to[i] = from[i];
}

// Five ways to write: assignment, update, two atomics, a span.
__global__ void write_by(gpuvm::array<unsigned> a, unsigned way, unsigned value) {
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) {
        if (way == 0) a[i] = value + static_cast<unsigned>(i);
        if (way == 1) a[i] += value;
        if (way == 2) a.atomic_add(i, value);
        if (way == 3) a.atomic_exch(i, value + static_cast<unsigned>(i));
        if (way == 4) {
            auto held = a.pin(i);
            if (held) held[0] = value + static_cast<unsigned>(i);
        }
    }
}

// Reads each element before it writes it, so that every write meets a clean resident page.
__global__ void read_then_write(gpuvm::array<unsigned> a, unsigned value) {
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) {
        unsigned before = a[i];
        a[i] = before + value;
    }
}

// Counts the elements that are not `base + index`, as each of the ways to read sees them.
__global__ void check(gpuvm::array<const unsigned> a, unsigned base, unsigned way, u64* wrong) {
    u64 bad = 0;
    auto near = a.reader();
    u64 run = way == 1 ? (a.size() + lanes() - 1) / lanes() : 1;
    for (u64 n = first_index(); n * run < a.size() && !a.failed(); n += lanes()) {
        for (u64 i = n * run; i < (n + 1) * run && i < a.size(); ++i) {
            unsigned found = 0;
            if (way == 0) found = a[i];
            if (way == 1) found = near[i];
            if (way == 2) {
                auto held = a.pin(i);
                if (held) found = held[0];
            }
            bad += found != base + static_cast<unsigned>(i);
        }
    }
    if (bad) atomicAdd(wrong, bad);
}

// One warp reads one element of each of 32 pages at once, a page a lane.
__global__ void gather(gpuvm::array<const unsigned> a, u64 page_words, unsigned* out) {
    u64 i = first_index() * page_words;
    if (i < a.size()) out[first_index()] = a[i];
}

// Elements of any place: out[n] = a[at[n]].
__global__ void fetch(gpuvm::array<const unsigned char> a, const u64* at, unsigned n, unsigned* out) {
    for (u64 i = first_index(); i < n; i += lanes()) out[i] = a[at[i]];
}
__global__ void store(gpuvm::array<unsigned char> a, const u64* at, unsigned n, unsigned char value) {
    for (u64 i = first_index(); i < n; i += lanes()) a[at[i]] = static_cast<unsigned char>(value + i);
}

// The arithmetic between pages and owners, for pages that 32 bits cannot count.
__global__ void owners(const u64* pages, unsigned n, unsigned region, u64* page_back, u64* bytes_at) {
    for (u64 i = first_index(); i < n; i += lanes()) {
        u64 owner = gpuvm::detail::page_id(region, pages[i]);
        page_back[i] = gpuvm::detail::page_of(owner);
        gpuvm::layout::ArrayDesc array{};
        array.page_shift = 12;
        bytes_at[i] = gpuvm::detail::place_of<unsigned char>(array, pages[i] << 12 | 77).page;
    }
}

// An unbounded loop that looks at the abort flag, and counts its turns.
__global__ void until_stopped(gpuvm::array<unsigned> a, unsigned* turns) {
    u64 i = first_index();
    while (!a.failed()) {
        if (i < a.size()) a[i] += 1;
        atomicAdd(turns, 1u);
    }
}

// Counts every odd element up until the launch is stopped.
__global__ void count_up(gpuvm::array<unsigned> a) {
    u64 first = 2 * first_index() + 1;
    for (unsigned round = 1; !a.failed(); ++round) {
        for (u64 i = first; i < a.size() && !a.failed(); i += 2 * lanes()) a[i] = round;
        __nanosleep(100);
    }
}

// Counts up under spans that are held almost all the time: pages that are never clean and unpinned.
__global__ void count_up_held(gpuvm::array<unsigned> a, u64 page_words) {
    u64 page = first_index() / 32 % ((a.size() + page_words - 1) / page_words);
    auto held = a.pin(page * page_words);
    if (!held) return;
    for (unsigned round = 1; !a.failed(); ++round) {
        for (u64 k = 2 * (threadIdx.x % 32) + 1; k < held.size(); k += 64) {
            reinterpret_cast<volatile unsigned*>(held.data())[k] = round;
        }
        __nanosleep(1000);
    }
}
