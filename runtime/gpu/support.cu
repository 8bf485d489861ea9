// Kernels that the runtime itself launches.
#include <gpuvm/detail/beside.cuh>
#include <gpuvm/detail/bring.cuh>
#include <gpuvm/detail/catch_up.cuh>
#include <gpuvm/detail/flush.cuh>
#include <gpuvm/detail/give_way.cuh>
#include <gpuvm/detail/look_up.cuh>
#include <gpuvm/detail/resize.cuh>
#include <gpuvm/gpuvm.cuh>

// Layout version that this machine's device code was compiled with, and the element of a sanity check.
// One thread alone stores: equal values from several would race all the same.
__global__ void gpuvm_version(unsigned* out) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *out = gpuvm::layout::LAYOUT_VERSION;
}

// Faults of these kernels end nothing but their page (`LaunchState::continues`): each goes on with others, but for
// lanes whose pages took as long as one wait may.
__device__ bool gpuvm_is_late(const gpuvm::layout::VmDesc* vm, unsigned long long begun) {
    return gpuvm::detail::aborted(vm) || gpuvm::detail::time_ns() - begun > vm->wait_limit_ns;
}

// Writes the dirty pages [first, last) of a region home.
__global__ void gpuvm_flush(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                            unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long begun = gpuvm::detail::time_ns();
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::flush_page(vm, gpuvm::detail::page_id(region, page)) && gpuvm_is_late(vm, begun)) return;
}

// Finishes what has completed on queue pairs [first, first + count), and closes those that have failed to reservations.
__global__ void gpuvm_reap(const gpuvm::layout::VmDesc* vm, unsigned first, unsigned count) {
    if (blockIdx.x != 0) return;
    for (unsigned n = threadIdx.x; n < count; n += blockDim.x) gpuvm::detail::reap_for_host(vm, first + n);
}

// Marks the copies of the pages [first, last) of a region at one of its homes as stale.
__global__ void gpuvm_mark_stale(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned home,
                                 unsigned long long first, unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        gpuvm::detail::mark_page_stale(vm, gpuvm::detail::page_id(region, page), home);
}

// Forgets that fetches of the pages [first, last) of a region failed.
__global__ void gpuvm_clear_errors(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                                   unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        gpuvm::detail::clear_error(gpuvm::detail::word_of(vm, gpuvm::detail::page_id(region, page)));
}

// Brings the stale copies of the pages [first, last) of a region up to date, at homes that can be reached.
__global__ void gpuvm_catch_up(gpuvm::layout::ArrayDesc array, unsigned long long first, unsigned long long last) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long begun = gpuvm::detail::time_ns();
    const auto* vm = reinterpret_cast<const gpuvm::layout::VmDesc*>(array.vm);
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::catch_up_page(array, page) && gpuvm_is_late(vm, begun)) return;
}

// Reads `reads` chunks of a home, at scattered places or side by side: what takes its time is the home alone.
__global__ void gpuvm_read_home(const gpuvm::detail::pair64* home, unsigned long long chunks, unsigned long long reads,
                                unsigned scattered, unsigned* sink) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x, found = 0;
    for (unsigned long long n = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; n < reads;
         n += lanes) {
        unsigned long long at =
            scattered ? gpuvm::detail::multiply_high(n * 0x9e3779b97f4a7c15ull, chunks) : n % chunks;
        gpuvm::detail::pair64 chunk = gpuvm::detail::ld_weak(home + at);
        found |= chunk.lo & chunk.hi;
    }
    // Never so, but the compiler cannot know it.
    if (scattered > 1) *sink = static_cast<unsigned>(found);
}

// Gives every frame of the pages [first, last) of a region back. Dirty pages are written back, or dropped with
// `discard`.
__global__ void gpuvm_release(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                              unsigned long long last, unsigned discard) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long begun = gpuvm::detail::time_ns();
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        if (!gpuvm::detail::release_page(vm, gpuvm::detail::page_id(region, page), discard != 0) &&
            gpuvm_is_late(vm, begun))
            return;
}

// Pages [first, last) of a region stay where they are, for launches that look them up, or with `!hold` no longer.
// Before that what those launches wrote counts as dirty; with `beside` some of them run still.
__global__ void gpuvm_hold(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                           unsigned long long last, unsigned hold, unsigned beside) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes) {
        unsigned long long id = gpuvm::detail::page_id(region, page);
        if (hold) {
            gpuvm::detail::hold_page(vm, id);
            continue;
        }
        gpuvm::detail::fold_mark(vm, id, beside != 0);
        if (beside) continue;
        gpuvm::detail::let_page_go(vm, id);
        gpuvm::detail::leave_slot(vm, id, false);
    }
}

// Brings those of a held region's `pages` pages into frames that were used at home, as far as some are free, from page
// `start` on and round. With `own`, bits of frames that are the caller's, those come whose frame in order from `run` on
// is one of them, and with `fill` whether they were used or not. With `slots` those for which none is free come to
// slots at neighbours. Counts in `stay`, if there is one, those that have no frame then, behind it those that were
// used, those whose frame is another than in order, and those that came to slots. Blocks are whole warps.
__global__ void gpuvm_bring(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long start,
                            unsigned long long pages, unsigned run, unsigned long long* own, unsigned fill,
                            unsigned slots, unsigned long long* stay) {
    unsigned long long warps = static_cast<unsigned long long>(gridDim.x) * blockDim.x / 32;
    unsigned long long warp = (blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x) / 32;
    unsigned long long absent = 0, used = 0, elsewhere = 0, lent = 0;
    for (unsigned long long n = warp; n < pages; n += warps) {
        unsigned long long page = start + n < pages ? start + n : start + n - pages;
        unsigned long long id = gpuvm::detail::page_id(region, page);
        unsigned its = run + static_cast<unsigned>(page);
        unsigned became = gpuvm::detail::bring_page(vm, id, own, its, fill != 0, slots != 0);
        absent += became != gpuvm::detail::kHasFrame;
        used += became == gpuvm::detail::kNoneFree || became == gpuvm::detail::kHasSlot;
        lent += became == gpuvm::detail::kHasSlot;
        elsewhere += gpuvm::detail::frame_of_page(vm, id) != its;
    }
    if (!stay || threadIdx.x % 32 != 0) return;
    if (absent) gpuvm::detail::atom_add_relaxed_gpu(stay, absent);
    if (used) gpuvm::detail::atom_add_relaxed_gpu(stay + 1, used);
    if (elsewhere) gpuvm::detail::atom_add_relaxed_gpu(stay + 2, elsewhere);
    if (lent) gpuvm::detail::atom_add_relaxed_gpu(stay + 3, lent);
}

// Has the pages [first, last) of a held region leave their slots at neighbours, or with `unlent` those whose memory was
// taken back. No launch uses the region.
__global__ void gpuvm_leave_slots(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                                  unsigned long long last, unsigned unlent) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        gpuvm::detail::leave_slot(vm, gpuvm::detail::page_id(region, page), unlent != 0);
}

// Counts those of the pages [first, last) of a region that were used at home, those that are not at home, and those of
// them that have come. Where the region is held, and no launch uses it, these have pins.
__global__ void gpuvm_survey(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                             unsigned long long last, unsigned long long* found) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long used = 0, away = 0, resident = 0;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes) {
        unsigned long long id = gpuvm::detail::page_id(region, page);
        unsigned long long word = gpuvm::detail::ld_relaxed_gpu(gpuvm::detail::word_of(vm, id));
        bool is_away = gpuvm::detail::state_of(word) != gpuvm::detail::kAbsent;
        used += !is_away && gpuvm::detail::ld_weak(gpuvm::detail::mark_of(vm, id));
        away += is_away;
        resident += gpuvm::detail::has_come(word);
    }
    if (used) gpuvm::detail::atom_add_relaxed_gpu(found, used);
    if (away) gpuvm::detail::atom_add_relaxed_gpu(found + 1, away);
    if (resident) gpuvm::detail::atom_add_relaxed_gpu(found + 2, resident);
}

// Takes all free frames: a bit of `frames` each.
__global__ void gpuvm_take_free(const gpuvm::layout::VmDesc* vm, unsigned long long* frames) {
    unsigned frame;
    while (gpuvm::detail::pool_pop(&vm->pool, &frame))
        gpuvm::detail::atom_or_relaxed_gpu(frames + frame / 64, 1ull << frame % 64);
}

// Gives frames back that nothing else knows: those whose bits are set in `words` words.
__global__ void gpuvm_give_free(const gpuvm::layout::VmDesc* vm, const unsigned long long* frames,
                                unsigned long long words) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long n = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; n < words;
         n += lanes)
        if (frames[n]) gpuvm::detail::pool_give_run(&vm->pool, static_cast<unsigned>(n * 64), frames[n], ~0u);
}

// Has up to `most` of a held region's `pages` pages leave their frames, from page `start` on and round, and as many of
// those that are met on the way their slots, while few of these are free. `taken[0]` and `taken[1]` are 0; the latter
// counts those that left frames.
__global__ void gpuvm_give_way(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long start,
                               unsigned long long pages, unsigned long long most, unsigned long long* taken) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    bool goes_on = false;
    for (unsigned long long n = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; n < pages;
         n += lanes) {
        // One of those that may leave is this lane's, until it has found a page.
        if (!goes_on && gpuvm::detail::atom_add_relaxed_gpu(taken, 1ull) >= most) return;
        unsigned long long page = start + n < pages ? start + n : start + n - pages;
        unsigned long long id = gpuvm::detail::page_id(region, page);
        goes_on = !gpuvm::detail::give_way(vm, id);
        if (goes_on && gpuvm::detail::has_few_slots(vm, region, most)) gpuvm::detail::leave_slot(vm, id, false);
        if (!goes_on) gpuvm::detail::atom_add_relaxed_gpu(taken + 1, 1ull);
    }
}

// Has marks that rewritten kernels have set, a byte a page from `marks` on, count as those of the page table, of the
// pages [first, last) of a region. With `beside` some of those kernels run still, and marks stay. Where `marks` is null
// each page counts as marked.
__global__ void gpuvm_take_marks(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                                 unsigned long long last, unsigned char* marks, unsigned beside) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes) {
        unsigned long long id = gpuvm::detail::page_id(region, page);
        if (marks)
            gpuvm::detail::take_mark(vm, id, marks + page, beside != 0);
        else
            gpuvm::detail::mark_written(vm, id);
    }
}

// Marks of pages in frames go, of the pages [first, last) of a region that no launch uses. With `folds` those pages are
// dirty; else nothing has stored to them, and marks are from when they were at home.
__global__ void gpuvm_clear_marks(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                                  unsigned long long last, unsigned folds) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        gpuvm::detail::clear_mark(vm, gpuvm::detail::page_id(region, page), folds != 0);
}

// Brings pages beside a launch, until that has ended. Blocks are whole warps, one at least beyond those that watch.
__global__ void gpuvm_bring_beside(const gpuvm::layout::VmDesc* vm, gpuvm::layout::BesideDesc* desc) {
    if (!desc) return;
    if (blockIdx.x < desc->watchers)
        gpuvm::detail::watch_marks(vm, desc);
    else
        gpuvm::detail::bring_what_is_asked(vm, desc);
    __shared__ unsigned last;
    // What the block's warps did with frames comes before its end is counted.
    __syncthreads();
    if (threadIdx.x == 0) {
        gpuvm::detail::fence_acq_rel_gpu();
        last = gpuvm::detail::atom_add_relaxed_gpu(&desc->ended, 1u) + 1 == gridDim.x;
        // And what all others did before the last one gives frames back.
        gpuvm::detail::fence_acq_rel_gpu();
    }
    __syncthreads();
    if (!last) return;
    // Frames that were not needed go back.
    unsigned long long* own = reinterpret_cast<unsigned long long*>(desc->own);
    for (unsigned long long n = threadIdx.x; n < desc->own_words; n += blockDim.x) {
        unsigned long long left = gpuvm::detail::ld_relaxed_gpu(own + n);
        if (left) gpuvm::detail::pool_give_run(&vm->pool, static_cast<unsigned>(n * 64), left, ~0u);
    }
}

// Writes an entry for each of the pages [first, last) of a held region: where the page is, with bit 0 for a page at
// home. For rewritten kernels less its address `window` and on, which is 0 for others.
__global__ void gpuvm_write_entries(const gpuvm::layout::VmDesc* vm, unsigned region, unsigned long long first,
                                    unsigned long long last, unsigned long long* entries, unsigned long long window) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long page = first + blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
         page < last; page += lanes)
        entries[page] = gpuvm::detail::entry_of(vm, gpuvm::detail::page_id(region, page), window);
}

// Works on `change`, a change of the number of frames, for so long at most.
__global__ void gpuvm_change_frames(const gpuvm::layout::VmDesc* vm, unsigned long long change,
                                    unsigned long long limit_ns) {
    gpuvm::detail::change_frames(vm, change, blockIdx.x * blockDim.x + threadIdx.x, limit_ns);
}

// Passes on the lines of a broadcast array that this GPU has marked. Blocks are whole warps.
__global__ void gpuvm_forward_atomics(gpuvm::layout::BroadcastDesc array, unsigned long long lines) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long warp = (blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x) / 32 * 32;
    // 8 lines a lane; all lanes of a warp go round as often.
    for (unsigned long long at = warp * 8; at < lines; at += lanes * 8)
        gpuvm::detail::forward_marked(array, at + threadIdx.x % 32 * 8, lines);
}

// Copies the owners' copies of bytes [first, first + bytes) to this GPU's, 8 bytes an access.
__global__ void gpuvm_bring_copy(gpuvm::layout::BroadcastDesc array, unsigned long long first,
                                 unsigned long long bytes) {
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long at = (blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x) * 8;
         at < bytes; at += lanes * 8)
        gpuvm::detail::bring_word(array, first + at);
}

#if defined(GPUVM_HAS_TIMELINE)
// The GPU's global timer, for the host to compare its own clock with.
__global__ void gpuvm_clock(unsigned long long* now) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *now = gpuvm::detail::time_ns();
}
#endif
