// Reads of pages where they live: an element whose page has no frame is read at its home, and the page stays there.
//
// Nothing writes the home of a read-only region, so what it holds is right at any time, whatever the page's entry says:
// the word only tells whether a frame is nearer. So one look will do, and no order is needed. The home of a region that
// kernels write changes by write-backs, in units that nothing promises: a second look, behind a strong load, shows that
// none was under way.
//
// Stores where pages live: pins on an absent page keep it from being fetched, so that its home may be written.
#pragma once

#include "clock.cuh"
#include "element.cuh"

namespace gpuvm {
namespace detail {

// Chunks that reads of a page cost before it gets a free frame, where pages are larger than that: 8 KiB.
constexpr u64 kEnoughWhileFree = 512;
// Chunks of one page that lanes read together from which on each costs as in a stream.
constexpr u32 kChunksAlike = 4;
// Frames that a page which is worth a fetch looks at, for one that is not used.
constexpr u32 kIdleWindow = 8;
// In the place of a draw: the read is one of a whole page, which costs as a stream does.
constexpr u32 kStream = 1u << 31;

GPUVM_DEVICE bool reads_in_place(const layout::ArrayDesc& array) {
    return kDirect && array.region & layout::ARRAY_IN_PLACE;
}

// Whether the page is in a sample of a region that duels: whatever fetches it may have to displace another one first.
GPUVM_DEVICE bool is_in_sample(const layout::ArrayDesc& array, u64 page) {
    return array.region & layout::ARRAY_DUELS &&
           sample_of(page, block_shift_of(sampling_of(head_of(words_of(array))))) != kNoSample;
}

// What a chunk costs, learned from lanes that read together: those that are spread over many pages each need a request
// of their own, and where the home was not read of late a translation. Several warps may store: each is near enough.
GPUVM_DEVICE void note_spread(const layout::VmDesc* vm, layout::TableHead* head, u64 page) {
    u32 here, sharing = match_active(page, &here), lane = lane_id(), leaders, near;
    bool leads = lane == static_cast<u32>(__ffs(sharing)) - 1;
    u32 granule = static_cast<u32>(page >> (layout::GRANULE_SHIFT - vm->page_shift));
    u32* slot = head->granules + granule % layout::GRANULES;
    bool known = ld_relaxed_gpu(slot) == granule + 1;
    if (leads && !known) st_relaxed_gpu(slot, granule + 1);
    ballot2(here, leads, leads && known, &leaders, &near);
    if (lane != static_cast<u32>(__ffs(here)) - 1) return;
    int pages = __popc(leaders), known_pages = __popc(near), now = layout::COST_UNIT;
    if (pages >= kSpreadPages && pages * 2 > __popc(here))
        now = (static_cast<int>(ld_weak(&head->near_read)) * known_pages +
               static_cast<int>(ld_weak(&head->scattered_read)) * (pages - known_pages)) /
              pages;
    int cost = static_cast<int>(ld_relaxed_gpu(&head->chunk_cost)), step = (now - cost) / 8;
    if (now != cost) st_relaxed_gpu(&head->chunk_cost, static_cast<u32>(step ? cost + step : now));
    // While frames are free scattered reads are counted, others fetch their page at once.
    u64 sampling = sampling_of(head);
    u32 draws = static_cast<u32>(sampling), when_free = draws_free(vm->page_shift);
    bool counted = cost > 2 * static_cast<int>(layout::COST_UNIT);
    if (counted ? draws == when_free : draws == layout::DRAWS_COUNTED)
        set_draws(head, sampling, counted ? layout::DRAWS_COUNTED : when_free);
}

// Whether the page `id`, which is worth a fetch, finds one to displace that was not used for an epoch: each frame is
// looked at once in one. If every such page might look, the clock would go round in microseconds, and find pages idle
// that are as hot as any.
GPUVM_DEVICE bool displaces_idle(const layout::VmDesc* vm, layout::TableHead* head, u64 id, u32 epoch, u32 sample,
                                 u32* frame) {
    u64* looks = head->looks + (sample == kNoSample);
    u64 seen = ld_relaxed_gpu(looks), first = static_cast<u64>(epoch) << 32;
    u64 number = seen >> 32 == epoch ? seen - first : 0;
    u64 over = sample == kNoSample ? clock_limit(vm) : region_of(vm, id)->pages >> block_shift_of(sampling_of(head));
    // A look that another lane counted instead is that lane's.
    if (number * kIdleWindow >= over || atom_cas_relaxed_gpu(looks, seen, first + number + 1) != seen) return false;
    return turn_clock(vm, kIdleWindow, 1, frame, id);
}

// Counts what reads at the home stand for, one of `drawn` of which is weighed. False when the page is to be fetched, by
// this lane.
GPUVM_DEVICE bool weigh(const layout::VmDesc* vm, layout::TableHead* head, u64* word, u64 id, u64 seen, u64 chunk,
                        u32 drawn, u32 rule, u32 sample) {
    bool stream = drawn & kStream;
    drawn &= ~kStream;
    u32 here, sharing = match_active(chunk, &here), lane = lane_id();
    u64 page = page_of(id);
    u32 neighbours = __match_any_sync(here, static_cast<u32>(page)), first = __ffs(neighbours) - 1;
    // Chunks that several lanes read travel once.
    u32 chunks, unused;
    ballot2(here, lane == static_cast<u32>(__ffs(sharing)) - 1, false, &chunks, &unused);
    if (lane != first) return true;
    u32 own = __popc(chunks & neighbours);
    count(&counters(vm)->chunks_in_place, static_cast<u64>(own) * drawn);
    // Weak: the host writes it before the launch.
    u64 page_chunks = ld_weak(&head->page_chunks);
    if (page_chunks) count(reinterpret_cast<u64*>(page_chunks) + page, static_cast<u64>(own) * drawn);
    // Half a line and more is what lanes read side by side, whatever other reads of the region are like.
    u64 cost = static_cast<u64>(own) * drawn;
    if (own < kChunksAlike && !stream) cost = cost * ld_relaxed_gpu(&head->chunk_cost) / layout::COST_UNIT;
    if (sample != kNoSample) spend(head, sample, cost, vm->page_shift);
    if (rule != layout::RULE_FREQUENCY || state_of(seen) != kAbsent) return true;
    u32 epoch = epoch_of(head);
    // A span reads as much as a fetch brings: what pays is that it comes again.
    u64 use = use_of(seen, epoch) + (stream ? cost / 2 : cost), enough = 1ull << (vm->page_shift - kChunkShift);
    // A free frame costs nothing: a large page need not first have been read for as much as it costs.
    if (enough > kEnoughWhileFree && is_free(static_cast<u32>(sampling_of(head)), vm->page_shift))
        enough = kEnoughWhileFree;
    if (use >= enough) {
        // Worth a fetch. Whether it is worth more than a page that has a frame: one that was used of late stays.
        i64 available = static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available));
        u32 frame;
        bool enough_free = available > 0 && available * 2 >= low_water(vm);
        if (sample == kNoSample && enough_free) return false;
        if (displaces_idle(vm, head, id, epoch, sample, &frame)) {
            pool_give(&vm->pool, frame);
            return false;
        }
        use = enough / 2;
    }
    note_use(word, seen, use, epoch);
    return true;
}

// Whether a page without a frame, whose word is `seen`, is to be read in place now, rather than fetched. `draw`: the
// chunks that the read stands for, less one. `whole`: all lanes that read with this one ask.
GPUVM_NOINLINE bool stays_at_home(const layout::VmDesc* vm, u64* words, u64 page, u64 seen, u64 chunk, u32 region,
                                  u32 draw, bool whole) {
    layout::TableHead* head = head_of(words);
    u64 sampling = sampling_of(head);
    u32 draws = static_cast<u32>(sampling), shift = block_shift_of(sampling), rule = layout::RULE_FIRST_COME;
    u32 sample = shift ? sample_of(page, shift) : kNoSample;
    if (whole && region & layout::ARRAY_DUELS) note_spread(vm, head, page);
    if (region & layout::ARRAY_FETCH_WHILE_FREE) {
        bool free = is_free(draws, vm->page_shift), competes = region & layout::ARRAY_DUELS;
        // Far more than the clock keeps free, or evicts too many when all ask at once: they were given back.
        if (!free && static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) > 3 * low_water(vm)) {
            set_draws(head, sampling, draws_free(vm->page_shift));
            free = true;
        }
        if (free) {
            rule = draws == layout::DRAWS_COUNTED ? layout::RULE_FREQUENCY : layout::RULE_FETCH;
            sample = kNoSample;
        } else if (competes) {
            rule = rule_of(head, sampling, sample);
        }
        if (rule == layout::RULE_FETCH) {
            // A large page shows its first element early, and is fetched for the second one.
            if (!competes || vm->page_shift <= layout::SMALL_PAGE_SHIFT || draw & kStream) return false;
            if (state_of(seen) == kFetching) return true;
            return !(seen & layout::FRAME_MASK) && note_use(words + page, seen, 1, epoch_of(head));
        }
    }
    u64 id = page_id(region & (layout::REGIONS_MAX - 1), page);
    return weigh(vm, head, words + page, id, seen, chunk, draw + 1, rule, sample);
}

// Whether a page with this word has its data at home alone. While it is fetched its home stays as it is.
GPUVM_DEVICE bool has_no_frame(u64 seen) { return state_of(seen) == kAbsent || state_of(seen) == kFetching; }

// An element at a home that write-backs change. False when one may have changed it meanwhile. A page leaves its frame
// only clean, with its write-back done, and counts its version then: a page that was at home before and after the load,
// in one version, had no frame between, or one from which nothing was written back.
template <class T>
GPUVM_DEVICE bool load_between_looks(u64 home, const u64* word, T* value) {
    // Acquire: pairs with the eviction, so what its write-back stored comes before the load.
    u64 first = ld_acquire_gpu(word);
    if (!has_no_frame(first)) return false;
    // Strong, since a line of an earlier stay may be in L1, and an acquire: the second look comes after it.
    *value = load_strong<T>(home);
    u64 second = ld_relaxed_gpu(word);
    return has_no_frame(second) && !((first ^ second) & layout::VERSION_MASK);
}

// Whether a page that has no frame is read at its home now. `Bytes`: what the read stands for, a chunk or whole chunks
// from byte `at` of the array on. False when the page has a frame, is to get one, or is not available.
template <u32 Bytes>
GPUVM_DEVICE bool is_at_home(const layout::ArrayDesc& array, u64 page, u64 at) {
    constexpr u32 chunks = Bytes >> kChunkShift;
    // Relaxed: an acquire would empty the L1 cache, from which a lane's next elements come.
    u64 seen = ld_relaxed_gpu(words_of(array) + page);
    u64 sampling = sampling_of(head_of(words_of(array)));
    if (!has_no_frame(seen)) return false;
    // Most reads ask no one. Drawn by the clock, which lanes that come together read together.
    u32 draw = draw_of(static_cast<u32>(sampling), sample_of(page, block_shift_of(sampling)));
    u32 drawn = static_cast<u32>(ticks()) * 0x9e3779b9u >> 16;
    // Where pages are fetched some ask all the same, so that it is known how reads are spread.
    if (drawn & (draw == layout::DRAW_FETCH ? layout::DRAW_FEW : draw)) return draw != layout::DRAW_FETCH;
    return stays_at_home(vm_of(array), words_of(array), page, seen, (array.home + at) / Bytes, array.region,
                         (draw + 1) * chunks - 1, !(drawn & layout::DRAW_FEW));
}

// Whether a span lies at the home of its page now, which nothing writes. `bytes`: how much of it is read there, at
// most. One lane asks for all that are here with the page, each time: a span stands for many reads.
GPUVM_DEVICE bool is_span_at_home(const layout::ArrayDesc& array, Place place, u64 bytes) {
    if (!reads_in_place(array) || array.region & layout::ARRAY_HOME_CHANGES) return false;
    u64* words = words_of(array);
    u64* word = words + place.page;
    u32 active, group = match_active(reinterpret_cast<u64>(word), &active), leader = __ffs(group) - 1;
    bool stays = false;
    if (lane_id() == leader) {
        u64 seen = ld_relaxed_gpu(word), sampling = sampling_of(head_of(words));
        u32 draw = draw_of(static_cast<u32>(sampling), sample_of(place.page, block_shift_of(sampling)));
        u64 to_end = (1ull << array.page_shift) - place.offset;
        u32 chunks = static_cast<u32>(((bytes < to_end ? bytes : to_end) + (1 << kChunkShift) - 1) >> kChunkShift);
        u64 chunk = (array.home + (place.page << array.page_shift) + place.offset) >> kChunkShift;
        if (has_no_frame(seen) && draw != layout::DRAW_FETCH)
            stays = stays_at_home(vm_of(array), words, place.page, seen, chunk, array.region, kStream | (chunks - 1),
                                  false);
    }
    return __shfl_sync(group, static_cast<u32>(stays), leader);
}
GPUVM_DEVICE bool is_at_home_address(const layout::ArrayDesc& array, u64 address) {
    return kDirect && address - array.home < array.bytes;
}

// Reads an element at its page's home. False when that is not the place to read it.
template <class T>
GPUVM_DEVICE bool read_at_home(const layout::ArrayDesc& array, Place place, T* value) {
    u64 byte = (place.page << array.page_shift) + place.offset;
    // A chunk of several elements may reach past the array's end, and the home need not.
    if (byte + sizeof(T) > array.bytes) return false;
    if (!is_at_home<1 << kChunkShift>(array, place.page, byte)) return false;
    if (array.region & layout::ARRAY_HOME_CHANGES)
        return load_between_looks(array.home + byte, words_of(array) + place.page, value);
    *value = load_weak<T>(array.home + byte);
    return true;
}

// Runs `store(address)` with the home of an element of `bytes` bytes, whose page is not fetched meanwhile: by one pin a
// lane, which are added and given back together for all lanes that are here with the page. False when it has a frame,
// is to get one, or is not available. Nothing waits for anything while such a pin is held.
template <class Store>
GPUVM_DEVICE bool store_at_home(const layout::ArrayDesc& array, u64 page, u32 offset, u32 bytes, Store store) {
    u64* word = words_of(array) + page;
    u32 active, group = match_active(reinterpret_cast<u64>(word), &active);
    u32 leader = __ffs(group) - 1, lanes = __popc(group);
    bool leads = lane_id() == leader, held = false;
    if (leads) {
        // Acquire: pairs with the eviction, so what its write-back stored at the home comes before these stores.
        held = holds_at_home(add_pins(word, lanes));
        if (held)
            count(&counters(vm_of(array))->bytes_stored_in_place, static_cast<u64>(lanes) * bytes);
        else
            undo_pins(word, lanes);
    }
    // The leader's acquire comes before the group's stores: a shuffle orders nothing.
    __syncwarp(group);
    if (!__shfl_sync(group, static_cast<u32>(held), leader)) return false;
    store(array.home + (page << array.page_shift) + offset);
    // The group's stores come before the leader's release. At GPU scope, as after a write-back: the end of the kernel
    // carries them to the host, or to whom the home belongs.
    __syncwarp(group);
    if (leads) unpin(word, lanes);
    return true;
}

}  // namespace detail
}  // namespace gpuvm
