// gpuvm::array<T> where an access to a page that is not there is a fault, which its lanes serve.
#pragma once

#include "cursor.cuh"
#include "detail/access.cuh"
#include "detail/prefetch.cuh"
#include "kernel_param.cuh"
#include "reader.cuh"
#include "span.cuh"

namespace gpuvm {

template <class T>
class array;

// What `a[i]` is: a value to read, assign or combine, at once. It cannot be kept: its page may leave.
template <class T>
class element {
  public:
    __device__ element(const element&) {
        static_assert(
            detail::never<T>,
            "gpuvm: a paged element cannot be kept: write 'T x = a[i];' with the element's type, not 'auto x = a[i];'");
    }
    template <class U = T>
    __device__ T* operator&() const {
        static_assert(
            detail::never<U>,
            "gpuvm: a paged element has no address: hold its page with 'auto s = a.pin(i);' and use 's.data()'");
        return nullptr;
    }

    __device__ operator T() && { return detail::read_element<T>(*desc_, index_); }

    __device__ T operator=(T value) && {
        detail::write_element<T>(*desc_, index_, value);
        return value;
    }
    __device__ T operator=(element&& other) && {
        return static_cast<element&&>(*this) = static_cast<T>(static_cast<element&&>(other));
    }

    // Read, change and write back under one pin of the page. Not atomic: as `x += v` on plain memory.
    template <class U>
    __device__ T operator+=(U v) && {
        return update([v](T x) { return static_cast<T>(x + v); });
    }
    template <class U>
    __device__ T operator-=(U v) && {
        return update([v](T x) { return static_cast<T>(x - v); });
    }
    template <class U>
    __device__ T operator*=(U v) && {
        return update([v](T x) { return static_cast<T>(x * v); });
    }
    template <class U>
    __device__ T operator/=(U v) && {
        return update([v](T x) { return static_cast<T>(x / v); });
    }
    template <class U>
    __device__ T operator%=(U v) && {
        return update([v](T x) { return static_cast<T>(x % v); });
    }
    template <class U>
    __device__ T operator&=(U v) && {
        return update([v](T x) { return static_cast<T>(x & v); });
    }
    template <class U>
    __device__ T operator|=(U v) && {
        return update([v](T x) { return static_cast<T>(x | v); });
    }
    template <class U>
    __device__ T operator^=(U v) && {
        return update([v](T x) { return static_cast<T>(x ^ v); });
    }
    template <class U>
    __device__ T operator<<=(U v) && {
        return update([v](T x) { return static_cast<T>(x << v); });
    }
    template <class U>
    __device__ T operator>>=(U v) && {
        return update([v](T x) { return static_cast<T>(x >> v); });
    }
    __device__ T operator++() && {
        return update([](T x) { return static_cast<T>(x + 1); });
    }
    __device__ T operator--() && {
        return update([](T x) { return static_cast<T>(x - 1); });
    }
    __device__ T operator++(int) && {
        return static_cast<T>(update([](T x) { return static_cast<T>(x + 1); }) - 1);
    }
    __device__ T operator--(int) && {
        return static_cast<T>(update([](T x) { return static_cast<T>(x - 1); }) + 1);
    }

  private:
    template <class>
    friend class array;
    template <class>
    friend class element_index;

    __device__ explicit element(unsigned long long index) : index_(index) {}
    template <class F>
    __device__ T update(F change) {
        return detail::update_element<T>(*desc_, index_, change);
    }

    const layout::ArrayDesc* desc_ = nullptr;
    unsigned long long index_;
};

// The index of `a[i]` where only a value is wanted. A class, so that both forms of `a[i]` convert their index alike
// and the array's constness alone decides between them.
class value_index {
  public:
    __device__ value_index(unsigned long long index) : value(index) {}
    // `a[b[i]]`: an element of another array is an index by its value.
    template <class U>
    __device__ value_index(element<U>&& index) : value(static_cast<U>(static_cast<element<U>&&>(index))) {}
    unsigned long long value;
};

// The index of `a[i]`: made from any integer, it carries the element for the rest of the expression, so that
// `a[i]` is a reference to it and `auto x = a[i]` is a copy, which does not compile.
template <class T>
class element_index {
  public:
    __device__ element_index(unsigned long long index) : element_(index) {}
    template <class U>
    __device__ element_index(element<U>&& index) : element_(static_cast<U>(static_cast<element<U>&&>(index))) {}

  private:
    template <class>
    friend class array;
    element<T> element_;
};

// A paged array of `size()` elements of T, at most a page and a power of two in size. `array<const T>` cannot be
// written. All members may be called by any lane at any time; those that may wait for a page say so.
template <class T>
class array {
    static_assert(
        (sizeof(T) & (sizeof(T) - 1)) == 0 && sizeof(T) <= layout::PAGE_BYTES_MIN,
        "gpuvm: the element's size must divide the page: use a type of 1, 2, 4 .. 4096 bytes (pad it with alignas)");

  public:
    // Elements.
    __device__ unsigned long long size() const { return desc_.length; }

    // Whether this launch had a fault that it could not serve, or was asked to stop. A kernel's loops look at it.
    __device__ bool failed() const { return detail::aborted(detail::vm_of(desc_)); }

    // Reads one element; waits for its page when that is not resident. Past the end: a fault, and zero.
    __device__ T operator[](value_index i) const { return detail::read_element<T>(desc_, i.value); }

    // The element to read, assign or combine. A write waits for its page too, and is dropped after a fault.
    __device__ element<T>&& operator[](element_index<T>&& i) {
        i.element_.desc_ = &desc_;
        return static_cast<element<T>&&>(i.element_);
    }

    // Atomics at GPU scope, relaxed, as CUDA's. They return the old value, or zero after a fault.
    __device__ T atomic_add(unsigned long long i, T v) const {
        return atomic(i, [v](T* p) { return detail::atomic_add(p, v); });
    }
    __device__ T atomic_min(unsigned long long i, T v) const {
        return atomic(i, [v](T* p) { return detail::atomic_min(p, v); });
    }
    __device__ T atomic_max(unsigned long long i, T v) const {
        return atomic(i, [v](T* p) { return detail::atomic_max(p, v); });
    }
    __device__ T atomic_or(unsigned long long i, T v) const {
        return atomic(i, [v](T* p) { return detail::atomic_or(p, v); });
    }
    __device__ T atomic_exch(unsigned long long i, T v) const {
        return atomic(i, [v](T* p) { return detail::atomic_exch(p, v); });
    }
    // Stores `desired` where `expected` was.
    __device__ T atomic_cas(unsigned long long i, T expected, T desired) const {
        return atomic(i, [expected, desired](T* p) { return detail::atomic_cas(p, expected, desired); });
    }

    // Holds the page of element i for this lane: raw elements from i to the end of the page, until the span is
    // destroyed. Lanes that come here together with one page take their pins by one addition. The launch states how
    // many spans a lane holds at once, or a warp whose lanes all hold the same pages. Empty after a fault.
    __device__ span<T> pin(unsigned long long i) const {
        return span<T>(desc_, i, detail::pin_element<T>(desc_, i, true));
    }

    // The same where elements [i, i + count) are written, as far as their page has them, before it is let go, by this
    // lane or by those that come here with the same i and count. All lanes of `together` come, to any pages.
    // A page of which these are all elements is not fetched: until they are written they have any value, also where
    // the launch fails before. Other elements stay as they are.
    __device__ span<T> overwrite(unsigned long long i, unsigned long long count, unsigned together = ~0u) const {
        return span<T>(desc_, i, detail::overwritten_element<T>(desc_, i, count, together));
    }

    // For a lane that walks neighbouring elements.
    __device__ gpuvm::reader<T> reader() const { return gpuvm::reader<T>(desc_); }

    // The same with the page held from one access to the next, for reads and writes. It counts as a span.
    __device__ gpuvm::cursor<T> cursor() const { return gpuvm::cursor<T>(desc_); }

    // All elements as plain memory, to be read, once every page of a never-evicted region is there; else null. Stores
    // of other lanes in the same launch need not be seen.
    __device__ const T* resident() const { return detail::all_elements<T>(desc_); }

    // Begins to fetch the pages of elements [first, first + count) that are absent, as far as frames and ring
    // slots are free. Never waits.
    __device__ void prefetch(unsigned long long first, unsigned long long count) const {
        detail::prefetch(desc_, sizeof(T), first, count);
    }

  private:
    template <class F>
    __device__ T atomic(unsigned long long i, F op) const {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "gpuvm: atomics work on elements of 4 and 8 bytes");
        return detail::modify_element<T>(desc_, i, op);
    }

    layout::ArrayDesc desc_;
};

// Read-only: values only, no proxy, so that an assignment does not compile.
template <class T>
class array<const T> {
    static_assert(
        (sizeof(T) & (sizeof(T) - 1)) == 0 && sizeof(T) <= layout::PAGE_BYTES_MIN,
        "gpuvm: the element's size must divide the page: use a type of 1, 2, 4 .. 4096 bytes (pad it with alignas)");

  public:
    __device__ unsigned long long size() const { return desc_.length; }

    // Whether this launch had a fault that it could not serve, or was asked to stop. A kernel's loops look at it.
    __device__ bool failed() const { return detail::aborted(detail::vm_of(desc_)); }
    __device__ T operator[](value_index i) const { return detail::read_element<T>(desc_, i.value); }
    // `most`: how many elements are read, which is weighed where the page has no frame.
    __device__ span<const T> pin(unsigned long long i, unsigned long long most = 1ull << 32) const {
        return span<const T>(desc_, i, detail::span_element<T>(desc_, i, most));
    }
    __device__ gpuvm::reader<T> reader() const { return gpuvm::reader<T>(desc_); }
    __device__ gpuvm::cursor<const T> cursor() const { return gpuvm::cursor<const T>(desc_); }
    __device__ const T* resident() const { return detail::all_elements<T>(desc_); }
    __device__ void prefetch(unsigned long long first, unsigned long long count) const {
        detail::prefetch(desc_, sizeof(T), first, count);
    }

  private:
    layout::ArrayDesc desc_;
};

}  // namespace gpuvm
