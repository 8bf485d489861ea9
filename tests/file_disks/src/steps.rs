//! Steps of a program that pages a file: a line of standard input each, and a line of standard output about each.
//!
//! | step | it says |
//! |---|---|
//! | `write V` | `writing V`, then `wrote V` |
//! | `flush V` | `flushed V` |
//! | `read FIRST END V`: pages hold what they hold once version V was written | `read FIRST END` |
//! | `loop V`: `write` and `flush` of version V and all later ones | as these |
//! | `about` | how the file is open, and by what it is read |
//!
//! A step that fails says `refused: ` and why.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead},
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use gpuvm::{Kernel, LaunchConfig, Look, Region, SimulatedGpu, Storage, Vm};

use crate::{
    error::{Error, chain},
    pages::{PAGE, Pages},
};

const SOURCE: &str = include_str!("versions.cu");
/// Frames of the simulated GPU, and blocks of the file cache: as few as there may be.
const FRAMES: u64 = 32;
const BLOCKS: u64 = 64;

struct Program<'a> {
    vm: Vm,
    region: Region<u32>,
    stamp: Kernel,
    verify: Kernel,
    pages: Pages,
    path: &'a Path,
    mark: Option<&'a str>,
}

/// A virtual memory, and the kernels that write and read versions. Compiled kernels go to the cache of all programs.
pub fn kernels() -> Result<(Vm, Kernel, Kernel), Error> {
    let limit = Duration::from_secs(60);
    let vm = Vm::builder()
        .frame_memory(FRAMES * PAGE)
        .page_size(PAGE)
        .file_cache(BLOCKS * PAGE)
        .gpu(SimulatedGpu::new().memory(64 << 20))
        .wait_limit(limit)
        .launch_deadline(2 * limit)
        .build()?;
    let kernel = |name| vm.kernel("versions.cu", SOURCE, name);
    let (stamp, verify) = (kernel("stamp")?, kernel("verify")?);
    Ok((vm, stamp, verify))
}

/// Does the steps of standard input.
pub fn run(path: &Path, pages: Pages, mark: Option<&str>, forget: bool) -> Result<(), Error> {
    let (vm, stamp, verify) = kernels()?;
    let region = vm.region::<u32>().name("versions");
    let region = match forget {
        false => region.map_file_mut(path)?,
        true => region.map_storage(
            path,
            Arc::new(Forgetful::open(path).map_err(Error::file("open", path))?),
        )?,
    };
    let program = Program {
        stamp,
        verify,
        vm,
        region,
        pages,
        path,
        mark,
    };
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Error::file("read", Path::new("standard input")))?;
        if let Err(error) = program.step(&line) {
            println!("refused: {}", chain(&error));
        }
    }
    // The end of the region would flush: what was not flushed by a step is to be lost.
    println!("ended");
    std::process::exit(0)
}

impl Program<'_> {
    fn step(&self, line: &str) -> Result<(), Error> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unknown = || Error::Step(line.to_owned());
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).ok_or_else(unknown);
        match words.first().copied() {
            Some("write") => self.write(number(1)?),
            Some("flush") => self.flush(number(1)?),
            Some("read") => self.read(number(1)?.into(), number(2)?.into(), number(3)?),
            Some("loop") => (number(1)?..).try_for_each(|version| {
                self.write(version)?;
                self.flush(version)
            }),
            Some("about") => self.about(),
            _ => Err(unknown()),
        }
    }

    fn write(&self, version: u32) -> Result<(), Error> {
        println!("writing {version}");
        let (seed, percent) = (self.pages.seed, Pages::percent(version));
        let arguments = (&self.region, seed, version, percent, 0u64, self.pages.count());
        self.stamp.launch(LaunchConfig::new(4, 64), arguments)?.sync()?;
        println!("wrote {version}");
        Ok(())
    }

    fn flush(&self, version: u32) -> Result<(), Error> {
        self.region.flush()?;
        if let Some(device) = self.mark {
            let mut dmsetup = Command::new("dmsetup");
            dmsetup.args(["message", device, "0", "mark", &format!("flushed-{version}")]);
            let marked = dmsetup.status().map_err(Error::file("run", Path::new("dmsetup")))?;
            if !marked.success() {
                let failed = Error::file("mark with", Path::new("dmsetup"));
                return Err(failed(io::Error::other(marked.to_string())));
            }
        }
        println!("flushed {version}");
        Ok(())
    }

    fn read(&self, first: u64, end: u64, written: u32) -> Result<(), Error> {
        let end = end.min(self.pages.count());
        let known: Vec<u32> = (0..self.pages.count())
            .map(|page| self.pages.version(page, written))
            .collect();
        let versions = self.vm.buffer::<u32>(known.len() as u64)?;
        versions.write(&known)?;
        let wrong = self.vm.buffer::<u64>(1)?;
        let arguments = (&self.region, self.pages.seed, &versions, first, end, &wrong);
        self.verify.launch(LaunchConfig::new(4, 64), arguments)?.sync()?;
        match wrong.to_vec()?[0] {
            0 => println!("read {first} {end}"),
            words => return Err(Error::Wrong { words, first, end }),
        }
        Ok(())
    }

    /// What the system says of this process: not what the library says of itself.
    fn about(&self) -> Result<(), Error> {
        let folder = Path::new("/proc/self/fd");
        let failed = Error::file("read", folder);
        let (mut direct, mut rings) = (0, 0);
        for entry in fs::read_dir(folder).map_err(&failed)?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            rings += u32::from(target.to_string_lossy().contains("io_uring"));
            let about = fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).unwrap_or_default();
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags
                .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
                .unwrap_or(0);
            direct += u32::from(target == self.path && flags & libc::O_DIRECT != 0);
        }
        let tasks = fs::read_dir("/proc/self/task").map_err(&failed)?.flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let threads = names.filter(|name| name.starts_with("files-")).count();
        println!("about: {rings} rings, {direct} descriptors with O_DIRECT, {threads} threads that read and write");
        Ok(())
    }
}

/// A file of which nothing is ever synced: the planted bug.
struct Forgetful {
    direct: File,
    /// For the last block, which ends where O_DIRECT may not.
    cached: File,
}

impl Forgetful {
    fn open(path: &Path) -> io::Result<Self> {
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        Ok(Self {
            direct: open(libc::O_DIRECT)?,
            cached: open(0)?,
        })
    }
}

impl Storage for Forgetful {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.cached.read_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.cached.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn look(&self) -> io::Result<Look> {
        let about = self.cached.metadata()?;
        Ok(Look {
            length: about.len(),
            deleted: about.nlink() == 0,
            identity: (about.dev(), about.ino()),
        })
    }

    fn descriptor(&self, offset: u64, bytes: u64) -> Option<RawFd> {
        let aligned = offset.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        aligned.then(|| self.direct.as_raw_fd())
    }
}
