// Reads of pages where they live: an element whose page has no frame is read at its home, and the page stays there.
#pragma once

#include "element.cuh"
#include "pool.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE bool reads_in_place(const layout::ArrayDesc& array) {
    return kDirect && array.region & layout::ARRAY_IN_PLACE;
}
GPUVM_DEVICE bool is_constant(const layout::ArrayDesc& array) { return array.region & layout::ARRAY_CONSTANT; }

// Whether the word speaks of a page that no frame holds and none has held since its version began: its home has all
// that was ever written back, and nobody writes there before the page has had a frame.
GPUVM_DEVICE bool is_at_home(u64 word) { return state_of(word) == kAbsent || state_of(word) == kFetching; }

// Whether a page without a frame is to be read in place now, rather than fetched. Relaxed: a hint.
GPUVM_DEVICE bool stays_at_home(const layout::ArrayDesc& array) {
    if (!(array.region & layout::ARRAY_FETCH_WHILE_FREE)) return true;
    const layout::VmDesc* vm = vm_of(array);
    return static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) <= static_cast<i64>(vm->frames_low);
}

// An element of a page at home by strong loads: what a write-back stored, and no line of an earlier look.
template <class T>
GPUVM_DEVICE T load_home(u64 address) {
    if constexpr (sizeof(T) <= 8) {
        using B = typename bits_of<sizeof(T)>::type;
        return bit_cast<T>(ld_relaxed_sys(reinterpret_cast<const B*>(address)));
    } else {
        u64 words[sizeof(T) / 8];
        for (unsigned n = 0; n < sizeof(T) / 8; ++n)
            words[n] = ld_relaxed_sys(reinterpret_cast<const u64*>(address) + n);
        return bit_cast<T>(words);
    }
}

// Reads an element at its page's home. False when the page has a frame, or is to get one.
template <class T>
GPUVM_DEVICE bool read_at_home(const layout::ArrayDesc& array, Place place, T* value) {
    const u64* word = words_of(array) + place.page;
    u64 byte = (place.page << array.page_shift) + place.offset, home = array.home + byte;
    // A chunk of several elements may reach past the array's end, and the home need not.
    if (byte + sizeof(T) > array.bytes) return false;
    if (is_constant(array)) {
        // Nobody changes the home, so one look will do, and a relaxed one: an acquire would empty the L1 cache, from
        // which a lane's next elements come.
        if (!is_at_home(ld_relaxed_gpu(word)) || !stays_at_home(array)) return false;
        *value = load_weak<T>(home);
        return true;
    }
    // Acquire: the write-back that ended the last stay comes before the load.
    u64 first = ld_acquire_gpu(word);
    if (!is_at_home(first) || !stays_at_home(array)) return false;
    *value = load_home<T>(home);
    // The load comes before the second look.
    fence_acq_rel_gpu();
    u64 second = ld_relaxed_gpu(word);
    // The same version, and still no frame: no stay began in between, so nobody wrote the home. (A stay that began and
    // ended has counted the version.)
    return is_at_home(second) && !((first ^ second) & layout::VERSION_MASK);
}

}  // namespace detail
}  // namespace gpuvm
