//! The mutations, by the lists that their rules are of, and how they are written.

/// A list of mutations. Each is written so, where `under` (faults) and `with` (a setting) may be left out:
///
/// ```text
/// "its name", List(the rule's number in it), Workload under "faults" with Setting, how it shows, "the rule that it breaks":
///     HEADER "text that is there once" => "what takes its place",
///     HEADER "another text" => "what takes its place";
/// ```
macro_rules! planted {
    ($($name:literal, $origin:ident($number:literal), $workload:ident $(under $faults:literal)? $(with $setting:ident)?, $seen:expr,
        $rule:tt: $($header:ident $from:tt => $to:tt),*;)*) => {
        pub(crate) static ALL: &[$crate::mutations::rule::Mutation] = &[$($crate::mutations::rule::Mutation {
            name: $name,
            origin: $crate::mutations::rule::Origin::$origin($number),
            rule: $rule,
            plants: &[$($crate::mutations::rule::Plant { header: $header, from: $from, to: $to }),*],
            setting: [$($crate::mutations::rule::Setting::$setting,)? $crate::mutations::rule::Setting::Usual][0],
            workload: $crate::workload::Workload::$workload,
            faults: concat!($($faults)?),
            seen: $seen,
        }),*];
    };
}

pub(super) mod broadcast;
pub(super) mod copies;
pub(super) mod frames;
pub(super) mod guards;
pub(super) mod look_ups;
pub(super) mod orders;
pub(super) mod peers;
pub(super) mod places;
pub(super) mod protocol;
pub(super) mod slots;
pub(super) mod victims;

const WORD: &str = "gpuvm/detail/page_word.cuh";
const CLOCK: &str = "gpuvm/detail/clock.cuh";
const QUEUE: &str = "gpuvm/detail/queue.cuh";
const BESIDE: &str = "gpuvm/detail/beside.cuh";
const POOL: &str = "gpuvm/detail/pool.cuh";
const CURSOR: &str = "gpuvm/cursor.cuh";
const ACCESS: &str = "gpuvm/detail/access.cuh";
const ELEMENT: &str = "gpuvm/detail/element.cuh";
const FAULT: &str = "gpuvm/detail/fault.cuh";
const GRANT: &str = "gpuvm/detail/grant.cuh";
const FLUSH: &str = "gpuvm/detail/flush.cuh";
const REPLICA: &str = "gpuvm/detail/replica.cuh";
const INTEGRITY: &str = "gpuvm/detail/integrity.cuh";
const SOURCE: &str = "gpuvm/detail/source.cuh";
const COMPLETION: &str = "gpuvm/detail/completion.cuh";
const WRITE_BACK: &str = "gpuvm/detail/write_back.cuh";
const CATCH_UP: &str = "gpuvm/detail/catch_up.cuh";
const WIRE: &str = "gpuvm/detail/wire.cuh";
const MLX5: &str = "gpuvm/detail/mlx5.cuh";
const DUEL: &str = "gpuvm/detail/duel.cuh";
const IN_PLACE: &str = "gpuvm/detail/in_place.cuh";
const OVERWRITE: &str = "gpuvm/detail/overwrite.cuh";
const DIRECT: &str = "gpuvm/detail/direct.cuh";
const BROADCAST: &str = "gpuvm/broadcast.cuh";
const COPIES: &str = "gpuvm/detail/broadcast.cuh";
const MERGE_QUEUE: &str = "gpuvm/merge_queue.cuh";
const VICTIM: &str = "gpuvm/detail/victim.cuh";
const LEAVE: &str = "gpuvm/detail/leave.cuh";
const RESIZE: &str = "gpuvm/detail/resize.cuh";
const LOOK_UP: &str = "gpuvm/detail/look_up.cuh";
const BRING: &str = "gpuvm/detail/bring.cuh";
const LOOKED_UP: &str = "gpuvm/looked_up.cuh";
const SLOTS: &str = "gpuvm/slot_cache.cuh";

/// How a request or a page shows that never comes: by whichever wait for it ends first.
const STUCK: &[&str] = &["did not end within", "did not complete over", "no frame for page"];
