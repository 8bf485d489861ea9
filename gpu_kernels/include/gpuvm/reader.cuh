// gpuvm::reader<T>: one validated 16-byte chunk in registers, for a lane that walks neighbouring elements.
#pragma once

#include "detail/access.cuh"

namespace gpuvm {

// Values are as old as their chunk's load: call `drop()` after a barrier or a fence behind which other lanes' writes
// must be seen.
template <class T>
class reader {
  public:
    __device__ explicit reader(const layout::ArrayDesc& array) : array_(array) {}

    // Reads one element; waits for its page when that is not resident. Past the end: a fault, and zero.
    __device__ T operator[](unsigned long long i) {
        if constexpr (sizeof(T) >= 16) {
            return detail::read_element<T>(array_, i);
        } else {
            if (i - first_ >= count_) {
                if (i >= array_.length) return detail::read_slow<T>(array_, i, detail::kError);
                load(i / kPerChunk);
            }
            return detail::pick<T>(value_, static_cast<unsigned>(i - first_) * sizeof(T));
        }
    }

    // Forgets the chunk.
    __device__ void drop() { count_ = 0; }

  private:
    static constexpr unsigned long long kPerChunk = sizeof(T) < 16 ? 16 / sizeof(T) : 1;

    // The last chunk may reach past the array's end, never past its frame.
    __device__ void load(unsigned long long chunk) {
        detail::Place place = detail::place_of<detail::pair64>(array_, chunk);
        detail::u64 seen;
        bool stays = detail::never_evicted(array_);
        if (stays && place.page == page_) {
            // Resident once, resident for good: its word needs no second look.
            value_ = detail::load_weak<detail::pair64>(detail::address_in_own_frames<detail::pair64>(array_, chunk));
        } else if (detail::try_read(array_, chunk, &value_, &seen)) {
            if (stays) page_ = place.page;
        } else {
            // Perhaps after a fault: the page is looked at again.
            detail::Miss miss(array_, place.page);
            value_ = detail::read_faulting<detail::pair64>(&miss, place.offset);
        }
        first_ = chunk * kPerChunk;
        count_ = array_.length - first_ < kPerChunk ? array_.length - first_ : kPerChunk;
    }

    layout::ArrayDesc array_;
    detail::pair64 value_{};
    unsigned long long first_ = 0;     // index of the chunk's first element
    unsigned long long count_ = 0;     // its elements, 0 for none
    unsigned long long page_ = ~0ull;  // of a region that is never evicted: resident
};

}  // namespace gpuvm
