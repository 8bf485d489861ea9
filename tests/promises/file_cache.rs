//! Files larger than their page cache: kernels read and write all of them, what fails is told and not lost, and what a flush
//! stored outlives a loss of power.

use std::{
    io,
    os::fd::RawFd,
    sync::{Arc, Mutex},
};

use crate::common::{
    BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, refused, says, simulated_soft, small_soft, stepped, words,
};
use gpuvm::{LaunchConfig, Look, Region, Storage, Transport, Vm};

/// Pages that the file cache holds: as few as there may be.
const HELD: u64 = 64;

fn bench(frames: u64) -> Bench {
    Bench::new(small_soft(frames).file_cache(HELD * PAGE), BASIC)
}

/// Runs a test with the file cache on the host, and on a GPU.
fn each(frames: u64, test: impl Fn(Bench)) {
    test(bench(frames));
    // An NVIDIA GPU takes larger pages there.
    test(Bench::new(simulated_soft(frames).file_cache_on_gpu(HELD * PAGE), BASIC));
}

fn file_of(words: &[u32]) -> tempfile::NamedTempFile {
    let file = crate::common::file_to_map();
    std::fs::write(file.path(), bytemuck::cast_slice(words)).unwrap();
    file
}

/// A disk in memory that fails when it is told to, and forgets what was not synced.
struct Disk(Mutex<State>);

struct State {
    now: Vec<u8>,
    stored: Vec<u8>,
    bad_page: Option<u64>,
    /// Reads of other pages take as long as this is so.
    held: bool,
    refuses: Option<i32>,
}

impl Disk {
    fn of(words: &[u32]) -> Arc<Self> {
        let bytes: Vec<u8> = bytemuck::cast_slice(words).to_vec();
        let (bad_page, refuses) = (None, None);
        Arc::new(Self(Mutex::new(State {
            now: bytes.clone(),
            stored: bytes,
            bad_page,
            held: false,
            refuses,
        })))
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.0.lock().unwrap())
    }

    fn stored(&self) -> Vec<u32> {
        self.with(|state| bytemuck::pod_collect_to_vec(&state.stored))
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let pages = offset / PAGE..(offset + out.len() as u64).div_ceil(PAGE);
        // Bounded: a test that fails meanwhile does not let go.
        let begun = std::time::Instant::now();
        while !pages.contains(&0) && self.with(|state| state.held) && begun.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.with(|state| {
            if state.bad_page == Some(u64::MAX) || state.bad_page.is_some_and(|bad| pages.contains(&bad)) {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            let there = &state.now[offset as usize..];
            let bytes = there.len().min(out.len());
            out[..bytes].copy_from_slice(&there[..bytes]);
            Ok(bytes)
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state| match state.refuses {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => {
                state.now[offset as usize..][..data.len()].copy_from_slice(data);
                Ok(())
            }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| state.stored.copy_from_slice(&state.now));
        Ok(())
    }

    fn look(&self) -> io::Result<Look> {
        let identity = (u64::MAX, std::ptr::from_ref(self).addr() as u64);
        Ok(Look {
            length: self.with(|state| state.now.len() as u64),
            deleted: false,
            identity,
        })
    }

    fn descriptor(&self, _offset: u64, _bytes: u64) -> Option<RawFd> {
        None
    }
}

/// A region over a disk that holds these words; its file is called as the region is, with `.bin` behind.
fn on_disk(bench: &Bench, name: &str, values: Vec<u32>) -> (Vec<u32>, Arc<Disk>, Region<u32>) {
    let disk = Disk::of(&values);
    let region = bench.vm.region::<u32>().name(name);
    let region = region.map_storage(format!("{name}.bin"), disk.clone()).unwrap();
    (values, disk, region)
}

fn sum(bench: &Bench, a: &Region<u32>) -> u64 {
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(4, 64), (a, &sink));
    sink.to_vec().unwrap()[0]
}

#[test]
fn a_file_of_eight_times_the_memory_is_read_and_written() {
    each(16, |bench| {
        let n = 8 * HELD * PAGE_WORDS + 77;
        let values = words(3, n);
        let file = file_of(&values);
        let a = bench.vm.region::<u32>().map_file_mut(file.path()).unwrap();
        assert_eq!(sum(&bench, &a), values.iter().copied().map(u64::from).sum::<u64>());
        let stats = bench.vm.file_stats().unwrap();
        assert!(stats.read_bytes >= 4 * n, "{stats:?}");
        assert_eq!((stats.slots, stats.block, stats.written_bytes), (HELD, PAGE, 0));
        bench.must("read_then_write", LaunchConfig::new(4, 64), (&a, STEP));
        a.flush().unwrap();
        let expected = stepped(&values, 1);
        let found: Vec<u32> = bytemuck::pod_collect_to_vec(&std::fs::read(file.path()).unwrap());
        compare(&found, &expected).unwrap();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        // The host's own accesses come by the same way.
        a.write(5 * PAGE_WORDS - 1, &[1, 2, 3]).unwrap();
        let mut few = [0; 4];
        a.read(5 * PAGE_WORDS - 2, &mut few).unwrap();
        assert_eq!(few, [expected[5 * PAGE_WORDS as usize - 2], 1, 2, 3]);
        a.close().unwrap();
        let found: Vec<u32> = bytemuck::pod_collect_to_vec(&std::fs::read(file.path()).unwrap());
        assert_eq!(found[5 * PAGE_WORDS as usize - 1..][..3], [1, 2, 3]);
    });
}

#[test]
fn what_stays_in_memory_is_not_read_again() {
    each(8, |bench| {
        let values = words(4, HELD / 2 * PAGE_WORDS);
        let file = file_of(&values);
        let a = bench.vm.region::<u32>().map_file(file.path()).unwrap();
        let first = sum(&bench, &a);
        let before = bench.vm.file_stats().unwrap();
        assert_eq!(sum(&bench, &a), first);
        let after = bench.vm.file_stats().unwrap();
        assert_eq!(before.read_bytes, after.read_bytes);
        assert!(after.served > before.served, "the frames are fewer than the pages");
    });
}

#[test]
fn a_page_that_cannot_be_read_fails_its_launch_and_no_later_one() {
    each(8, |bench| {
        let (values, disk, a) = on_disk(&bench, "worn", words(5, 40 * PAGE_WORDS));
        disk.with(|state| state.bad_page = Some(23));
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        let message = refused(bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)));
        for part in [
            "`worn`",
            "cannot read 4096 bytes at 94208 of worn.bin",
            "Input/output error",
        ] {
            assert!(message.contains(part), "no {part} in {message}");
        }
        let message = refused(a.to_vec());
        assert!(message.contains("Input/output error"), "{message}");
        disk.with(|state| state.bad_page = None);
        assert_eq!(sum(&bench, &a), values.iter().copied().map(u64::from).sum::<u64>());
    });
}

/// Nor do requests of a launch that has ended, which fail when nothing waits for them any more.
#[test]
fn a_launch_meets_no_failure_of_an_earlier_one() {
    each(32, |bench| {
        let (values, disk, a) = on_disk(&bench, "slow", words(11, 40 * PAGE_WORDS));
        disk.with(|state| (state.bad_page, state.held) = (Some(0), true));
        // A warp of the first 32 pages, of which the first comes to nothing at once.
        let out = bench.vm.buffer::<u32>(32).unwrap();
        let message = refused(bench.run("gather", LaunchConfig::new(1, 32), (&a, PAGE_WORDS, &out)));
        assert!(message.contains("cannot read 4096 bytes at 0 of slow.bin"), "{message}");
        // All of them.
        disk.with(|state| (state.bad_page, state.held) = (Some(u64::MAX), false));
        std::thread::sleep(std::time::Duration::from_millis(100));
        disk.with(|state| state.bad_page = None);
        assert_eq!(sum(&bench, &a), values.iter().copied().map(u64::from).sum::<u64>());
    });
}

#[test]
fn what_a_full_disk_does_not_take_is_lost_by_nobody() {
    each(8, |bench| {
        let (values, disk, a) = on_disk(&bench, "full", words(6, 20 * PAGE_WORDS));
        disk.with(|state| state.refuses = Some(libc::ENOSPC));
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, STEP));
        for _ in 0..2 {
            let message = refused(a.flush());
            for part in ["`full`", "full.bin", "No space left on device", "flush again"] {
                assert!(message.contains(part), "no {part} in {message}");
            }
        }
        compare(&disk.stored(), &values).unwrap();
        let expected = stepped(&values, 1);
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        disk.with(|state| state.refuses = None);
        a.flush().unwrap();
        compare(&disk.stored(), &expected).unwrap();
    });
}

/// More than memory holds: then pages stay dirty in their frames, and the launch says why.
#[test]
fn dirty_pages_that_find_no_room_stay_in_their_frames() {
    each(8, |bench| {
        let (values, disk, a) = on_disk(&bench, "full", words(7, 4 * HELD * PAGE_WORDS));
        disk.with(|state| state.refuses = Some(libc::ENOSPC));
        let config = || LaunchConfig::new(1, 64);
        let message = refused(bench.run("fill", config(), (&a, STEP)));
        assert!(message.contains("No space left on device"), "{message}");
        disk.with(|state| state.refuses = None);
        // At once: nothing fails for what was refused before.
        a.flush().unwrap();
        // Each word is what it was, or what the kernel had written when it was stopped.
        let found = disk.stored();
        let mut filled = 0;
        for (at, (found, before)) in found.iter().zip(&values).enumerate() {
            let after = STEP + at as u32;
            assert!(*found == *before || *found == after, "word {at} is {found:#x}");
            filled += u64::from(*found == after);
        }
        assert!(filled > HELD / 2 * PAGE_WORDS, "{filled} words were written");
        bench.must("fill", config(), (&a, STEP));
        a.flush().unwrap();
        let expected: Vec<u32> = (STEP..STEP + values.len() as u32).collect();
        compare(&disk.stored(), &expected).unwrap();
    });
}

#[test]
fn what_a_flush_stored_outlives_a_loss_of_power() {
    each(8, |bench| {
        let values = words(8, 3 * HELD * PAGE_WORDS);
        let disk = Disk::of(&values);
        let a = bench.vm.region::<u32>().map_storage("disk", disk.clone()).unwrap();
        for times in 1..4 {
            bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, STEP));
            a.flush().unwrap();
            compare(&disk.stored(), &stepped(&values, times)).unwrap();
        }
        // What comes after it is not promised, and does not undo it: `read_then_write` adds, so each word is one of two.
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, STEP));
        let (third, fourth) = (stepped(&values, 3), stepped(&values, 4));
        let stored = disk.stored();
        assert!(
            stored
                .iter()
                .zip(third.iter().zip(&fourth))
                .all(|(found, (a, b))| found == a || found == b)
        );
    });
}

#[test]
fn a_file_that_is_made_shorter_is_an_error_and_no_signal() {
    each(8, |bench| {
        let values = words(9, 3 * HELD * PAGE_WORDS);
        let file = file_of(&values);
        let a = bench.vm.region::<u32>().name("cut").map_file_mut(file.path()).unwrap();
        file.as_file().set_len(HELD * PAGE).unwrap();
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        says(
            &refused(bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink))),
            &["`cut`", "when it was opened"],
        );
        a.write(0, &[7]).unwrap();
        let message = refused(a.flush());
        assert!(message.contains("when it was opened"), "{message}");
        file.as_file().set_len(4 * values.len() as u64).unwrap();
        a.flush().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap()[..4], 7u32.to_ne_bytes());
    });
}

/// Runs of a seed repeat, although a disk answers when it likes.
#[test]
fn runs_of_a_seed_repeat() {
    let run = || {
        let builder = simulated_soft(8)
            .gpu(gpuvm::SimulatedGpu::new().seed(11))
            .file_cache(HELD * PAGE);
        let bench = Bench::new(builder, BASIC);
        let values = words(10, 2 * HELD * PAGE_WORDS);
        let file = file_of(&values);
        let a = bench.vm.region::<u32>().map_file_mut(file.path()).unwrap();
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, STEP));
        a.flush().unwrap();
        compare(&a.to_vec().unwrap(), &stepped(&values, 1)).unwrap();
        (bench.vm.stats().unwrap().pages_fetched, bench.vm.file_stats().unwrap())
    };
    assert_eq!(run(), run());
}

#[test]
fn what_does_not_go_together_is_refused() {
    let message = refused(
        Vm::builder()
            .file_cache(HELD * PAGE)
            .transport(Transport::Direct)
            .build(),
    );
    says(&message, &["software NIC", "direct"]);
    let message = refused(small_soft(4).file_cache((HELD - 1) * PAGE).build());
    assert!(message.contains("at least 64 blocks"), "{message}");
    let disk = Disk::of(&[1; 1024]);
    let mapped = Bench::new(small_soft(4), BASIC);
    let message = refused(mapped.vm.region::<u32>().map_storage("disk", disk.clone()));
    assert!(message.contains("file_cache"), "{message}");
    assert_eq!(mapped.vm.file_stats(), None);
    let bench = bench(4);
    let region = || bench.vm.region::<u32>();
    let reader = region().read_only().map_storage("disk", disk.clone()).unwrap();
    let message = refused(region().name("writer").map_storage("disk", disk.clone()));
    assert!(message.contains("`writer`"), "{message}");
    drop(reader);
    region().map_storage("disk", disk.clone()).unwrap();
    refused(region().replicas(2).map_storage("disk", disk));
    refused(region().map_storage("empty", Disk::of(&[])));
    assert_ne!(bench.vm.file_engine(), None);
    assert_eq!(mapped.vm.file_engine(), None);
    let message = refused(simulated_soft(4).file_cache_on_gpu(1 << 50).build());
    assert!(message.contains("its file cache of"), "{message}");
}
