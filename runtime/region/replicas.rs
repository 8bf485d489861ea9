//! What the host reads and writes at a region's homes: of two that of a good copy, with checksums the pages that bear them out.

use std::{ops::Range, sync::atomic::Ordering};

use parking_lot::MutexGuard;

use super::OnGpu;
use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    home::Home,
    local_home::{LocalHome, Span, Spans},
};

/// Bits of the replicas, one for each page.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Stale(Vec<Vec<u32>>);

impl Stale {
    pub fn has(&self, replica: usize, page: u64) -> bool {
        self.0[replica][(page / 32) as usize] >> (page % 32) & 1 != 0
    }

    pub fn set(&mut self, replica: usize, page: u64, stale: bool) {
        let (word, bit) = (&mut self.0[replica][(page / 32) as usize], 1 << (page % 32));
        *word = if stale { *word | bit } else { *word & !bit };
    }
}

/// The checksum of a page as the device keeps it: its CRC-32C, and 1 for 0, which says that it is not known.
pub(crate) fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c(page).max(1)
}

impl OnGpu {
    /// Copies bytes of the home out.
    ///
    /// # Errors
    /// Of a home that is elsewhere.
    ///
    /// # Safety
    /// The span lies in the region, and nothing writes it: no launch that names the region is in flight, and its last
    /// WRITE has completed.
    pub(super) unsafe fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.is_replicated() {
            // SAFETY: passed on from the caller.
            false => unsafe { self.home().read(&*self.gpu.device, offset, out) },
            // SAFETY: as above.
            true => unsafe { self.copy_out_of_replicas(offset, out) },
        }
    }

    /// Copies bytes into the home.
    ///
    /// # Safety
    /// The span lies in the region, which may be written, and nothing else reads or writes it: no launch that names the
    /// region is in flight, and no frame holds a page of it.
    pub(super) unsafe fn copy_in(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self.guards.checksums {
            // SAFETY: passed on from the caller.
            0 => unsafe { self.copy_in_anywhere(offset, data) },
            // SAFETY: as above.
            _ => unsafe { self.copy_in_checked(offset, data) },
        }
    }

    /// Homes of each page.
    pub fn replicas(&self) -> u32 {
        self.homes.len() as u32
    }

    pub fn is_replicated(&self) -> bool {
        self.homes.len() > 1
    }

    /// This host's memory that goes with homes that can be lost, by the home.
    fn spans(&self) -> impl Iterator<Item = (&LocalHome, Span)> {
        let queues = self.gpu.queues().filter(|_| self.is_replicated());
        let locals = queues.into_iter().flat_map(|queues| queues.local_homes());
        let of_home = |(local, (_, home)): (_, (_, &dyn Home))| {
            let memory = home.host_memory()?;
            let (base, bytes) = (memory.base, memory.bytes);
            Some((local, Span { base, bytes }))
        };
        locals.map(|local| &**local).zip(self.rows()).filter_map(of_home)
    }

    /// What the region has at homes that can be lost goes with them.
    pub(super) fn join_local_homes(&self) {
        self.spans().for_each(|(local, span)| local.add(span));
    }

    pub(super) fn leave_local_homes(&self) {
        self.spans().for_each(|(local, span)| local.remove(span));
    }

    /// Keeps local homes from being lost while the host looks at them.
    pub(super) fn hold(&self) -> Vec<MutexGuard<'_, Spans>> {
        let locals = self.gpu.queues().into_iter().flat_map(|queues| queues.local_homes());
        locals.map(|local| local.hold()).collect()
    }

    /// Whether the host cannot reach the home of a page in a replica.
    pub(super) fn is_lost(&self, replica: usize, page: u64) -> bool {
        self.homes[replica].home.is_lost(&self.gpu.data_paths(), page)
    }

    /// Whether it or kernels cannot.
    pub(super) fn is_away(&self, replica: usize, page: u64) -> bool {
        self.homes[replica].home.is_away(&self.gpu.data_paths(), page)
    }

    /// The tables that guard it; none once the region has ended.
    fn with_stale<R>(&self, ask: impl FnOnce(&DeviceArray<u32>) -> R) -> Option<R> {
        let tables = self.view.tables();
        tables.as_ref()?.guards.stale.as_ref().map(ask)
    }

    pub(super) fn read_stale(&self) -> Result<Stale> {
        let words = self.pages().count().div_ceil(32) as usize;
        let bits = self.with_stale(|stale| stale.read(&*self.gpu.device, 0, 2 * words));
        let bits = bits.unwrap_or_else(|| Ok(vec![0; 2 * words]));
        let bits = bits.doing(|| format!("reading which copies of region `{}` are stale", self.name()));
        let bits = match bits {
            Err(_) if self.gpu.device.lost().is_some() => {
                // The bits are gone with the GPU: a home that was lost at any time may be behind.
                let mut bits = vec![0; 2 * words];
                for ((_, home), bits) in self.rows().zip(bits.chunks_mut(words.max(1))) {
                    let pages = 0..self.pages().count();
                    for page in pages.filter(|page| home.was_away(&self.gpu.data_paths(), *page)) {
                        bits[(page / 32) as usize] |= 1 << (page % 32);
                    }
                }
                bits
            }
            bits => bits?,
        };
        let (first, second) = bits.split_at(words);
        Ok(Stale(vec![first.to_vec(), second.to_vec()]))
    }

    /// Whether a page can be read from a replica.
    pub(super) fn has_good(&self, stale: &Stale, replica: usize, page: u64) -> bool {
        !stale.has(replica, page) && !self.is_lost(replica, page)
    }

    /// The replica to read a page from.
    fn good_replica(&self, stale: &Stale, page: u64) -> Result<usize> {
        let found = (0..2).find(|&row| self.has_good(stale, row, page));
        found.ok_or_else(|| self.no_replica(page))
    }

    /// Copies bytes out of good copies.
    ///
    /// # Errors
    /// [`Error::NoReplica`], and of homes that are elsewhere.
    ///
    /// # Safety
    /// As for `copy_out`.
    pub(super) unsafe fn copy_out_of_replicas(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let wanted = offset..offset + out.len() as u64;
        if wanted.is_empty() {
            return Ok(());
        }
        let stale = self.read_stale()?;
        let _held = self.hold();
        let mut at = wanted.start;
        while at < wanted.end {
            let page = self.pages().of(at);
            let row = self.good_replica(&stale, page)?;
            // As far as the same replica is good.
            let last = self.pages().of_span(&wanted).end;
            let next = (page + 1..last).find(|&next| self.good_replica(&stale, next).ok() != Some(row));
            let until = next.map_or(wanted.end, |next| self.pages().start(next));
            let piece = &mut out[(at - offset) as usize..(until - offset) as usize];
            let gpu = &*self.gpu.device;
            // SAFETY: passed on from the caller.
            if let Err(error) = unsafe { self.homes[row].home.read(gpu, at, piece) } {
                // It went away meanwhile.
                let mut pages = self.pages().of_span(&(at..until));
                if !pages.all(|page| self.has_good(&stale, 1 - row, page)) {
                    return Err(error);
                }
                // SAFETY: as above.
                unsafe { self.homes[1 - row].home.read(gpu, at, piece) }?;
            }
            at = until;
        }
        Ok(())
    }

    /// Copies bytes into both copies; a home that is lost has stale ones then. One copy of each page holds all of it afterwards, or
    /// this is an error: bytes in a copy that lacks others are no copy.
    ///
    /// # Errors
    /// [`Error::NoReplica`], and of homes that are elsewhere.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_to_replicas(&self, offset: u64, data: &[u8]) -> Result<()> {
        let given = offset..offset + data.len() as u64;
        if given.is_empty() {
            return Ok(());
        }
        let before = self.read_stale()?;
        let mut stale = before.clone();
        let _held = self.hold();
        let both = |page: u64| (0..2).all(|row| self.has_good(&before, row, page));
        let last = self.pages().of_span(&given).end;
        let mut at = given.start;
        let mut ended = Ok(());
        while at < given.end && ended.is_ok() {
            let page = self.pages().of(at);
            // As far as both are good; else one page.
            let next = match both(page) {
                true => (page + 1..last).find(|&next| !both(next)),
                false => Some(page + 1).filter(|next| *next < last),
            };
            let span = at..next.map_or(given.end, |next| self.pages().start(next));
            let piece = &data[(span.start - offset) as usize..(span.end - offset) as usize];
            at = span.end;
            // SAFETY: passed on from the caller.
            ended = unsafe { self.copy_in_to_both(span, piece, &before, &mut stale) };
        }
        let told = match stale == before {
            true => Ok(()),
            false => {
                // Relaxed: a hint to the thread that catches up.
                self.gpu.catching_up.behind.store(true, Ordering::Relaxed);
                self.write_stale(&stale)
            }
        };
        ended.and(told)
    }

    /// Copies the bytes of `span` into both copies, which are both good there unless it lies in one page; `stale` says then which
    /// copies are not.
    ///
    /// # Safety
    /// As for `copy_in`.
    unsafe fn copy_in_to_both(&self, span: Range<u64>, piece: &[u8], before: &Stale, stale: &mut Stale) -> Result<()> {
        let page = self.pages().of(span.start);
        let whole = self.pages().are_whole(&span);
        let (mut good, mut behind, mut failure) = (Vec::new(), Vec::new(), None);
        for (row, home) in self.rows() {
            let copied = match self.is_lost(row, page) {
                true => None,
                // SAFETY: passed on from the caller.
                false => Some(unsafe { home.write(&*self.gpu.device, span.start, piece) }),
            };
            match copied {
                Some(Ok(())) if whole || !before.has(row, page) => good.push(row),
                Some(Ok(())) => {}
                outcome => {
                    behind.push(row);
                    failure = outcome.and_then(Result::err).or(failure);
                }
            }
        }
        if good.is_empty() {
            // The copy that counts stays the one that counted, with what reached it.
            return Err(failure.unwrap_or_else(|| self.no_replica(page)));
        }
        for page in self.pages().of_span(&span) {
            good.iter().for_each(|&row| stale.set(row, page, false));
            behind.iter().for_each(|&row| stale.set(row, page, true));
        }
        Ok(())
    }

    pub(super) fn no_replica(&self, page: u64) -> Error {
        Error::NoReplica {
            region: self.name().to_owned(),
            page,
        }
    }

    /// Copies good copies over stale ones, where kernels never write. What nodes gave anew is sealed when it is whole; what they
    /// have sealed stays as it is.
    ///
    /// # Safety
    /// As for `copy_in`; frames may hold pages.
    pub(crate) unsafe fn copy_to_stale(&self, pages: Range<u64>) -> Result<()> {
        if self.view.has_ended() {
            return Ok(());
        }
        let mut stale = self.read_stale()?;
        let _held = self.hold();
        let gpu = &*self.gpu.device;
        for page in pages {
            for (row, home) in self.rows() {
                if !stale.has(row, page) || self.is_lost(row, page) {
                    continue;
                }
                let Ok(good) = self.good_replica(&stale, page) else {
                    continue;
                };
                let span = self.pages().span(page);
                let mut bytes = vec![0; (span.end - span.start) as usize];
                // SAFETY: passed on from the caller.
                unsafe { self.homes[good].home.read(gpu, span.start, &mut bytes) }?;
                if home.at_nodes().is_some_and(|nodes| nodes.is_sealed(page)) {
                    // Nothing can write it. What was refused once, or damaged on the way, may be right all the same.
                    let mut there = vec![0; bytes.len()];
                    // SAFETY: as above.
                    unsafe { home.read(gpu, span.start, &mut there) }?;
                    if there != bytes {
                        continue;
                    }
                } else {
                    // SAFETY: as above; no lane reads a stale copy.
                    unsafe { home.write(gpu, span.start, &bytes) }?;
                }
                stale.set(row, page, false);
            }
        }
        if self.is_at_nodes() {
            let stripes = self.stripe_count().max(1);
            let pages = |row, stripe| {
                (stripe as u64..self.pages().count())
                    .step_by(stripes)
                    .map(move |page| (row, page))
            };
            self.seal_filled(|row, stripe| pages(row, stripe).all(|(row, page)| !stale.has(row, page)))?;
        }
        self.write_stale(&stale)
    }

    /// While no frame holds a page of the region and nothing else changes the bits.
    fn write_stale(&self, stale: &Stale) -> Result<()> {
        let written = self.with_stale(|table| table.write(&*self.gpu.device, 0, &stale.0.concat()));
        let written = written.unwrap_or(Ok(()));
        written.doing(|| format!("marking stale copies of region `{}`", self.name()))
    }

    /// Whether a home that is there holds stale copies.
    pub fn is_behind(&self) -> Result<bool> {
        if !self.is_replicated() || self.view.has_ended() {
            return Ok(false);
        }
        let stale = self.read_stale()?;
        let is_behind = |page| (0..2).any(|row| stale.has(row, page) && !self.is_away(row, page));
        Ok((0..self.pages().count()).any(is_behind))
    }

    /// Copies bytes into the home, or both, without a look at checksums.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_anywhere(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self.is_replicated() {
            // SAFETY: passed on from the caller.
            false => unsafe { self.home().write(&*self.gpu.device, offset, data) },
            // SAFETY: as above.
            true => unsafe { self.copy_in_to_replicas(offset, data) },
        }
    }

    /// Copies bytes into the home, or both, of a region with checksums.
    ///
    /// A page of which it covers a part is read first and compared with its checksum, so that damage is not taken for data, and
    /// written whole. While the home changes no checksum counts: after an error in between what was read is taken as it is.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_checked(&self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let given = offset..offset + data.len() as u64;
        let of_data = |span: &Range<u64>| &data[(span.start - offset) as usize..(span.end - offset) as usize];
        let pages = self.pages().of_span(&given);
        // What lies between the pages of which it covers a part.
        let mut middle = given.clone();
        let mut edges: Vec<(u64, Vec<u8>)> = Vec::new();
        for page in [pages.start, pages.end - 1] {
            let all = self.pages().span(page);
            let covered = all.start.max(given.start)..all.end.min(given.end);
            if covered == all || edges.iter().any(|(known, _)| *known == page) {
                continue;
            }
            // SAFETY: passed on from the caller.
            let mut bytes = unsafe { self.read_verified(page) }?;
            bytes[(covered.start - all.start) as usize..(covered.end - all.start) as usize]
                .copy_from_slice(of_data(&covered));
            edges.push((page, bytes));
            if page == pages.start {
                middle.start = all.end;
            }
            if page == pages.end - 1 {
                middle.end = all.start;
            }
        }
        let edge = |page: u64| edges.iter().find(|(known, _)| *known == page);
        let sums = pages.clone().map(|page| match edge(page) {
            Some((_, bytes)) => checksum(bytes),
            None => checksum(of_data(&self.pages().span(page))),
        });
        let sums: Vec<u32> = sums.collect();
        self.write_checksums(pages.start, &vec![0; sums.len()])?;
        for (page, bytes) in &edges {
            // SAFETY: passed on from the caller; the page lies in the region.
            unsafe { self.copy_in_anywhere(self.pages().start(*page), bytes) }?;
        }
        if middle.start < middle.end {
            // SAFETY: as above.
            unsafe { self.copy_in_anywhere(middle.start, of_data(&middle)) }?;
        }
        self.write_checksums(pages.start, &sums)
    }

    /// A page as a home has it that bears out its checksum.
    ///
    /// # Safety
    /// As for `copy_out`.
    unsafe fn read_verified(&self, page: u64) -> Result<Vec<u8>> {
        let kept = self.with_checksums(|table| table.read(&*self.gpu.device, page, 1));
        let kept = kept.transpose();
        let kept = kept.doing(|| format!("reading a checksum of region `{}`", self.name()))?;
        let kept = kept.map_or(0, |kept| kept[0]);
        let stale = match self.is_replicated() {
            true => Some(self.read_stale()?),
            false => None,
        };
        let _held = self.hold();
        let span = self.pages().span(page);
        let mut bytes = vec![0; (span.end - span.start) as usize];
        let mut failure = None;
        for (row, home) in self.rows() {
            if stale.as_ref().is_some_and(|stale| !self.has_good(stale, row, page)) {
                continue;
            }
            // SAFETY: passed on from the caller.
            match unsafe { home.read(&*self.gpu.device, span.start, &mut bytes) } {
                Ok(()) if kept == 0 || checksum(&bytes) == kept => return Ok(bytes),
                Ok(()) => failure = failure.or(Some(self.damaged(row, page))),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::NoReplica {
            region: self.name().to_owned(),
            page,
        }))
    }

    fn damaged(&self, row: usize, page: u64) -> Error {
        Error::Damaged {
            region: self.name().to_owned(),
            page,
            home: self.homes[row].home.name(page),
        }
    }

    fn write_checksums(&self, first: u64, sums: &[u32]) -> Result<()> {
        let written = self.with_checksums(|table| table.write(&*self.gpu.device, first, sums));
        let written = written.unwrap_or(Ok(()));
        written.doing(|| format!("keeping checksums of region `{}`", self.name()))
    }

    /// Asks the table of checksums; none without, and once the region has ended.
    fn with_checksums<R>(&self, ask: impl FnOnce(&DeviceArray<u32>) -> R) -> Option<R> {
        let tables = self.view.tables();
        tables.as_ref()?.guards.checksums.as_ref().map(ask)
    }
}
