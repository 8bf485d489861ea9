// Mirrors: chunks of a region that a neighbour GPU's copy engine has brought to its memory, over the neighbour's own
// link to the host (HUVM, USENIX ATC 2022). A fault takes a page from there, while others use this GPU's own link.
//
// A chunk has a copy only while launches read the region and none may write it, with all that was written at home. So a
// copy has the home's bytes for as long as the chunk's entry names it. The host takes the name away before it uses the
// memory otherwise: readers copy first, and then look whether the entry is what it was.
#pragma once

#include "direct.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE bool has_mirror(const layout::ArrayDesc& array) {
    return kVictims && array.region & layout::ARRAY_MIRRORED;
}

// A page's place in a mirrored chunk.
struct Mirrored {
    const u64* entry;
    u64 copy;  // what the entry said, or 0 for none
    u64 from;  // the page's address in the copy
};

// Where a page of a region with a mirror is in a copy of its chunk, if there is one. Tells the host of the use.
GPUVM_NOINLINE Mirrored mirrored_at(const layout::VmDesc* vm, u64 id) {
    const layout::MirrorDesc* mirror = reinterpret_cast<const layout::MirrorDesc*>(region_of(vm, id)->mirror);
    u64 page = page_of(id), start = page << vm->page_shift;
    const u64* entry = reinterpret_cast<const u64*>(mirror->entries) + (page >> mirror->page_shift);
    // A store that nobody waits for. Relaxed: a hint.
    if (!(start & (layout::MIRROR_USE_BYTES - 1)))
        st_relaxed_sys(reinterpret_cast<u8*>(mirror->uses) + start / layout::MIRROR_USE_BYTES, u8{1});
    // Acquire: the copy's bytes, which another GPU's copy engine wrote, come before the entry that names them.
    u64 copy = ld_acquire_sys(entry);
    return Mirrored{entry, copy, (copy & ~mirror->chunk_mask) + (start & mirror->chunk_mask)};
}

// After a page was copied from its chunk's copy: whether those were its bytes.
GPUVM_DEVICE bool was_mirrored(const layout::VmDesc* vm, const Mirrored& mirrored) {
    // The host takes the name away before the copy's memory has other bytes.
    Fetch::end_reads();
    bool same = ld_relaxed_sys(mirrored.entry) == mirrored.copy;
    count(same ? &counters(vm)->mirrored : &counters(vm)->mirrored_lost, 1);
    return same;
}

}  // namespace detail
}  // namespace gpuvm
