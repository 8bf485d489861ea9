//! The book of pinned ranges: which pages are pinned, for whom, and what a new registration has to pin.

use std::collections::{BTreeMap, BTreeSet};

use crate::back_end::Spans;

/// What a registration was made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
}

/// Pages that were pinned by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) end: u64,
    /// Device address less host address.
    pub(crate) shift: u64,
    pub(crate) read_only: bool,
    /// Registrations that touch it; at 0 it waits until no kernel runs.
    pub(crate) users: u64,
}

/// Why a registration cannot be made beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// A part is pinned for reading only, and it shall be written.
    ReadOnly,
    /// A part was pinned for a registration that is gone and stays pinned for another one, which does not cover it: other memory
    /// may lie there now.
    Stale,
    /// Its parts have device addresses that do not follow each other.
    Torn,
}

/// All that is pinned.
#[derive(Debug)]
pub(crate) struct Book {
    page: u64,
    last: u64,
    /// By number.
    live: BTreeMap<u64, Live>,
    /// The pages of the same.
    covered: Spans<()>,
    /// By first host address; ranges do not overlap.
    pinned: BTreeMap<u64, Pinned>,
    /// Where those begin that nothing uses.
    unused: BTreeSet<u64>,
}

impl Live {
    /// First address and end of its pages.
    fn pages(&self, page: u64) -> (u64, u64) {
        (self.host / page * page, (self.host + self.bytes).next_multiple_of(page))
    }
}

impl Book {
    /// Nothing pinned; pages of `page` bytes.
    pub(crate) fn new(page: u64) -> Self {
        Self {
            page,
            last: 0,
            live: BTreeMap::new(),
            covered: Spans::default(),
            pinned: BTreeMap::new(),
            unused: BTreeSet::new(),
        }
    }

    fn overlapping(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, &Pinned)> {
        let touching = self.pinned.range(self.first_near(first)..end);
        let touching = touching.filter(move |(_, pinned)| pinned.end > first);
        touching.map(|(&start, pinned)| (start, pinned))
    }

    /// Where the range begins that may reach over `first`: those before it end before.
    fn first_near(&self, first: u64) -> u64 {
        let before = self.pinned.range(..=first).next_back();
        before.map_or(first, |(&start, _)| start)
    }

    /// Changes how many use each range that touches the pages of `live`.
    fn count_users(&mut self, live: &Live, change: impl Fn(u64) -> u64) {
        let (first, end) = live.pages(self.page);
        for (start, pinned) in self.pinned.range_mut(self.first_near(first)..end) {
            if pinned.end <= first {
                continue;
            }
            pinned.users = change(pinned.users);
            match pinned.users {
                0 => self.unused.insert(*start),
                _ => self.unused.remove(start),
            };
        }
    }

    /// Whether nothing uses a range among those that touch the pages of `live`.
    pub(crate) fn has_unused(&self, live: &Live) -> bool {
        let (first, end) = live.pages(self.page);
        self.overlapping(first, end).any(|(_, pinned)| pinned.users == 0)
    }

    /// Takes out the ranges that nothing uses among those that touch the pages of `live`, all of them without one. What nothing uses may
    /// hold pages that were unmapped since: it must not be taken for today's.
    pub(crate) fn take_unused(&mut self, live: Option<&Live>) -> Vec<u64> {
        let unused: Vec<u64> = match live {
            None => self.unused.iter().copied().collect(),
            Some(live) => {
                let (first, end) = live.pages(self.page);
                let unused = self.overlapping(first, end).filter(|(_, pinned)| pinned.users == 0);
                unused.map(|(start, _)| start).collect()
            }
        };
        for start in &unused {
            self.pinned.remove(start);
            self.unused.remove(start);
        }
        unused
    }

    /// The ranges to pin for `live`. A page at an edge that it may share with a neighbour is a range of its own: so what a registration
    /// has for itself never stays pinned for the neighbour's sake.
    pub(crate) fn missing(&self, live: &Live) -> Result<Vec<(u64, u64)>, Conflict> {
        let (first, end) = live.pages(self.page);
        let mut ranges = Vec::new();
        let mut at = first;
        for (start, pinned) in self.overlapping(first, end) {
            if pinned.read_only && !live.read_only {
                return Err(Conflict::ReadOnly);
            }
            if !self.is_live(start.max(first), pinned.end.min(end)) {
                return Err(Conflict::Stale);
            }
            self.split(live, at, start, &mut ranges);
            at = pinned.end;
        }
        self.split(live, at, end, &mut ranges);
        Ok(ranges)
    }

    /// Whether live registrations cover all of these pages: then the pages are still those that were pinned.
    fn is_live(&self, first: u64, end: u64) -> bool {
        let mut at = first;
        while at < end {
            match self.covered.meeting(&(at..at + 1)) {
                Some((pages, ())) => at = pages.end,
                None => return false,
            }
        }
        true
    }

    fn split(&self, live: &Live, from: u64, to: u64, ranges: &mut Vec<(u64, u64)>) {
        let (first, end) = live.pages(self.page);
        let shared_first = !live.host.is_multiple_of(self.page);
        let shared_last = !(live.host + live.bytes).is_multiple_of(self.page);
        let mut at = from;
        for cut in [
            shared_first.then_some(first + self.page),
            shared_last.then_some(end - self.page),
        ] {
            let Some(cut) = cut.filter(|cut| *cut > at && *cut < to) else {
                continue;
            };
            ranges.push((at, cut));
            at = cut;
        }
        if at < to {
            ranges.push((at, to));
        }
    }

    /// Whether nothing of the pages of `live` is pinned.
    pub(crate) fn is_fresh(&self, live: &Live) -> bool {
        let (first, end) = live.pages(self.page);
        self.overlapping(first, end).next().is_none()
    }

    /// First address and end of the pages of `live`.
    pub(crate) fn whole(&self, live: &Live) -> (u64, u64) {
        live.pages(self.page)
    }

    /// Enters `live`, for which `added` were pinned, and gives its number and its device address; unchanged after an error.
    pub(crate) fn enter(&mut self, mut live: Live, added: &[(u64, Pinned)]) -> Result<(u64, u64), Conflict> {
        let (first, end) = live.pages(self.page);
        let old = self.overlapping(first, end).map(|(_, pinned)| pinned.shift);
        let shifts: Vec<u64> = old.chain(added.iter().map(|(_, pinned)| pinned.shift)).collect();
        let shift = shifts.first().copied().unwrap_or_default();
        if shifts.iter().any(|other| *other != shift) {
            return Err(Conflict::Torn);
        }
        self.pinned.extend(added.iter().copied());
        self.count_users(&live, |users| users + 1);
        live.device = live.host.wrapping_add(shift);
        self.last += 1;
        self.live.insert(self.last, live);
        self.covered.insert(first..end, self.last, ());
        Ok((self.last, live.device))
    }

    /// Registration `number` is gone; its ranges stay pinned until they are taken out.
    pub(crate) fn leave(&mut self, number: u64) {
        let Some(live) = self.live.remove(&number) else { return };
        self.covered.remove(live.pages(self.page).0, number);
        self.count_users(&live, |users| users - 1);
    }

    /// How many of `bytes` from `addr` on one copy may move: the driver refuses one that goes from one pinned range into
    /// another, as from a page at an edge into those behind it. At least 1 of at least 1.
    pub(crate) fn in_one_copy(&self, addr: u64, bytes: u64) -> u64 {
        let before = self.pinned.range(..=addr).next_back();
        let end = match before.filter(|(_, pinned)| pinned.end > addr) {
            Some((_, pinned)) => Some(pinned.end),
            None => self.pinned.range(addr..).next().map(|(&start, _)| start),
        };
        end.map_or(bytes, |end| bytes.min(end - addr))
    }

    /// The host's address of the range at device address `addr`, if one registration covers it, and whether it is for
    /// reading only.
    pub(crate) fn host_address(&self, addr: u64, bytes: u64) -> Option<(u64, bool)> {
        self.live.values().find_map(|live| {
            let offset = addr.checked_sub(live.device)?;
            let inside = offset.checked_add(bytes)? <= live.bytes;
            inside.then_some((live.host + offset, live.read_only))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn live(host: u64, bytes: u64) -> Live {
        Live {
            host,
            device: 0,
            bytes,
            read_only: false,
        }
    }

    fn pinned(ranges: &[(u64, u64)]) -> Vec<(u64, Pinned)> {
        let entry = |&(start, end)| {
            let pinned = Pinned {
                end,
                shift: 0,
                read_only: false,
                users: 0,
            };
            (start, pinned)
        };
        ranges.iter().map(entry).collect()
    }

    fn register(book: &mut Book, host: u64, bytes: u64) -> Result<(u64, Vec<(u64, u64)>), Conflict> {
        let live = live(host, bytes);
        book.take_unused(Some(&live));
        let missing = book.missing(&live)?;
        let (number, device) = book.enter(live, &pinned(&missing))?;
        assert_eq!(device, host);
        Ok((number, missing))
    }

    #[test]
    fn edges_that_may_be_shared_are_ranges_of_their_own() {
        let book = Book::new(PAGE);
        let missing = |host, bytes| book.missing(&live(host, bytes)).expect("no conflict");
        assert_eq!(missing(PAGE, 4 * PAGE), [(PAGE, 5 * PAGE)]);
        assert_eq!(
            missing(PAGE + 1, 4 * PAGE - 1),
            [(PAGE, 2 * PAGE), (2 * PAGE, 5 * PAGE)]
        );
        assert_eq!(missing(PAGE, 4 * PAGE - 1), [(PAGE, 4 * PAGE), (4 * PAGE, 5 * PAGE)]);
        assert_eq!(
            missing(PAGE + 1, 4 * PAGE - 2),
            [(PAGE, 2 * PAGE), (2 * PAGE, 4 * PAGE), (4 * PAGE, 5 * PAGE)]
        );
        assert_eq!(missing(PAGE + 1, PAGE), [(PAGE, 2 * PAGE), (2 * PAGE, 3 * PAGE)]);
        assert_eq!(missing(PAGE + 1, 10), [(PAGE, 2 * PAGE)]);
    }

    #[test]
    fn copies_end_where_ranges_do() {
        let mut book = Book::new(PAGE);
        assert_eq!(book.in_one_copy(PAGE, 10 * PAGE), 10 * PAGE, "not pinned at all");
        register(&mut book, PAGE + 64, 3 * PAGE).expect("a registration with shared edges");
        assert_eq!(
            book.in_one_copy(PAGE + 64, PAGE),
            PAGE - 64,
            "the page at the edge is a range"
        );
        assert_eq!(book.in_one_copy(2 * PAGE, PAGE), PAGE);
        assert_eq!(book.in_one_copy(2 * PAGE + 64, 2 * PAGE), 2 * PAGE - 64);
        assert_eq!(book.in_one_copy(4 * PAGE, 64), 64);
        assert_eq!(book.in_one_copy(0, 2 * PAGE), PAGE, "up to where pinned memory begins");
        assert_eq!(book.in_one_copy(5 * PAGE, 7), 7);
    }

    #[test]
    fn only_the_shared_page_outlives_a_neighbour() {
        let mut book = Book::new(PAGE);
        // A ends, and B begins, inside page 4.
        let (a, _) = register(&mut book, PAGE, 3 * PAGE + 100).expect("A");
        let (b, of_b) = register(&mut book, 4 * PAGE + 100, 2 * PAGE - 100).expect("B");
        assert_eq!(of_b, [(5 * PAGE, 6 * PAGE)], "page 4 is A's too");
        book.leave(a);
        assert!(book.has_unused(&live(PAGE, 1)) && !book.has_unused(&live(8 * PAGE, 1)));
        assert_eq!(book.take_unused(None), [PAGE], "what A had for itself is unpinned");
        assert!(!book.has_unused(&live(PAGE, 1)));
        // Other memory at A's place is pinned anew, but for the page that B keeps mapped.
        let (c, of_c) = register(&mut book, PAGE, 3 * PAGE + 50).expect("C");
        assert_eq!(of_c, [(PAGE, 4 * PAGE)]);
        book.leave(b);
        assert_eq!(book.take_unused(None), [5 * PAGE]);
        book.leave(c);
        assert_eq!(book.take_unused(None), [PAGE, 4 * PAGE]);
        assert!(book.is_fresh(&live(0, 10 * PAGE)));
    }

    #[test]
    fn stale_pages_are_refused() {
        let mut book = Book::new(PAGE);
        let (outer, _) = register(&mut book, 0x10_000, 16 * PAGE).expect("the outer one");
        let (inner, of_inner) = register(&mut book, 0x10_000 + PAGE, PAGE).expect("the inner one");
        assert_eq!(of_inner, []);
        book.leave(outer);
        assert_eq!(book.take_unused(None), [], "the inner one keeps all of it");
        assert_eq!(
            register(&mut book, 0x10_000, 2 * PAGE).err(),
            Some(Conflict::Stale),
            "page 0 may be another today"
        );
        let (again, _) = register(&mut book, 0x10_000 + PAGE + 10, 20).expect("a page that the inner one keeps");
        book.leave(inner);
        book.leave(again);
        let (_, anew) = register(&mut book, 0x10_000, 2 * PAGE).expect("nothing is stale any more");
        assert_eq!(anew, [(0x10_000, 0x10_000 + 2 * PAGE)]);
    }

    #[test]
    fn read_only_and_torn_pages_are_refused() {
        let mut book = Book::new(PAGE);
        let read = Live {
            read_only: true,
            ..live(PAGE, PAGE)
        };
        let mut one = pinned(&[(PAGE, 2 * PAGE)]);
        one[0].1.read_only = true;
        book.enter(read, &one).expect("the first");
        assert_eq!(book.missing(&live(PAGE, 1)), Err(Conflict::ReadOnly));
        assert_eq!(book.missing(&read), Ok(Vec::new()));
        let mut moved = pinned(&[(2 * PAGE, 3 * PAGE)]);
        moved[0].1.shift = 1 << 40;
        let both = Live {
            bytes: 2 * PAGE,
            ..read
        };
        assert_eq!(book.enter(both, &moved), Err(Conflict::Torn));
        assert!(book.is_fresh(&live(2 * PAGE, PAGE)), "nothing of it was entered");
        assert_eq!(book.host_address(PAGE + 5, 6), Some((PAGE + 5, true)));
        assert_eq!(book.host_address(PAGE + 5, PAGE), None);
    }
}
