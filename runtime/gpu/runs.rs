//! Frames that follow each other, for regions that all come at once: launches use them as plain memory. The protocol is in
//! docs/PROTOCOL.md, "Pages that are looked up".

use super::{
    PagedGpu, RegionView,
    launcher::{arg, over_all},
};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
};

/// Frames that follow each other, out of the pool since it was rebuilt so often.
pub(super) struct Run {
    pub first: u32,
    pub rebuilt: u64,
}

/// Of so many of a region's pages all but one were used: the others come with them.
const USED_SHARE: u64 = 8;

impl PagedGpu {
    /// Takes as many free frames as a held region has pages, of which none has one and nearly all were used, if so many follow each other. The
    /// first of them, which are the caller's as long as the pool was rebuilt no more often. No launch with the region runs, and none that fetches
    /// pages.
    pub(super) fn take_run(&self, region: &RegionView) -> Result<Option<Run>> {
        let pages = region.pages().count();
        let free = |gpu: &Self| {
            let free = gpu.pool.free.available(&*gpu.device);
            free.doing(|| format!("counting frames for region `{}`", region.name()))
        };
        if pages == 0 || pages > u64::from(self.frame_count()) || pages > free(self)? {
            return Ok(None);
        }
        // Whoever changes the number of frames would wait for those that are taken here.
        let Some(changing) = self.pool.changing.try_lock() else {
            return Ok(None);
        };
        if changing.is_some() {
            return Ok(None);
        }
        let [marked, away, _] = self.counting(|counts| {
            let (support, config) = (&self.support, self.over_pages(pages));
            let args = |vm| [over_all(vm, region), vec![arg(counts)]].concat();
            let label = format!("survey of region `{}`", region.name());
            self.run(&support.stream, &support.survey, config, args, Some(region), &label)
        })?;
        if away != 0 || (pages - marked.min(pages)) * USED_SHARE > pages {
            return Ok(None);
        }
        let doing = || format!("looking for frames for region `{}`", region.name());
        let words = u64::from(self.pool.capacity()).div_ceil(64);
        let bits = DeviceArray::<u64>::zeroed(&*self.device, words).doing(doing)?;
        let (support, config) = (&self.support, self.over_pages(u64::from(self.frame_count())));
        // Arguments are made behind a recovery that is due, with the state locked.
        let mut rebuilt = 0;
        let args = |vm: u64| {
            rebuilt = self.rebuilt();
            vec![arg(vm), arg(bits.addr())]
        };
        self.run(&support.stream, &support.take_free, config, args, None, &doing())?;
        let mut there = bits.read(&*self.device, 0, words as usize).doing(doing)?;
        let run = first_run(&there, pages);
        if let Some(first) = run {
            clear_run(&mut there, first, pages);
        }
        bits.write(&*self.device, 0, &there).doing(doing)?;
        let args = |vm: u64| {
            let words = if self.rebuilt() == rebuilt { words } else { 0 };
            vec![arg(vm), arg(bits.addr()), arg(words)]
        };
        let config = self.over_pages(words);
        self.run(&support.stream, &support.give_free, config, args, None, &doing())?;
        Ok(run.map(|first| Run { first, rebuilt }))
    }

    /// What a kernel counts at an address, where it finds zeros.
    pub(super) fn counting(&self, count: impl FnOnce(u64) -> Result<()>) -> Result<[u64; 3]> {
        let doing = || "counting pages".to_owned();
        let mut counts = self.scratch.counts.lock();
        let counts = match &mut *counts {
            Some(counts) => counts,
            none => none.insert(DeviceArray::zeroed(&*self.device, 3).doing(doing)?),
        };
        counts.write(&*self.device, 0, &[0; 3]).doing(doing)?;
        count(counts.addr())?;
        let mut found = [0; 3];
        counts.read_into(&*self.device, 0, &mut found).doing(doing)?;
        Ok(found)
    }
}

/// The first of so many bits that are set and follow each other.
fn first_run(bits: &[u64], length: u64) -> Option<u32> {
    let (mut first, mut found) = (0, 0);
    for (n, &word) in (0..).zip(bits) {
        if word == u64::MAX && found + 64 < length {
            // The usual word.
            if found == 0 {
                first = 64 * n;
            }
            found += 64;
            continue;
        }
        for bit in 0..64 {
            match word >> bit & 1 {
                0 => found = 0,
                _ => {
                    if found == 0 {
                        first = 64 * n + bit;
                    }
                    found += 1;
                    if found == length {
                        return u32::try_from(first).ok();
                    }
                }
            }
        }
    }
    None
}

fn clear_run(bits: &mut [u64], first: u32, length: u64) {
    let (first, end) = (u64::from(first), u64::from(first) + length);
    for bit in first..end {
        bits[(bit / 64) as usize] &= !(1 << (bit % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_across_words_and_taken_whole() {
        let mut bits = vec![0u64; 4];
        let mut set = |range: std::ops::Range<u64>| range.for_each(|bit| bits[(bit / 64) as usize] |= 1 << (bit % 64));
        set(3..10);
        set(60..200);
        for (length, first) in [(1, Some(3)), (7, Some(3)), (8, Some(60)), (140, Some(60)), (141, None)] {
            assert_eq!(first_run(&bits, length), first, "{length}");
        }
        clear_run(&mut bits, 60, 139);
        assert_eq!((first_run(&bits, 8), first_run(&bits, 7)), (None, Some(3)));
        assert_eq!(bits[3], 1 << 7);
        assert_eq!(first_run(&[u64::MAX; 3], 192), Some(0));
        assert_eq!(first_run(&[u64::MAX << 1, u64::MAX, 1], 128), Some(1));
        assert_eq!(first_run(&[u64::MAX; 3], 193), None);
    }
}
