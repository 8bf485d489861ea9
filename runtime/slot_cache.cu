// Kernels of slot caches: the steps of `gpuvm/slot_cache.cuh`. Blocks are whole warps.
#include <gpuvm/slot_cache.cuh>

using namespace gpuvm::slots;

// All steps but the fetch, of calls that one block is enough for.
__global__ void __launch_bounds__(1024) gpuvm_slots_plan(SlotCache cache, const void* ids, unsigned long long wide,
                                                         unsigned long long count, int* out, unsigned long long ahead) {
    __shared__ gpuvm::layout::SlotCounts counts;
    __shared__ unsigned histogram[gpuvm::layout::SLOT_BUCKETS];
    plan(cache, &counts, histogram, SlotCall{ids, wide, count, out, ahead});
}

__global__ void __launch_bounds__(256) gpuvm_slots_claim(SlotCache cache, const void* ids, unsigned long long wide,
                                                         unsigned long long count, int* out, unsigned long long ahead) {
    __shared__ SlotNumbers numbers;
    if (threadIdx.x == 0) numbers = SlotNumbers{};
    begin(cache, grid_team());
    __syncthreads();
    claim(cache, &state_of(cache)->counts, &numbers, SlotCall{ids, wide, count, out, ahead}, grid_team());
}

__global__ void __launch_bounds__(256) gpuvm_slots_survey(SlotCache cache, unsigned long long ahead) {
    __shared__ unsigned histogram[gpuvm::layout::SLOT_BUCKETS], last;
    survey_all(cache, histogram, &last, SlotCall{nullptr, 0, 0, nullptr, ahead});
}

__global__ void __launch_bounds__(256) gpuvm_slots_pick(SlotCache cache, unsigned long long ahead) {
    __shared__ SlotNumbers numbers;
    if (threadIdx.x == 0) numbers = SlotNumbers{};
    __syncthreads();
    pick(cache, &state_of(cache)->counts, &numbers, SlotCall{nullptr, 0, 0, nullptr, ahead}, grid_team());
}

// The end of every call. The first `givers` blocks have ids of misses find their slots, and the others copy.
__global__ void __launch_bounds__(256)
    gpuvm_slots_fetch(SlotCache cache, const void* ids, unsigned long long wide, unsigned long long count, int* out,
                      unsigned long long ahead, unsigned long long givers) {
    SlotCall call{ids, wide, count, out, ahead};
    SlotTeam team = grid_team();
    u64 giving = givers * static_cast<u64>(blockDim.x);
    if (blockIdx.x >= givers)
        fetch(cache, SlotTeam{team.rank - giving, team.size - giving});
    else if (state_of(cache)->counts.misses)
        give_out_all(cache, &state_of(cache)->counts, call, SlotTeam{team.rank, giving});
    finish(cache, call);
}

__global__ void __launch_bounds__(256)
    gpuvm_slots_hold(SlotCache cache, const int* slots, unsigned long long count, unsigned long long release) {
    hold(cache, slots, count, release != 0, grid_team());
}

// A fetch ahead follows.
__global__ void __launch_bounds__(256) gpuvm_slots_refresh(SlotCache cache) {
    __shared__ SlotNumbers numbers;
    if (threadIdx.x == 0) numbers = SlotNumbers{};
    __syncthreads();
    refresh(cache, &numbers, grid_team());
}
