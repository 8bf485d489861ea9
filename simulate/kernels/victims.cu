// Lanes that read and write pages of few frames, which leave them for a neighbour's memory, and the neighbour, who
// takes that memory back.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is kind << 56 | value << 40 | array << 32 | index. Nothing but its lane uses a word that it writes.
__global__ void use_pages(gpuvm::array<u64> a, gpuvm::array<u64> b, gpuvm::array<u64> c, const u64* ops, unsigned steps,
                          u64* hashes) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, hash = 0;
    for (unsigned step = 0; step < steps && !a.failed(); ++step) {
        u64 op = ops[lane * steps + step], value = op >> 40 & 0xffff, i = op & 0xffffffff;
        gpuvm::array<u64>& x = (op >> 32 & 0xff) == 0 ? a : (op >> 32 & 0xff) == 1 ? b : c;
        switch (op >> 56) {
            case 0:
                hash = fold(hash, x[i]);
                break;
            case 1: {
                u64 seen = x[i];
                hash = fold(hash, seen);
                x[i] = seen * 5 + value;
                break;
            }
            case 2: {  // a page of the lane's own, which is not fetched
                auto held = x.overwrite(0, x.size(), 1u << threadIdx.x % 32);
                for (u64 k = 0; k < held.size(); ++k) held[k] = fold(value, k);
                break;
            }
        }
    }
    hashes[lane] = hash;
}

// When a lender ends a loan, besides after a time.
constexpr unsigned AFTER_A_TIME = 0, WHILE_ONE_WRITES = 1, WHEN_ONE_TAKES_A_SLOT = 2, WHEN_ONE_FETCHES = 3;

// What a lender sees and stores.
struct Lender {
    unsigned *lent, *writers;
    u64 *chunks, *taken, *places, *turns, *word;
    unsigned slots, chunk_pages, page_words, used;
    u64 mark;
};

// How long a lender looks for its moment.
constexpr unsigned LOOKS_NS = 100000;

// Waits so long, then for a moment of that kind, with chunks [begin, end), and then for some looks more.
__device__ void wait_for(const Lender& at, unsigned begin, unsigned end, unsigned when, unsigned after_ns,
                         unsigned looks) {
    using namespace gpuvm::detail;
    u64 head = ~0ull;
    bool ours = false;
    for (u64 until = time_ns() + after_ns; time_ns() < until;) __nanosleep(after_ns < 1000 ? after_ns : 1000);
    if (when == AFTER_A_TIME) return;
    for (u64 until = time_ns() + LOOKS_NS; time_ns() < until;) {
        if (when == WHILE_ONE_WRITES && ld_acquire_gpu(at.writers + begin) != 0) break;
        if (when == WHEN_ONE_FETCHES && state_of(ld_acquire_gpu(at.word)) == kFetching) break;
        if (when == WHEN_ONE_TAKES_A_SLOT) {
            u64 now = ld_acquire_gpu(at.taken);
            if (now == head) continue;
            if (ours) break;
            u64 next = ld_acquire_gpu(at.places + now % at.slots);
            unsigned chunk = static_cast<unsigned>(next) / at.chunk_pages;
            ours = (next >> 32 & 1) && begin <= chunk && chunk < end;
            head = now;
        }
    }
    while (looks-- != 0) ld_acquire_gpu(at.taken);
}

// It has the chunk back: the first words of each page become `mark`, the last of them first, since who copies the page
// comes there last, and a few behind them.
__device__ void use_chunk(const Lender& at, unsigned chunk) {
    u64* memory = reinterpret_cast<u64*>(at.chunks[chunk]);
    for (unsigned page = 0; page < at.chunk_pages; ++page, memory += at.page_words) {
        for (unsigned n = 0; n < at.used; ++n)
            gpuvm::detail::st_relaxed_gpu(memory + (n + at.used - 1) % at.used, at.mark);
        for (unsigned n = at.used; n < at.page_words; n += at.used) gpuvm::detail::st_relaxed_gpu(memory + n, at.mark);
    }
}

// What a lender does. The host does it by copies to this GPU's memory that are made one after the other; here each is
// one access among those of all lanes. From chunk `end` down to `first`, this many together, it ends the loan, waits
// until nothing copies there, and uses what it has back. `turns` has how far it is with each chunk.
__global__ void take_back(const u64* where, unsigned first, unsigned end, unsigned together, unsigned when,
                          unsigned after_ns, unsigned looks, u64 mark) {
    using namespace gpuvm::detail;
    Lender at{
        reinterpret_cast<unsigned*>(where[0]), reinterpret_cast<unsigned*>(where[1]), reinterpret_cast<u64*>(where[2]),
        reinterpret_cast<u64*>(where[3]),      reinterpret_cast<u64*>(where[4]),      reinterpret_cast<u64*>(where[5]),
        reinterpret_cast<u64*>(where[6]),      static_cast<unsigned>(where[7]),       static_cast<unsigned>(where[8]),
        static_cast<unsigned>(where[9]),       static_cast<unsigned>(where[10]),      mark};
    while (end != first) {
        unsigned begin = end - first < together ? first : end - together;
        for (unsigned chunk = begin; chunk < end; ++chunk) atomicExch(at.turns + chunk, 1ull);
        wait_for(at, begin, end, when, after_ns, looks);
        for (unsigned chunk = begin; chunk < end; ++chunk) st_relaxed_gpu(at.lent + chunk, 0u);
        fence_sc_gpu();
        for (unsigned chunk = begin; chunk < end; ++chunk) {
            // Longer than any page's copy takes.
            for (unsigned look = 0; ld_acquire_gpu(at.writers + chunk) != 0; ++look) {
                if (look > 1000) __nanosleep(200);
                if (look == 20000) {
                    atomicExch(at.turns + chunk, 3ull);
                    return;
                }
            }
            atomicExch(at.turns + chunk, 2ull);
            use_chunk(at, chunk);
        }
        end = begin;
    }
}
