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
            unsigned long long chunk = i / (16 / sizeof(T));
            if (chunk != chunk_ || i >= array_.length) {
                if (i >= array_.length) return detail::read_slow<T>(array_, i);
                load(chunk);
            }
            unsigned shift = static_cast<unsigned>(i * sizeof(T) & 7) * 8;
            detail::u64 half = (i * sizeof(T) & 8 ? value_.hi : value_.lo) >> shift;
            using B = typename detail::bits_of<sizeof(T)>::type;
            return detail::bit_cast<T>(static_cast<B>(half));
        }
    }

    // Forgets the chunk.
    __device__ void drop() { chunk_ = ~0ull; }

   private:
    // The last chunk may reach past the array's end, never past its frame.
    __device__ void load(unsigned long long chunk) {
        detail::Place place = detail::place_of<detail::pair64>(array_, chunk);
        if (!detail::try_read(array_, place, &value_)) value_ = detail::read_faulting<detail::pair64>(array_, place);
        chunk_ = chunk;
    }

    const layout::ArrayDesc& array_;
    detail::pair64 value_{};
    unsigned long long chunk_ = ~0ull;
};

}  // namespace gpuvm
