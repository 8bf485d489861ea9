// Regions whose pages have two homes: which copies may be read, and when a write-back to both has ended.
//
// A page's stale bits and its join word are changed only by the thread that owns the page: by its claim, or by its
// write-back mark and the requests that the mark stands for. So relaxed accesses do: the page table entry's release and
// acquire carry them.
#pragma once

#include "page_word.cuh"
#include "pair.cuh"
#include "pool.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE u32* stale_word(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64 word = replica_of(id) * region->stale_words + (page_of(id) >> 5);
    return reinterpret_cast<u32*>(region->stale) + word;
}
GPUVM_DEVICE u32 stale_bit(u64 id) { return 1u << (page_of(id) & 31); }

// Whether the replica that `id` names does not hold what was written back last.
GPUVM_DEVICE bool is_stale(const layout::VmDesc* vm, u64 id) {
    return ld_relaxed_gpu(stale_word(vm, id)) & stale_bit(id);
}
GPUVM_DEVICE void set_stale(const layout::VmDesc* vm, u64 id) {
    u32 old = atom_or_relaxed_gpu(stale_word(vm, id), stale_bit(id));
    if (!(old & stale_bit(id))) count(&counters(vm)->replicas_missed, 1);
}
GPUVM_DEVICE void clear_stale(const layout::VmDesc* vm, u64 id) {
    if (!is_stale(vm, id)) return;
    atom_and_relaxed_gpu(stale_word(vm, id), ~stale_bit(id));
    count(&counters(vm)->replicas_repaired, 1);
}

// No request can reach the page, in any replica.
GPUVM_DEVICE bool is_unreachable(const layout::VmDesc* vm, u64 id) {
    if (!all_queues_gone(vm, id)) return false;
    return !is_replicated(region_of(vm, id)) || all_queues_gone(vm, other_replica(id));
}

// The replica to read a page from whose claim is ours: the page id that names it, or 0 when none can be read.
GPUVM_NOINLINE u64 choose_replica(const layout::VmDesc* vm, u64 id) {
    // Neighbours from both rows, and a page from either in turn: each fetch has another version, and so damage to a
    // copy is found while the other one is good.
    u64 version = ld_relaxed_gpu(word_of(vm, id)) >> layout::VERSION_SHIFT;
    u32 home;
    u64 at_home = page_at_home(region_of(vm, id), page_of(id), &home);
    u64 replica = at_replica(id, (version + at_home) & 1), repaired = 0;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n, replica = other_replica(replica)) {
        if (is_stale(vm, replica) || all_queues_gone(vm, replica)) continue;
        // A home that does not answer, or whose queue pairs fail, is asked only where the other one cannot be.
        if (!is_silent(vm, replica) && !is_recovering(vm, stripe_of(vm, replica))) return replica;
        if (!repaired) repaired = replica;
    }
    return repaired;
}
GPUVM_DEVICE u64 replica_to_fetch(const layout::VmDesc* vm, u64 id) {
    return is_replicated(region_of(vm, id)) ? choose_replica(vm, id) : id;
}

// The copy that `id` names is bad, and the page's claim is ours. True when the other one is read from now on.
GPUVM_NOINLINE bool leave_replica(const layout::VmDesc* vm, u64 id) {
    u64 other = other_replica(id);
    if (is_stale(vm, other) || all_queues_gone(vm, other)) return false;
    set_stale(vm, id);
    return true;
}

// Whether a page that was fetched from `id` is to be written back as it is, to repair its other copy.
GPUVM_DEVICE bool is_to_be_repaired(const layout::VmDesc* vm, u64 id) {
    if (region_of(vm, id)->flags & layout::REGION_READ_ONLY) return false;
    u64 other = other_replica(id);
    return is_stale(vm, other) && !is_silent(vm, other) && !all_queues_gone(vm, other);
}

// Begins a write-back whose mark is ours: the replicas to write, by bits; 0 when none can be reached, or when one has
// to wait. A replica that is lost, or that does not answer while the other one does, is stale from here on, before
// anything of the write-back can be seen.
GPUVM_NOINLINE u32 begin_replicas(const layout::VmDesc* vm, u64 id) {
    u32 pending = 0, gone = 0, silent = 0;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        u64 replica = at_replica(id, n);
        gone |= (all_queues_gone(vm, replica) ? 1u : 0u) << n;
        silent |= (is_silent(vm, replica) ? 1u : 0u) << n;
    }
    constexpr u32 kAll = (1u << layout::REPLICAS_MAX) - 1;
    u32 lost = (gone | silent) == kAll ? gone : gone | silent;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n) {
        if (lost >> n & 1) continue;
        if (is_recovering(vm, stripe_of(vm, at_replica(id, n)))) return 0;
        pending |= layout::JOIN_PENDING << n;
    }
    if (!pending) return 0;
    for (u32 n = 0; n < layout::REPLICAS_MAX; ++n)
        if (lost >> n & 1) set_stale(vm, at_replica(id, n));
    // Relaxed: the requests' records carry it to their handlers.
    st_relaxed_gpu(join_of(vm, id), pending);
    return pending;
}

// How the WRITE to one replica ended.
constexpr u32 kWritten = 0;
constexpr u32 kMissed = 1;    // the replica is not available any more, or refuses
constexpr u32 kToRepeat = 2;  // nothing is known

// How the write-back stands then.
constexpr u32 kNotLast = 0;
constexpr u32 kEndedWell = 1;
constexpr u32 kEndedBadly = 2;

// The WRITE to the replica that `id` names has ended.
GPUVM_NOINLINE u32 end_replica(const layout::VmDesc* vm, u64 id, u32 how) {
    if (how == kWritten) clear_stale(vm, id);
    if (how == kMissed) set_stale(vm, id);
    u32 own = replica_of(id), repeat = how == kToRepeat ? layout::JOIN_REPEAT << own : 0;
    u32* join = join_of(vm, id);
    u32 seen = ld_relaxed_gpu(join), next;
    while (true) {
        next = (seen & ~(layout::JOIN_PENDING << own)) | repeat;
        // acq_rel: who is last has the other's stale bit, and its NIC's reads of the frame before the frame may go.
        u32 found = atom_cas_acq_rel_gpu(join, seen, next);
        if (found == seen) break;
        seen = found;
    }
    if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;
    bool good = !is_stale(vm, at_replica(id, 0)) || !is_stale(vm, at_replica(id, 1));
    return next == 0 && good ? kEndedWell : kEndedBadly;
}

}  // namespace detail
}  // namespace gpuvm
