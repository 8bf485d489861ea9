//! Rules of copies: large pages that all lanes fill that wait for them, groups of lanes of which one fetches, and the exact ends of regions.

use super::{ACCESS, DIRECT, FAULT, OVERWRITE, QUEUE, WRITE_BACK};

/// How what a frame or a home has not got shows: to the watcher, or to the thread that reads it.
const NOT_COPIED: &[&str] = &["its home differ from byte", "instead of", "of its"];

planted! {
    "chunk-counted-before-its-bytes", Copies(1), LargePages, NOT_COPIED, "a chunk's bytes come before it is counted as done":
        DIRECT "atom_add_release_gpu(&fill->done, 1u);" => "atom_add_relaxed_gpu(&fill->done, 1u);";
    "published-before-the-last-chunk", Copies(1), LargePages, NOT_COPIED,
    "a large page is published when all its chunks are done, not when all are taken":
        DIRECT "while (ld_acquire_gpu(&fill->done) != chunks) sleep_ns(100);" => "while (ld_acquire_gpu(&fill->done) + 1 < chunks) sleep_ns(100);";
    "opened-before-its-fields", Copies(2), LargePages, NOT_COPIED, "the thread that reads the open head reads the fields of that page":
        DIRECT "st_release_gpu(&fill->head, generation | (layout::FILL_END - chunks));"
            => "st_relaxed_gpu(&fill->head, generation | (layout::FILL_END - chunks));";
    "done-of-the-page-before", Copies(2), LargePages, &["its home differ from byte", "instead of", "did not end within"],
    "the count of chunks done begins anew with each page":
        DIRECT "    st_relaxed_gpu(&fill->done, 0u);\n" => "";
    "ticket-past-the-last-chunk", Copies(3), LargePages, NOT_COPIED, "a ticket above the number of chunks is for nothing":
        DIRECT "    if (ticket >= layout::FILL_END) return false;\n" => "    if (ticket > layout::FILL_END) return false;\n";
    "last-chunk-not-counted", Copies(3), LargePages, NOT_COPIED, "a page's last chunk is copied though it is shorter than the others":
        DIRECT "(bytes + layout::FILL_CHUNK_BYTES - 1) / layout::FILL_CHUNK_BYTES" => "bytes / layout::FILL_CHUNK_BYTES";
    "last-chunk-one-byte-short", Copies(3), LargePages, NOT_COPIED, "a page's last chunk is copied to the page's exact end":
        DIRECT "left < layout::FILL_CHUNK_BYTES ? left : layout::FILL_CHUNK_BYTES"
            => "left < layout::FILL_CHUNK_BYTES ? left - 1 : layout::FILL_CHUNK_BYTES";
    "place-given-up-too-early", Copies(4), LargePages, &["its home differ from byte", "instead of", "did not end within", "of its"],
    "a place of the table is another page's only when its chunks are done":
        DIRECT "    st_release_gpu(&fill->taken, 0u);\n" => "",
        DIRECT "    // Acquire: all chunks come before the page's publication."
            => "    st_release_gpu(&fill->taken, 0u);\n    // Acquire: all chunks come before the page's publication.";
    "place-taken-twice", Copies(4), LargePages, &["its home differ from byte", "instead of", "did not end within"],
    "one page at a time is filled through a place of the table":
        DIRECT "atom_cas_acq_rel_gpu(&fill->taken, 0u, 1u) == 0)" => "atom_cas_acq_rel_gpu(&fill->taken, 0u, 1u) <= 1)";
    "fetched-one-byte-short", Copies(5), Stream, NOT_COPIED, "a READ fetches a region's last page to its exact end":
        QUEUE "source.stripe, frame), source.bytes});"
            => "source.stripe, frame), source.bytes - (source.bytes >> vm->page_shift == 0 && kind == layout::REQUEST_FETCH)});";
    "written-one-byte-short", Copies(5), Stream, NOT_COPIED, "a WRITE writes a region's last page to its exact end":
        QUEUE "source.stripe, frame), source.bytes});"
            => "source.stripe, frame), source.bytes - (source.bytes >> vm->page_shift == 0 && kind != layout::REQUEST_FETCH)});";
    "copied-one-byte-short", Copies(6), Direct, NOT_COPIED, "lanes fetch a region's last page to its exact end":
        FAULT "Source source = miss->source();" => "Source source = miss->source();\n    if (source.bytes >> vm->page_shift == 0) --source.bytes;";
    "copied-home-one-byte-short", Copies(6), Direct, NOT_COPIED, "lanes write a region's last page to its exact end":
        WRITE_BACK "Source source = source_of(vm, id);"
            => "Source source = source_of(vm, id);\n    if (source.bytes >> vm->page_shift == 0) --source.bytes;";
    "copied-home-one-byte-too-far", Copies(6), Direct, &["memory beside the region was written"],
    "lanes write nothing behind a region's end":
        WRITE_BACK "Source source = source_of(vm, id);"
            => "Source source = source_of(vm, id);\n    if (source.bytes >> vm->page_shift == 0) ++source.bytes;";
    "follower-without-acquire", Copies(7), Spans, &["elements are wrong"], "every lane of a group acquires the page that its leader got":
        FAULT "if (!leads && outcome == kRoundHeld && state_of(ld_acquire_gpu("
            => "if (!leads && outcome == kRoundHeld && state_of(ld_relaxed_gpu(";
    "blank-page-published-clean", Copies(8), Spans, NOT_COPIED, "a page that is not fetched is dirty from its publication on":
        OVERWRITE "publish_dirty(word, 0, frame, pins);" => "publish(word, 0, frame, pins);";
    "blank-page-without-pins", Copies(8), Spans, &["pins"], "a page that is not fetched stays until its group has written it":
        OVERWRITE "publish_dirty(word, 0, frame, pins);" => "publish_dirty(word, 0, frame, 0);";
    "overwritten-from-its-middle-on", Copies(9), Spans, &["its home", "instead of"],
    "a page whose first elements are not overwritten is fetched":
        OVERWRITE "if (place.offset || index >= array.length) return false;" => "if (index >= array.length) return false;";
    "overwritten-but-for-its-end", Copies(9), Spans, &["its home", "instead of"],
    "a page whose last elements are not overwritten is fetched":
        OVERWRITE "return (count < left ? count : left) * sizeof(T) >= page_length(" => "return left * sizeof(T) >= page_length(";
    "overwritten-where-it-was-clean", Copies(8), Spans, NOT_COPIED, "a page that is there already is dirty before it is overwritten":
        OVERWRITE "            if (status == kHeld) mark_dirty(word, 0);\n" => "";
    "overwriters-come-apart", Copies(10), Spans, &["instead of"], "lanes that overwrite a page together come to it together":
        ACCESS "u32 group = __match_any_sync(together, whole ?" => "u32 group = __match_any_sync(__activemask(), whole ?";
    "overwriter-keeps-its-frame", Copies(11), Spans, &["are free at the end", "is not in the pool", "no frame for page", "did not end"],
    "who has a frame for a page that others have brought meanwhile gives it back":
        OVERWRITE "            if (frame != kNoFrame) give_frame_back(miss, frame);\n" => "";
}
