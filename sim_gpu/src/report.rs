//! What the threads of a launch that does not get on wait for, in bounded, grouped text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::abi::barrier;
use super::collective;
use super::warp::list;
use gpuvm_gpu::{Coordinates, NoteFormatter};

/// Most groups that a report shows.
const GROUPS_MAX: usize = 24;
/// Most groups that are kept apart while a report is collected.
const GROUPS_KEPT: usize = 4096;

/// What a thread waits for; equal ones are one line of the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    Collective { kind: u32, mask: u32, missing: u32 },
    Barrier { kind: u32, arrived: u32, live: u32 },
    Note { code: u32, a: u64, b: u64 },
    Sleeping,
    Gathering,
    Running,
}

/// One line: how many threads, and one of them.
#[derive(Clone, Debug)]
struct Group {
    threads: u64,
    block: Coordinates,
    warp: u32,
    lanes: u32,
}

/// Collects the waits of a launch's blocks.
#[derive(Debug, Default)]
pub(crate) struct Report {
    groups: BTreeMap<Wait, Group>,
    left_out: u64,
    pub(crate) exited: u64,
}

impl Report {
    /// Adds a lane of warp `warp` of the block with that index.
    pub(crate) fn add_lane(&mut self, block: Coordinates, warp: u32, lane: usize, wait: Wait) {
        let full = self.groups.len() >= GROUPS_KEPT;
        if let Some(group) = self.groups.get_mut(&wait) {
            group.threads += 1;
            if (group.block, group.warp) == (block, warp) {
                group.lanes |= 1 << lane;
            }
        } else if full {
            self.left_out += 1;
        } else {
            let group = Group {
                threads: 1,
                block,
                warp,
                lanes: 1 << lane,
            };
            self.groups.insert(wait, group);
        }
    }

    /// The report; `blocks` of the launch in all, `completed` of them at their end.
    pub(crate) fn text(&self, blocks: u64, completed: u64, formatter: &NoteFormatter) -> String {
        let mut lines: Vec<(&Wait, &Group)> = self.groups.iter().collect();
        lines.sort_by_key(|(_, group)| std::cmp::Reverse(group.threads));
        let mut out = format!("  {completed} of {blocks} blocks have ended");
        if self.exited > 0 {
            let _ = write!(out, "; {} threads of the others have returned", self.exited);
        }
        for (wait, group) in lines.iter().take(GROUPS_MAX) {
            let (plural, verb) = if group.threads == 1 { ("", "") } else { ("s", ", first") };
            let _ = write!(
                out,
                "\n  {} thread{plural}{verb} (block {:?}, warp {}, {}): {}",
                group.threads,
                group.block,
                group.warp,
                list(group.lanes),
                words(wait, formatter)
            );
        }
        let hidden: u64 = self.left_out + lines.iter().skip(GROUPS_MAX).map(|(_, g)| g.threads).sum::<u64>();
        if hidden > 0 {
            let _ = write!(out, "\n  and {hidden} threads that wait for other things");
        }
        out
    }
}

fn words(wait: &Wait, formatter: &NoteFormatter) -> String {
    match *wait {
        Wait::Collective { kind, mask, missing } => {
            format!(
                "in {} with mask {mask:#010x}, waits for {}",
                collective::name(kind),
                list(missing)
            )
        }
        Wait::Barrier { kind, arrived, live } => {
            format!(
                "in {}, where {arrived} of {live} live threads of the block have arrived",
                barrier::name(kind)
            )
        }
        Wait::Note { code, a, b } => {
            let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| formatter(code, a, b)));
            text.unwrap_or_else(|_| format!("waits for {code} ({a:#x}, {b:#x})"))
        }
        Wait::Sleeping => "in __nanosleep".to_owned(),
        Wait::Gathering => "in __activemask".to_owned(),
        Wait::Running => "running or polling memory".to_owned(),
    }
}
