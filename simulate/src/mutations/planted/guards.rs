//! Rules of pages with two homes or with checksums.

use super::Origin::Guards;
use super::{CATCH_UP, FLUSH, INTEGRITY, Mutation, REPLICA, Setting, WRITE_BACK, broken, plant, under};
use crate::workload::Workload;

pub(super) static ALL: [Mutation; 6] = [
    broken(
        "stale-copy-read",
        Guards(1),
        "a copy that is stale is never read",
        &[plant(
            REPLICA,
            "return ld_relaxed_gpu(stale_word(vm, id)) & stale_bit(id);",
            "return false;",
        )],
        Workload::Replicas,
        &["was published although that copy was stale"],
    ),
    broken(
        "ends-with-first-write",
        Guards(2),
        "the write-back of a page with two homes ends when the WRITEs to both have ended",
        &[plant(
            REPLICA,
            "if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;",
            "",
        )],
        Workload::Replicas,
        &["mark went before the WRITE had completed"],
    ),
    broken(
        "returned-home-not-aged",
        Guards(3),
        "of what a home holds that returns nothing counts",
        &[plant(
            CATCH_UP,
            "if (at == home) set_stale(vm, at_replica(id, n));",
            ";",
        )],
        Workload::Returns,
        &["returned, and its copy of", "its home differ from byte"],
    ),
    broken(
        "checksum-not-compared",
        Guards(4),
        "a page is published only with its checksum",
        &[plant(
            INTEGRITY,
            "if (expected == 0 || expected == found) {",
            "if (true) {",
        )],
        Workload::Checksums,
        &["has checksum"],
    ),
    under(
        broken(
            "mending-not-helped",
            Guards(5),
            "a flush that waits for a queue pair to be mended finishes its requests, where nobody else may",
            &[plant(
                WRITE_BACK,
                "reap_all(vm, kClockWindow);\n        return layout::OUTCOME_FLUSHED;",
                "return layout::OUTCOME_FLUSHED;",
            )],
            Workload::Replicas,
            // The end of a region whose flush has failed drops what is dirty.
            &["did not complete", "did not end within", "a dirty page was evicted"],
        ),
        "lost:1/200,qp-error:1/100,aborted:1/100",
        Setting::Usual,
    ),
    broken(
        "host-never-lets-up",
        Guards(6),
        "the host's kernels that bring queue pairs to rest leave time to the lanes whose requests they wait for",
        &[plant(
            FLUSH,
            "    reap_queue(Queue(vm, queue), ~0u);\n    sleep_ns(1000);",
            "    reap_queue(Queue(vm, queue), ~0u);",
        )],
        Workload::Returns,
        &["requests are in flight on its queue pairs still"],
    ),
];
