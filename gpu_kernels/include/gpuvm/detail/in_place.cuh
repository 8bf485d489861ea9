// Reads of pages where they live: an element of a read-only region whose page has no frame is read at its home, and the
// page stays there.
//
// Nobody writes the home of such a region, so what it holds is right at any time, whatever the page's word says: the
// word only tells whether a frame is nearer. So one look will do, and no order is needed. A region that kernels write
// needs a second look behind the load, and strong loads; its pages are fetched.
#pragma once

#include "element.cuh"
#include "pool.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE bool reads_in_place(const layout::ArrayDesc& array) {
    return kDirect && array.region & layout::ARRAY_IN_PLACE;
}

// Whether a page without a frame is to be read in place now, rather than fetched. Relaxed: a hint.
GPUVM_DEVICE bool stays_at_home(const layout::ArrayDesc& array) {
    if (!(array.region & layout::ARRAY_FETCH_WHILE_FREE)) return true;
    const layout::VmDesc* vm = vm_of(array);
    return static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) <= static_cast<i64>(vm->frames_low);
}

// Reads an element at its page's home. False when the page has a frame, is to get one, or cannot be had.
template <class T>
GPUVM_DEVICE bool read_at_home(const layout::ArrayDesc& array, Place place, T* value) {
    u64 byte = (place.page << array.page_shift) + place.offset;
    // A chunk of several elements may reach past the array's end, and the home need not.
    if (byte + sizeof(T) > array.bytes) return false;
    // Relaxed: an acquire would empty the L1 cache, from which a lane's next elements come.
    u64 state = state_of(ld_relaxed_gpu(words_of(array) + place.page));
    if ((state != kAbsent && state != kFetching) || !stays_at_home(array)) return false;
    *value = load_weak<T>(array.home + byte);
    return true;
}

}  // namespace detail
}  // namespace gpuvm
