//! What happened in the seeded mode, event by event: for the trace of a failure and for timelines.

use std::fmt;

/// What a lane, or an engine, did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// It began, or began again after another lane had run.
    Resumed,
    /// It left the processor: a switch, a wait, its end.
    Left,
    /// A plain load or store; its value is not known.
    PlainLoad,
    /// See [`EventKind::PlainLoad`].
    PlainStore,
    /// A load with an order and a scope.
    Load,
    /// A store with an order and a scope.
    Store,
    /// A read-modify-write; the value is the old one.
    Atomic,
    /// A fence.
    Fence,
    /// A store to a register of an engine outside.
    RegisterStore,
    /// An engine outside did some work; `block` is its number.
    Engine,
}

/// One event of the seeded mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual time, ns.
    pub ns: u64,
    /// The launch's number on its GPU, from 0.
    pub launch: u64,
    /// The block's number in the grid's linear order.
    pub block: u64,
    /// The warp's number in its block.
    pub warp: u32,
    /// The lane's number in its warp.
    pub lane: u32,
    /// What was done.
    pub kind: EventKind,
    /// Where in memory; 0 where that says nothing.
    pub address: u64,
    /// What was read or stored, where that is known.
    pub value: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == EventKind::Engine {
            return write!(f, "{:>12} ns  engine {} worked", self.ns, self.block);
        }
        write!(
            f,
            "{:>12} ns  launch {} block {} warp {} lane {:2}  {:?} {:#x} = {:#x}",
            self.ns, self.launch, self.block, self.warp, self.lane, self.kind, self.address, self.value
        )
    }
}
