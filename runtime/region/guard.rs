//! What guards a region's pages: two homes for each, and checksums.

use std::sync::{MutexGuard, atomic::Ordering};

use gpuvm_gpu::GpuError;

use super::{Region, RegionInner, Span};
use crate::{
    builder::VmBuilder,
    device::DeviceArray,
    error::{Doing, Error, Result},
    home::Home,
    vm::VmInner,
};

/// Tables in GPU memory; those that the region does not need are missing.
pub(crate) struct Guards {
    /// A bitmap a replica: see `RegionDesc::stale`.
    stale: Option<DeviceArray<u32>>,
    joins: Option<DeviceArray<u32>>,
    checksums: Option<DeviceArray<u32>>,
}

/// Where they lie; 0 where they are missing.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub stale: u64,
    pub joins: u64,
    pub checksums: u64,
}

impl Guards {
    pub fn create(vm: &VmInner, pages: u64, replicated: bool, checksums: Option<&[u32]>) -> Result<Self, GpuError> {
        let zeroed = |length| match replicated {
            true => DeviceArray::zeroed(&*vm.gpu, length).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            stale: zeroed(2 * pages.div_ceil(32))?,
            joins: zeroed(pages)?,
            checksums: checksums
                .map(|sums| DeviceArray::from_slice(&*vm.gpu, sums))
                .transpose()?,
        })
    }

    pub fn addresses(&self) -> Addresses {
        let addr = |array: &Option<DeviceArray<u32>>| array.as_ref().map_or(0, DeviceArray::addr);
        Addresses {
            stale: addr(&self.stale),
            joins: addr(&self.joins),
            checksums: addr(&self.checksums),
        }
    }
}

/// The checksum of a page as the device keeps it: its CRC-32C, and 1 for 0, which says that it is not known.
pub(crate) fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c(page).max(1)
}

/// Bits of the replicas, one for each page.
#[derive(Clone, PartialEq, Eq)]
struct Stale(Vec<Vec<u32>>);

impl Stale {
    fn has(&self, replica: usize, page: u64) -> bool {
        self.0[replica][(page / 32) as usize] >> (page % 32) & 1 != 0
    }

    fn set(&mut self, replica: usize, page: u64, stale: bool) {
        let (word, bit) = (&mut self.0[replica][(page / 32) as usize], 1 << (page % 32));
        *word = if stale { *word | bit } else { *word & !bit };
    }
}

/// How a region's homes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHealth {
    /// Each home that holds copies of the region's pages.
    pub homes: Vec<HomeHealth>,
    /// Pages of which no home that can be reached has a good copy. Those that are dirty in GPU memory are no loss yet: see
    /// [`Region::salvage`].
    pub pages_without_copy: u64,
}

impl RegionHealth {
    /// Whether every home is there and holds what it should.
    pub fn is_whole(&self) -> bool {
        self.pages_without_copy == 0 && self.homes.iter().all(|home| !home.is_lost && home.stale_pages == 0)
    }
}

/// One of a region's homes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeHealth {
    /// Its name, as messages have it.
    pub name: String,
    /// It cannot be reached, or, of a region without replicas at a memory node, the session that held its pages is over:
    /// what was there is gone, also when the node serves again.
    pub is_lost: bool,
    /// Pages whose copy there is not what was written back last. They are never read there.
    pub stale_pages: u64,
}

impl VmBuilder {
    /// Whether regions may have checksums or replicas.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded_regions || self.host_homes > 1
    }
}

impl RegionInner {
    /// Homes of each page.
    pub fn replicas(&self) -> u32 {
        1 + u32::from(self.mirror.is_some())
    }

    pub fn is_replicated(&self) -> bool {
        self.mirror.is_some()
    }

    /// The homes with their replicas' numbers.
    fn rows(&self) -> impl Iterator<Item = (usize, &Home)> {
        std::iter::once(&self.home).chain(&self.mirror).enumerate()
    }

    fn spans(&self) -> Vec<(usize, Span)> {
        let span = |(row, home): (usize, &Home)| match home {
            Home::Host(memory, _) => Some((
                row,
                Span {
                    base: memory.base,
                    bytes: memory.bytes,
                },
            )),
            _ => None,
        };
        match self.is_replicated() {
            true => self.rows().filter_map(span).collect(),
            false => Vec::new(),
        }
    }

    /// What the region has at homes that can be lost goes with them.
    pub(super) fn join_local_homes(&self) {
        let Some(queues) = &self.vm.queues else { return };
        for (row, span) in self.spans() {
            if let Some(local) = queues.local_homes().get(row) {
                local.add(span);
            }
        }
    }

    pub(super) fn leave_local_homes(&self) {
        let Some(queues) = &self.vm.queues else { return };
        for (row, span) in self.spans() {
            if let Some(local) = queues.local_homes().get(row) {
                local.remove(span);
            }
        }
    }

    /// Keeps local homes from being lost while the host looks at them.
    fn hold(&self) -> Vec<MutexGuard<'_, Vec<Span>>> {
        let locals = self.vm.queues.iter().flat_map(|queues| queues.local_homes());
        locals.map(|local| local.hold()).collect()
    }

    /// Whether the host cannot reach the home of a page in a replica.
    fn is_lost(&self, replica: usize, page: u64) -> bool {
        match self.rows().nth(replica) {
            Some((_, Home::Nodes(memory))) => {
                let memory = memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let grants = memory.iter().flat_map(|memory| &memory.grants);
                let count = grants.clone().count().max(1) as u64;
                let failed = |grant: &gpuvm_memory_node::Grant| grant.client().failure().is_some();
                grants.clone().nth((page % count) as usize).is_none_or(failed)
            }
            Some((_, Home::Host(..))) => {
                let queues = self.vm.queues.as_ref();
                queues.is_some_and(|queues| queues.is_local_lost(replica))
            }
            _ => true,
        }
    }

    /// Whether kernels cannot.
    fn is_away(&self, replica: usize, page: u64) -> bool {
        self.is_lost(replica, page) || (self.is_at_nodes() && self.is_node_away(replica, page))
    }

    fn read_stale(&self) -> Result<Stale> {
        let words = self.pages.div_ceil(32) as usize;
        let bits = match &*self.lock_tables() {
            Some(tables) => match &tables.guards.stale {
                Some(stale) => stale.read(&*self.vm.gpu, 0, 2 * words),
                None => Ok(vec![0; 2 * words]),
            },
            None => Ok(vec![0; 2 * words]),
        };
        let bits = bits.doing(|| format!("reading which copies of region `{}` are stale", self.name));
        let bits = match (bits, &self.vm.queues) {
            (Err(_), Some(queues)) if self.vm.gpu.lost().is_some() => {
                // The bits are gone with the GPU: a home that was lost at any time may be behind.
                let behind = |row, page| match self.is_at_nodes() {
                    true => self.was_node_away(row, page),
                    false => queues.was_local_lost(row),
                };
                let mut bits = vec![0; 2 * words];
                for (row, bits) in bits.chunks_mut(words.max(1)).enumerate() {
                    for page in (0..self.pages).filter(|page| behind(row, *page)) {
                        bits[(page / 32) as usize] |= 1 << (page % 32);
                    }
                }
                bits
            }
            (bits, _) => bits?,
        };
        let (first, second) = bits.split_at(words);
        Ok(Stale(vec![first.to_vec(), second.to_vec()]))
    }

    /// Whether a page can be read from a replica.
    fn has_good(&self, stale: &Stale, replica: usize, page: u64) -> bool {
        !stale.has(replica, page) && !self.is_lost(replica, page)
    }

    /// The replica to read a page from.
    fn good_replica(&self, stale: &Stale, page: u64) -> Result<usize> {
        let found = (0..2).find(|&row| self.has_good(stale, row, page));
        found.ok_or_else(|| Error::NoReplica {
            region: self.name.clone(),
            page,
        })
    }

    /// Copies bytes out of good copies.
    ///
    /// # Safety
    /// As for `copy_out`.
    pub(super) unsafe fn copy_out_of_replicas(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let stale = self.read_stale()?;
        let _held = self.hold();
        let shift = self.vm.page_shift;
        let end = offset + out.len() as u64;
        let mut at = offset;
        while at < end {
            let row = self.good_replica(&stale, at >> shift)?;
            // As far as the same replica is good.
            let mut until = ((at >> shift) + 1) << shift;
            while until < end && self.good_replica(&stale, until >> shift).is_ok_and(|next| next == row) {
                until += 1 << shift;
            }
            let until = until.min(end);
            let Some((_, home)) = self.rows().nth(row) else { break };
            let piece = &mut out[(at - offset) as usize..(until - offset) as usize];
            // SAFETY: passed on from the caller.
            if let Err(error) = unsafe { self.copy_out_of(home, at, piece) } {
                // It went away meanwhile.
                let mut pages = (at >> shift)..=((until - 1) >> shift);
                let other = self.rows().nth(1 - row).map(|(_, home)| home);
                let Some(other) = other.filter(|_| pages.all(|page| self.has_good(&stale, 1 - row, page))) else {
                    return Err(error);
                };
                // SAFETY: as above.
                unsafe { self.copy_out_of(other, at, piece) }?;
            }
            at = until;
        }
        Ok(())
    }

    /// Copies bytes into both copies; a home that is lost has stale ones then. One copy of each page holds all of it afterwards, or
    /// this is an error: bytes in a copy that lacks others are no copy.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_to_replicas(&self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let shift = self.vm.page_shift;
        let end = offset + data.len() as u64;
        let before = self.read_stale()?;
        let mut stale = before.clone();
        let _held = self.hold();
        let mut at = offset;
        let mut ended = Ok(());
        while at < end && ended.is_ok() {
            let page = at >> shift;
            let both = |page: u64| (0..2).all(|row| self.has_good(&before, row, page));
            let mut until = (page + 1) << shift;
            while both(page) && until < end && both(until >> shift) {
                until += 1 << shift;
            }
            let until = until.min(end);
            let piece = &data[(at - offset) as usize..(until - offset) as usize];
            let whole = at == page << shift && (until == (page + 1) << shift || until == self.bytes);
            let (mut good, mut behind, mut failure) = (Vec::new(), Vec::new(), None);
            for (row, home) in self.rows() {
                let copied = match self.is_lost(row, page) {
                    true => None,
                    // SAFETY: passed on from the caller.
                    false => Some(unsafe { self.copy_in_to(home, at, piece) }),
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
                ended = Err(failure.unwrap_or_else(|| Error::NoReplica {
                    region: self.name.clone(),
                    page,
                }));
                break;
            }
            for page in page..=(until - 1) >> shift {
                good.iter().for_each(|&row| stale.set(row, page, false));
                behind.iter().for_each(|&row| stale.set(row, page, true));
            }
            at = until;
        }
        let told = match stale == before {
            true => Ok(()),
            false => {
                // Relaxed: a hint to the thread that catches up.
                self.vm.behind.store(true, Ordering::Relaxed);
                self.write_stale(&stale)
            }
        };
        ended.and(told)
    }

    /// Copies bytes into the home, or both, without a look at checksums.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_anywhere(&self, offset: u64, data: &[u8]) -> Result<()> {
        match &self.mirror {
            // SAFETY: passed on from the caller.
            None => unsafe { self.copy_in_to(&self.home, offset, data) },
            // SAFETY: as above.
            Some(_) => unsafe { self.copy_in_to_replicas(offset, data) },
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
        let Some(last_byte) = (data.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        let shift = self.vm.page_shift;
        let end = offset + data.len() as u64;
        let (first, last) = (offset >> shift, (offset + last_byte) >> shift);
        let span = |page: u64| page << shift..((page + 1) << shift).min(self.bytes);
        let of_data = |from: u64, to: u64| &data[(from - offset) as usize..(to - offset) as usize];
        let mut middle = offset..end;
        let mut edges: Vec<(u64, Vec<u8>)> = Vec::new();
        for page in [first, last] {
            let all = span(page);
            if (all.start >= offset && all.end <= end) || edges.iter().any(|(known, _)| *known == page) {
                continue;
            }
            // SAFETY: passed on from the caller.
            let mut bytes = unsafe { self.read_verified(page, all.clone()) }?;
            let (from, to) = (all.start.max(offset), all.end.min(end));
            bytes[(from - all.start) as usize..(to - all.start) as usize].copy_from_slice(of_data(from, to));
            edges.push((page, bytes));
            if page == first {
                middle.start = all.end;
            }
            if page == last {
                middle.end = all.start;
            }
        }
        let edge = |page: u64| edges.iter().find(|(known, _)| *known == page);
        let sums = (first..=last).map(|page| match edge(page) {
            Some((_, bytes)) => checksum(bytes),
            None => checksum(of_data(span(page).start, span(page).end)),
        });
        let sums: Vec<u32> = sums.collect();
        self.write_checksums(first, &vec![0; sums.len()])?;
        for (page, bytes) in &edges {
            // SAFETY: passed on from the caller; the page lies in the region.
            unsafe { self.copy_in_anywhere(page << shift, bytes) }?;
        }
        if middle.start < middle.end {
            // SAFETY: as above.
            unsafe { self.copy_in_anywhere(middle.start, of_data(middle.start, middle.end)) }?;
        }
        self.write_checksums(first, &sums)
    }

    /// A page as a home has it that bears out its checksum.
    ///
    /// # Safety
    /// As for `copy_out`.
    unsafe fn read_verified(&self, page: u64, span: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let kept = match &*self.lock_tables() {
            Some(tables) => match &tables.guards.checksums {
                Some(table) => {
                    let kept = table.read(&*self.vm.gpu, page, 1);
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
        let mut bytes = vec![0; (span.end - span.start) as usize];
        let mut failure = None;
        for (row, home) in self.rows() {
            if stale.as_ref().is_some_and(|stale| !self.has_good(stale, row, page)) {
                continue;
            }
            // SAFETY: passed on from the caller.
            match unsafe { self.copy_out_of(home, span.start, &mut bytes) } {
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
            home: self.home_name(row, page),
        }
    }

    fn write_checksums(&self, first: u64, sums: &[u32]) -> Result<()> {
        match &*self.lock_tables() {
            Some(tables) => match &tables.guards.checksums {
                Some(table) => table
                    .write(&*self.vm.gpu, first, sums)
                    .doing(|| format!("keeping checksums of region `{}`", self.name)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Copies good copies over stale ones, where kernels never write. What nodes gave anew is sealed when it is whole; what they
    /// have sealed stays as it is.
    ///
    /// # Safety
    /// As for `copy_in`; frames may hold pages.
    pub(crate) unsafe fn copy_to_stale(&self, pages: std::ops::Range<u64>) -> Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        let mut stale = self.read_stale()?;
        let _held = self.hold();
        let shift = self.vm.page_shift;
        for page in pages {
            for (row, home) in self.rows() {
                if !stale.has(row, page) || self.is_lost(row, page) || self.good_replica(&stale, page).is_err() {
                    continue;
                }
                let (first, end) = (page << shift, ((page + 1) << shift).min(self.bytes));
                let mut bytes = vec![0; (end - first) as usize];
                let Some((_, good)) = self.rows().nth(self.good_replica(&stale, page)?) else {
                    continue;
                };
                // SAFETY: passed on from the caller.
                unsafe { self.copy_out_of(good, first, &mut bytes) }?;
                if self.is_sealed(row, page) {
                    // Nobody can write it. What was refused once, or damaged on the way, may be right all the same.
                    let mut there = vec![0; bytes.len()];
                    // SAFETY: as above.
                    unsafe { self.copy_out_of(home, first, &mut there) }?;
                    if there != bytes {
                        continue;
                    }
                } else {
                    // SAFETY: as above; no lane reads a stale copy.
                    unsafe { self.copy_in_to(home, first, &bytes) }?;
                }
                stale.set(row, page, false);
            }
        }
        if self.is_at_nodes() {
            let stripes = self.stripe_count().max(1);
            let pages = |row, stripe| {
                (stripe as u64..self.pages)
                    .step_by(stripes)
                    .map(move |page| (row, page))
            };
            self.seal_filled(|row, stripe| pages(row, stripe).all(|(row, page)| !stale.has(row, page)))?;
        }
        self.write_stale(&stale)
    }

    /// While no frame holds a page of the region and nobody else changes the bits.
    fn write_stale(&self, stale: &Stale) -> Result<()> {
        match &*self.lock_tables() {
            Some(tables) => match &tables.guards.stale {
                Some(table) => table
                    .write(&*self.vm.gpu, 0, &stale.0.concat())
                    .doing(|| format!("marking stale copies of region `{}`", self.name)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Whether a home that is there holds stale copies.
    pub fn is_behind(&self) -> Result<bool> {
        if !self.is_replicated() || self.has_ended() {
            return Ok(false);
        }
        let stale = self.read_stale()?;
        Ok((0..self.pages).any(|page| (0..2).any(|row| stale.has(row, page) && !self.is_away(row, page))))
    }

    fn health(&self) -> Result<RegionHealth> {
        let stale = self.read_stale()?;
        let mut homes: Vec<HomeHealth> = Vec::new();
        let mut pages_without_copy = 0;
        for page in 0..self.pages {
            let mut good = false;
            for row in 0..self.replicas() as usize {
                let (is_lost, is_stale) = match self.is_replicated() {
                    true => (self.is_away(row, page), stale.has(row, page)),
                    // Of a session that is over, a node has nothing any more.
                    false => (self.is_at_nodes() && self.is_lost(row, page), false),
                };
                good |= !is_lost && !is_stale;
                let name = self.home_name(row, page);
                let place = match homes.iter().position(|home| home.name == name) {
                    Some(place) => {
                        homes[place].is_lost |= is_lost;
                        place
                    }
                    None => {
                        homes.push(HomeHealth {
                            name,
                            is_lost,
                            stale_pages: 0,
                        });
                        homes.len() - 1
                    }
                };
                homes[place].stale_pages += u64::from(is_stale);
            }
            pages_without_copy += u64::from(!good);
        }
        homes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(RegionHealth {
            homes,
            pages_without_copy,
        })
    }

    fn home_name(&self, row: usize, page: u64) -> String {
        match self.rows().nth(row) {
            Some((_, Home::Nodes(memory))) => {
                let memory = memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let grants = memory.as_ref().map_or(&[][..], |memory| &memory.grants);
                let grant = grants.get((page % grants.len().max(1) as u64) as usize);
                grant.map_or_else(
                    || "memory nodes".into(),
                    |grant| format!("memory node {}", grant.client().address()),
                )
            }
            Some((_, Home::Neighbour(_))) => "a neighbour GPU".into(),
            _ if self.is_replicated() => format!("home {row} of this host"),
            _ => "this host".into(),
        }
    }
}

impl<T: bytemuck::Pod> Region<T> {
    /// How the region's homes are: which are lost, and how many of their copies are stale. Exact when no launch runs.
    ///
    /// # Errors
    /// [`Error::Gpu`] when GPU memory cannot be read.
    pub fn health(&self) -> Result<RegionHealth> {
        self.inner.vm.or_lost(self.inner.health())
    }
}
