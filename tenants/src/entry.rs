//! A tenant's entry in the registry: a file that is locked for as long as its process lives, and a socket beside it.

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::folder::{FolderError, GpuFolder};

const LOCK: &str = ".lock";
const SOCKET: &str = ".sock";

/// Files of entries are their user's alone. The sticky bit tells those who clean runtime folders of old files to leave it.
const LOCK_MODE: u32 = 0o1600;
const SOCKET_MODE: u32 = 0o600;

/// What an entry is called: the process and a random number, so that no name is ever used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) pid: u32,
    random: u64,
}

impl Name {
    pub(crate) fn lock(self) -> String {
        format!("{self}{LOCK}")
    }

    pub(crate) fn socket(self) -> String {
        format!("{self}{SOCKET}")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.pid, self.random)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, random) = text.split_once('-').ok_or(())?;
        let name = Self {
            pid: pid.parse().map_err(|_| ())?,
            random: u64::from_str_radix(random, 16).map_err(|_| ())?,
        };
        // Nothing else is spelled so: not +1, 01 or FF.
        (name.to_string() == text).then_some(name).ok_or(())
    }
}

/// The entry of a tenant of this process. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Entry {
    folder: Arc<GpuFolder>,
    name: Name,
    lock: File,
    listener: UnixListener,
}

impl Entry {
    /// Enters the registry.
    ///
    /// # Errors
    /// What cannot be created, and why.
    pub(crate) fn create(folder: Arc<GpuFolder>) -> Result<Self, FolderError> {
        /// Each time somebody else must look at the file between two calls of this function.
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            let random = getrandom::u64().map_err(|error| FolderError::create(folder.path(), error.into()))?;
            let name = Name {
                pid: std::process::id(),
                random,
            };
            let refuse = |name: &str, source| FolderError::create(&folder.path().join(name), source);
            let Some(lock) = lock_new(&folder.reach(name.lock())).map_err(|source| refuse(&name.lock(), source))?
            else {
                continue;
            };
            let path = folder.reach(name.socket());
            let bound = UnixListener::bind(&path).and_then(|listener| {
                std::fs::set_permissions(&path, Permissions::from_mode(SOCKET_MODE))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            return match bound {
                Ok(listener) => Ok(Self {
                    folder,
                    name,
                    lock,
                    listener,
                }),
                Err(source) => {
                    remove(&folder, name);
                    Err(refuse(&name.socket(), source))
                }
            };
        }
        let source = io::Error::new(io::ErrorKind::ResourceBusy, "another process removes every new file");
        Err(FolderError::create(folder.path(), source))
    }

    pub(crate) fn name(&self) -> Name {
        self.name
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Whether others find it: no tenant has removed its files.
    pub(crate) fn is_listed(&self) -> bool {
        let known = self.lock.metadata();
        known.is_ok_and(|known| known.nlink() > 0) && self.folder.reach(self.name.socket()).exists()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        remove(&self.folder, self.name);
    }
}

/// Creates a file and locks it; nothing where somebody took it for one of a dead process before it was locked.
fn lock_new(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(SOCKET_MODE)
        .open(path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        // Somebody holds it to remove it, and will; this removes it where that one is killed.
        let _ = std::fs::remove_file(path);
        return Ok(None);
    }
    // A thread that removes a file does so under its lock: from here on it stays.
    if file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
    Ok(Some(file))
}

/// Removes an entry's files. The lock is held, and goes last: a socket without it is no tenant's.
fn remove(folder: &GpuFolder, name: Name) {
    for file in [name.socket(), name.lock()] {
        // In a folder that cannot be written it stays, and the next one who can write removes it.
        if let Err(error) = std::fs::remove_file(folder.reach(&file))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!("cannot remove {}: {error}", folder.path().join(&file).display());
        }
    }
}

/// Whether the process of an entry lives. The entry of a dead one is removed.
pub(crate) fn lives(folder: &GpuFolder, name: Name) -> bool {
    // A pipe that somebody placed there does not stop this one.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(folder.reach(name.lock()));
    let file = match opened {
        Ok(file) => file,
        // A link is no tenant's entry. A file that cannot be opened says nothing of its process.
        Err(error) => {
            let is_link = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
            return error.kind() != io::ErrorKind::NotFound && !is_link;
        }
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            remove(folder, name);
            false
        }
        Err(_) => true,
    }
}

/// The entries of living processes, in order. Those of dead ones are removed, and sockets that are no tenant's.
///
/// # Errors
/// A folder that cannot be read.
pub(crate) fn living(folder: &GpuFolder) -> Result<Vec<Name>, FolderError> {
    let files = folder.names()?;
    let named = |end: &str| -> Vec<Name> {
        let names = files.iter().filter_map(|file| file.strip_suffix(end)?.parse().ok());
        names.collect()
    };
    let mut names = named(LOCK);
    names.retain(|&name| lives(folder, name));
    names.sort_unstable();
    for name in named(SOCKET) {
        // An entry has its lock before its socket and after it. The list of files may be older than either.
        if folder
            .reach(name.lock())
            .symlink_metadata()
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            let _ = std::fs::remove_file(folder.reach(name.socket()));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    fn folder(above: &tempfile::TempDir) -> Arc<GpuFolder> {
        let folder = Folder::at(above.path().join("registry"));
        folder.create(&"sim".parse().unwrap()).unwrap()
    }

    #[test]
    fn names_have_one_spelling() {
        let name: Name = "12-00000000000000ff".parse().unwrap();
        assert_eq!((name.pid, name.random), (12, 255));
        for bad in [
            "",
            "12",
            "12-ff",
            "-00000000000000ff",
            "+1-00000000000000ff",
            "01-00000000000000ff",
            "1-00000000000000FF",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_entry_is_there_until_it_is_dropped() {
        let above = tempfile::tempdir().unwrap();
        let folder = folder(&above);
        let entry = Entry::create(Arc::clone(&folder)).unwrap();
        let other = Entry::create(Arc::clone(&folder)).unwrap();
        let mut both = [entry.name(), other.name()];
        both.sort_unstable();
        assert_eq!(living(&folder).unwrap(), both);
        for name in folder.names().unwrap() {
            let mode = std::fs::metadata(folder.reach(&name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        drop(other);
        assert_eq!(living(&folder).unwrap(), [entry.name()]);
        assert!(entry.is_listed());
        std::fs::remove_file(folder.reach(entry.name().lock())).unwrap();
        assert!(!entry.is_listed());
        drop(entry);
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }

    #[test]
    fn what_the_dead_left_is_removed() {
        let above = tempfile::tempdir().unwrap();
        let folder = folder(&above);
        let dead: Name = "1-0000000000000001".parse().unwrap();
        // Killed before its socket was there, after it, and while the entry was removed by a version that began with the lock.
        std::fs::write(folder.reach(dead.lock()), "").unwrap();
        let half: Name = "2-0000000000000002".parse().unwrap();
        std::fs::write(folder.reach(half.lock()), "").unwrap();
        drop(UnixListener::bind(folder.reach(half.socket())).unwrap());
        drop(UnixListener::bind(folder.reach("3-0000000000000003.sock")).unwrap());
        // Not ours.
        std::fs::write(folder.reach("notes"), "").unwrap();
        assert_eq!(living(&folder).unwrap(), []);
        assert_eq!(folder.names().unwrap(), ["notes"]);
    }

    #[test]
    fn entries_come_and_go_while_others_sweep() {
        let above = tempfile::tempdir().unwrap();
        let folder = folder(&above);
        std::thread::scope(|scope| {
            let joiners: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..300 {
                            let entry = Entry::create(Arc::clone(&folder)).unwrap();
                            // No tenant takes the entry of a living process.
                            assert!(living(&folder).unwrap().contains(&entry.name()));
                            assert!(entry.is_listed());
                        }
                    })
                })
                .collect();
            while !joiners.iter().all(|joiner| joiner.is_finished()) {
                living(&folder).unwrap();
            }
        });
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }
}
