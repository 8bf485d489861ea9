// The page table entry and its transitions. layouts.h has the bits; nothing else may touch a word.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

constexpr u64 kPin = 1ull << layout::PIN_SHIFT;
constexpr u64 kAbsent = layout::STATE_ABSENT << layout::STATE_SHIFT;
constexpr u64 kFetching = layout::STATE_FETCHING << layout::STATE_SHIFT;
constexpr u64 kResident = layout::STATE_RESIDENT << layout::STATE_SHIFT;
constexpr u64 kError = layout::STATE_ERROR << layout::STATE_SHIFT;
// Two words with equal bits here speak of the same stay of a page in the same frame.
constexpr u64 kSameStay = layout::VERSION_MASK | layout::FRAME_MASK | layout::STATE_MASK;

GPUVM_DEVICE u64 state_of(u64 word) { return word & layout::STATE_MASK; }
GPUVM_DEVICE bool is_resident(u64 word) { return state_of(word) == kResident; }
GPUVM_DEVICE u32 frame_of(u64 word) { return static_cast<u32>((word & layout::FRAME_MASK) >> layout::FRAME_SHIFT); }
GPUVM_DEVICE u64 pins_of(u64 word) { return word >> layout::PIN_SHIFT; }

// The entry of a page that leaves its frame: next version, no frame. Only for a clean, unpinned page.
GPUVM_DEVICE u64 evicted(u64 word) {
    return ((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;
}

// Claim: ABSENT to FETCHING on the exact word. Acquire: what the evictor did with the home comes first.
GPUVM_DEVICE bool try_claim(u64* word, u64 seen) {
    return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;
}

// The owner of a claim takes it back before a request was posted. Relaxed: it wrote nothing that others read.
GPUVM_DEVICE void revert_claim(u64* word) { atom_add_relaxed_gpu(word, kAbsent - kFetching); }

// While FETCHING the owner alone changes the frame field, so a difference can be added.
GPUVM_DEVICE void set_token(u64* word, u32 token) {
    atom_add_relaxed_gpu(word, static_cast<u64>(token) << layout::FRAME_SHIFT);
}

// Publication. An ADD and never a store: pins of others come and go in every state. Release: the frame's
// data, which the caller acquired with the completion, comes before the word for the thread that acquires it.
GPUVM_DEVICE void publish(u64* word, u32 token, u32 frame, u32 pins) {
    u64 fields = (static_cast<u64>(frame) - token) << layout::FRAME_SHIFT;
    atom_add_release_gpu(word, (kResident - kFetching) + fields + pins * kPin);
}

// Publication of a page that is to be written back: lanes wrote to it while it was theirs alone, or another copy of it
// at home is stale.
GPUVM_DEVICE void publish_dirty(u64* word, u32 token, u32 frame, u32 pins) {
    u64 fields = (static_cast<u64>(frame) - token) << layout::FRAME_SHIFT;
    // No holder can have set the dirty bit of a page that is being fetched: it can be added.
    atom_add_release_gpu(word, (kResident - kFetching) + fields + layout::DIRTY_BIT + pins * kPin);
}

// The fetch failed: the frame field takes the fault's code.
GPUVM_DEVICE void publish_error(u64* word, u32 token, u32 code) {
    u64 fields = (static_cast<u64>(code) - token) << layout::FRAME_SHIFT;
    atom_add_release_gpu(word, (kError - kFetching) + fields);
}

// A failed fetch is over with: its page is absent, for the next access to fetch. Pins of lanes that are about to undo
// them stay. A thread that claims the page acquires it again: an error has no data.
GPUVM_DEVICE void clear_error(u64* word) {
    u64 seen = ld_relaxed_gpu(word);
    while (state_of(seen) == kError) {
        u64 found = atom_cas_acquire_gpu(word, seen, seen & ~(layout::STATE_MASK | layout::FRAME_MASK));
        if (found == seen) return;
        seen = found;
    }
}

// The count of a never-evicted region's pages that are not resident, before its words. A page is counted out after its
// publication and in again before it leaves, so that at 0 all are there. Release: each count continues the sequence of
// those before it, so that the last one comes after all that was published before any of them.
GPUVM_DEVICE void count_resident(u64* words) { atom_add_release_gpu(words - 1, ~u64{0}); }
GPUVM_DEVICE void count_absent(u64* words) { atom_add_release_gpu(words - 1, u64{1}); }
// Weak, through L1, as are the reads of the data behind it: an old value only sends the reader to the page's entry, and
// no line of a page's data is in L1 before its fill.
GPUVM_DEVICE bool all_resident(const u64* words) { return ld_weak(words - 1) == 0; }

// The fetch was flushed with its queue pair: absent again.
GPUVM_DEVICE void publish_absent(u64* word, u32 token) {
    atom_add_release_gpu(word, (kAbsent - kFetching) - (static_cast<u64>(token) << layout::FRAME_SHIFT));
}

// Takes `count` pins; they are held only if the returned old word is resident with room for them, else the
// caller must `undo_pins`. Acquire: pairs with the release of publication, so the frame's data is there.
GPUVM_DEVICE u64 add_pins(u64* word, u32 count) { return atom_add_acquire_gpu(word, count * kPin); }
GPUVM_DEVICE bool pins_held(u64 old) { return is_resident(old) && pins_of(old) < layout::PINS_MAX; }
GPUVM_DEVICE void undo_pins(u64* word, u32 count) { atom_add_relaxed_gpu(word, 0 - count * kPin); }

// Whether pins that found this word keep the page from being fetched, so that its home may be used in place: it has no
// frame, and nothing waits to fetch it, which the referenced bit of an absent page says.
GPUVM_DEVICE bool holds_at_home(u64 old) {
    return state_of(old) == kAbsent && !(old & layout::REFERENCED_BIT) && pins_of(old) < layout::PINS_MAX;
}

// Release: the holder's stores to the frame come before the pin is gone, and with it before a cleaner's WRITE. Of a
// page that was used in place: its stores to the home come before the next fetch.
GPUVM_DEVICE void unpin(u64* word, u32 count) { atom_add_release_gpu(word, 0 - count * kPin); }

// Marks the page dirty, under a pin and before the first store. `seen` is any word read under the same pin
// or by the pinning itself: a dirty page stays dirty while it is pinned.
GPUVM_DEVICE void mark_dirty(u64* word, u64 seen) {
    if (!(seen & layout::DIRTY_BIT)) atom_or_relaxed_gpu(word, layout::DIRTY_BIT);
}

GPUVM_DEVICE void touch(u64* word, u64 seen) {
    if (!(seen & layout::REFERENCED_BIT)) atom_or_relaxed_gpu(word, layout::REFERENCED_BIT);
}

// Eviction by one exact compare-and-swap. acq_rel: readers' accesses before, the next fill after it.
GPUVM_DEVICE bool try_evict(u64* word, u64 seen) { return atom_cas_acq_rel_gpu(word, seen, evicted(seen)) == seen; }

// Cleaning begins: dirty goes before the WRITE is posted, so that a later writer sets it again.
GPUVM_DEVICE bool try_clean(u64* word, u64 seen) {
    return atom_cas_acq_rel_gpu(word, seen, (seen & ~layout::DIRTY_BIT) | layout::WRITE_BACK_BIT) == seen;
}

// The mark of a write-back on a clean page, whose bytes its holder does not change. Acquire: the thread that had the
// mark before has left what goes with the frame.
GPUVM_DEVICE bool try_mark(u64* word, u64 seen) {
    return atom_cas_acquire_gpu(word, seen, seen | layout::WRITE_BACK_BIT) == seen;
}

// A WRITE ended. Release: it has read the frame before the frame may be released.
GPUVM_DEVICE void write_back_done(u64* word) { atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT); }

// A WRITE failed or could not be posted: dirty again, and only then is the write-back mark taken away.
GPUVM_DEVICE void write_back_failed(u64* word) {
    atom_or_relaxed_gpu(word, layout::DIRTY_BIT);
    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);
}

}  // namespace detail
}  // namespace gpuvm
