// Beside calls of a slot cache: what its index says is in a slot is there.
#include <gpuvm/gpuvm.cuh>
#include <gpuvm/slot_cache.cuh>

using namespace gpuvm::slots;

// Looks ids of a call up as long as it runs, `looks` times at most a lane, and reads one chunk of each record. The
// entry, and the number of the call, are read again by atomics, which find what is there now: if they are what they
// were, no slot changed hands.
__global__ void look(SlotCache cache, const i64* ids, u64 count, u64 looks, u64* wrong) {
    u64 found = 0, bad = 0, begun = ld_acquire_gpu(&state_of(cache)->epoch);
    for (u64 n = 0; n < looks && ld_relaxed_gpu(&state_of(cache)->epoch) == begun; ++n) {
        // So that looks are spread over the call.
        sleep_ns(500);
        i64 id = ids[(n * blockDim.x + threadIdx.x) % count];
        if (id < 0) continue;
        u64 record = static_cast<u64>(id), chunks = cache.tables[0].record_bytes / sizeof(pair64), at = n * 7 % chunks;
        auto* state = state_of(cache);
        u64 call = ld_acquire_gpu(&state->epoch);
        u32* entry = index_of(cache, record);
        // Acquire: pairs with the release of the thread that entered it, so that the bytes are seen.
        u32 slot = ld_acquire_gpu(entry);
        if (!has_slot(slot)) continue;
        pair64 there =
            ld_relaxed_gpu_v2(reinterpret_cast<const pair64*>(cache.tables[0].frames) + (slot - 1) * chunks + at);
        pair64 home = ld_weak(reinterpret_cast<const pair64*>(cache.tables[0].home) + record * chunks + at);
        fence_acq_rel_gpu();
        if (atom_add_relaxed_gpu(entry, 0u) != slot || atom_add_relaxed_gpu(&state->epoch, u64{0}) != call) continue;
        ++found;
        bad += there.lo != home.lo || there.hi != home.hi;
    }
    atom_add_relaxed_gpu(wrong, bad);
    atom_add_relaxed_gpu(wrong + 1, found);
}
