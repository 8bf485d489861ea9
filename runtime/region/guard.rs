//! What guards a region's pages: tables in GPU memory, and checksums as the host keeps them.

use std::ops::Range;

use super::RegionInner;
use crate::error::{Doing, Error, Result};

/// The checksum of a page as the device keeps it: its CRC-32C, and 1 for 0, which says that it is not known.
pub(crate) fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c(page).max(1)
}

impl RegionInner {
    /// Copies bytes into the home, or both, without a look at checksums.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_anywhere(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self.is_replicated() {
            // SAFETY: passed on from the caller.
            false => unsafe { self.home().write(&**self.own.gpu.device(), offset, data) },
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
        let pages = self.pages.of_span(&given);
        // What lies between the pages of which it covers a part.
        let mut middle = given.clone();
        let mut edges: Vec<(u64, Vec<u8>)> = Vec::new();
        for page in [pages.start, pages.end - 1] {
            let all = self.pages.span(page);
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
            None => checksum(of_data(&self.pages.span(page))),
        });
        let sums: Vec<u32> = sums.collect();
        self.write_checksums(pages.start, &vec![0; sums.len()])?;
        for (page, bytes) in &edges {
            // SAFETY: passed on from the caller; the page lies in the region.
            unsafe { self.copy_in_anywhere(self.pages.start(*page), bytes) }?;
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
        let kept = match &*self.own.view.tables() {
            Some(tables) => match &tables.guards.checksums {
                Some(table) => {
                    let kept = table.read(&**self.own.gpu.device(), page, 1);
                    kept.doing(|| format!("reading a checksum of region `{}`", self.name))?[0]
                }
                None => 0,
            },
            None => 0,
        };
        let stale = match self.is_replicated() {
            true => Some(self.read_stale()?),
            false => None,
        };
        let _held = self.hold();
        let span = self.pages.span(page);
        let mut bytes = vec![0; (span.end - span.start) as usize];
        let mut failure = None;
        for (row, home) in self.rows() {
            if stale.as_ref().is_some_and(|stale| !self.has_good(stale, row, page)) {
                continue;
            }
            // SAFETY: passed on from the caller.
            match unsafe { home.read(&**self.own.gpu.device(), span.start, &mut bytes) } {
                Ok(()) if kept == 0 || checksum(&bytes) == kept => return Ok(bytes),
                Ok(()) => failure = failure.or(Some(self.damaged(row, page))),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::NoReplica {
            region: self.name.clone(),
            page,
        }))
    }

    fn damaged(&self, row: usize, page: u64) -> Error {
        Error::Damaged {
            region: self.name.clone(),
            page,
            home: self.own.homes[row].home.name(page),
        }
    }

    fn write_checksums(&self, first: u64, sums: &[u32]) -> Result<()> {
        match &*self.own.view.tables() {
            Some(tables) => match &tables.guards.checksums {
                Some(table) => table
                    .write(&**self.own.gpu.device(), first, sums)
                    .doing(|| format!("keeping checksums of region `{}`", self.name)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}
