//! Files larger than memory on NVMe disks that fail and lose their power: `file-disks` writes versions of a file's pages, flushes them, and
//! looks at the file afterwards.
//!
//! Losses of power come in three ways. dm-flakey forgets every write from a moment on, as a machine that stops does. dm-log-writes knows
//! what the disk was told to flush, so a disk is made that has lost any part of the rest, as a volatile cache does. And QEMU is killed.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::programs::{binary, run_test, warm, warm_tests};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::job::Job;
use crate::machine::Machine;

/// The disks of the first machine: one with a file system, one for the log of its writes, one for what such a log makes.
pub const MIB: [u32; 3] = [64, 512, 64];

/// Bytes of the file: twelve times the memory before it, and its end lies within a block.
const BYTES: u64 = 768 * 4096 + 1000;

/// The file's last page.
const LAST: u64 = 768;

const FILE: &str = "/mnt/disk/file";

/// Losses of power at moments of chance, by each of two ways.
const CUTS: u64 = 2;

/// Reads and writes go through.
const WHOLE: &str = "linear DISK FROM";
/// Writes fail, reads go through.
const NO_WRITES: &str = "flakey DISK FROM 0 1 1 error_writes";
/// Writes are forgotten.
const FORGETS: &str = "flakey DISK FROM 0 1 1 drop_writes";
/// Reads and writes fail.
const BAD: &str = "error";

/// Tests that page files. Not those of simulated disks: they run elsewhere.
const TESTS: [&str; 2] = ["promises::file_cache::", "promises::mapped_files::"];

pub(super) fn prepare() -> Result<(), Error> {
    warm_tests(&TESTS)?;
    warm(binary("file-disks")?, "compile")
}

pub(super) fn files(machine: &Machine) -> Result<(), Error> {
    let disks = Disks {
        machine,
        program: binary("file-disks")?,
    };
    disks.timed("tests", Disks::tests)?;
    disks.timed("writes fail", Disks::writes_fail)?;
    disks.timed("the end fails", Disks::end_is_written_again)?;
    disks.timed("all writes fail", Disks::everything_fails)?;
    disks.timed("bad blocks", Disks::blocks_are_bad)?;
    disks.timed("full disk", Disks::disk_is_full)?;
    disks.timed("power cuts", |disks| {
        seeds(CUTS).into_iter().try_for_each(|seed| disks.power_is_cut(seed))
    })?;
    disks.timed("volatile cache", |disks| disks.volatile_cache(&seeds(2 * CUTS)))?;
    disks.timed("planted bug", Disks::planted_bug)?;
    disks.timed("machine killed", Disks::machine_is_killed)
}

/// Moments and contents differ from run to run; a failure names its seed.
fn seeds(count: u64) -> Vec<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (0..count)
        .map(|n| (since.as_nanos() as u64 / 1000 + n * 7919) % 1_000_000_007)
        .collect()
}

struct Disks<'a> {
    machine: &'a Machine,
    program: &'a Path,
}

/// `file-disks run`, and what it said of its versions.
struct Program {
    job: Job,
    flushed: u32,
}

impl Program {
    fn step(&mut self, step: &str, says: &str) -> Result<(), Error> {
        self.job.input().write(&format!("{step}\n"))?;
        let line = self.job.wait_line(
            &format!("`{says}` or why not"),
            |line| line == says || line.starts_with("refused: "),
            SHORT,
        )?;
        check(line == says, || format!("`{step}`: {line}"))
    }

    fn write(&mut self, version: u32) -> Result<(), Error> {
        self.step(&format!("write {version}"), &format!("wrote {version}"))
    }

    fn flush(&mut self, version: u32) -> Result<(), Error> {
        self.step(&format!("flush {version}"), &format!("flushed {version}"))
    }

    /// The step must fail, and the error name these.
    fn refused(&mut self, step: &str, names: &[&str]) -> Result<(), Error> {
        self.job.input().write(&format!("{step}\n"))?;
        let ended = |line: &str| {
            ["refused: ", "wrote ", "flushed ", "read "]
                .iter()
                .any(|word| line.starts_with(word))
        };
        let line = self.job.wait_line("that it was refused", ended, SHORT)?;
        check(
            line.starts_with("refused: ") && names.iter().all(|name| line.contains(name)),
            || format!("`{step}` said `{line}`; it was to be refused, with {names:?}"),
        )
    }

    /// The last version that it has flushed by now, as far as is known here.
    fn flushed(&mut self) -> u32 {
        let wanted = |line: &str| line.starts_with("flushed ");
        while let Ok(line) = self.job.wait_line("a flush", wanted, Duration::ZERO) {
            self.flushed = version_of(&line);
        }
        self.flushed
    }

    /// Kills it; the last version that it may have written.
    fn killed(self) -> Result<u32, Error> {
        self.job.kill()?;
        let output = self.job.wait(SHORT)?;
        let begun = output.lines.iter().filter(|line| line.text.starts_with("writing "));
        Ok(begun.map(|line| version_of(&line.text)).max().unwrap_or(0))
    }
}

/// The number behind a line's first word.
fn version_of(line: &str) -> u32 {
    let digits = line
        .split(|letter: char| !letter.is_ascii_digit())
        .find(|word| !word.is_empty());
    digits.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// How a file begins.
#[derive(Clone, Copy, PartialEq)]
enum Begins {
    /// With zeros in blocks of its own.
    Zeros,
    /// With holes: what is stored there needs the journal to be found again.
    Holes,
}

impl Disks<'_> {
    fn timed(&self, what: &str, act: impl FnOnce(&Self) -> Result<(), Error>) -> Result<(), Error> {
        let since = Instant::now();
        act(self).map_err(|error| Error::Check(format!("{what}: {error}")))?;
        println!("         {what}: {:.1} s", since.elapsed().as_secs_f32());
        Ok(())
    }

    fn sh(&self, script: &str) -> Result<String, Error> {
        // No daemon is there that would make nodes of devices.
        let script = format!("set -e; export DM_DISABLE_UDEV=1 PATH=$PATH:/usr/sbin:/sbin\n{script}");
        Ok(self.machine.run(&script, SHORT)?.success()?.text())
    }

    /// Makes a file system on a device, and the file.
    fn make(&self, device: &str, size: &str, begins: Begins) -> Result<(), Error> {
        let fill = match begins {
            Begins::Zeros => format!("head -c {BYTES} /dev/zero >{FILE}"),
            Begins::Holes => format!("truncate -s {BYTES} {FILE}"),
        };
        // Journal and mount as they are by default, but that nothing is committed before it is asked for.
        self.sh(&format!(
            "mkfs.ext4 -q -F -b 4096 -m 0 -E nodiscard,lazy_itable_init=1,lazy_journal_init=0 -J size=4 {device} {size}
             mkdir -p /mnt/disk; mount -o commit=300 {device} /mnt/disk; {fill}; sync"
        ))
        .map(drop)
    }

    /// Makes a file system and the file on a device of the mapper, `disk`, that maps the first disk as it is.
    fn make_mapped(&self, begins: Begins) -> Result<(), Error> {
        self.sh("echo \"0 $(blockdev --getsz /dev/nvme0n1) linear /dev/nvme0n1 0\" | dmsetup create disk")?;
        self.make("/dev/mapper/disk", "", begins)
    }

    fn unmount(&self) -> Result<(), Error> {
        self.sh("for i in $(seq 50); do umount /mnt/disk && exit 0; sleep 0.1; done; exit 1")
            .map(drop)
    }

    fn remove(&self) -> Result<(), Error> {
        self.unmount()?;
        self.sh("dmsetup remove --retry disk").map(drop)
    }

    /// From now on these sectors go to another target, and the others to the first disk.
    fn map(&self, target: &str, sectors: Option<(u64, u64)>) -> Result<(), Error> {
        let (first, count) = match sectors {
            Some((first, count)) => (first.to_string(), count.to_string()),
            None => ("0".to_owned(), "$N".to_owned()),
        };
        let target = target.replace("DISK", "/dev/nvme0n1").replace("FROM", "$A");
        // Without a sync, as it would happen.
        self.sh(&format!(
            "N=$(blockdev --getsz /dev/nvme0n1) A={first} L={count}; B=$((A + L))
             {{ [ $A = 0 ] || echo 0 $A linear /dev/nvme0n1 0; echo $A $L {target}
                [ $B = $N ] || echo $B $((N - B)) linear /dev/nvme0n1 $B; }} | dmsetup load disk
             dmsetup suspend --noflush --nolockfs disk; dmsetup resume disk"
        ))
        .map(drop)
    }

    fn repair(&self) -> Result<(), Error> {
        self.map(WHOLE, None)
    }

    /// The sectors of the first disk that hold pages of the file.
    fn sectors(&self, first: u64, end: u64) -> Result<(u64, u64), Error> {
        let text = self.sh(&format!("sync; filefrag -b4096 -v {FILE}"))?;
        let extents = text.lines().filter_map(|line| {
            let mut words = line
                .split(|letter: char| !letter.is_ascii_digit())
                .filter(|word| !word.is_empty());
            let numbers: Vec<u64> = words.by_ref().take(5).filter_map(|word| word.parse().ok()).collect();
            // Number, logical blocks, physical blocks.
            (line.trim().starts_with(|letter: char| letter.is_ascii_digit()) && numbers.len() == 5).then_some(numbers)
        });
        let found = extents
            .into_iter()
            .find(|extent| extent[1] <= first && end <= extent[2] + 1);
        let extent =
            found.ok_or_else(|| Error::Check(format!("pages {first} to {end} lie in no one extent:\n{text}")))?;
        Ok(((extent[3] + first - extent[1]) * 8, (end - first) * 8))
    }

    fn start(&self, seed: u64, options: &str) -> Result<Program, Error> {
        let program = self.program.display();
        let line = format!(
            "export DM_DISABLE_UDEV=1 PATH=$PATH:/usr/sbin:/sbin; exec {program} run {FILE} --bytes {BYTES} --seed {seed} {options}"
        );
        let mut job = self.machine.spawn_with_input(&line)?;
        job.wait_for("ready", SHORT)?;
        Ok(Program { job, flushed: 0 })
    }

    /// The file is as it may be.
    fn check(&self, seed: u64, flushed: u32, written: u32) -> Result<String, Error> {
        let program = self.program.display();
        let line = format!(
            "echo 3 >/proc/sys/vm/drop_caches
             {program} check {FILE} --bytes {BYTES} --seed {seed} --flushed {flushed} --written {written}"
        );
        self.sh(&line)
    }

    /// The tests that page files, on the disk, by io_uring.
    fn tests(&self) -> Result<(), Error> {
        self.make("/dev/nvme0n1", "", Begins::Zeros)?;
        // The tests of the crate put their files into its folder.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../files");
        self.sh(&format!("mount --bind /mnt/disk {}", folder.display()))?;
        // Over the software NIC, which a file cache asks for.
        let before = "GPUVM_REQUIRE_IO_URING=1 TMPDIR=/mnt/disk env -u GPUVM_TEST_RDMA";
        let skip = "--skip random --skip slots:: --skip streams:: --skip order::";
        run_test(self.machine, "gpuvm_files", before, skip, SHORT * 2)?;
        for tests in TESTS {
            run_test(self.machine, tests, before, "", SHORT * 2)?;
        }
        self.sh(&format!("umount {}", folder.display()))?;
        let mut program = self.start(1, "")?;
        let about = "about: 1 rings, 1 descriptors with O_DIRECT, 0 threads that read and write";
        program.step("about", about)?;
        program.killed()?;
        self.unmount()
    }

    /// The disk takes no writes of a part of the file: flushes and launches say so, and a flush after the repair writes all of it back.
    fn writes_fail(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make_mapped(Begins::Zeros)?;
        let mut program = self.start(seed, "")?;
        program.write(2)?;
        program.flush(2)?;
        let some = self.sectors(100, 120)?;
        self.map(NO_WRITES, Some(some))?;
        program.write(3)?;
        for _ in 0..2 {
            program.refused("flush 3", &["cannot write", FILE, "Input/output error"])?;
        }
        self.repair()?;
        program.flush(3)?;
        self.check(seed, 3, 3)?;
        // More than memory holds: then the launch fails.
        let most = self.sectors(50, 700)?;
        self.map(NO_WRITES, Some(most))?;
        program.refused("write 4", &["cannot write", FILE, "Input/output error"])?;
        program.refused("flush 4", &["cannot write", FILE, "Input/output error"])?;
        self.repair()?;
        // The pages that the kernel wrote are in memory and in frames still.
        program.flush(3)?;
        self.check(seed, 3, 4)?;
        program.write(4)?;
        program.flush(4)?;
        program.killed()?;
        self.check(seed, 4, 4)?;
        self.remove()
    }

    /// The last block, which goes by way of the page cache, is not lost when the disk refuses it once.
    fn end_is_written_again(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make_mapped(Begins::Zeros)?;
        let mut program = self.start(seed, "")?;
        let end = self.sectors(LAST, LAST + 1)?;
        self.map(NO_WRITES, Some(end))?;
        program.write(1)?;
        program.write(2)?;
        program.refused("flush 2", &[FILE, "Input/output error"])?;
        self.repair()?;
        program.flush(2)?;
        program.killed()?;
        self.unmount()?;
        self.sh("mount /dev/mapper/disk /mnt/disk")?;
        self.check(seed, 2, 2)?;
        self.remove()
    }

    /// The whole disk takes no writes, the file system's own among them: no flush says `Ok` for what is not stored.
    fn everything_fails(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make_mapped(Begins::Holes)?;
        let mut program = self.start(seed, "")?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        self.map(NO_WRITES, None)?;
        program.refused("write 3", &["cannot write", FILE])?;
        program.refused("flush 3", &[FILE])?;
        self.repair()?;
        // A file system that has failed may stay so until it is mounted again.
        let stored = program.write(3).and_then(|()| program.flush(3));
        let flushed = if stored.is_ok() { 3 } else { 2 };
        program.killed()?;
        self.unmount()?;
        self.sh("mount /dev/mapper/disk /mnt/disk")?;
        self.check(seed, flushed, 3)?;
        println!("         all writes failed: after the repair version {flushed} of 3 is stored");
        self.remove()
    }

    /// A part of the disk can be neither read nor written.
    fn blocks_are_bad(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make_mapped(Begins::Zeros)?;
        let mut program = self.start(seed, "")?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        program.killed()?;
        let bad = self.sectors(400, 401)?;
        let mut program = self.start(seed, "")?;
        self.map(BAD, Some(bad))?;
        program.step("read 300 400 2", "read 300 400")?;
        program.step("read 401 500 2", "read 401 500")?;
        let names = ["cannot read 4096 bytes at 1638400", FILE, "Input/output error"];
        program.refused("read 399 402 2", &names)?;
        program.refused("read 0 769 2", &names)?;
        self.repair()?;
        program.step("read 399 402 2", "read 399 402")?;
        program.step("read 0 769 2", "read 0 769")?;
        program.killed()?;
        self.remove()
    }

    /// A sparse file on a disk that is full.
    fn disk_is_full(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make("/dev/nvme0n1", "12M", Begins::Holes)?;
        let fill = "dd if=/dev/zero of=/mnt/disk/ballast bs=4k conv=fsync 2>/dev/null || true";
        let mut program = self.start(seed, "")?;
        self.sh(fill)?;
        // What memory holds.
        program.write(1)?;
        for _ in 0..2 {
            program.refused("flush 1", &["cannot write", FILE, "No space left on device"])?;
        }
        self.sh("rm /mnt/disk/ballast; sync")?;
        program.flush(1)?;
        self.check(seed, 1, 1)?;
        // More than memory holds.
        self.sh(fill)?;
        program.refused("write 2", &["cannot write", FILE, "No space left on device"])?;
        self.sh("rm /mnt/disk/ballast; sync")?;
        program.flush(1)?;
        self.check(seed, 1, 2)?;
        program.write(2)?;
        program.flush(2)?;
        program.killed()?;
        self.check(seed, 2, 2)?;
        self.unmount()
    }

    /// Every write is forgotten from a moment on, while kernels write and flush.
    fn power_is_cut(&self, seed: u64) -> Result<(), Error> {
        let begins = if seed.is_multiple_of(2) {
            Begins::Holes
        } else {
            Begins::Zeros
        };
        self.make_mapped(begins)?;
        let mut program = self.start(seed, "")?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        program.flushed = 2;
        program.job.input().write("loop 3\n")?;
        thread::sleep(Duration::from_millis(500 + seed % 2500));
        let flushed = program.flushed();
        self.map(FORGETS, None)?;
        let newer = self.remount_and_check(program, (seed, flushed))?;
        print!("         power cut behind version {flushed} (seed {seed}): {newer}");
        self.remove()
    }

    /// Ends the program and the file system, whose writes are forgotten, and has the journal of what is there played back.
    fn remount_and_check(&self, program: Program, (seed, flushed): (u64, u32)) -> Result<String, Error> {
        thread::sleep(Duration::from_millis(200));
        let written = program.killed()?;
        self.unmount()?;
        self.repair()?;
        self.sh("mount /dev/mapper/disk /mnt/disk")?;
        self.check(seed, flushed, written)
            .map_err(|error| Error::Check(format!("seed {seed}, flushed {flushed}, written {written}: {error}")))
    }

    /// Writes and flushes on a disk whose writes are noted, up to a version. The last version that was written.
    fn noted(&self, seed: u64, options: &str, until: u32) -> Result<u32, Error> {
        self.sh(
            "echo \"0 $(blockdev --getsz /dev/nvme0n1) log-writes /dev/nvme0n1 /dev/nvme1n1\" | dmsetup create disk",
        )?;
        self.make(
            "/dev/mapper/disk",
            "",
            if seed.is_multiple_of(2) {
                Begins::Holes
            } else {
                Begins::Zeros
            },
        )?;
        let mut program = self.start(seed, &format!("--mark disk {options}"))?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        for version in 3..=until {
            program.write(version)?;
            program.flush(version)?;
        }
        // Not flushed.
        program.write(until + 1)?;
        let written = program.killed()?;
        self.remove()?;
        Ok(written)
    }

    /// The disk that a loss of power may leave, looked at. What it says, or why it is not as it may be.
    fn replayed(&self, draw: u64, at_mark: &str, (seed, written): (u64, u32)) -> Result<String, Error> {
        let program = self.program.display();
        let made = self.sh(&format!(
            "{program} replay /dev/nvme1n1 /dev/nvme2n1 --seed {draw} {at_mark}"
        ))?;
        let flushed = version_of(&made);
        self.sh("mount /dev/nvme2n1 /mnt/disk")?;
        let newer = self
            .check(seed, flushed, written)
            .map_err(|error| Error::Check(format!("seed {seed}, disk {draw} {at_mark}, {made}: {error}")));
        self.unmount()?;
        Ok(format!("         {}; {}", made.trim(), newer?))
    }

    /// Disks that have lost of what was not flushed all, or a part that is drawn.
    fn volatile_cache(&self, draws: &[u64]) -> Result<(), Error> {
        let seed = draws[0];
        let written = self.noted(seed, "", 6)?;
        for (place, draw) in draws.iter().enumerate() {
            let at_mark = if place % 2 == 0 { "" } else { "--at-mark" };
            print!("{}", self.replayed(*draw, at_mark, (seed, written))?);
        }
        Ok(())
    }

    /// A flush that has the system store nothing is found out, by each of the two ways.
    fn planted_bug(&self) -> Result<(), Error> {
        let (seed, lost) = (2 * seeds(1)[0], |found: Result<String, Error>| {
            let said = found.map_or_else(
                |error| error.to_string(),
                |newer| format!("it was taken for whole: {newer}"),
            );
            check(said.contains("LOST"), || {
                format!("a flush without fsync was not found out: {said}")
            })
        });
        self.make_mapped(Begins::Holes)?;
        let mut program = self.start(seed, "--forget")?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        self.map(FORGETS, None)?;
        lost(self.remount_and_check(program, (seed, 2)))?;
        self.remove()?;
        // Its blocks are there, so that no journal is needed to find them: it is the disk's cache that is lost.
        let written = self.noted(seed + 1, "--forget", 3)?;
        lost(self.replayed(seed, "--at-mark", (seed + 1, written)))
    }

    /// The machine loses its power, and another has its disk.
    fn machine_is_killed(&self) -> Result<(), Error> {
        let seed = seeds(1)[0];
        self.make("/dev/nvme0n1", "", Begins::Holes)?;
        let mut program = self.start(seed, "")?;
        program.write(1)?;
        program.write(2)?;
        program.flush(2)?;
        program.job.input().write("loop 3\n")?;
        thread::sleep(Duration::from_millis(1000 + seed % 2000));
        let flushed = program.flushed().max(2);
        self.machine.boot_again()?;
        // Of the versions that it wrote, the last lines may not have come.
        self.sh("mkdir -p /mnt/disk; mount /dev/nvme0n1 /mnt/disk")?;
        let newer = self.check(seed, flushed, flushed + 20)?;
        print!("         machine killed behind version {flushed}: {newer}");
        self.unmount()
    }
}
