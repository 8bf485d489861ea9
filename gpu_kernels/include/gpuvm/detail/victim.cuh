// Victims: clean pages that left their frames, in slots of memory that neighbour GPUs lend (HUVM, USENIX ATC 2022). The
// next fault takes such a page from its slot.
//
// A slot is free, or of the lane that took it, or of the page whose absent word names it. Who claims that page has the
// slot with the claim. So no one reads a slot that another writes, but its lender, who may use it again at any time:
//
// - Readers copy first and look then whether the memory is lent still. If not, they copy from the home, which has the
//   same bytes: a victim is clean.
// - Writers are counted. The lender ends the loan and waits until there is none, for as long as one page's copy takes.
//
// A fetched page keeps its slot beside its frame while many are free, until it is written back: when it leaves before
// that, the slot has its bytes still. `slots_kept` says so, and is changed by who has the frame, or the mark of its
// page's write-back. So a page is marked before it is known whether it has a slot.
//
// Where no slot is free, a page that leaves takes that of a page which was fetched less often of late. A page's count
// is in its word while it has no slot, beside its frame, or beside its slot. It halves with every eight turns of a hand
// over the slots. Only fetches while slots are few are counted, and first ones not: with a count of 1 nothing is
// displaced.
#pragma once

#include "direct.cuh"

namespace gpuvm {
namespace detail {

GPUVM_DEVICE const layout::VictimsDesc* victims_of(const layout::RegionDesc* region) {
    return reinterpret_cast<const layout::VictimsDesc*>(region->victims);
}
GPUVM_DEVICE u32 chunk_of(const layout::VictimsDesc* victims, u32 slot) { return slot >> victims->chunk_shift; }
// Whether clean pages that leave their frames go there.
GPUVM_DEVICE bool takes_victims(const layout::RegionDesc* region) {
    return kVictims && region->victims && !(region->flags & layout::REGION_PLACES);
}
GPUVM_DEVICE u32* writers_of(const layout::VictimsDesc* victims, u32 slot) {
    return reinterpret_cast<u32*>(victims->writers) + chunk_of(victims, slot);
}
// Relaxed: what it is to come before or after is said by a fence or an atomic beside each use.
GPUVM_DEVICE bool is_lent(const layout::VictimsDesc* victims, u32 slot) {
    return ld_relaxed_gpu(reinterpret_cast<const u32*>(victims->lent) + chunk_of(victims, slot)) != 0;
}
GPUVM_DEVICE u64 slot_address(const layout::VictimsDesc* victims, u32 slot, u32 page_shift) {
    u64 first = reinterpret_cast<const u64*>(victims->chunks)[chunk_of(victims, slot)];
    return first + (static_cast<u64>(slot & ((1u << victims->chunk_shift) - 1)) << page_shift);
}

// A page's victim, where it has one.
struct Victim {
    const layout::VictimsDesc* victims;
    u32 field;  // of its word: its slot plus one, or how often it was fetched of late
};

// A count of fetches, as it stands in a frame field: as it was in that age.
constexpr u32 kUses = (1u << layout::USE_AGE_SHIFT) - 1;
constexpr u32 kAges = layout::USE_BIT - 1 >> layout::USE_AGE_SHIFT;
GPUVM_DEVICE u32 uses_at(u32 uses, u32 age) {
    return layout::USE_BIT | age << layout::USE_AGE_SHIFT | (uses < kUses ? uses : kUses);
}
// What the count is now. One that is not there was 1.
GPUVM_DEVICE u32 uses_now(u32 field, u32 age) {
    if (!(field & layout::USE_BIT)) return 1;
    u32 ages = (age - (field >> layout::USE_AGE_SHIFT)) & kAges;
    return ages < layout::USE_AGE_SHIFT ? (field & kUses) >> ages : 0;
}
GPUVM_DEVICE u32 age_at(const layout::VictimsDesc* victims, u64 hand) {
    return static_cast<u32>(hand >> victims->age_shift) & kAges;
}
// Relaxed, as all of these counts: hints.
GPUVM_DEVICE u32 age_of(const layout::VictimsDesc* victims) {
    return age_at(victims, ld_relaxed_gpu(&pool_of(&victims->free)->hand));
}
GPUVM_DEVICE u64* page_in_slot(const layout::VictimsDesc* victims, u32 slot) {
    return reinterpret_cast<u64*>(victims->slot_pages) + slot;
}
GPUVM_DEVICE u32* uses_in_slot(const layout::VictimsDesc* victims, u32 slot) {
    return reinterpret_cast<u32*>(victims->slot_uses) + slot;
}
// The slot plus one that a frame field names, or 0.
GPUVM_DEVICE u32 slot_in(u32 field) { return field & layout::USE_BIT ? 0 : field; }
GPUVM_DEVICE u32 named(const Victim& victim) { return slot_in(victim.field); }

GPUVM_DEVICE void set_keeps(const layout::VictimsDesc* victims, u32 keeps) {
    st_relaxed_gpu(const_cast<u32*>(&victims->keeps), keeps);
}

// A slot that no one's word names any more. One whose memory was taken back is no one's from now on.
GPUVM_NOINLINE void give_slot(const layout::VictimsDesc* victims, u32 slot) {
    // The page's region may end: the hand must not look for its word.
    st_relaxed_gpu(page_in_slot(victims, slot), u64{0});
    if (!is_lent(victims, slot)) return;
    pool_give(&victims->free, slot);
    // Relaxed, both: a hint.
    i64 free = static_cast<i64>(ld_relaxed_gpu(&pool_of(&victims->free)->available));
    if (!ld_relaxed_gpu(&victims->keeps) && free > 2 * static_cast<i64>(victims->spare_min)) set_keeps(victims, 1);
}

// The slot plus one that an absent page's entry names: its victim's, or where launches look it up.
GPUVM_DEVICE u32 victim_in(const layout::RegionDesc* region, u64 seen) {
    return kVictims && region->victims && state_of(seen) == kAbsent ? slot_in(frame_of(seen)) : 0;
}
GPUVM_DEVICE Victim victim_of(const layout::ArrayDesc& array, u64 seen) {
    u32 field = has_victims(array) && state_of(seen) == kAbsent ? frame_of(seen) : 0;
    return Victim{field ? victims_of(regions_of(vm_of(array)) + region_of(array)) : nullptr, field};
}

GPUVM_DEVICE u32* slot_kept(const layout::VictimsDesc* victims, u32 frame) {
    return reinterpret_cast<u32*>(victims->slots_kept) + frame;
}

// The page in a frame of ours, or under our mark, is not what its slot has, or will not be: the slot goes. The page's
// count stays in its place, but where the page `leaves` the frame.
GPUVM_DEVICE void drop_kept(const layout::RegionDesc* region, u32 frame, bool leaves = false) {
    if (!kVictims || !region->victims) return;
    const layout::VictimsDesc* victims = victims_of(region);
    u32* kept = slot_kept(victims, frame);
    // Relaxed: the frame, or the mark, was had by an acquire.
    u32 field = ld_relaxed_gpu(kept), slot = slot_in(field);
    if (slot || (leaves && field)) st_relaxed_gpu(kept, leaves ? 0u : ld_relaxed_gpu(uses_in_slot(victims, slot - 1)));
    if (slot) give_slot(victims, slot - 1);
}

// What is kept beside the frame of a page that had this field in its word and keeps no slot: how often it was fetched.
GPUVM_NOINLINE u32 counted(const layout::VictimsDesc* victims, u32 field) {
    u32 slot = slot_in(field), uses = slot ? ld_relaxed_gpu(uses_in_slot(victims, slot - 1)) : field;
    u32 age = age_of(victims);
    if (slot) give_slot(victims, slot - 1);
    return uses_at(uses_now(uses, age) + 1, age);
}

// A page has come to `frame`, which is ours, and its word is not published yet: what becomes of its slot, and of its
// count. Regions with victims have no frames of their own.
GPUVM_DEVICE void keep_or_give(const Victim& victim, u32 frame) {
    u32 beside = victim.field;
    // On a line that other loads have brought to L1.
    if (!slot_in(beside) || !ld_hint(&victim.victims->keeps)) beside = counted(victim.victims, beside);
    // Relaxed: the word's publication carries it to who marks the page.
    st_relaxed_gpu(slot_kept(victim.victims, frame), beside);
}

// A claim is taken back: the word's frame field is `field` again, with the victim that it named, if any.
GPUVM_DEVICE void revert_claim_to(u64* word, u32 field) {
    if (!field)
        revert_claim(word);
    else
        // Release: the claimer's reads of the slot come before the next claimer's use of it.
        atom_add_release_gpu(word, (kAbsent - kFetching) + (static_cast<u64>(field) << layout::FRAME_SHIFT));
}

// The page that was claimed on the word `seen` has new contents, or a frame: its victim goes.
GPUVM_DEVICE void drop_victim(const layout::RegionDesc* region, u64 seen) {
    u32 victim = victim_in(region, seen);
    if (victim) give_slot(victims_of(region), victim - 1);
}

// Whether a lane that has taken a slot may copy a page there: it is lent still, and stays so until `end_copy`, which
// comes in any case.
GPUVM_DEVICE bool begin_copy(const layout::VictimsDesc* victims, u32 slot) {
    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);
    // The count comes before the look at the loan, in one order of all such fences. So the lender, who ends the loan
    // and then reads the count, sees this lane, or this lane sees the end. GPU scope: the host's copies go to this
    // GPU's own memory, one after the other.
    fence_sc_gpu();
    return is_lent(victims, slot);
}
GPUVM_DEVICE void end_copy(const layout::VictimsDesc* victims, u32 slot) {
    // Release: the copy comes before what the lender does there.
    atom_add_release_gpu(writers_of(victims, slot), ~0u);
}

// Slots that a page without one looks at, for one whose page it displaces.
constexpr u32 kSlotWindow = 4;
// By this many fetches more it was used than the other: that copy and that fetch from home cost something, too.
constexpr u32 kLeastGain = 2;

// Takes the slot of a page that is absent and was fetched less often than `uses`, by the exchange of its exact word:
// who claims that page meanwhile has the slot with the claim.
GPUVM_NOINLINE bool displace(const layout::VmDesc* vm, const layout::VictimsDesc* victims, u32 uses, u32* slot) {
    if (uses < kLeastGain) return false;
    u64 hand = atom_add_relaxed_gpu(&pool_of(&victims->free)->hand, u64{kSlotWindow});
    u32 age = age_at(victims, hand), at, least = uses - kLeastGain + 1;
    u64 id = 0;
    over_frames(&victims->free, hand, &at);
    for (u32 n = 0; n < kSlotWindow; ++n, at = next_frame(&victims->free, at)) {
        u64 there = ld_relaxed_gpu(page_in_slot(victims, at));
        u32 other = uses_now(ld_relaxed_gpu(uses_in_slot(victims, at)), age);
        if (!there || other >= least) continue;
        least = other;
        id = there;
        *slot = at;
    }
    if (!id) return false;
    u64* word = word_of(vm, id);
    u64 seen = ld_relaxed_gpu(word);
    if (state_of(seen) != kAbsent || frame_of(seen) != *slot + 1) return false;
    u64 left = (seen & ~layout::FRAME_MASK) | static_cast<u64>(uses_at(least, age)) << layout::FRAME_SHIFT;
    // Acquire: who copied that page to the slot comes before who copies there next.
    if (atom_cas_acquire_gpu(word, seen, left) != seen) return false;
    count(&counters(vm)->victims_displaced, 1);
    return true;
}

// Copies a page that is marked from its frame to a slot that is free, or of a page that was fetched less often. The
// slot plus one, or 0 for none.
GPUVM_DEVICE u32 copy_to_slot(const layout::VmDesc* vm, const layout::RegionDesc* region, u64 id, u32 frame, u32 uses,
                              u32 age) {
    const layout::VictimsDesc* victims = victims_of(region);
    u32 slot;
    // Relaxed, both: a hint.
    if (static_cast<i64>(ld_relaxed_gpu(&pool_of(&victims->free)->available)) <= static_cast<i64>(victims->spare_min) &&
        ld_relaxed_gpu(&victims->keeps))
        set_keeps(victims, 0);
    if (!pool_pop(&victims->free, &slot) && !displace(vm, victims, uses, &slot)) return 0;
    bool lent = begin_copy(victims, slot);
    if (lent)
        copy_to_home(slot_address(victims, slot, vm->page_shift), frame_address(vm, region, frame),
                     source_of(vm, id).bytes);
    end_copy(victims, slot);
    if (lent) st_relaxed_gpu(uses_in_slot(victims, slot), uses_at(uses, age));
    // Not of memory that was taken back: nothing gives such a slot.
    st_relaxed_gpu(page_in_slot(victims, slot), lent ? id : u64{0});
    return lent ? slot + 1 : 0;
}

// Takes a clean page that nothing holds out of its frame, with a copy in a slot where one is free. False when the page
// was used meanwhile: it stays. `seen`: its word, without the referenced bit.
GPUVM_NOINLINE bool evict_to_slot(const layout::VmDesc* vm, u64 id, u64* word, u64 seen) {
    const layout::RegionDesc* region = region_of(vm, id);
    const layout::VictimsDesc* victims = victims_of(region);
    u32 frame = frame_of(seen);
    u32* beside = slot_kept(victims, frame);
    // The mark of a write-back keeps the page from being cleaned by others, so a store to it stays to be seen.
    if (!try_mark(word, seen)) return false;
    u32 had = ld_relaxed_gpu(beside);
    if (slot_in(had) && !is_lent(victims, slot_in(had) - 1)) {
        drop_kept(region, frame);
        had = ld_relaxed_gpu(beside);
    }
    u32 kept = slot_in(had), slot = kept, field = had;
    if (!kept && !is_read_once(region)) {
        u32 age = age_of(victims), uses = uses_now(field, age);
        slot = copy_to_slot(vm, region, id, frame, uses, age);
        field = slot ? slot : uses_at(uses, age);
    }
    u64 left = evicted(seen) | static_cast<u64>(field) << layout::FRAME_SHIFT;
    // acq_rel, as in `try_evict`; its release carries the slot's bytes to who claims the page, too.
    if (atom_cas_acq_rel_gpu(word, seen | layout::WRITE_BACK_BIT, left) == (seen | layout::WRITE_BACK_BIT)) {
        // The frame is ours: its next page has kept no slot, and no count.
        if (had) st_relaxed_gpu(beside, 0u);
        if (slot && !kept) count(&counters(vm)->victims_copied, 1);
        return true;
    }
    write_back_done(word);
    if (slot && !kept) give_slot(victims, slot - 1);
    return false;
}

// Takes a clean page that nothing holds out of its frame. False when its word has changed.
GPUVM_DEVICE bool leave_frame(const layout::VmDesc* vm, u64 id, u64* word, u64 seen) {
    if constexpr (kVictims)
        if (takes_victims(region_of(vm, id))) return evict_to_slot(vm, id, word, seen);
    return try_evict(word, seen);
}

// The same for a page that has been cleaned for its frame, `frame`.
GPUVM_DEVICE bool leave_cleaned(const layout::VmDesc* vm, u64 id, u64* word, u32 frame) {
    if constexpr (!kVictims) return try_leave(vm, word, frame);
    u64 seen = ld_relaxed_gpu(word);
    if (!is_idle_in(seen, frame) || !leave_frame(vm, id, word, seen)) return false;
    frame_left(vm, frame);
    return true;
}

// After a page was copied from its victim's slot: whether those were its bytes.
GPUVM_DEVICE bool was_lent(const layout::VmDesc* vm, const Victim& victim) {
    // A lender ends the loan before it stores anything.
    Fetch::end_reads();
    bool lent = is_lent(victim.victims, named(victim) - 1);
    count(lent ? &counters(vm)->victims_fetched : &counters(vm)->victims_lost, 1);
    return lent;
}

// Where a page comes from: its victim's slot, or its home.
GPUVM_DEVICE u64 nearest(const Victim& victim, u64 home, u32 page_shift) {
    if (named(victim)) return slot_address(victim.victims, named(victim) - 1, page_shift);
    return home;
}
// Whether what came from there was the page.
GPUVM_DEVICE bool was_there(const layout::VmDesc* vm, const Victim& victim) {
    return !named(victim) || was_lent(vm, victim);
}

}  // namespace detail
}  // namespace gpuvm
