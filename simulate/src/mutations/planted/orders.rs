//! Orders of memory, each taken out alone, rules of queues that a NIC watches, and of what moves a page's entry.

use super::{FAULT, MLX5, POOL, QUEUE, STUCK, WIRE, WORD};

planted! {
    "claimed-without-a-look", Words(1), Random, CLAIMED_TWICE,
    "the thread that claims a page looks whether it has won":
        WORD "return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;"
            => "atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching);\n    return true;";
    "counted-twice-in-its-own-frame", Words(2), NeverEvicted, &["elements are wrong", "a page without a frame was made dirty"],
    "a page that has a frame of its own is counted out once":
        WORD "atom_add_release_gpu(words - 1, ~u64{0});" => "atom_add_release_gpu(words - 1, ~u64{1});";
    "record-after-its-doorbell", Queues(1), Random, &["DoorbellAheadOfRecord"], "the doorbell record comes before the doorbell":
        WIRE "    st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record),"
            => "    st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));\n    \
                st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record),",
        WIRE "    fence_acq_rel_sys();\n    \
                st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));\n"
            => "";
    "record-ahead-of-requests", Queues(1), Random, &["RecordAheadOfRequest"], "the doorbell record counts what is written":
        WIRE "mlx5::doorbell_record(queue, written)" => "mlx5::doorbell_record(queue, written + 1)";
    "rung-before-the-request", Queues(2), Random, &["WrongIndex", "Malformed", "DoorbellAheadOfRequest", "differ from byte", "from request"],
    "a request is written before it is handed over":
        FAULT "    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);\n    commit(q, index, 1);\n    ring(q);\n"
            => "    commit(q, index, 1);\n    ring(q);\n    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);\n";
    "request-of-the-next-index", Queues(3), Random, &["WrongIndex"], "a request carries the index of its slot":
        MLX5 "control16(place, request.write" => "control16(place + 1, request.write";
    "doorbell-of-another-pair", Queues(4), Random, &["DoorbellWrongQueuePair"], "a doorbell carries the number of its queue pair":
        MLX5 "control24(queue->number, 0)" => "control24(queue->number ^ 1, 0)";
    "unpinned-without-release", Orders(1), Random, &["its home differ from byte", "what lanes read"], UNPIN:
        WORD "atom_add_release_gpu(word, 0 - count * kPin);" => "atom_add_relaxed_gpu(word, 0 - count * kPin);";
    "given-without-release", Orders(2), Random, &["did not end within", "did not complete over", "no frame for page", "went to the pool twice"],
    "a frame's last use comes before it is in the pool":
        POOL "st_release_gpu(slot, (2 * lap + 1) << 32 | frame);" => "st_relaxed_gpu(slot, (2 * lap + 1) << 32 | frame);";
    "completion-read-relaxed", Orders(3), Random, &["its home differ from byte"], COMPLETION:
        MLX5 READ_COMPLETION => "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_relaxed_sys(";
    "completion-read-at-gpu-scope", Orders(3), Random, &["its home differ from byte"], COMPLETION:
        MLX5 READ_COMPLETION => "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_gpu(";
    "handed-over-without-release", Orders(4), Random, &["DoorbellAheadOfRequest", "RecordAheadOfRequest", "operation error"],
    "requests come before their hand-over to who rings":
        // The pause lets another lane ring for these requests.
        QUEUE "st_release_gpu(&s->written, first + count_);" => "st_relaxed_gpu(&s->written, first + count_);\n    sleep_ns(500);";
    "second-look-before-the-unlock", Orders(5), Random, STUCK, RINGER:
        QUEUE SECOND_LOOK => "        if (ld_relaxed_gpu(&s->written) == written) return;";
    "second-look-behind-a-weaker-fence", Orders(5), Random, STUCK, RINGER:
        QUEUE SECOND_LOOK => "        fence_acq_rel_gpu();\n        if (ld_relaxed_gpu(&s->written) == written) return;";
    "batch-before-its-lanes-meet", Orders(6), Spans, &["DoorbellAheadOfRequest", "RecordAheadOfRequest", "operation error", "remote access error"],
    "all requests of a batch are written before it is handed over":
        FAULT "    __syncwarp(granted);\n" => "";
    "doorbell-without-its-fence", Orders(8), Random, &["DoorbellAheadOfRecord"], DOORBELL:
        WIRE BELL_FENCE => "    st_mmio_sys(";
    "doorbell-behind-a-fence-of-the-gpu", Orders(8), Spans with Races, RACE, DOORBELL:
        WIRE BELL_FENCE => "    fence_acq_rel_gpu();\n    st_mmio_sys(";
    "published-without-release", Orders(9), Spans with Races, RACE, "a frame's data comes before its page's publication":
        WORD "atom_add_release_gpu(word, (kResident - kFetching) + fields + pins * kPin);"
            => "atom_add_relaxed_gpu(word, (kResident - kFetching) + fields + pins * kPin);";
    "pinned-without-acquire", Orders(10), Spans with Races, RACE, "a pin comes before what its holder does in the frame":
        WORD "return atom_add_acquire_gpu(word, count * kPin);" => "return atom_add_relaxed_gpu(word, count * kPin);";
    "unpinned-without-release-races", Orders(1), Spans with Races, RACE, UNPIN:
        WORD "atom_add_release_gpu(word, 0 - count * kPin);" => "atom_add_relaxed_gpu(word, 0 - count * kPin);";
    "completion-read-relaxed-races", Orders(3), Spans with Races, RACE, COMPLETION:
        MLX5 READ_COMPLETION => "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_relaxed_sys(";
    "follower-without-acquire-races", Orders(11), Spans with Races, RACE, "every lane of a group acquires the page that its leader got":
        FAULT "state_of(ld_acquire_gpu(miss->word())) == kError) outcome" => "state_of(ld_relaxed_gpu(miss->word())) == kError) outcome";
}

const UNPIN: &str = "what a holder did in a frame comes before its pin is gone";
const COMPLETION: &str = "the thread that sees a completion acquires what the NIC wrote before it";
const READ_COMPLETION: &str = "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_sys(";
const RINGER: &str = "a ringer's second look comes after its unlock";
const SECOND_LOOK: &str = "        fence_sc_gpu();\n        if (ld_relaxed_gpu(&s->written) == written) return;";
const DOORBELL: &str = "the doorbell record comes before the doorbell, at the NIC";
const BELL_FENCE: &str = "    fence_acq_rel_sys();\n    st_mmio_sys(";
/// How accesses show that nothing orders.
const RACE: &[&str] = &["a data race:"];
/// How a page shows that two lanes fetch.
const CLAIMED_TWICE: &[&str] = &[
    "was written, which is",
    "without a claim",
    "without an eviction",
    "changed its frame or version",
    "the end of a fetch",
    "changed pins or version",
    "which the pool has",
    "differ from byte",
];
