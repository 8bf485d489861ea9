//! Files that are whole or not there, and leaving at once on Ctrl-C without leaving half of one behind.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use gpuvm_workloads::apps::{Column, Format};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

use crate::error::CliError;
use crate::stdout;

/// The files that a signal must remove: they are not finished.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The process that a signal must end with this one.
static UNDER_WAY: Mutex<Option<Child>> = Mutex::new(None);

/// How often a process is looked after.
const POLL: Duration = Duration::from_millis(50);

/// The signals that ask this process to end. Under `nohup` it is to outlive its terminal: SIGHUP is
/// left ignored then.
pub fn ending_signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM, SIGQUIT];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if ignored.unwrap_or(0) & 1 << (SIGHUP - 1) == 0 {
        signals.push(SIGHUP);
    }
    signals
}

/// From now on SIGINT, SIGTERM, SIGQUIT and SIGHUP end the process at once, with status 128 and the signal's number,
/// together with the process under way, and remove an unfinished output.
///
/// # Errors
/// Where the handlers or their thread cannot be set up.
pub fn end_on_signals() -> io::Result<()> {
    let mut signals = Signals::new(ending_signals())?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: the main thread must not start another one, nor take the end of this one for its own.
            let mut child = UNDER_WAY.lock();
            if let Some(child) = child.as_mut() {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
            // Held to the end: the main thread must not rename a file under the removal.
            let paths = UNFINISHED.lock();
            for path in paths.iter() {
                // No one is left to tell where this fails.
                let _ = std::fs::remove_file(path);
            }
            // Without exit handlers: kernels may still run on other threads.
            signal_hook::low_level::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// Runs a process to its end, or to the end of its time: nothing then.
///
/// # Errors
/// It cannot be started or waited for.
pub fn run_for(command: &mut Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
    {
        let mut slot = UNDER_WAY.lock();
        *slot = Some(command.spawn()?);
    }
    let deadline = Instant::now() + limit;
    loop {
        let mut slot = UNDER_WAY.lock();
        let Some(child) = slot.as_mut() else { return Ok(None) };
        let ended = match child.try_wait() {
            Ok(None) if Instant::now() < deadline => {
                drop(slot);
                std::thread::sleep(POLL);
                continue;
            }
            Ok(Some(status)) => Ok(Some(status)),
            ended => child.kill().and_then(|()| child.wait()).and(ended),
        };
        *slot = None;
        return ended;
    }
}

/// Progress; a closed standard error is no reason to stop.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether both are the same regular file, whatever their names: writing one would destroy the other.
pub fn same_file(one: &Path, other: &Path) -> bool {
    let known = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    known(one)
        .zip(known(other))
        .is_some_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// A file that appears when it is complete. Until then it has no name, so that nothing stays however the process ends; where the file system
/// needs one it is another file in the same folder, which is gone when this is dropped or a signal that can be caught ends the process.
#[derive(Debug)]
pub struct Output {
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A regular file, or none yet: written without a name, which it gets at the end. A file that has come meanwhile is replaced or not.
    Nameless {
        file: File,
        folder: PathBuf,
        path: PathBuf,
        replaces: bool,
    },
    /// As that, on file systems that know no file without a name: written beside and renamed.
    Beside {
        file: NamedTempFile,
        path: PathBuf,
        replaces: bool,
    },
    /// A device, a pipe or what this process has open already, which must not be replaced by a file.
    Direct(File),
}

impl Output {
    /// Begins an output that has to be a regular file; one that is there already is replaced or not.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`], also from [`Output::finish`] for a file that has come meanwhile;
    /// [`io::ErrorKind::InvalidInput`] for a device, a pipe or an open file; else what the operating system says.
    pub fn create_file(path: &Path, replace: bool) -> io::Result<Output> {
        let known = std::fs::metadata(path);
        if known.is_ok_and(|known| !known.is_file() && !known.is_dir()) || descriptor(path).is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        // A link that leads nowhere is there too.
        if !replace && std::fs::symlink_metadata(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut output = Output::create(path)?;
        if let Target::Nameless { replaces, .. } | Target::Beside { replaces, .. } = &mut output.target {
            *replaces = replace;
        }
        Ok(output)
    }

    /// Begins the output, so that a folder that cannot be written is known before the work is done.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(path: &Path) -> io::Result<Output> {
        if let Some(descriptor) = descriptor(path) {
            return Ok(Output {
                target: Target::Direct(open_already(descriptor)?),
            });
        }
        // A link stays, the file that it names is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // As any new file where there is none yet: the process's mask takes its share.
        let (mut mode, mut kept) = (Permissions::from_mode(0o666), None);
        match std::fs::metadata(&path) {
            Ok(known) if known.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
            Ok(known) if !known.is_file() => {
                let file = OpenOptions::new().write(true).open(&path)?;
                return Ok(Output {
                    target: Target::Direct(file),
                });
            }
            Ok(known) => {
                // No one reads the new file who may not read the old one, not even while it is written.
                mode = Permissions::from_mode(0o600);
                kept = Some(Permissions::from_mode(known.mode() & 0o777));
            }
            Err(_) => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if let Some(file) = nameless(folder, mode.mode()) {
            if let Some(kept) = kept {
                file.set_permissions(kept)?;
            }
            let folder = folder.to_owned();
            let replaces = true;
            return Ok(Output {
                target: Target::Nameless {
                    file,
                    folder,
                    path,
                    replaces,
                },
            });
        }
        let mut unfinished = UNFINISHED.lock();
        let file = hidden().permissions(mode).tempfile_in(folder)?;
        unfinished.push(file.path().to_owned());
        drop(unfinished);
        if let Some(kept) = kept {
            file.as_file().set_permissions(kept)?;
        }
        Ok(Output {
            target: Target::Beside {
                file,
                path,
                replaces: true,
            },
        })
    }

    /// Another handle of the file, for a process that writes it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn handle(&self) -> io::Result<File> {
        match &self.target {
            Target::Beside { file, .. } => file.as_file().try_clone(),
            Target::Nameless { file, .. } | Target::Direct(file) => file.try_clone(),
        }
    }

    /// Writes what `write` has to write, and gives the file its name.
    ///
    /// # Errors
    /// What the operating system says; there is no file then.
    pub fn finish(mut self, write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> io::Result<()> {
        let target = match &mut self.target {
            Target::Beside { file, .. } => file.as_file_mut(),
            Target::Nameless { file, .. } | Target::Direct(file) => file,
        };
        let mut out = BufWriter::with_capacity(1 << 16, target);
        write(&mut out)?;
        out.flush()?;
        drop(out);
        match self.target {
            Target::Direct(_) => Ok(()),
            Target::Nameless {
                file,
                folder,
                path,
                replaces,
            } => {
                file.sync_all()?;
                if !replaces {
                    return link(&file, &path);
                }
                let mut unfinished = UNFINISHED.lock();
                // No call gives a file a name that another one has: it gets one beside, for a moment.
                let named = hidden().make_in(folder, |name| link(&file, name))?;
                unfinished.push(named.path().to_owned());
                give_name(&mut unfinished, named, &path, replaces)
            }
            Target::Beside { file, path, replaces } => {
                file.as_file().sync_all()?;
                give_name(&mut UNFINISHED.lock(), file, &path, replaces)
            }
        }
    }
}

/// The file of a result.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    format: Format,
    output: Output,
}

impl ResultFile {
    /// Begins it, where there is to be one, before the work is done. It must not be the input.
    ///
    /// # Errors
    /// A name that says no format, [`CliError::OutputIsInput`], what the operating system says.
    pub fn create(path: Option<&Path>, input: Option<&OsStr>) -> Result<Option<Self>, CliError> {
        let Some(path) = path.map(Path::to_owned) else {
            return Ok(None);
        };
        let format = Format::of(&path)?;
        if input.is_some_and(|input| same_file(Path::new(input), &path)) {
            return Err(CliError::OutputIsInput { path });
        }
        match Output::create(&path) {
            Ok(output) => Ok(Some(Self { path, format, output })),
            Err(source) => Err(CliError::Output { path, source }),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// What the operating system says; there is no file then.
    pub fn write(self, columns: &[Column]) -> Result<(), CliError> {
        let Self { path, format, output } = self;
        let written = output.finish(|out| format.write(columns, out));
        written.map_err(|source| CliError::Output { path, source })
    }
}

/// How files are called that are not complete.
fn hidden() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gpuvm-").suffix(".tmp");
    builder
}

/// Renames a file that is complete.
fn give_name<F>(unfinished: &mut Vec<PathBuf>, file: NamedTempFile<F>, path: &Path, replaces: bool) -> io::Result<()> {
    let written = file.path().to_owned();
    let renamed = match replaces {
        true => file.persist(path).map(drop).map_err(|error| error.error),
        false => file.persist_noclobber(path).map(drop).map_err(|error| error.error),
    };
    unfinished.retain(|path| *path != written);
    renamed
}

/// A new file in a folder that has no name, and goes with the process unless it is given one. None where the file system has no such files, or
/// they cannot be named later.
fn nameless(folder: &Path, mode: u32) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode);
    let file = options.custom_flags(libc::O_TMPFILE).open(folder).ok()?;
    // Without /proc only root could name it.
    Path::new(&own_name(&file)).exists().then_some(file)
}

/// By which the system knows an open file.
fn own_name(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Gives a file without a name that name.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let (here, follow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
    rustix::fs::linkat(here, own_name(file), here, name, follow)?;
    Ok(())
}

/// The number of the open file of this process that `path` stands for, as /dev/stdout and /dev/fd/3 do.
fn descriptor(path: &Path) -> Option<u32> {
    /// As many as the kernel follows.
    const LINKS_MAX: usize = 40;
    let own = std::fs::canonicalize("/proc/self/fd").ok()?;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = path.parent()?.to_owned();
        if std::fs::canonicalize(&folder).is_ok_and(|folder| folder == own) {
            return path.file_name()?.to_str()?.parse().ok();
        }
        // A link may be relative; an absolute one replaces the folder.
        path = folder.join(std::fs::read_link(&path).ok()?);
    }
    None
}

/// Opens it so that what is there already stays: a file opened again would be written from its begin.
fn open_already(descriptor: u32) -> io::Result<File> {
    match descriptor {
        1 => {
            stdout::check_open()?;
            io::stdout().as_fd().try_clone_to_owned().map(File::from)
        }
        2 => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        other => OpenOptions::new().append(true).open(format!("/proc/self/fd/{other}")),
    }
}
