// A sort of keys of 32 bits that GPU memory does not hold, in two passes over them, by digits of 8 bits. Each pass
// brings a part of the keys into plain memory, sorts it there, and stores it in one piece.
//
// In the first pass a part is a stretch of the input, which is sorted by its highest digit alone. In the second one it
// is some neighbouring buckets of that digit, which lie as one run in each part of the first pass, and it is sorted by
// all digits that differ. So either pass reads and writes every key once, in runs of many pages.
#include "access.cuh"

constexpr u64 kPiece = 16384;
constexpr u32 kDigits = 256;
// Warps of a block of the kernels that sort.
constexpr u32 kWarps = 4;

// Brings pieces of `from`: the k-th is `places[3 * k]` of the first key, of its place in `incoming`, and how many keys
// follow. Meanwhile stores `outgoing` to elements [first, first + keys) of `to`. Every other warp brings, the others
// store; there is an even number of them.
__global__ void __launch_bounds__(128, 4)
    exchange(in<unsigned> from, const unsigned long long* places, unsigned long long pieces, unsigned* incoming,
             inout<unsigned> to, unsigned long long first, unsigned long long keys, const unsigned* outgoing) {
    u64 half = warps() / 2;
    if (warp() % 2 == 0) {
        for (u64 piece = warp() / 2; piece < pieces && !stopped(to); piece += half) {
            const u64* place = places + 3 * piece;
            u32* here = incoming + place[1];
            share(from, place[0], place[2], [&](u64 i, u32 key) { here[i - place[0]] = key; });
        }
    } else {
        for (u64 piece = warp() / 2 * kPiece; piece < keys && !stopped(to); piece += half * kPiece)
            fill(to, first + piece, least(kPiece, keys - piece), [&](u64 i) { return outgoing[i - first]; });
    }
}

__device__ inline u32 digit_of(u32 key, u32 shift) { return key >> shift & (kDigits - 1); }

// The sum of the values of the lanes before this one.
__device__ inline u32 sum_before(u32 value) {
    u32 past = value;
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u32 before = __shfl_up_sync(kWholeWarp, past, apart);
        if (lane() >= apart) past += before;
    }
    return past - value;
}

// Counts the digits of each tile of `tile` keys; a block takes a tile. Counts of one digit lie side by side.
__global__ void __launch_bounds__(128, 8)
    count_digits(const unsigned* keys, unsigned long long n, unsigned tile, unsigned shift, unsigned* counts) {
    __shared__ u32 found[kDigits];
    for (u32 digit = threadIdx.x; digit < kDigits; digit += blockDim.x) found[digit] = 0;
    __syncthreads();
    u64 first = blockIdx.x * static_cast<u64>(tile), past = least(first + tile, n);
    for (u64 k = first + threadIdx.x; k < past; k += blockDim.x) atomicAdd(&found[digit_of(keys[k], shift)], 1u);
    __syncthreads();
    for (u32 digit = threadIdx.x; digit < kDigits; digit += blockDim.x)
        counts[digit * static_cast<u64>(gridDim.x) + blockIdx.x] = found[digit];
}

// Makes of these counts how many keys of the digit are in the tiles before, and `totals` of all. A warp takes a digit.
__global__ void __launch_bounds__(128, 8) add_counts(unsigned* counts, unsigned tiles, unsigned* totals) {
    for (u64 digit = warp(); digit < kDigits; digit += warps()) {
        u32* own = counts + digit * tiles;
        u64 each = (tiles + 31) / 32, first = least(lane() * each, tiles), past = least(first + each, tiles);
        u32 sum = 0;
        for (u64 tile = first; tile < past; ++tile) sum += own[tile];
        u32 before = sum_before(sum);
        if (lane() == 31) totals[digit] = before + sum;
        for (u64 tile = first; tile < past; ++tile) {
            u32 here = own[tile];
            own[tile] = before;
            before += here;
        }
    }
}

// Puts the keys of each tile where their digits belong; keys of one digit keep their order. A block takes a tile, each
// of its warps a quarter.
__global__ void __launch_bounds__(128, 8)
    place_keys(const unsigned* keys, unsigned long long n, unsigned tile, unsigned shift, const unsigned* counts,
               const unsigned* totals, unsigned* sorted) {
    __shared__ u32 starts[kDigits];
    // Keys of each digit that a warp has; then where it puts the next one.
    __shared__ u32 next[kWarps][kDigits];
    u32 own = threadIdx.x / 32;
    for (u32 digit = lane(); digit < kDigits; digit += 32) next[own][digit] = 0;
    __syncwarp();
    u64 begin = blockIdx.x * static_cast<u64>(tile) + own * (tile / kWarps), past = least(begin + tile / kWarps, n);
    for (u64 k = begin + lane(); k < past; k += 32) atomicAdd(&next[own][digit_of(keys[k], shift)], 1u);
    if (own == 0) {
        constexpr u32 each = kDigits / 32;
        u32 sum = 0;
        for (u32 k = 0; k < each; ++k) sum += totals[lane() * each + k];
        u32 before = sum_before(sum);
        for (u32 k = 0; k < each; ++k) {
            starts[lane() * each + k] = before;
            before += totals[lane() * each + k];
        }
    }
    __syncthreads();
    for (u32 digit = threadIdx.x; digit < kDigits; digit += blockDim.x) {
        u32 at = starts[digit] + counts[digit * static_cast<u64>(gridDim.x) + blockIdx.x];
        for (u32 other = 0; other < kWarps; ++other) {
            u32 here = next[other][digit];
            next[other][digit] = at;
            at += here;
        }
    }
    __syncthreads();
    for (u64 at = begin; at < past; at += 32) {
        bool has = at + lane() < past;
        u32 key = has ? keys[at + lane()] : 0, digit = has ? digit_of(key, shift) : kDigits;
        u32 alike = __match_any_sync(kWholeWarp, digit), rank = __popc(alike & ((1u << lane()) - 1));
        u32 place = has ? next[own][digit] + rank : 0;
        __syncwarp();
        if (has && rank == 0) next[own][digit] += __popc(alike);
        __syncwarp();
        if (has) sorted[place] = key;
    }
}
