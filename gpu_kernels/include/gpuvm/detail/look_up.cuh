// Accesses that look a page's place up and go there: to its frame, or to its home, which lanes reach by loads and
// stores. Nothing is validated, since within a launch no page of such an array comes or goes (docs/PROTOCOL.md, section
// 19). No access branches or calls, so that compilers unroll loops and have several accesses on their way.
#pragma once

#include "copy.cuh"
#include "element.cuh"
#include "pool.cuh"

namespace gpuvm {
namespace detail {

// Bit of a page's place: it is its home.
constexpr u64 kAtHome = 1;

// One byte a page, before the table's head. Stores of 1 say: of a page at home that it was used, of one in a frame that
// it may have been written. What the launch's end makes known is enough for who looks at them.
GPUVM_DEVICE u8* marks_of(const layout::RegionDesc* region) {
    u64 bytes = (region->pages / layout::MARKS_STEP + 1) * layout::MARKS_STEP;
    return reinterpret_cast<u8*>(region->words) - sizeof(layout::TableHead) - bytes;
}
GPUVM_DEVICE u8* mark_of(const layout::VmDesc* vm, u64 id) { return marks_of(region_of(vm, id)) + page_of(id); }

GPUVM_DEVICE const layout::VmDesc* vm_of(const layout::LookedUpDesc& array) {
    return reinterpret_cast<const layout::VmDesc*>(array.vm);
}
GPUVM_DEVICE u64 place_at(const layout::LookedUpDesc& array, u64 page) {
    return ld_constant(reinterpret_cast<const u64*>(array.places) + page);
}
GPUVM_DEVICE u8* mark_at(const layout::LookedUpDesc& array, u64 page) {
    return reinterpret_cast<u8*>(array.marks) + page;
}

// The four forms (GPUVM_LOOKS_UP): 1 marks each page that is used at home. 2 marks a sample of them where no frame is
// free: reading the clock takes a third of the speed of data that all lie in frames. 3 is for arrays whose pages all
// have frames: nothing is at home. 4 is for those whose frames follow each other as their pages do: plain memory.
#if !defined(GPUVM_LOOKS_UP)
constexpr u32 kForm = 1;
#else
constexpr u32 kForm = GPUVM_LOOKS_UP;
#endif
constexpr bool kAllInFrames = kForm >= 3;
constexpr bool kInOrder = kForm == 4;

// Whether loads past the end are told of in the fourth form, too. It takes a third of a stencil's speed.
#if defined(GPUVM_SIM) || defined(GPUVM_CHECK_LOADS)
constexpr bool kChecksLoads = true;
#else
constexpr bool kChecksLoads = false;
#endif

// Whether an access marks the page at that place because it is at home.
GPUVM_DEVICE bool marks_home(const layout::LookedUpDesc& array, u64 place) {
    if (kAllInFrames || !(place & kAtHome)) return false;
    // One access of 64, by the clock: whatever the addresses are, a page that is used twice as often is marked twice as
    // often. Warps whose lanes come together are one access.
    constexpr u32 kMarkShift = 6;
    if (kForm == 2 && (array.region & layout::ARRAY_SAMPLED))
        return static_cast<u32>(ticks()) * 0x9e3779b9u >> (32 - kMarkShift) == 0;
    return true;
}

__device__ constexpr u32 log2_of(u32 n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }

// The place of page number `pages`, one more than there are, is no one's: elements that hold anything.
template <class T, bool Stores>
GPUVM_DEVICE T* look_up(const layout::LookedUpDesc& array, u64 index) {
    constexpr u32 kSize = sizeof(T), kSizeShift = log2_of(kSize);
    u32 shift = array.page_shift - kSizeShift;
    bool inside = index < array.length;
    if (kInOrder) {
        // Stores past the end harm nothing in any form. The host counts all pages as written that they may be for.
        if ((Stores || kChecksLoads) && __builtin_expect(!inside, 0)) {
            *reinterpret_cast<u64*>(array.past) = index;
            return global<T>(array.dummy);
        }
        return global<T>(array.places + index * kSize);
    }
    // A choice, where a branch would keep loops from being unrolled.
    u32 page = inside ? static_cast<u32>(index >> shift) : array.pages;
    u64 place = place_at(array, page);
    if (!inside) *reinterpret_cast<u64*>(array.past) = index;
    if (Stores || marks_home(array, place)) *mark_at(array, page) = 1;
    if (!kAllInFrames) place &= ~kAtHome;
    // Not so for marks: the CUDA 13.0 compiler does not end over some kernels where two of the three are said to be
    // global.
    return global<T>(place + static_cast<u64>(static_cast<u32>(index) & ((1u << shift) - 1)) * kSize);
}

// Has pages of elements [first, first + count) come to frames before the next launch, as if they were used at home.
GPUVM_NOINLINE void wish_for(const layout::LookedUpDesc& array, u32 element_bytes, u64 first, u64 count) {
    if (count == 0) return;
    if (first >= array.length || count > array.length - first) {
        report_out_of_range(vm_of(array), array.length, array.region, first >= array.length ? first : array.length,
                            layout::FAULT_OUT_OF_RANGE_SPAN);
        return;
    }
    if (kAllInFrames) return;
    u64 last = ((first + count) * element_bytes - 1) >> array.page_shift;
    for (u64 page = first * element_bytes >> array.page_shift; page <= last; ++page)
        if (place_at(array, page) & kAtHome) *mark_at(array, page) = 1;
}

// Whether a page has come, and has a pin where its region is held. One that is on its way has none, and no frame that
// an entry could name.
GPUVM_DEVICE bool has_come(u64 word) { return is_resident(word); }

// Keeps a page where it is, for launches that look it up: a page with a frame gets a pin of the region's. Pages of
// other regions may leave their frames meanwhile, and this one before it is pinned. A mark from when the page was at
// home says nothing of its frame.
GPUVM_DEVICE void hold_page(const layout::VmDesc* vm, u64 id) {
    u64* word = word_of(vm, id);
    // A look first: pins on a page that is absent would only be taken back.
    if (!is_resident(ld_relaxed_gpu(word))) return;
    if (pins_held(add_pins(word, 1)))
        *mark_of(vm, id) = 0;
    else
        undo_pins(word, 1);
}

// What launches that have ended marked as written counts as dirty. `beside`: others run still, which may have marked a
// page that they are about to store to, so marks stay.
GPUVM_DEVICE void fold_mark(const layout::VmDesc* vm, u64 id, bool beside) {
    u64* word = word_of(vm, id);
    u8* mark = mark_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    if (!is_resident(seen) || !ld_weak(mark)) return;
    mark_dirty(word, seen);
    if (!beside) *mark = 0;
}

// A page in a frame loses its mark. `folds`: it is dirty for that.
GPUVM_DEVICE void clear_mark(const layout::VmDesc* vm, u64 id, bool folds) {
    if (folds) return fold_mark(vm, id, false);
    if (is_resident(ld_relaxed_gpu(word_of(vm, id)))) *mark_of(vm, id) = 0;
}

// A mark that a rewritten kernel set counts as the page table's. `beside`: another may set it still.
GPUVM_DEVICE void take_mark(const layout::VmDesc* vm, u64 id, u8* mark, bool beside) {
    if (!ld_weak(mark)) return;
    *mark_of(vm, id) = 1;
    if (beside) return;
    *mark = 0;
}

// A page counts as written whose region launches used as plain memory: those mark nothing.
GPUVM_DEVICE void mark_written(const layout::VmDesc* vm, u64 id) {
    u8* written = mark_of(vm, id);
    *written = 1;
}

// The page may leave its frame again. No launch looks it up meanwhile, and none has since `fold_mark`.
GPUVM_DEVICE void let_page_go(const layout::VmDesc* vm, u64 id) {
    u64* word = word_of(vm, id);
    if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);
}

}  // namespace detail
}  // namespace gpuvm
