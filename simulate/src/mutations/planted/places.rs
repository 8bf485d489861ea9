//! Rules of pages that are read where they live, and of the rules that compete about them.

use super::Origin::Places;
use super::{DUEL, Mutation, WORD, broken, plant};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 4] = [
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
        32,
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
        Workload::InPlace,
        2060,
        &["without a claim", "left the count of reads", "left its token"],
    ),
    broken(
        "frame-of-a-sample-given-twice",
        Places(3),
        "the frame of a displaced page goes to the waiting lane or to the pool, not to both",
        &[plant(
            DUEL,
            "            *direct = frame;\n        else\n            pool_give(vm, frame);",
            "            *direct = frame;\n        pool_give(vm, frame);",
        )],
        Workload::InPlace,
        11,
        &["home differ from byte", "which the pool has"],
    ),
    broken(
        "sample-displaced-while-it-comes",
        Places(4),
        "a page that is on its way is not displaced",
        &[plant(
            DUEL,
            "if (!is_resident(seen) || pins_of(seen)) continue;",
            "if (state_of(seen) == kAbsent) continue;",
        )],
        Workload::InPlace,
        2,
        &["the end of a fetch changed"],
    ),
];
