//! Tests of the tier as a whole: on files of the system, and on a disk that fails and forgets.

mod disk;
mod random;

use std::{fs, io, path::PathBuf, sync::Arc};

use crate::{Engine, File, FileError, Got, How, Tier, TierOptions};
use disk::Disk;

const BLOCK: u64 = 4096;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8).collect()
}

/// A file of this many bytes with the pattern.
fn file_of(length: usize) -> (tempfile::TempDir, PathBuf) {
    // Not where files are memory: O_DIRECT is to be tried.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("file");
    fs::write(&path, pattern(length)).unwrap();
    (folder, path)
}

fn tier(slots: u64, engine: Engine) -> Tier {
    Tier::new(slots * BLOCK, TierOptions::default().engine(engine)).unwrap()
}

/// Every engine reads and writes all of a file of four times the memory, whose end lies within a block.
#[test]
fn a_file_larger_than_memory_is_read_and_written() {
    for engine in [Engine::Auto, Engine::Threads, Engine::Polled(7)] {
        let length = 256 * BLOCK as usize + 1234;
        let (_folder, path) = file_of(length);
        let tier = tier(64, engine);
        let file = tier.open(&path, true).unwrap();
        let mut all = vec![0; length];
        file.read(0, &mut all).unwrap();
        assert!(all == pattern(length), "{engine:?}");
        for at in (0..length as u64 - 3).step_by(5000) {
            file.write(at, &[1, 2, 3]).unwrap();
            all[at as usize..at as usize + 3].copy_from_slice(&[1, 2, 3]);
        }
        file.write(length as u64 - 1, &[9]).unwrap();
        all[length - 1] = 9;
        file.sync().unwrap();
        assert!(fs::read(&path).unwrap() == all, "{engine:?}");
        let stats = tier.stats();
        assert_eq!((stats.dirty, stats.failures), (0, 0), "{engine:?}");
        assert!(stats.reads < stats.loaded, "neighbours come together: {stats:?}");
    }
}

#[test]
fn what_is_asked_for_again_is_not_read_again() {
    let (_folder, path) = file_of(64 * BLOCK as usize);
    let tier = tier(128, Engine::Auto);
    let file = tier.open(&path, false).unwrap();
    let mut out = vec![0; 64 * BLOCK as usize];
    file.read(0, &mut out).unwrap();
    file.read(0, &mut out).unwrap();
    assert_eq!(tier.stats().loaded, 64);
    // Another name of the same file has the same blocks.
    let other = path.with_file_name("other");
    fs::hard_link(&path, &other).unwrap();
    tier.open(&other, false).unwrap().read(0, &mut out).unwrap();
    assert_eq!(tier.stats().loaded, 64);
}

fn failure<T: std::fmt::Debug>(result: Result<T, FileError>) -> String {
    let error = result.unwrap_err();
    let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

#[test]
fn what_cannot_be_done_is_said() {
    let (folder, path) = file_of(10_000);
    let tier = tier(64, Engine::Auto);
    assert!(failure(tier.open(folder.path().join("none"), false)).contains("none: No such file"));
    assert!(failure(tier.open(folder.path(), false)).contains("it is not a regular file"));
    let file = tier.open(&path, false).unwrap();
    let mut out = [0; 10];
    assert!(failure(file.read(9_995, &mut out)).contains("bytes 9995 to 10005 are beyond the end of"));
    assert!(failure(file.read(u64::MAX - 3, &mut out)).contains("are beyond the end of"));
    assert!(failure(file.write(0, &[1])).contains("was opened for reading"));
    assert!(
        failure(Tier::new(3 * BLOCK, TierOptions::default())).contains("are 3 blocks of 4096 bytes; give at least 64")
    );
    // Nothing of it holds for long.
    file.read(9_990, &mut out).unwrap();
    assert_eq!(out, pattern(10_000)[9_990..]);
}

#[test]
fn a_file_that_shrinks_or_goes_away_is_told_of() {
    let (_folder, path) = file_of(100 * BLOCK as usize);
    let tier = tier(64, Engine::Auto);
    let file = tier.open(&path, true).unwrap();
    file.write(99 * BLOCK, &[5; 16]).unwrap();
    let system = fs::OpenOptions::new().write(true).open(&path).unwrap();
    system.set_len(50 * BLOCK).unwrap();
    let mut out = [0; 8];
    let said = failure(file.read(60 * BLOCK, &mut out));
    assert!(said.contains("and had 409600 when it was opened"), "{said}");
    let said = failure(file.sync());
    assert!(said.contains("has 204800 bytes and had 409600"), "{said}");
    // What was written is not lost with it.
    system.set_len(100 * BLOCK).unwrap();
    file.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap()[99 * BLOCK as usize..][..16], [5; 16]);
    file.write(0, &[6]).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(failure(file.sync()).contains("was deleted"));
}

/// Lengths that are no multiple of anything: a block that came in part lends its bytes to none behind it.
#[test]
fn of_a_file_that_shrank_no_block_is_read_that_is_gone() {
    for engine in [Engine::Auto, Engine::Threads, Engine::Polled(7)] {
        for (length, cut) in [
            (9_426, 6_096),
            (9_426, 4_096),
            (9_426, 4_097),
            (20_481, 12_289),
            (20_500, 16_400),
            (12_300, 1),
        ] {
            let (_folder, path) = file_of(length);
            let tier = tier(64, engine);
            let file = tier.open(&path, false).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(cut as u64))
                .unwrap();
            let told = failure(file.read(0, &mut vec![0; length]));
            assert!(told.contains("shorter"), "{length} to {cut}: {told}");
            for first in (0..length).step_by(BLOCK as usize) {
                let mut block = vec![0; (length - first).min(BLOCK as usize)];
                let end = first + block.len();
                match file.read(first as u64, &mut block) {
                    Ok(()) => assert!(
                        end <= cut && block == pattern(length)[first..end],
                        "{length} to {cut}: {first}"
                    ),
                    Err(error) => assert!(end > cut, "{length} to {cut}: {first}: {error}"),
                }
            }
        }
    }
}

fn on_disk(slots: u64, blocks: u64, engine: Engine) -> (Arc<Disk>, Tier, File) {
    let disk = Disk::new(blocks * BLOCK);
    let tier = tier(slots, engine);
    let file = tier.attach("disk", disk.clone(), true).unwrap();
    (disk, tier, file)
}

#[test]
fn a_block_that_cannot_be_read_harms_no_neighbour() {
    let (disk, _tier, file) = on_disk(64, 16, Engine::Threads);
    disk.bad_block(5);
    let mut out = vec![0; 16 * BLOCK as usize];
    let said = failure(file.read(0, &mut out));
    assert!(
        said.contains("cannot read 4096 bytes at 20480 of disk: Input/output error"),
        "{said}"
    );
    file.read(0, &mut out[..5 * BLOCK as usize]).unwrap();
    file.read(6 * BLOCK, &mut out[..10 * BLOCK as usize]).unwrap();
    disk.repair();
    file.read(0, &mut out).unwrap();
}

#[test]
fn a_read_that_fails_once_is_repeated_unseen() {
    let (disk, tier, file) = on_disk(64, 16, Engine::Threads);
    let mut out = [0; BLOCK as usize];
    disk.fail_reads(1);
    file.read(3 * BLOCK, &mut out).unwrap();
    assert_eq!(tier.stats().loaded, 1);
    disk.fail_reads(2);
    let said = failure(file.read(9 * BLOCK, &mut out));
    assert!(said.contains("cannot read 4096 bytes at 36864 of disk"), "{said}");
    file.read(9 * BLOCK, &mut out).unwrap();
}

#[test]
fn what_a_full_disk_does_not_take_stays_in_memory() {
    let (disk, tier, file) = on_disk(64, 1000, Engine::Threads);
    disk.refuse_writes(Some(libc::ENOSPC));
    (0..20).for_each(|block| file.write(block * BLOCK, &[block as u8 + 1; BLOCK as usize]).unwrap());
    for _ in 0..3 {
        assert!(failure(file.sync()).contains("No space left on device"));
        assert_eq!(tier.stats().dirty, 20);
    }
    // Until memory is full of such blocks; then it is said at once.
    let more = (20..200).try_for_each(|block| file.write(block * BLOCK, &[block as u8; BLOCK as usize]));
    assert!(failure(more).contains("No space left on device"));
    let mut out = [0];
    file.read(7 * BLOCK, &mut out).unwrap();
    assert_eq!(out, [8]);
    disk.refuse_writes(None);
    file.sync().unwrap();
    assert_eq!(tier.stats().dirty, 0);
    disk.lose_power(1);
    (0..20).for_each(|block| assert_eq!(disk.byte(block * BLOCK), block as u8 + 1));
}

/// A caller that repaired the disk and says so is not told of writes that it refused before, those on their way among them.
#[test]
fn a_repaired_disk_takes_writes_at_once() {
    let engines = (0..20).map(Engine::Polled).chain([Engine::Threads]);
    for engine in engines {
        let (disk, tier, file) = on_disk(64, 1000, engine);
        disk.refuse_writes(Some(libc::ENOSPC));
        let all = (0..1000).try_for_each(|block| file.write(block * BLOCK, &[1; BLOCK as usize]));
        assert!(failure(all).contains("No space left on device"));
        // Some of these fail behind the repair.
        file.retry_writes();
        tier.poll();
        disk.refuse_writes(None);
        file.retry_writes();
        (0..1000).for_each(|block| file.write(block * BLOCK, &[2; BLOCK as usize]).unwrap());
        file.sync().unwrap();
        (0..1000).for_each(|block| assert_eq!(disk.byte(block * BLOCK), 2));
    }
}

/// Nor is a launch ended for it: all others find room.
#[test]
fn a_block_that_cannot_be_written_keeps_no_other_back() {
    for engine in [Engine::Threads, Engine::Polled(3)] {
        let (disk, tier, file) = on_disk(64, 1000, engine);
        disk.refuse_block(5);
        (0..1000).for_each(|block| file.write(block * BLOCK, &[block as u8; BLOCK as usize]).unwrap());
        for _ in 0..2 {
            let said = failure(file.sync());
            assert!(said.contains("cannot write 4096 bytes at 20480 of disk"), "{said}");
            assert_eq!(tier.stats().dirty, 1);
        }
        let others = (0..1000).filter(|block| *block != 5);
        others.for_each(|block| assert_eq!(disk.byte(block * BLOCK), block as u8));
        disk.repair();
        file.sync().unwrap();
        assert_eq!((disk.byte(5 * BLOCK), tier.stats().dirty), (5, 0));
    }
}

#[test]
fn a_sync_that_the_system_refuses_is_an_error() {
    let (disk, _tier, file) = on_disk(64, 100, Engine::Threads);
    file.write(0, &[1]).unwrap();
    disk.refuse_syncs(true);
    assert!(failure(file.sync()).contains("may not survive a loss of power"));
    disk.refuse_syncs(false);
    file.sync().unwrap();
}

/// Files outlive their handles while blocks of them are dirty, and a tier that is dropped waits for what is under way.
#[test]
fn handles_may_be_dropped_at_any_time() {
    let (disk, tier, file) = on_disk(64, 400, Engine::Threads);
    (0..40).for_each(|block| file.write(block * BLOCK, &[7; 100]).unwrap());
    drop(file);
    // Others' blocks push them out.
    let other = tier.attach("other", Disk::new(400 * BLOCK), false).unwrap();
    let mut out = vec![0; 400 * BLOCK as usize];
    other.read(0, &mut out).unwrap();
    other.read(0, &mut out).unwrap();
    let written = (0..40).filter(|block| disk.byte(block * BLOCK) == 7).count();
    assert!(written > 20, "{written}");
    (0..50).for_each(|block| {
        other.expect(block * 3 * BLOCK, 1);
    });
    drop((other, tier));
}

#[test]
fn a_writer_has_an_absent_block_for_itself() {
    let (_disk, tier, file) = on_disk(64, 100, Engine::Polled(1));
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    assert_eq!(file.acquire(0, BLOCK, How::Write, &mut mine).unwrap(), Got::Ready);
    assert_eq!(tier.stats().loaded, 0, "it is written whole, so nothing is read");
    assert_eq!(file.acquire(10, 1, How::Read, &mut theirs).unwrap(), Got::Wait);
    file.release(&mine, How::Write);
    assert_eq!(file.acquire(10, 1, How::Read, &mut theirs).unwrap(), Got::Ready);
}

/// `GPUVM_REQUIRE_IO_URING=1`: io_uring and O_DIRECT have to be there.
fn required() -> bool {
    std::env::var_os("GPUVM_REQUIRE_IO_URING").is_some()
}

/// Many ask at a time, each for the next block: what is read ahead is ahead of all of them.
#[test]
fn a_scan_by_many_is_read_in_large_pieces() {
    let (_folder, path) = file_of(1024 * BLOCK as usize);
    let tier = tier(2048, Engine::Polled(3));
    let file = tier.open(&path, false).unwrap();
    let mut pieces = Vec::new();
    for block in 0..1024 {
        // The tier hears of each request by itself, as a NIC's engine tells it.
        file.expect(block * BLOCK, BLOCK);
        tier.poll();
        if let Some(oldest) = block.checked_sub(128) {
            while file.acquire(oldest * BLOCK, BLOCK, How::Read, &mut pieces).unwrap() == Got::Wait {
                tier.poll();
            }
            file.release(&pieces, How::Read);
            pieces.clear();
        }
    }
    let stats = tier.stats();
    assert!(stats.reads * 4 < stats.loaded, "{stats:?}");
}

#[test]
fn bare_reads_read_what_is_there() {
    let (_folder, path) = file_of(64 * BLOCK as usize);
    let offsets: Vec<u64> = (0..64).rev().map(|block| block * BLOCK).collect();
    let (mut seen, all) = (0, pattern(64 * BLOCK as usize));
    let read = crate::read_bare(&path, &offsets, BLOCK as u32, 8, |place, bytes| {
        assert_eq!(bytes, &all[offsets[place] as usize..][..BLOCK as usize]);
        seen += 1;
    });
    match read {
        Ok(_) => assert_eq!(seen, 64),
        // Neither O_DIRECT nor io_uring is everywhere.
        Err(error) => assert!(!required() && error.kind() != io::ErrorKind::UnexpectedEof, "{error}"),
    }
    let beyond = crate::read_bare(&path, &[64 * BLOCK], BLOCK as u32, 8, |_, _| panic!("there is nothing"));
    assert!(beyond.is_err());
}

#[test]
fn io_uring_is_used_where_it_may_be() {
    let (_folder, path) = file_of(64 * BLOCK as usize);
    match Tier::new(64 * BLOCK, TierOptions::default().engine(Engine::Ring)) {
        Ok(tier) => {
            assert_eq!(tier.engine(), "io_uring");
            let file = tier.open(&path, false).unwrap();
            let mut out = vec![0; 64 * BLOCK as usize];
            file.read(0, &mut out).unwrap();
            assert!(out == pattern(out.len()));
            let direct = file.opened.storage.descriptor(0, BLOCK).is_some();
            assert!(direct || !required(), "no O_DIRECT");
        }
        Err(FileError::Ring { source }) => {
            assert!(!required() && source.kind() != io::ErrorKind::InvalidInput, "{source}");
        }
        Err(other) => panic!("{other}"),
    }
}
