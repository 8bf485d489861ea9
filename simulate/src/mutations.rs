//! Device libraries with one rule broken, to show that the checks see it. Each is a replacement of text in a header, which must be
//! there exactly once, or a setting that the library would not choose.

use gpuvm_gpu::CompileOptions;
use gpuvm_nic::soft::FaultMixError;
use thiserror::Error;

use crate::run::Options;
use crate::workload::Workload;

/// Where the rule that is broken stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The n-th rule of the paging protocol whose breaking the model checker of the protocol found as well.
    Protocol(u32),
    /// The n-th of the defects that were seen in an earlier system of this kind.
    Peers(u32),
    /// The n-th of the rules of pages with two homes or with checksums.
    Guards(u32),
}

/// A replacement of text in one header.
#[derive(Debug, Clone, Copy)]
pub struct Plant {
    /// The header.
    pub header: &'static str,
    /// What is there, exactly once.
    pub from: &'static str,
    /// What takes its place.
    pub to: &'static str,
}

/// A setting in place of, or beside, replacements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// None.
    Usual,
    /// As many frames as spans can be held, undeclared.
    FramesEqualSpans,
    /// A NIC whose READs land after their completions, and no flush of them.
    NoFlushOfReads,
}

/// One broken rule.
#[derive(Debug, Clone, Copy)]
pub struct Mutation {
    /// Its name on a command line.
    pub name: &'static str,
    /// Which rule of which list.
    pub origin: Origin,
    /// What is broken, in words.
    pub rule: &'static str,
    /// The replacements.
    pub plants: &'static [Plant],
    /// The setting.
    pub setting: Setting,
    /// The workload that finds it.
    pub workload: Workload,
    /// Faults that it takes, as on a command line.
    pub faults: &'static str,
    /// A seed that finds it, from a hunt that began at 0.
    pub seed: u64,
    /// How it shows: one of these is part of what is said then. Anything else would be another fault's doing.
    pub seen: &'static [&'static str],
}

/// A mutation that cannot be made.
#[derive(Debug, Error)]
pub enum MutationError {
    /// There is none of that name.
    #[error("there is no mutation `{name}`; --mutation list lists them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The text that it replaces is not where it was.
    #[error(
        "mutation `{name}`: `{from}` is {found} times in {header} instead of once; plant the bug where that code is now"
    )]
    Moved {
        /// The mutation.
        name: &'static str,
        /// The header.
        header: &'static str,
        /// The text.
        from: &'static str,
        /// How often it is there.
        found: usize,
    },
    /// Its faults are none.
    #[error("mutation `{name}`: its faults cannot be read")]
    Faults {
        /// The mutation.
        name: &'static str,
        /// Why.
        source: FaultMixError,
    },
}

const WORD: &str = "gpuvm/detail/page_word.cuh";
const CLOCK: &str = "gpuvm/detail/clock.cuh";
const QUEUE: &str = "gpuvm/detail/queue.cuh";
const ACCESS: &str = "gpuvm/detail/access.cuh";
const FAULT: &str = "gpuvm/detail/fault.cuh";
const FLUSH: &str = "gpuvm/detail/flush.cuh";
const REPLICA: &str = "gpuvm/detail/replica.cuh";
const INTEGRITY: &str = "gpuvm/detail/integrity.cuh";
const SOURCE: &str = "gpuvm/detail/source.cuh";
const MLX5: &str = "gpuvm/detail/mlx5.cuh";

const fn plant(header: &'static str, from: &'static str, to: &'static str) -> Plant {
    Plant { header, from, to }
}

const fn broken(
    name: &'static str,
    origin: Origin,
    rule: &'static str,
    plants: &'static [Plant],
    workload: Workload,
    seed: u64,
    seen: &'static [&'static str],
) -> Mutation {
    Mutation {
        name,
        origin,
        rule,
        plants,
        setting: Setting::Usual,
        workload,
        faults: "",
        seed,
        seen,
    }
}

const fn under(mutation: Mutation, faults: &'static str, setting: Setting) -> Mutation {
    Mutation {
        faults,
        setting,
        ..mutation
    }
}

use Origin::{Guards, Peers, Protocol};

/// All of them.
pub fn all() -> &'static [Mutation] {
    &ALL
}

static ALL: [Mutation; 39] = [
    broken(
        "store-publish",
        Protocol(1),
        "a publication is an addition, never a store: pins of others come and go",
        &[
            plant(
                QUEUE,
                "    if (done.ok) {\n        count_fetched",
                "    u64 kept = ld_relaxed_gpu(word);\n    if (done.ok) {\n        count_fetched",
            ),
            plant(
                QUEUE,
                "publish(word, token, frame, pins);",
                "st_release_gpu(word, kept + (kResident - kFetching) + pins * kPin +\n            \
                 ((static_cast<u64>(frame) - token) << layout::FRAME_SHIFT));",
            ),
        ],
        Workload::Prefetch,
        1157,
        &[
            "changed pins or version of its page",
            "a page without a frame was made dirty",
            "pins are out of balance",
        ],
    ),
    broken(
        "clean-while-pinned",
        Protocol(2),
        "dirty is cleared only while nobody holds the page",
        &[plant(
            CLOCK,
            "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)",
            "(pins_of(seen) && !(seen & layout::DIRTY_BIT)) || (seen & layout::WRITE_BACK_BIT)",
        )],
        Workload::Counters,
        0,
        &["cleaned while it was pinned"],
    ),
    broken(
        "clean-at-completion",
        Protocol(3),
        "dirty goes before the WRITE is posted, not when it completes",
        &[plant(
            WORD,
            "void write_back_done(u64* word) { atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT); }",
            "void write_back_done(u64* word) {\n    \
             atom_and_release_gpu(word, ~(layout::WRITE_BACK_BIT | layout::DIRTY_BIT));\n}",
        )],
        Workload::Counters,
        0,
        &["became clean although no write-back began"],
    ),
    broken(
        "no-write-back-mark",
        Protocol(4),
        "a page whose WRITE is in flight is marked, and stays in its frame",
        &[plant(
            WORD,
            "(seen & ~layout::DIRTY_BIT) | layout::WRITE_BACK_BIT) == seen;",
            "seen & ~layout::DIRTY_BIT) == seen;",
        )],
        Workload::Stream,
        0,
        &["became clean although no write-back began"],
    ),
    broken(
        "no-version",
        Protocol(5),
        "an eviction counts the page's version up",
        &[plant(
            WORD,
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;",
            "word & layout::VERSION_MASK;",
        )],
        Workload::Stream,
        0,
        &["did not count the version up"],
    ),
    broken(
        "version-of-one-bit",
        Protocol(5),
        "the version counts 2,048 evictions, not two",
        &[plant(
            WORD,
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & layout::VERSION_MASK;",
            "((word & layout::VERSION_MASK) + (1ull << layout::VERSION_SHIFT)) & 1ull << layout::VERSION_SHIFT;",
        )],
        Workload::Counters,
        0,
        &["did not count the version up"],
    ),
    broken(
        "evict-without-pins",
        Protocol(6),
        "a page that somebody holds stays in its frame",
        &[plant(
            CLOCK,
            "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)",
            "(seen & layout::WRITE_BACK_BIT)",
        )],
        Workload::Random,
        0,
        &["a pinned page was evicted"],
    ),
    broken(
        "publish-without-pin",
        Protocol(7),
        "a fetched page is published with a pin for those who fetched it",
        &[plant(
            QUEUE,
            "publish(word, token, frame, pins);",
            "publish(word, token, frame, 0);",
        )],
        Workload::Stream,
        0,
        &["pins are out of balance"],
    ),
    broken(
        "no-helpers",
        Protocol(8),
        "whoever needs a request finished can finish it",
        &[plant(
            QUEUE,
            "    if (!done.arrived) return false;\n    // One handler",
            "    if (!done.arrived || !own) return false;\n    // One handler",
        )],
        Workload::Prefetch,
        0,
        &["did not end within"],
    ),
    broken(
        "no-second-look",
        Protocol(9),
        "a reader looks at the page's word again after the data",
        &[plant(ACCESS, "if (difference & kSameStay) return false;", "")],
        Workload::Linear,
        195,
        &["no order of its operations explains"],
    ),
    broken(
        "second-look-before-data",
        Protocol(9),
        "the second look comes after the data, not before",
        &[plant(
            ACCESS,
            "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    \
             // The load above is an acquire: this one comes after it.\n    \
             u64 second = ld_relaxed_gpu(word);\n",
            "    u64 second = ld_relaxed_gpu(word);\n    \
             *value = load_strong<T>(frame_at(array, first) + place.offset);\n",
        )],
        Workload::Linear,
        99,
        &["no order of its operations explains"],
    ),
    broken(
        "weak-load-after-relaxed-word",
        Protocol(10),
        "the first look acquires, and data is loaded strongly: a weak load may hit a line of an earlier stay",
        &[
            plant(
                ACCESS,
                "u64 first = *seen = ld_acquire_gpu(word);",
                "u64 first = *seen = ld_relaxed_gpu(word);",
            ),
            plant(
                ACCESS,
                "    *value = load_strong<T>(frame_at(array, first) + place.offset);\n    // The load above",
                "    *value = load_weak<T>(frame_at(array, first) + place.offset);\n    // The load above",
            ),
        ],
        Workload::Linear,
        75,
        &["no order of its operations explains"],
    ),
    broken(
        "all-frames-before-any-post",
        Protocol(11),
        "a warp takes the frames there are and never waits for one while it holds another",
        &[plant(
            FAULT,
            "    u32 direct = kNoFrame;\n    if (frames == 0) {\n        if (!may_wait) return grant;",
            "    u32 direct = kNoFrame;\n    Wait hold(vm->wait_limit_ns);\n    \
             while (pooled && frames && frames < want && hold.again()) {\n        \
             turn_clock(vm, kClockWindow, 1, nullptr);\n        reap_all(vm, kClockWindow);\n        \
             frames += pool_reserve(vm, want - frames);\n    }\n    \
             if (pooled && frames < want) pool_unreserve(vm, frames), frames = 0;\n    \
             if (frames == 0) {\n        if (!may_wait) return grant;",
        )],
        Workload::Random,
        294,
        &["did not end within"],
    ),
    under(
        broken(
            "failed-write-left-clean",
            Protocol(12),
            "a page whose WRITE failed is dirty again before its mark goes",
            &[plant(
                WORD,
                "    atom_or_relaxed_gpu(word, layout::DIRTY_BIT);\n    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
                "    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
            )],
            Workload::Stream,
            1,
            &["its home differ from byte"],
        ),
        "remote-operation:1/8",
        Setting::Usual,
    ),
    broken(
        "unmarked-hit",
        Protocol(13),
        "a write to a page that it found resident marks it dirty",
        &[plant(
            ACCESS,
            "            mark_dirty(word, old);\n            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));",
            "            use(reinterpret_cast<T*>(frame_at(array, old) + place.offset));",
        )],
        Workload::Counters,
        1,
        &["its home differ from byte"],
    ),
    under(
        broken(
            "frames-equal-spans",
            Protocol(14),
            "one frame more than spans can hold",
            &[],
            Workload::Spans,
            0,
            &["did not end within"],
        ),
        "",
        Setting::FramesEqualSpans,
    ),
    broken(
        "flush-blind-to-write-back",
        Protocol(15),
        "a flush waits for a WRITE in flight, then looks again",
        &[plant(
            FLUSH,
            "        if (seen & layout::WRITE_BACK_BIT) {\n",
            "        if (seen & layout::WRITE_BACK_BIT) return true;\n        if (false) {\n",
        )],
        Workload::Flush,
        863,
        &["after a flush that began when"],
    ),
    broken(
        "pin-result-ignored",
        Protocol(16),
        "a pin is held only if the page was resident",
        &[plant(
            ACCESS,
            "        if (GPUVM_LIKELY(pins_held(old))) {",
            "        if (GPUVM_LIKELY(true)) {",
        )],
        Workload::Counters,
        85,
        &["a page without a frame was made dirty", "pins are out of balance"],
    ),
    broken(
        "doorbell-without-second-look",
        Protocol(17),
        "the ringer looks again after its unlock, so that no hand-over is missed",
        &[plant(
            QUEUE,
            "if (ld_relaxed_gpu(&s->written) == written) return;",
            "return;",
        )],
        Workload::Random,
        24,
        &["did not end within"],
    ),
    broken(
        "doorbell-without-lock",
        Protocol(18),
        "one ringer at a time, so that record and doorbell never step back",
        &[plant(
            QUEUE,
            "if (atom_exch_acq_rel_gpu(&s->ringer, 1u) != 0) return;",
            "atom_exch_acq_rel_gpu(&s->ringer, 1u);",
        )],
        Workload::Random,
        10,
        &["stepped back"],
    ),
    broken(
        "peers-clean-page-written",
        Peers(1),
        "a write to a page that its warp pins after a miss marks it dirty",
        &[plant(
            ACCESS,
            "            if (write) mark_dirty(miss->word(), 0);\n",
            "",
        )],
        Workload::Stream,
        17,
        &["its home differ from byte"],
    ),
    broken(
        "peers-reader-of-dirty-page",
        Peers(2),
        "a reader of a page that is dirty does not wait for it to be clean",
        &[
            plant(
                ACCESS,
                "    if (!is_resident(first)) return false;\n    *value = load_strong",
                "    if (!is_resident(first) || (first & layout::DIRTY_BIT)) return false;\n    *value = load_strong",
            ),
            plant(
                FAULT,
                "    if (is_resident(seen)) {\n        u64 old = add_pins(word, pins);",
                "    if (is_resident(seen) && (seen & layout::DIRTY_BIT)) return kBusy;\n    \
                 if (is_resident(seen)) {\n        u64 old = add_pins(word, pins);",
            ),
        ],
        Workload::Stream,
        0,
        &["did not end within"],
    ),
    under(
        broken(
            "peers-error-is-success",
            Peers(3),
            "a completion with an error is no success",
            &[plant(
                MLX5,
                "    out.ok = opcode == kCompletionRequest;\n    if (!out.ok) read_syndromes(entry, &out);",
                "    out.ok = true;",
            )],
            Workload::Stream,
            0,
            &["its home differ from byte"],
        ),
        "remote-operation:1/8",
        Setting::Usual,
    ),
    broken(
        "peers-one-read-in-flight",
        Peers(4),
        "a queue pair has many requests in flight",
        &[plant(
            QUEUE,
            "        u32 free = free_slots(q, index, want);\n",
            "        bool idle = index == 0 || (ld_acquire_gpu(&q.record(index - 1)->state) ==\n            \
             record_state(index - 1 + q.entries(), layout::RECORD_FREE));\n        \
             u32 free = idle ? free_slots(q, index, 1) : 0;\n        \
             if (!idle) return reap(q, index - 1, false), 0;\n",
        )],
        Workload::Stream,
        0,
        &["no queue pair ever had two READs under way"],
    ),
    broken(
        "peers-evictor-waits",
        Peers(5),
        "whoever looks for a frame waits for no particular page",
        &[plant(
            CLOCK,
            "        u64 seen = ld_relaxed_gpu(word);\n        if (!is_resident(seen)",
            "        u64 seen = ld_relaxed_gpu(word);\n        \
             while (is_resident(seen) && frame_of(seen) == frame && pins_of(seen) && !aborted()) {\n            \
             sleep_ns(100);\n            seen = ld_relaxed_gpu(word);\n        }\n        if (!is_resident(seen)",
        )],
        Workload::Spans,
        0,
        &["did not end within"],
    ),
    broken(
        "peers-pins-overflow",
        Peers(6),
        "the count of holders has room for all of them",
        &[plant(
            WORD,
            "return atom_add_acquire_gpu(word, count * kPin);",
            "return atom_add_acquire_gpu(word, (count & 3) * kPin);",
        )],
        Workload::Stream,
        0,
        &["pins are out of balance"],
    ),
    broken(
        "peers-past-the-end",
        Peers(7),
        "the last page of a region is read and written to its exact end",
        &[plant(
            SOURCE,
            "return rest < whole ? static_cast<u32>(rest) : whole;",
            "return whole;",
        )],
        Workload::Stream,
        0,
        &["remote access error"],
    ),
    broken(
        "peers-not-written-back",
        Peers(8),
        "after a flush the home holds what was written",
        &[plant(
            FLUSH,
            "        if (!is_resident(seen) || !(seen & layout::DIRTY_BIT)) return true;\n",
            "        return true;\n",
        )],
        Workload::Stream,
        0,
        &["did not end within"],
    ),
    broken(
        "peers-live-slot-reused",
        Peers(9),
        "a ring slot is written again only when its request was finished",
        &[
            plant(
                QUEUE,
                "    if (want == 1) return ld_acquire_gpu(&q.record(index)->state) == record_state(index, layout::RECORD_FREE);",
                "    if (want == 1) return 1;",
            ),
            plant(
                QUEUE,
                "more = free < want && states[n] == record_state(index + free, layout::RECORD_FREE);",
                "more = free < want;",
            ),
        ],
        Workload::Random,
        0,
        &["slot "],
    ),
    broken(
        "peers-element-over-pages",
        Peers(10),
        "an element lies in one page",
        &[plant(
            ACCESS,
            "    return Place{byte >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};",
            "    return Place{(byte + sizeof(T)) >> array.page_shift, static_cast<u32>(byte) & array.offset_mask};",
        )],
        Workload::Transpose,
        0,
        &["elements are wrong"],
    ),
    under(
        broken(
            "peers-unflushed-reads",
            Peers(11),
            "where a READ's completion says nothing of its data, a flush follows it",
            &[],
            Workload::Stream,
            0,
            &["its home differ from byte"],
        ),
        "unflushed:1/2",
        Setting::NoFlushOfReads,
    ),
    broken(
        "peers-queue-pair-numbers",
        Peers(12),
        "requests carry the number that their queue pair has, whatever the numbers are",
        &[plant(
            MLX5,
            "control24(queue->number, kSegments)",
            "control24(queue->number + 1, kSegments)",
        )],
        Workload::Stream,
        0,
        &["queue pair operation error"],
    ),
    broken(
        "stale-copy-read",
        Guards(1),
        "a copy that is stale is never read",
        &[plant(
            REPLICA,
            "return ld_relaxed_gpu(stale_word(vm, owner)) & stale_bit(owner);",
            "return false;",
        )],
        Workload::Replicas,
        0,
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
        0,
        &["mark went before the WRITE had completed"],
    ),
    broken(
        "returned-home-not-aged",
        Guards(3),
        "of what a home holds that returns nothing counts",
        &[plant(
            FLUSH,
            "if (at == home) set_stale(vm, at_replica(owner, n));",
            ";",
        )],
        Workload::Returns,
        0,
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
        1,
        &["has checksum"],
    ),
    under(
        broken(
            "mending-not-helped",
            Guards(5),
            "a flush that waits for a queue pair to be mended finishes its requests, where nobody else may",
            &[plant(
                FLUSH,
                "reap_all(vm, kClockWindow);\n        return layout::OUTCOME_FLUSHED;",
                "return layout::OUTCOME_FLUSHED;",
            )],
            Workload::Replicas,
            161,
            &["did not complete", "did not end within"],
        ),
        "lost:1/200,qp-error:1/100,aborted:1/100",
        Setting::Usual,
    ),
    under(
        broken(
            "failed-pair-left-open",
            Protocol(8),
            "whoever waits for a page closes a queue pair of its that was declared failed, so that it is mended",
            &[plant(
                FAULT,
                "if ((wait.turns & 7) == 7) reap_queues_of(",
                "if (!token && (wait.turns & 7) == 7) reap_queues_of(",
            )],
            Workload::Prefetch,
            38,
            &["did not end within"],
        ),
        "lost:1/100",
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
        18,
        &["requests are in flight on its queue pairs still"],
    ),
];

/// The mutation of this name.
///
/// # Errors
/// There is none.
pub fn find(name: &str) -> Result<&'static Mutation, MutationError> {
    let found = ALL.iter().find(|mutation| mutation.name == name);
    found.ok_or_else(|| MutationError::Unknown { name: name.to_owned() })
}

impl Mutation {
    /// How its seeds are run.
    ///
    /// # Errors
    /// What it replaces is not there.
    pub fn options(&self) -> Result<Options, MutationError> {
        let mut headers: Vec<(String, String)> = Vec::new();
        for plant in self.plants {
            let stock = || {
                let all = gpuvm_gpu::headers().iter();
                all.filter(|(name, _)| *name == plant.header)
                    .map(|(_, text)| (*text).to_owned())
                    .next()
            };
            let place = match headers.iter().position(|(name, _)| name == plant.header) {
                Some(place) => place,
                None => {
                    headers.push((plant.header.to_owned(), stock().unwrap_or_default()));
                    headers.len() - 1
                }
            };
            let text = &mut headers[place].1;
            let found = text.matches(plant.from).count();
            if found != 1 {
                return Err(MutationError::Moved {
                    name: self.name,
                    header: plant.header,
                    from: plant.from,
                    found,
                });
            }
            *text = text.replacen(plant.from, plant.to, 1);
        }
        let faults = match self.faults {
            "" => None,
            text => Some(text.parse().map_err(|source| MutationError::Faults {
                name: self.name,
                source,
            })?),
        };
        // The runtime's own kernels stay as they are, compiled once, unless the rule is theirs.
        let of_support = self.plants.iter().any(|plant| plant.header == FLUSH);
        let compile = CompileOptions {
            headers,
            ..CompileOptions::default()
        };
        Ok(Options {
            compile_support: if of_support {
                compile.clone()
            } else {
                CompileOptions::default()
            },
            compile,
            faults,
            frames_equal_spans: self.setting == Setting::FramesEqualSpans,
            unflushed: self.setting == Setting::NoFlushOfReads,
            ..Options::default()
        })
    }
}
