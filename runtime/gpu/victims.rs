//! Memory that neighbour GPUs lend, for clean pages that leave their frames.

use std::ops::Range;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{self as layout, VictimsDesc};
use parking_lot::Mutex;

use super::{
    lender::{Lender, most_of},
    pool::FreeList,
    view::RegionView,
};
use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Error, Result},
    plan::{Loan, Settings, TransportKind, refuse},
    turns::Looks,
};

/// While one in this many slots is free, fetched pages keep theirs: there is room for pages twice, and a page that leaves again needs no copy.
/// With less, what room there is goes to pages that have no frame.
const SPARE_SHARE: u32 = 64;
/// A loan that may grow does so when fewer than one in this many slots is free.
const DRY_SHARE: u64 = 16;
/// Base-two logarithm of the turns of the hand over the slots with which counts of fetches halve: so few pages get a slot in one turn, at
/// worst a quarter of the slots, that counts which halved with each would forget what is fetched once a round.
const AGE_TURNS_SHIFT: u32 = 3;
/// How long the host rests between two looks at the lanes that copy pages to a neighbour.
const WRITERS_LOOK: Duration = Duration::from_micros(20);

/// Since when owners wait for memory that was given back.
struct Awaited {
    since: Instant,
    /// When launches were waited for that keep it, or `since`.
    hurried: Instant,
}

/// What says whether anything is to be freed: bytes that were given back so far, and how many regions may have slots there still.
type Loans = (u64, usize);

/// The slots of one GPU, at all neighbours that it borrows from.
pub(crate) struct Victims {
    desc: DeviceArray<VictimsDesc>,
    free: FreeList,
    chunks: DeviceArray<u64>,
    lent: DeviceArray<u32>,
    writers: DeviceArray<u32>,
    slots_kept: DeviceArray<u32>,
    slot_pages: DeviceArray<u64>,
    /// Of hints alone, which lanes read and write.
    _slot_uses: DeviceArray<u32>,
    frames: u64,
    /// Of chunks that follow each other.
    lenders: Mutex<Vec<Lender>>,
    chunk_count: u32,
    chunk_slots: u32,
    page_size: u64,
    /// Bytes, all times together.
    given_back: AtomicU64,
    /// While memory that was given back is not free for its owner.
    awaited: Mutex<Option<Awaited>>,
    /// The [`Loans`] when all words were looked through last.
    loans: Mutex<Loans>,
    /// For how long it was not, all times together.
    waited_ns: AtomicU64,
    /// Pages that came to slots where launches look them up.
    filled: AtomicU64,
}

impl Victims {
    /// Borrows what the settings ask for; none when they ask for nothing.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Gpu`] when a neighbour has no such memory, or no path leads there.
    pub fn new(gpu: &dyn Gpu, transport: TransportKind, settings: &Settings) -> Result<Option<Self>> {
        if settings.borrowed.is_empty() {
            return Ok(None);
        }
        if transport != TransportKind::Direct {
            let reason =
                "borrowed memory of neighbour GPUs needs the transport direct, by which GPU threads copy pages";
            return refuse("transport", transport.to_string(), reason);
        }
        let page_size = settings.page_size;
        let chunk_bytes = settings.borrowed_chunk.max(page_size);
        let chunk_slots = (chunk_bytes / page_size) as u32;
        let mut lenders = lenders_of(gpu, settings, chunk_bytes)?;
        let chunk_count: u32 = lenders.iter().map(|lender| lender.most).sum();
        // Only its own, of several GPUs, or of owners who have nothing to spare.
        if chunk_count == 0 {
            return Ok(None);
        }
        let slots = u64::from(chunk_count) * u64::from(chunk_slots);
        for lender in &mut lenders {
            begin(gpu, lender, chunk_bytes)?;
        }
        let doing = || "allocating the bookkeeping of borrowed memory".to_owned();
        let free = FreeList::new(gpu, slots as u32).doing(doing)?;
        let chunks = DeviceArray::zeroed(gpu, chunk_count.into()).doing(doing)?;
        let lent = DeviceArray::zeroed(gpu, chunk_count.into()).doing(doing)?;
        let writers = DeviceArray::zeroed(gpu, chunk_count.into()).doing(doing)?;
        // As many as there may be.
        let frames = settings.frame_capacity.unwrap_or(settings.frame_memory) / page_size;
        // The simulator watches pairs of them.
        let slots_kept = DeviceArray::zeroed(gpu, frames.next_multiple_of(2)).doing(doing)?;
        let slot_pages = DeviceArray::zeroed(gpu, slots).doing(doing)?;
        let slot_uses = DeviceArray::zeroed(gpu, slots).doing(doing)?;
        let desc = VictimsDesc {
            free: free.describe(),
            chunks: chunks.addr(),
            lent: lent.addr(),
            writers: writers.addr(),
            chunk_shift: chunk_slots.trailing_zeros(),
            slots_kept: slots_kept.addr(),
            age_shift: slots.next_power_of_two().trailing_zeros() + AGE_TURNS_SHIFT,
            slot_pages: slot_pages.addr(),
            slot_uses: slot_uses.addr(),
            ..zero()
        };
        let victims = Self {
            desc: DeviceArray::from_slice(gpu, &[desc]).doing(doing)?,
            free,
            chunks,
            lent,
            writers,
            slots_kept,
            slot_pages,
            _slot_uses: slot_uses,
            frames,
            lenders: Mutex::new(lenders),
            chunk_count,
            chunk_slots,
            page_size,
            given_back: AtomicU64::new(0),
            awaited: Mutex::default(),
            loans: Mutex::default(),
            waited_ns: AtomicU64::new(0),
            filled: AtomicU64::new(0),
        };
        victims.begin_loans(gpu)?;
        Ok(Some(victims))
    }

    /// Tells lanes of all that is lent, and that all of it is free.
    fn begin_loans(&self, gpu: &dyn Gpu) -> Result<()> {
        let lenders = self.lenders.lock();
        for lender in &*lenders {
            self.tell(gpu, lender, 0)?;
        }
        self.tell_spare(gpu, &lenders)?;
        drop(lenders);
        self.free_all(gpu, |_| false)
    }

    /// Address of the [`VictimsDesc`].
    pub fn desc_addr(&self) -> u64 {
        self.desc.addr()
    }

    /// No word names a slot any more but those that are `used`: all others that are lent are free. No kernel may run.
    pub fn free_all(&self, gpu: &dyn Gpu, used: impl Fn(u32) -> bool) -> Result<()> {
        let lenders = self.lenders.lock();
        let doing = || "freeing the slots of borrowed memory".to_owned();
        let none = vec![0_u32; self.chunk_count as usize];
        self.writers.write(gpu, 0, &none).doing(doing)?;
        let none = vec![0_u32; self.frames as usize];
        self.slots_kept.write(gpu, 0, &none).doing(doing)?;
        self.forget_pages(gpu, 0..self.chunk_count)?;
        let free = self.lent_slots(&lenders).filter(|slot| !used(*slot));
        self.free.fill(gpu, free).doing(doing)
    }

    /// The hand over the slots looks for no page of these chunks. No kernel may run.
    fn forget_pages(&self, gpu: &dyn Gpu, chunks: Range<u32>) -> Result<()> {
        let none = vec![0_u64; chunks.len() * self.chunk_slots as usize];
        let first = u64::from(chunks.start) * u64::from(self.chunk_slots);
        let doing = || "freeing the slots of borrowed memory".to_owned();
        self.slot_pages.write(gpu, first, &none).doing(doing)
    }

    /// Bytes that are lent now.
    pub fn lent_bytes(&self) -> u64 {
        let chunks: u32 = self.lenders.lock().iter().map(|lender| lender.lent).sum();
        u64::from(chunks) * self.chunk_bytes()
    }

    /// Whether a loan follows from the memory that is free at its owner.
    pub fn follows_owners(&self) -> bool {
        self.lenders.lock().iter().any(|lender| lender.auto)
    }

    /// Bytes that were given back so far. What was borrowed again meanwhile counts each time.
    pub fn given_back_bytes(&self) -> u64 {
        // Relaxed: a count that nothing is ordered by.
        self.given_back.load(Ordering::Relaxed)
    }

    /// For how long memory that was given back was not free for its owner, since launches read there, or were to be asked first.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// Pages that came to slots where launches look them up.
    pub fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// This many more have come.
    pub fn note_filled(&self, pages: u64) {
        self.filled.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whether memory that was given back is not free for its owner.
    pub fn is_awaited(&self) -> bool {
        self.awaited.lock().is_some()
    }

    /// Whether that is so for longer than `limit`, since it began or since this was true last.
    pub fn is_overdue(&self, limit: Duration) -> bool {
        let mut awaited = self.awaited.lock();
        let overdue = awaited.as_mut().filter(|awaited| awaited.hurried.elapsed() > limit);
        overdue.is_some_and(|awaited| {
            awaited.hurried = Instant::now();
            true
        })
    }

    fn chunk_bytes(&self) -> u64 {
        u64::from(self.chunk_slots) * self.page_size
    }

    /// The slots that are lent, of all lenders in turn, so that what is borrowed of several is used of several.
    fn lent_slots<'a>(&self, lenders: &'a [Lender]) -> impl Iterator<Item = u32> + use<'a> {
        let (most, slots) = (lenders.iter().map(|lender| lender.lent).max(), self.chunk_slots);
        let chunks = (0..most.unwrap_or(0)).flat_map(|chunk| {
            let lending = lenders.iter().filter(move |lender| chunk < lender.lent);
            lending.map(move |lender| lender.first + chunk)
        });
        chunks.flat_map(move |chunk| chunk * slots..(chunk + 1) * slots)
    }

    /// Tells lanes of a lender's chunks from `before` on, which are lent from now on. No kernel may run.
    fn tell(&self, gpu: &dyn Gpu, lender: &Lender, before: u32) -> Result<()> {
        let doing = || "lending memory".to_owned();
        let chunks: Vec<u64> = (before..lender.lent)
            .map(|chunk| lender.address(chunk, self.chunk_bytes()))
            .collect();
        let first = u64::from(lender.first + before);
        self.chunks.write(gpu, first, &chunks).doing(doing)?;
        self.lent.write(gpu, first, &vec![1_u32; chunks.len()]).doing(doing)
    }

    /// Tells lanes from how few free slots on pages stop to keep theirs, of those that are lent now. No kernel may run.
    fn tell_spare(&self, gpu: &dyn Gpu, lenders: &[Lender]) -> Result<()> {
        let lent: u32 = lenders.iter().map(|lender| lender.lent).sum();
        let doing = || "lending memory".to_owned();
        let tell = |field: usize, value: u32| gpu.write(self.desc.addr() + field as u64, &value.to_ne_bytes());
        let spare = lent * self.chunk_slots / SPARE_SHARE;
        tell(std::mem::offset_of!(VictimsDesc, spare_min), spare).doing(doing)?;
        tell(std::mem::offset_of!(VictimsDesc, keeps), 1).doing(doing)
    }

    /// What a lender may do with what it was given back and is not freed yet, for tests: fills it with a byte. Nothing where launches may read it still.
    pub fn scribble(&self, gpu: &dyn Gpu, regions: &[Arc<RegionView>], byte: u8) -> Result<u64> {
        let bytes = vec![byte; self.chunk_bytes() as usize];
        let doing = || "writing memory that was given back".to_owned();
        let lenders = self.lenders.lock();
        let given_back = self.given_back_bytes();
        // Who fetches pages from there looks whether the memory is lent still; who reads in place does not, and has to have ended.
        let is_read = regions.iter().any(|region| region.may_have_slots_from(given_back));
        if is_read && self.loans.lock().0 != given_back {
            return Ok(0);
        }
        let mut written = 0;
        for lender in &*lenders {
            let named = if is_read { lender.named } else { 0 };
            for chunk in lender.lent.max(named)..lender.backed() {
                gpu.write(lender.address(chunk, self.chunk_bytes()), &bytes)
                    .doing(doing)?;
                written += self.chunk_bytes();
            }
        }
        Ok(written)
    }

    /// Ends the loan of `bytes` bytes, in whole chunks, of one lender or of all, while launches run; how many those were. From its return
    /// on no lane writes there, and none uses what it reads there. It waits for lanes that copy a page there now, no longer than `limit`.
    pub fn take_back(&self, gpu: &dyn Gpu, of: Option<u32>, bytes: u64, limit: Duration) -> Result<u64> {
        let mut lenders = self.lenders.lock();
        let doing = || "taking borrowed memory back".to_owned();
        let (mut rest, mut taken) = (bytes.div_ceil(self.chunk_bytes()), 0);
        let lending = lenders.iter_mut().rev();
        for lender in lending.filter(|lender| of.is_none_or(|ordinal| ordinal == lender.ordinal)) {
            let chunks = rest.min(u64::from(lender.lent)) as u32;
            let first = u64::from(lender.first + lender.lent - chunks);
            self.lent
                .write(gpu, first, &vec![0_u32; chunks as usize])
                .doing(doing)?;
            lender.lent -= chunks;
            rest -= u64::from(chunks);
            taken += u64::from(chunks);
            // One by one: the next lender may not answer.
            self.note_given_back(chunks);
        }
        let looks = Looks::begin(gpu);
        // Also after an earlier call that ended before its writers did. Writers of chunks that are lent go on, and are not waited for.
        let mut writers = vec![0_u32; self.chunk_count as usize];
        loop {
            self.writers.read_into(gpu, 0, &mut writers).doing(doing)?;
            let back = lenders
                .iter()
                .flat_map(|lender| lender.first + lender.lent..lender.first + lender.most);
            let writing: u32 = back.map(|chunk| writers[chunk as usize]).sum();
            if writing == 0 {
                return Ok(taken * self.chunk_bytes());
            }
            if looks.elapsed() > limit {
                return Err(Error::StillWritten {
                    writers: writing,
                    waited: limit,
                });
            }
            looks.rest(WRITERS_LOOK);
        }
    }

    fn note_given_back(&self, chunks: u32) {
        if chunks > 0 {
            self.given_back
                .fetch_add(u64::from(chunks) * self.chunk_bytes(), Ordering::Relaxed);
            let now = Instant::now();
            let begin = || Awaited {
                since: now,
                hurried: now,
            };
            self.awaited.lock().get_or_insert_with(begin);
        }
    }

    /// Takes back what owners want that need memory themselves, and all of an owner who cannot be asked any more, since it may be lost: how
    /// many bytes.
    ///
    /// # Errors
    /// As [`take_back`](Self::take_back).
    pub fn relieve(&self, gpu: &dyn Gpu, limit: Duration) -> Result<u64> {
        let mut wanted = Vec::new();
        for lender in self
            .lenders
            .lock()
            .iter()
            .filter(|lender| lender.auto && lender.lent > 0)
        {
            let chunks = match gpu.memory_left(lender.ordinal) {
                Ok(left) => lender.wanted_back(left, self.chunk_bytes()),
                Err(error) => {
                    let ordinal = lender.ordinal;
                    tracing::warn!(%error, "GPU {ordinal} does not report its free memory: no more pages are kept there");
                    lender.lent
                }
            };
            wanted.push((lender.ordinal, chunks));
        }
        let mut taken = 0;
        for (ordinal, chunks) in wanted.into_iter().filter(|(_, chunks)| *chunks > 0) {
            taken += self.take_back(gpu, Some(ordinal), u64::from(chunks) * self.chunk_bytes(), limit)?;
        }
        Ok(taken)
    }

    /// What is to be done while no launch runs, and none can begin: frees memory that was given back, and borrows more where slots have
    /// become few or `more` bytes are asked for. `regions`: all of the GPU. How many bytes were borrowed.
    pub fn update_loans(&self, gpu: &dyn Gpu, regions: &[Arc<RegionView>], more: u64) -> Result<u64> {
        let mut lenders = self.lenders.lock();
        let grown = self.growth(gpu, &mut lenders, more)?;
        let given_back = self.given_back_bytes();
        let readers = regions.iter().filter(|region| region.may_have_slots_from(given_back));
        let loans = (given_back, readers.count());
        if grown.is_none() && *self.loans.lock() == loans {
            return Ok(0);
        }
        let used = self.forget_unlent(gpu, &lenders, regions)?;
        let mut borrowed = 0;
        for (n, lender) in lenders.iter_mut().enumerate() {
            lender.named = self.named_chunks(lender, &used);
            lender.free();
            let before = lender.lent;
            let asked = grown.as_ref().map_or(before, |grown| grown[n]);
            match lender.back(gpu, asked, self.chunk_bytes()) {
                Err(source) if more > 0 && !matches!(source, GpuError::OutOfMemory { .. }) => {
                    return Err(source).doing(|| format!("borrowing memory of GPU {}", lender.ordinal));
                }
                // There is less than was said, or the neighbour is gone: what there is will do.
                _ => {}
            }
            lender.lent = asked.min(lender.backed());
            self.tell(gpu, lender, before)?;
            borrowed += u64::from(lender.lent - before) * self.chunk_bytes();
        }
        self.tell_spare(gpu, &lenders)?;
        let free = self.lent_slots(&lenders).filter(|slot| !used[*slot as usize]);
        self.free.fill(gpu, free).doing(|| "listing free slots".to_owned())?;
        *self.loans.lock() = loans;
        if loans.1 == 0 {
            self.note_free(&lenders);
        }
        Ok(borrowed)
    }

    /// The chunks of a lender up to the last one that has a slot in use.
    fn named_chunks(&self, lender: &Lender, used: &[bool]) -> u32 {
        let slots = self.chunk_slots as usize;
        let is_named = |chunk: &u32| used[(lender.first + chunk) as usize * slots..][..slots].contains(&true);
        (0..lender.backed()).rev().find(is_named).map_or(0, |chunk| chunk + 1)
    }

    /// Notes for how long owners waited, once they do no longer.
    fn note_free(&self, lenders: &[Lender]) {
        let mut awaited = self.awaited.lock();
        if let Some(awaited) = awaited.take_if(|_| !lenders.iter().any(Lender::has_unused)) {
            let waited = awaited.since.elapsed().as_nanos() as u64;
            self.waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
    }

    /// Chunks that each lender is to lend, where that is more than it does.
    fn growth(&self, gpu: &dyn Gpu, lenders: &mut [Lender], more: u64) -> Result<Option<Vec<u32>>> {
        let mut rest = more.div_ceil(self.chunk_bytes());
        if more == 0 && !(lenders.iter().any(Lender::may_grow) && self.is_dry(gpu, lenders)?) {
            return Ok(None);
        }
        let mut grown = Vec::new();
        for lender in lenders.iter_mut() {
            // A loan that follows what is free grows by that alone.
            let room = if lender.auto { 0 } else { lender.most - lender.lent };
            let asked = rest.min(u64::from(room)) as u32;
            rest -= u64::from(asked);
            let mut chunks = lender.lent + asked;
            // A launch does not fail since nothing says what is free elsewhere: the loan stays what it is.
            if more == 0
                && lender.may_grow()
                && let Ok(left) = gpu.memory_left(lender.ordinal)
            {
                chunks = lender.grows_to(left, self.chunk_bytes());
            }
            grown.push(chunks);
        }
        let grows = grown
            .iter()
            .zip(&*lenders)
            .any(|(chunks, lender)| *chunks > lender.lent);
        Ok(grows.then_some(grown))
    }

    /// Whether few of the slots are free.
    fn is_dry(&self, gpu: &dyn Gpu, lenders: &[Lender]) -> Result<bool> {
        let lent: u64 = lenders.iter().map(|lender| u64::from(lender.lent)).sum();
        let free = self.free.available(gpu);
        let free = free.doing(|| "reading how many slots are free".to_owned())?;
        Ok(free < lent * u64::from(self.chunk_slots) / DRY_SHARE + 1)
    }

    /// Takes slots that are not lent any more out of words and from beside frames: which slots are in use. Places that launches look up stay: a launch that
    /// is about to begin may have them in its table.
    fn forget_unlent(&self, gpu: &dyn Gpu, lenders: &[Lender], regions: &[Arc<RegionView>]) -> Result<Vec<bool>> {
        let doing = || "looking through the slots of borrowed memory".to_owned();
        let mut lent = vec![false; self.chunk_count as usize];
        for lender in lenders {
            lent[lender.first as usize..][..lender.lent as usize].fill(true);
        }
        let is_lent = |slot: u32| lent[(slot / self.chunk_slots) as usize];
        let mut used = vec![false; self.chunk_count as usize * self.chunk_slots as usize];
        for region in regions.iter().filter(|region| region.has_victims()) {
            let mut words = region.read_words(gpu)?;
            let mut changed = false;
            for word in &mut words {
                let Some(slot) = slot_of(*word) else { continue };
                match is_lent(slot) {
                    true => used[slot as usize] = true,
                    false => {
                        *word &= !layout::FRAME_MASK;
                        changed = true;
                    }
                }
            }
            if changed {
                region.write_words(gpu, &words)?;
            }
        }
        for region in regions.iter().filter(|region| region.has_slots()) {
            for slot in region.read_words(gpu)?.into_iter().filter_map(slot_of) {
                used[slot as usize] = true;
            }
        }
        let mut kept = self.slots_kept.read(gpu, 0, self.frames as usize).doing(doing)?;
        for slot in kept.iter_mut().filter(|slot| slot_in(**slot) != 0) {
            match is_lent(*slot - 1) {
                true => used[*slot as usize - 1] = true,
                false => *slot = 0,
            }
        }
        self.slots_kept.write(gpu, 0, &kept).doing(doing)?;
        for lender in lenders.iter().filter(|lender| lender.lent < lender.backed()) {
            self.forget_pages(gpu, lender.first + lender.lent..lender.first + lender.backed())?;
        }
        Ok(used)
    }
}

/// The slot plus one that a frame field names, or 0 where it counts fetches ([`layout::USE_BIT`]).
fn slot_in(field: u32) -> u32 {
    if field & layout::USE_BIT == 0 { field } else { 0 }
}

/// The slot that an absent page's entry names.
pub(super) fn slot_of(word: u64) -> Option<u32> {
    let is_absent = word & layout::STATE_MASK == layout::STATE_ABSENT << layout::STATE_SHIFT;
    let named = slot_in(((word & layout::FRAME_MASK) >> layout::FRAME_SHIFT) as u32);
    named.checked_sub(1).filter(|_| is_absent)
}

/// Who lends what the settings ask for, to this GPU: nothing yet. All chunks together have no more slots than words can name.
fn lenders_of(gpu: &dyn Gpu, settings: &Settings, chunk_bytes: u64) -> Result<Vec<Lender>> {
    let (mut lenders, mut first) = (Vec::new(), 0_u32);
    let chunk_slots = chunk_bytes / settings.page_size;
    for (ordinal, loan) in settings.lenders(gpu) {
        let most = match loan {
            Loan::Bytes(bytes) => bytes / chunk_bytes,
            Loan::Auto => {
                let left = gpu.memory_left(ordinal);
                let left = left.doing(|| format!("asking for the free memory of GPU {ordinal}"))?;
                most_of(left, chunk_bytes).min(layout::SLOTS_MAX / chunk_slots - u64::from(first))
            }
        };
        if let (0, Loan::Bytes(bytes)) = (most, loan) {
            let reason = format!(
                "cannot borrow {bytes} bytes of GPU {ordinal}: memory is lent in chunks of {chunk_bytes} bytes"
            );
            return refuse("borrowed memory", format!("{bytes} bytes"), reason);
        }
        let slots = most.saturating_add(first.into()).saturating_mul(chunk_slots);
        if slots > layout::SLOTS_MAX {
            let reason = "page table entries address at most 2^27 - 2 slots: borrow less, or use larger pages";
            return refuse("borrowed memory", format!("{slots} pages"), reason);
        }
        lenders.push(Lender::new(ordinal, first, most as u32, loan == Loan::Auto));
        first += most as u32;
    }
    Ok(lenders)
}

/// The loan that a virtual memory begins with: all of a fixed one, one step of one that grows.
fn begin(gpu: &dyn Gpu, lender: &mut Lender, chunk_bytes: u64) -> Result<()> {
    let chunks = match lender.auto {
        true => lender.first_step(),
        false => lender.most,
    };
    let backed = lender.back(gpu, chunks, chunk_bytes);
    if !(lender.auto && matches!(backed, Err(GpuError::OutOfMemory { .. }))) {
        let bytes = u64::from(chunks) * chunk_bytes;
        backed.doing(|| format!("borrowing {bytes} bytes of GPU {}", lender.ordinal))?;
    }
    lender.lent = chunks.min(lender.backed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpuvm_gpu::CompileOptions;
    use gpuvm_sim_gpu::SimGpu;

    use super::*;

    const CHUNK_BYTES: u64 = Loan::CHUNK;

    #[test]
    fn giving_back_waits_for_those_who_write_there_also_in_a_later_call() {
        let gpu = SimGpu::builder().neighbours(1).memory_bytes(64 << 20).build().unwrap();
        let settings = Settings {
            placement: None,
            bring_beside: None,
            frame_capacity: None,
            frame_minimum: None,
            frame_priority: 0,
            frames_leave_free: None,
            frame_memory: 1 << 20,
            page_size: 4096,
            wait_limit: Duration::from_secs(1),
            launch_deadline: Duration::from_secs(1),
            regions_max: 1,
            reliable: false,
            gpu_count: 1,
            borrowed: vec![(1, Loan::Bytes(2 * CHUNK_BYTES))],
            borrowed_chunk: CHUNK_BYTES,
            support_options: CompileOptions::default(),
            precompiled: None,
            tenancy: crate::Tenancy::none(),
            file_cache: None,
            window: None,
            timeline: None,
        };
        let victims = Victims::new(&gpu, TransportKind::Direct, &settings).unwrap().unwrap();
        let limit = Duration::from_millis(5);
        assert_eq!((victims.lent_bytes(), victims.given_back_bytes()), (2 * CHUNK_BYTES, 0));
        // A lane copies a page to the last chunk, and does not end.
        victims.writers.write(&gpu, 1, &[1]).unwrap();
        let refused = |bytes| {
            let taken = victims.take_back(&gpu, None, bytes, limit);
            assert!(
                matches!(taken, Err(Error::StillWritten { writers: 1, .. })),
                "{taken:?}"
            );
        };
        refused(1);
        refused(1);
        refused(1);
        assert_eq!((victims.lent_bytes(), victims.given_back_bytes()), (0, 2 * CHUNK_BYTES));
        victims.writers.write(&gpu, 1, &[0]).unwrap();
        assert_eq!(victims.take_back(&gpu, None, 1, limit).unwrap(), 0);
    }
}
