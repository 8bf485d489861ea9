//! Rules of frames that come and go while kernels run.

use super::Origin::Frames;
use super::{Mutation, WITHDRAW, broken, plant};
use crate::workload::Workload::{Resize, ResizeDirect};

pub(super) static ALL: [Mutation; 6] = [
    broken(
        "withdrawn-though-it-stays",
        Frames(1),
        "a frame is withdrawn once its page has left it",
        &[plant(
            WITHDRAW,
            "if (let_leave(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, what, frame);",
            "let_leave(vm, id, word, seen, rung, true), withdraw(vm, what, frame);",
        )],
        ResizeDirect,
        0,
        SEEN,
    ),
    broken(
        "withdrawn-in-the-pool",
        Frames(2),
        "a frame without a page is withdrawn by who has taken it out of the pool",
        &[plant(
            WITHDRAW,
            "    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word",
            "    if (!id) withdraw(vm, what, frame);\n    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word",
        )],
        ResizeDirect,
        0,
        SEEN,
    ),
    broken(
        "withdrawn-and-given",
        Frames(3),
        "a frame that is withdrawn is not in the pool",
        &[plant(
            WITHDRAW,
            "            withdraw(vm, what, frame);\n        else\n            pool_give(vm, frame);",
            "            withdraw(vm, what, frame);\n        pool_give(vm, frame);",
        )],
        ResizeDirect,
        0,
        SEEN,
    ),
    broken(
        "sifted-and-kept",
        Frames(4),
        "a frame that stays goes back to the pool",
        &[plant(
            WITHDRAW,
            "            withdraw(vm, what, frame);\n        else\n            pool_give(vm, frame);",
            "            withdraw(vm, what, frame);\n        else if (frame & 7)\n            pool_give(vm, frame);",
        )],
        ResizeDirect,
        0,
        SEEN,
    ),
    broken(
        "cleaned-and-withdrawn",
        Frames(5),
        "a frame whose page is being cleaned reaches the pool when its WRITE ends, and is withdrawn there",
        &[plant(
            WITHDRAW,
            "if (let_leave(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, what, frame);",
            "if (let_leave(vm, id, word, seen, rung, true) != kStays) withdraw(vm, what, frame);",
        )],
        Resize,
        0,
        SEEN,
    ),
    broken(
        "restored-though-in-use",
        Frames(6),
        "a frame comes back if it was withdrawn",
        &[plant(
            WITHDRAW,
            "    if (ld_relaxed_gpu(page_in_frame(vm, frame)) != layout::PAGE_WITHDRAWN) return;\n",
            "",
        )],
        ResizeDirect,
        0,
        SEEN,
    ),
];

/// A frame in two places or in none, or what others have stored in its memory.
const SEEN: &[&str] = &[
    "frame",
    "the pool",
    "words differ",
    "a lane found",
    "frames are free",
    "word",
    "resident",
    "not in live memory",
];
