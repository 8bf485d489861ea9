// Lanes that read and write pages of few frames, which leave them for a neighbour's memory, and the neighbour, who
// takes that memory back.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is kind << 56 | value << 40 | array << 32 | index. Nobody but its lane uses a word that it writes.
__global__ void use_pages(gpuvm::array<u64> a, gpuvm::array<u64> b, gpuvm::array<u64> c, const u64* ops, unsigned steps,
                          u64* hashes) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, hash = 0;
    for (unsigned step = 0; step < steps && !gpuvm::failed(); ++step) {
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

// When a lender ends a loan.
constexpr unsigned AFTER_A_TIME = 0, WHILE_ONE_WRITES = 1, WHEN_ONE_TAKES_A_SLOT = 2;

// What a lender does. The host does it by copies to this GPU's memory that are made one after the other; here each is
// one access among those of all lanes. From chunk `end` down to `first`, so many together, it ends the loan, waits until
// nobody copies there, and uses what it has back: the first `used` words of each page, from the last one on, and a few
// behind them become `mark`. `turns` has how far it is with each chunk.
// `where`: addresses of `lent`, `writers`, `chunks` and the free list's head, and of `turns`.
__global__ void take_back(const u64* where, unsigned first, unsigned end, unsigned together, unsigned when,
                          unsigned within_ns, unsigned pages, unsigned page_words, unsigned used, u64 mark) {
    using namespace gpuvm::detail;
    unsigned *lent = reinterpret_cast<unsigned*>(where[0]), *writers = reinterpret_cast<unsigned*>(where[1]);
    u64 *chunks = reinterpret_cast<u64*>(where[2]), *taken = reinterpret_cast<u64*>(where[3]);
    u64* turns = reinterpret_cast<u64*>(where[4]);
    while (end != first) {
        unsigned begin = end - first < together ? first : end - together;
        for (unsigned chunk = begin; chunk < end; ++chunk) atomicExch(turns + chunk, 1ull);
        u64 before = ld_acquire_gpu(taken);
        for (u64 until = time_ns() + within_ns; time_ns() < until;) {
            if (when == WHILE_ONE_WRITES && ld_acquire_gpu(writers + begin) != 0) break;
            if (when == WHEN_ONE_TAKES_A_SLOT && ld_acquire_gpu(taken) != before) break;
            if (when == AFTER_A_TIME) __nanosleep(within_ns < 1000 ? within_ns : 1000);
        }
        for (unsigned chunk = begin; chunk < end; ++chunk) st_relaxed_gpu(lent + chunk, 0u);
        fence_sc_gpu();
        for (unsigned chunk = begin; chunk < end; ++chunk) {
            // Longer than any page's copy takes.
            for (unsigned look = 0; ld_acquire_gpu(writers + chunk) != 0; ++look) {
                if (look > 1000) __nanosleep(200);
                if (look == 20000) {
                    atomicExch(turns + chunk, 3ull);
                    return;
                }
            }
            atomicExch(turns + chunk, 2ull);
            u64* memory = reinterpret_cast<u64*>(chunks[chunk]);
            for (unsigned page = 0; page < pages; ++page, memory += page_words) {
                for (unsigned n = used; n-- != 0;) st_relaxed_gpu(memory + n, mark);
                for (unsigned n = used; n < page_words; n += used) st_relaxed_gpu(memory + n, mark);
            }
        }
        end = begin;
    }
}
