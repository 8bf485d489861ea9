//! Rules of pages with two homes or with checksums.

use super::{CATCH_UP, FLUSH, INTEGRITY, REPLICA, WRITE_BACK};

planted! {
    "stale-copy-read", Guards(1), Replicas, &["was published although that copy was stale"], "a copy that is stale is never read":
        REPLICA "return ld_relaxed_gpu(stale_word(vm, id)) & stale_bit(id);" => "return false;";
    "ends-with-first-write", Guards(2), Replicas, &["mark went before the WRITE had completed"],
    "the write-back of a page with two homes ends when the WRITEs to both have ended":
        REPLICA "if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;" => "";
    "returned-home-not-aged", Guards(3), Returns, &["returned, and its copy of", "its home differ from byte"],
    "of what a home holds that returns nothing counts":
        CATCH_UP "if (at == home) set_stale(vm, at_replica(id, n));" => ";";
    "checksum-not-compared", Guards(4), Checksums, &["has checksum"], "a page is published only with its checksum":
        INTEGRITY "if (expected == 0 || expected == found) {" => "if (true) {";
    // The end of a region whose flush has failed drops what is dirty.
    "recovery-not-helped", Guards(5), Replicas under "lost:1/200,qp-error:1/100,aborted:1/100",
    &["did not complete", "did not end within", "a dirty page was evicted"],
    "a flush that waits for a queue pair to be recovered finishes its requests, where nothing else may":
        WRITE_BACK "reap_all(vm, kClockWindow);\n        return layout::OUTCOME_FLUSHED;" => "return layout::OUTCOME_FLUSHED;";
    "host-never-lets-up", Guards(6), Returns, &["requests are still in flight on its queue pairs; try again"],
    "the host's kernels that bring queue pairs to rest leave time to the lanes whose requests they wait for":
        FLUSH "    reap_queue(Queue(vm, queue), ~0u);\n    sleep_ns(1000);" => "    reap_queue(Queue(vm, queue), ~0u);";
}
