//! Rules of frames that come and go while kernels run.

use super::Origin::Frames;
use super::{Mutation, POOL, RESIZE, STUCK, broken, plant};
use crate::workload::Workload::{Prefetch, Random, Resize, ResizeDirect};

pub(super) static ALL: [Mutation; 10] = [
    broken(
        "withdrawn-though-it-stays",
        Frames(1),
        "a frame is withdrawn once its page has left it",
        &[plant(
            RESIZE,
            "if (let_leave(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, frame);",
            "if (let_leave(vm, id, word, seen, rung, true) == kLeft || pins_of(seen)) withdraw(vm, frame);",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "withdrawn-in-the-pool",
        Frames(2),
        "a frame without a page is withdrawn by who has taken it out of the pool",
        &[plant(
            RESIZE,
            "    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word",
            "    if (!id) withdraw(vm, frame);\n    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "withdrawn-and-given",
        Frames(3),
        "a frame that is withdrawn is not in the pool",
        &[plant(
            RESIZE,
            "            withdraw(vm, frame);\n        else\n            pool_give(&vm->pool, frame);",
            "            withdraw(vm, frame);\n        pool_give(&vm->pool, frame);",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "sifted-and-kept",
        Frames(4),
        "a frame that stays goes back to the pool",
        &[plant(
            RESIZE,
            "            withdraw(vm, frame);\n        else\n            pool_give(&vm->pool, frame);",
            "            withdraw(vm, frame);\n        else if (frame & 7)\n            pool_give(&vm->pool, frame);",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "cleaned-and-withdrawn",
        Frames(5),
        "a frame whose page is being cleaned reaches the pool when its WRITE ends, and is withdrawn there",
        &[plant(
            RESIZE,
            "if (let_leave(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, frame);",
            "if (let_leave(vm, id, word, seen, rung, true) != kStays) withdraw(vm, frame);",
        )],
        Resize,
        SEEN,
    ),
    broken(
        "restored-though-in-use",
        Frames(6),
        "a frame comes back if it was withdrawn",
        &[plant(
            RESIZE,
            "        if (ld_relaxed_gpu(page_in_frame(vm, frame)) != layout::PAGE_RETURNING) continue;\n",
            "",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "ended-beside-helpers",
        Frames(7),
        "who ends a change waits for those who work on it",
        &[plant(
            RESIZE,
            "    while (ld_relaxed_gpu(&pool->helpers) && !aborted(vm)) sleep_ns(64);\n",
            "",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "restored-by-two",
        Frames(9),
        "one lane gives a frame back",
        &[plant(
            RESIZE,
            "    u64 at = atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));\n    if (at",
            "    u64 at = ld_relaxed_gpu(&pool_of(vm)->change_hand);\n    atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));\n    if (at",
        )],
        ResizeDirect,
        SEEN,
    ),
    broken(
        "run-with-one-ticket",
        Frames(10),
        "frames that go to the pool together take a slot each",
        &[plant(
            POOL,
            "atom_add_relaxed_gpu(&pool->tail, given);",
            "atom_add_relaxed_gpu(&pool->tail, 1ull);",
        )],
        Prefetch,
        STUCK,
    ),
    broken(
        "run-past-the-last-frame",
        Frames(10),
        "of frames that go to the pool together the clock's first comes after its last",
        &[plant(POOL, "        while (frame >= limit) frame -= limit;\n", "")],
        Random,
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
    "invalid memory access",
    "are withdrawn",
    "a dirty page was evicted",
];
