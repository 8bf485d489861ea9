// Pages a second.
#include "bench/common.cuh"

using namespace bench;

// An entry of the order: a page, and in the highest bit whether it is written.
static __device__ __forceinline__ u64 page_of(u32 entry) { return entry & 0x7fffffffu; }
static __device__ __forceinline__ bool is_written(u32 entry) { return entry >> 31; }

template <bool Write>
struct element_of {
    using type = const u64;
};
template <>
struct element_of<true> {
    using type = u64;
};

// rounds[page]: what was added to the touched words of the page by the last launch that wrote it.

// What a fault needs is some 150 registers, with which a multiprocessor has few warps that wait side by side. For the
// host's memory they are enough; a neighbour GPU's pages come so soon that it takes twice as many to fill the wire.
#if defined(BENCH_NEIGHBOUR)
#define TOUCH_BOUNDS __launch_bounds__(256, 2)
#else
#define TOUCH_BOUNDS
#endif

// A warp on one page at a time by a[i].
template <bool Write>
__global__ void TOUCH_BOUNDS touch_warps(gpuvm::array<typename element_of<Write>::type> data, const u32* order,
                                         u64 count, u64 page_words, const u32* rounds, u32 round, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        if (done % 64 == 63 && data.failed()) break;
        u64 page = page_of(order[n]), word = word_of(page, page_words, lane_id());
        if constexpr (Write) {
            if (is_written(order[n])) {
                data[word] = pattern(word) + round;
                continue;
            }
        }
        wrong += static_cast<u64>(data[word]) != pattern(word) + rounds[page];
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// Touches pages as `touch_warps` does, through spans of the whole warp.
template <bool Write>
__global__ void TOUCH_BOUNDS touch_spans(gpuvm::array<typename element_of<Write>::type> data, const u32* order,
                                         u64 count, u64 page_words, const u32* rounds, u32 round, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        if (done % 64 == 63 && data.failed()) break;
        u64 page = page_of(order[n]), word = word_of(page, page_words, lane_id());
        auto span = data.pin(page * page_words);
        if (!span) {
            ++wrong;
            break;
        }
        u64 offset = word - page * page_words;
        if constexpr (Write) {
            if (is_written(order[n])) {
                span[offset] = pattern(word) + round;
                continue;
            }
        }
        wrong += span[offset] != pattern(word) + rounds[page];
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// Every lane reads the first and the last touched word of pages that no other lane reads at that time.
__global__ void TOUCH_BOUNDS touch_lanes(gpuvm::array<const u64> data, const u32* order, u64 count, u64 page_words,
                                         const u32* rounds, u32, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = thread_id(); n < count && !data.failed(); n += thread_count(), ++done) {
        u64 page = page_of(order[n]);
        u64 first = word_of(page, page_words, 0), last = word_of(page, page_words, 31);
        wrong += data[first] != pattern(first) + rounds[page] || data[last] != pattern(last) + rounds[page];
    }
    add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}

// Reads as `touch_warps` does, or as `touch_spans`, the pages of several arrays in turn: page p is page p / homes of
// array p % homes. Of two arrays the third is not used.
using paged = gpuvm::array<const u64>;
template <bool Spans>
__global__ void TOUCH_BOUNDS touch_homes(paged a, paged b, paged c, u32 homes, const u32* order, u64 count,
                                         u64 page_words, u64* tally) {
    u64 done = 0, wrong = 0;
    for (u64 n = warp_id(); n < count; n += warp_count(), ++done) {
        if (done % 64 == 63 && a.failed()) break;
        u64 page = order[n], word = word_of(page, page_words, lane_id());
        u64 place = page % homes;
        paged data = place == 0 ? a : place == 1 ? b : c;
        u64 first = page / homes * page_words, offset = word % page_words;
        if constexpr (Spans) {
            auto span = data.pin(first);
            if (!span) {
                ++wrong;
                break;
            }
            wrong += span[offset] != pattern(word);
        } else {
            wrong += data[first + offset] != pattern(word);
        }
    }
    if (lane_id() == 0) add_tally(tally, kDone, done);
    add_tally(tally, kWrong, wrong);
}
