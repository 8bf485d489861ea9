//! Rules of copies at a neighbour: of slots, of readers whom the lender overtakes, and of writers for whom it waits.

use super::{FLUSH, LEAVE, VICTIM, WRITE_BACK};

planted! {
    "copy-of-lent-memory-believed", Victims(1), Victims, NOT_ITS_BYTES, "the thread that copied from a slot looks whether the memory is lent still":
        VICTIM "bool lent = is_lent(victim.victims, named(victim) - 1);" => "bool lent = true;";
    "look-before-the-copy", Victims(1), Victims, NOT_ITS_BYTES, "a reader's look at the loan comes after its copy":
        // What was seen goes along in the lowest bit of the address.
        VICTIM "    if (named(victim)) return slot_address(victim.victims, named(victim) - 1, page_shift);\n"
            => "    if (named(victim)) {\n        const layout::VictimsDesc* victims = victim.victims;\n        \
                if (!is_lent(victims, named(victim) - 1)) reinterpret_cast<u64&>(const_cast<Victim&>(victim).victims) |= 1;\n        \
                return slot_address(victims, named(victim) - 1, page_shift);\n    }\n",
        VICTIM "    bool lent = is_lent(victim.victims, named(victim) - 1);\n"
            => "    u64& seen = reinterpret_cast<u64&>(const_cast<Victim&>(victim).victims);\n    bool lent = !(seen & 1);\n    \
                seen &= ~u64{1};\n";
    "writers-not-counted", Victims(2), Victims, LATE, "who copies to a slot is counted as a writer there":
        VICTIM "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n" => "",
        VICTIM "    atom_add_release_gpu(writers_of(victims, slot), ~0u);\n" => "";
    "loan-looked-at-before-the-count", Victims(3), Victims, LATE, "a writer is counted before it looks at the loan":
        // The pause lets the lender end the loan between the look and the count.
        VICTIM "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n"
            => "    bool lent = is_lent(victims, slot);\n    __nanosleep(500);\n    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
        VICTIM "    return is_lent(victims, slot);\n" => "    return lent;\n";
    "count-and-look-in-no-order", Victims(3), Victims, LATE,
    "the count and the look at the loan are in one order with the lender's end of it and its look at the count":
        // The pause lets the lender end the loan. It breaks nothing while the fence is there.
        VICTIM "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n"
            => "    __nanosleep(3000);\n    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
        VICTIM "    fence_sc_gpu();\n" => "";
    "copied-past-the-loan", Victims(3), Victims, LATE, "nothing copies to memory whose loan has ended":
        VICTIM "    return is_lent(victims, slot);\n" => "    return true;\n";
    "writer-gone-before-its-bytes", Victims(4), Victims, LATE, "a writer's bytes come before it is counted out":
        // The pause lets the lender go on before the bytes are there.
        VICTIM "    atom_add_release_gpu(writers_of(victims, slot), ~0u);\n"
            => "    atom_add_relaxed_gpu(writers_of(victims, slot), ~0u);\n    __nanosleep(1000);\n";
    "writer-never-gone", Victims(4), Victims, &["has writers long after its loan has ended"],
    "a writer is counted out also where the loan had ended":
        VICTIM "    end_copy(victims, slot);\n" => "    if (!lent) return 0;\n    end_copy(victims, slot);\n";
    "copied-without-the-mark", Victims(5), Victims, &["without the mark of its copy"],
    "a page that is copied to a neighbour has the mark of a write-back, so that a store meanwhile is seen":
        VICTIM "    if (!try_mark(word, seen)) return false;\n" => "",
        VICTIM "atom_cas_acq_rel_gpu(word, seen | layout::WRITE_BACK_BIT, left) == (seen | layout::WRITE_BACK_BIT)"
            => "atom_cas_acq_rel_gpu(word, seen, left) == seen",
        VICTIM "    write_back_done(word);\n    if (slot" => "    if (slot";
    "dirty-page-kept-at-the-neighbour-alone", Victims(6), Victims, &["its home differ from byte", "a dirty page was evicted"],
    "a dirty page is written back before it leaves for a neighbour":
        LEAVE "    if (!(seen & layout::DIRTY_BIT)) {\n        if (!leave_frame" => "    {\n        if (!leave_frame",
        VICTIM "    if (!try_mark(word, seen)) return false;\n"
            => "    if (!try_clean(word, seen)) return false;\n    seen &= ~layout::DIRTY_BIT;\n";
    "slot-free-and-named", Victims(7), Victims, &["became free while", "where page", "became free twice", "which is free", "differ from byte"],
    "a slot that a page's entry names is not free":
        VICTIM "        // The frame is ours: its next page has kept no slot, and no count.\n"
            => "        if (slot) give_slot(victims, slot - 1);\n";
    "slot-not-given-back", Victims(7), Victims, &["was not given back", "is not free at the end"],
    "who brings a page back gives its slot back, or keeps it beside the frame":
        VICTIM "    if (slot) give_slot(victims, slot - 1);\n    return uses_at" => "    return uses_at";
    "claim-taken-back-without-its-slot", Victims(8), Victims, &["was not given back", "is not free at the end"],
    "a claim that is taken back leaves the page its slot":
        VICTIM "    if (!field)\n        revert_claim(word);" => "    if (true)\n        revert_claim(word);";
    "old-copy-kept-beside-a-home-that-changes", Victims(9), Victims, &["differ from byte", "instead of", "is not free at the end"],
    "before its home changes, a page's copy at a neighbour goes":
        FLUSH "if (victim_in(region, seen)) {" => "if (false) {";
    "kept-beside-a-page-that-is-written", Victims(10), Victims, &["its slot"], "the slot beside a frame goes when its page is written back":
        WRITE_BACK "    drop_kept(region_of(vm, id), frame);\n" => "";
    "kept-beside-a-free-frame", Victims(10), Victims, &["went to the pool and keeps"],
    "a frame that its page has left, by whatever way, keeps no slot":
        FLUSH "                drop_kept(region, frame_of(seen), true);\n" => "";
    "kept-beside-the-next-page", Victims(10), Victims, &["went to the pool and keeps", "which keeps slot", "and forgets slot"],
    "who takes a page out of its frame with a slot makes the frame forget it":
        VICTIM "        if (had) st_relaxed_gpu(beside, 0u);\n" => "";
    "kept-slot-given-though-the-page-stays", Victims(10), Victims, &["became free while frame"],
    "a page that was used while it was to leave has its slot beside it still":
        VICTIM "if (slot && !kept) give_slot(victims, slot - 1);" => "if (slot) give_slot(victims, slot - 1);";
    "kept-slot-looked-for-before-the-mark", Victims(11), Victims,
    &["its slot", "where page", "which is free", "became free twice", "which keeps slot", "and forgets slot"],
    "a page is marked before it is known whether it has a slot":
        VICTIM "    if (!try_mark(word, seen)) return false;\n    u32 had = ld_relaxed_gpu(beside);\n"
            => "    u32 had = ld_relaxed_gpu(beside);\n    if (!try_mark(word, seen)) return false;\n";
    "displaced-without-the-exchange", Victims(12), Victims, TWICE, "who takes a page's slot takes its name out of the page's entry":
        VICTIM "    if (atom_cas_acquire_gpu(word, seen, left) != seen) return false;\n" => "";
    "displaced-by-a-word-that-has-changed", Victims(12), Victims, TWICE,
    "a page's slot is taken by the exchange of its exact word, since a claim takes it, too":
        VICTIM "    if (atom_cas_acquire_gpu(word, seen, left) != seen) return false;\n"
            => "    sleep_ns(1000);\n    st_relaxed_gpu(word, left);\n";
    "displaced-from-another-slot", Victims(13), Victims, TWICE, "the page that a slot is said to have may be elsewhere by now":
        // The pause lets the page go elsewhere.
        VICTIM "    u64 seen = ld_relaxed_gpu(word);\n    if (state_of(seen) != kAbsent || frame_of(seen) != *slot + 1) return false;\n"
            => "    sleep_ns(1000);\n    u64 seen = ld_relaxed_gpu(word);\n    if (state_of(seen) != kAbsent) return false;\n";
}

/// How a slot shows that is taken from a page which does not have it, or has it still.
const TWICE: &[&str] = &[
    "where page",
    "which is free",
    "which frame",
    "became free twice",
    "became free while",
    "was not given back",
    "is not free at the end",
    "differ from byte",
    "instead of",
    "changed its slot",
    "a dirty page was evicted",
];
/// How a page shows that has what a lender stored.
const NOT_ITS_BYTES: &[&str] = &["differ from byte", "instead of"];
/// How a store shows that comes when the lender has its memory back.
const LATE: &[&str] = &[
    "was written after its lender had it back",
    "is not what its lender stored there",
];
