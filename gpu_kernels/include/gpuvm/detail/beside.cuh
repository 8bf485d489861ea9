// Pages that come to frames beside a launch that looks them up and only reads them (docs/PROTOCOL.md, T15): some blocks
// watch the launch's marks and ask for pages that it uses again, the others bring those.
#pragma once

#include "bring.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kSegment = layout::BESIDE_SEGMENT;
constexpr u32 kWholeSegment = (1u << kSegment) - 1;
// What is known of a segment, in one word: pages that were seen marked in this generation, in those before, and those
// that were asked for.
constexpr u32 kBeforeShift = kSegment;
constexpr u32 kAskedShift = 2 * kSegment;
// A place of the ring that was filled: this bit, the region, the pages, the segment.
constexpr u64 kAsked = 1ull << 63;
constexpr u32 kRegionShift = 56;
constexpr u32 kPagesShift = 40;

GPUVM_DEVICE bool is_over(const layout::BesideDesc* desc) { return ld_relaxed_gpu(&desc->over) != 0; }
// What the first lane sees.
GPUVM_DEVICE bool is_over_for_warp(const layout::BesideDesc* desc) {
    return __shfl_sync(~0u, ld_relaxed_gpu(&desc->over), 0) != 0;
}

GPUVM_DEVICE u64 segments_of(const layout::BesideRegion& region) { return (region.pages + kSegment - 1) / kSegment; }

// Those of a segment's pages that are marked. The marks go: a launch that uses a page at home again sets one again.
GPUVM_DEVICE u32 take_marks_of(const layout::BesideRegion& region, u64 segment) {
    u8* marks = reinterpret_cast<u8*>(region.marks) + segment * kSegment;
    u64 left = region.pages - segment * kSegment;
    u32 pages = left < kSegment ? static_cast<u32>(left) : kSegment, found = 0;
    if (pages == kSegment && (reinterpret_cast<u64>(marks) & 7) == 0) {
        u64 low = ld_relaxed_gpu(reinterpret_cast<const u64*>(marks));
        u64 high = ld_relaxed_gpu(reinterpret_cast<const u64*>(marks) + 1);
        if ((low | high) == 0) return 0;
    }
    for (u32 n = 0; n < pages; ++n) {
        if (!ld_relaxed_gpu(marks + n)) continue;
        found |= 1u << n;
        st_relaxed_gpu(marks + n, u8{0});
    }
    return found;
}

// Asks for pages of a segment.
GPUVM_DEVICE void ask_for(layout::BesideDesc* desc, u32 region, u64 segment, u32 pages) {
    u64 place = atom_add_relaxed_gpu(&desc->tail, 1ull) & (desc->ring_places - 1);
    u64* slot = reinterpret_cast<u64*>(desc->ring) + place;
    // Who has taken what was there is about to say so.
    while (ld_relaxed_gpu(slot) != 0 && !is_over(desc)) sleep_ns(32);
    u64 asked = static_cast<u64>(region) << kRegionShift | static_cast<u64>(pages) << kPagesShift | segment;
    st_relaxed_gpu(slot, kAsked | asked);
}

// Whether the ring has places for whatever all watchers ask for in one step, and the next one.
GPUVM_DEVICE bool has_room(const layout::BesideDesc* desc) {
    u64 filled = ld_relaxed_gpu(&desc->tail) - ld_relaxed_gpu(&desc->head);
    return filled + 2ull * desc->watchers * blockDim.x < desc->ring_places;
}

// A lane looks at a segment, and asks for pages that were marked before and are again. Whether it found a mark of
// another page than those that it had asked for. `ages`: what was seen until now was before.
GPUVM_DEVICE bool watch(layout::BesideDesc* desc, u32 region, u64 segment, bool ages) {
    const layout::BesideRegion& of = desc->regions[region];
    u32 marked = take_marks_of(of, segment);
    if (!marked && !ages) return false;
    // This lane's alone.
    u64* known = reinterpret_cast<u64*>(of.segments) + segment;
    u64 seen = ld_relaxed_gpu(known);
    u32 asked = static_cast<u32>(seen >> kAskedShift) & kWholeSegment;
    u32 before = static_cast<u32>(seen >> kBeforeShift) & kWholeSegment, now = static_cast<u32>(seen) & kWholeSegment;
    u32 again = marked & before & ~asked;
    if (again) ask_for(desc, region, segment, again);
    if (ages) {
        before |= now;
        now = 0;
    }
    u64 is = static_cast<u64>(asked | again) << kAskedShift | static_cast<u64>(before) << kBeforeShift | (now | marked);
    if (is != seen) st_relaxed_gpu(known, is);
    return (marked & ~asked) != 0;
}

// A frame of the kernel's own: that one, or any with `frame` none.
GPUVM_DEVICE u32 own_frame(layout::BesideDesc* desc, u32 frame) {
    u64* own = reinterpret_cast<u64*>(desc->own);
    if (frame != kNoFrame) {
        u64 bit = 1ull << frame % 64;
        return atom_and_relaxed_gpu(own + frame / 64, ~bit) & bit ? frame : kNoFrame;
    }
    for (u64 n = ld_relaxed_gpu(&desc->own_from); n < desc->own_words;) {
        u64 bits = ld_relaxed_gpu(own + n), bit = bits & (0 - bits);
        if (!bit) {
            ++n;
            // A hint: no frame comes back below it but one whose page another warp has claimed.
            st_relaxed_gpu(&desc->own_from, n);
            continue;
        }
        if (atom_and_relaxed_gpu(own + n, ~bit) & bit)
            return static_cast<u32>(n * 64) + static_cast<u32>(__ffsll(static_cast<long long>(bit))) - 1;
    }
    return kNoFrame;
}

// Brings a page, by a whole warp. False when no frame is left.
GPUVM_DEVICE bool bring_beside(const layout::VmDesc* vm, layout::BesideDesc* desc, u32 n, u64 page) {
    const layout::BesideRegion& of = desc->regions[n];
    u64 id = page_id(of.region, page), start = page << vm->page_shift;
    const layout::RegionDesc* region = region_of(vm, id);
    u64* word = word_of(vm, id);
    u32 frame = kNoFrame, none_left = 0;
    if (lane_id() == 0) {
        u64 seen = ld_relaxed_gpu(word);
        bool in_order = of.run != kNoFrame;
        // Not one that has a slot: this launch may read it there until its end.
        if (state_of(seen) == kAbsent && !victim_in(region, seen)) {
            frame = own_frame(desc, in_order ? of.run + static_cast<u32>(page) : kNoFrame);
            none_left = frame == kNoFrame && !in_order;
        }
        if (frame != kNoFrame && !try_claim(word, seen)) {
            atom_or_relaxed_gpu(reinterpret_cast<u64*>(desc->own) + frame / 64, 1ull << frame % 64);
            frame = kNoFrame;
        }
    }
    // The leader's acquire comes before the warp's copy: a shuffle orders nothing.
    __syncwarp();
    frame = __shfl_sync(~0u, frame, 0);
    if (frame == kNoFrame) return !__shfl_sync(~0u, none_left, 0);
    u64 bytes = copy_from_home(vm, region, start, frame);
    if (lane_id() == 0) {
        came(vm, word, id, frame, bytes);
        atom_add_relaxed_gpu(&desc->brought, 1ull);
        u64 place = frame_address(vm, region, frame);
        // Release: the copies come before the entry. A lane that loads the entry and then the page by it finds them,
        // though both loads are weak: the second one needs the first one's value, and no line of the frame is in a
        // multiprocessor's cache, since it was free when the launch began.
        st_release_gpu(reinterpret_cast<u64*>(of.entries) + page, of.window ? place - (of.window + start) : place);
    }
    __syncwarp();
    return true;
}

// Takes a place of the ring, or 0. By one lane.
GPUVM_DEVICE u64 asked_for(layout::BesideDesc* desc) {
    u64 head = ld_relaxed_gpu(&desc->head);
    if (head >= ld_relaxed_gpu(&desc->tail) || atom_cas_relaxed_gpu(&desc->head, head, head + 1) != head) return 0;
    u64* slot = reinterpret_cast<u64*>(desc->ring) + (head & (desc->ring_places - 1));
    u64 asked;
    while ((asked = ld_relaxed_gpu(slot)) == 0)
        if (is_over(desc)) return 0;
    st_relaxed_gpu(slot, u64{0});
    return asked;
}

// Warps that bring pages.
GPUVM_DEVICE void bring_what_is_asked(const layout::VmDesc* vm, layout::BesideDesc* desc) {
    while (!is_over_for_warp(desc)) {
        u64 asked = __shfl_sync(~0u, lane_id() == 0 ? asked_for(desc) : 0, 0);
        if (!asked) {
            sleep_ns(512);
            continue;
        }
        u32 region = static_cast<u32>((asked & ~kAsked) >> kRegionShift);
        u32 pages = static_cast<u32>(asked >> kPagesShift) & kWholeSegment;
        u64 first = (asked & ((1ull << kPagesShift) - 1)) * kSegment;
        for (; pages; pages &= pages - 1) {
            if (is_over_for_warp(desc)) break;
            u64 page = first + static_cast<u64>(__ffs(static_cast<int>(pages))) - 1;
            if (!bring_beside(vm, desc, region, page)) st_relaxed_gpu(&desc->over, 1u);
            __syncwarp();
        }
    }
}

// Whether all is over: by the lane that decides it.
GPUVM_DEVICE bool ends(const layout::VmDesc* vm, const layout::BesideDesc* desc, u64 begun) {
    u64 now = time_ns();
    i64 since = static_cast<i64>(now - ld_relaxed_gpu(&desc->marked_at)), idle = static_cast<i64>(desc->idle_ns);
    bool is_idle = static_cast<i64>(now - begun) > idle && since > idle;
    bool asked = ld_relaxed_sys(reinterpret_cast<const u32*>(desc->stop)) >= desc->number;
    return is_idle || asked || now - begun > desc->limit_ns || aborted(vm);
}

// Pages that were seen marked are marked again: those that have not come are to come between launches.
GPUVM_DEVICE void mark_again(const layout::BesideRegion& of, u64 first, u64 step) {
    for (u64 segment = first; segment < segments_of(of); segment += step) {
        u64 seen = ld_relaxed_gpu(reinterpret_cast<const u64*>(of.segments) + segment);
        for (u32 used = static_cast<u32>(seen | seen >> kBeforeShift) & kWholeSegment; used; used &= used - 1) {
            u32 n = static_cast<u32>(__ffs(static_cast<int>(used))) - 1;
            st_relaxed_gpu(reinterpret_cast<u8*>(of.marks) + segment * kSegment + n, u8{1});
        }
    }
}

// Tells that a mark was found, and decides whether all is over.
GPUVM_DEVICE void tell_and_decide(const layout::VmDesc* vm, layout::BesideDesc* desc, u64 lane, u64 begun,
                                  bool* found) {
    if (*found) st_relaxed_gpu(&desc->marked_at, time_ns());
    *found = false;
    if (lane == 0 && ends(vm, desc, begun)) st_relaxed_gpu(&desc->over, 1u);
}

// Warps that watch. Pages come that are marked in two generations, which last long: the lanes of a launch that walks
// over a page once come within a short time.
GPUVM_DEVICE void watch_marks(const layout::VmDesc* vm, layout::BesideDesc* desc) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, begun = time_ns(), aged = begun;
    u64 lanes = static_cast<u64>(desc->watchers) * blockDim.x;
    while (!is_over_for_warp(desc)) {
        bool found = false, ages = time_ns() - aged > desc->generation_ns;
        if (ages) aged = time_ns();
        u32 looks = 0;
        for (u32 n = 0; n < desc->count; ++n)
            for (u64 segment = lane; segment < segments_of(desc->regions[n]); segment += lanes) {
                if (is_over(desc)) break;
                if (has_room(desc)) found |= watch(desc, n, segment, ages);
                // A large table takes long.
                if (++looks % 64 == 0) tell_and_decide(vm, desc, lane, begun, &found);
            }
        tell_and_decide(vm, desc, lane, begun, &found);
        __syncwarp();
        sleep_ns(1024);
    }
    for (u32 n = 0; n < desc->count; ++n) mark_again(desc->regions[n], lane, lanes);
}

}  // namespace detail
}  // namespace gpuvm
