//! Part of managed memory, and what the host may do with it.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ops::Range;

use gpuvm::{ElementType, RawRegion, Vm};

use crate::book::CHUNK_BYTES;
use crate::driver::{self, SUCCESS, call};
use crate::error::chain;
use crate::resident::{Place, Twin, allow};
use crate::window::Access;

/// Part of managed memory.
pub struct Slab {
    pub pages: Range<u64>,
    /// What the GPU has of it as a whole.
    pub twin: Option<Twin>,
    /// Once it is paged.
    pub region: Option<RawRegion>,
    /// What the host may do, but for the chunks that it has written since it might read.
    pub access: Access,
    pub written: BTreeSet<u64>,
}

impl Slab {
    /// Memory that the host may use, and nobody else has.
    pub fn new(pages: Range<u64>) -> Self {
        Self {
            pages,
            twin: None,
            region: None,
            access: Access::Write,
            written: BTreeSet::new(),
        }
    }

    /// Whether it has bytes of a range.
    pub fn is_in(&self, part: &Range<u64>) -> bool {
        self.pages.start < part.end && part.start < self.pages.end
    }

    /// Chunks of the window with bytes of a range.
    fn chunks(&self, part: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let part = part.start.max(self.pages.start)..part.end.min(self.pages.end);
        (part.start / CHUNK_BYTES..part.end.div_ceil(CHUNK_BYTES)).map(|chunk| chunk * CHUNK_BYTES)
    }

    fn of_chunk(&self, chunk: u64) -> Range<u64> {
        chunk.max(self.pages.start)..(chunk + CHUNK_BYTES).min(self.pages.end)
    }

    /// Lets the host read it, and write a part of it.
    pub fn open(&mut self, part: &Range<u64>, writes: bool) -> Result<(), String> {
        if self.access == Access::None {
            if let Some(region) = &self.region {
                region.flush().map_err(|error| chain(&error))?;
            }
            self.allow(self.pages.clone(), Access::Read)?;
            self.access = Access::Read;
        }
        if writes && self.access == Access::Read {
            for chunk in self.chunks(part) {
                if self.written.insert(chunk) && self.allow(self.of_chunk(chunk), Access::Write).is_err() {
                    // In one piece it may be.
                    self.allow(self.pages.clone(), Access::Write)?;
                    self.written.extend(self.chunks(&self.pages));
                }
            }
        }
        Ok(())
    }

    fn allow(&self, pages: Range<u64>, access: Access) -> Result<(), String> {
        allow(pages, access).map_err(|error| chain(&error))
    }

    /// Has accesses of the host fault, and drops frames of what it has written. `fits`: there are frames for all managed memory.
    pub fn close(&mut self, fits: bool) -> Result<(), String> {
        if self.access == Access::None {
            return Ok(());
        }
        let is_new = self.access == Access::Write;
        // First, so that nothing is written behind the eviction.
        self.allow(self.pages.clone(), Access::None)?;
        self.access = Access::None;
        let written = std::mem::take(&mut self.written);
        let Some(region) = &self.region else { return Ok(()) };
        if is_new && fits {
            // No launch has had it: what the host has made is about to be used, and comes at the link's speed.
            return region.want_bytes(0..region.len()).map_err(|error| chain(&error));
        }
        for part in joined(written.into_iter().map(|chunk| self.of_chunk(chunk))) {
            let bytes = part.start - self.pages.start..part.end - self.pages.start;
            // What the host writes kernels read.
            let evicted = region
                .evict_bytes(bytes.clone())
                .and_then(|()| region.want_bytes(bytes));
            evicted.map_err(|error| chain(&error))?;
        }
        Ok(())
    }

    /// Makes it a region, so that kernels reach it.
    pub fn page(&mut self, vm: &Vm) -> Result<(), String> {
        let (base, bytes) = (self.pages.start as *mut u8, self.pages.end - self.pages.start);
        let builder = vm.raw_region(ElementType::of::<u8>()).name("managed memory");
        // SAFETY: pages of the window, which stay until the region has been closed, and to which no Rust reference is.
        let region = unsafe { builder.from_owner((), base, bytes) };
        self.region = Some(region.map_err(|error| chain(&error))?);
        Ok(())
    }

    /// Gives back what it has of the driver's and the runtime's. `place`: where its memory of the GPU is; `is_pinned`: it was pinned where nobody pages.
    pub fn end(&mut self, place: Option<&Place>, is_pinned: bool) -> Result<(), String> {
        if let (Some(mut twin), Some(place)) = (self.twin.take(), place) {
            place.end(&mut twin).map_err(|error| chain(&error))?;
        }
        if let Some(region) = self.region.take() {
            let all = 0..region.len();
            let closed = region.discard(all).and_then(|()| region.close());
            return closed.map_err(|error| chain(&error));
        }
        if is_pinned {
            let base = self.pages.start as *mut c_void;
            // SAFETY: it was pinned, or the driver refuses.
            let _ = unsafe { call!(cuMemHostUnregister(base => *mut c_void)) };
        }
        Ok(())
    }

    /// Makes it memory that kernels reach at home.
    pub fn pin(&self) -> Result<(), String> {
        /// With `CU_MEMHOSTREGISTER_DEVICEMAP`.
        const FLAGS: u32 = driver::PORTABLE | 2;
        let (base, bytes) = (
            self.pages.start as *mut c_void,
            (self.pages.end - self.pages.start) as usize,
        );
        // SAFETY: pages of the window, which stay until they are unpinned.
        match unsafe { call!(cuMemHostRegister_v2(base => *mut c_void, bytes => usize, FLAGS => u32)) } {
            SUCCESS => Ok(()),
            status => Err(format!("managed memory cannot be pinned: CUDA error {status}")),
        }
    }
}

/// Ranges in order, those that touch as one.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_side_by_side_are_dropped_together() {
        assert_eq!(joined([0..2, 2..4, 6..8].into_iter()), [0..4, 6..8]);
        assert_eq!(joined(std::iter::empty()), []);
    }
}
