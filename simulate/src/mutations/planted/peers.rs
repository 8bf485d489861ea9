//! Defects that were seen in an earlier system of this kind.

use super::Origin::Peers;
use super::{
    ACCESS, CLOCK, ELEMENT, FAULT, FLUSH, MLX5, Mutation, QUEUE, SOURCE, STUCK, Setting, WORD, broken, plant, under,
};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 12] = [
    broken(
        "peers-clean-page-written",
        Peers(1),
        "a write to a page that its warp pins after a miss marks it dirty",
        &[plant(
            ACCESS,
            "            if (write) mark_dirty(miss->word(), 0);\n",
            "",
        )],
        Workload::Stream,
        &["its home differ from byte"],
    ),
    broken(
        "peers-reader-of-dirty-page",
        Peers(2),
        "a reader of a page that is dirty does not wait for it to be clean",
        &[
            plant(
                ACCESS,
                "    if (!is_resident(first)) return false;\n    *value = load_strong",
                "    if (!is_resident(first) || (first & layout::DIRTY_BIT)) return false;\n    *value = load_strong",
            ),
            plant(
                FAULT,
                "    if (is_resident(seen)) {\n        u64 old = add_pins(word, pins);",
                "    if (is_resident(seen) && (seen & layout::DIRTY_BIT)) return kBusy;\n    \
                 if (is_resident(seen)) {\n        u64 old = add_pins(word, pins);",
            ),
        ],
        Workload::Stream,
        STUCK,
    ),
    under(
        broken(
            "peers-error-is-success",
            Peers(3),
            "a completion with an error is no success",
            &[plant(
                MLX5,
                "    out.ok = opcode == kCompletionRequest;\n    if (!out.ok) read_syndromes(entry, &out);",
                "    out.ok = true;",
            )],
            Workload::Stream,
            &["its home differ from byte"],
        ),
        "remote-operation:1/8",
        Setting::Usual,
    ),
    broken(
        "peers-one-read-in-flight",
        Peers(4),
        "a queue pair has many requests in flight",
        &[plant(
            QUEUE,
            "        u32 free = free_slots(q, index, want);\n",
            "        bool idle = index == 0 || (ld_acquire_gpu(&q.record(index - 1)->state) ==\n            \
             record_state(index - 1 + q.entries(), layout::RECORD_FREE));\n        \
             u32 free = idle ? free_slots(q, index, 1) : 0;\n        \
             if (!idle) return reap(q, index - 1, false), 0;\n",
        )],
        Workload::Stream,
        &["no queue pair ever had two READs under way"],
    ),
    broken(
        "peers-evictor-waits",
        Peers(5),
        "whoever looks for a frame waits for no particular page",
        &[plant(
            CLOCK,
            "        u64 seen = ld_relaxed_gpu(word);\n        if (!is_resident(seen)",
            "        u64 seen = ld_relaxed_gpu(word);\n        \
             while (is_resident(seen) && frame_of(seen) == frame && pins_of(seen) && !aborted(vm)) {\n            \
             sleep_ns(100);\n            seen = ld_relaxed_gpu(word);\n        }\n        if (!is_resident(seen)",
        )],
        Workload::Spans,
        STUCK,
    ),
    broken(
        "peers-pins-overflow",
        Peers(6),
        "the count of holders has room for all of them",
        &[plant(
            WORD,
            "return atom_add_acquire_gpu(word, count * kPin);",
            "return atom_add_acquire_gpu(word, (count & 3) * kPin);",
        )],
        Workload::Stream,
        &["pins are out of balance"],
    ),
    broken(
        "peers-past-the-end",
        Peers(7),
        "the last page of a region is read and written to its exact end",
        &[plant(
            SOURCE,
            "return rest < whole ? static_cast<u32>(rest) : whole;",
            "return whole;",
        )],
        Workload::Stream,
        &["remote access error"],
    ),
    broken(
        "peers-not-written-back",
        Peers(8),
        "after a flush the home holds what was written",
        &[plant(
            FLUSH,
            "        if (!is_resident(seen) || !(seen & layout::DIRTY_BIT)) return true;\n",
            "        return true;\n",
        )],
        Workload::Stream,
        STUCK,
    ),
    broken(
        "peers-live-slot-reused",
        Peers(9),
        "a ring slot is written again only when its request was finished",
        &[
            plant(
                QUEUE,
                "    if (want == 1) return ld_acquire_gpu(&q.record(index)->state) == record_state(index, layout::RECORD_FREE);",
                "    if (want == 1) return 1;",
            ),
            plant(
                QUEUE,
                "more = free < want && states[n] == record_state(index + free, layout::RECORD_FREE);",
                "more = free < want;",
            ),
        ],
        Workload::Random,
        &["slot ", "completion of request"],
    ),
    broken(
        "peers-element-over-pages",
        Peers(10),
        "an element lies in one page",
        &[plant(
            ELEMENT,
            "    return Place{byte >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};",
            "    return Place{(byte + sizeof(T)) >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};",
        )],
        Workload::Transpose,
        &["elements are wrong"],
    ),
    under(
        broken(
            "peers-unflushed-reads",
            Peers(11),
            "where a READ's completion says nothing of its data, a flush follows it",
            &[],
            Workload::Stream,
            &["its home differ from byte"],
        ),
        "unflushed:1/2",
        Setting::NoFlushOfReads,
    ),
    broken(
        "peers-queue-pair-numbers",
        Peers(12),
        "requests carry the number that their queue pair has, whatever the numbers are",
        &[plant(
            MLX5,
            "control24(queue->number, kSegments)",
            "control24(queue->number + 1, kSegments)",
        )],
        Workload::Stream,
        &["WrongQueuePair"],
    ),
];
