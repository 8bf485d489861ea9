// Lanes that read pages of few frames, and who brings copies of them to a neighbour's memory, which has less room.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is array << 32 | index.
__global__ void read_pages(gpuvm::array<const u64> a, gpuvm::array<const u64> b, gpuvm::array<const u64> c,
                           const u64* ops, unsigned steps, u64* hashes) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, hash = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 op = ops[lane * steps + step], i = op & 0xffffffff;
        hash = fold(hash, (op >> 32) == 0 ? a[i] : (op >> 32) == 1 ? b[i] : c[i]);
    }
    hashes[lane] = hash;
}

// What the host does with its copiers; here each step is one access among those of all lanes. `where`: for each of
// three regions, whose only chunk is short, the address of its entry and of its home, and then the memory for copies.
// `ops`: region << 8 | slot.
__global__ void bring(const u64* where, const unsigned* ops, unsigned count, unsigned words, unsigned slot_bytes,
                      unsigned pause_ns) {
    using namespace gpuvm::detail;
    // By slot: one plus the region that it has a copy of.
    unsigned held[4] = {};
    u64 bringings = 0;
    auto unname = [&](unsigned slot) {
        if (!held[slot]) return;
        st_relaxed_sys(reinterpret_cast<u64*>(where[2 * (held[slot] - 1)]), u64{0});
        // The host waits until its copy of the word has arrived.
        fence_sc_gpu();
        held[slot] = 0;
    };
    for (unsigned n = 0; n < count; ++n) {
        unsigned region = ops[n] >> 8, slot = ops[n] & 0xff;
        bool named = false;
        for (unsigned other = 0; other < 4; ++other) named = named || held[other] == region + 1;
        if (named) continue;
        unname(slot);
        u64* copy = reinterpret_cast<u64*>(where[6] + static_cast<u64>(slot) * slot_bytes);
        const u64* home = reinterpret_cast<const u64*>(where[2 * region + 1]);
        // In no order that anybody promises.
        for (unsigned word = 0; word < words; ++word) {
            unsigned at = (word + words - 1) % words;
            st_relaxed_sys(copy + at, ld_relaxed_sys(home + at));
        }
        // Release: the host names a copy when it has arrived.
        st_release_sys(reinterpret_cast<u64*>(where[2 * region]),
                       reinterpret_cast<u64>(copy) | (++bringings & (slot_bytes - 1)));
        held[slot] = region + 1;
        if (pause_ns) __nanosleep(pause_ns);
    }
    for (unsigned slot = 0; slot < 4; ++slot) unname(slot);
}
