// The direct transport: lanes copy pages themselves, and large pages are filled by all warps that wait for them.
#pragma once

#include "copy.cuh"
#include "pool.cuh"
#include "source.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE layout::FillState* fill_at(const layout::VmDesc* vm, u32 place) {
    return reinterpret_cast<layout::FillState*>(vm->fills) + place;
}

// Copies one chunk of a page if one is left to take. False when none is.
GPUVM_NOINLINE bool fill_chunk(layout::FillState* fill, u64 id) {
    u64 head = ld_acquire_gpu(&fill->head);
    if (static_cast<u32>(head) >= layout::FILL_END || ld_relaxed_gpu(&fill->page_id) != id) return false;
    // A ticket, and not an exchange that all but one would lose. It is for whatever page is filled through this place
    // now. Acquire: pairs with the opening, so the fields are that page's; they cannot change while its chunk is ours.
    // Whether there is one, the ticket says by itself: the fields may be the next page's by now if there is not.
    u32 ticket = static_cast<u32>(atom_add_acquire_gpu(&fill->head, 1ull));
    if (ticket >= layout::FILL_END) return false;
    u32 chunk = ticket - (layout::FILL_END - ld_relaxed_gpu(&fill->chunks));
    u32 at = chunk * layout::FILL_CHUNK_BYTES, left = ld_relaxed_gpu(&fill->bytes) - at;
    Fetch fetch;
    fetch.begin(ld_relaxed_gpu(&fill->home) + at, left < layout::FILL_CHUNK_BYTES ? left : layout::FILL_CHUNK_BYTES);
    fetch.finish(ld_relaxed_gpu(&fill->frame) + at);
    // Release: the chunk's bytes come before the count that the page's publisher acquires.
    atom_add_release_gpu(&fill->done, 1u);
    return true;
}

// A free place in the table of fillings, or none.
GPUVM_DEVICE layout::FillState* take_fill(const layout::VmDesc* vm, u64 id, u32* place) {
    u32 first = static_cast<u32>(id) % (vm->fill_count ? vm->fill_count : 1);
    for (u32 n = 0; n < vm->fill_count && n < 16; ++n) {
        *place = (first + n) % vm->fill_count;
        layout::FillState* fill = fill_at(vm, *place);
        if (ld_relaxed_gpu(&fill->taken) == 0 && atom_cas_acq_rel_gpu(&fill->taken, 0u, 1u) == 0) return fill;
    }
    return nullptr;
}

// Fills a page that is ours, with the help of threads that wait for it: a large one, or one that is stored in place.
// Returns the token that its word holds then.
GPUVM_NOINLINE u32 fill_page(const layout::VmDesc* vm, u64* word, u64 id, u64 home, u64 frame, u32 bytes) {
    // Stores in place, which the claim has acquired, come before the copy engine's reads.
    fence_proxy();
    u32 place;
    layout::FillState* fill = take_fill(vm, id, &place);
    if (!fill) {
        Fetch fetch;
        fetch.begin(home, bytes);
        fetch.finish(frame);
        return 0;
    }
    u64 generation = ((ld_relaxed_gpu(&fill->head) >> layout::FILL_GENERATION_SHIFT) + 1)
                     << layout::FILL_GENERATION_SHIFT;
    u32 chunks = (bytes + layout::FILL_CHUNK_BYTES - 1) / layout::FILL_CHUNK_BYTES;
    // Closed while the fields change: the thread that takes a ticket now gets none of the chunks.
    st_relaxed_gpu(&fill->head, generation | layout::FILL_CLOSED);
    // The closing comes before the fields: who reads a new field and adds to the head adds to a closed or a newer one.
    fence_acq_rel_gpu();
    st_relaxed_gpu(&fill->page_id, id);
    st_relaxed_gpu(&fill->home, home);
    st_relaxed_gpu(&fill->frame, frame);
    st_relaxed_gpu(&fill->bytes, bytes);
    st_relaxed_gpu(&fill->chunks, chunks);
    st_relaxed_gpu(&fill->done, 0u);
    // Release: the thread that reads the open head reads these fields.
    st_release_gpu(&fill->head, generation | (layout::FILL_END - chunks));
    set_token(word, place + 1);
    while (fill_chunk(fill, id)) {
    }
    // Acquire: all chunks come before the page's publication. Their takers wait for nothing but their copies.
    while (ld_acquire_gpu(&fill->done) != chunks) sleep_ns(100);
    // Release: the place's fields are read before it is another's.
    st_release_gpu(&fill->taken, 0u);
    return place + 1;
}

}  // namespace detail
}  // namespace gpuvm
