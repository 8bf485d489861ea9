// Traces of reads over a region that is only read, and stores of each word once. placement.rs says which, and compares.
#include "bench/common.cuh"

using namespace bench;

using paged = gpuvm::array<const u64>;

// A region's home as plain memory: what a program without paging uses.
template <class Array>
static __device__ __forceinline__ u64* home_of(const Array& data) {
    // Its one member is at its address.
    static_assert(__is_standard_layout(Array) && sizeof(Array) == sizeof(gpuvm::layout::ArrayDesc),
                  "an array is its description");
    return reinterpret_cast<u64*>(reinterpret_cast<const gpuvm::layout::ArrayDesc*>(&data)->home);
}
struct pointer {
    const u64* words;
    __device__ explicit pointer(const paged& data) : words(home_of(data)) {}
    __device__ u64 operator[](u64 i) const { return words[i]; }
};
template <bool Plain>
struct data_of {
    using type = paged;
};
template <>
struct data_of<true> {
    using type = pointer;
};

static __device__ __forceinline__ u64 mixed(u64 x) {
    x *= 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// What a thread has read.
struct Reads {
    u64 done = 0, wrong = 0, sum = 0;

    template <class Data>
    __device__ void read(const Data& data, u64 word) {
        u64 value = data[word];
        wrong += value != pattern(word);
        sum += value;
        ++done;
    }
    __device__ void tell(u64* tally) const {
        add_tally(tally, kDone, done);
        add_tally(tally, kWrong, wrong);
        add_tally(tally, kSum, sum);
    }
};

// Whether the launch has met a fault. Plain memory knows none.
template <class Data>
static __device__ __forceinline__ bool has_failed(const Data&) {
    return false;
}
template <class T>
static __device__ __forceinline__ bool has_failed(const gpuvm::array<T>& data) {
    return data.failed();
}

// The number of the first of this many next reads, for all lanes of the warp; past every trace's end after a fault.
// Warps take them in order: what is under way is close together in the trace, however few warps are resident.
template <class Data>
static __device__ __forceinline__ u64 take(const Data& data, u64* tally, u32 reads) {
    u64 first = ~0ull;
    if (lane_id() == 0 && !has_failed(data)) first = atomicAdd(tally + kNext, static_cast<u64>(reads));
    return __shfl_sync(~0u, first, 0);
}

// Read n of the trace is of the word `word_of(n)`.
template <class Data, class Word>
static __device__ __forceinline__ void walk(const Data& data, u64 count, u64* tally, Word word_of) {
    Reads reads;
    for (u64 first = take(data, tally, 32); first < count; first = take(data, tally, 32)) {
        u64 n = first + lane_id();
        if (n < count) reads.read(data, word_of(n));
    }
    reads.tell(tally);
}

// All words in order, as often as `count` says. A warp reads 4 KiB of them, neighbouring lanes neighbouring words.
constexpr u32 kRun = 512;
template <bool Plain>
__global__ void read_in_order(paged array, u64 count, u64* tally) {
    typename data_of<Plain>::type data(array);
    Reads reads;
    for (u64 first = take(data, tally, kRun); first < count; first = take(data, tally, kRun)) {
        u64 word = first % array.size();
        for (u32 k = lane_id(); k < kRun; k += 32) reads.read(data, word + k);
    }
    reads.tell(tally);
}

// Draws pages by the alias method: one is kept with its odds of 2^32, else it stands for another one. `mirrored`: the
// last page for the first one, and so on.
__global__ void draw_pages(u32* draws, u64 count, const u32* odds, const u32* others, u64 pages, u64 seed, u32 mirrored,
                           u64* tally) {
    u64 done = 0;
    for (u64 n = thread_id(); n < count; n += thread_count(), ++done) {
        u64 random = mixed(seed + n);
        u32 page = static_cast<u32>((random >> 32) * pages >> 32);
        if (static_cast<u32>(random) >= odds[page]) page = others[page];
        draws[n] = mirrored ? static_cast<u32>(pages) - 1 - page : page;
    }
    add_tally(tally, kDone, done);
}

// A random word of each page that was drawn.
template <bool Plain>
__global__ void read_drawn(paged array, const u32* draws, u64 count, u64 page_words, u64 seed, u64* tally) {
    typename data_of<Plain>::type data(array);
    walk(data, count, tally, [=](u64 n) { return draws[n] * page_words + (mixed(~(seed + n)) & (page_words - 1)); });
}

// A window that slides over the pages, around their end at last. It has a front for each of the visits, this many pages
// apart, each of which moves on by a page a round.
template <bool Plain>
__global__ void read_window(paged array, u64 count, u64 page_words, u64 visits, u64 apart, u64* tally) {
    typename data_of<Plain>::type data(array);
    u64 pages = array.size() / page_words;
    walk(data, count, tally, [=](u64 n) {
        u64 page = (n / visits + n % visits * apart) % pages;
        return page * page_words + (mixed(n) & (page_words - 1));
    });
}

// Word n of all of them in a random order, none twice: each step permutes the numbers of `bits` bits, and those past
// the end are permuted on. placement/stores.rs has the same rule.
static __device__ __forceinline__ u64 in_random_order(u64 n, u64 words, u32 bits) {
    u64 x = n, mask = (1ull << bits) - 1;
    u32 shift = bits / 2 + 1;
    do {
        x = (x ^ x >> shift) * 0xbf58476d1ce4e5b9ull & mask;
        x = (x ^ x >> shift) * 0x94d049bb133111ebull & mask;
        x = ((x ^ x >> shift) + 0x5bd1e995ull) & mask;
    } while (x >= words);
    return x;
}

template <bool Plain>
__global__ void read_once(paged array, u64 count, u32 bits, u64* tally) {
    typename data_of<Plain>::type data(array);
    u64 words = array.size();
    walk(data, count, tally, [=](u64 n) { return in_random_order(n, words, bits); });
}

// Words in order, or in a random one, each once: a warp stores 4 KiB of neighbours, or 32 that are scattered.
template <bool Plain, bool Scattered>
__global__ void store_once(gpuvm::array<u64> array, u64 count, u32 bits, u64 round, u64* tally) {
    constexpr u32 run = Scattered ? 32 : kRun;
    u64 done = 0, words = array.size(), *home = home_of(array);
    for (u64 first = take(array, tally, run); first < count; first = take(array, tally, run)) {
        for (u64 n = first + lane_id(); n < first + run && n < count; n += 32, ++done) {
            u64 word = Scattered ? in_random_order(n, words, bits) : n, value = pattern(word) + round;
            if constexpr (Plain)
                home[word] = value;
            else
                array[word] = value;
        }
    }
    add_tally(tally, kDone, done);
}
