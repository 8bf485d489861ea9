//! What guards a region's pages: two homes for each, and checksums.

use std::sync::MutexGuard;

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
struct Stale(Vec<Vec<u32>>);

impl Stale {
    fn has(&self, replica: usize, page: u64) -> bool {
        self.0[replica][(page / 32) as usize] >> (page % 32) & 1 != 0
    }
}

/// How a region's homes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHealth {
    /// Each home that holds copies of the region's pages.
    pub homes: Vec<HomeHealth>,
    /// Pages of which no home that can be reached has a good copy. Those that are dirty in GPU memory are no loss yet.
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
    /// It cannot be reached.
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

    /// Why the home of a page in a replica cannot be reached.
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
                let behind = |row| match self.home {
                    Home::Host(..) => queues.was_local_lost(row),
                    _ => (0..self.pages.min(self.vm.nodes.len() as u64)).any(|page| self.is_lost(row, page)),
                };
                let of_row = |row| vec![if behind(row) { u32::MAX } else { 0 }; words];
                [of_row(0), of_row(1)].concat()
            }
            (bits, _) => bits?,
        };
        let (first, second) = bits.split_at(words);
        Ok(Stale(vec![first.to_vec(), second.to_vec()]))
    }

    /// The replica to read a page from.
    fn good_replica(&self, stale: &Stale, page: u64) -> Result<usize> {
        let mut rows = 0..2;
        let found = rows.find(|&row| !stale.has(row, page) && !self.is_lost(row, page));
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
            unsafe { self.copy_out_of(home, at, piece) }?;
            at = until;
        }
        Ok(())
    }

    /// Copies bytes into both copies; a home that is lost has stale ones then.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_in_to_replicas(&self, offset: u64, data: &[u8]) -> Result<()> {
        let shift = self.vm.page_shift;
        let end = offset + data.len() as u64;
        let _held = self.hold();
        let mut missed = Vec::new();
        let mut at = offset;
        while at < end {
            let page = at >> shift;
            let any_lost = |page: u64| (0..2).any(|row| self.is_lost(row, page));
            let mut until = (page + 1) << shift;
            while !any_lost(page) && until < end && !any_lost(until >> shift) {
                until += 1 << shift;
            }
            let until = until.min(end);
            let piece = &data[(at - offset) as usize..(until - offset) as usize];
            let mut failure = None;
            let mut written = 0;
            for (row, home) in self.rows() {
                let lost = any_lost(page) && self.is_lost(row, page);
                let copied = match lost {
                    true => Ok(()),
                    // SAFETY: passed on from the caller.
                    false => unsafe { self.copy_in_to(home, at, piece) },
                };
                match copied {
                    Ok(()) if !lost => written += 1,
                    outcome => {
                        missed.extend((page..=(until - 1) >> shift).map(|page| (row, page)));
                        failure = outcome.err().or(failure);
                    }
                }
            }
            if written == 0 {
                self.say_stale(&missed)?;
                return Err(failure.unwrap_or_else(|| Error::NoReplica {
                    region: self.name.clone(),
                    page,
                }));
            }
            at = until;
        }
        self.say_stale(&missed)
    }

    /// Copies good copies over stale ones, where kernels never write: what nodes have sealed stays as it is.
    ///
    /// # Safety
    /// As for `copy_in`; frames may hold pages.
    pub(crate) unsafe fn copy_to_stale(&self) -> Result<()> {
        if self.has_ended() || !matches!(self.home, Home::Host(..)) {
            return Ok(());
        }
        let mut stale = self.read_stale()?;
        let _held = self.hold();
        let shift = self.vm.page_shift;
        for page in 0..self.pages {
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
                // SAFETY: as above; no lane reads a stale copy.
                unsafe { self.copy_in_to(home, first, &bytes) }?;
                stale.0[row][(page / 32) as usize] &= !(1 << (page % 32));
            }
        }
        self.write_stale(&stale)
    }

    /// Marks copies as stale while no frame holds a page of the region and nobody else changes the bits.
    fn say_stale(&self, missed: &[(usize, u64)]) -> Result<()> {
        if missed.is_empty() {
            return Ok(());
        }
        let mut stale = self.read_stale()?;
        for &(row, page) in missed {
            stale.0[row][(page / 32) as usize] |= 1 << (page % 32);
        }
        self.write_stale(&stale)
    }

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

    /// After the host wrote bytes of the home: the checksums of their pages.
    ///
    /// # Safety
    /// As for `copy_out`.
    pub(super) unsafe fn renew_checksums(&self, offset: u64, bytes: u64) -> Result<()> {
        /// Pages whose bytes are read at a time.
        const WINDOW: u64 = 256;
        if self.guards.checksums == 0 || bytes == 0 {
            return Ok(());
        }
        let shift = self.vm.page_shift;
        let (mut page, end) = (offset >> shift, (offset + bytes).div_ceil(1 << shift));
        while page < end {
            let last = (page + WINDOW).min(end);
            let span = (last << shift).min(self.bytes) - (page << shift);
            let mut buffer = vec![0; span as usize];
            // SAFETY: passed on from the caller.
            unsafe { self.copy_out(page << shift, &mut buffer) }?;
            let sums: Vec<u32> = buffer.chunks(1 << shift).map(checksum).collect();
            if let Some(tables) = &*self.lock_tables()
                && let Some(table) = &tables.guards.checksums
            {
                let written = table.write(&*self.vm.gpu, page, &sums);
                written.doing(|| format!("keeping checksums of region `{}`", self.name))?;
            }
            page = last;
        }
        Ok(())
    }

    /// Whether a home that is there holds stale copies.
    pub fn is_behind(&self) -> Result<bool> {
        if !self.is_replicated() || self.has_ended() {
            return Ok(false);
        }
        let stale = self.read_stale()?;
        Ok((0..self.pages).any(|page| (0..2).any(|row| stale.has(row, page) && !self.is_lost(row, page))))
    }

    fn health(&self) -> Result<RegionHealth> {
        let stale = self.read_stale()?;
        let mut homes: Vec<HomeHealth> = Vec::new();
        let mut pages_without_copy = 0;
        for page in 0..self.pages {
            let mut good = false;
            for row in 0..self.replicas() as usize {
                let (is_lost, is_stale) = match self.is_replicated() {
                    true => (self.is_lost(row, page), stale.has(row, page)),
                    false => (false, false),
                };
                good |= !is_lost && !is_stale;
                let name = self.home_name(row, page);
                let place = match homes.iter().position(|home| home.name == name) {
                    Some(place) => place,
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
