// Element accesses: an optimistic read that never writes the page table but for the referenced bit; writes,
// updates and atomics under a pin; the way to a fault for all of them.
#pragma once

#include "atomics.cuh"
#include "in_place.cuh"
#include "overwrite.cuh"
#include "quick_read.cuh"

namespace gpuvm {
namespace detail {

template <class>
constexpr bool never = false;

// One AND and one wide multiply-add on the word's low half.
GPUVM_DEVICE u64 frame_at(const layout::ArrayDesc& array, u64 word) {
    return array.frames + static_cast<u64>(static_cast<u32>(word & layout::FRAME_MASK)) * array.frame_scale;
}

// Runs `use(address)` with the element's page in a frame and held for this lane, whatever it takes. False after a
// fault.
template <class Use>
GPUVM_DEVICE bool with_page(Miss* miss, u32 offset, bool write, Use use) {
    while (true) {
        u32 outcome = acquire_round(miss, false);
        if (outcome == kRoundHeld) {
            if (write) mark_dirty(miss->word(), 0);
            use(miss->frame_address() + offset);
            unpin(miss->word(), 1);
        } else if (outcome == kRoundOurs) {
            use(miss->frame_address() + offset);
            publish_ours(miss, write);
        }
        // Lanes that hold give up their pins before those of this round that do not wait for anything.
        if (miss->mixed) __syncwarp(miss->active);
        if (outcome != kRoundRetry) return outcome != kRoundFailed;
    }
}

// The same for a read of an element that is in range.
template <class T>
GPUVM_NOINLINE T read_faulting(Miss* miss, u32 offset) {
    T value{};
    with_page(miss, offset, false, [&value](u64 address) { value = load_strong<T>(address); });
    return value;
}

template <class T>
GPUVM_DEVICE T read_slow(const layout::ArrayDesc& array, u64 index, u64 seen) {
    if (index >= array.length) {
        report_out_of_range(vm_of(array), array.length, array.region, index, layout::FAULT_OUT_OF_RANGE);
        return T{};
    }
    Place place = place_of<T>(array, index);
#if GPUVM_STAGED
    if constexpr (kDirect && sizeof(T) <= 8) {
        using B = typename bits_of<sizeof(T)>::type;
        // Asked where there is one transport only, too: without it ptxas 13.0 takes 18 registers more. A page that goes
        // through a staging buffer in several pieces is for the long way.
        bool fits = array.home != 0 && !never_evicted(array) && !stores_in_place(array) &&
                    array.offset_mask < kStagingBytes && !(array.home & (kStagingBytes - 1)) &&
                    !is_in_sample(array, place.page);
        if (fits && state_of(seen) == kAbsent) {
            Quick quick;
            if constexpr (kVictims)
                quick = read_quickly_of<B>(array, place.page, place.offset, seen, victim_of(array, seen));
            else
                quick = read_quickly_of<B>(array, place.page, place.offset, seen);
            if (quick.done) return bit_cast<T>(static_cast<B>(quick.bits));
        }
    }
#endif
    Miss miss(array, place.page);
    return read_faulting<T>(&miss, place.offset);
}

// Whether a page of a never-evicted region is there. The word moves once: a stale one only sends us the slow way, and
// only a word that says so lets the data be looked at.
GPUVM_DEVICE bool is_in_own_frame(const layout::ArrayDesc& array, u64 page) {
    return all_resident(words_of(array)) || is_resident(ld_weak(words_of(array) + page));
}
// Where an element of such a region lies: page p is in frame p.
template <class T>
GPUVM_DEVICE u64 address_in_own_frames(const layout::ArrayDesc& array, u64 index) {
    return array.frames + index * sizeof(T);
}

// Element 0 where all pages of such a region are there. They stay, and no line of theirs is in L1 from before their
// fill: weak loads are right.
template <class T>
GPUVM_DEVICE const T* all_elements(const layout::ArrayDesc& array) {
    bool all = never_evicted(array) && all_resident(words_of(array));
    return all ? reinterpret_cast<const T*>(array.frames) : nullptr;
}

// One optimistic try: word, element, word again. `seen` is the first word.
template <class T>
GPUVM_DEVICE bool try_read(const layout::ArrayDesc& array, u64 index, T* value, u64* seen) {
    Place place = place_of<T>(array, index);
    u64* word = words_of(array) + place.page;
    if (never_evicted(array)) {
        if (!is_in_own_frame(array, place.page)) return false;
        *value = load_weak<T>(address_in_own_frames<T>(array, index));
        return true;
    }
    if (reads_in_place(array) && read_at_home<T>(array, place, value)) return true;
    // Acquire: pairs with publication, so the frame's data is there.
    u64 first = *seen = ld_acquire_gpu(word);
    if (!is_resident(first)) return false;
    *value = load_strong<T>(frame_at(array, first) + place.offset);
    // The load above is an acquire: this one comes after it.
    u64 second = ld_relaxed_gpu(word);
    // One test for both: another stay, or a page whose referenced bit is to be set.
    u64 difference = (first | layout::REFERENCED_BIT) ^ second;
    if (GPUVM_LIKELY(!(difference & (kSameStay | layout::REFERENCED_BIT)))) return true;
    if (difference & kSameStay) return false;
    touch(word, second);
    return true;
}

template <class T>
GPUVM_DEVICE T read_element(const layout::ArrayDesc& array, u64 index) {
    T value;
    u64 seen = kError;  // an out-of-range index has no word
    if (GPUVM_LIKELY(index < array.length) && GPUVM_LIKELY(try_read<T>(array, index, &value, &seen))) return value;
    return read_slow<T>(array, index, seen);
}

template <class T, bool Stores, class Use>
GPUVM_NOINLINE bool use_faulting(Miss* miss, u32 offset, Use use) {
    auto at = [&use](u64 address) { use(reinterpret_cast<T*>(address)); };
    if constexpr (Stores && kDirect)
        if (stores_in_place(miss->array) && store_at_home(miss->array, miss->page, offset, sizeof(T), at)) return true;
    return with_page(miss, offset, true, at);
}

// Runs `use(pointer)` under a pin, with the page marked dirty first. `Stores`: it does no more than store, which may be
// done at the page's home.
template <class T, bool Stores = false, class Use>
GPUVM_DEVICE bool with_element(const layout::ArrayDesc& array, u64 index, Use use) {
    if (index >= array.length) {
        report_out_of_range(vm_of(array), array.length, array.region, index, layout::FAULT_OUT_OF_RANGE);
        return false;
    }
    Place place = place_of<T>(array, index);
    u64* word = words_of(array) + place.page;
    // A look first: pins on a page that is absent would only be taken back.
    u64 seen = ld_relaxed_gpu(word);
    if (GPUVM_LIKELY(is_resident(seen))) {
        if (never_evicted(array)) {
            // Nothing evicts it, and it is flushed only when no launch uses it: a store needs no pin.
            mark_dirty(word, seen);
            use(reinterpret_cast<T*>(frame_at(array, seen) + place.offset));
            return true;
        }
        u64 old = add_pins(word, 1);
        if (GPUVM_LIKELY(pins_held(old))) {
            mark_dirty(word, old);
            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));
            unpin(word, 1);
            touch(word, old);
            return true;
        }
        undo_pins(word, 1);
    }
    Miss miss(array, place.page);
    return use_faulting<T, Stores>(&miss, place.offset, use);
}

// An element store: strong, since other lanes read by strong loads; the unpin's release orders it.
template <class T>
GPUVM_DEVICE void store_strong(T* p, const T& value) {
    if constexpr (sizeof(T) <= 8) {
        using B = typename bits_of<sizeof(T)>::type;
        st_relaxed_gpu(reinterpret_cast<B*>(p), bit_cast<B>(value));
    } else {
        u64 words[sizeof(T) / 8];
        copy_bytes(words, &value, sizeof(T));
        for (unsigned n = 0; n < sizeof(T) / 8; ++n) st_relaxed_gpu(reinterpret_cast<u64*>(p) + n, words[n]);
    }
}

template <class T>
GPUVM_DEVICE void write_element(const layout::ArrayDesc& array, u64 index, const T& value) {
    with_element<T, true>(array, index, [&value](T* p) { store_strong(p, value); });
}

template <class T, class F>
GPUVM_DEVICE T update_element(const layout::ArrayDesc& array, u64 index, F change) {
    T result{};
    with_element<T>(array, index, [&result, &change](T* p) {
        result = change(load_strong<T>(reinterpret_cast<u64>(p)));
        store_strong(p, result);
    });
    return result;
}

template <class T, class F>
GPUVM_DEVICE T modify_element(const layout::ArrayDesc& array, u64 index, F op) {
    T old{};
    with_element<T>(array, index, [&old, &op](T* p) { old = op(p); });
    return old;
}

// Spans hold their pin beyond this call: no lane of the round waits, so nothing is used here.
GPUVM_NOINLINE u64 pin_slow(Miss* miss, u32 offset, bool write) {
    while (true) {
        u32 outcome = acquire_round(miss, true);
        if (outcome == kRoundHeld && write) mark_dirty(miss->word(), 0);
        if (miss->mixed) __syncwarp(miss->active);
        if (outcome != kRoundRetry) return outcome == kRoundHeld ? miss->frame_address() + offset : 0;
    }
}

// Pins a resident page for this lane, by one addition for all lanes that are here with it. False when it is not
// resident.
GPUVM_DEVICE bool pin_resident(u64* word, u64* seen) {
    u32 active, group = match_active(reinterpret_cast<u64>(word), &active);
    u32 leader = __ffs(group) - 1, lanes = __popc(group);
    u64 old = 0;
    // A look first: pins on a page that is absent would only be taken back.
    if (lane_id() == leader && is_resident(ld_relaxed_gpu(word))) {
        old = add_pins(word, lanes);
        if (pins_held(old))
            touch(word, old);
        else
            undo_pins(word, lanes);
    }
    old = __shfl_sync(group, old, leader);
    // The leader's acquire, which also dropped this multiprocessor's L1, comes before the group's accesses.
    __syncwarp(group);
    *seen = old;
    return pins_held(old);
}

// Gives one pin a lane back, by one subtraction for all lanes that are here with the page. It awaits nothing:
// destructors run divergently.
GPUVM_DEVICE void unpin_together(u64* word) {
    u32 active, group = match_active(reinterpret_cast<u64>(word), &active);
    // The group's accesses come before the release.
    __syncwarp(group);
    if (lane_id() == static_cast<u32>(__ffs(group) - 1)) unpin(word, __popc(group));
}

// Address of element `index` with one pin for this lane, or 0. `write` marks the page dirty at once, before any store.
// A region that is never evicted needs no pins: they are given back at once.
template <class T>
GPUVM_DEVICE u64 pin_element(const layout::ArrayDesc& array, u64 index, bool write) {
    if (index >= array.length) {
        report_out_of_range(vm_of(array), array.length, array.region, index, layout::FAULT_OUT_OF_RANGE_SPAN);
        return 0;
    }
    Place place = place_of<T>(array, index);
    u64* word = words_of(array) + place.page;
    if (never_evicted(array)) {
        if (is_in_own_frame(array, place.page)) {
            if (write) mark_dirty(word, ld_weak(word));
            return address_in_own_frames<T>(array, index);
        }
    } else {
        u64 seen;
        if (pin_resident(word, &seen)) {
            if (write) mark_dirty(word, seen);
            return frame_at(array, seen) + place.offset;
        }
    }
    Miss miss(array, place.page);
    u64 address = pin_slow(&miss, place.offset, write);
    if (address && never_evicted(array)) unpin(word, 1);
    return address;
}

// Address of element `index` for a span that is only read, of `most` elements: at the page's home, without a pin, or as
// `pin_element` has it.
template <class T>
GPUVM_DEVICE u64 span_element(const layout::ArrayDesc& array, u64 index, u64 most) {
    if (index < array.length && is_span_at_home(array, place_of<T>(array, index), most * sizeof(T)))
        return array.home + index * sizeof(T);
    return pin_element<T>(array, index, false);
}

// Address of element `index` for a span whose holders, all of `together`, write elements [index, index + count) of its
// page.
template <class T>
GPUVM_DEVICE u64 overwritten_element(const layout::ArrayDesc& array, u64 index, u64 count, u32 together) {
    Place place = place_of<T>(array, index);
    u64* word = words_of(array) + place.page;
    bool whole = is_whole_page<T>(array, index, count, place);
    if (never_evicted(array)) whole = whole && !is_in_own_frame(array, place.page);
    // Those who do not overwrite a whole page are a group that nothing looks at.
    u32 group = __match_any_sync(together, whole ? reinterpret_cast<u64>(word) : 0);
    if (!whole) return pin_element<T>(array, index, true);
    Miss miss(array, place.page);
    miss.group = group;
    u64 address = pin_blank(&miss, place.offset);
    if (address && never_evicted(array)) unpin(word, 1);
    return address;
}

}  // namespace detail
}  // namespace gpuvm
