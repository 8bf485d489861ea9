//! Rules of frames that come and go while kernels run.

use super::{POOL, RESIZE, STUCK};

planted! {
    "withdrawn-though-it-stays", Frames(1), ResizeDirect, SEEN, "a frame is withdrawn once its page has left it":
        RESIZE "if (try_evict_page(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, frame);"
            => "if (try_evict_page(vm, id, word, seen, rung, true) == kLeft || pins_of(seen)) withdraw(vm, frame);";
    "withdrawn-in-the-pool", Frames(2), ResizeDirect, SEEN, "a frame without a page is withdrawn by who has taken it out of the pool":
        RESIZE "    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word"
            => "    if (!id) withdraw(vm, frame);\n    if (!(id & layout::PAGE_ID_TAKEN_BIT)) return;\n    u64* word";
    "withdrawn-and-given", Frames(3), ResizeDirect, SEEN, "a frame that is withdrawn is not in the pool":
        RESIZE "            withdraw(vm, frame);\n        else\n            pool_give(&vm->pool, frame);"
            => "            withdraw(vm, frame);\n        pool_give(&vm->pool, frame);";
    "sifted-and-kept", Frames(4), ResizeDirect, SEEN, "a frame that stays goes back to the pool":
        RESIZE "            withdraw(vm, frame);\n        else\n            pool_give(&vm->pool, frame);"
            => "            withdraw(vm, frame);\n        else if (frame & 7)\n            pool_give(&vm->pool, frame);";
    "cleaned-and-withdrawn", Frames(5), Resize, SEEN,
    "a frame whose page is being cleaned reaches the pool when its WRITE ends, and is withdrawn there":
        RESIZE "if (try_evict_page(vm, id, word, seen, rung, true) == kLeft) withdraw(vm, frame);"
            => "if (try_evict_page(vm, id, word, seen, rung, true) != kStays) withdraw(vm, frame);";
    "restored-though-in-use", Frames(6), ResizeDirect, SEEN, "a frame comes back if it was withdrawn":
        RESIZE "        if (ld_relaxed_gpu(page_in_frame(vm, frame)) != layout::PAGE_RETURNING) continue;\n" => "";
    "ended-beside-helpers", Frames(7), ResizeDirect, SEEN, "who ends a change waits for those who work on it":
        RESIZE "    while (ld_relaxed_gpu(&pool->helpers) && !aborted(vm)) sleep_ns(64);\n" => "";
    "restored-by-two", Frames(9), ResizeDirect, SEEN, "one lane gives a frame back":
        RESIZE "    u64 at = atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));\n    if (at"
            => "    u64 at = ld_relaxed_gpu(&pool_of(vm)->change_hand);\n    \
                atom_add_relaxed_gpu(&pool_of(vm)->change_hand, static_cast<u64>(window));\n    if (at";
    "run-with-one-ticket", Frames(10), Prefetch, STUCK, "frames that go to the pool together take a slot each":
        POOL "atom_add_relaxed_gpu(&pool->tail, given);" => "atom_add_relaxed_gpu(&pool->tail, 1ull);";
    "run-past-the-last-frame", Frames(10), Random, SEEN, "of frames that go to the pool together the clock's first comes after its last":
        POOL "        while (frame >= limit) frame -= limit;\n" => "";
}

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
