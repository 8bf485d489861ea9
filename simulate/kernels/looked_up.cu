// Lanes that use pages in either form: fetched on first use, or looked up where they are.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 lane_number() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is kind << 56 | value << 40 | array << 32 | index. Nothing but its lane uses a word that it writes, but
// for those that are added to.
__global__ void use_pages(gpuvm::array<u64> a, gpuvm::array<u64> b, gpuvm::array<const u64> c, const u64* ops,
                          unsigned steps, u64* hashes, u64* progress) {
    u64 lane = lane_number(), hash = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 op = ops[lane * steps + step], kind = op >> 56, value = op >> 40 & 0xffff, i = op & 0xffffffff;
        unsigned which = op >> 32 & 0xff;
        if (which == 2) {
            if (kind == 5)
                c.prefetch(i, value);
            else
                hash = fold(hash, c[i]);
            continue;
        }
        gpuvm::array<u64>& x = which == 0 ? a : b;
        const gpuvm::array<u64>& only_read = x;
        switch (kind) {
            case 0:
                hash = fold(hash, only_read[i]);
                break;
            case 1: {
                u64 seen = x[i];
                hash = fold(hash, seen);
                x[i] = seen * 5 + value;
                break;
            }
            case 2: {
                gpuvm::cursor<u64> at = x.cursor();
                u64 seen = at[i];
                hash = fold(hash, seen);
                at.write(i, seen * 5 + value);
                break;
            }
            case 3: {  // a page of the lane's own, which waits for nothing meanwhile
                auto held = x.pin(i);
                if (!held) break;
                u64 seen = held[0];
                hash = fold(hash, seen);
                held[0] = seen * 5 + value;
                break;
            }
            case 4:
                x.atomic_add(i, value);
                break;
            case 5:
                x.prefetch(i, value);
                break;
            case 6:  // a rising number, and that it is stored
                x[i] = value;
                __threadfence_system();
                if (!x.failed()) atomicExch(progress + lane, static_cast<u64>(step + 1));
                break;
        }
    }
    hashes[lane] = hash;
}

// Adds up the first `used` words of each page of `c`. `d` says in which form.
__global__ void add_up(gpuvm::array<const u64> c, gpuvm::array<const u64> d, unsigned page_words, unsigned used,
                       u64* sum) {
    u64 lanes = gridDim.x * static_cast<u64>(blockDim.x), found = 0;
    for (u64 page = 0; page < c.size() && !d.failed(); page += page_words)
        for (u64 k = lane_number(); k < used; k += lanes) found += c[page + k];
    atomicAdd(sum, found);
}

// The same again and again, with pauses.
__global__ void again(gpuvm::array<const u64> c, unsigned page_words, unsigned used, unsigned rounds, unsigned pause_ns,
                      u64* sum) {
    u64 lanes = gridDim.x * static_cast<u64>(blockDim.x);
    for (unsigned round = 0; round < rounds && !c.failed(); ++round) {
        u64 found = 0;
        for (u64 page = 0; page < c.size(); page += page_words)
            for (u64 k = lane_number(); k < used; k += lanes) found += c[page + k];
        atomicAdd(sum, found);
        __nanosleep(pause_ns);
    }
}

// Asks for pages, and uses none.
__global__ void ask_for(gpuvm::array<const u64> c, u64 first, u64 count) {
    if (lane_number() == 0) c.prefetch(first, count);
}

// One access past the end, where nothing stores a 9.
__global__ void reach_past(gpuvm::array<u64> a, u64 index, unsigned stores) {
    const gpuvm::array<u64>& only_read = a;
    if (stores)
        a[index] = 7;
    else if (only_read[index] == 9)
        a[0] = 9;
}

// Lets time go by, in the form that `c` says.
__global__ void pause(gpuvm::array<const u64> c, unsigned ns) {
    u64 end = gpuvm::detail::time_ns() + ns;
    while (gpuvm::detail::time_ns() < end && !c.failed()) __nanosleep(ns < 1000 ? ns : 1000);
}
