// Accesses whose page is there.
#include "bench/common.cuh"

using namespace bench;

// hits.rs has the same rules: what word `i` holds, and where the k-th access of a thread goes.
static __device__ __forceinline__ u32 value_of(u64 i) { return static_cast<u32>(i) * 0x9e3779b1u ^ 0x5bd1e995u; }
static __device__ __forceinline__ u64 place_of(u64 thread, u32 k, u64 words) {
    return static_cast<u64>(hash(static_cast<u32>(thread) * 2654435761u + k * 40503u)) * words >> 32;
}

// A pointer: the kernels below are the same text for it and for paged arrays, by each way to their elements.
struct pointer {
    const u32* words;
    u64 length;
    __device__ u32 operator[](u64 i) const { return words[i]; }
    __device__ u64 size() const { return length; }
};

// Fills plain memory with what the paged data holds.
__global__ void fill_values(u32* words, u64 length, u64* tally) {
    u64 done = 0;
    for (u64 i = thread_id(); i < length; i += thread_count(), ++done) words[i] = value_of(i);
    add_tally(tally, kDone, done);
}

// Brings the pages in the order given, so that neighbours lie in unrelated frames.
__global__ void warm_pages(gpuvm::array<const u32> data, const u32* order, u64 pages, u64 page_words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < pages && !data.failed(); n += warp_count(), ++done) {
        u64 word = order[n] * page_words + lane_id();
        if (word < data.size()) wrong += data[word] != value_of(word);
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

template <class Data>
static __device__ __forceinline__ void gather(const Data& data, u32 accesses, u64* tally) {
    u64 thread = thread_id(), words = data.size();
    u32 sum = 0;
    for (u32 k = 0; k < accesses; k += 8) {
#pragma unroll
        for (u32 u = 0; u < 8; ++u) sum += data[place_of(thread, k + u, words)];
    }
    add_tally(tally, kDone, 1);
    add_tally(tally, kSum, sum);
}
__global__ void gather_raw(const u32* words, u64 length, u32 accesses, u64* tally) {
    gather(pointer{words, length}, accesses, tally);
}
// With more threads what a read needs is spilled; only a fault needs more registers.
#define GATHER_BLOCKS 4

__global__ void __launch_bounds__(256, GATHER_BLOCKS)
    gather_paged(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    gather(data, accesses, tally);
}

__global__ void gather_resident(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    if (const u32* words = data.resident()) gather(pointer{words, data.size()}, accesses, tally);
}

// Twice as many resident threads as without a bound: only a fault needs more registers.
#define ROW_BLOCKS 2

// A row of a sparse matrix: 32 neighbouring words by one thread, somewhere.
static __device__ __forceinline__ u64 row_of(u64 thread, u32 k, u64 words) {
    return place_of(thread, k, words / 32) * 32;
}
template <class Data>
static __device__ __forceinline__ void rows(Data& data, u64 words, u32 accesses, u64* tally) {
    u64 thread = thread_id();
    u32 sum = 0;
    for (u32 k = 0; k < accesses; k += 32) {
        u64 first = row_of(thread, k, words);
#pragma unroll 8
        for (u32 n = 0; n < 32; ++n) sum += data[first + n];
    }
    add_tally(tally, kDone, 1);
    add_tally(tally, kSum, sum);
}
__global__ void rows_raw(const u32* words, u64 length, u32 accesses, u64* tally) {
    pointer data{words, length};
    rows(data, length, accesses, tally);
}
__global__ void __launch_bounds__(256, ROW_BLOCKS) rows_paged(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    rows(data, data.size(), accesses, tally);
}
__global__ void __launch_bounds__(256, ROW_BLOCKS) rows_span(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    u64 thread = thread_id(), words = data.size();
    u32 sum = 0;
    for (u32 k = 0; k < accesses; k += 32) {
        auto span = data.pin(row_of(thread, k, words));
        if (!span) continue;
#pragma unroll 8
        for (u32 n = 0; n < 32; ++n) sum += span[n];
    }
    add_tally(tally, kDone, 1);
    add_tally(tally, kSum, sum);
}
__global__ void __launch_bounds__(256, ROW_BLOCKS) rows_reader(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    auto reader = data.reader();
    rows(reader, data.size(), accesses, tally);
}
__global__ void __launch_bounds__(256, ROW_BLOCKS) rows_cursor(gpuvm::array<const u32> data, u32 accesses, u64* tally) {
    auto cursor = data.cursor();
    rows(cursor, data.size(), accesses, tally);
}

// A warp reads whole pages, 16 bytes a lane and load, four in flight.
static __device__ __forceinline__ u32 sum_page(const uint4* from, u32 chunks) {
    u32 sum = 0;
    for (u32 i = lane_id(); i < chunks; i += 128) {
        uint4 a = from[i], b = from[i + 32], c = from[i + 64], d = from[i + 96];
        sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
        sum += c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
    }
    return sum;
}
__global__ void stream_raw(const u32* words, u64 length, u64 page_words, u64* tally) {
    u64 done = 0;
    u32 sum = 0;
    for (u64 page = warp_id(); page < length / page_words; page += warp_count(), ++done)
        sum += sum_page(reinterpret_cast<const uint4*>(words + page * page_words), static_cast<u32>(page_words / 4));
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kSum, sum);
}
__global__ void __launch_bounds__(256, ROW_BLOCKS)
    stream_paged(gpuvm::array<const u32> data, u64 page_words, u64* tally) {
    u64 done = 0;
    u32 sum = 0;
    for (u64 page = warp_id(); page < data.size() / page_words; page += warp_count(), ++done) {
        auto span = data.pin(page * page_words);
        if (!span) continue;
        sum += sum_page(reinterpret_cast<const uint4*>(span.data()), static_cast<u32>(page_words / 4));
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kSum, sum);
}
