//! Rules of pages that are looked up.

use super::{BESIDE, BRING, LOOK_UP, LOOKED_UP};

planted! {
    "hold-without-a-pin", LookUps(1), LookedUp, UNBALANCED, "a page of a held region that has a frame gets a pin":
        LOOK_UP "if (pins_held(add_pins(word, 1)))" => "if (is_resident(ld_relaxed_gpu(word)))";
    "held-by-nobody", LookUps(1), LookedUp, LEFT, "a held page stays in its frame when frames are changed beside a launch":
        LOOK_UP "if (pins_held(add_pins(word, 1)))" => "if (is_resident(ld_relaxed_gpu(word)))",
        BRING "publish(word, 0, frame, 1);" => "publish(word, 0, frame, 0);",
        LOOK_UP "if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);" => "if (pins_of(ld_relaxed_gpu(word))) unpin(word, 1);";
    "pin-given-back-beside-launches", LookUps(1), LookedUp, LEFT, "a pin stays until the launches that look the page up have ended":
        LOOK_UP "if (!beside) *mark = 0;" => "if (!beside)\n        *mark = 0;\n    else if (pins_of(seen))\n        unpin(word, 1);",
        LOOK_UP "if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);" => "if (pins_of(ld_relaxed_gpu(word))) unpin(word, 1);";
    "pins-on-a-page-at-home", LookUps(1), LookedUp, UNBALANCED, "only a page with a frame is pinned":
        LOOK_UP "    if (!is_resident(ld_relaxed_gpu(word))) return;\n    if (pins_held" => "    if (pins_held",
        LOOK_UP "        undo_pins(word, 1);\n" => "        (void)0;\n";
    "pin-taken-from-a-page-at-home", LookUps(1), LookedUp, UNBALANCED, "only who has a pin gives one back":
        LOOK_UP "if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);" => "unpin(word, 1);";
    "let-go-and-pinned", LookUps(2), LookedUp, &["another warp did not end", "no frame for page", "pins", "did not end within"],
    "a region's pins are gone before a launch fetches":
        LOOK_UP "if (is_resident(ld_relaxed_gpu(word))) unpin(word, 1);" => "(void)word;";
    "brought-without-a-pin", LookUps(3), LookedUp, UNBALANCED, "a page that is brought has its region's pin":
        BRING "publish(word, 0, frame, 1);" => "publish(word, 0, frame, 0);";
    "brought-before-its-bytes", LookUps(3), LookedUp, BYTES, "a page that is brought is published when its frame has its bytes":
        BRING "    copy_by_warp(frame_address(vm, region, frame), from, bytes);\n    if (lane_id() == 0) {\n        if (kVictims && had) {\n            \
                give_slot(victims_of(region), had - 1);\n            count(&counters(vm)->victims_fetched, 1);\n        }\n        *mark = 0;\n        \
                came(vm, word, id, frame, bytes);\n    }\n"
            => "    if (lane_id() == 0) {\n        *mark = 0;\n        if (had) give_slot(victims_of(region), had - 1);\n        \
                came(vm, word, id, frame, 0);\n    }\n    copy_by_warp(frame_address(vm, region, frame), from, bytes);\n";
    "brought-before-its-warp-meets", LookUps(3), LookedUp, BYTES, "all lanes of a warp have copied before the page is published":
        BRING "    // All lanes' copies come before the leader's release.\n    __syncwarp();\n" => "";
    "brought-in-whole-pieces", LookUps(3), LookedUp, BYTES, "a short page comes with its last bytes":
        BRING "at < bytes; at += 32)" => "at + sizeof(pair64) <= bytes; at += 32)";
    "brought-into-a-frame-in-use", LookUps(3), LookedUp, &["was published in frame", "differ", "the host:", "what lanes", "did not end within"],
    "a page comes to a frame that is free":
        BRING "if (comes && frame == kNoFrame && !pool_pop(&vm->pool, &frame)) {"
            => "if (comes && is_resident(ld_relaxed_gpu(reinterpret_cast<u64*>(region->words))))\n            \
                frame = frame_of(ld_relaxed_gpu(reinterpret_cast<u64*>(region->words)));\n        \
                if (comes && frame == kNoFrame && !pool_pop(&vm->pool, &frame)) {";
    "brought-without-its-entry", LookUps(3), LookedUp, &["whose entry in the table of frames"], "the table of frames says which page is in a frame":
        BRING "    st_relaxed_gpu(page_in_frame(vm, frame), id);\n    publish(word, 0, frame, 1);" => "    publish(word, 0, frame, 1);";
    "one-frame-kept-free", LookUps(3), LookedUp, CAME, "as many pages come as frames are free":
        BRING "frame == kNoFrame && !pool_pop(&vm->pool, &frame)) {"
            => "frame == kNoFrame && (static_cast<i64>(ld_relaxed_gpu(&pool_of(vm)->available)) <= 1 || !pool_pop(&vm->pool, &frame))) {";
    "all-there-though-some-are-not", LookUps(3), LookedUp, SOME_AT_HOME, "a region is asked again for pages as long as some have no frame":
        BRING "        if (!is_resident(seen)) became = kUnused;\n" => "";
    "read-at-home-and-not-marked", LookUps(3), LookedUp, CAME, "who uses a page at its home marks it":
        LOOK_UP "marks_home(array, place)) *mark_at" => "false) *mark_at";
    "at-home-and-not-said", LookUps(3), LookedUp, CAME, "the place of a page without a frame says so":
        BRING "(in_frame ? 0 : kAtHome)" => "0";
    "asked-for-but-for-the-last", LookUps(3), LookedUp, CAME, "a kernel may ask for pages to the last one":
        LOOK_UP "page <= last; ++page)" => "page < last; ++page)";
    "not-folded", LookUps(4), LookedUp, LOST, "what was marked as written is dirty before a page may leave":
        LOOK_UP "    mark_dirty(word, seen);\n    if (!beside)" => "    if (!beside)";
    "not-folded-beside-launches", LookUps(4), LookedUp, &["after a flush that began when"],
    "a flush beside launches finds what they have marked":
        LOOK_UP "if (!is_resident(seen) || !ld_weak(mark)) return;" => "if (beside || !is_resident(seen) || !ld_weak(mark)) return;";
    "marked-in-the-slot-before", LookUps(4), LookedUp, LOST, "each page has a mark of its own":
        LOOK_UP "marks_home(array, place)) *mark_at(array, page) = 1;"
            => "marks_home(array, place)) *mark_at(array, page ? page - 1 : 0) = 1;";
    "stored-without-a-mark", LookUps(4), LookedUp, LOST, "who may store to a page in its frame marks it":
        LOOK_UP "if (Stores || " => "if (";
    "atomic-that-marks-nothing", LookUps(4), LookedUp, LOST, "an atomic marks its page":
        LOOKED_UP "        return detail::look_up<T, kStores>(desc_, i);\n" => "        return detail::look_up<T, false>(desc_, i);\n";
    "cursor-that-marks-nothing", LookUps(4), LookedUp, LOST, "a cursor's store marks its page":
        LOOKED_UP "*detail::look_up<V, true>(array_, i) = value;" => "*detail::look_up<V, false>(array_, i) = value;";
    "span-that-marks-nothing", LookUps(4), LookedUp, LOST, "a span of an array that is written marks its page":
        LOOKED_UP "return span<T>(detail::look_up<T, kStores>(desc_, i), i," => "return span<T>(detail::look_up<T, false>(desc_, i), i,";
    "marked-before-it-was-held", LookUps(5), LookedUp, READ_ONLY, "a mark from when the page was at home goes when it is held":
        LOOK_UP "        *mark_of(vm, id) = 0;\n    else" => "        (void)vm;\n    else";
    "marked-before-it-was-brought", LookUps(5), LookedUp, READ_ONLY, "a mark from when the page was at home goes when it is brought":
        BRING "        *mark = 0;\n        came(" => "        came(";
    "asked-for-in-its-frame", LookUps(5), LookedUp, READ_ONLY, "who asks for a page does not mark one that is there":
        LOOK_UP "        if (place_at(array, page) & kAtHome) *mark_at" => "        *mark_at";
    "stored-in-any-frame", LookUps(6), LookedUp, LOST, "a store to a page without a frame goes to its home":
        LOOK_UP "    if (!inside) *reinterpret_cast<u64*>(array.past)"
            => "    if (Stores && place & kAtHome) place = place_at(array, array.pages);\n    \
                if (!inside) *reinterpret_cast<u64*>(array.past)";
    "frame-0-taken-for-none", LookUps(6), LookedUp, LOST, "a page with a frame is used there":
        BRING "u64 place = in_frame ? frame_address" => "u64 place = in_frame && frame_of(seen) ? frame_address";
    "written-as-plain-and-not-marked", LookUps(12), LookedUp, LOST, "launches over plain memory may have written all of it":
        LOOK_UP "    *written = 1;\n" => "    (void)written;\n";
    "past-the-end-of-plain-memory-and-stored", LookUps(12), LookedUp, LOST, "a store past the end of plain memory harms nothing":
        LOOK_UP "            return global<T>(array.dummy);" => "            return global<T>(array.places);";
    "another-frame-than-in-order", LookUps(12), LookedUp, LOST, "frames follow each other where it is said so":
        BRING "            if (comes) frame = its;" => "            if (comes) frame = all && page_of(id) < 2 ? its + (page_of(id) ? ~0u : 1u) : its;",
        BRING "is_resident(seen) ? frame_of(seen) : kNoFrame" => "is_resident(seen) ? frame_of(seen) + (page_of(id) < 2 ? (page_of(id) ? 1u : ~0u) : 0u) : kNoFrame";
    "one-past-the-end", LookUps(7), LookedUp, PAST, "an index past the end is none":
        LOOK_UP "bool inside = index < array.length;" => "bool inside = index <= array.length;";
    "past-the-end-and-in-page-0", LookUps(7), LookedUp, LOST, "what lies past the end is no one's":
        LOOK_UP ": array.pages;" => ": 0;";
    "past-the-end-and-silent", LookUps(7), LookedUp, PAST, "an index past the end is told":
        LOOK_UP "    if (!inside) *reinterpret_cast<u64*>(array.past) = index;\n" => "";
    "past-the-end-and-told-twice", LookUps(7), LookedUp, PAST, "an index past the end is told once":
        LOOK_UP "    if (!inside) *reinterpret_cast<u64*>(array.past) = index;\n"
            => "    if (!inside) *reinterpret_cast<u64*>(array.past) = index;\n    \
                if (!inside) report_out_of_range(vm_of(array), array.length, array.region, index, layout::FAULT_OUT_OF_RANGE);\n";
    "came-beside-before-its-bytes", LookUps(15), LookedUp, WRONG, "a page's entry follows its bytes":
        BESIDE "    u64 bytes = copy_from_home(vm, region, start, frame);\n"
            => "    if (lane_id() == 0) {\n        u64 early = frame_address(vm, region, frame);\n        \
                st_release_gpu(reinterpret_cast<u64*>(of.entries) + page, of.window ? early - (of.window + start) : early);\n    }\n    \
                sleep_ns(2000);\n    u64 bytes = copy_from_home(vm, region, start, frame);\n";
    "came-beside-into-a-frame-that-is-not-taken", LookUps(15), LookedUp, TWICE, "a frame that a page has come to is nothing else's":
        BESIDE "        if (atom_and_relaxed_gpu(own + n, ~bit) & bit)" => "        if (ld_relaxed_gpu(own + n) & bit)",
        BESIDE "        return atom_and_relaxed_gpu(own + frame / 64, ~bit) & bit ? frame : kNoFrame;"
            => "        return ld_relaxed_gpu(own + frame / 64) & bit ? frame : kNoFrame;";
    "late-marks-say-written", LookUps(15), LookedUp, &["pages were written back that were only read", "a dirty page was evicted"], "what readers mark late is no page that was written":
        LOOK_UP "    if (folds) return fold_mark(vm, id, false);" => "    return fold_mark(vm, id, false);";
    "marks-gone-before-readers", LookUps(15), LookedUp, LOST, "what was written is dirty before pages come beside readers":
        LOOK_UP "    if (folds) return fold_mark(vm, id, false);" => "    (void)folds;";
    "seen-and-not-marked-again", LookUps(15), LookedUp, CAME, "pages that were seen used and have not come are to come later":
        BESIDE "            st_relaxed_gpu(reinterpret_cast<u8*>(of.marks) + segment * kSegment + n, u8{1});" => "            (void)n;";
    "slot-named-before-its-bytes", LookUps(16), LookedUp, OLD_SLOT, "a page is at a neighbour once its bytes are there":
        BRING "    copy_by_warp(to, region->home + start, bytes_from(vm, region, start));\n    if (lane_id() != 0) return;\n    \
                end_copy(victims, slot - 1);\n    revert_claim_to(word_of(vm, id), slot);\n"
            => "    if (lane_id() == 0) revert_claim_to(word_of(vm, id), slot);\n    copy_by_warp(to, region->home + start, bytes_from(vm, region, start));\n    \
                if (lane_id() != 0) return;\n    end_copy(victims, slot - 1);\n";
    "slot-of-two-pages", LookUps(16), LookedUp, TWO_OWNERS, "a slot that a page has come to is nothing else's":
        BRING "    if (begin_copy(victims, slot)) return slot + 1;\n"
            => "    if (begin_copy(victims, slot)) {\n        pool_give(&victims->free, slot);\n        return slot + 1;\n    }\n";
    "slot-left-and-named", LookUps(16), LookedUp, TWO_OWNERS, "no entry names memory that was given back":
        BRING "    give_slot(victims_of(region), slot - 1);\n    revert_claim(word);\n"
            => "    give_slot(victims_of(region), slot - 1);\n    revert_claim_to(word, slot);\n";
    "slot-left-to-nobody", LookUps(16), LookedUp, SLOT_LOST, "a page that leaves its slot gives it back":
        BRING "    give_slot(victims_of(region), slot - 1);\n    revert_claim(word);\n" => "    revert_claim(word);\n";
    "slot-kept-though-its-home-changes", LookUps(16), LookedUp, OLD_SLOT, "no page is at a neighbour when its home changes, or when launches fetch":
        BRING "    if (!slot || (unlent && is_lent(victims_of(region), slot - 1)) || !try_claim(word, seen)) return;\n"
            => "    if (!slot || region->pages || !try_claim(word, seen)) return;\n";
    "slot-kept-beside-a-frame", LookUps(16), LookedUp, SLOT_LOST, "a page that comes to a frame gives its slot back":
        BRING "            give_slot(victims_of(region), had - 1);\n            count(" => "            count(";
    "on-its-way-and-counted", LookUps(17), Resident, NO_PLACE, "a page that is on its way has no frame yet":
        LOOK_UP "bool has_come(u64 word) { return is_resident(word); }" => "bool has_come(u64 word) { return state_of(word) != kAbsent; }";
}

/// How a frame shows that two pages come to.
const TWICE: &[&str] = &[
    "was published in frame",
    "differ",
    "the host:",
    "what lanes",
    "did not end within",
    "frames",
    "without a claim",
    "pins",
    "state",
];
/// How a slot at a neighbour shows that two have.
const TWO_OWNERS: &[&str] = &[
    "which is free",
    "became free while",
    "became free twice",
    "where page",
    "differ",
    "what lanes",
];
/// How a slot shows that nothing has.
const SLOT_LOST: &[&str] = &["was not given back", "is not free at the end"];
/// How a slot shows that does not hold what the page's home does.
const OLD_SLOT: &[&str] = &[
    "differ",
    "what lanes",
    "the host:",
    "instead of",
    "was not given back",
    "is not free at the end",
];
/// How bytes show that are not the page's.
const WRONG: &[&str] = &["what lanes", "differ"];

/// How a pin too many or too few shows.
const UNBALANCED: &[&str] = &[
    "pins",
    "without a pin",
    "did not end within",
    "is resident",
    "while it is used in place",
];
/// How a page shows that leaves its frame under a launch.
const LEFT: &[&str] = &[
    "without a pin",
    "differ",
    "what lanes",
    "the host:",
    "at its home",
    "pins",
    "after a flush that began",
    "salvaged",
];
/// How a frame shows that lacks bytes of its page.
const BYTES: &[&str] = &["was published clean, but"];
/// How it shows that fewer pages come than could.
const CAME: &[&str] = &["pages have come instead of"];
/// How it shows that launches take pages to be in frames that are at home: odd addresses, besides.
const SOME_AT_HOME: &[&str] = &["pages have come instead of", "what lanes", "the host:"];
/// How a store shows that is never written back, or is made elsewhere.
const LOST: &[&str] = &[
    "differ",
    "what lanes",
    "the host:",
    "at its home",
    "after a flush that began",
    "salvaged",
    "instead of",
];
/// How a page shows that is written back although nothing has written it.
const READ_ONLY: &[&str] = &["pages were written back that were only read"];
/// How an index past the end shows.
const PAST: &[&str] = &["an access past the end"];
/// How a launch shows that looks up a page which has no place: it ends, or what it uses is another page's.
const NO_PLACE: &[&str] = &[
    "kernel `use_pages`, in flight over the same Vm, was aborted",
    "invalid memory access",
    "out of balance",
    "differ",
];
