//! Rules of copies at a neighbour: of slots, of readers whom the lender overtakes, and of writers for whom it waits.

use super::Origin::Victims;
use super::{FLUSH, LEAVE, Mutation, VICTIM, WRITE_BACK, broken, plant};
use crate::workload::Workload::Victims as RUN;

pub(super) static ALL: [Mutation; 22] = [
    broken(
        "copy-of-lent-memory-believed",
        Victims(1),
        "whoever copied from a slot looks whether the memory is lent still",
        &[plant(
            VICTIM,
            "bool lent = is_lent(victim.victims, named(victim) - 1);",
            "bool lent = true;",
        )],
        RUN,
        NOT_ITS_BYTES,
    ),
    broken(
        "look-before-the-copy",
        Victims(1),
        "a reader's look at the loan comes after its copy",
        &[
            // What was seen goes along in the lowest bit of the address.
            plant(
                VICTIM,
                "    if (named(victim)) return slot_address(victim.victims, named(victim) - 1, page_shift);\n",
                "    if (named(victim)) {\n        const layout::VictimsDesc* victims = victim.victims;\n        if (!is_lent(victims, named(victim) - 1)) reinterpret_cast<u64&>(const_cast<Victim&>(victim).victims) |= 1;\n        return slot_address(victims, named(victim) - 1, page_shift);\n    }\n",
            ),
            plant(
                VICTIM,
                "    bool lent = is_lent(victim.victims, named(victim) - 1);\n",
                "    u64& seen = reinterpret_cast<u64&>(const_cast<Victim&>(victim).victims);\n    bool lent = !(seen & 1);\n    seen &= ~u64{1};\n",
            ),
        ],
        RUN,
        NOT_ITS_BYTES,
    ),
    broken(
        "writers-not-counted",
        Victims(2),
        "who copies to a slot is counted as a writer there",
        &[
            plant(VICTIM, "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n", ""),
            plant(
                VICTIM,
                "    atom_add_release_gpu(writers_of(victims, slot), ~0u);\n",
                "",
            ),
        ],
        RUN,
        LATE,
    ),
    broken(
        "loan-looked-at-before-the-count",
        Victims(3),
        "a writer is counted before it looks at the loan",
        &[
            plant(
                VICTIM,
                "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
                "    bool lent = is_lent(victims, slot);\n    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
            ),
            plant(
                VICTIM,
                "    bool lent = is_lent(victims, slot);\n    if (lent)\n",
                "    if (lent)\n",
            ),
        ],
        RUN,
        LATE,
    ),
    broken(
        "count-and-look-in-no-order",
        Victims(3),
        "the count and the look at the loan are in one order with the lender's end of it and its look at the count",
        // The pause gives the lender the time that makes it likely; without it one seed in thousands shows the fence.
        &[
            plant(
                VICTIM,
                "    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
                "    __nanosleep(500);\n    atom_add_relaxed_gpu(writers_of(victims, slot), 1u);\n",
            ),
            plant(VICTIM, "    fence_sc_gpu();\n", ""),
        ],
        RUN,
        LATE,
    ),
    broken(
        "copied-past-the-loan",
        Victims(3),
        "nobody copies to memory whose loan has ended",
        &[plant(
            VICTIM,
            "bool lent = is_lent(victims, slot);\n    if (lent)\n",
            "bool lent = true;\n    if (lent)\n",
        )],
        RUN,
        LATE,
    ),
    broken(
        "writer-gone-before-its-bytes",
        Victims(4),
        "a writer's bytes come before it is counted out",
        &[plant(
            VICTIM,
            "atom_add_release_gpu(writers_of(victims, slot), ~0u);",
            "atom_add_relaxed_gpu(writers_of(victims, slot), ~0u);",
        )],
        RUN,
        LATE,
    ),
    broken(
        "writer-never-gone",
        Victims(4),
        "a writer is counted out also where the loan had ended",
        &[plant(
            VICTIM,
            "    // Release: the copy comes before what the lender does there.\n",
            "    if (!lent) return 0;\n",
        )],
        RUN,
        &["has writers long after its loan has ended"],
    ),
    broken(
        "copied-without-the-mark",
        Victims(5),
        "a page that is copied to a neighbour has the mark of a write-back, so that a store meanwhile is seen",
        &[
            plant(VICTIM, "    if (!try_mark(word, seen)) return false;\n", ""),
            plant(
                VICTIM,
                "atom_cas_acq_rel_gpu(word, seen | layout::WRITE_BACK_BIT, left) == (seen | layout::WRITE_BACK_BIT)",
                "atom_cas_acq_rel_gpu(word, seen, left) == seen",
            ),
            plant(VICTIM, "    write_back_done(word);\n    if (slot", "    if (slot"),
        ],
        RUN,
        &["without the mark of its copy"],
    ),
    broken(
        "dirty-page-kept-at-the-neighbour-alone",
        Victims(6),
        "a dirty page goes home before it leaves for a neighbour",
        &[
            plant(
                LEAVE,
                "    if (!(seen & layout::DIRTY_BIT)) {\n        if (!leave_frame",
                "    {\n        if (!leave_frame",
            ),
            plant(
                VICTIM,
                "    if (!try_mark(word, seen)) return false;\n",
                "    if (!try_clean(word, seen)) return false;\n    seen &= ~layout::DIRTY_BIT;\n",
            ),
        ],
        RUN,
        &["its home differ from byte", "a dirty page was evicted"],
    ),
    broken(
        "slot-free-and-named",
        Victims(7),
        "a slot that a page's word names is not free",
        &[plant(
            VICTIM,
            "        // The frame is ours: its next page has kept no slot, and no count.\n",
            "        if (slot) give_slot(victims, slot - 1);\n",
        )],
        RUN,
        &[
            "became free while",
            "where page",
            "became free twice",
            "which is free",
            "differ from byte",
        ],
    ),
    broken(
        "slot-not-given-back",
        Victims(7),
        "who brings a page back gives its slot back, or keeps it beside the frame",
        &[plant(
            VICTIM,
            "    if (slot) give_slot(victims, slot - 1);\n    return uses_at",
            "    return uses_at",
        )],
        RUN,
        &["was not given back", "is not free at the end"],
    ),
    broken(
        "claim-taken-back-without-its-slot",
        Victims(8),
        "a claim that is taken back leaves the page its slot",
        &[plant(
            VICTIM,
            "    if (!field)\n        revert_claim(word);",
            "    if (true)\n        revert_claim(word);",
        )],
        RUN,
        &["was not given back", "is not free at the end"],
    ),
    broken(
        "old-copy-kept-beside-a-home-that-changes",
        Victims(9),
        "before its home changes, a page's copy at a neighbour goes",
        &[plant(FLUSH, "if (victim_in(region, seen)) {", "if (false) {")],
        RUN,
        &["differ from byte", "instead of", "is not free at the end"],
    ),
    broken(
        "kept-beside-a-page-that-is-written",
        Victims(10),
        "the slot beside a frame goes when its page is written back",
        &[plant(WRITE_BACK, "    drop_kept(region_of(vm, id), frame);\n", "")],
        RUN,
        &["its slot"],
    ),
    broken(
        "kept-beside-a-free-frame",
        Victims(10),
        "a frame that its page has left, by whatever way, keeps no slot",
        &[plant(
            FLUSH,
            "                drop_kept(region, frame_of(seen), true);\n",
            "",
        )],
        RUN,
        &["went to the pool and keeps"],
    ),
    broken(
        "kept-beside-the-next-page",
        Victims(10),
        "who takes a page out of its frame with a slot makes the frame forget it",
        &[plant(VICTIM, "        if (had) st_relaxed_gpu(beside, 0u);\n", "")],
        RUN,
        &["went to the pool and keeps", "which keeps slot", "and forgets slot"],
    ),
    broken(
        "kept-slot-given-though-the-page-stays",
        Victims(10),
        "a page that was used while it was to leave has its slot beside it still",
        &[plant(
            VICTIM,
            "if (slot && !kept) give_slot(victims, slot - 1);",
            "if (slot) give_slot(victims, slot - 1);",
        )],
        RUN,
        &["became free while frame"],
    ),
    broken(
        "kept-slot-looked-for-before-the-mark",
        Victims(11),
        "a page is marked before it is known whether it has a slot",
        &[plant(
            VICTIM,
            "    if (!try_mark(word, seen)) return false;\n    u32 had = ld_relaxed_gpu(beside);\n",
            "    u32 had = ld_relaxed_gpu(beside);\n    if (!try_mark(word, seen)) return false;\n",
        )],
        RUN,
        &[
            "its slot",
            "where page",
            "which is free",
            "became free twice",
            "which keeps slot",
            "and forgets slot",
        ],
    ),
    broken(
        "displaced-without-the-exchange",
        Victims(14),
        "who takes a page's slot takes its name out of the page's word",
        &[plant(
            VICTIM,
            "    if (atom_cas_acquire_gpu(word, seen, left) != seen) return false;\n",
            "",
        )],
        RUN,
        TWICE,
    ),
    broken(
        "displaced-by-a-word-that-has-changed",
        Victims(14),
        "a page's slot is taken by the exchange of its exact word, since a claim takes it, too",
        &[plant(
            VICTIM,
            "    if (atom_cas_acquire_gpu(word, seen, left) != seen) return false;\n",
            "    sleep_ns(1000);\n    st_relaxed_gpu(word, left);\n",
        )],
        RUN,
        TWICE,
    ),
    broken(
        "displaced-from-another-slot",
        Victims(15),
        "the page that a slot is said to have may be elsewhere by now",
        &[plant(
            VICTIM,
            "    if (state_of(seen) != kAbsent || frame_of(seen) != *slot + 1) return false;\n",
            "    if (state_of(seen) != kAbsent) return false;\n",
        )],
        RUN,
        TWICE,
    ),
];

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
