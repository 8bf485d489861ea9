//! Rules of pages that are read where they live, and of the rules that compete about them.

use super::Origin::Places;
use super::{CLOCK, DUEL, FAULT, IN_PLACE, Mutation, WORD, WRITE_BACK, broken, plant};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 12] = [
    broken(
        "claim-keeps-the-count",
        Places(1),
        "a claim forgets the count of reads, whose bits take the fetch's token",
        &[plant(
            WORD,
            "return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;",
            "return atom_cas_acquire_gpu(word, seen, (seen & ~layout::STATE_MASK) | kFetching) == seen;",
        )],
        Workload::InPlace,
        &["left the count of reads"],
    ),
    broken(
        "count-stored-over-a-claim",
        Places(2),
        "a count of reads is noted on the very word that was absent",
        &[plant(
            DUEL,
            "return atom_cas_relaxed_gpu(word, seen, next) == seen;",
            "st_relaxed_gpu(word, next);\n    return true;",
        )],
        Workload::LinearInPlace,
        &[
            "without a claim",
            "left the count of reads",
            "left its token",
            "a dirty page was evicted",
        ],
    ),
    broken(
        "frame-of-a-sample-given-twice",
        Places(3),
        "the frame of a displaced page goes to the waiting lane or to the pool, not to both",
        &[plant(
            CLOCK,
            "            *direct = frame_of(seen);\n        else\n            pool_give(&vm->pool, frame_of(seen));",
            "            *direct = frame_of(seen);\n        pool_give(&vm->pool, frame_of(seen));",
        )],
        Workload::InPlace,
        &["home differ from byte", "which the pool has", "was published in frame"],
    ),
    broken(
        "sample-displaced-while-it-comes",
        Places(4),
        "a page that is on its way is not displaced",
        &[plant(
            CLOCK,
            "if (!is_resident(seen) || let_leave(",
            "if (state_of(seen) == kAbsent || let_leave(",
        )],
        Workload::InPlace,
        &["the end of a fetch changed"],
    ),
    broken(
        "no-second-look-in-place",
        Places(5),
        "after a read at a home that changes, the page's word is looked at again",
        &[plant(
            IN_PLACE,
            "return has_no_frame(second) && !((first ^ second) & layout::VERSION_MASK);",
            "return has_no_frame(first);",
        )],
        Workload::Rising,
        NOT_RISEN,
    ),
    broken(
        "count-taken-for-a-version",
        Places(6),
        "the count of reads keeps to its bits, and leaves the version alone",
        &[plant(
            DUEL,
            "| field << layout::FRAME_SHIFT;",
            "| field << layout::VERSION_SHIFT;",
        )],
        Workload::InPlace,
        &["a page without a frame changed its frame or version"],
    ),
    broken(
        "resident-page-taken-for-one-at-home",
        Places(7),
        "the second look finds the page at home still: one with a frame may be on its way there",
        &[plant(
            IN_PLACE,
            "return has_no_frame(second) && !((first ^ second)",
            "return !((first ^ second)",
        )],
        Workload::Rising,
        NOT_RISEN,
    ),
    broken(
        "home-that-changes-read-as-one-that-does-not",
        Places(8),
        "a home that write-backs change is read by strong loads, between two looks",
        &[plant(
            IN_PLACE,
            "if (array.region & layout::ARRAY_HOME_CHANGES)",
            "if (!array.region)",
        )],
        Workload::Rising,
        NOT_RISEN,
    ),
    broken(
        "evicted-before-its-bytes-are-home",
        Places(9),
        "the write-back mark goes when the home holds the page's bytes",
        &[plant(
            WRITE_BACK,
            "    copy_to_home(source.home, frame_address(vm, region_of(vm, id), frame), source.bytes);",
            "    write_back_done(word);\n    \
             copy_to_home(source.home, frame_address(vm, region_of(vm, id), frame), source.bytes);",
        )],
        Workload::LinearInPlace,
        &["its home differ from byte"],
    ),
    broken(
        "claim-over-a-page-in-use-in-place",
        Places(10),
        "a page is not claimed while lanes store at its home",
        &[plant(
            FAULT,
            "if (!kDirect || !pins_of(seen)) return kWon;",
            "return kWon;",
        )],
        Workload::StoresInPlace,
        &["claimed while it is used in place"],
    ),
    broken(
        "store-in-place-beside-a-dirty-frame",
        Places(11),
        "who stores at a home looks whether the page that it pinned has no frame",
        &[plant(
            WORD,
            "return state_of(old) == kAbsent && !(old & layout::REFERENCED_BIT)",
            "return !(old & layout::REFERENCED_BIT)",
        )],
        Workload::StoresInPlace,
        &["no order of its operations", "its home differ from byte"],
    ),
    broken(
        "copied-before-the-claim-past-stores-in-place",
        Places(12),
        "a page that is stored in place is claimed before it is copied, since such a store leaves its word as it was",
        &[
            plant(
                FAULT,
                "layout::FILL_PAGE_BYTES || stores_in_place(miss->array);",
                "layout::FILL_PAGE_BYTES;\n    u64 early[32];",
            ),
            // A fetch takes what it can before the claim, as on a GPU.
            plant(
                FAULT,
                "        if (!late) fetch.begin(from, source.bytes);\n",
                "        if (!late) fetch.begin(from, source.bytes);\n        \
                 for (u32 at = 0; !late && at < sizeof(early) && at < source.bytes; at += 8)\n            \
                 early[at / 8] = ld_relaxed_sys(reinterpret_cast<const u64*>(from + at));\n",
            ),
            plant(
                FAULT,
                "            fetch.finish(miss->frame_address());\n        if (!was_there",
                "            fetch.finish(miss->frame_address());\n        \
                 for (u32 at = 0; !late && at < sizeof(early) && at < source.bytes; at += 8)\n            \
                 st_relaxed_gpu(reinterpret_cast<u64*>(miss->frame_address() + at), early[at / 8]);\n        \
                 if (!was_there",
            ),
        ],
        Workload::StoresInPlace,
        &["no order of its operations", "its home differ from byte"],
    ),
];

/// How a value that was never, or no longer, in a word shows.
const NOT_RISEN: &[&str] = &["was read as"];
