// Pages that come to frames beside a launch that looks them up and only reads them (docs/PROTOCOL.md, T15): some blocks
// watch the launch's marks and ask for pages, the others bring those.
#pragma once

#include "look_up.cuh"

namespace gpuvm {
namespace detail {

constexpr u32 kSegment = layout::BESIDE_SEGMENT;
constexpr u32 kWholeSegment = (1u << kSegment) - 1;
// The page of a segment that does not come with the others, ahead of its use: its mark tells that the launch came by.
constexpr u32 kLastOfSegment = 1u << (kSegment - 1);
// A segment is in use of which so many pages are.
constexpr u32 kInUse = kSegment * 3 / 4;
// In the second word of a segment: it is in use.
constexpr u32 kUsed = 1u << kSegment;
// Looks at a mark that make a generation. Pages come that were used in two: to one that a launch walks over once its
// lanes come within a short time.
constexpr u32 kLooksAGeneration = 4;
// Segments that come ahead of those that were used, at most.
constexpr u32 kAheadMost = 64;
// A lane asks for its own segment's pages once a step, and for its share of those ahead of half of its warp's.
constexpr u32 kAsksAStep = 1 + kAheadMost / 2;
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

// The pages of a segment that the region has.
GPUVM_DEVICE u32 pages_in(const layout::BesideRegion& region, u64 segment) {
    u64 left = region.pages - segment * kSegment;
    return left >= kSegment ? kWholeSegment : (1u << left) - 1;
}

// Those of its pages that are marked. The marks go: a launch that uses a page at home again sets one again.
GPUVM_DEVICE u32 take_marks_of(const layout::BesideRegion& region, u64 segment) {
    u8* marks = reinterpret_cast<u8*>(region.marks) + segment * kSegment;
    u32 pages = pages_in(region, segment), found = 0;
    if (pages == kWholeSegment && (reinterpret_cast<u64>(marks) & 7) == 0) {
        u64 low = ld_relaxed_gpu(reinterpret_cast<const u64*>(marks));
        u64 high = ld_relaxed_gpu(reinterpret_cast<const u64*>(marks) + 1);
        if ((low | high) == 0) return 0;
    }
    for (u32 n = 0; n < kSegment; ++n) {
        if (!(pages >> n & 1) || !ld_relaxed_gpu(marks + n)) continue;
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

// Whether the ring has places for whatever all watchers ask for in one step.
GPUVM_DEVICE bool has_room(const layout::BesideDesc* desc) {
    u64 filled = ld_relaxed_gpu(&desc->tail) - ld_relaxed_gpu(&desc->head);
    u64 lanes = static_cast<u64>(desc->watchers) * blockDim.x;
    return filled + lanes * kAsksAStep < desc->ring_places;
}

// Asks for the segments that follow one which has come to be in use: as many as are in use before it.
GPUVM_DEVICE void ask_ahead(layout::BesideDesc* desc, u32 region, u64 segment, u32 run) {
    const layout::BesideRegion& of = desc->regions[region];
    for (u64 n = segment + 1 + lane_id(); n <= segment + run && n < segments_of(of); n += 32) {
        u32* asked = reinterpret_cast<u32*>(of.segments) + 2 * n + 1;
        if (ld_relaxed_gpu(asked) & kUsed) continue;
        u32 pages = pages_in(of, n) & ~kLastOfSegment;
        pages &= ~atom_or_relaxed_gpu(asked, pages);
        if (pages) ask_for(desc, region, n, pages);
    }
}

// A warp looks at 32 segments, and asks for pages that were used before and again, and for those ahead of a walk.
// Whether a lane found a mark. `ages`: what was seen until now was before.
GPUVM_DEVICE bool watch(layout::BesideDesc* desc, u32 region, u64 first, bool ages) {
    const layout::BesideRegion& of = desc->regions[region];
    u64 segment = first + lane_id();
    bool there = segment < segments_of(of), is_new = false, in_use = false;
    u32* words = reinterpret_cast<u32*>(of.segments) + 2 * segment;
    u32 marked = there ? take_marks_of(of, segment) : 0;
    if (there) {
        u32 seen = ld_relaxed_gpu(words), asked = ld_relaxed_gpu(words + 1);
        u32 before = seen >> kSegment, again = marked & before & ~asked;
        u32 now = ages ? marked : (seen & kWholeSegment) | marked;
        if (ages) before |= seen & kWholeSegment;
        if (ages || marked) st_relaxed_gpu(words, before << kSegment | now);
        u32 used = before | now;
        u32 told = used & kLastOfSegment ? used | (asked & kWholeSegment) : used;
        in_use = asked & kUsed || __popc(told) >= static_cast<int>(kInUse);
        is_new = in_use && !(asked & kUsed);
        u32 add = again | (is_new ? kUsed : 0);
        if (add) again &= ~atom_or_relaxed_gpu(words + 1, add);
        if (again) ask_for(desc, region, segment, again);
    }
    u32 newly, run_of;
    ballot2(~0u, is_new, in_use, &newly, &run_of);
    u32 earlier = 0, unused;
    if (newly && first >= 32) ballot2(~0u, (ld_relaxed_gpu(words - 64 + 1) & kUsed) != 0, false, &earlier, &unused);
    while (newly) {
        u32 lane = 31 - static_cast<u32>(__clz(static_cast<int>(newly)));
        newly &= ~(1u << lane);
        // Another one behind it is in use already: that one's walk went on.
        if (lane < 31 && run_of >> (lane + 1) & 1) continue;
        u32 run = static_cast<u32>(__clz(static_cast<int>(~(run_of << (31 - lane)))));
        if (run > lane) run += static_cast<u32>(__clz(static_cast<int>(~earlier)));
        ask_ahead(desc, region, first + lane, run < kAheadMost ? run : kAheadMost);
    }
    return marked != 0;
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
        if (state_of(seen) == kAbsent) {
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

// Whether all is over: by the warp that decides it.
GPUVM_DEVICE bool ends(const layout::VmDesc* vm, const layout::BesideDesc* desc, u64 begun) {
    u64 now = time_ns();
    i64 since = static_cast<i64>(now - ld_relaxed_gpu(&desc->marked_at)), idle = static_cast<i64>(desc->idle_ns);
    bool is_idle = static_cast<i64>(now - begun) > idle && since > idle;
    bool asked = ld_relaxed_sys(reinterpret_cast<const u32*>(desc->stop)) >= desc->number;
    return is_idle || asked || now - begun > desc->limit_ns || aborted(vm);
}

// Pages that were seen used are marked again: those that have not come are to come between launches.
GPUVM_DEVICE void mark_again(const layout::BesideRegion& of, u64 first, u64 step) {
    for (u64 segment = first; segment < segments_of(of); segment += step) {
        u32 seen = ld_relaxed_gpu(reinterpret_cast<const u32*>(of.segments) + 2 * segment);
        for (u32 used = (seen | seen >> kSegment) & kWholeSegment; used; used &= used - 1) {
            u32 n = static_cast<u32>(__ffs(static_cast<int>(used))) - 1;
            st_relaxed_gpu(reinterpret_cast<u8*>(of.marks) + segment * kSegment + n, u8{1});
        }
    }
}

// Warps that watch.
GPUVM_DEVICE void watch_marks(const layout::VmDesc* vm, layout::BesideDesc* desc) {
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, begun = time_ns();
    u64 lanes = static_cast<u64>(desc->watchers) * blockDim.x;
    for (u32 look = 0; !is_over_for_warp(desc); ++look) {
        bool found = false;
        for (u32 n = 0; n < desc->count; ++n)
            for (u64 first = lane / 32 * 32; first < segments_of(desc->regions[n]); first += lanes)
                if (!is_over_for_warp(desc) && __shfl_sync(~0u, has_room(desc) ? 1u : 0u, 0))
                    found |= watch(desc, n, first, look % kLooksAGeneration == 0);
        if (found) st_relaxed_gpu(&desc->marked_at, time_ns());
        if (lane == 0 && ends(vm, desc, begun)) st_relaxed_gpu(&desc->over, 1u);
        __syncwarp();
        sleep_ns(1024);
    }
    for (u32 n = 0; n < desc->count; ++n) mark_again(desc->regions[n], lane, lanes);
}

}  // namespace detail
}  // namespace gpuvm
