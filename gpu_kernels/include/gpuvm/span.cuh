// gpuvm::span<T>: raw elements of one page, held in its frame until the span is destroyed. A span of a read-only region
// may lie where the page lives, as its placement says.
#pragma once

#include "detail/access.cuh"

namespace gpuvm {

template <class T>
class span {
  public:
    // `address` is the element's, with one pin taken for this lane, or 0.
    __device__ span(const layout::ArrayDesc& array, unsigned long long index, unsigned long long address)
        : data_(reinterpret_cast<T*>(address)), first_(index) {
        if (!address) return;
        unsigned long long page_bytes = 1ull << array.page_shift;
        unsigned long long to_page_end = (page_bytes - (index * sizeof(T) & (page_bytes - 1))) / sizeof(T);
        unsigned long long to_array_end = array.length - index;
        size_ = to_page_end < to_array_end ? to_page_end : to_array_end;
        if (!detail::never_evicted(array) && !detail::is_at_home_address(array, address))
            word_ = detail::words_of(array) + (index * sizeof(T) >> array.page_shift);
    }
    __device__ span(span&& other) : data_(other.data_), first_(other.first_), size_(other.size_), word_(other.word_) {
        other.word_ = nullptr;
        other.data_ = nullptr;
        other.size_ = 0;
    }
    span(const span&) = delete;
    span& operator=(const span&) = delete;
    span& operator=(span&&) = delete;
    // Release: this lane's stores come before the pin is gone.
    __device__ ~span() {
        if (word_) detail::unpin_together(word_);
    }

    // First raw element, or null after a fault.
    __device__ T* data() const { return data_; }
    // Elements from there to the end of the page or of the array; 0 after a fault.
    __device__ unsigned long long size() const { return size_; }
    // Index in the array of the first raw element.
    __device__ unsigned long long first() const { return first_; }
    __device__ explicit operator bool() const { return data_ != nullptr; }
    // Raw element k of the span; k is not checked.
    __device__ T& operator[](unsigned long long k) const { return data_[k]; }

  private:
    T* data_;
    unsigned long long first_;
    unsigned long long size_ = 0;
    detail::u64* word_ = nullptr;
};

}  // namespace gpuvm
