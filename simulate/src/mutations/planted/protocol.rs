//! Rules of the paging protocol whose breaking the model checker of the protocol found as well.

use super::Origin::Protocol;
use super::{
    ACCESS, COMPLETION, CURSOR, FAULT, FLUSH, GRANT, INTEGRITY, LEAVE, Mutation, QUEUE, STUCK, Setting, WORD, broken,
    plant, under,
};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 22] = [
    broken(
        "store-publish",
        Protocol(1),
        "a publication is an addition, never a store: pins of others come and go",
        &[
            plant(
                INTEGRITY,
                "    count_fetched(vm,",
                "    u64 kept = ld_relaxed_gpu(word);\n    count_fetched(vm,",
            ),
            plant(
                INTEGRITY,
                "publish(word, token, frame, pins);",
                "st_release_gpu(word, kept + (kResident - kFetching) + pins * kPin +\n            \
                 ((static_cast<u64>(frame) - token) << layout::FRAME_SHIFT));",
            ),
        ],
        Workload::Spans,
        &[
            "changed pins or version of its page",
            "a page without a frame was made dirty",
            "pins are out of balance",
        ],
    ),
    broken(
        "clean-while-pinned",
        Protocol(2),
        "dirty is cleared only while nobody holds the page",
        &[plant(
            LEAVE,
            "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)",
            "(pins_of(seen) && !(seen & layout::DIRTY_BIT)) || (seen & layout::WRITE_BACK_BIT)",
        )],
        Workload::Counters,
        &["cleaned while it was pinned"],
    ),
    broken(
        "clean-at-completion",
        Protocol(3),
        "dirty goes before the WRITE is posted, not when it completes",
        &[plant(
            WORD,
            "void write_back_done(u64* word) { atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT); }",
            "void write_back_done(u64* word) {\n    \
             atom_and_release_gpu(word, ~(layout::WRITE_BACK_BIT | layout::DIRTY_BIT));\n}",
        )],
        Workload::Counters,
        &["became clean although no write-back began"],
    ),
    broken(
        "no-write-back-mark",
        Protocol(4),
        "a page whose WRITE is in flight is marked, and stays in its frame",
        &[plant(
            WORD,
            "(seen & ~layout::DIRTY_BIT) | layout::WRITE_BACK_BIT) == seen;",
            "seen & ~layout::DIRTY_BIT) == seen;",
        )],
        Workload::Stream,
        &["became clean although no write-back began"],
    ),
    broken(
        "no-version",
        Protocol(5),
        "an eviction counts the page's version up",
        &[plant(
            WORD,
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;",
            "word & layout::VERSION_MASK;",
        )],
        Workload::Stream,
        &["did not count the version up"],
    ),
    broken(
        "version-of-one-bit",
        Protocol(5),
        "the version counts 2,048 evictions, not two",
        &[plant(
            WORD,
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;",
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & 1ull << layout::VERSION_SHIFT;",
        )],
        Workload::Counters,
        &["did not count the version up"],
    ),
    broken(
        "evict-without-pins",
        Protocol(6),
        "a page that somebody holds stays in its frame",
        &[plant(
            LEAVE,
            "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)",
            "(seen & layout::WRITE_BACK_BIT)",
        )],
        Workload::Random,
        &["a pinned page was evicted"],
    ),
    broken(
        "cursor-reads-on",
        Protocol(6),
        "a cursor holds its page as long as it uses it",
        &[plant(
            CURSOR,
            "if (!never_evicted(array)) stretch.pinned = words_of(array) + place.page;",
            "if (!never_evicted(array)) unpin(words_of(array) + place.page, 1);",
        )],
        Workload::Spans,
        &["what cursors read", "its home differ from byte"],
    ),
    broken(
        "publish-without-pin",
        Protocol(7),
        "a fetched page is published with a pin for those who fetched it",
        &[plant(
            INTEGRITY,
            "publish(word, token, frame, pins);",
            "publish(word, token, frame, 0);",
        )],
        Workload::Stream,
        &["pins are out of balance"],
    ),
    broken(
        "no-helpers",
        Protocol(8),
        "whoever needs a request finished can finish it",
        &[plant(
            COMPLETION,
            "    if (!done.arrived) return false;\n    // One handler",
            "    if (!done.arrived || !own) return false;\n    // One handler",
        )],
        Workload::Prefetch,
        STUCK,
    ),
    broken(
        "no-second-look",
        Protocol(9),
        "a reader looks at the page's word again after the data",
        &[plant(ACCESS, "if (difference & kSameStay) return false;", "")],
        Workload::Linear,
        &["no order of its operations explains"],
    ),
    broken(
        "second-look-before-data",
        Protocol(9),
        "the second look comes after the data, not before",
        &[plant(
            ACCESS,
            "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    \
             // The load above is an acquire: this one comes after it.\n    \
             u64 second = ld_relaxed_gpu(word);\n",
            "    u64 second = ld_relaxed_gpu(word);\n    \
             *value = load_strong<T>(frame_at(array, first) + place.offset);\n",
        )],
        Workload::Linear,
        &["no order of its operations explains"],
    ),
    broken(
        "weak-load-after-relaxed-word",
        Protocol(10),
        "the first look acquires, and data is loaded strongly: a weak load may hit a line of an earlier stay",
        &[
            plant(
                ACCESS,
                "u64 first = *seen = ld_acquire_gpu(word);",
                "u64 first = *seen = ld_relaxed_gpu(word);",
            ),
            plant(
                ACCESS,
                "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    // The load above",
                "    *value = load_weak<T>(frame_at(array, first) + place.offset);\n    // The load above",
            ),
        ],
        Workload::Linear,
        &["no order of its operations explains"],
    ),
    broken(
        "all-frames-before-any-post",
        Protocol(11),
        "a warp takes the frames there are and never waits for one while it holds another",
        &[plant(
            GRANT,
            "    u32 direct = kNoFrame;\n    if (frames == 0) {\n        if (!may_wait) return grant;",
            "    u32 direct = kNoFrame;\n    Wait hold(vm);\n    \
             while (pooled && frames && frames < want && hold.again()) {\n        \
             turn_clock(vm, kClockWindow, 1, nullptr, 0);\n        reap_all(vm, kClockWindow);\n        \
             frames += pool_reserve(&vm->pool, want - frames);\n    }\n    \
             if (pooled && frames < want) pool_unreserve(&vm->pool, frames), frames = 0;\n    \
             if (frames == 0) {\n        if (!may_wait) return grant;",
        )],
        Workload::Random,
        STUCK,
    ),
    under(
        broken(
            "failed-write-left-clean",
            Protocol(12),
            "a page whose WRITE failed is dirty again before its mark goes",
            &[plant(
                WORD,
                "    atom_or_relaxed_gpu(word, layout::DIRTY_BIT);\n    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
                "    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
            )],
            Workload::Stream,
            &["its home differ from byte"],
        ),
        "remote-operation:1/8",
        Setting::Usual,
    ),
    broken(
        "unmarked-hit",
        Protocol(13),
        "a write to a page that it found resident marks it dirty",
        &[plant(
            ACCESS,
            "            mark_dirty(word, old);\n            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));",
            "            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));",
        )],
        Workload::Counters,
        &["its home differ from byte"],
    ),
    under(
        broken(
            "frames-equal-spans",
            Protocol(14),
            "one frame more than spans can hold",
            &[],
            Workload::Spans,
            STUCK,
        ),
        "",
        Setting::FramesEqualSpans,
    ),
    broken(
        "flush-blind-to-write-back",
        Protocol(15),
        "a flush waits for a WRITE in flight, then looks again",
        &[plant(
            FLUSH,
            "        if (seen & layout::WRITE_BACK_BIT) {\n",
            "        if (seen & layout::WRITE_BACK_BIT) return true;\n        if (false) {\n",
        )],
        Workload::Flush,
        &["after a flush that began when"],
    ),
    broken(
        "pin-result-ignored",
        Protocol(16),
        "a pin is held only if the page was resident",
        &[plant(
            ACCESS,
            "        if (GPUVM_LIKELY(pins_held(old))) {",
            "        if (GPUVM_LIKELY(true)) {",
        )],
        Workload::Counters,
        &["a page without a frame was made dirty", "pins are out of balance"],
    ),
    broken(
        "doorbell-without-second-look",
        Protocol(17),
        "the ringer looks again after its unlock, so that no hand-over is missed",
        &[plant(
            QUEUE,
            "if (ld_relaxed_gpu(&s->written) == written) return;",
            "return;",
        )],
        Workload::Random,
        STUCK,
    ),
    broken(
        "doorbell-without-lock",
        Protocol(18),
        "one ringer at a time, so that record and doorbell never step back",
        &[plant(
            QUEUE,
            "if (atom_exch_acq_rel_gpu(&s->ringer, 1u) != 0) return;",
            "atom_exch_acq_rel_gpu(&s->ringer, 1u);",
        )],
        Workload::Random,
        &["stepped back"],
    ),
    under(
        broken(
            "failed-pair-left-open",
            Protocol(8),
            "whoever waits for a page closes a queue pair of its that was declared failed, so that it is mended",
            &[plant(
                FAULT,
                "if ((wait.turns & 7) == 7) reap_queues_of(",
                "if (!token && (wait.turns & 7) == 7) reap_queues_of(",
            )],
            Workload::Prefetch,
            STUCK,
        ),
        "lost:1/100",
        Setting::Usual,
    ),
];
