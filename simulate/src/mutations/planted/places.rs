//! Rules of pages that are read where they live, and of the rules that compete about them.

use super::{CLOCK, DUEL, FAULT, IN_PLACE, WORD, WRITE_BACK};

planted! {
    "claim-keeps-the-count", Places(1), InPlace, &["left the count of reads"],
    "a claim forgets the count of reads, whose bits take the fetch's token":
        WORD "return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;"
            => "return atom_cas_acquire_gpu(word, seen, (seen & ~layout::STATE_MASK) | kFetching) == seen;";
    "count-stored-over-a-claim", Places(2), LinearInPlace,
    &["without a claim", "left the count of reads", "left its token", "a dirty page was evicted"],
    "a count of reads is noted on the very word that was absent":
        DUEL "return atom_cas_relaxed_gpu(word, seen, next) == seen;" => "st_relaxed_gpu(word, next);\n    return true;";
    "frame-of-a-sample-given-twice", Places(3), InPlace, &["home differ from byte", "which the pool has", "was published in frame"],
    "the frame of a displaced page goes to the waiting lane or to the pool, not to both":
        CLOCK "            *direct = frame_of(seen);\n        else\n            pool_give(&vm->pool, frame_of(seen));"
            => "            *direct = frame_of(seen);\n        pool_give(&vm->pool, frame_of(seen));";
    "sample-displaced-while-it-comes", Places(4), InPlace, &["the end of a fetch changed"], "a page that is on its way is not displaced":
        CLOCK "if (!is_resident(seen) || try_evict_page(" => "if (state_of(seen) == kAbsent || try_evict_page(";
    "no-second-look-in-place", Places(5), Rising, NOT_RISEN, "after a read at a home that changes, the page's entry is looked at again":
        IN_PLACE "return has_no_frame(second) && !((first ^ second) & layout::VERSION_MASK);" => "return has_no_frame(first);";
    "count-taken-for-a-version", Places(6), InPlace, &["a page without a frame changed its frame or version"],
    "the count of reads keeps to its bits, and leaves the version alone":
        DUEL "| field << layout::FRAME_SHIFT;" => "| field << layout::VERSION_SHIFT;";
    "resident-page-taken-for-one-at-home", Places(7), Rising, NOT_RISEN,
    "the second look finds the page at home still: one with a frame may be on its way there":
        IN_PLACE "return has_no_frame(second) && !((first ^ second)" => "return !((first ^ second)";
    "home-that-changes-read-as-one-that-does-not", Places(8), Rising, NOT_RISEN,
    "a home that write-backs change is read by strong loads, between two looks":
        IN_PLACE "if (array.region & layout::ARRAY_HOME_CHANGES)" => "if (!array.region)";
    "evicted-before-its-bytes-are-home", Places(9), LinearInPlace, &["its home differ from byte"],
    "the write-back mark goes when the home holds the page's bytes":
        WRITE_BACK "    copy_to_home(source.home, frame_address(vm, region_of(vm, id), frame), source.bytes);"
            => "    write_back_done(word);\n    copy_to_home(source.home, frame_address(vm, region_of(vm, id), frame), source.bytes);";
    "claim-over-a-page-in-use-in-place", Places(10), StoresInPlace, &["claimed while it is used in place"],
    "a page is not claimed while lanes store at its home":
        FAULT "if (!kDirect || !pins_of(seen)) return kWon;" => "return kWon;";
    "store-in-place-beside-a-dirty-frame", Places(11), StoresInPlace, &["no order of its operations", "its home differ from byte"],
    "who stores at a home looks whether the page that it pinned has no frame":
        WORD "return state_of(old) == kAbsent && !(old & layout::REFERENCED_BIT)" => "return !(old & layout::REFERENCED_BIT)";
    // A fetch takes what it can before the claim, as on a GPU.
    "copied-before-the-claim-past-stores-in-place", Places(12), StoresInPlace, &["no order of its operations", "its home differ from byte"],
    "a page that is stored in place is claimed before it is copied, since such a store leaves its word as it was":
        FAULT "layout::FILL_PAGE_BYTES || stores_in_place(miss->array);" => "layout::FILL_PAGE_BYTES;\n    u64 early[32];",
        FAULT "        if (!late) fetch.begin(from, source.bytes);\n"
            => "        if (!late) fetch.begin(from, source.bytes);\n        \
                for (u32 at = 0; !late && at < sizeof(early) && at < source.bytes; at += 8)\n            \
                early[at / 8] = ld_relaxed_sys(reinterpret_cast<const u64*>(from + at));\n",
        FAULT "            fetch.finish(miss->frame_address());\n        if (!was_there"
            => "            fetch.finish(miss->frame_address());\n        \
                for (u32 at = 0; !late && at < sizeof(early) && at < source.bytes; at += 8)\n            \
                st_relaxed_gpu(reinterpret_cast<u64*>(miss->frame_address() + at), early[at / 8]);\n        if (!was_there";
}

/// How a value that was never, or no longer, in a word shows.
const NOT_RISEN: &[&str] = &["was read as"];
