// gpuvm::array<T> where an access looks its page's place up: `a[i]` is a reference to plain memory, in the page's frame
// or at its home. The same names as in array.cuh, so that one source is compiled in both forms; the launch says which.
#pragma once

#include "detail/atomics.cuh"
#include "detail/look_up.cuh"
#include "kernel_param.cuh"

namespace gpuvm {

// Raw elements of one page, from one on to the end of the page or of the array.
template <class T>
class span {
  public:
    __device__ span(T* data, unsigned long long first, unsigned long long size)
        : data_(data), first_(first), size_(size) {}
    __device__ T* data() const { return data_; }
    __device__ unsigned long long size() const { return size_; }
    __device__ unsigned long long first() const { return first_; }
    __device__ explicit operator bool() const { return size_ != 0; }
    __device__ T& operator[](unsigned long long k) const { return data_[k]; }

  private:
    T* data_;
    unsigned long long first_, size_;
};

// For a lane that walks neighbouring elements. Nothing is kept from one to the next, so nothing has to be dropped.
template <class T>
class reader {
  public:
    __device__ explicit reader(const layout::LookedUpDesc& array) : array_(array) {}
    __device__ T operator[](unsigned long long i) const { return *detail::look_up<const T, false>(array_, i); }
    __device__ void drop() const {}

  private:
    layout::LookedUpDesc array_;
};

// The same for reads and, over `T` that is not const, writes.
template <class T>
class cursor {
    using V = typename detail::without_const<T>::type;

  public:
    __device__ explicit cursor(const layout::LookedUpDesc& array) : array_(array) {}
    cursor(const cursor&) = delete;
    cursor& operator=(const cursor&) = delete;
    __device__ V operator[](unsigned long long i) const { return *detail::look_up<const V, false>(array_, i); }
    __device__ void write(unsigned long long i, const V& value) const {
        static_assert(!detail::without_const<T>::is_const,
                      "gpuvm: a cursor over array<const T> only reads: take it from an array<T>");
        *detail::look_up<V, true>(array_, i) = value;
    }
    __device__ void drop() const {}

  private:
    layout::LookedUpDesc array_;
};

// `array<const T>` cannot be written. `array<T>` counts a page as written that `a[i]` refers to.
template <class T>
class array {
    using V = typename detail::without_const<T>::type;
    static constexpr bool kStores = !detail::without_const<T>::is_const;
    static_assert(
        (sizeof(T) & (sizeof(T) - 1)) == 0 && sizeof(T) <= layout::PAGE_BYTES_MIN,
        "gpuvm: the element's size must divide the page: use a type of 1, 2, 4 .. 4096 bytes (pad it with alignas)");

  public:
    __device__ unsigned long long size() const { return desc_.length; }
    __device__ bool failed() const { return detail::aborted(detail::vm_of(desc_)); }
    // Past the end: a fault, and an element that belongs to nothing, with any value.
    __device__ T& operator[](unsigned long long i) { return *detail::look_up<T, kStores>(desc_, i); }
    __device__ V operator[](unsigned long long i) const { return *detail::look_up<const V, false>(desc_, i); }

    __device__ V atomic_add(unsigned long long i, V v) const { return detail::atomic_add(atomic_at(i), v); }
    __device__ V atomic_min(unsigned long long i, V v) const { return detail::atomic_min(atomic_at(i), v); }
    __device__ V atomic_max(unsigned long long i, V v) const { return detail::atomic_max(atomic_at(i), v); }
    __device__ V atomic_or(unsigned long long i, V v) const { return detail::atomic_or(atomic_at(i), v); }
    __device__ V atomic_exch(unsigned long long i, V v) const { return detail::atomic_exch(atomic_at(i), v); }
    __device__ V atomic_cas(unsigned long long i, V expected, V desired) const {
        return detail::atomic_cas(atomic_at(i), expected, desired);
    }

    __device__ span<T> pin(unsigned long long i, unsigned long long = 0) const {
        if (i >= desc_.length) {
            detail::report_out_of_range(detail::vm_of(desc_), desc_.length, desc_.region, i,
                                        layout::FAULT_OUT_OF_RANGE_SPAN);
            return span<T>(nullptr, i, 0);
        }
        unsigned long long page = 1ull << desc_.page_shift, to_end = desc_.length - i;
        unsigned long long in_page = (page - (i * sizeof(T) & (page - 1))) / sizeof(T);
        return span<T>(detail::look_up<T, kStores>(desc_, i), i, in_page < to_end ? in_page : to_end);
    }
    __device__ span<T> overwrite(unsigned long long i, unsigned long long, unsigned = ~0u) const { return pin(i); }
    __device__ gpuvm::reader<V> reader() const { return gpuvm::reader<V>(desc_); }
    __device__ gpuvm::cursor<T> cursor() const { return gpuvm::cursor<T>(desc_); }
    // Frames of such an array are in no order.
    __device__ const V* resident() const { return nullptr; }
    // The pages come before the next launch, as far as frames are free.
    __device__ void prefetch(unsigned long long first, unsigned long long count) const {
        detail::wish_for(desc_, sizeof(T), first, count);
    }

  private:
    __device__ T* atomic_at(unsigned long long i) const {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "gpuvm: atomics work on elements of 4 and 8 bytes");
        return detail::look_up<T, kStores>(desc_, i);
    }

    layout::LookedUpDesc desc_;
};

}  // namespace gpuvm
