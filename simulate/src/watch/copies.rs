//! A page's copies: at its home, or at two, of which one may be lost or stale, and its checksum.

use std::ops::Range;

use gpuvm_layouts as layout;
use layout::RegionDesc;

use super::event::Who;
use super::memory::{differ, home_of, is_stale, load, page_span, read};
use super::page_id::page_name;
use super::{Return, WatchState, Watcher};

/// Bits of a copy that may be wrong where bits are flipped on purpose: each WRITE of a page is a new copy, with one at most.
const FLIPS_MAX: u32 = 1;

/// How many bits two stretches of memory differ in.
fn bits_apart(a: u64, b: u64, bytes: usize) -> u32 {
    (0..bytes as u64)
        .map(|at| (read::<u8>(a + at) ^ read::<u8>(b + at)).count_ones())
        .sum()
}

/// The checksum of this many bytes, as the table of a region keeps it.
fn checksum(at: u64, bytes: usize) -> u32 {
    // SAFETY: as in `differ`.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
    crc32c::crc32c(bytes).max(1)
}

impl Watcher {
    /// Where a region's copy in a replica lies. None when it is not watched.
    pub fn home_span(&self, region: u32, replica: u32) -> Option<Range<u64>> {
        let mut state = self.lock();
        state.rebuild();
        let (_, region) = *state.regions.iter().find(|(id, _)| *id == region)?;
        let home = home_of(&region, replica)?;
        Some(home..home + region.bytes)
    }

    /// The homes of these replicas are about to be taken away: from now on what they hold is garbage.
    pub fn home_lost(&self, replica: u32) {
        let mut state = self.lock();
        state.lost[replica as usize] = true;
        state.returning[replica as usize] = Return::Not;
    }

    /// A home is there again, and takes part when somebody else opens its queue pairs: looked at whenever the host has run.
    pub fn home_returns(&self, replica: u32) {
        self.lock().returning[replica as usize] = Return::Expected;
    }

    /// A home has returned and its queue pairs are open. Every copy there must count as stale.
    pub fn home_returned(&self, replica: u32) {
        let mut state = self.lock();
        state.who = Some(Who::Host);
        state.rebuild();
        state.home_is_back(replica);
        if let Some(finding) = state.findings.first() {
            self.first.get_or_init(|| finding.clone());
        }
    }

    /// From now on single bits at homes may be wrong where pages have checksums: they are flipped on purpose.
    pub fn expect_flips(&self) {
        self.lock().flips = true;
    }

    /// Tells that GPUs which nothing watches write to homes: what a frame holds may be older then, until its page is dropped.
    pub fn expect_others(&self) {
        self.lock().others = true;
    }

    /// Looks at the copies of pages that no frame holds dirty: those that count are alike. How many were compared.
    ///
    /// # Errors
    /// The first page of which that is not so.
    pub fn copies_agree(&self) -> Result<u64, String> {
        let mut state = self.lock();
        state.rebuild();
        let Some(desc) = state.desc else {
            return Err("no virtual memory is watched whose copies could be compared".to_owned());
        };
        let mut compared = 0;
        for (id, region) in state.regions.iter().filter(|(_, region)| region.replicas > 1) {
            for page in 0..region.pages {
                if load(region.words + page * 8) & (layout::DIRTY_BIT | layout::WRITE_BACK_BIT) != 0 {
                    continue;
                }
                let rows: Vec<u32> = state.good_rows(region, page).collect();
                let &[one, other] = &rows[..] else { continue };
                let (Some(one), Some(other)) = (home_of(region, one), home_of(region, other)) else {
                    continue;
                };
                let (start, bytes) = page_span(&desc, region, page);
                compared += 1;
                if let Some(byte) = differ(one + start, other + start, bytes)
                    && !(state.flips && bits_apart(one + start, other + start, bytes) <= FLIPS_MAX)
                {
                    let page = page_name(layout::page_id(*id, page));
                    let what = format!("both copies of {page} count, and they differ from byte {byte} on");
                    return Err(what);
                }
            }
        }
        state.looks.agreed += compared;
        Ok(compared)
    }
}

impl WatchState {
    /// Homes that return by themselves have done so when their queue pairs were closed and are open.
    pub(super) fn look_at_returns(&mut self) {
        for replica in 0..layout::REPLICAS_MAX {
            let now = match (self.returning[replica as usize], self.is_closed(replica)) {
                (Return::Expected, true) => Return::Closed,
                (Return::Closed, false) => {
                    self.home_is_back(replica);
                    Return::Not
                }
                (as_before, _) => as_before,
            };
            self.returning[replica as usize] = now;
        }
    }

    /// Whether a queue pair of a home in this process is closed to lanes, where one NIC reaches all of them.
    fn is_closed(&self, replica: u32) -> bool {
        let Some(desc) = self.desc else { return false };
        let each = desc.queue_count / desc.queue_groups.max(1);
        (replica * each..(replica + 1) * each)
            .filter(|queue| *queue < desc.queue_count)
            .any(|queue| self.queue_state(queue).failed & layout::QUEUE_LOST != 0)
    }

    /// Its queue pairs are open: every copy there must count as stale.
    fn home_is_back(&mut self, replica: u32) {
        self.lost[replica as usize] = false;
        self.looks.returned += 1;
        let mut fresh = None;
        for (id, region) in &self.regions {
            let replicated = region.flags & layout::REGION_REPLICATED != 0;
            let of_region = (0..region.pages).find(|page| replicated && !is_stale(region, *page, replica));
            fresh = fresh.or(of_region.map(|page| layout::page_id(*id, page)));
        }
        if let Some(page_id) = fresh {
            let name = page_name(page_id);
            let what = format!("home {replica} returned, and its copy of {name} is not stale");
            self.find(what, (Some(page_id), None, None));
        }
    }

    /// The replicas whose copy of a page is what was written back last: not stale, at a home that is there.
    pub(super) fn good_rows(&self, region: &RegionDesc, page: u64) -> impl Iterator<Item = u32> + use<> {
        let (lost, region) = (self.lost, *region);
        let replicated = region.flags & layout::REGION_REPLICATED != 0;
        let rows = if replicated { region.replicas } else { 1 };
        (0..rows).filter(move |&row| !replicated || !(lost[row as usize] || is_stale(&region, page, row)))
    }

    /// A clean page's frame holds what its home holds, or each of its homes that counts, and has its checksum. False when it
    /// was compared with no home.
    pub(super) fn same_as_home(&mut self, page_id: u64, frame: u32, event: &str) -> bool {
        let (Some(desc), Some(region)) = (self.desc, self.region_of(page_id).copied()) else {
            return false;
        };
        if frame >= desc.pool.count && region.flags & layout::REGION_NEVER_EVICTED == 0 {
            return false;
        }
        let page = page_id & (layout::REGION_PAGES_MAX - 1);
        let (start, bytes) = page_span(&desc, &region, page);
        let at = region.frames + (u64::from(frame) << desc.page_shift);
        let place = (Some(page_id), Some(frame), None);
        let checked = region.flags & layout::REGION_CHECKED != 0;
        if checked {
            let kept: u32 = read(region.checksums + page * 4);
            let found = checksum(at, bytes);
            self.looks.checksums += u64::from(kept != 0);
            if kept != 0 && kept != found {
                let name = page_name(page_id);
                let what = format!("{name} {event}, but frame {frame} has checksum {found:#x} and not {kept:#x}");
                self.find(what, place);
            }
        }
        let mut compared = false;
        for row in self.good_rows(&region, page) {
            let Some(home) = home_of(&region, row) else { continue };
            compared = true;
            self.looks.copies += u64::from(row != 0);
            let Some(byte) = differ(at, home + start, bytes) else {
                continue;
            };
            if self.flips && checked && bits_apart(at, home + start, bytes) <= FLIPS_MAX {
                self.looks.damaged += 1;
                continue;
            }
            let which = if region.replicas > 1 {
                format!(" {row}")
            } else {
                String::new()
            };
            let name = page_name(page_id);
            let what = format!("{name} {event}, but its frame {frame} and its home{which} differ from byte {byte} on");
            self.find(what, place);
        }
        compared
    }

    /// A write-back that made a page clean ended: with every WRITE of it, and with a copy that counts.
    pub(super) fn ended_everywhere(&mut self, page_id: u64) {
        let Some(region) = self.region_of(page_id).copied() else {
            return;
        };
        if region.flags & layout::REGION_REPLICATED == 0 {
            return;
        }
        let page = page_id & (layout::REGION_PAGES_MAX - 1);
        let join: u32 = read(region.joins + page * 4);
        let stale = (0..region.replicas).all(|replica| is_stale(&region, page, replica));
        let what = if join != 0 {
            format!("became clean while its WRITEs stand at {join:#x}")
        } else if stale {
            "became clean, and all its copies are stale".into()
        } else {
            return;
        };
        self.find(format!("{} {what}", page_name(page_id)), (Some(page_id), None, None));
    }
}
