//! What the program says of a region while it is used: advice, and whose pages leave first. Hints change what a launch costs, never what
//! it computes.

use std::sync::{Arc, atomic::Ordering};

use gpuvm_layouts as layout;

use super::{Advice, Region, RegionInner};
use crate::{error::Result, placement::Effective};

impl<E> Region<E> {
    /// Says how the launches to come will use the region. Results never depend on it. It may be said at any time: launches that run are
    /// not waited for, and may follow a part of it. Only [`WriteOnce`](Advice::WriteOnce), and what takes it back, wait for the launches
    /// that name the region, since they have to agree about where it is written.
    ///
    /// Returns whether this region follows it; else it is ignored: `InPlace` and `WriteOnce` where their text says so, and advice on which
    /// pages leave their frames by a [never-evicted](super::RegionBuilder::never_evicted) region.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost): then what was advised before holds.
    pub fn advise(&self, advice: Advice) -> Result<bool> {
        let _span = self.inner.span(&format!("{advice:?} advised"));
        let advised = self.inner.advise(advice);
        self.inner.own.gpu.map_device_lost(advised)
    }

    /// Where launches to come use its pages, on the GPU that it was made on, after what was asked and advised; and why not where that was asked.
    pub fn effective(&self) -> Effective {
        self.inner.effective_on(&self.inner.own)
    }

    /// Whose pages stay: while frames are short, pages of a region leave when no page of a region of lower priority can. The clock passes
    /// over them until a lane that waits for a frame has looked at 64 windows of 32 frames, and no page leaves any more. Then pages of the
    /// next priority leave as well, until the clock has gone on as far again and once round at least. Default: 0, or what
    /// [`RegionBuilder::priority`](super::RegionBuilder::priority) said.
    ///
    /// It may be said at any time: launches that run follow it from some moment on. Lanes tell the eight lowest priorities of the regions
    /// that are there apart; those above are one. A [never-evicted](super::RegionBuilder::never_evicted) region has
    /// frames of its own, and no use for it. Read-only regions under [`Placement::Auto`](crate::Placement::Auto) compete for frames by the
    /// reads that miss as well.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost).
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        // Relaxed: what follows takes a lock.
        self.inner.priority.store(priority, Ordering::Relaxed);
        let told = self.inner.regions.rank(&self.inner);
        self.inner.own.gpu.map_device_lost(told)
    }

    /// What was said last.
    pub fn priority(&self) -> i32 {
        self.inner.priority()
    }
}

impl RegionInner {
    fn advise(self: &Arc<Self>, advice: Advice) -> Result<bool> {
        // A lane that fetches a page relies on what others do that store: launches which differ about it never meet.
        let mut quiet = None;
        let (mut advised, change) = loop {
            let advised = self.advised.lock();
            // Of all GPUs: one may use pages in place where another does not.
            let change = self.everywhere().iter().fold(0, |all, on| {
                all | (on.traits.array_flags(*advised) ^ on.traits.array_flags(advised.after(advice)))
            });
            if quiet.is_some() || change & layout::ARRAY_STORES_IN_PLACE == 0 {
                break (advised, change);
            }
            // The launches are locked first, as where one of them is enqueued.
            drop(advised);
            quiet = Some(self.quiesce());
        };
        let after = advised.after(advice);
        let new = self.own.traits.array_flags(after);
        for on in self.where_it_goes_on() {
            if change & !layout::ARRAY_STORES_IN_PLACE != 0 {
                // A launch that runs may store its own count over it; the next advice, or the rules of `Placement::Auto`, correct that.
                on.begin_draws(after)?;
            }
            on.gpu.write_region_flags(&on.view, self.flags(&on, after))?;
            on.view.follow(on.traits.array_flags(after));
        }
        let keeps = std::mem::replace(&mut *advised, after).keeps_resident();
        drop(advised);
        drop(quiet);
        if keeps != after.keeps_resident() {
            self.regions.rank(self)?;
        }
        Ok(match advice {
            Advice::Normal | Advice::Random | Advice::Fetch => true,
            Advice::Sequential | Advice::ReadOnce | Advice::KeepResident => !self.kind.never_evicted,
            Advice::InPlace => new & layout::ARRAY_IN_PLACE != 0,
            Advice::WriteOnce => new & layout::ARRAY_STORES_IN_PLACE != 0,
        })
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use layout::{ARRAY_IN_PLACE, ARRAY_STORES_IN_PLACE};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{Placement, SimulatedGpu, Soft, Transport, Vm};

    const ADVICE: [Advice; 8] = [
        Advice::Normal,
        Advice::Sequential,
        Advice::Random,
        Advice::ReadOnce,
        Advice::KeepResident,
        Advice::WriteOnce,
        Advice::InPlace,
        Advice::Fetch,
    ];

    /// What was said of a region, and how it was made.
    struct Said {
        region: Region<u32>,
        direct: bool,
        usage: Advice,
        in_place: bool,
        made_in_place: bool,
        priority: i32,
    }

    impl Said {
        fn hears(&mut self, advice: Advice) {
            match advice {
                Advice::Normal => (self.usage, self.in_place) = (advice, self.made_in_place),
                Advice::InPlace => self.in_place = true,
                Advice::Fetch => self.in_place = false,
                usage => self.usage = usage,
            }
            let kind = self.region.inner.kind;
            let there = self.direct && !kind.never_evicted;
            let follows = match advice {
                Advice::Normal | Advice::Random | Advice::Fetch => true,
                Advice::InPlace => there,
                Advice::WriteOnce => there && !kind.read_only,
                _ => !kind.never_evicted,
            };
            assert_eq!(self.region.advise(advice).unwrap(), follows, "{advice:?}");
        }

        /// On each GPU that uses it, lanes find what was said.
        fn holds(&self, rank: u32) {
            let inner = &self.region.inner;
            let there = self.direct && !inner.kind.never_evicted;
            let stores = there && self.usage == Advice::WriteOnce && !inner.kind.read_only;
            for on in inner.everywhere() {
                for array in [on.view.array_flags(), inner.array(&on, 0).region ^ on.view.id()] {
                    assert_eq!(array & ARRAY_IN_PLACE != 0, there && self.in_place);
                    assert_eq!(array & ARRAY_STORES_IN_PLACE != 0, stores);
                    assert_eq!(array & layout::ARRAY_NEVER_EVICTED != 0, inner.kind.never_evicted);
                }
                let flags = on.gpu.region_flags(&on.view);
                let has = |flag: u32, expected: bool| {
                    let (gpu, usage) = (on.gpu.place, self.usage);
                    assert_eq!(
                        flags & flag != 0,
                        expected,
                        "{flag:#x} of {usage:?} on GPU {gpu}: {flags:#x}"
                    );
                };
                has(layout::REGION_LIVE, true);
                has(layout::REGION_READ_ONLY, inner.kind.read_only);
                has(layout::REGION_NEVER_EVICTED, inner.kind.never_evicted);
                has(
                    layout::REGION_READ_ONCE,
                    [Advice::Sequential, Advice::ReadOnce].contains(&self.usage),
                );
                has(layout::REGION_ASCENDING, self.usage == Advice::Sequential);
                has(layout::REGION_RANDOM, self.usage == Advice::Random);
                assert_eq!(flags >> layout::REGION_RANK_SHIFT & layout::REGION_RANK_MAX, rank);
            }
        }

        fn standing(&self) -> (bool, i32) {
            (self.usage == Advice::KeepResident, self.priority)
        }
    }

    #[test]
    fn all_gpus_find_what_was_advised_before_and_after_they_first_use_a_region() {
        for seed in 0..8 {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let direct = seed % 4 != 0;
            let gpus = || (0..3).map(|_| SimulatedGpu::new().memory(8 << 20));
            let vm = Vm::builder()
                .gpus(gpus())
                .frame_memory(1 << 20)
                .placement(Placement::Fetch);
            let vm = vm
                .transport(if direct { Transport::Direct } else { Soft::new().into() })
                .build()
                .unwrap();
            let made = |kind: u32| {
                let (builder, made_in_place) = (vm.gpus()[kind as usize % 3].region::<u32>(), kind == 3);
                let builder = match kind {
                    1 => builder.never_evicted(),
                    2 => builder.read_only(),
                    3 => builder.placement(Placement::InPlace),
                    _ => builder.priority(kind as i32),
                };
                Said {
                    region: builder.zeroed(3000).unwrap(),
                    direct,
                    usage: Advice::Normal,
                    in_place: made_in_place,
                    made_in_place,
                    priority: if kind > 3 { kind as i32 } else { 0 },
                }
            };
            let mut regions: Vec<Said> = (0..6).map(made).collect();
            for _ in 0..60 {
                let at = rng.random_range(0..regions.len());
                let one = &mut regions[at];
                match rng.random_range(0..8) {
                    0..4 => one.hears(ADVICE[rng.random_range(0..ADVICE.len())]),
                    4..6 => drop(one.region.inner.on(vm.gpus()[rng.random_range(0..3)].paged()).unwrap()),
                    6 => {
                        one.priority = rng.random_range(-2..7);
                        one.region.set_priority(one.priority).unwrap();
                    }
                    _ => drop(std::mem::replace(one, made(rng.random_range(0..6)))),
                }
                let standings: BTreeSet<(bool, i32)> = regions.iter().map(Said::standing).collect();
                for one in &regions {
                    let below = standings.range(..one.standing()).count() as u32;
                    one.holds(below.min(layout::REGION_RANK_MAX));
                }
            }
        }
    }
}
