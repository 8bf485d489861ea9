// A broadcast array's stores, marks and passing on. See docs/PROTOCOL.md, "Broadcast arrays".
#pragma once

#include "element.cuh"
#include "report.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kLineBytes = 1u << layout::BROADCAST_LINE_SHIFT;

// What is looked up of an array when a store leaves for other views. By value where a function is not inlined: the
// address of a descriptor would put it into local memory.
struct Sending {
    u64 views, stride, pages, counters, vm;
    u32 others, page_shift, sample_mask;
};
GPUVM_DEVICE Sending sending_of(const layout::BroadcastDesc& b) {
    return Sending{b.views, b.stride, b.pages, b.counters, b.vm, b.others, b.page_shift, b.sample_mask};
}

// In these an array is its descriptor, or what was taken of it.
template <class Array>
GPUVM_DEVICE u32 entry_of(const Array& b, u64 byte) {
    // Weak: no launch runs while the host writes it.
    return ld_weak(reinterpret_cast<const u32*>(b.pages) + (byte >> b.page_shift));
}
// The views to store a byte to, besides the own one.
template <class Array>
GPUVM_DEVICE u32 others_of(const Array& b, u64 byte) {
    return b.others != layout::BROADCAST_BY_PAGE ? b.others : entry_of(b, byte) & layout::BROADCAST_OTHERS_MASK;
}
template <class Array>
GPUVM_DEVICE u64 in_view(const Array& b, u32 view, u64 byte) {
    return b.views + view * b.stride + byte;
}
template <class Array>
GPUVM_DEVICE bool is_counted(const Array& b, u64 byte) {
    return !(byte >> layout::BROADCAST_LINE_SHIFT & b.sample_mask);
}

// Whether other views may hold a byte: asked without a load.
GPUVM_DEVICE bool may_have_others(const layout::BroadcastDesc& b, u64 byte) {
    return b.held_parts >> (byte >> b.part_shift) & 1;
}

// Counts what leaves in lines of which one in `sample_mask + 1` is counted: as it is in the array's counters, which the
// host multiplies, and multiplied in the GPU's.
GPUVM_DEVICE void count_sent(const Sending& b, u32 others, u64 stores, u64 lines, u64 bytes) {
    auto* c = reinterpret_cast<layout::BroadcastCounters*>(b.counters);
    layout::Counters* all = counters(reinterpret_cast<const layout::VmDesc*>(b.vm));
    if (stores) {
        count(&c->stores, stores);
        count(&all->broadcast_stores, stores * (u64{b.sample_mask} + 1));
    }
    if (!lines) return;
    count(&c->lines, lines);
    count(&all->broadcast_lines, lines * (u64{b.sample_mask} + 1));
    for (; others; others &= others - 1) count(&c->bytes[__ffs(others) - 1], bytes);
}

// The stores that these lanes make at once, to the same other views. Those to one line leave as one.
GPUVM_NOINLINE void count_stores(Sending b, u64 line, u32 others, u32 bytes) {
    u32 active, group = match_active(line, &active);
    if (lane_id() != static_cast<u32>(__ffs(group)) - 1) return;
    u64 lanes = static_cast<u32>(__popc(group));
    count_sent(b, others, lanes, 1, lanes * bytes);
}

// An element to the views of the other subscribers. Not inlined: it would take registers of kernels that rarely come
// here.
template <class T>
GPUVM_NOINLINE void store_to_others(Sending b, u64 byte, T value) {
    u32 others = others_of(b, byte);
    if (!others) return;
    if (is_counted(b, byte)) count_stores(b, byte >> layout::BROADCAST_LINE_SHIFT, others, sizeof(T));
    for (; others; others &= others - 1) *reinterpret_cast<T*>(in_view(b, __ffs(others) - 1, byte)) = value;
}

// An element to the own view and to those of the other subscribers. The order of one lane's stores to an element is
// the same in each of them; so is that of several lanes of a GPU that are ordered by release and acquire.
template <class T>
GPUVM_DEVICE void store_to_all(const layout::BroadcastDesc& b, u64 i, T value) {
    u64 byte = i * sizeof(T);
    *reinterpret_cast<T*>(b.own + byte) = value;
    if (may_have_others(b, byte)) store_to_others(sending_of(b), byte, value);
}

// Before an element is read in the own view: tells the host which pages this GPU reads.
GPUVM_DEVICE void note_read(const layout::BroadcastDesc& b, u64 byte) {
    if (!b.reads) return;
    u8* seen = reinterpret_cast<u8*>(b.reads) + (byte >> b.page_shift);
    // Weak: one who sees an old value stores once more.
    if (!ld_weak(seen)) st_relaxed_gpu(seen, u8{1});
}

// Where the owner's copy of a byte is, by the one address at which this GPU reaches it.
GPUVM_DEVICE u64 at_owner(const layout::BroadcastDesc& b, u64 byte) {
    return in_view(b, entry_of(b, byte) >> layout::BROADCAST_OWNER_SHIFT, byte);
}
// The owner's copy of the line is changed alone: it is forwarded when the launches have ended.
GPUVM_DEVICE void mark_line(const layout::BroadcastDesc& b, u64 byte) {
    u8* mark = reinterpret_cast<u8*>(b.marks) + (byte >> layout::BROADCAST_LINE_SHIFT);
    // Weak: as in `note_read`. No launch runs while marks are cleared.
    if (ld_weak(mark)) return;
    st_relaxed_gpu(mark, u8{1});
    u32* marked = reinterpret_cast<u32*>(b.marked);
    // The host looks when the launch has ended.
    if (!ld_weak(marked)) st_relaxed_sys(marked, 1u);
}

// A line of the owner's copy to the copies of the other subscribers, 8 bytes a lane. No launch uses the array.
GPUVM_DEVICE void forward_atomics(const layout::BroadcastDesc& b, u64 byte) {
    u32 entry = entry_of(b, byte), owner = entry >> layout::BROADCAST_OWNER_SHIFT;
    u32 to = entry & layout::BROADCAST_OTHERS_MASK;
    // The own view is the owner's copy, or one that lacks the change.
    if (owner != b.view) to = (to & ~(1u << owner)) | 1u << b.view;
    if (!to) return;
    u64 word = ld_relaxed_sys(reinterpret_cast<const u64*>(in_view(b, owner, byte)));
    for (; to; to &= to - 1) st_relaxed_sys(reinterpret_cast<u64*>(in_view(b, __ffs(to) - 1, byte)), word);
}

// 8 bytes of the owner's copy to this GPU's new one. No launch uses the array.
GPUVM_DEVICE void bring_word(const layout::BroadcastDesc& b, u64 byte) {
    st_relaxed_gpu(reinterpret_cast<u64*>(b.own + byte),
                   ld_relaxed_sys(reinterpret_cast<const u64*>(at_owner(b, byte))));
}

// Forwards the lines that this GPU has marked, of the 8 that `at` begins, and clears the marks. All lanes of a warp
// come with lines of their own, some perhaps with none (`at` past the end).
GPUVM_DEVICE void forward_marked(const layout::BroadcastDesc& b, u64 at, u64 lines) {
    u64* word = reinterpret_cast<u64*>(b.marks + at);
    // A table of marks is a multiple of 8 long.
    u64 marks = at < lines ? ld_relaxed_gpu(word) : 0;
    if (marks) st_relaxed_gpu(word, u64{0});
    u32 lane = lane_id(), half = lane >> 4, passed = 0;
    for (u32 with = __ballot_sync(~0u, marks != 0); with; with &= with - 1) {
        u32 from = __ffs(with) - 1;
        u64 theirs = __shfl_sync(~0u, marks, from), first = __shfl_sync(~0u, at, from);
        // Two lines at a time, 16 lanes each.
        for (u32 n = half; n < 8; n += 2) {
            if (!(theirs >> 8 * n & 0xff)) continue;
            forward_atomics(b, (first + n) * kLineBytes + (lane & 15) * 8);
            passed += !(lane & 15);
        }
    }
    if (passed) atom_add_relaxed_gpu(&reinterpret_cast<layout::BroadcastCounters*>(b.counters)->forwarded, u64{passed});
}

}  // namespace detail
}  // namespace gpuvm
