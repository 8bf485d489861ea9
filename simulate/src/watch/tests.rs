//! Planted corruptions: a virtual memory of plain vectors, changed as lanes would change it, and as they must not.

use gpuvm_layouts::{
    self as layout, PoolDesc, PoolState, QueueDesc, QueueState, RegionDesc, RequestRecord, StripeDesc, VmDesc,
};
use gpuvm_sim_gpu::{Observer, Step};

use super::{Finding, Watcher};

mod copies;
mod victims;

const PAGE: usize = 4096;
const FRAMES: usize = 3;
const PAGES: usize = 5;
const SLOTS: usize = 4;
const PIN: u64 = 1 << layout::PIN_SHIFT;

/// Everything that a watcher reads.
struct Fake {
    watcher: Watcher,
    words: Vec<u64>,
    frame_pages: Vec<u64>,
    ring: Vec<u64>,
    pool: Box<PoolState>,
    queue: Box<QueueState>,
    records: Vec<RequestRecord>,
    frames: Vec<u8>,
    home: Vec<u8>,
    /// The second home's copy, where there is one.
    mirror: Vec<u8>,
    stale: Vec<u32>,
    joins: Vec<u32>,
    checksums: Vec<u32>,
    regions: Vec<RegionDesc>,
    stripes: Vec<StripeDesc>,
    queues: Vec<QueueDesc>,
    desc: Box<VmDesc>,
    now_ns: u64,
}

impl Fake {
    fn new() -> Self {
        Self::with(0)
    }

    /// With `REGION_REPLICATED`, `REGION_CHECKED` or both.
    fn with(flags: u32) -> Self {
        let home: Vec<u8> = (0..PAGES * PAGE).map(|byte| (byte / PAGE + byte) as u8).collect();
        let mut pool: Box<PoolState> = bytemuck::zeroed_box();
        pool.available = FRAMES as u64;
        let free = |index: u64| RequestRecord {
            state: index << layout::RECORD_INDEX_SHIFT | layout::RECORD_FREE,
            ..bytemuck::Zeroable::zeroed()
        };
        let mut fake = Self {
            watcher: Watcher::new(false),
            words: vec![0; PAGES],
            frame_pages: vec![0; FRAMES],
            ring: (0..FRAMES as u64).map(|frame| 1 << 32 | frame).collect(),
            pool,
            queue: bytemuck::zeroed_box(),
            records: (0..SLOTS as u64).map(free).collect(),
            frames: vec![0; FRAMES * PAGE],
            mirror: home.clone(),
            stale: vec![0; 2],
            joins: vec![0; PAGES],
            checksums: home.chunks(PAGE).map(|page| crc32c::crc32c(page).max(1)).collect(),
            home,
            regions: Vec::new(),
            stripes: Vec::new(),
            queues: Vec::new(),
            desc: bytemuck::zeroed_box(),
            now_ns: 0,
        };
        fake.describe(flags);
        // SAFETY: everything that the description names lives, unmoved on the heap, as long as the watcher.
        unsafe { fake.watcher.attach(&raw const *fake.desc as u64) };
        fake
    }

    /// Writes the descriptions of what there is.
    fn describe(&mut self, flags: u32) {
        let stripe = |home: &[u8]| StripeDesc {
            home: home.as_ptr() as u64,
            queue_count: 1,
            ..bytemuck::Zeroable::zeroed()
        };
        self.stripes = vec![stripe(&self.home), stripe(&self.mirror)];
        self.regions = vec![RegionDesc {
            words: self.words.as_ptr() as u64,
            bytes: (PAGES * PAGE) as u64,
            pages: PAGES as u64,
            stripes: self.stripes.as_ptr() as u64,
            homes: 1,
            nics: 1,
            flags: layout::REGION_LIVE | flags,
            frames: self.frames.as_ptr() as u64,
            replicas: if flags & layout::REGION_REPLICATED != 0 { 2 } else { 1 },
            stale: self.stale.as_ptr() as u64,
            stale_words: 1,
            joins: self.joins.as_ptr() as u64,
            checksums: self.checksums.as_ptr() as u64,
            ..bytemuck::Zeroable::zeroed()
        }];
        self.queues = vec![QueueDesc {
            mask: SLOTS as u32 - 1,
            state: &raw const *self.queue as u64,
            records: self.records.as_ptr() as u64,
            ..bytemuck::Zeroable::zeroed()
        }];
        *self.desc = VmDesc {
            page_shift: PAGE.trailing_zeros(),
            frames: self.frames.as_ptr() as u64,
            pool: PoolDesc::new(&raw const *self.pool as u64, self.ring.as_ptr() as u64, FRAMES as u32),
            frame_pages: self.frame_pages.as_ptr() as u64,
            regions: self.regions.as_ptr() as u64,
            region_count: 1,
            queue_count: 1,
            queues: self.queues.as_ptr() as u64,
            ..bytemuck::Zeroable::zeroed()
        };
    }

    /// One access of a lane is over.
    fn step(&mut self) {
        self.now_ns += 20;
        let lane = Step::Lane {
            launch: 0,
            block: 1,
            thread: 2,
        };
        self.watcher.step(self.now_ns, lane);
    }

    fn word(&mut self, page: usize, word: u64) {
        self.words[page] = word;
        self.step();
    }

    fn take(&mut self, frame: usize) {
        self.pool.available -= 1;
        self.ring[frame] = 2 << 32;
        self.step();
    }

    fn fill(&mut self, page: usize, frame: usize) {
        let (from, to) = (page * PAGE, frame * PAGE);
        self.frames[to..to + PAGE].copy_from_slice(&self.home[from..from + PAGE]);
    }

    fn resident(frame: usize) -> u64 {
        layout::STATE_RESIDENT << layout::STATE_SHIFT | (frame as u64) << layout::FRAME_SHIFT
    }

    /// A request is written for slot 0, handed over, rung.
    fn post(&mut self, kind: u32, page: usize, frame: usize) {
        self.post_to(kind, layout::page_id(0, page as u64), frame);
    }

    /// A request to the replica that `page_id` names.
    fn post_to(&mut self, kind: u32, page_id: u64, frame: usize) {
        let place = (self.queue.reserved as usize) % SLOTS;
        self.queue.reserved += 1;
        self.step();
        let record = &mut self.records[place];
        (record.page_id, record.frame, record.kind) = (page_id, frame as u32, kind);
        self.step();
        self.phase(place, layout::RECORD_POSTED);
        self.queue.written += 1;
        self.step();
        self.queue.posted += 1;
        self.step();
    }

    fn phase(&mut self, slot: usize, phase: u64) {
        let state = &mut self.records[slot].state;
        let mut index = *state >> layout::RECORD_INDEX_SHIFT;
        if phase == layout::RECORD_FREE {
            index += SLOTS as u64;
        }
        *state = index << layout::RECORD_INDEX_SHIFT | phase;
        self.step();
    }

    /// The whole way of a page into a frame.
    fn fetch(&mut self, page: usize, frame: usize) {
        self.fetch_from(page, 0, frame);
    }

    /// The whole way of a page into a frame, from one of two homes.
    fn fetch_from(&mut self, page: usize, replica: u64, frame: usize) {
        let page_id = layout::page_id(0, page as u64) | replica << layout::PAGE_ID_REPLICA_SHIFT;
        self.word(page, self.words[page] | layout::STATE_FETCHING << layout::STATE_SHIFT);
        self.take(frame);
        let slot = (self.queue.reserved as usize) % SLOTS;
        self.post_to(layout::REQUEST_FETCH, page_id, frame);
        self.fill(page, frame);
        self.phase(slot, layout::RECORD_CLAIMED);
        self.frame_pages[frame] = layout::page_id(0, page as u64);
        self.step();
        self.word(page, Self::resident(frame) | self.words[page] & layout::VERSION_MASK);
        self.phase(slot, layout::RECORD_FREE);
    }

    /// The page leaves its frame, which goes back to where it was in the pool.
    fn evict(&mut self, page: usize, frame: usize) {
        let version = (self.words[page] & layout::VERSION_MASK) + (1 << layout::VERSION_SHIFT);
        self.word(page, version);
        self.ring[frame] = 3 << 32 | frame as u64;
        self.pool.available += 1;
        self.step();
    }

    fn found(&self) -> Vec<Finding> {
        self.watcher.findings()
    }

    /// The first finding says so.
    fn finds(&self, what: &str) {
        let found = self.found();
        let first = found
            .first()
            .unwrap_or_else(|| panic!("nothing was found; expected: {what}"));
        assert!(first.what.contains(what), "{} instead of {what}", first.what);
    }
}

#[test]
fn a_page_that_comes_is_written_and_goes_breaks_no_rule() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(1, fake.words[1] + PIN);
    fake.word(1, fake.words[1] | layout::DIRTY_BIT);
    fake.frames[7] ^= 1;
    fake.word(1, fake.words[1] - PIN);
    fake.word(1, fake.words[1] & !layout::DIRTY_BIT | layout::WRITE_BACK_BIT);
    fake.post(layout::REQUEST_CLEAN, 1, 0);
    fake.home[PAGE + 7] ^= 1;
    fake.phase(1, layout::RECORD_CLAIMED);
    fake.word(1, fake.words[1] & !layout::WRITE_BACK_BIT);
    fake.evict(1, 0);
    fake.phase(1, layout::RECORD_FREE);
    fake.frame_pages[0] = 0;
    fake.step();
    assert_eq!(fake.found(), []);
    fake.watcher.when_idle().unwrap();
    let looks = fake.watcher.looks();
    assert_eq!((looks.published, looks.evicted, looks.cleaned), (1, 1, 1));
    assert_eq!(looks.in_flight_max, 1);
    assert_eq!(
        fake.watcher.home_word(0, 512),
        Some(u64::from_ne_bytes(fake.home[PAGE..PAGE + 8].try_into().unwrap()))
    );
}

#[test]
fn a_dirty_page_that_leaves_as_if_it_were_clean() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    // Written without a mark.
    fake.frames[9] ^= 4;
    fake.evict(1, 0);
    fake.finds("left its frame clean, but its frame 0 and its home differ from byte 9 on");
}

#[test]
fn a_page_that_is_published_before_its_data_is_there() {
    let mut fake = Fake::new();
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(1);
    fake.frame_pages[1] = layout::page_id(0, 2);
    fake.word(2, Fake::resident(1));
    fake.finds("was published clean");
}

#[test]
fn a_page_that_is_claimed_while_it_is_used_in_place() {
    let mut fake = Fake::new();
    fake.regions[0].home = fake.home.as_ptr() as u64;
    // Takes the region in anew.
    fake.watcher.step(fake.now_ns, Step::Host);
    fake.word(1, PIN);
    fake.word(1, 0);
    fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
    assert_eq!(fake.found(), []);
    fake.word(2, PIN);
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT | PIN);
    fake.finds("page 2 of region 0 was claimed while it is used in place");
}

#[test]
fn two_pages_in_one_frame() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.fill(2, 0);
    fake.frame_pages[0] = layout::page_id(0, 2);
    fake.word(2, Fake::resident(0));
    fake.finds("was published in frame 0, where page 1 of region 0 is");
}

#[test]
fn a_frame_that_the_pool_has_is_used() {
    let mut fake = Fake::new();
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.fill(2, 1);
    fake.frame_pages[1] = layout::page_id(0, 2);
    fake.word(2, Fake::resident(1));
    fake.finds("which the pool has");
}

#[test]
fn an_entry_of_a_frame_that_names_another_page() {
    let mut fake = Fake::new();
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(1);
    fake.fill(2, 1);
    fake.word(2, Fake::resident(1));
    fake.finds("whose entry in the table of frames says 0x0");
}

#[test]
fn a_frame_in_use_that_goes_to_the_pool() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.ring[0] = 3 << 32;
    fake.step();
    fake.finds("frame 0 went to the pool while page 1 of region 0 is in it");
}

#[test]
fn a_frame_that_goes_to_the_pool_twice() {
    let mut fake = Fake::new();
    fake.take(0);
    fake.ring[0] = 3 << 32 | 1;
    fake.step();
    fake.finds("frame 1 went to the pool twice");
}

#[test]
fn a_frame_that_a_read_still_fills() {
    let mut fake = Fake::new();
    fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(0);
    fake.post(layout::REQUEST_FETCH, 1, 0);
    fake.ring[0] = 3 << 32;
    fake.step();
    fake.finds("while a READ of page 1 of region 0 into it is under way");
}

#[test]
fn a_read_into_a_frame_that_has_a_page() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(2, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.post(layout::REQUEST_FETCH, 2, 0);
    fake.finds("a READ of page 2 of region 0 goes into frame 0");
}

#[test]
fn a_read_of_a_page_that_nobody_claimed() {
    let mut fake = Fake::new();
    fake.take(0);
    fake.post(layout::REQUEST_FETCH, 2, 0);
    fake.finds("a READ of page 2 of region 0 was written, which is absent");
}

#[test]
fn a_write_of_a_page_without_its_mark() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.post(layout::REQUEST_CLEAN, 1, 0);
    fake.finds("a WRITE of page 1 of region 0 from frame 0 was written while the page is resident");
}

#[test]
fn a_mark_that_goes_before_its_write_completed() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(1, fake.words[1] | layout::WRITE_BACK_BIT);
    fake.post(layout::REQUEST_FLUSH, 1, 0);
    fake.word(1, fake.words[1] & !layout::WRITE_BACK_BIT);
    fake.finds("its write-back's mark went before the WRITE had completed");
}

#[test]
fn a_write_back_that_left_the_home_old() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(1, fake.words[1] + PIN);
    fake.word(1, fake.words[1] | layout::DIRTY_BIT);
    fake.frames[3] ^= 1;
    fake.word(1, fake.words[1] - PIN);
    fake.word(1, fake.words[1] & !layout::DIRTY_BIT | layout::WRITE_BACK_BIT);
    fake.word(1, fake.words[1] & !layout::WRITE_BACK_BIT);
    fake.finds("became clean, but its frame 0 and its home differ from byte 3 on");
}

#[test]
fn pins_out_of_balance() {
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.word(1, fake.words[1].wrapping_sub(PIN));
    fake.finds("pins are out of balance");
}

#[test]
fn a_live_slot_that_is_written_over() {
    let mut fake = Fake::new();
    fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(0);
    fake.post(layout::REQUEST_FETCH, 1, 0);
    fake.records[0].page_id = layout::page_id(0, 3);
    fake.step();
    fake.finds("the record of slot 0 was written over while its request is live");
    let mut fake = Fake::new();
    fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(0);
    fake.post(layout::REQUEST_FETCH, 1, 0);
    fake.records[0].state += (SLOTS as u64) << layout::RECORD_INDEX_SHIFT;
    fake.step();
    fake.finds("slot 0 went from request 0 posted to request 4 posted");
}

#[test]
fn indexes_out_of_order_and_back() {
    for (change, what) in [
        (
            (|queue: &mut QueueState| queue.written += 1) as fn(&mut QueueState),
            "reserved 0, written 1 and posted 0 are out of order",
        ),
        (
            |queue| queue.posted += 1,
            "reserved 0, written 0 and posted 1 are out of order",
        ),
    ] {
        let mut fake = Fake::new();
        change(&mut fake.queue);
        fake.step();
        fake.finds(what);
    }
    let mut fake = Fake::new();
    fake.fetch(1, 0);
    fake.queue.posted = 0;
    fake.step();
    fake.finds("stepped back from 1 to 0");
}

#[test]
fn what_is_left_at_the_end_shows() {
    let end = |change: fn(&mut Fake), what: &str| {
        let mut fake = Fake::new();
        change(&mut fake);
        let found = fake.watcher.when_idle().expect_err(what);
        assert!(found.what.contains(what), "{} instead of {what}", found.what);
    };
    end(|fake| fake.fetch(1, 0), "page 1 of region 0 is resident in frame 0");
    end(|fake| fake.word(1, PIN), "pins 1 at the end");
    end(
        |fake| {
            fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
            fake.take(0);
            fake.post(layout::REQUEST_FETCH, 1, 0);
            fake.word(1, 0);
        },
        "request 0 in slot 0 of queue pair 0 was never reaped",
    );
    end(
        |fake| {
            fake.queue.reserved += 1;
            fake.step();
        },
        "ends with reserved 1, written 0, posted 0",
    );
    end(|fake| fake.take(0), "2 of 3 frames are free at the end");
    end(
        |fake| {
            fake.take(0);
            fake.pool.available += 1;
        },
        "frame 0 is not in the pool at the end",
    );
}

#[test]
fn what_the_host_left_is_judged_as_it_stands() {
    let mut fake = Fake::new();
    fake.words[1] = Fake::resident(0);
    fake.words[2] = Fake::resident(0);
    fake.ring[0] = 2 << 32;
    fake.watcher.step(5, Step::Host);
    fake.finds("frame 0 belongs to page 2 of region 0");
}

#[test]
fn a_claimed_read_is_over_whatever_the_host_did_meanwhile() {
    let mut fake = Fake::new();
    fake.word(1, layout::STATE_FETCHING << layout::STATE_SHIFT);
    fake.take(0);
    fake.post(layout::REQUEST_FETCH, 1, 0);
    fake.fill(1, 0);
    fake.phase(0, layout::RECORD_CLAIMED);
    fake.watcher.step(fake.now_ns, Step::Host);
    fake.frame_pages[0] = layout::page_id(0, 1);
    fake.step();
    fake.word(1, Fake::resident(0));
    fake.phase(0, layout::RECORD_FREE);
    fake.evict(1, 0);
    assert_eq!(fake.found(), []);
}
