// An element of an array: where it lies, and the loads that read its bits.
#pragma once

#include "region.cuh"

namespace gpuvm {
namespace detail {

// Where an element lies.
struct Place {
    u64 page;
    u32 offset;  // bytes into the page
};
template <class T>
GPUVM_DEVICE Place place_of(const layout::ArrayDesc& array, u64 index) {
    u64 byte = index * sizeof(T);
    return Place{byte >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};
}

// An index, or the end of a span, is past the end of an array.
GPUVM_NOINLINE void report_out_of_range(const layout::VmDesc* vm, u64 length, u32 region, u64 index, u32 code) {
    Fault fault;
    fault.code = code;
    fault.region = region & (layout::REGIONS_MAX - 1);
    fault.index = index;
    fault.size = length;
    report(vm, fault);
}

// What an array has elements of, and whether they are only read.
template <class T>
struct without_const {
    static constexpr bool is_const = false;
    using type = T;
};
template <class T>
struct without_const<const T> {
    static constexpr bool is_const = true;
    using type = T;
};

// Unsigned types by size, to move an element's bits through one access.
template <int Bytes>
struct bits_of;
template <>
struct bits_of<1> {
    using type = u8;
};
template <>
struct bits_of<2> {
    using type = u16;
};
template <>
struct bits_of<4> {
    using type = u32;
};
template <>
struct bits_of<8> {
    using type = u64;
};
template <class To, class From>
GPUVM_DEVICE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    copy_bytes(&to, &from, sizeof(To));
    return to;
}

// An element by strong loads: weak ones may hit a line of an earlier visit of the frame. Up to 8 bytes by one
// acquire load, which keeps the second look at the word behind it; more by relaxed ones and a fence.
template <class T>
GPUVM_DEVICE T load_strong(u64 address) {
    if constexpr (sizeof(T) <= 8) {
        using B = typename bits_of<sizeof(T)>::type;
        return bit_cast<T>(ld_acquire_gpu(reinterpret_cast<const B*>(address)));
    } else {
        T value;
        pair64* out = reinterpret_cast<pair64*>(&value);
        if constexpr (alignof(T) >= 16) {
            for (unsigned n = 0; n < sizeof(T) / 16; ++n)
                out[n] = ld_relaxed_gpu_v2(reinterpret_cast<const pair64*>(address) + n);
        } else {
            u64 words[sizeof(T) / 8];
            for (unsigned n = 0; n < sizeof(T) / 8; ++n)
                words[n] = ld_relaxed_gpu(reinterpret_cast<const u64*>(address) + n);
            copy_bytes(&value, words, sizeof(T));
        }
        // The data before the second look at the word.
        fence_acq_rel_gpu();
        return value;
    }
}

// An element by weak loads, through L1: right where no frame is ever refilled.
template <class T>
GPUVM_DEVICE T load_weak(u64 address) {
    if constexpr (sizeof(T) <= 8) {
        using B = typename bits_of<sizeof(T)>::type;
        return bit_cast<T>(ld_weak(reinterpret_cast<const B*>(address)));
    } else if constexpr (alignof(T) >= 16) {
        pair64 pairs[sizeof(T) / 16];
        for (unsigned n = 0; n < sizeof(T) / 16; ++n) pairs[n] = ld_weak(reinterpret_cast<const pair64*>(address) + n);
        return bit_cast<T>(pairs);
    } else {
        u64 words[sizeof(T) / 8];
        for (unsigned n = 0; n < sizeof(T) / 8; ++n) words[n] = ld_weak(reinterpret_cast<const u64*>(address) + n);
        return bit_cast<T>(words);
    }
}

}  // namespace detail
}  // namespace gpuvm
