//! Rules of arrays of which each GPU holds a copy: of stores, of what is done at a page's owner and forwarded, and of the queue that merges stores.

use super::{BROADCAST, COPIES, MERGE_QUEUE};

planted! {
    "store-forgets-a-subscriber", Broadcast(1), Broadcast, COPIES_DIFFER, "a store goes to the copies of all subscribers":
        COPIES "    for (; others; others &= others - 1) *reinterpret_cast<T*>(in_view"
            => "    for (others &= others - 1; others; others &= others - 1) *reinterpret_cast<T*>(in_view";
    "store-asks-of-another-part", Broadcast(1), Broadcast, COPIES_DIFFER,
    "a store goes to the copies of all subscribers, of whose pages it asks first whether others hold any":
        COPIES "return b.held_parts >> (byte >> b.part_shift) & 1;" => "return b.held_parts >> (byte >> b.part_shift) + 1 & 1;";
    "store-leaves-the-own-copy", Broadcast(1), Broadcast, COPIES_DIFFER, "a store goes to the own copy as well, at once":
        COPIES "    *reinterpret_cast<T*>(b.own + byte) = value;\n" => "";
    "atomic-at-the-own-copy", Broadcast(2), Broadcast, NO_ORDER, "atomics are done at the owner's copy":
        BROADCAST "return reinterpret_cast<T*>(detail::at_owner(this->desc_, byte));" => "return reinterpret_cast<T*>(this->desc_.own + byte);";
    "system-store-at-the-own-copy", Broadcast(2), Broadcast, NO_ORDER, "stores of system scope are done at the owner's copy":
        BROADCAST "reinterpret_cast<B*>(detail::at_owner(this->desc_, byte))" => "reinterpret_cast<B*>(this->desc_.own + byte)";
    "system-load-of-the-own-copy", Broadcast(2), Broadcast, NO_ORDER, "loads of system scope ask the owner's copy":
        BROADCAST "reinterpret_cast<const B*>(detail::at_owner(desc_, i * sizeof(T)))" => "reinterpret_cast<const B*>(desc_.own + i * sizeof(T))";
    "atomic-without-its-mark", Broadcast(3), Broadcast, COPIES_DIFFER, "an atomic marks the line that it changes at the owner alone":
        BROADCAST "        detail::mark_line(this->desc_, byte);\n        return" => "        return";
    "system-store-without-its-mark", Broadcast(3), Broadcast, COPIES_DIFFER,
    "a store of system scope marks the line that it changes at the owner alone":
        BROADCAST "        detail::mark_line(this->desc_, byte);\n        detail::st_relaxed_sys(" => "        detail::st_relaxed_sys(";
    "host-not-told-of-marks", Broadcast(3), Broadcast, COPIES_DIFFER, "who marks a line tells the host that there are marks":
        COPIES "    if (!ld_weak(marked)) st_relaxed_sys(marked, 1u);\n" => "    (void)marked;\n";
    "own-copy-forwarded", Broadcast(4), Broadcast, COPIES_DIFFER, "what is forwarded is the owner's copy, which has what all GPUs have changed":
        COPIES "reinterpret_cast<const u64*>(in_view(b, owner, byte))" => "reinterpret_cast<const u64*>(b.own + byte)";
    "own-copy-not-passed-to", Broadcast(5), Broadcast, COPIES_DIFFER,
    "a line is forwarded to all copies but the owner's, also to that of the GPU that forwards it":
        COPIES "    if (owner != b.view) to = (to & ~(1u << owner)) | 1u << b.view;\n" => "";
    "half-a-line-forwarded", Broadcast(5), Broadcast, COPIES_DIFFER, "a line is forwarded whole":
        COPIES "(lane & 15) * 8);" => "(lane & 7) * 8);";
    "marks-of-one-lane-forwarded", Broadcast(5), Broadcast, COPIES_DIFFER, "a warp forwards what all its lanes have found marked":
        COPIES "for (u32 with = __ballot_sync(~0u, marks != 0); with; with &= with - 1) {"
            => "for (u32 with = __ballot_sync(~0u, marks != 0); with; with = 0) {";
    "replaced-line-not-sent", Broadcast(6), Broadcast, COPIES_DIFFER,
    "a line leaves the queue for all other copies before another takes its place":
        MERGE_QUEUE "            if (queue_.line[at]) send(at, own, __popc(group));\n" => "            (void)own;\n";
    "words-of-the-line-before", Broadcast(6), Broadcast, COPIES_DIFFER,
    "a line that comes to a place of the queue has none of the words that waited there":
        MERGE_QUEUE "queue_.line[at] = line + 1, queue_.words[at] = 0;" => "queue_.line[at] = line + 1;";
    "half-an-element-waits", Broadcast(6), Broadcast, COPIES_DIFFER, "all words of an element wait in the queue":
        MERGE_QUEUE "((1u << sizeof(T) / 4) - 1) << word" => "1u << word";
    "queue-without-its-lock", Broadcast(7), Broadcast, UNLOCKED, "lanes with one line at a time use a place of the queue":
        MERGE_QUEUE "while (atomicExch_block(&queue_.busy[at], 1u)) __nanosleep(20);" => "atomicExch_block(&queue_.busy[at], 1u);";
    "unlocked-before-its-words", Broadcast(7), Broadcast, UNLOCKED, "a place of the queue is free for others when the words are in":
        MERGE_QUEUE "        detail::copy_bytes(&queue_.data[at][word], &value, sizeof(T));\n"
            => "        if (detail::lane_id() == leader) atomicExch_block(&queue_.busy[at], 0u);\n        \
                detail::copy_bytes(&queue_.data[at][word], &value, sizeof(T));\n",
        MERGE_QUEUE "        detail::fence_acq_rel_cta();\n        if (detail::lane_id() == leader) atomicExch_block(&queue_.busy[at], 0u);\n"
            => "";
    "flushed-before-all-have-stored", Broadcast(8), Broadcast, COPIES_DIFFER, "a flush begins when all lanes of the block have stored":
        MERGE_QUEUE "        __syncthreads();\n        // 8 lanes a line" => "        // 8 lanes a line";
    "flushed-by-fewer-than-eight", Broadcast(8), Broadcast, COPIES_DIFFER, "a flush sends whole lines, however many lanes the block has":
        MERGE_QUEUE "groups = block() / lanes;\n        if (rank() < groups * lanes)\n" => "groups = (block() + lanes - 1) / lanes;\n";
    "emptied-before-it-is-sent", Broadcast(8), Broadcast, COPIES_DIFFER, "a flush empties the queue when everything has been sent":
        MERGE_QUEUE "        __syncthreads();\n        for (u32 n = rank(); n < Lines; n += block()) queue_.words[n] = 0, queue_.line[n] = 0;\n"
            => "        for (u32 n = rank(); n < Lines; n += block()) queue_.words[n] = 0, queue_.line[n] = 0;\n";
}

/// How copies show that are not equal, in the launch, behind it, or in the next.
const COPIES_DIFFER: &[&str] = &[
    "the copy of view",
    "what lanes read",
    "the host:",
    "at its home",
    "for who had heard of",
    "neither has seen",
];
/// How two places show where all should use one.
const NO_ORDER: &[&str] = &[
    "no order of its operations",
    "the copy of view",
    "what lanes read",
    "the host:",
    "for who had heard of",
    "neither has seen",
    "did not end within",
];
/// How lanes show that use a place of the queue at once: words are lost, or some wait for each other.
const UNLOCKED: &[&str] = &["the copy of view", "what lanes read", "the host:", "deadlock in kernel"];
