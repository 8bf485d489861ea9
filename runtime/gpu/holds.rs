//! Pages of launches that look them up: what keeps them where they are, and what moves them between launches. The protocol is in
//! docs/PROTOCOL.md, "Pages that are looked up".

use std::{sync::Arc, time::Instant};

use gpuvm_ptx::TableLayout;

use super::{
    PagedGpu, Places, PlainMemory, RegionView, Victims, Window,
    held::Holds,
    launcher::{arg, over_all},
};
use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    launch::Memory,
};

/// This many times as long as it took, a region's marks are not looked at again: its launches wait meanwhile.
pub(super) const LOOKING_SHARE: u32 = 20;

impl PagedGpu {
    /// Keeps a region's pages where they are, for launches that look them up. None that fetches its pages runs.
    pub fn hold(&self, region: &RegionView) -> Result<()> {
        if region.is_held() {
            return Ok(());
        }
        self.change_hold(region, true, false)?;
        region.set_held(true);
        Ok(())
    }

    /// Lets them leave again. No launch that looks them up runs.
    pub fn let_go(&self, region: &RegionView) -> Result<()> {
        if !region.is_held() {
            return Ok(());
        }
        self.change_hold(region, false, false)?;
        region.set_held(false);
        Ok(())
    }

    /// Has what ended launches wrote that look pages up count as dirty, beside others that may run.
    pub fn fold_marks(&self, region: &RegionView) -> Result<()> {
        match region.is_held() {
            true => self.change_hold(region, false, true),
            false => Ok(()),
        }
    }

    fn change_hold(&self, region: &RegionView, hold: bool, beside: bool) -> Result<()> {
        if !hold {
            if beside && region.came_beside() {
                // Launches only read it since what was written counts as dirty.
                return Ok(());
            }
            self.take_marks(region, beside)?;
        }
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(u32::from(hold)), arg(u32::from(beside))]].concat();
        let label = format!("hold of region `{}`", region.name());
        self.run(&support.stream, &support.hold, config, args, Some(region), &label)
    }

    /// Whether a region's marks are worth a look now.
    pub fn looks_at(&self, region: &RegionView) -> bool {
        self.capabilities().deterministic || region.is_worth_a_look(Instant::now())
    }

    /// Brings pages of a held region that were used at home into frames that are free, or that others leave. No launch with the region runs.
    pub fn bring(&self, region: &RegionView) -> Result<()> {
        let begun = Instant::now();
        if region.is_complete() || !self.looks_at(region) {
            return Ok(());
        }
        // Frames that are out of the pool for others would be missed.
        if !self.end_beside() {
            return Ok(());
        }
        self.take_marks(region, false)?;
        let crowded = region.is_crowded();
        if crowded && !self.make_way(region)? {
            return Ok(());
        }
        // Frames may be out of the pool meanwhile, which others would take for a lack of some.
        let mut own = self.scratch.own.lock();
        let found = self.survey(region)?;
        if !(crowded || found.has_some_to_bring()) {
            region.set_next_look(Instant::now() + begun.elapsed() * LOOKING_SHARE);
            return Ok(());
        }
        // Whatever becomes of it: some may move.
        region.forget_places();
        self.bring_in_order(region, &found, &mut own)?;
        let (pages, run) = (region.pages().count(), region.run());
        let [absent, used, elsewhere] = self.bring_anywhere(region)?;
        region.set_complete(absent == 0);
        region.set_crowded(used != 0);
        if absent == 0 && elsewhere != 0 {
            region.set_run(RegionView::NO_RUN);
        } else if pages != 0 && absent == 0 && run != RegionView::NO_RUN {
            region.set_plain(Some(PlainMemory {
                first: self.frames().addr() + (u64::from(run) << self.page_shift()),
                dummy: self.dummy_page()?,
            }));
        }
        region.set_next_look(Instant::now() + begun.elapsed() * LOOKING_SHARE);
        Ok(())
    }

    /// Brings them into any frames, and where none is free to slots at neighbours: how many have no frame then, how many of those were used, and how many have another
    /// frame than in order.
    fn bring_anywhere(&self, region: &RegionView) -> Result<[u64; 3]> {
        let (support, pages) = (&self.support, region.pages().count());
        let start = self.held.lock().begin_at(pages);
        let victims = self.victims().filter(|_| region.may_use_slots());
        let had = region.slots_since();
        if let Some(victims) = victims.filter(|_| had.is_none()) {
            // Before the first may have one.
            region.set_slots_since(Some(victims.given_back_bytes()));
        }
        let slots = u32::from(victims.is_some());
        let [absent, used, elsewhere, lent] = self.counting(|stay| {
            let args = |vm: u64| {
                let (id, run, no_own) = (arg(region.id()), arg(region.run()), arg(0u64));
                vec![
                    arg(vm),
                    id,
                    arg(start),
                    arg(pages),
                    run,
                    no_own,
                    arg(0u32),
                    arg(slots),
                    arg(stay),
                ]
            };
            let label = format!("bringing pages of region `{}`", region.name());
            let config = self.over_pages(pages * 32);
            self.run(&support.stream, &support.bring, config, args, Some(region), &label)
        })?;
        if let Some(victims) = victims {
            victims.note_filled(lent);
        }
        if absent == 0 || (had.is_none() && lent == 0) {
            region.set_slots_since(None);
        }
        Ok([absent, used, elsewhere])
    }

    /// Has a held region's pages leave their slots at neighbours, or with `unlent` those whose memory was taken back. No launch with the region runs.
    pub fn leave_slots(&self, region: &RegionView, unlent: bool) -> Result<()> {
        let given_back = self.victims().map_or(0, Victims::given_back_bytes);
        let leaves = match unlent {
            true => region.may_have_slots_from(given_back),
            false => region.has_slots(),
        };
        if !leaves {
            return Ok(());
        }
        // Whatever becomes of it: some may have left.
        region.forget_places();
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(u32::from(unlent))]].concat();
        let label = format!("leaving slots of region `{}`", region.name());
        self.run(
            &support.stream,
            &support.leave_slots,
            config,
            args,
            Some(region),
            &label,
        )?;
        region.set_slots_since(unlent.then_some(given_back));
        Ok(())
    }

    /// Whether pages of a region may have slots in memory that was taken back.
    pub fn may_have_unlent(&self, region: &RegionView) -> bool {
        let victims = self.victims();
        victims.is_some_and(|victims| region.may_have_slots_from(victims.given_back_bytes()))
    }

    /// Pages of held memory that nothing uses leave slots whose memory was taken back. It waits for nothing.
    pub(super) fn leave_unlent(&self) {
        let Some(mut held) = self.held.try_lock() else { return };
        let left = held.let_those_go(false, |memory| memory.leave_unlent(self.place).map(|()| false));
        if let Err(error) = left {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "pages that are looked up stay in memory that was given back"
            );
        }
    }

    /// Has marks that rewritten kernels set in the window count as those of the page table, and all pages as marked that launches may have
    /// written as plain memory; `beside`: others run that may set some, which stay.
    pub(super) fn take_marks(&self, region: &RegionView, beside: bool) -> Result<()> {
        self.forget_late_marks(region)?;
        if region.may_be_written() {
            self.take_marks_at(region, 0, beside)?;
            region.note_marked();
        }
        region
            .places_there()
            .map_or(Ok(()), |places| self.take_marks_at(region, places.marks, beside))
    }

    /// Takes those that lie there, or with 0 all pages' as if they were set.
    pub(super) fn take_marks_at(&self, region: &RegionView, marks: u64, beside: bool) -> Result<()> {
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(marks), arg(u32::from(beside))]].concat();
        let label = format!("taking marks of region `{}`", region.name());
        self.run(&support.stream, &support.take_marks, config, args, Some(region), &label)
    }

    /// Has entries in the window say where a held region's pages are, for a rewritten kernel that is to run.
    pub fn write_entries(&self, region: &RegionView) -> Result<()> {
        if region.has_entries() {
            return Ok(());
        }
        let places = self.places(region)?;
        // Entries that were written beside one that brings pages may be old: right for readers, and for no one else.
        let ended = self.end_beside();
        self.write_table(region, places.entries, places.addr)?;
        if ended {
            region.set_has_entries();
        }
        Ok(())
    }

    /// Has a held region's table say where its pages are, for a launch that looks them up.
    pub fn write_places(&self, region: &RegionView) -> Result<()> {
        if region.has_places() {
            return Ok(());
        }
        let table = match region.places_addr() {
            Some(table) => table,
            None => region.make_places(&*self.device, self.dummy_page()?)?,
        };
        let ended = self.end_beside();
        self.write_table(region, table, 0)?;
        if ended {
            region.set_has_places();
        }
        Ok(())
    }

    /// Address of a page that no region has.
    fn dummy_page(&self) -> Result<u64> {
        let mut page = self.scratch.dummy_page.lock();
        if page.is_none() {
            let made = DeviceArray::zeroed(&*self.device, 1 << self.page_shift());
            *page = Some(made.doing(|| "allocating a page for accesses past the end".into())?);
        }
        Ok(page.as_ref().map_or(0, DeviceArray::addr))
    }

    /// `window` is 0 for a table of places.
    fn write_table(&self, region: &RegionView, table: u64, window: u64) -> Result<()> {
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(table), arg(window)]].concat();
        let label = format!("writing entries of region `{}`", region.name());
        self.run(
            &support.stream,
            &support.write_entries,
            config,
            args,
            Some(region),
            &label,
        )
    }

    /// Has pages leave their frames for those of a held region that are used at home: all of memory that launches look up no more, and some
    /// of the region's own, drawn, of which those come back that are used more than others. Whether any may have left.
    fn make_way(&self, region: &RegionView) -> Result<bool> {
        let mut held = self.held.lock();
        let mut left = false;
        held.let_those_go(true, |memory| {
            let gives = memory.give_frames(self.place)?;
            left |= gives;
            Ok(gives)
        })?;
        let most = self.may_move(&mut held);
        drop(held);
        if most == 0 {
            return Ok(left);
        }
        self.give_some(region, most)?;
        // Others may have left, too, since none was free.
        Ok(true)
    }

    /// How many pages may displace others now.
    fn may_move(&self, held: &mut Holds) -> u64 {
        let deterministic = self.capabilities().deterministic;
        held.may_move(self.frame_count(), 1 << self.page_shift(), deterministic)
    }

    /// Has memory of lower standing than some of a launch's give it frames, where pages of that found none. None of it is locked.
    pub(super) fn relieve(&self, memories: &[(Arc<dyn Memory>, bool)]) -> Result<()> {
        let short = memories
            .iter()
            .map(|(memory, _)| memory)
            .filter(|memory| memory.is_short(self.place));
        let Some(first) = short.max_by_key(|memory| memory.standing()) else {
            return Ok(());
        };
        let mut held = self.held.lock();
        let below = held.below(first.standing());
        if below.is_empty() {
            return Ok(());
        }
        let most = self.may_move(&mut held);
        drop(held);
        if most == 0 {
            return Ok(());
        }
        for memory in below {
            if memory.give_some(self.place, most)? {
                first.relieve(self.place);
                break;
            }
        }
        Ok(())
    }

    /// Has up to `most` pages of a held region leave their frames, drawn from all of it. No launch with the region runs. Whether any left.
    pub fn give_some(&self, region: &RegionView, most: u64) -> Result<bool> {
        // What rewritten kernels stored counts before a page can leave.
        self.take_marks(region, false)?;
        let pages = region.pages().count();
        let start = self.held.lock().begin_at(pages);
        // Whatever becomes of it: some may move.
        region.forget_places();
        let label = format!("evicting pages of region `{}` for others", region.name());
        let taken = DeviceArray::<u64>::zeroed(&*self.device, 2).doing(|| label.clone())?;
        let args = |vm: u64| {
            let (id, taken) = (arg(region.id()), arg(taken.addr()));
            vec![arg(vm), id, arg(start), arg(pages), arg(most), taken]
        };
        let (support, config) = (&self.support, self.over_pages(most));
        self.run(&support.stream, &support.give_way, config, args, Some(region), &label)?;
        region.set_complete(false);
        Ok(taken.read(&*self.device, 1, 1).doing(|| label)?[0] != 0)
    }

    /// Pages of memory that launches looked up may leave their frames again, when those have ended, for others that need some.
    pub(super) fn let_idle_go(&self) -> Result<()> {
        // Locked all the time: another launch that needs frames waits until they are available.
        let mut held = self.held.lock();
        if held.is_empty() {
            return Ok(());
        }
        self.wait_form(true);
        held.let_those_go(false, |memory| memory.let_go(self.place))
    }

    /// Pages of memory that nothing uses may leave their frames again, for who needs some now. It waits for nothing.
    pub(super) fn let_unused_go(&self) {
        let Some(mut held) = self.held.try_lock() else { return };
        if let Err(error) = held.let_those_go(false, |memory| memory.let_go_unless_used(self.place)) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "pages that were looked up keep their frames"
            );
        }
    }

    /// Remembers memory whose pages a launch looks up.
    pub(super) fn keep_held(&self, memories: &[(Arc<dyn Memory>, bool)]) {
        self.held.lock().note(memories);
    }

    /// How the tables of rewritten kernels are made here. Loads mark pages at home, unless all pages have frames.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for pages that no table has.
    pub fn table_layout(&self) -> Result<TableLayout> {
        let layout = TableLayout::new(1 << self.page_shift()).map_err(|error| Error::Unavailable {
            what: "rewriting kernels".into(),
            reason: error.to_string(),
        })?;
        Ok(layout.touches(true).both_forms(true))
    }

    /// The window, which is made when kernels are loaded that need one.
    pub fn window(&self) -> Result<Arc<Window>> {
        let mut window = self.window.lock();
        if let Some(window) = &*window {
            return Ok(Arc::clone(window));
        }
        let made = Arc::new(Window::new(
            &*self.device,
            &self.table_layout()?,
            self.settings.window.as_ref(),
        )?);
        *window = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Where a region lies in the window: it gets a place when it is asked for first.
    ///
    /// # Errors
    /// As [`Window::take`].
    pub fn places(&self, region: &RegionView) -> Result<Places> {
        let home = region.home().host_memory().map_or(0, |memory| memory.span().start);
        region.places(|pages| self.window()?.take(&self.handles, pages, home))
    }
}
