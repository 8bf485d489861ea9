//! Orders of memory, each taken out alone, rules of queues that a NIC watches, and of what moves a page's word.

use super::Origin::{Orders, Queues, Words};
use super::{FAULT, MLX5, Mutation, POOL, QUEUE, STUCK, Setting, WIRE, WORD, broken, plant, under};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 22] = [
    broken(
        "claimed-without-a-look",
        Words(1),
        "whoever claims a page looks whether it has won",
        &[plant(
            WORD,
            "return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;",
            "atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching);\n    return true;",
        )],
        Workload::Random,
        &[
            "was written, which is",
            "without a claim",
            "without an eviction",
            "changed its frame or version",
            "the end of a fetch",
            "changed pins or version",
            "slot ",
            "which the pool has",
            "differ from byte",
        ],
    ),
    broken(
        "counted-twice-in-its-own-frame",
        Words(2),
        "a page that has a frame of its own is counted out once",
        &[plant(
            WORD,
            "atom_add_release_gpu(words - 1, ~u64{0});",
            "atom_add_release_gpu(words - 1, ~u64{1});",
        )],
        Workload::NeverEvicted,
        &["elements are wrong", "a page without a frame was made dirty"],
    ),
    broken(
        "record-after-its-doorbell",
        Queues(1),
        "the doorbell record comes before the doorbell",
        &[
            plant(
                WIRE,
                "    st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record),",
                "    st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));\n    \
                 st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record),",
            ),
            plant(
                WIRE,
                "    fence_acq_rel_sys();\n    \
                 st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));\n",
                "",
            ),
        ],
        Workload::Random,
        &["DoorbellAheadOfRecord"],
    ),
    broken(
        "record-ahead-of-requests",
        Queues(1),
        "the doorbell record counts what is written",
        &[plant(
            WIRE,
            "mlx5::doorbell_record(queue, written)",
            "mlx5::doorbell_record(queue, written + 1)",
        )],
        Workload::Random,
        &["RecordAheadOfRequest"],
    ),
    broken(
        "rung-before-the-request",
        Queues(2),
        "a request is written before it is handed over",
        &[plant(
            FAULT,
            "    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);\n    commit(q, index, 1);\n    ring(q);\n",
            "    commit(q, index, 1);\n    ring(q);\n    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);\n",
        )],
        Workload::Random,
        &[
            "WrongIndex",
            "Malformed",
            "DoorbellAheadOfRequest",
            "differ from byte",
            "from request",
        ],
    ),
    broken(
        "request-of-the-next-index",
        Queues(3),
        "a request carries the index of its slot",
        &[plant(
            MLX5,
            "control16(place, request.write",
            "control16(place + 1, request.write",
        )],
        Workload::Random,
        &["WrongIndex"],
    ),
    broken(
        "doorbell-of-another-pair",
        Queues(4),
        "a doorbell carries the number of its queue pair",
        &[plant(
            MLX5,
            "control24(queue->number, 0)",
            "control24(queue->number ^ 1, 0)",
        )],
        Workload::Random,
        &["DoorbellWrongQueuePair"],
    ),
    broken(
        "unpinned-without-release",
        Orders(1),
        UNPIN,
        &UNPINNED,
        Workload::Random,
        &["its home differ from byte", "what lanes read"],
    ),
    broken(
        "given-without-release",
        Orders(2),
        "a frame's last use comes before it is in the pool",
        &[plant(
            POOL,
            "st_release_gpu(slot, (2 * lap + 1) << 32 | frame);",
            "st_relaxed_gpu(slot, (2 * lap + 1) << 32 | frame);",
        )],
        Workload::Random,
        &[
            "did not end within",
            "did not complete over",
            "no frame for page",
            "went to the pool twice",
        ],
    ),
    broken(
        "completion-read-relaxed",
        Orders(3),
        COMPLETION,
        &READ_RELAXED,
        Workload::Random,
        &["its home differ from byte"],
    ),
    broken(
        "completion-read-at-gpu-scope",
        Orders(3),
        COMPLETION,
        &[plant(
            MLX5,
            READ_COMPLETION,
            "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_gpu(",
        )],
        Workload::Random,
        &["its home differ from byte"],
    ),
    broken(
        "handed-over-without-release",
        Orders(4),
        "requests come before their hand-over to who rings",
        &[plant(
            QUEUE,
            "st_release_gpu(&s->written, first + count_);",
            "st_relaxed_gpu(&s->written, first + count_);",
        )],
        Workload::Random,
        &["DoorbellAheadOfRequest", "RecordAheadOfRequest", "operation error"],
    ),
    broken(
        "second-look-before-the-unlock",
        Orders(5),
        RINGER,
        &[plant(
            QUEUE,
            SECOND_LOOK,
            "        if (ld_relaxed_gpu(&s->written) == written) return;",
        )],
        Workload::Random,
        STUCK,
    ),
    broken(
        "second-look-behind-a-weaker-fence",
        Orders(5),
        RINGER,
        &[plant(
            QUEUE,
            SECOND_LOOK,
            "        fence_acq_rel_gpu();\n        if (ld_relaxed_gpu(&s->written) == written) return;",
        )],
        Workload::Random,
        STUCK,
    ),
    broken(
        "batch-before-its-lanes-meet",
        Orders(6),
        "all requests of a batch are written before it is handed over",
        &[plant(FAULT, "    __syncwarp(granted);\n", "")],
        Workload::Spans,
        &[
            "DoorbellAheadOfRequest",
            "RecordAheadOfRequest",
            "operation error",
            "remote access error",
        ],
    ),
    broken(
        "doorbell-without-its-fence",
        Orders(8),
        DOORBELL,
        &[plant(WIRE, BELL_FENCE, "    st_mmio_sys(")],
        Workload::Random,
        &["DoorbellAheadOfRecord"],
    ),
    racing(
        "doorbell-behind-a-fence-of-the-gpu",
        Orders(8),
        DOORBELL,
        &[plant(WIRE, BELL_FENCE, "    fence_acq_rel_gpu();\n    st_mmio_sys(")],
    ),
    racing(
        "published-without-release",
        Orders(9),
        "a frame's data comes before its page's publication",
        &[plant(
            WORD,
            "atom_add_release_gpu(word, (kResident - kFetching) + fields + pins * kPin);",
            "atom_add_relaxed_gpu(word, (kResident - kFetching) + fields + pins * kPin);",
        )],
    ),
    racing(
        "pinned-without-acquire",
        Orders(10),
        "a pin comes before what its holder does in the frame",
        &[plant(
            WORD,
            "return atom_add_acquire_gpu(word, count * kPin);",
            "return atom_add_relaxed_gpu(word, count * kPin);",
        )],
    ),
    racing("unpinned-without-release-races", Orders(1), UNPIN, &UNPINNED),
    racing("completion-read-relaxed-races", Orders(3), COMPLETION, &READ_RELAXED),
    racing(
        "follower-without-acquire-races",
        Orders(11),
        "every lane of a group acquires the page that its leader got",
        &[plant(
            FAULT,
            "state_of(ld_acquire_gpu(miss->word())) == kError) outcome",
            "state_of(ld_relaxed_gpu(miss->word())) == kError) outcome",
        )],
    ),
];

/// A mutation that shows as a data race, in lanes that hold pages and use them by weak accesses.
const fn racing(
    name: &'static str,
    origin: super::Origin,
    rule: &'static str,
    plants: &'static [super::Plant],
) -> Mutation {
    let found = broken(name, origin, rule, plants, Workload::Spans, &["a data race:"]);
    under(found, "", Setting::Races)
}

const UNPIN: &str = "what a holder did in a frame comes before its pin is gone";
static UNPINNED: [super::Plant; 1] = [plant(
    WORD,
    "atom_add_release_gpu(word, 0 - count * kPin);",
    "atom_add_relaxed_gpu(word, 0 - count * kPin);",
)];
const COMPLETION: &str = "whoever sees a completion acquires what the NIC wrote before it";
const READ_COMPLETION: &str = "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_sys(";
static READ_RELAXED: [super::Plant; 1] = [plant(
    MLX5,
    READ_COMPLETION,
    "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_relaxed_sys(",
)];
const RINGER: &str = "a ringer's second look comes after its unlock";
const SECOND_LOOK: &str = "        fence_sc_gpu();\n        if (ld_relaxed_gpu(&s->written) == written) return;";
const DOORBELL: &str = "the doorbell record comes before the doorbell, at the NIC";
const BELL_FENCE: &str = "    fence_acq_rel_sys();\n    st_mmio_sys(";
