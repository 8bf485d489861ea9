//! Slots in memory that neighbours lend: where they are, and whose each is.

use std::collections::HashMap;

use gpuvm_layouts as layout;
use layout::{PoolState, VictimsDesc};

use super::memory::{Kind, load, read};
use crate::words;

/// What a lender tells: the chunk is its own.
pub(super) const HAS_IT_BACK: u64 = 2;
/// Whose a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// A lane's that has taken it, or that has claimed its page.
    InHand,
    /// Of the page whose word names it.
    Of(u64),
    /// Of the page that has come from it into the frame.
    Beside(u32),
}

/// Memory of neighbours.
pub(super) struct Slots {
    pub desc: VictimsDesc,
    pub page_bytes: u64,
    /// Frames of the GPU that borrows.
    pub frames: u32,
    pub slots: Vec<Slot>,
    /// Slots of pages that are claimed, until they are given back.
    pub claimed: HashMap<u64, u32>,
    pub lender: Option<Lender>,
    /// Chunks that lenders had back who are done.
    pub back: Vec<bool>,
}

/// Who takes memory back.
pub(super) struct Lender {
    /// Address of how far it is with each chunk.
    pub turns: u64,
    /// What it stores into words that it has back.
    pub mark: u64,
    /// The first words of each page, all of which it stores.
    pub used: u64,
    /// The words of each chunk that it has back, as they were seen last.
    pub seen: Vec<Option<Vec<u64>>>,
    /// The next slot to look at.
    pub next: u32,
}

impl Slots {
    pub(super) fn chunk_slots(&self) -> u32 {
        1 << self.desc.chunk_shift
    }

    pub(super) fn chunk_count(&self) -> u32 {
        self.desc.free.count >> self.desc.chunk_shift
    }

    pub(super) fn address(&self, slot: u32) -> u64 {
        let chunk: u64 = read(self.desc.chunks + u64::from(slot >> self.desc.chunk_shift) * 8);
        chunk + u64::from(slot & (self.chunk_slots() - 1)) * self.page_bytes
    }

    pub(super) fn is_lent(&self, slot: u32) -> bool {
        read::<u32>(self.desc.lent + u64::from(slot >> self.desc.chunk_shift) * 4) != 0
    }

    /// Whether its lender may have stored there.
    pub(super) fn is_back(&self, slot: u32) -> bool {
        let chunk = slot >> self.desc.chunk_shift;
        let turn = |lender: &Lender| load(lender.turns + u64::from(chunk) * 8);
        let before = self.back.get(chunk as usize).copied().unwrap_or(false);
        before || self.lender.as_ref().is_some_and(|lender| turn(lender) >= HAS_IT_BACK)
    }

    /// The slot that the page in the frame keeps.
    pub(super) fn kept(&self, frame: u32) -> Option<u32> {
        words::slot(read(self.desc.slots_kept + u64::from(frame) * 4))
    }

    /// The words to watch. What frames keep comes first: a lane that gives a kept slot back may show both stores in one step.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u64, Kind)> {
        let kept = self.desc.slots_kept;
        let kept =
            (0..self.frames.div_ceil(2)).map(move |n| (kept + u64::from(n) * 8, Kind::SlotsKept { frame: 2 * n }));
        let ring = self.desc.free.ring;
        let places = (0..u64::from(self.desc.free.count)).map(move |n| (ring + n * 8, Kind::SlotPlace));
        let turns = self.lender.iter().flat_map(|lender| {
            (0..self.chunk_count()).map(|chunk| (lender.turns + u64::from(chunk) * 8, Kind::Turn { chunk }))
        });
        kept.chain(places).chain(turns)
    }

    /// What is not as it has to be when all regions were closed: each slot is free, or lost with its chunk.
    pub(super) fn unrest(&self) -> Option<String> {
        let lost = (0..).zip(&self.slots);
        let mut lost = lost.filter(|(slot, held)| **held != Slot::Free && self.is_lent(*slot));
        if let Some((slot, held)) = lost.next() {
            return Some(format!("slot {slot} is not free at the end: {held:?}"));
        }
        let free = self.slots.iter().filter(|held| **held == Slot::Free).count() as u64;
        let state: PoolState = read(self.desc.free.state);
        (state.available != free).then(|| {
            let available = state.available as i64;
            format!("{free} slots are free at the end, and {available} are said to be")
        })
    }
}
