// The write-back of a page, from the mark in its word to the WRITE's end: by lanes or by queue pairs, to one home or to
// several.
//
// It begins in one of two ways. The clock cleans a page that nothing holds, for its frame, and does not wait. A flush
// writes a page back, held or not, and waits. A thread that handles the last completion ends it.
#pragma once

#include "queue.cuh"
#include "victim.cuh"

namespace gpuvm {
namespace detail {

// Evictors back off from a region whose WRITEs fail: they leave its dirty pages alone for a while, since each try costs
// a queue pair and all that is in flight on it. Relaxed: a hint, which orders nothing.
constexpr u32 kBackOffShift = 16;  // its time is in 2^16 ns
constexpr u32 kBackOffShare = 64;  // of the wait limit
// In its units. A time that is farther away is over: the clock has wrapped since.
constexpr u32 kBackOffMost = 1u << 24;
GPUVM_DEVICE u32* back_off_word(const layout::RegionDesc* region) {
    return const_cast<u32*>(&region->backed_off_until);
}
GPUVM_DEVICE void back_off(const layout::VmDesc* vm, const layout::RegionDesc* region) {
    u64 until = time_ns() + vm->wait_limit_ns / kBackOffShare;
    st_relaxed_gpu(back_off_word(region), static_cast<u32>(until >> kBackOffShift) | 1);
}
GPUVM_DEVICE bool is_backed_off(const layout::RegionDesc* region) {
    u32 until = ld_relaxed_gpu(back_off_word(region));
    return until != 0 && until - static_cast<u32>(time_ns() >> kBackOffShift) - 1 < kBackOffMost;
}
GPUVM_DEVICE void end_back_off(const layout::RegionDesc* region) {
    if (ld_relaxed_gpu(back_off_word(region)) != 0) st_relaxed_gpu(back_off_word(region), 0u);
}

// Writes a page back whose write-back mark is ours, and takes the mark away.
GPUVM_DEVICE void write_back_direct(const layout::VmDesc* vm, u64 id, u64* word, u32 frame) {
    Source source = source_of(vm, id);
    GPUVM_TIMELINE_ONLY(u64 begun = ticks();)
    drop_kept(region_of(vm, id), frame);
    copy_to_home(source.home, frame_address(vm, region_of(vm, id), frame), source.bytes);
    // Its release carries the home's bytes to who fetches the page next. To the host, or the owner of the home,
    // the end of a kernel that has seen the mark gone carries them on: a fence at system scope here, under the load of
    // all other pages, made write-backs to a neighbour GPU take half as long again.
    write_back_done(word);
    count_written_back(vm, source.bytes);
    GPUVM_TIMELINE_ONLY(timeline_written(vm, id, frame, timeline_since(begun));)
}

// Ends the write-back of a page: clean, or dirty again. One that was cleaned for its frame leaves it now.
GPUVM_DEVICE void end_write_back(const layout::VmDesc* vm, u64 id, u32 frame, bool well, bool release_frame) {
    u64* word = word_of(vm, id);
    if (!well) {
        write_back_failed(word);
        return;
    }
    end_back_off(region_of(vm, id));
    count_written_back(vm, source_of(vm, id).bytes);
    GPUVM_TIMELINE_ONLY(timeline_written(vm, id, frame, 0);)
    write_back_done(word);
    if (release_frame && try_leave(vm, word, frame)) pool_give(&vm->pool, frame);
}

// `finish_write` for a region with replicas or checksums: the last of the page's WRITEs ends the write-back.
GPUVM_NOINLINE u32 finish_reliable_write(const Queue& q, u64 id, u32 frame, const Completion& done,
                                         bool release_frame) {
    const layout::VmDesc* vm = q.vm;
    if (done.ok) q.note_answer();
    bool replicated = is_replicated(region_of(vm, id));
    bool repeat = !done.ok && q.to_repeat(done), own_fault = !done.ok && is_own_fault(done.syndrome);
    u32 how = done.ok ? kWritten : repeat && !(replicated && all_queues_gone(vm, id)) ? kToRepeat : kMissed;
    // An error of our own leaves the home's copy what it was, and the page dirty.
    u32 end = replicated        ? end_replica(vm, id, own_fault ? kToRepeat : how)
              : how == kWritten ? kEndedWell
                                : kEndedBadly;
    // No home takes it.
    if ((end == kEndedBadly && !done.ok && !repeat) || own_fault) back_off(vm, region_of(vm, id));
    if (end != kNotLast) end_write_back(vm, id, frame, end == kEndedWell, release_frame);
    return how == kWritten ? layout::OUTCOME_OK : how == kToRepeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// Ends the write-back of a completed WRITE.
GPUVM_DEVICE u32 finish_write(const Queue& q, const layout::RequestRecord* record, const Completion& done,
                              bool release_frame) {
    const layout::VmDesc* vm = q.vm;
    u64 id = ld_relaxed_gpu(&record->page_id);
    u32 frame = ld_relaxed_gpu(&record->frame);
    if (is_reliable(region_of(vm, id))) return finish_reliable_write(q, id, frame, done, release_frame);
    bool repeat = !done.ok && q.to_repeat(done);
    if (!done.ok && !repeat) back_off(vm, region_of(vm, id));
    end_write_back(vm, id, frame, done.ok, release_frame);
    return done.ok ? layout::OUTCOME_OK : repeat ? layout::OUTCOME_FLUSHED : layout::OUTCOME_FAILED;
}

// `post_clean` for a region with replicas or checksums. Once a WRITE is posted its handler ends the write-back, or this
// lane does for a replica that it could post none to.
GPUVM_NOINLINE bool post_reliable(const layout::VmDesc* vm, u64 id, u32 frame, u32 kind, u32* rung) {
    const layout::RegionDesc* region = region_of(vm, id);
    u32 pending = is_replicated(region) ? begin_replicas(vm, id) : 1;
    if (!pending) return false;
    if (is_checked(region)) renew_checksum(vm, id, frame);
    bool begun = false;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (!(pending >> n & 1)) continue;
        u64 replica = at_replica(id, n);
        u32 queue;
        u64 index;
        if (!try_reserve_any(vm, replica, true, 1, &queue, &index)) {
            // Nothing is begun yet: as if nothing had been tried.
            if (!begun) break;
            u32 end = end_replica(vm, replica, all_queues_gone(vm, replica) ? kMissed : kToRepeat);
            if (end != kNotLast) end_write_back(vm, id, frame, end == kEndedWell, false);
            continue;
        }
        begun = true;
        Queue q(vm, queue);
        write_slot(q, index, kind, replica, frame, 0, 0);
        commit(q, index, 1);
        if (*rung != queue && *rung != kNoFrame) ring(Queue(vm, *rung));
        *rung = queue;
    }
    return begun;
}

// Begins the write-back of a dirty page whose cleaning was won; false when no ring had room.
GPUVM_DEVICE bool post_clean(const layout::VmDesc* vm, u64 id, u32 frame, u32 kind, u32* rung) {
    if (is_reliable(region_of(vm, id))) return post_reliable(vm, id, frame, kind, rung);
    u32 queue;
    u64 index;
    if (!try_reserve_any(vm, id, true, 1, &queue, &index)) return false;
    Queue q(vm, queue);
    write_slot(q, index, kind, id, frame, 0, 0);
    commit(q, index, 1);
    // One doorbell for neighbours on one queue.
    if (*rung != queue && *rung != kNoFrame) ring(Queue(vm, *rung));
    *rung = queue;
    return true;
}

// Begins the WRITE of a dirty page and returns its frame, or kNoFrame when the word changed meanwhile.
// A pinned page is copied as it is and stays dirty: its holders may store during the WRITE.
GPUVM_DEVICE u32 begin_flush(u64* word, u64 seen) {
    if (pins_of(seen) == 0) return try_clean(word, seen) ? frame_of(seen) : kNoFrame;
    u64 old = atom_or_acq_rel_gpu(word, layout::WRITE_BACK_BIT);
    if (old & layout::WRITE_BACK_BIT) return kNoFrame;  // another's mark
    if (is_resident(old)) return frame_of(old);
    atom_and_relaxed_gpu(word, ~layout::WRITE_BACK_BIT);
    return kNoFrame;
}

// Writes back a page of a region with replicas or checksums whose write-back mark is ours, and waits for it: OUTCOME_*
// with the syndromes of a failure, or 0 when a wait ended first.
GPUVM_NOINLINE u32 flush_reliable(const layout::VmDesc* vm, u64 id, u32 frame, u32* queue, u64* index) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64* word = word_of(vm, id);
    *queue = stripe_of(vm, id)->queue_first;
    *index = 0;
    u32 pending = is_replicated(region) ? begin_replicas(vm, id) : 1;
    if (!pending) {
        write_back_failed(word);
        if (is_unreachable(vm, id)) return layout::OUTCOME_FAILED;
        // A pair is being recovered, once its requests are finished, which nothing but us may be there to do.
        reap_all(vm, kClockWindow);
        return layout::OUTCOME_FLUSHED;
    }
    if (is_checked(region)) renew_checksum(vm, id, frame);
    u32 posted = 0, worst = 0, queues[layout::REPLICAS_MAX];
    u64 indexes[layout::REPLICAS_MAX];
    bool written = false, dirty = false, again = false, ended = true;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (!(pending >> n & 1)) continue;
        u64 replica = at_replica(id, n);
        if (!wait_for_slot(vm, replica, true, &queues[n], &indexes[n])) {
            bool gone = all_queues_gone(vm, replica);
            u32 end = kEndedBadly;
            if (is_replicated(region)) end = end_replica(vm, replica, gone ? kMissed : kToRepeat);
            if (end != kNotLast) end_write_back(vm, id, frame, end == kEndedWell, false);
            ended = ended && gone;
            continue;
        }
        Queue q(vm, queues[n]);
        write_slot(q, indexes[n], layout::REQUEST_FLUSH, replica, frame, 1, 0);
        commit(q, indexes[n], 1);
        ring(q);
        posted |= 1u << n;
    }
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (!(posted >> n & 1)) continue;
        u32 outcome = wait_outcome(Queue(vm, queues[n]), indexes[n]);
        if ((outcome & 0xff) == layout::OUTCOME_OK) {
            written = true;
            continue;
        }
        *queue = queues[n];
        *index = indexes[n];
        ended = ended && outcome != 0;
        again = again || (outcome & 0xff) == layout::OUTCOME_FLUSHED;
        if ((outcome & 0xff) != layout::OUTCOME_FAILED) continue;
        worst = outcome;
        dirty = dirty || is_own_fault(outcome >> 8 & 0xff);
    }
    if (!ended) return 0;
    if (again) return layout::OUTCOME_FLUSHED;
    // A replica that missed it is stale; after an error of our own none is, and the page is dirty.
    if (written && !dirty) return layout::OUTCOME_OK;
    return worst ? worst : layout::OUTCOME_FAILED;
}

}  // namespace detail
}  // namespace gpuvm
