//! A region on several GPUs of its virtual memory.
//!
//! It comes to a GPU other than the one that it was made on with the first launch there that names it: then it gets a page table there,
//! and frames of its own if it is never evicted. Whose copies count is in [`Coherence`](crate::coherence::Coherence); what that asks for
//! before a launch is done here, while the launches that name the region are locked.

use std::{any::Any, ops::Range, sync::Arc};

use parking_lot::Mutex;

use super::{OnGpu, RegionInner, book::Listed};
use crate::{
    coherence::Step,
    error::{Error, Result},
    gpu::PagedGpu,
    launch::{LaunchKind, LaunchTracker, Memory, Standing, Table},
};

impl Memory for RegionInner {
    fn launches(&self) -> &Mutex<LaunchTracker> {
        &self.launches
    }

    fn region_name(&self, place: usize, region: u32) -> Option<String> {
        self.at(place)
            .filter(|on| on.view.id() == region)
            .map(|_| self.name.clone())
    }

    fn make_coherent(&self, launches: &mut LaunchTracker, to_begin: LaunchKind) -> Result<()> {
        let LaunchKind {
            gpu,
            writes,
            looks_up,
            by,
        } = to_begin;
        self.refuse_beside_graphs_elsewhere(gpu, writes)?;
        for step in launches.coherence.before(gpu, writes) {
            match step {
                Step::Wait { gpu, writers } => {
                    launches.wait_for(|kind| kind.gpu == gpu && (kind.writes || !writers));
                }
                Step::Flush { gpu } => self.at(gpu).map_or(Ok(()), |on| self.flush_on(launches, &on))?,
                Step::Drop { gpu } => self.at(gpu).map_or(Ok(()), |on| self.release_on(launches, &on, true))?,
            }
        }
        if by == Table::HomeAlone {
            return self.write_home(launches, gpu);
        }
        let Some(on) = self.at(gpu).filter(|on| looks_up || on.view.is_held()) else {
            return Ok(());
        };
        self.drain_graphs(&on)?;
        if !looks_up {
            self.refuse_beside_graphs(&on)?;
        }
        launches.end_beside(gpu, on.gpu.beside_timeout());
        // Launches that fetch pages and those that look them up are never beside each other.
        launches.wait_for(|kind| kind.gpu == gpu && kind.looks_up != looks_up && kind.by != Table::HomeAlone);
        if !looks_up {
            return on.gpu.let_go(&on.view);
        }
        if by == Table::Home && !on.view.is_all_home() {
            // What others use in frames would not be what it finds at the home.
            launches.wait_for(|kind| kind.gpu == gpu);
            self.release_on(launches, &on, false)?;
            on.view.set_all_home();
        }
        on.gpu.hold(&on.view)?;
        if writes && on.view.came_beside() {
            launches.wait_beside(gpu);
            if on.view.shares_home() {
                // Launches that read it may mark pages still, and what is written back for that must not replace what others have stored there.
                launches.wait_for(|kind| kind.gpu == gpu && kind.by != Table::HomeAlone);
                on.gpu.forget_late_marks(&on.view)?;
            }
            // Else such a page is written back once more than it needs to be.
            on.view.forget_beside();
        }
        on.view.note_use(writes);
        if self.looks_up_resident(&on) {
            on.gpu.find_resident(&on.view)?;
            if !on.view.is_complete() {
                // It is not looked up.
                return Ok(());
            }
        } else {
            self.place_pages(launches, &on, to_begin)?;
        }
        match by {
            Table::Entries => on.gpu.write_entries(&on.view),
            Table::Places => on.gpu.write_places(&on.view),
            // Its entries are those of the kernels beside it in its module.
            Table::Home if on.gpu.window()?.is_over_homes() => on.gpu.write_entries(&on.view),
            Table::Home | Table::HomeAlone => Ok(()),
        }
    }

    fn can_be_looked_up(&self, place: usize) -> bool {
        self.at(place)
            .is_none_or(|on| !self.looks_up_resident(&on) || on.view.is_complete())
    }

    fn let_go(&self, place: usize) -> Result<bool> {
        let mut launches = self.launches.lock();
        self.if_idle(&mut launches, place, |_, on| on.gpu.let_go(&on.view))
    }

    fn let_go_unless_used(&self, place: usize) -> Result<bool> {
        match self.launches.try_lock() {
            Some(mut launches) => self.if_idle(&mut launches, place, |_, on| on.gpu.let_go(&on.view)),
            // A thread that has the lock is about to use it.
            None => Ok(false),
        }
    }

    fn leave_unlent(&self, place: usize) -> Result<()> {
        match self.launches.try_lock() {
            Some(mut launches) => self
                .if_idle(&mut launches, place, |_, on| on.gpu.leave_slots(&on.view, true))
                .map(drop),
            None => Ok(()),
        }
    }

    fn give_frames(&self, place: usize) -> Result<bool> {
        match self.launches.try_lock() {
            Some(mut launches) => self.if_idle(&mut launches, place, |launches, on| {
                self.release_on(launches, on, false)
            }),
            None => Ok(false),
        }
    }

    fn view(&self, place: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        let on = self.at(place)?;
        Some(Arc::clone(&on.view) as Arc<dyn Any + Send + Sync>)
    }

    fn standing(&self) -> Standing {
        Listed::standing(self)
    }

    fn is_short(&self, place: usize) -> bool {
        self.at(place)
            .is_some_and(|on| on.view.is_held() && on.view.is_crowded() && on.gpu.looks_at(&on.view))
    }

    fn relieve(&self, place: usize) {
        if let Some(on) = self.at(place) {
            on.view.set_crowded(false);
        }
    }

    fn give_some(&self, place: usize, most: u64) -> Result<bool> {
        let mut gives = false;
        if let Some(mut launches) = self.launches.try_lock() {
            self.if_idle(&mut launches, place, |_, on| {
                // Pages whose home no lane reaches leave by faults alone.
                let leaves = !self.looks_up_resident(on) && on.view.may_have_pages();
                gives = leaves && on.gpu.give_some(&on.view, most)?;
                Ok(())
            })?;
        }
        Ok(gives)
    }

    fn expect(&self, launches: &mut LaunchTracker, LaunchKind { gpu, writes, by, .. }: LaunchKind) {
        if let Some(on) = self.at(gpu) {
            // Lanes that read a replicated region repair its copies, by pages that count as written.
            let stores = (writes && !self.kind.read_only) || self.own.is_replicated();
            if stores {
                self.expect_stores();
            }
            if !matches!(by, Table::Home | Table::HomeAlone) {
                on.view.expect_pages();
                if stores {
                    on.view.expect_writes();
                }
            }
        }
        launches.coherence.begin(gpu, writes);
    }
}

impl RegionInner {
    /// Has the home hold what launches on a GPU wrote, or are writing.
    fn write_home(&self, launches: &mut LaunchTracker, gpu: usize) -> Result<()> {
        // Those that write at home, too, of which the view knows nothing.
        launches.wait_for(|kind| kind.gpu == gpu && kind.writes);
        match self.at(gpu).filter(|on| on.view.may_have_writes()) {
            Some(on) => self.flush_on(launches, &on),
            None => Ok(()),
        }
    }

    /// Has pages leave, and come, before a launch that looks them up. Graphs find them by the table of places, whatever the launch looks up, and also where that
    /// fails: frames and slots that were left may be others' by now.
    fn place_pages(&self, launches: &mut LaunchTracker, on: &OnGpu, to_begin: LaunchKind) -> Result<()> {
        let mut place = || {
            self.leave_neighbours(launches, on, to_begin.writes)?;
            if to_begin.by == Table::Home || launches.any_on(to_begin.gpu) {
                return Ok(());
            }
            // Before any comes: the launch may not begin after all.
            on.view.expect_pages();
            on.gpu.bring(&on.view)
        };
        let placed = place();
        match on.view.is_captured() {
            true => placed.and(on.gpu.write_places(&on.view)),
            false => placed,
        }
    }

    /// Has pages leave slots at neighbours: all of them before a launch that `writes`, which stores at home, else those whose memory was taken back. Launches that may
    /// read there have ended first.
    fn leave_neighbours(&self, launches: &mut LaunchTracker, on: &OnGpu, writes: bool) -> Result<()> {
        let place = on.gpu.place;
        if !on.view.has_slots() {
            return Ok(());
        }
        if writes || on.gpu.may_have_unlent(&on.view) {
            launches.wait_for(|kind| kind.gpu == place && (writes || kind.by != Table::HomeAlone));
        }
        match launches.any_on(place) {
            true => Ok(()),
            false => on.gpu.leave_slots(&on.view, !writes),
        }
    }

    /// Does `act` where pages stay where they are for launches on the GPU at a place. False where launches use the region there.
    fn if_idle(
        &self,
        launches: &mut LaunchTracker,
        place: usize,
        act: impl FnOnce(&mut LaunchTracker, &OnGpu) -> Result<()>,
    ) -> Result<bool> {
        // Of a region that has ended another one may have the place.
        match self.at(place).filter(|on| on.view.is_held() && !on.view.has_ended()) {
            Some(on) if launches.any_on(place) || on.view.is_captured() => Ok(false),
            Some(on) => act(launches, &on).map(|()| true),
            None => Ok(true),
        }
    }

    /// Why kernels of the GPU alone take it that it was made on, if that is so.
    pub fn keeps_to_one_gpu(&self) -> Option<&'static str> {
        match self.own.home().host_memory() {
            _ if self.own.is_at_nodes() => {
                Some("its pages are at memory nodes, which serve only the GPU that allocated them")
            }
            None if self.own.home().file_span().is_some() => {
                Some("its pages are in a file, which serves only the GPU that opened it")
            }
            None => Some("its pages are at a neighbour GPU, which serves only the GPU that allocated them"),
            Some(_) if self.own.is_replicated() || self.own.guards.checksums != 0 => {
                Some("its replicas or checksums are kept in the memory of one GPU")
            }
            Some(_) => None,
        }
    }

    /// What it is on a GPU of its virtual memory, where it comes if it is not there yet.
    ///
    /// # Errors
    /// As for a region that is made there.
    pub fn on(&self, gpu: &Arc<PagedGpu>) -> Result<Arc<OnGpu>> {
        if let Some(on) = self.at(gpu.place) {
            return Ok(on);
        }
        // Until it is there, so that it comes once, and with the advice that all GPUs have.
        let advised = self.advised.lock();
        if let Some(on) = self.at(gpu.place) {
            return Ok(on);
        }
        let homes = self.own.homes.iter().map(|reached| Arc::clone(&reached.home)).collect();
        let on = OnGpu::create(gpu, &self.name, self.kind, self.pages, homes, None)?;
        on.begin_draws(*advised)?;
        on.view.follow(on.traits.array_flags(*advised));
        gpu.enter(&on.view, || {
            on.write_stripes()?;
            Ok(self.desc(&on, *advised))
        })?;
        let on = Arc::new(on);
        self.others.lock().push(Arc::clone(&on));
        Ok(on)
    }

    /// What it is on the GPU at a place, if it is there.
    pub fn at(&self, place: usize) -> Option<Arc<OnGpu>> {
        if self.own.gpu.place == place {
            return Some(Arc::clone(&self.own));
        }
        self.others.lock().iter().find(|on| on.gpu.place == place).cloned()
    }

    /// What it is on each of its GPUs; first on the one that it was made on.
    pub(super) fn everywhere(&self) -> Vec<Arc<OnGpu>> {
        let own = std::iter::once(&self.own);
        own.chain(self.others.lock().iter()).cloned().collect()
    }

    /// What it is on each of its GPUs but those that are lost, if it goes on without them.
    pub(super) fn where_it_goes_on(&self) -> Vec<Arc<OnGpu>> {
        let mut places = self.everywhere();
        if places.len() > 1 {
            places.retain(|on| on.gpu.device.lost().is_none());
        }
        places
    }

    /// Whether kernels of more than one GPU were launched with it.
    fn is_shared(&self) -> bool {
        !self.others.lock().is_empty()
    }

    /// Works on a GPU's pages. A shared region goes on without a GPU that is lost, with what its home holds: nothing is left to be done
    /// there, and what its kernels wrote since the last flush is told as lost, once.
    fn work_on(&self, launches: &mut LaunchTracker, on: &OnGpu, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let is_lost = || self.is_shared() && on.gpu.device.lost().is_some();
        if on.view.is_held() {
            let place = on.gpu.place;
            launches.wait_for(|kind| kind.gpu == place && kind.looks_up);
        }
        if !is_lost() {
            self.refuse_beside_graphs(on)?;
            let worked = on.gpu.let_go(&on.view).and_then(|()| work());
            if worked.is_ok() || !is_lost() {
                return worked;
            }
        }
        launches.coherence.dropped(on.gpu.place);
        match on.gpu.lost() {
            Some(Error::GpuLost { source, .. }) if on.view.may_have_writes() => {
                on.view.note_flushed();
                Err(Error::WritesLost {
                    region: self.name.clone(),
                    gpu: on.gpu.place,
                    source,
                })
            }
            _ => Ok(()),
        }
    }

    /// Writes back what is dirty on a GPU. The launches are locked, and none that writes the region runs there.
    fn flush_on(&self, launches: &mut LaunchTracker, on: &OnGpu) -> Result<()> {
        let place = on.gpu.place;
        if on.view.is_captured() {
            // Its pages stay held: what marks say counts, and they stay, as beside launches.
            self.drain_graphs(on)?;
            on.gpu.fold_marks(&on.view)?;
            on.gpu.flush(&on.view)?;
            if on.view.graphs_write() {
                // They go on, and nothing says when.
                self.expect_stores();
            }
            launches.coherence.flushed(place, true);
            on.view.note_flushed();
            return Ok(());
        }
        let beside = launches.any_on(place);
        self.work_on(launches, on, || on.gpu.flush(&on.view))?;
        on.view.note_flushed();
        launches.coherence.flushed(place, beside);
        Ok(())
    }

    /// Gives all frames on a GPU back. The launches are locked, and none that names the region runs there.
    pub(super) fn release_on(&self, launches: &mut LaunchTracker, on: &OnGpu, discard: bool) -> Result<()> {
        let (pages, was_held) = (0..self.pages.count(), on.view.is_held());
        self.work_on(launches, on, || {
            release(on, pages, discard)?;
            match was_held {
                // Pages that were used at home before come no more for that.
                true => on.view.forget_uses(&*on.gpu.device),
                false => Ok(()),
            }
        })?;
        on.view.note_flushed();
        if discard {
            // Somebody else writes the home.
            on.view.note_use(true);
        }
        launches.coherence.dropped(on.gpu.place);
        Ok(())
    }

    /// Writes dirty pages back, on all GPUs where launches may have written some.
    pub(super) fn flush_beside(&self) -> Result<()> {
        self.retry_writes();
        let mut flushed = Ok(());
        for on in self.everywhere() {
            if self.pages.count() != 0 && on.view.may_have_writes() {
                let folded = match on.view.is_held() {
                    // Nothing lets the region go meanwhile.
                    true => {
                        let _launches = self.launches.lock();
                        on.gpu.fold_marks(&on.view)
                    }
                    false => Ok(()),
                };
                flushed = flushed.and(folded.and_then(|()| on.gpu.flush(&on.view)));
            }
        }
        flushed
    }

    /// Writes all dirty pages home while the launches are locked and none that names the region runs: then the home holds everything. The first error is
    /// returned; what could be written is written back all the same.
    pub(super) fn flush_quiet(&self, launches: &mut LaunchTracker) -> Result<()> {
        self.flush_those(launches, |_| true)
    }

    /// [`flush_quiet`](Self::flush_quiet) on the GPUs that are not lost.
    pub(super) fn flush_reachable(&self, launches: &mut LaunchTracker) -> Result<()> {
        self.flush_those(launches, |on| on.gpu.lost().is_none())
    }

    fn flush_those(&self, launches: &mut LaunchTracker, which: impl Fn(&OnGpu) -> bool) -> Result<()> {
        self.retry_writes();
        let mut flushed = Ok(());
        for on in self.everywhere() {
            if self.pages.count() != 0 && on.view.may_have_writes() && which(&on) {
                flushed = flushed.and(self.flush_on(launches, &on));
            }
        }
        flushed
    }

    /// Gives the frames on all GPUs back, dropping what is dirty still if `discard`. As [`flush_quiet`](Self::flush_quiet).
    pub(super) fn release_pages(&self, launches: &mut LaunchTracker, discard: bool) -> Result<()> {
        self.retry_writes();
        let mut released = Ok(());
        for on in self.everywhere() {
            released = released.and(self.release_on(launches, &on, discard));
        }
        released
    }

    /// Has pages come to frames on all GPUs before launches look them up. As [`release_pages`](Self::release_pages).
    pub(super) fn want(&self, launches: &mut LaunchTracker, pages: &Range<u64>) -> Result<()> {
        let mut wanted = Ok(());
        for on in self.everywhere() {
            let want = || on.view.want(&*on.gpu.device, pages.clone());
            wanted = wanted.and(self.work_on(launches, &on, want));
        }
        wanted
    }

    /// Gives the frames of some pages on all GPUs back. As [`release_pages`](Self::release_pages).
    pub(super) fn release_some(&self, launches: &mut LaunchTracker, pages: &Range<u64>, discard: bool) -> Result<()> {
        let mut released = Ok(());
        for on in self.everywhere() {
            released = released.and(self.work_on(launches, &on, || release(&on, pages.clone(), discard)));
        }
        released
    }
}

fn release(on: &OnGpu, pages: Range<u64>, discard: bool) -> Result<()> {
    match pages.is_empty() || !on.view.may_have_pages() {
        true => Ok(()),
        false => on.gpu.release(&on.view, pages, discard),
    }
}
