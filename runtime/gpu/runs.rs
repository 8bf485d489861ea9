//! Frames that follow each other as a region's pages do: once it has all of them, launches use them as plain memory. The protocol is in
//! docs/PROTOCOL.md, "Pages that are looked up".

use super::{
    PagedGpu, RegionView,
    launcher::{arg, over_all},
};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
};

/// Of this many pages one may come that nothing has used.
const UNUSED_SHARE: u64 = 8;

/// What is known of a held region's pages, and of the frames that are free.
pub(super) struct Survey {
    pages: u64,
    /// Were used at home.
    used: u64,
    /// Are not at home.
    away: u64,
    /// Have frames that hold them.
    resident: u64,
    /// Frames.
    free: u64,
    /// Frames that are not.
    taken: u64,
}

impl Survey {
    /// Whether the region's unused pages are to come, too: where they are few of its pages, or of all that are in frames. If no more were used since
    /// the last look, half of the region is few.
    fn is_worth_all(&self) -> bool {
        let unused = self.pages.saturating_sub(self.used + self.away);
        let rests = self.used == 0 && (unused * 2 <= self.pages || unused * UNUSED_SHARE <= self.taken);
        self.free >= self.pages - self.away && (rests || unused * UNUSED_SHARE <= self.pages)
    }

    /// Whether each page has a frame that holds it.
    pub fn are_all_there(&self) -> bool {
        self.resident >= self.pages
    }

    /// Whether no page has a frame.
    pub fn is_all_home(&self) -> bool {
        self.away == 0
    }

    /// Whether there is something to bring, or all pages have come.
    pub fn has_some_to_bring(&self) -> bool {
        self.used != 0 || self.away >= self.pages || self.is_worth_all()
    }
}

impl PagedGpu {
    /// Counts pages of a region. What it says of one that is held, and with which no launch runs, stays so.
    pub(super) fn survey(&self, region: &RegionView) -> Result<Survey> {
        let pages = region.pages().count();
        let doing = || format!("survey of region `{}`", region.name());
        let [used, away, resident, _] = self.counting(|counts| {
            let (support, config) = (&self.support, self.over_pages(pages));
            let args = |vm| [over_all(vm, region), vec![arg(counts)]].concat();
            self.run(&support.stream, &support.survey, config, args, Some(region), &doing())
        })?;
        let free = self.pool.free.available(&*self.device).doing(doing)?;
        Ok(Survey {
            pages,
            used,
            away: away.min(pages),
            resident,
            free,
            taken: u64::from(self.frame_count()).saturating_sub(free),
        })
    }

    /// Brings pages of a held region into frames in the order of the pages, as far as those are free. Where those follow each other is chosen when
    /// none has a frame. No launch with the region runs, none that fetches pages, and nothing else brings some. `own`: of the one who does.
    pub(super) fn bring_in_order(
        &self,
        region: &RegionView,
        found: &Survey,
        own: &mut Option<DeviceArray<u64>>,
    ) -> Result<()> {
        let Survey {
            pages,
            used,
            away,
            free,
            ..
        } = *found;
        let (known, fill) = (region.run() != RegionView::NO_RUN, found.is_worth_all());
        // Where nothing was chosen, it is when this many frames are free as could follow each other.
        let may_begin = known || (away == 0 && free >= pages);
        if pages == 0 || free == 0 || !(fill || used != 0) || !may_begin {
            return Ok(());
        }
        // A thread that changes the number of frames would wait for those that are taken here.
        match self.pool.changing.try_lock() {
            Some(changing) if changing.is_none() => self.bring_into_own(region, fill, own),
            _ => Ok(()),
        }
    }

    /// Brings them so. The number of frames does not change.
    fn bring_into_own(&self, region: &RegionView, fill: bool, own: &mut Option<DeviceArray<u64>>) -> Result<()> {
        let doing = || format!("looking for frames for region `{}`", region.name());
        let (addr, rebuilt) = self.take_free(own, &doing())?;
        let Some(bits) = own else { return Ok(()) };
        let support = &self.support;
        let bring = || {
            if region.run() == RegionView::NO_RUN {
                let there = bits.read(&*self.device, 0, bits.length() as usize).doing(doing)?;
                region.set_run(self.choose_run(region, there, fill));
            }
            let pages = region.pages().count();
            if region.run() != RegionView::NO_RUN {
                let args = |vm: u64| {
                    let own = if self.rebuilt() == rebuilt { addr } else { 0 };
                    let (id, run) = (arg(region.id()), arg(region.run()));
                    let (own, fill) = (arg(own), arg(u32::from(fill)));
                    vec![arg(vm), id, arg(0u64), arg(pages), run, own, fill, arg(0u32), arg(0u64)]
                };
                let config = self.over_pages(pages * 32);
                self.run(&support.stream, &support.bring, config, args, Some(region), &doing())?;
            }
            Ok(())
        };
        let brought = bring();
        // Whatever became of that, the others go back.
        let given = self.give_free(addr, bits.length(), rebuilt, &doing());
        brought.and(given)
    }

    /// Takes all free frames out of the pool, into bits at that address, and says how often the pool was rebuilt until then.
    pub(super) fn take_free(&self, own: &mut Option<DeviceArray<u64>>, label: &str) -> Result<(u64, u64)> {
        let doing = || label.to_owned();
        let words = u64::from(self.pool.capacity()).div_ceil(64);
        let bits = match own {
            Some(bits) => bits,
            none => none.insert(DeviceArray::zeroed(&*self.device, words).doing(doing)?),
        };
        self.device.zero(bits.addr(), 8 * words).doing(doing)?;
        let (support, config) = (&self.support, self.over_pages(u64::from(self.frame_count())));
        // Arguments are made behind a recovery that is due, with the state locked. A rebuilt pool has the frames again.
        let mut rebuilt = 0;
        let args = |vm: u64| {
            rebuilt = self.rebuilt();
            vec![arg(vm), arg(bits.addr())]
        };
        self.run(&support.stream, &support.take_free, config, args, None, label)?;
        Ok((bits.addr(), rebuilt))
    }

    /// Gives the frames back whose bits are set in `words` words at an address, unless the pool was rebuilt since.
    pub(super) fn give_free(&self, bits: u64, words: u64, rebuilt: u64, label: &str) -> Result<()> {
        let args = |vm: u64| {
            vec![
                arg(vm),
                arg(bits),
                arg(if self.rebuilt() == rebuilt { words } else { 0 }),
            ]
        };
        let support = &self.support;
        self.run(
            &support.stream,
            &support.give_free,
            self.over_pages(words),
            args,
            None,
            label,
        )
    }

    /// Where this many of the frames follow each other as a region has pages: where no other region's do, if possible, and with `any` elsewhere.
    pub(super) fn choose_run(&self, region: &RegionView, frames: Vec<u64>, any: bool) -> u32 {
        let pages = region.pages().count();
        let apart = self.apart(frames.clone(), Some(region));
        let elsewhere = || first_run(&frames, pages).filter(|_| any);
        first_run(&apart, pages)
            .or_else(elsewhere)
            .unwrap_or(RegionView::NO_RUN)
    }

    /// Those of some frames that are not where other regions' frames follow each other.
    pub(super) fn apart(&self, mut frames: Vec<u64>, of: Option<&RegionView>) -> Vec<u64> {
        for other in self.state.lock().places.live() {
            if other.run() != RegionView::NO_RUN && of.is_none_or(|of| of.id() != other.id()) {
                clear_run(&mut frames, other.run(), other.pages().count());
            }
        }
        frames
    }

    /// What a kernel counts at an address, where it finds zeros.
    pub(super) fn counting(&self, count: impl FnOnce(u64) -> Result<()>) -> Result<[u64; 4]> {
        let doing = || "counting pages".to_owned();
        let mut counts = self.scratch.counts.lock();
        let counts = match &mut *counts {
            Some(counts) => counts,
            none => none.insert(DeviceArray::zeroed(&*self.device, 4).doing(doing)?),
        };
        counts.write(&*self.device, 0, &[0; 4]).doing(doing)?;
        count(counts.addr())?;
        let mut found = [0; 4];
        counts.read_into(&*self.device, 0, &mut found).doing(doing)?;
        Ok(found)
    }
}

/// The first of this many bits that are set and follow each other.
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
    let first = u64::from(first);
    for bit in first..(first + length).min(64 * bits.len() as u64) {
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
