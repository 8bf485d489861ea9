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

// What a lender does. The host does it by copies to this GPU's memory that are made one after the other; here each is
// one access among those of all lanes. It ends the loan of chunks, waits until nobody copies to them, and uses them:
// every word becomes `mark`, from word `begin` on. `turns` has how far it is with each chunk.
__global__ void take_back(u64 lent, u64 writers, u64 chunks, unsigned first, unsigned end, unsigned after_ns, u64 words,
                          u64 begin, u64 turns_at, u64 mark) {
    u64* turns = reinterpret_cast<u64*>(turns_at);
    using namespace gpuvm::detail;
    for (u64 until = time_ns() + after_ns; time_ns() < until;) __nanosleep(after_ns < 1000 ? after_ns : 1000);
    for (unsigned chunk = first; chunk < end; ++chunk) {
        atomicExch(turns + chunk, 1ull);
        st_relaxed_gpu(reinterpret_cast<unsigned*>(lent) + chunk, 0u);
    }
    fence_sc_gpu();
    for (unsigned chunk = first; chunk < end; ++chunk) {
        // Longer than any page's copy takes.
        for (unsigned look = 0; ld_acquire_gpu(reinterpret_cast<const unsigned*>(writers) + chunk) != 0; ++look) {
            if (look == 20000) {
                atomicExch(turns + chunk, 3ull);
                return;
            }
            __nanosleep(200);
        }
        atomicExch(turns + chunk, 2ull);
        u64* memory = reinterpret_cast<u64*>(reinterpret_cast<const u64*>(chunks)[chunk]);
        for (u64 n = 0; n < words; ++n) st_relaxed_gpu(memory + (begin + n) % words, mark);
    }
}
