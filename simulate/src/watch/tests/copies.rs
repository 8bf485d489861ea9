//! Pages with two homes and with checksums.

use gpuvm_layouts as layout;

use super::{Fake, PAGE, PAGES, PIN};

const REPLICATED: u32 = layout::REGION_REPLICATED;
const CHECKED: u32 = layout::REGION_CHECKED;

fn second(page: usize) -> u64 {
    layout::page_id(0, page as u64) | 1 << layout::PAGE_ID_REPLICA_SHIFT
}

impl Fake {
    /// Page 1 is fetched into frame 0 and written, and its write-back to both homes begins.
    fn write_both(&mut self) {
        self.fetch_from(1, 1, 0);
        self.word(1, self.words[1] + PIN);
        self.word(1, self.words[1] | layout::DIRTY_BIT);
        self.frames[7] ^= 1;
        self.checksums[1] = crc32c::crc32c(&self.frames[..PAGE]).max(1);
        self.word(1, self.words[1] - PIN);
        self.word(1, self.words[1] & !layout::DIRTY_BIT | layout::WRITE_BACK_BIT);
        self.joins[1] = layout::JOIN_PENDING * 3;
        self.post(layout::REQUEST_CLEAN, 1, 0);
        self.post_to(layout::REQUEST_CLEAN, second(1), 0);
    }

    /// One of the two WRITEs, whose requests lie in slots 1 and 2, ends well.
    fn written(&mut self, replica: usize) {
        let home = if replica == 0 { &mut self.home } else { &mut self.mirror };
        home[PAGE + 7] ^= 1;
        self.phase(1 + replica, layout::RECORD_CLAIMED);
        self.joins[1] &= !(layout::JOIN_PENDING << replica);
        self.step();
    }

    fn ends(&mut self) {
        self.word(1, self.words[1] & !layout::WRITE_BACK_BIT);
    }
}

#[test]
fn a_page_with_two_homes_and_a_checksum_breaks_no_rule() {
    let mut fake = Fake::with(REPLICATED | CHECKED);
    fake.write_both();
    fake.written(1);
    fake.phase(2, layout::RECORD_FREE);
    fake.written(0);
    fake.ends();
    fake.phase(1, layout::RECORD_FREE);
    fake.evict(1, 0);
    assert_eq!(fake.found(), []);
    let looks = fake.watcher.looks();
    assert_eq!((looks.published, looks.evicted, looks.cleaned), (1, 1, 1));
    assert_eq!((looks.copies, looks.checksums), (3, 3));
    assert_eq!(fake.watcher.copies_agree(), Ok(PAGES as u64));
    fake.watcher.when_idle().unwrap();
}

#[test]
fn a_write_back_that_ends_with_its_first_write() {
    let mut fake = Fake::with(REPLICATED);
    fake.write_both();
    fake.written(0);
    fake.ends();
    fake.finds("page 1 of region 0: its write-back's mark went before the WRITE had completed");
    // The second one is claimed, and not done with.
    let mut fake = Fake::with(REPLICATED);
    fake.write_both();
    fake.written(0);
    fake.mirror[PAGE + 7] ^= 1;
    fake.phase(2, layout::RECORD_CLAIMED);
    fake.ends();
    fake.finds("page 1 of region 0 became clean while its WRITEs stand at 0x2");
}

#[test]
fn a_second_home_that_was_not_written() {
    let mut fake = Fake::with(REPLICATED);
    fake.write_both();
    fake.written(0);
    fake.phase(2, layout::RECORD_CLAIMED);
    fake.joins[1] = 0;
    fake.ends();
    fake.finds("page 1 of region 0 became clean, but its frame 0 and its home 1 differ from byte 7 on");
    assert!(
        fake.watcher
            .copies_agree()
            .is_err_and(|what| what.contains("both copies of page 1 of region 0 count"))
    );
    // Marked as stale it need not be.
    let mut fake = Fake::with(REPLICATED);
    fake.write_both();
    fake.written(0);
    fake.phase(2, layout::RECORD_CLAIMED);
    fake.stale[1] = 1 << 1;
    fake.joins[1] = 0;
    fake.ends();
    assert_eq!(fake.found(), []);
    assert_eq!(fake.watcher.copies_agree(), Ok(PAGES as u64 - 1));
    // And where the other one is stale as well, nothing holds it.
    let mut fake = Fake::with(REPLICATED);
    fake.write_both();
    fake.written(0);
    fake.phase(2, layout::RECORD_CLAIMED);
    fake.stale.fill(1 << 1);
    fake.joins[1] = 0;
    fake.ends();
    fake.finds("became clean, and all its copies are stale");
}

#[test]
fn a_stale_copy_that_is_read() {
    let mut fake = Fake::with(REPLICATED);
    fake.stale[1] = 1 << 1;
    fake.fetch_from(1, 1, 0);
    fake.finds("page 1 of region 0 in replica 1 was published although that copy was stale");
    let mut fake = Fake::with(REPLICATED);
    fake.stale[1] = 1 << 1;
    fake.fetch_from(1, 0, 0);
    fake.fetch_from(2, 1, 1);
    assert_eq!(fake.found(), []);
}

#[test]
fn homes_that_are_lost_and_return() {
    let mut fake = Fake::with(REPLICATED);
    fake.watcher.home_lost(1);
    fake.mirror.fill(0xee);
    fake.fetch(1, 0);
    fake.evict(1, 0);
    assert_eq!(fake.found(), [], "what a lost home holds is compared with nothing");
    fake.stale[1] = (1 << PAGES) - 1;
    fake.watcher.home_returned(1);
    assert_eq!(fake.found(), []);
    let mut fake = Fake::with(REPLICATED);
    fake.watcher.home_lost(1);
    fake.stale[1] = (1 << PAGES) - 1 - (1 << 3);
    fake.watcher.home_returned(1);
    fake.finds("home 1 returned, and its copy of page 3 of region 0 is not stale");
    assert!(fake.watcher.first().is_some());
}

#[test]
fn a_page_without_its_checksum() {
    let mut fake = Fake::with(CHECKED);
    fake.checksums[1] ^= 1;
    fake.fetch(1, 0);
    fake.finds("page 1 of region 0 was published clean, but frame 0 has checksum");
    // One that is not known yet is not compared.
    let mut fake = Fake::with(CHECKED);
    fake.checksums[1] = 0;
    fake.fetch(1, 0);
    assert_eq!(fake.found(), []);
    assert_eq!(fake.watcher.looks().checksums, 0);
}

#[test]
fn a_bit_that_was_flipped_on_purpose_is_no_finding_and_two_are() {
    for (bits, expected, found) in [(1u8, true, 0), (1, false, 1), (3, true, 1)] {
        let mut fake = Fake::with(CHECKED);
        if expected {
            fake.watcher.expect_flips();
        }
        fake.fetch(1, 0);
        fake.home[PAGE + 9] ^= bits;
        fake.evict(1, 0);
        assert_eq!(fake.found().len(), found, "{bits} {expected}: {:?}", fake.found());
    }
}
