//! Who has which bytes of which handle. A page table maps whole handles; the bytes of one may be the tail of one buffer and the head of
//! another, which both map it. Nothing here knows a GPU.

use std::collections::{BTreeMap, BTreeSet};

/// What bytes of a handle are given out by: no two buffers share a line of a cache, whatever its length.
pub(super) const UNIT: u64 = 512;

/// A buffer's name in the book.
pub(super) type BufferId = u64;
type HandleId = u64;

/// A buffer's bytes lie at `head..end` of its addresses, which begin with a whole handle; the handle behind each slot of them.
#[derive(Default)]
struct Entry {
    head: u64,
    end: u64,
    slots: Vec<HandleId>,
}

/// A handle, and who has which of its bytes: start -> (end, buffer).
struct Parts<H> {
    handle: H,
    parts: BTreeMap<u64, (u64, BufferId)>,
}

/// Where a buffer's bytes are to lie.
struct Plan {
    head: u64,
    end: u64,
    /// Slots that lie in handles of others.
    shared: Vec<(usize, HandleId)>,
}

/// All buffers of one GPU.
pub(super) struct Book<H> {
    handle_bytes: u64,
    handles: BTreeMap<HandleId, Parts<H>>,
    /// Handles some of whose bytes nothing has.
    partial: BTreeSet<HandleId>,
    buffers: BTreeMap<BufferId, Entry>,
    /// Names that were given, of handles and buffers.
    named: u64,
    claimed: u64,
}

impl<H> Parts<H> {
    /// The bytes that nothing has.
    fn holes(&self, handle_bytes: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut at = 0;
        for (start, (end, _)) in &self.parts {
            if *start > at {
                holes.push((at, *start));
            }
            at = *end;
        }
        if at < handle_bytes {
            holes.push((at, handle_bytes));
        }
        holes
    }
}

impl<H: Clone> Book<H> {
    /// `handle_bytes` is a multiple of [`UNIT`].
    pub fn new(handle_bytes: u64) -> Self {
        Self {
            handle_bytes,
            handles: BTreeMap::new(),
            partial: BTreeSet::new(),
            buffers: BTreeMap::new(),
            named: 0,
            claimed: 0,
        }
    }

    fn name(&mut self) -> u64 {
        self.named += 1;
        self.named
    }

    /// Enters a buffer of `bytes` bytes, 0 or more. It takes the rest of a handle that fits it best, and of `fresh` what else it needs.
    ///
    /// # Errors
    /// How many more it needs of `fresh`. Nothing has changed.
    pub fn open(&mut self, bytes: u64, fresh: &mut Vec<H>) -> Result<BufferId, usize> {
        let plan = self.plan(bytes.next_multiple_of(UNIT));
        self.check(&plan, fresh)?;
        let id = self.name();
        self.commit(id, plan, fresh);
        Ok(id)
    }

    /// Gives a buffer that has nothing `bytes` bytes where it began.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn reopen(&mut self, id: BufferId, bytes: u64, fresh: &mut Vec<H>) -> Result<(), usize> {
        let plan = self.plan_at(self.head(id), bytes.next_multiple_of(UNIT));
        self.check(&plan, fresh)?;
        self.commit(id, plan, fresh);
        Ok(())
    }

    /// How the fewest handles are needed: bytes that fill no handle go where the smallest hole takes them.
    fn plan(&self, bytes: u64) -> Plan {
        let (size, part) = (self.handle_bytes, bytes % self.handle_bytes);
        // Slots before or behind the part.
        let whole = (bytes / size) as usize;
        let place = |id: HandleId, (start, end): (u64, u64)| {
            if end - start < part {
                return None;
            }
            let (head, slot) = match whole {
                0 => (start, 0),
                // A head ends with its handle, a tail begins with it.
                _ if end == size => (size - part, 0),
                _ if start == 0 => (0, whole),
                _ => return None,
            };
            let shared = vec![(slot, id)];
            let end = head + bytes;
            Some(Plan { head, end, shared })
        };
        let mut best: Option<(u64, Plan)> = None;
        for id in self.partial.iter().filter(|_| part > 0) {
            for hole in self.handles[id].holes(size) {
                let room = hole.1 - hole.0;
                if best.as_ref().is_none_or(|(least, _)| room < *least)
                    && let Some(plan) = place(*id, hole)
                {
                    best = Some((room, plan));
                }
            }
        }
        best.map_or(
            Plan {
                head: 0,
                end: bytes,
                shared: Vec::new(),
            },
            |(_, plan)| plan,
        )
    }

    /// As [`plan`](Self::plan), where it is said where the buffer begins.
    fn plan_at(&self, head: u64, bytes: u64) -> Plan {
        let end = head + bytes;
        let mut shared = Vec::new();
        for slot in 0..self.slots_of(head, end) {
            let (start, until) = self.part(head, end, slot);
            if until - start == self.handle_bytes {
                continue;
            }
            let fits = |id: &HandleId| {
                let holes = self.handles[id].holes(self.handle_bytes).into_iter();
                let fitting = holes.filter(|hole| hole.0 <= start && until <= hole.1);
                fitting.map(|hole| (hole.1 - hole.0, *id)).min()
            };
            let best = self.partial.iter().filter_map(fits).min();
            shared.extend(best.map(|(_, id)| (slot, id)));
        }
        Plan { head, end, shared }
    }

    fn slots_of(&self, head: u64, end: u64) -> usize {
        if end == head {
            0
        } else {
            end.div_ceil(self.handle_bytes) as usize
        }
    }

    /// The bytes that a buffer has of the handle behind one of its slots.
    fn part(&self, head: u64, end: u64, slot: usize) -> (u64, u64) {
        let first = slot as u64 * self.handle_bytes;
        (head.saturating_sub(first), (end - first).min(self.handle_bytes))
    }

    fn check(&self, plan: &Plan, fresh: &[H]) -> Result<(), usize> {
        let needed = self.slots_of(plan.head, plan.end) - plan.shared.len();
        match needed.checked_sub(fresh.len()) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(missing),
        }
    }

    fn commit(&mut self, id: BufferId, plan: Plan, fresh: &mut Vec<H>) {
        let mut entry = Entry {
            head: plan.head,
            end: plan.end,
            slots: Vec::new(),
        };
        for slot in 0..self.slots_of(plan.head, plan.end) {
            let shared = plan.shared.iter().find(|(of, _)| *of == slot).map(|(_, id)| *id);
            let handle = shared.or_else(|| fresh.pop().map(|handle| self.enter(handle)));
            let Some(handle) = handle else {
                unreachable!("there are enough: checked")
            };
            entry.slots.push(handle);
            self.claim(handle, self.part(plan.head, plan.end, slot), id);
        }
        self.buffers.insert(id, entry);
    }

    fn enter(&mut self, handle: H) -> HandleId {
        let id = self.name();
        let parts = BTreeMap::new();
        self.handles.insert(id, Parts { handle, parts });
        id
    }

    fn claim(&mut self, handle: HandleId, (start, end): (u64, u64), buffer: BufferId) {
        if let Some(of) = self.handles.get_mut(&handle) {
            of.parts.insert(start, (end, buffer));
            self.claimed += end - start;
        }
        self.note_holes(handle);
    }

    /// Takes a part out: the handle, when nothing has anything of it any more.
    fn unclaim(&mut self, handle: HandleId, start: u64) -> Option<H> {
        let of = self.handles.get_mut(&handle)?;
        if let Some((end, _)) = of.parts.remove(&start) {
            self.claimed -= end - start;
        }
        if of.parts.is_empty() {
            self.partial.remove(&handle);
            return self.handles.remove(&handle).map(|of| of.handle);
        }
        self.note_holes(handle);
        None
    }

    fn note_holes(&mut self, handle: HandleId) {
        match self.handles[&handle].holes(self.handle_bytes).is_empty() {
            true => self.partial.remove(&handle),
            false => self.partial.insert(handle),
        };
    }

    /// Where the buffer's first byte lies at its addresses.
    pub fn head(&self, id: BufferId) -> u64 {
        self.buffers.get(&id).map_or(0, |entry| entry.head)
    }

    /// Bytes that the buffer has, from its first one on.
    pub fn bytes(&self, id: BufferId) -> u64 {
        self.buffers.get(&id).map_or(0, |entry| entry.end - entry.head)
    }

    /// The handles behind its slots.
    pub fn handles(&self, id: BufferId) -> Vec<H> {
        let slots = self.buffers.get(&id).into_iter().flat_map(|entry| &entry.slots);
        slots.map(|slot| self.handles[slot].handle.clone()).collect()
    }

    /// Has the buffer take what nothing has behind its end, in the handle that it ends in. Whether it has the rest of that handle now.
    pub fn take_rest(&mut self, id: BufferId) -> bool {
        let size = self.handle_bytes;
        let Some(entry) = self.buffers.get(&id) else {
            return true;
        };
        let Some((last, slot)) = entry.slots.last().map(|last| (*last, entry.slots.len() - 1)) else {
            return true;
        };
        let first = slot as u64 * size;
        let (start, end) = self.part(entry.head, entry.end, slot);
        let behind = self.handles[&last].parts.range(start + 1..).next();
        let free = behind.map_or(size, |(other, _)| *other);
        if free > end {
            self.unclaim_part(last, start);
            self.claim(last, (start, free), id);
            if let Some(entry) = self.buffers.get_mut(&id) {
                entry.end = first + free;
            }
        }
        free == size
    }

    /// As [`unclaim`](Self::unclaim) where the handle stays.
    fn unclaim_part(&mut self, handle: HandleId, start: u64) {
        let removed = self.handles.get_mut(&handle).and_then(|of| of.parts.remove(&start));
        if let Some((end, _)) = removed {
            self.claimed -= end - start;
        }
    }

    /// Further handles that it takes for the buffer to have this many bytes.
    pub fn missing(&self, id: BufferId, bytes: u64) -> usize {
        let Some(entry) = self.buffers.get(&id) else { return 0 };
        let slots = self.slots_of(entry.head, entry.head + bytes);
        slots.saturating_sub(entry.slots.len())
    }

    /// Puts handles behind the buffer's further slots, whole. It has the rest of its last one: [`take_rest`](Self::take_rest).
    pub fn add(&mut self, id: BufferId, handles: Vec<H>) {
        for handle in handles {
            let handle = self.enter(handle);
            let Some(entry) = self.buffers.get_mut(&id) else { return };
            entry.slots.push(handle);
            entry.end = entry.slots.len() as u64 * self.handle_bytes;
            let start = if entry.slots.len() == 1 { entry.head } else { 0 };
            self.claim(handle, (start, self.handle_bytes), id);
        }
    }

    /// Puts a handle of the buffer's own behind its last slot, where others have bytes behind its end: the handle that was there, if nothing
    /// has anything of it any more.
    pub fn replace_last(&mut self, id: BufferId, handle: H) -> Option<H> {
        let handle = self.enter(handle);
        let size = self.handle_bytes;
        let entry = self.buffers.get_mut(&id)?;
        let old = std::mem::replace(entry.slots.last_mut()?, handle);
        let first = (entry.slots.len() - 1) as u64 * size;
        let start = entry.head.saturating_sub(first);
        entry.end = first + size;
        self.claim(handle, (start, size), id);
        self.unclaim(old, start)
    }

    /// Leaves the buffer its first `bytes` bytes: the handles of which nothing has anything any more.
    pub fn cut(&mut self, id: BufferId, bytes: u64) -> Vec<H> {
        let size = self.handle_bytes;
        let Some(entry) = self.buffers.get_mut(&id) else {
            return Vec::new();
        };
        let (head, old_end) = (entry.head, entry.end);
        let end = (head + bytes.next_multiple_of(UNIT)).min(old_end);
        let kept = if end == head { 0 } else { end.div_ceil(size) as usize };
        let gone = entry.slots.split_off(kept);
        entry.end = end;
        let last = entry.slots.last().copied();
        let mut free = Vec::new();
        for (slot, handle) in (kept..).zip(gone) {
            let (start, _) = self.part(head, old_end, slot);
            free.extend(self.unclaim(handle, start));
        }
        if let Some(last) = last {
            let part = self.part(head, end, kept - 1);
            self.unclaim_part(last, part.0);
            self.claim(last, part, id);
        }
        free
    }

    /// Takes the buffer out of the book: the handles of which nothing has anything any more.
    pub fn close(&mut self, id: BufferId) -> Vec<H> {
        let free = self.cut(id, 0);
        self.buffers.remove(&id);
        free
    }

    /// Bytes of all handles in the book, and those of them that buffers have.
    pub fn totals(&self) -> (u64, u64) {
        (self.handles.len() as u64 * self.handle_bytes, self.claimed)
    }
}

#[cfg(test)]
mod tests;
