//! Rules of slot caches: of records that stay, of those that come, of what is left of a call.

use super::SLOTS;

planted! {
    "evicted-within-its-call", Slots(1), Slots, WRONG, "a record that a call needs stays in its slot":
        SLOTS "bool stays = used[n] == keeps || held[n];" => "bool stays = held[n];";
    "held-and-evicted", Slots(1), Slots, WRONG, "a record that is held stays in its slot":
        SLOTS "bool stays = used[n] == keeps || held[n];" => "bool stays = used[n] == keeps;";
    "hit-that-marks-nothing", Slots(1), Slots, WRONG, "an id that finds its record marks the slot as used":
        SLOTS "        st_relaxed_gpu(used_of(c, entry - 1), keeps);\n        return static_cast<i32>(entry - 1);"
            => "        return static_cast<i32>(entry - 1);";
    "surveyed-before-all-have-claimed", Slots(1), Slots, WRONG, "slots leave when all ids of the call have marked theirs":
        SLOTS "    u32 missed = claim(c, counts, nullptr, call, team);\n    __syncthreads();\n    if (!counts->misses) return;\n    survey(c, histogram, call, team);\n"
            => "    survey(c, histogram, call, team);\n    u32 missed = claim(c, counts, nullptr, call, team);\n    __syncthreads();\n    if (!counts->misses) return;\n";
    "ahead-of-nobody", Slots(1), Slots, WRONG, "a call ahead leaves the records of the last call that needed some":
        SLOTS "return ld_relaxed_gpu(&state_of(c)->epoch) - call.ahead;" => "return ld_relaxed_gpu(&state_of(c)->epoch);";
    "call-number-of-32-bits", Slots(2), Slots, WRONG, "the number of a call never comes again":
        SLOTS "        st_relaxed_gpu(used_of(c, entry - 1), keeps);\n        return static_cast<i32>(entry - 1);"
            => "        st_relaxed_gpu(used_of(c, entry - 1), u64{static_cast<u32>(keeps)});\n        return static_cast<i32>(entry - 1);";
    "duplicates-take-two-slots", Slots(3), Slots, WRONG, "one of all ids of a record has it fetched":
        SLOTS "        *first = atom_cas_relaxed_gpu(index_of(c, id), u32{layout::SLOT_NONE}, u32{layout::SLOT_CLAIMING}) ==\n                 layout::SLOT_NONE;"
            => "        *first = ld_relaxed_gpu(index_of(c, id)) == layout::SLOT_NONE;";
    "old-record-found-still", Slots(3), Slots, WRONG, "nothing finds a record in the slot that it has left":
        SLOTS "    if (old) st_relaxed_gpu(index_of(c, old - 1), u32{layout::SLOT_NONE});\n" => "    (void)old;\n";
    "published-before-its-bytes", Slots(4), Slots, WRONG, "a miss is entered in the index when its bytes are in the slot":
        SLOTS "            copy_piece(table, record, slot, at - number * table.pieces, own);\n            __syncwarp(group);\n            if (own == 0) publish(c, miss);"
            => "            if (own == 0) publish(c, miss);\n            __syncwarp(group);\n            copy_piece(table, record, slot, at - number * table.pieces, own);";
    "published-before-its-group-meets", Slots(4), Slots, WRONG, "a miss is entered in the index when all lanes of the group have stored":
        SLOTS "            __syncwarp(group);\n            if (own == 0) publish" => "            if (own == 0) publish";
    "published-by-its-first-part", Slots(4), Slots, WRONG, "a miss is entered in the index when all of its parts are there":
        SLOTS "if (atom_add_relaxed_gpu(&miss->pieces_left, ~0u) != 1) return;" => "if (atom_add_relaxed_gpu(&miss->pieces_left, ~0u) != c.pieces) return;";
    "replays-an-old-address", Slots(5), Slots, WRONG, "each call copies to the slots that it chose":
        SLOTS "    miss->slot = slot;\n" => "    if (!miss->slot) miss->slot = slot;\n";
    "parts-of-the-last-call", Slots(5), Slots, WRONG, "each call counts the parts of its own misses":
        SLOTS "    miss->pieces_left = c.pieces;\n" => "    if (!miss->pieces_left) miss->pieces_left = c.pieces - 1;\n";
    "misses-of-the-last-call", Slots(5), Slots, WRONG, "nothing is left of a call's misses for the next one":
        SLOTS "    counts.misses = counts.served = counts.threshold" => "    counts.threshold";
    "held-and-not-fetched-anew", Slots(5), Slots, WRONG, "what is stored to a table is seen in slots that are held, too":
        SLOTS "            *miss_of(c, number) = layout::SlotMiss{record - 1, slot, c.pieces, 0};\n" => "            (void)number;\n";
    "claimed-for-ever", Slots(6), Slots, WRONG, "a record that got no slot is as it was":
        SLOTS "    st_relaxed_gpu(index_of(c, record), u32{layout::SLOT_NONE});\n    return kPadding;" => "    return kPadding;";
    "too-many-and-not-told", Slots(6), Slots, WRONG, "a call that has more records than slots tells it":
        SLOTS "    if (counts.misses > served && !call.ahead) tell(c, kTooManyRecords, counts.misses - served);\n" => "";
}

/// How it shows that a slot does not have what it should, or is not what it should be.
const WRONG: &[&str] = &[
    "of table",
    "has another one",
    "share slots",
    "got no slot",
    "looks beside a call",
    "no such slot",
    "whose entry is",
    "counts that cannot be",
    "ran concurrently",
    "did not end within",
];
