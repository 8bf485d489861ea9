// Accesses that look a page's place up and go there: to its frame, or to its home, which lanes reach by loads and
// stores. Nothing is validated, since within a launch no page of such an array comes or goes (docs/PROTOCOL.md, section
// 19).
#pragma once

#include "copy.cuh"
#include "element.cuh"
#include "pool.cuh"

namespace gpuvm {
namespace detail {

// One byte a page, before the table's head, the first page's last. Stores of 1 say: of a page at home that it was used,
// of one in a frame that it may have been written. What the launch's end makes known is enough for who looks at them.
GPUVM_DEVICE u8* mark_of(u64* words, u64 page) {
    return reinterpret_cast<u8*>(words) - sizeof(layout::TableHead) - 1 - page;
}

// Whether an access to a page at home marks it. While no frame is free one of 64 does, in the form that is compiled for
// arrays that frames do not hold (GPUVM_LOOKS_UP is 2): reading the clock takes a third of the speed of data that all
// lie in frames.
GPUVM_DEVICE bool marks_home(const layout::ArrayDesc& array) {
#if defined(GPUVM_LOOKS_UP) && GPUVM_LOOKS_UP > 1
    // By the clock: whatever the addresses are, a page that is used twice as often is marked twice as often. Warps
    // whose lanes come together are one access.
    constexpr u32 kMarkShift = 6;
    if (array.region & layout::ARRAY_SAMPLED) return static_cast<u32>(ticks()) * 0x9e3779b9u >> (32 - kMarkShift) == 0;
#endif
    (void)array;
    return true;
}

// Where an element is that is in range. Loads through L1: within a launch no word changes that says where a page is,
// and no frame has another page than before.
template <bool Stores>
GPUVM_DEVICE u64 place_now(const layout::ArrayDesc& array, u64 byte) {
    u64 page = byte >> array.page_shift;
    u64* words = words_of(array);
    // Of the states of a page that nobody fetches the resident one alone has the upper bit.
    u32 word = static_cast<u32>(ld_weak(words + page));
    bool in_frame = word & layout::STATE_RESIDENT << layout::STATE_SHIFT;
    u64 frame = array.frames + static_cast<u64>(word & static_cast<u32>(layout::FRAME_MASK)) * array.frame_scale +
                (static_cast<u32>(byte) & array.offset_mask);
    if (Stores && in_frame || !in_frame && marks_home(array)) *mark_of(words, page) = 1;
    return in_frame ? frame : array.home + byte;
}

// What lies past the end of arrays: elements that belong to nobody, whatever they hold.
static __device__ pair64 nowhere[layout::PAGE_BYTES_MIN / sizeof(pair64)];

GPUVM_NOINLINE u64 out_of_range(const layout::VmDesc* vm, u64 length, u32 region, u64 index) {
    report_out_of_range(vm, length, region, index, layout::FAULT_OUT_OF_RANGE);
    return reinterpret_cast<u64>(nowhere);
}

template <class T, bool Stores>
GPUVM_DEVICE T* look_up(const layout::ArrayDesc& array, u64 index) {
    u64 at = GPUVM_LIKELY(index < array.length) ? place_now<Stores>(array, index * sizeof(T))
                                                : out_of_range(vm_of(array), array.length, array.region, index);
    return reinterpret_cast<T*>(at);
}

// Has pages of elements [first, first + count) come to frames before the next launch, as if they were used at home.
GPUVM_NOINLINE void wish_for(const layout::ArrayDesc& array, u32 element_bytes, u64 first, u64 count) {
    if (count == 0) return;
    if (first >= array.length || count > array.length - first) {
        report_out_of_range(vm_of(array), array.length, array.region, first >= array.length ? first : array.length,
                            layout::FAULT_OUT_OF_RANGE_SPAN);
        return;
    }
    u64* words = words_of(array);
    u64 last = ((first + count) * element_bytes - 1) >> array.page_shift;
    for (u64 page = first * element_bytes >> array.page_shift; page <= last; ++page)
        if (!is_resident(ld_weak(words + page))) *mark_of(words, page) = 1;
}

// Keeps a page where it is, for launches that look it up: a page with a frame gets a pin of the region's. Pages of
// other regions may leave their frames meanwhile, and this one before it is pinned. A mark from when the page was at
// home says nothing of its frame.
GPUVM_DEVICE void hold_page(const layout::VmDesc* vm, u64 id) {
    u64* words = reinterpret_cast<u64*>(region_of(vm, id)->words);
    u64* word = words + page_of(id);
    // A look first: pins on a page that is absent would only be taken back.
    if (!is_resident(ld_relaxed_gpu(word))) return;
    if (pins_held(add_pins(word, 1)))
        *mark_of(words, page_of(id)) = 0;
    else
        undo_pins(word, 1);
}

// What launches that have ended marked as written counts as dirty. `beside`: others run still, which may have marked a
// page that they are about to store to, so marks stay.
GPUVM_DEVICE void fold_mark(const layout::VmDesc* vm, u64 id, bool beside) {
    u64* word = word_of(vm, id);
    u8* mark = mark_of(reinterpret_cast<u64*>(region_of(vm, id)->words), page_of(id));
    u64 seen = ld_relaxed_gpu(word);
    if (!is_resident(seen) || !ld_weak(mark)) return;
    mark_dirty(word, seen);
    if (!beside) *mark = 0;
}

// A mark that a rewritten kernel set counts as the page table's. `beside`: another may set it still.
GPUVM_DEVICE void take_mark(const layout::VmDesc* vm, u64 id, u8* mark, bool beside) {
    if (!ld_weak(mark)) return;
    *mark_of(reinterpret_cast<u64*>(region_of(vm, id)->words), page_of(id)) = 1;
    if (beside) return;
    *mark = 0;
}

// The entry of a held page, as rewritten kernels look it up (ptx/src/table.rs).
GPUVM_DEVICE u64 entry_of(const layout::VmDesc* vm, u64 id, u64 window) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64 start = page_of(id) << vm->page_shift, seen = ld_relaxed_gpu(word_of(vm, id));
    bool in_frame = is_resident(seen);
    u64 place = in_frame ? frame_address(vm, region, frame_of(seen)) : region->home + start;
    return (place - (window + start)) | (in_frame ? 0 : 1);
}

// The page may leave its frame again. No launch looks it up meanwhile, and none has since `fold_mark`.
GPUVM_DEVICE void let_page_go(const layout::VmDesc* vm, u64 id) {
    u64* word = word_of(vm, id);
    if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);
}

// What became of a page that was to come: it has a frame, nobody used it, or no frame was free. One for which none was
// is not marked any more: it comes if it is used again.
constexpr u32 kHasFrame = 0;
constexpr u32 kUnused = 1;
constexpr u32 kNoneFree = 2;

// Brings a page of a held region that was used at home into a free frame. By a whole warp.
GPUVM_DEVICE u32 bring_page(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* words = reinterpret_cast<u64*>(region->words);
    u64 page = page_of(id), start = page << vm->page_shift;
    u64* word = words + page;
    u8* mark = mark_of(words, page);
    u32 frame = kNoFrame, became = kHasFrame;
    if (lane_id() == 0) {
        u64 seen = ld_relaxed_gpu(word);
        if (!is_resident(seen)) became = kUnused;
        if (state_of(seen) == kAbsent && ld_weak(mark)) {
            if (!pool_pop(&vm->pool, &frame)) {
                frame = kNoFrame;
                became = kNoneFree;
                *mark = 0;
            } else if (!try_claim(word, seen)) {
                pool_give(&vm->pool, frame);
                frame = kNoFrame;
            }
        }
    }
    // The leader's acquires come before the group's copy: a shuffle orders nothing.
    __syncwarp();
    frame = __shfl_sync(~0u, frame, 0);
    if (frame == kNoFrame) return __shfl_sync(~0u, became, 0);
    u64 rest = region->bytes - start, whole = 1ull << vm->page_shift, bytes = rest < whole ? rest : whole;
    u64 to = frame_address(vm, region, frame), from = region->home + start, chunks = bytes / sizeof(pair64);
    for (u64 n = lane_id(); n < chunks; n += 32)
        st_relaxed_gpu_v2(reinterpret_cast<pair64*>(to) + n, ld_weak(reinterpret_cast<const pair64*>(from) + n));
    for (u64 at = chunks * sizeof(pair64) + lane_id(); at < bytes; at += 32)
        st_relaxed_gpu(reinterpret_cast<u8*>(to + at), ld_weak(reinterpret_cast<const u8*>(from + at)));
    // All lanes' copies come before the leader's release.
    __syncwarp();
    if (lane_id() == 0) {
        *mark = 0;
        st_relaxed_gpu(page_in_frame(vm, frame), id);
        publish(word, 0, frame, 1);
        count(&counters(vm)->pages_fetched, 1);
        count(&counters(vm)->bytes_fetched, bytes);
    }
    return kHasFrame;
}

}  // namespace detail
}  // namespace gpuvm
