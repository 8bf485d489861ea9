// gpuvm::cursor<T>: keeps its page from one access to the next, for a lane that walks neighbouring elements.
//
// It holds a pin, as a span does, so that an access costs a comparison and a load through L1. Without a pin each load
// would have to be strong, with a look at the page's entry behind it: the loads of a `reader`, one for each element.
#pragma once

#include "detail/access.cuh"

namespace gpuvm {
namespace detail {

// Neighbouring elements that a cursor may use.
struct Stretch {
    u64 elements;  // where element 0 of the array would be
    u64 first;     // index of the first one
    u64 count;     // 0 for none
    u64* pinned;   // the entry of the page that is held, or null
};

// What one question about a page that is read at its home stands for: bytes that a cursor reads before it asks again.
// They are counted as if all of them were read.
constexpr u32 kLineShift = 7;

// A line, or one larger element, at the home of its page. False when the page has a frame, is to get one, or cannot be
// had.
template <class T>
GPUVM_DEVICE bool stretch_at_home(const layout::ArrayDesc& array, u64 index, Stretch* stretch) {
    constexpr u64 bytes = sizeof(T) >> kLineShift ? sizeof(T) : 1 << kLineShift;
    u64 first = index * sizeof(T) & ~(bytes - 1), end = first + bytes < array.bytes ? first + bytes : array.bytes;
    // Weak loads without a second look are for a home that nothing writes.
    if (array.region & layout::ARRAY_HOME_CHANGES) return false;
    // A chunk of several elements may reach past the array's end, and the home need not.
    if (sizeof(T) < 16) end &= ~15ull;
    if (index * sizeof(T) >= end) return false;
    if (!is_at_home<bytes>(array, place_of<T>(array, index).page, first)) return false;
    *stretch = Stretch{array.home, first / sizeof(T), (end - first) / sizeof(T), nullptr};
    return true;
}

// Gives the page back that a cursor leaves, and finds the elements around `index`. In this order: a lane that waits for
// a page does not hold one by the same cursor. One function, as it is rare: what it needs stays out of the hits.
template <class T>
GPUVM_NOINLINE Stretch move_to(layout::ArrayDesc array, u64 index, u64* leaving) {
    using V = typename without_const<T>::type;
    constexpr bool reads = without_const<T>::is_const;
    Stretch stretch{0, 0, 0, nullptr};
    if (leaving) unpin_together(leaving);
    if (index >= array.length) {
        report_out_of_range(vm_of(array), array.length, array.region, index, layout::FAULT_OUT_OF_RANGE);
        return stretch;
    }
    if constexpr (reads) {
        if (const V* all = all_elements<V>(array)) return Stretch{reinterpret_cast<u64>(all), 0, array.length, nullptr};
        if (reads_in_place(array) && stretch_at_home<V>(array, index, &stretch)) return stretch;
    }
    u64 address = pin_element<V>(array, index, !reads);
    if (!address) return stretch;
    Place place = place_of<V>(array, index);
    u64 first = index - place.offset / sizeof(V), whole = (1ull << array.page_shift) / sizeof(V);
    stretch.elements = address - index * sizeof(V);
    stretch.first = first;
    stretch.count = array.length - first < whole ? array.length - first : whole;
    if (!never_evicted(array)) stretch.pinned = words_of(array) + place.page;
    return stretch;
}

}  // namespace detail

// `cursor<const T>` reads. What it read is as old as its 16-byte chunk: call `drop()` after a barrier or a fence behind
// which other lanes' writes must be seen. `cursor<T>` reads and writes plain memory, and marks each page that it comes
// to as written. After a fault reads give zero and writes are dropped.
template <class T>
class cursor {
    using V = typename detail::without_const<T>::type;

  public:
    __device__ explicit cursor(const layout::ArrayDesc& array) : array_(array) {}
    cursor(const cursor&) = delete;
    cursor& operator=(const cursor&) = delete;
    // Release: this lane's stores come before the pin is gone.
    __device__ ~cursor() { drop(); }

    // Reads one element; waits for its page when that is not resident. Past the end: a fault, and zero.
    __device__ V operator[](unsigned long long i) {
        if constexpr (kPerChunk > 1) {
            if (i - chunk_ >= chunk_count_) load(i);
            return detail::pick<V>(value_, static_cast<unsigned>(i - chunk_) * sizeof(V));
        } else if constexpr (kReads) {
            return reach(i) ? detail::load_weak<V>(stretch_.elements + i * sizeof(V)) : V{};
        } else {
            return reach(i) ? *at(i) : V{};
        }
    }

    // Writes one element, in the same way.
    __device__ void write(unsigned long long i, const V& value) {
        static_assert(!kReads, "gpuvm: a cursor over array<const T> only reads: take it from an array<T>");
        if (reach(i)) *at(i) = value;
    }

    // Gives the page back until the next access.
    __device__ void drop() {
        if (stretch_.pinned) detail::unpin_together(stretch_.pinned);
        stretch_.pinned = nullptr;
        stretch_.count = 0;
        chunk_count_ = 0;
    }

  private:
    static constexpr bool kReads = detail::without_const<T>::is_const;
    // Elements of a chunk that is kept in registers: loads of 16 bytes instead of one an element. Not where elements
    // beside them may be written, by plain stores.
    static constexpr unsigned long long kPerChunk = kReads && sizeof(V) < 16 ? 16 / sizeof(V) : 1;

    // Whether element i can be used: false after a fault.
    __device__ bool reach(unsigned long long i) {
        if (GPUVM_LIKELY(i - stretch_.first < stretch_.count)) return true;
        stretch_ = detail::move_to<T>(array_, i, stretch_.pinned);
        return stretch_.count != 0;
    }
    // The chunk of element i; zeros, to be loaded again, after a fault.
    __device__ void load(unsigned long long i) {
        chunk_count_ = 0;
        value_ = detail::pair64{};
        if (!reach(i)) return;
        chunk_ = i & ~(kPerChunk - 1);
        // The last chunk may reach past the array's end, never past its frame.
        value_ = detail::load_weak<detail::pair64>(stretch_.elements + chunk_ * sizeof(V));
        unsigned long long rest = stretch_.first + stretch_.count - chunk_;
        chunk_count_ = rest < kPerChunk ? rest : kPerChunk;
    }
    __device__ V* at(unsigned long long i) { return reinterpret_cast<V*>(stretch_.elements) + i; }

    layout::ArrayDesc array_;
    detail::Stretch stretch_{0, 0, 0, nullptr};
    detail::pair64 value_{};
    unsigned long long chunk_ = 0;        // index of the chunk's first element
    unsigned long long chunk_count_ = 0;  // its elements, 0 for none
};

}  // namespace gpuvm
