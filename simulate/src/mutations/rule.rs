//! A rule of the device library, and how it is broken.

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
    /// The n-th of the rules of copies: large pages that many lanes fill, and the ends of regions.
    Copies(u32),
    /// The n-th of the rules of pages that are read where they live.
    Places(u32),
    /// The n-th of the rules of copies at a neighbour, who takes their memory back.
    Victims(u32),
    /// The n-th of the rules of arrays of which each GPU holds a copy.
    Broadcast(u32),
    /// The n-th of the rules of frames that come and go.
    Frames(u32),
    /// The n-th of the rules of pages that are looked up.
    LookUps(u32),
    /// The n-th of the rules of slot caches.
    Slots(u32),
    /// The n-th of the rules of what moves a page's entry.
    Words(u32),
    /// The n-th of the rules of queues that a NIC watches.
    Queues(u32),
    /// The n-th of the orders of memory.
    Orders(u32),
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
    /// Data races are looked for.
    Races,
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
    /// How it shows: one of these is part of what is said then. Anything else would be another fault's doing.
    pub seen: &'static [&'static str],
}
