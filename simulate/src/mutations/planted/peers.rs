//! Defects that were seen in an earlier system of this kind.

use super::{ACCESS, CLOCK, ELEMENT, FAULT, FLUSH, MLX5, QUEUE, SOURCE, STUCK, WORD};

planted! {
    "peers-clean-page-written", Peers(1), Stream, &["its home differ from byte"],
    "a write to a page that its warp pins after a miss marks it dirty":
        ACCESS "            if (write) mark_dirty(miss->word(), 0);\n" => "";
    "peers-reader-of-dirty-page", Peers(2), Stream, STUCK, "a reader of a page that is dirty does not wait for it to be clean":
        ACCESS "    if (!is_resident(first)) return false;\n    *value = load_strong"
            => "    if (!is_resident(first) || (first & layout::DIRTY_BIT)) return false;\n    *value = load_strong",
        FAULT "    if (is_resident(seen)) {\n        u64 old = add_pins(word, pins);"
            => "    if (is_resident(seen) && (seen & layout::DIRTY_BIT)) return kBusy;\n    if (is_resident(seen)) {\n        \
                u64 old = add_pins(word, pins);";
    "peers-error-is-success", Peers(3), Stream under "remote-operation:1/8", &["its home differ from byte"],
    "a completion with an error is no success":
        MLX5 "    out.ok = opcode == kCompletionRequest;\n    if (!out.ok) read_syndromes(entry, &out);" => "    out.ok = true;";
    "peers-one-read-in-flight", Peers(4), Stream, &["no queue pair ever had two READs under way"],
    "a queue pair has many requests in flight":
        QUEUE "        u32 free = free_slots(q, index, want);\n"
            => "        bool idle = index == 0 || (ld_acquire_gpu(&q.record(index - 1)->state) ==\n            \
                record_state(index - 1 + q.entries(), layout::RECORD_FREE));\n        \
                u32 free = idle ? free_slots(q, index, 1) : 0;\n        if (!idle) return reap(q, index - 1, false), 0;\n";
    "peers-evictor-waits", Peers(5), Spans, STUCK, "the thread that looks for a frame waits for no particular page":
        CLOCK "        u64 seen = ld_relaxed_gpu(word);\n        if (!is_resident(seen)"
            => "        u64 seen = ld_relaxed_gpu(word);\n        \
                while (is_resident(seen) && frame_of(seen) == frame && pins_of(seen) && !aborted(vm)) {\n            \
                sleep_ns(100);\n            seen = ld_relaxed_gpu(word);\n        }\n        if (!is_resident(seen)";
    "peers-pins-overflow", Peers(6), Stream, &["pins are out of balance"], "the count of holders has room for all of them":
        WORD "return atom_add_acquire_gpu(word, count * kPin);" => "return atom_add_acquire_gpu(word, (count & 3) * kPin);";
    "peers-past-the-end", Peers(7), Stream, &["remote access error"], "the last page of a region is read and written to its exact end":
        SOURCE "return rest < whole ? static_cast<u32>(rest) : whole;" => "return whole;";
    "peers-not-written-back", Peers(8), Stream, STUCK, "after a flush the home holds what was written":
        FLUSH "        if (!is_resident(seen) || !(seen & layout::DIRTY_BIT)) return true;\n" => "        return true;\n";
    "peers-live-slot-reused", Peers(9), Random, &["slot ", "completion of request"],
    "a ring slot is written again only when its request was finished":
        QUEUE "    if (want == 1) return ld_acquire_gpu(&q.record(index)->state) == record_state(index, layout::RECORD_FREE);"
            => "    if (want == 1) return 1;",
        QUEUE "more = free < want && states[n] == record_state(index + free, layout::RECORD_FREE);" => "more = free < want;";
    "peers-element-over-pages", Peers(10), Transpose, &["elements are wrong"], "an element lies in one page":
        ELEMENT "    return Place{byte >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};"
            => "    return Place{(byte + sizeof(T)) >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};";
    "peers-unflushed-reads", Peers(11), Stream under "unflushed:1/2" with NoFlushOfReads, &["its home differ from byte"],
    "where a READ's completion says nothing of its data, a flush follows it":
        ;
    "peers-queue-pair-numbers", Peers(12), Stream, &["WrongQueuePair"],
    "requests carry the number that their queue pair has, whatever the numbers are":
        MLX5 "control24(queue->number, kSegments)" => "control24(queue->number + 1, kSegments)";
}
