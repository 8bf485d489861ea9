//! Rules of copies: large pages that all lanes fill that wait for them, groups of lanes of which one fetches, and the exact ends of regions.

use super::Origin::Copies;
use super::{ACCESS, DIRECT, FAULT, Mutation, OVERWRITE, QUEUE, WRITE_BACK, broken, plant};
use crate::workload::Workload;

/// How what a frame or a home has not got shows: to the watcher, or to whoever reads it.
const NOT_COPIED: &[&str] = &["its home differ from byte", "instead of", "of its"];

pub(super) static ALL: [Mutation; 21] = [
    broken(
        "chunk-counted-before-its-bytes",
        Copies(1),
        "a chunk's bytes come before it is counted as done",
        &[plant(
            DIRECT,
            "atom_add_release_gpu(&fill->done, 1u);",
            "atom_add_relaxed_gpu(&fill->done, 1u);",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "published-before-the-last-chunk",
        Copies(1),
        "a large page is published when all its chunks are done, not when all are taken",
        &[plant(
            DIRECT,
            "while (ld_acquire_gpu(&fill->done) != chunks) sleep_ns(100);",
            "while (ld_acquire_gpu(&fill->done) + 1 < chunks) sleep_ns(100);",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "opened-before-its-fields",
        Copies(2),
        "whoever reads the open head reads the fields of that page",
        &[plant(
            DIRECT,
            "st_release_gpu(&fill->head, generation | (layout::FILL_END - chunks));",
            "st_relaxed_gpu(&fill->head, generation | (layout::FILL_END - chunks));",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "done-of-the-page-before",
        Copies(2),
        "the count of chunks done begins anew with each page",
        &[plant(DIRECT, "    st_relaxed_gpu(&fill->done, 0u);\n", "")],
        Workload::LargePages,
        &["its home differ from byte", "instead of", "did not end within"],
    ),
    broken(
        "ticket-past-the-last-chunk",
        Copies(3),
        "a ticket above the number of chunks is for nothing",
        &[plant(
            DIRECT,
            "    if (ticket >= layout::FILL_END) return false;\n",
            "    if (ticket > layout::FILL_END) return false;\n",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "last-chunk-not-counted",
        Copies(3),
        "a page's last chunk is copied though it is shorter than the others",
        &[plant(
            DIRECT,
            "(bytes + layout::FILL_CHUNK_BYTES - 1) / layout::FILL_CHUNK_BYTES",
            "bytes / layout::FILL_CHUNK_BYTES",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "last-chunk-one-byte-short",
        Copies(3),
        "a page's last chunk is copied to the page's exact end",
        &[plant(
            DIRECT,
            "left < layout::FILL_CHUNK_BYTES ? left : layout::FILL_CHUNK_BYTES",
            "left < layout::FILL_CHUNK_BYTES ? left - 1 : layout::FILL_CHUNK_BYTES",
        )],
        Workload::LargePages,
        NOT_COPIED,
    ),
    broken(
        "place-given-up-too-early",
        Copies(4),
        "a place of the table is another page's only when its chunks are done",
        &[
            plant(DIRECT, "    st_release_gpu(&fill->taken, 0u);\n", ""),
            plant(
                DIRECT,
                "    // Acquire: all chunks come before the page's publication.",
                "    st_release_gpu(&fill->taken, 0u);\n    // Acquire: all chunks come before the page's publication.",
            ),
        ],
        Workload::LargePages,
        &[
            "its home differ from byte",
            "instead of",
            "did not end within",
            "of its",
        ],
    ),
    broken(
        "place-taken-twice",
        Copies(4),
        "one page at a time is filled through a place of the table",
        &[plant(
            DIRECT,
            "atom_cas_acq_rel_gpu(&fill->taken, 0u, 1u) == 0)",
            "atom_cas_acq_rel_gpu(&fill->taken, 0u, 1u) <= 1)",
        )],
        Workload::LargePages,
        &["its home differ from byte", "instead of", "did not end within"],
    ),
    broken(
        "fetched-one-byte-short",
        Copies(5),
        "a READ fetches a region's last page to its exact end",
        &[plant(
            QUEUE,
            "source.stripe, frame), source.bytes});",
            "source.stripe, frame), source.bytes - (source.bytes >> vm->page_shift == 0 && kind == layout::REQUEST_FETCH)});",
        )],
        Workload::Stream,
        NOT_COPIED,
    ),
    broken(
        "written-one-byte-short",
        Copies(5),
        "a WRITE writes a region's last page to its exact end",
        &[plant(
            QUEUE,
            "source.stripe, frame), source.bytes});",
            "source.stripe, frame), source.bytes - (source.bytes >> vm->page_shift == 0 && kind != layout::REQUEST_FETCH)});",
        )],
        Workload::Stream,
        NOT_COPIED,
    ),
    broken(
        "copied-one-byte-short",
        Copies(6),
        "lanes fetch a region's last page to its exact end",
        &[plant(
            FAULT,
            "Source source = miss->source();",
            "Source source = miss->source();\n    if (source.bytes >> vm->page_shift == 0) --source.bytes;",
        )],
        Workload::Direct,
        NOT_COPIED,
    ),
    broken(
        "copied-home-one-byte-short",
        Copies(6),
        "lanes write a region's last page to its exact end",
        &[plant(
            WRITE_BACK,
            "Source source = source_of(vm, id);",
            "Source source = source_of(vm, id);\n    if (source.bytes >> vm->page_shift == 0) --source.bytes;",
        )],
        Workload::Direct,
        NOT_COPIED,
    ),
    broken(
        "copied-home-one-byte-too-far",
        Copies(6),
        "lanes write nothing behind a region's end",
        &[plant(
            WRITE_BACK,
            "Source source = source_of(vm, id);",
            "Source source = source_of(vm, id);\n    if (source.bytes >> vm->page_shift == 0) ++source.bytes;",
        )],
        Workload::Direct,
        &["memory beside the region was written"],
    ),
    broken(
        "follower-without-acquire",
        Copies(7),
        "every lane of a group acquires the page that its leader got",
        &[plant(
            FAULT,
            "if (!leads && outcome == kRoundHeld && state_of(ld_acquire_gpu(",
            "if (!leads && outcome == kRoundHeld && state_of(ld_relaxed_gpu(",
        )],
        Workload::Spans,
        &["elements are wrong"],
    ),
    broken(
        "blank-page-published-clean",
        Copies(8),
        "a page that is not fetched is dirty from its publication on",
        &[plant(
            OVERWRITE,
            "publish_dirty(word, 0, frame, pins);",
            "publish(word, 0, frame, pins);",
        )],
        Workload::Spans,
        NOT_COPIED,
    ),
    broken(
        "blank-page-without-pins",
        Copies(8),
        "a page that is not fetched stays until its group has written it",
        &[plant(
            OVERWRITE,
            "publish_dirty(word, 0, frame, pins);",
            "publish_dirty(word, 0, frame, 0);",
        )],
        Workload::Spans,
        &["pins"],
    ),
    broken(
        "overwritten-from-its-middle-on",
        Copies(9),
        "a page whose first elements are not overwritten is fetched",
        &[plant(
            OVERWRITE,
            "if (place.offset || index >= array.length) return false;",
            "if (index >= array.length) return false;",
        )],
        Workload::Spans,
        &["its home", "instead of"],
    ),
    broken(
        "overwritten-but-for-its-end",
        Copies(9),
        "a page whose last elements are not overwritten is fetched",
        &[plant(
            OVERWRITE,
            "return (count < left ? count : left) * sizeof(T) >= page_length(",
            "return left * sizeof(T) >= page_length(",
        )],
        Workload::Spans,
        &["its home", "instead of"],
    ),
    broken(
        "overwritten-where-it-was-clean",
        Copies(8),
        "a page that is there already is dirty before it is overwritten",
        &[plant(
            OVERWRITE,
            "            if (status == kHeld) mark_dirty(word, 0);\n",
            "",
        )],
        Workload::Spans,
        NOT_COPIED,
    ),
    broken(
        "overwriters-come-apart",
        Copies(10),
        "lanes that overwrite a page together come to it together",
        &[plant(
            ACCESS,
            "u32 group = __match_any_sync(together, whole ?",
            "u32 group = __match_any_sync(__activemask(), whole ?",
        )],
        Workload::Spans,
        &["instead of"],
    ),
];
