//! The file of distances, and leaving at once on Ctrl-C without leaving half of it behind.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

/// The file that a signal must remove: it is not finished.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    // The path is replaced as a whole, so a panic elsewhere leaves it valid.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT and SIGTERM end the process at once, with status 130 and 143, and remove an unfinished output.
///
/// # Errors
/// Where the handlers or their thread cannot be set up.
pub fn end_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: the main thread must not rename the file under the removal.
            let path = unfinished();
            if let Some(path) = path.as_ref() {
                // Nobody is left to tell where this fails.
                let _ = std::fs::remove_file(path);
            }
            // Without exit handlers: kernels may still run on other threads.
            signal_hook::low_level::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// A file that appears when it is complete. Until then it is another file in the same folder, which is gone when this
/// is dropped or a signal ends the process.
#[derive(Debug)]
pub struct Output {
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A regular file, or none yet: written beside and renamed.
    Beside { file: NamedTempFile, path: PathBuf },
    /// A device or a pipe, which must not be replaced by a file.
    Direct(File),
}

impl Output {
    /// Begins the output, so that a folder that cannot be written is known before the work is done.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(path: &Path) -> io::Result<Output> {
        // A link stays, the file that it names is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match std::fs::metadata(&path) {
            Ok(known) if known.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
            Ok(known) if !known.is_file() => {
                let file = OpenOptions::new().write(true).open(&path)?;
                return Ok(Output {
                    target: Target::Direct(file),
                });
            }
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut slot = unfinished();
        let file = tempfile::Builder::new()
            .prefix(".gpuvm-")
            .suffix(".tmp")
            // As any new file: the process's mask takes its share.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        *slot = Some(file.path().to_owned());
        Ok(Output {
            target: Target::Beside { file, path },
        })
    }

    /// Writes the distances, one a line, and gives the file its name.
    ///
    /// # Errors
    /// What the operating system says; there is no file then.
    pub fn finish(mut self, distances: &[i32]) -> io::Result<()> {
        match &mut self.target {
            Target::Beside { file, .. } => write_lines(file.as_file_mut(), distances)?,
            Target::Direct(file) => return write_lines(file, distances),
        }
        if let Target::Beside { file, path } = self.target {
            file.as_file().sync_all()?;
            let mut slot = unfinished();
            let renamed = file.persist(path);
            *slot = None;
            renamed.map_err(|error| error.error)?;
        }
        Ok(())
    }
}

fn write_lines(file: &mut File, distances: &[i32]) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    for distance in distances {
        writeln!(out, "{distance}")?;
    }
    out.flush()
}
