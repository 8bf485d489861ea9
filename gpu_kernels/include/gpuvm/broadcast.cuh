// gpuvm::broadcast<T>: an array of which each subscribed GPU holds a copy, as a kernel sees it. Passed by value.
#pragma once

#include "detail/broadcast.cuh"
#include "kernel_param.cuh"
#include "merge_queue.cuh"

namespace gpuvm {

template <class T>
class broadcast;

// What `x[i]` is: a value to read, or to assign, at once. It cannot be kept: `auto y = x[i];` compiles, and no use of
// y.
template <class T>
class broadcast_element {
  public:
    __device__ operator T() && { return array_->load(index_); }
    __device__ T operator=(T value) && {
        array_->store(index_, value);
        return value;
    }
    __device__ T operator=(broadcast_element&& other) && {
        return static_cast<broadcast_element&&>(*this) = static_cast<T>(static_cast<broadcast_element&&>(other));
    }
    // As on plain memory: not atomic.
    template <class U>
    __device__ T operator+=(U v) && {
        return static_cast<broadcast_element&&>(*this) = static_cast<T>(array_->load(index_) + v);
    }
    template <class U>
    __device__ T operator-=(U v) && {
        return static_cast<broadcast_element&&>(*this) = static_cast<T>(array_->load(index_) - v);
    }
    template <class U>
    __device__ T operator*=(U v) && {
        return static_cast<broadcast_element&&>(*this) = static_cast<T>(array_->load(index_) * v);
    }

  private:
    friend class broadcast<T>;
    __device__ broadcast_element(const broadcast<T>* array, unsigned long long index) : array_(array), index_(index) {}
    const broadcast<T>* array_;
    unsigned long long index_;
};

// Reading, for both kinds of array.
template <class T>
class broadcast_view {
    static_assert((sizeof(T) & (sizeof(T) - 1)) == 0 && sizeof(T) <= 4096,
                  "gpuvm: the element's size must divide the page: use a type of 1, 2, 4 .. 4096 bytes");

  public:
    // Elements. Accesses past the end are errors as with any pointer.
    __device__ unsigned long long size() const { return desc_.length; }

    // Whether this launch had a fault that it could not serve, or was asked to stop. A kernel's loops look at it.
    __device__ bool failed() const { return detail::aborted(reinterpret_cast<const layout::VmDesc*>(desc_.vm)); }

    // All elements as plain memory: this GPU's copies, and other GPUs' where it has not subscribed. While reads are
    // tracked, those by this pointer are not seen: `load` and `[]` are.
    __device__ const T* data() const { return reinterpret_cast<const T*>(desc_.own); }

    __device__ T load(unsigned long long i) const {
        detail::note_read(desc_, i * sizeof(T));
        return data()[i];
    }

    // Whether this launch's reads are noted, by `load` and `[]`. Where they are not, a kernel may read by `data()`
    // alone: nothing is asked between a lane's loads then, so that more of them are under way together.
    __device__ bool tracked() const { return desc_.reads != 0; }

    // The newest value of a store or an atomic of system scope on any GPU: it is asked of the page's owner.
    __device__ T load_system(unsigned long long i) const {
        static_assert(sizeof(T) <= 8, "gpuvm: system-scope accesses work on elements of 1, 2, 4 and 8 bytes");
        using B = typename detail::bits_of<sizeof(T)>::type;
        return detail::bit_cast<T>(
            detail::ld_relaxed_sys(reinterpret_cast<const B*>(detail::at_owner(desc_, i * sizeof(T)))));
    }

  protected:
    layout::BroadcastDesc desc_;
};

// Elements of T, a power of two in size, of which each subscribed GPU holds a copy. A load is a plain load of GPU
// memory. A store goes to the copies of all subscribers; other GPUs see it as late as CUDA lets stores to a peer be
// seen, and when the launch has ended. Stores of several lanes to one element race unless something orders them, and
// copies may then differ: use those of system scope, which the page's owner orders.
template <class T>
class broadcast : public broadcast_view<T> {
  public:
    __device__ void store(unsigned long long i, T value) const { detail::store_to_all(this->desc_, i, value); }

    __device__ broadcast_element<T> operator[](unsigned long long i) const { return broadcast_element<T>(this, i); }

    // To the owner's copy, which `load_system` of all GPUs reads. Other copies have it when the launches that use the
    // array have ended.
    __device__ void store_system(unsigned long long i, T value) const {
        static_assert(sizeof(T) <= 8, "gpuvm: system-scope accesses work on elements of 1, 2, 4 and 8 bytes");
        using B = typename detail::bits_of<sizeof(T)>::type;
        u64 byte = i * sizeof(T);
        // Before the change, as in `shared`.
        detail::mark_line(this->desc_, byte);
        detail::st_relaxed_sys(reinterpret_cast<B*>(detail::at_owner(this->desc_, byte)), detail::bit_cast<B>(value));
    }

    // Atomics of system scope, relaxed, at the owner's copy, as `store_system`. They return the old value.
    __device__ T atomic_add(unsigned long long i, T v) const { return atomicAdd_system(shared(i), v); }
    __device__ T atomic_min(unsigned long long i, T v) const { return atomicMin_system(shared(i), v); }
    __device__ T atomic_max(unsigned long long i, T v) const { return atomicMax_system(shared(i), v); }
    __device__ T atomic_or(unsigned long long i, T v) const { return atomicOr_system(shared(i), v); }
    __device__ T atomic_exch(unsigned long long i, T v) const { return atomicExch_system(shared(i), v); }
    __device__ T atomic_cas(unsigned long long i, T expected, T desired) const {
        return atomicCAS_system(shared(i), expected, desired);
    }

    // For a block whose lanes store near each other, but not side by side in one instruction: its stores are merged to
    // lines in shared memory before they leave for other GPUs.
    template <unsigned Lines>
    __device__ merging<T, Lines> merge_in(merge_queue<Lines>& queue) const {
        return merging<T, Lines>(this->desc_, queue);
    }

  private:
    using u64 = detail::u64;
    __device__ T* shared(unsigned long long i) const {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "gpuvm: atomics work on elements of 4 and 8 bytes");
        u64 byte = i * sizeof(T);
        // Before the change: who stops in between has forwarded a line too many.
        detail::mark_line(this->desc_, byte);
        return reinterpret_cast<T*>(detail::at_owner(this->desc_, byte));
    }
};

// Read-only: values only.
template <class T>
class broadcast<const T> : public broadcast_view<T> {
  public:
    __device__ T operator[](unsigned long long i) const { return this->load(i); }
};

}  // namespace gpuvm

template <class T>
struct gpuvm_kernel_param<gpuvm::broadcast<T>> {
    static constexpr unsigned kind = 4;
    using element = T;
};
template <class T>
struct gpuvm_kernel_param<gpuvm::broadcast<const T>> {
    static constexpr unsigned kind = 5;
    using element = const T;
};
