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
                // A chunk that the array's end cuts is read element by element.
                if (i >= array_.length) return detail::read_element<T>(array_, i);
                value_ = detail::read_element<detail::pair64>(whole_chunks(), chunk);
                chunk_ = chunk;
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
    // The same pages as chunks. The last one may reach past the array's end, never past its frame.
    __device__ layout::ArrayDesc whole_chunks() const {
        layout::ArrayDesc chunks = array_;
        chunks.length = (array_.length * sizeof(T) + 15) / 16;
        return chunks;
    }

    const layout::ArrayDesc& array_;
    detail::pair64 value_{};
    unsigned long long chunk_ = ~0ull;
};

}  // namespace gpuvm
