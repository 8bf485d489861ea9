//! Rules of the paging protocol whose breaking the model checker of the protocol found as well.

use super::{ACCESS, COMPLETION, CURSOR, FAULT, FLUSH, GRANT, INTEGRITY, LEAVE, QUEUE, STUCK, WORD};

planted! {
    "store-publish", Protocol(1), Spans, &["changed pins or version of its page", "a page without a frame was made dirty", "pins are out of balance"],
    "a publication is an addition, never a store: pins of others come and go":
        INTEGRITY "    count_fetched(vm," => "    u64 kept = ld_relaxed_gpu(word);\n    count_fetched(vm,",
        INTEGRITY "publish(word, token, frame, pins);"
            => "st_release_gpu(word, kept + (kResident - kFetching) + pins * kPin +\n            \
                ((static_cast<u64>(frame) - token) << layout::FRAME_SHIFT));";
    "clean-while-pinned", Protocol(2), Counters, &["cleaned while it was pinned"], "dirty is cleared only while nothing holds the page":
        LEAVE "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)"
            => "(pins_of(seen) && !(seen & layout::DIRTY_BIT)) || (seen & layout::WRITE_BACK_BIT)";
    "clean-at-completion", Protocol(3), Counters, &["became clean although no write-back began"],
    "dirty goes before the WRITE is posted, not when it completes":
        WORD "void write_back_done(u64* word) { atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT); }"
            => "void write_back_done(u64* word) {\n    atom_and_release_gpu(word, ~(layout::WRITE_BACK_BIT | layout::DIRTY_BIT));\n}";
    "no-write-back-mark", Protocol(4), Stream, &["became clean although no write-back began"],
    "a page whose WRITE is in flight is marked, and stays in its frame":
        WORD "(seen & ~layout::DIRTY_BIT) | layout::WRITE_BACK_BIT) == seen;" => "seen & ~layout::DIRTY_BIT) == seen;";
    "no-version", Protocol(5), Stream, &["did not count the version up"], "an eviction counts the page's version up":
        WORD "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;" => "word & layout::VERSION_MASK;";
    "version-of-one-bit", Protocol(5), Counters, &["did not count the version up"], "the version counts 2,048 evictions, not two":
        WORD "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;"
            => "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & 1ull << layout::VERSION_SHIFT;";
    "evict-without-pins", Protocol(6), Random, &["a pinned page was evicted"], "a page that somebody holds stays in its frame":
        LEAVE "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)" => "(seen & layout::WRITE_BACK_BIT)";
    "cursor-reads-on", Protocol(6), Spans, &["what cursors read", "its home differ from byte"],
    "a cursor holds its page as long as it uses it":
        CURSOR "if (!never_evicted(array)) stretch.pinned = words_of(array) + place.page;"
            => "if (!never_evicted(array)) unpin(words_of(array) + place.page, 1);";
    "publish-without-pin", Protocol(7), Stream, &["pins are out of balance"],
    "a fetched page is published with a pin for those who fetched it":
        INTEGRITY "publish(word, token, frame, pins);" => "publish(word, token, frame, 0);";
    "no-helpers", Protocol(8), Prefetch, STUCK, "the thread that needs a request finished can finish it":
        COMPLETION "    if (!done.arrived) return false;\n    // One handler"
            => "    if (!done.arrived || !own) return false;\n    // One handler";
    "no-second-look", Protocol(9), Linear, &["no order of its operations explains"],
    "a reader looks at the page's entry again after the data":
        ACCESS "if (difference & kSameStay) return false;" => "";
    "second-look-before-data", Protocol(9), Linear, &["no order of its operations explains"],
    "the second look comes after the data, not before":
        ACCESS "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    \
                // The load above is an acquire: this one comes after it.\n    u64 second = ld_relaxed_gpu(word);\n"
            => "    u64 second = ld_relaxed_gpu(word);\n    *value = load_strong<T>(frame_at(array, first) + place.offset);\n";
    "weak-load-after-relaxed-word", Protocol(10), Linear, &["no order of its operations explains"],
    "the first look acquires, and data is loaded strongly: a weak load may hit a line of an earlier stay":
        ACCESS "u64 first = *seen = ld_acquire_gpu(word);" => "u64 first = *seen = ld_relaxed_gpu(word);",
        ACCESS "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    // The load above"
            => "    *value = load_weak<T>(frame_at(array, first) + place.offset);\n    // The load above";
    "all-frames-before-any-post", Protocol(11), Random, STUCK,
    "a warp takes the frames there are and never waits for one while it holds another":
        GRANT "    u32 direct = kNoFrame;\n    if (frames == 0) {\n        if (!may_wait) return grant;"
            => "    u32 direct = kNoFrame;\n    Wait hold(vm);\n    while (pooled && frames && frames < want && hold.again()) {\n        \
                turn_clock(vm, kClockWindow, 1, nullptr, 0);\n        reap_all(vm, kClockWindow);\n        \
                frames += pool_reserve(&vm->pool, want - frames);\n    }\n    \
                if (pooled && frames < want) pool_unreserve(&vm->pool, frames), frames = 0;\n    if (frames == 0) {\n        \
                if (!may_wait) return grant;";
    "failed-write-left-clean", Protocol(12), Stream under "remote-operation:1/8", &["its home differ from byte"],
    "a page whose WRITE failed is dirty again before its mark goes":
        WORD "    atom_or_relaxed_gpu(word, layout::DIRTY_BIT);\n    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);"
            => "    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);";
    "unmarked-hit", Protocol(13), Counters, &["its home differ from byte"], "a write to a page that it found resident marks it dirty":
        ACCESS "            mark_dirty(word, old);\n            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));"
            => "            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));";
    "frames-equal-spans", Protocol(14), Spans with FramesEqualSpans, STUCK, "one frame more than spans can hold":
        ;
    "flush-blind-to-write-back", Protocol(15), Flush, &["after a flush that began when"],
    "a flush waits for a WRITE in flight, then looks again":
        FLUSH "        if (seen & layout::WRITE_BACK_BIT) {\n"
            => "        if (seen & layout::WRITE_BACK_BIT) return true;\n        if (false) {\n";
    "pin-result-ignored", Protocol(16), Counters, &["a page without a frame was made dirty", "pins are out of balance"],
    "a pin is held only if the page was resident":
        ACCESS "        if (GPUVM_LIKELY(pins_held(old))) {" => "        if (GPUVM_LIKELY(true)) {";
    "doorbell-without-second-look", Protocol(17), Random, STUCK, "the ringer looks again after its unlock, so that no hand-over is missed":
        QUEUE "if (ld_relaxed_gpu(&s->written) == written) return;" => "return;";
    "doorbell-without-lock", Protocol(18), Random, &["stepped back"], "one ringer at a time, so that record and doorbell never step back":
        QUEUE "if (atom_exch_acq_rel_gpu(&s->ringer, 1u) != 0) return;" => "atom_exch_acq_rel_gpu(&s->ringer, 1u);";
    "failed-pair-left-open", Protocol(8), Prefetch under "lost:1/100", STUCK,
    "the thread that waits for a page closes a queue pair of its that was declared failed, so that it is recovered":
        FAULT "if ((wait.turns & 7) == 7) reap_queues_of(" => "if (!token && (wait.turns & 7) == 7) reap_queues_of(";
}
