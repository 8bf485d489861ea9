//! Compiled kernels on disk, shared by processes.
//!
//! An entry is the shared object or GPU binary followed by the SHA-256 of its bytes; it appears by one rename, so readers never see a part of it.
//!
//! What is loaded from it runs as the user: the folder and its entries belong to the user or to root, and nothing else may write to them.

use std::fs::Metadata;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use sha2::{Digest, Sha256};
use tempfile::{Builder, TempDir, TempPath};

use crate::error::GpuError;

const DIGEST_BYTES: usize = 32;

/// How names begin that live no longer than the process that made them, unless it was ended. They are told from those of
/// anybody else, whose folder the cache may be in.
const BUILD: &str = "gpuvm-build-";
const ENTRY: &str = "gpuvm-entry-";
const LOAD: &str = "gpuvm-load-";

/// The age from which on they are what an ended process left behind: no compilation takes this long, and a loaded object
/// outlives its name.
const STALE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A directory of compiled kernels.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// What an entry depends on, hashed; nothing yet by default.
#[derive(Clone, Default)]
pub struct Key(Sha256);

impl Key {
    /// Depends on `part` too; parts are delimited.
    pub fn add(&mut self, part: &str) -> &mut Self {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part.as_bytes());
        self
    }

    /// The entry's name.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Cache {
    /// `asked`, else $GPUVM_CACHE_DIR, else $XDG_CACHE_HOME/gpuvm, else ~/.cache/gpuvm, else a folder of the user's own in the system's
    /// temporary directory.
    ///
    /// # Errors
    /// [`GpuError::Io`] where it cannot be made, or where others may write to it.
    pub fn open(asked: Option<PathBuf>) -> Result<Self, GpuError> {
        let var = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let dir = asked
            .or_else(|| var("GPUVM_CACHE_DIR"))
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("gpuvm")))
            .or_else(|| var("HOME").map(|d| d.join(".cache").join("gpuvm")))
            .unwrap_or_else(|| env::temp_dir().join(format!("gpuvm-cache-{}", user())));
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|e| {
            GpuError::io(
                "make the kernel cache directory",
                Some(&dir),
                format!("{e}; set GPUVM_CACHE_DIR to a writable one"),
            )
        })?;
        let whole = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        check(&whole, only_ours)?;
        for folder in whole.ancestors().skip(1) {
            check(folder, stays_in_place)?;
        }
        let cache = Self { dir };
        cache.remove_stale(STALE_AGE);
        Ok(cache)
    }

    /// Removes what ended processes left behind, of at least that age. What cannot be removed stays: another process may
    /// be at it, and nothing depends on it.
    fn remove_stale(&self, age: Duration) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let passing = name
                .to_str()
                .is_some_and(|name| [BUILD, ENTRY, LOAD].iter().any(|begin| name.starts_with(begin)));
            let Some(known) = entry.metadata().ok().filter(|_| passing) else {
                continue;
            };
            let old = known
                .modified()
                .is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed >= age));
            let _ = match (old, known.is_dir()) {
                (false, _) => Ok(()),
                (true, true) => fs::remove_dir_all(entry.path()),
                (true, false) => fs::remove_file(entry.path()),
            };
        }
    }

    fn fail<E: ToString>(&self, what: &str) -> impl Fn(E) -> GpuError + use<'_, E> {
        let what = what.to_owned();
        move |e| GpuError::io(&what, Some(&self.dir), e)
    }

    /// A fresh directory for one compilation, removed when dropped.
    pub fn work_dir(&self) -> Result<TempDir, GpuError> {
        let made = Builder::new().prefix(BUILD).tempdir_in(&self.dir);
        let made = made.or_else(|error| match is_read_only(&error) {
            true => Builder::new().prefix(BUILD).tempdir(),
            false => Err(error),
        });
        made.map_err(self.fail("make a directory in"))
    }

    /// The bytes of the entry, if it is there and whole.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        let mut entry = fs::File::open(self.dir.join(key)).ok()?;
        // One that others may write to is replaced by the user's own.
        entry.metadata().ok().filter(|known| only_ours(known).is_ok())?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).ok()?;
        let split = bytes.len().checked_sub(DIGEST_BYTES)?;
        // A damaged entry: the thread that asked rebuilds it, and the rename replaces it.
        let whole = Sha256::digest(&bytes[..split])[..] == bytes[split..];
        bytes.truncate(split);
        whole.then_some(bytes)
    }

    /// Adds `bytes` as entry `key`.
    pub fn store_bytes(&self, key: &str, bytes: &[u8]) -> Result<(), GpuError> {
        let entry = Builder::new().prefix(ENTRY).tempfile_in(&self.dir);
        let mut entry = match entry {
            // What is not there is compiled each time.
            Err(error) if is_read_only(&error) => return Ok(()),
            entry => entry.map_err(self.fail("write to"))?,
        };
        entry.write_all(bytes).map_err(self.fail("write to"))?;
        entry.write_all(&Sha256::digest(bytes)).map_err(self.fail("write to"))?;
        entry
            .persist(self.dir.join(key))
            .map_err(|e| self.fail("rename in")(e.error))?;
        Ok(())
    }

    /// Another name for an entry that is there. It only saves time, so that it is no error where the file system refuses.
    pub fn add_name(&self, name: &str, key: &str) {
        let name = self.dir.join(name);
        // One that is there is of a damaged entry.
        let _ = fs::remove_file(&name);
        let _ = fs::hard_link(self.dir.join(key), name);
    }

    /// A private copy of the entry, if it is there and whole. Loading a copy of its own keeps a module's globals apart from
    /// those of the same source loaded twice.
    pub fn find(&self, key: &str) -> Result<Option<TempPath>, GpuError> {
        self.bytes(key).map(|object| self.copy(&object)).transpose()
    }

    /// Adds the object built at `built` as entry `key`; a private copy of it.
    pub fn store(&self, key: &str, built: &Path) -> Result<TempPath, GpuError> {
        let object = fs::read(built).map_err(self.fail("read a compiled kernel in"))?;
        self.store_bytes(key, &object)?;
        self.copy(&object)
    }

    /// A file of its own for `object`, which is removed when it is dropped.
    pub fn copy(&self, object: &[u8]) -> Result<TempPath, GpuError> {
        let mut named = Builder::new();
        named.prefix(LOAD).suffix(".so");
        // Nothing but the user may write to the file, wherever it lies.
        let file = named
            .tempfile_in(&self.dir)
            .or_else(|error| match is_read_only(&error) {
                true => named.tempfile(),
                false => Err(error),
            });
        let mut file = file.map_err(self.fail("write to"))?;
        file.write_all(object).map_err(self.fail("write to"))?;
        Ok(file.into_temp_path())
    }
}

/// Whether it lies on a file system that nothing writes to, as that of an image: what is in it is used all the same.
fn is_read_only(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Why a file that its user names cannot be loaded as code that runs as the user: others may have written it.
///
/// # Errors
/// What is wrong with the file or with a folder on its path, and how to fix it.
pub fn check_code(path: &Path) -> Result<(), String> {
    let whole = path.canonicalize().map_err(|e| e.to_string())?;
    let look = |at: &Path| fs::metadata(at).map_err(|e| format!("{}: {e}", at.display()));
    let known = look(&whole)?;
    let mode = known.mode() & 0o7777;
    if known.uid() != 0 && known.uid() != user() {
        let owner = known.uid();
        return Err(format!(
            "it belongs to the user {owner}, who may put other code there: load a copy of your own"
        ));
    }
    if mode & 0o002 != 0 {
        return Err(format!(
            "every user may put other code there (mode {mode:o}): chmod o-w {}",
            whole.display()
        ));
    }
    for folder in whole.ancestors().skip(1) {
        stays_in_place(&look(folder)?).map_err(|why| format!("in its folder {} {why}", folder.display()))?;
    }
    Ok(())
}

/// This process' effective user.
fn user() -> u32 {
    // SAFETY: it has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

/// Why a folder cannot hold code that runs as this user.
fn check(folder: &Path, by: impl Fn(&Metadata) -> Result<(), String>) -> Result<(), GpuError> {
    let known = fs::metadata(folder).map_err(|e| e.to_string());
    known.and_then(|known| by(&known)).map_err(|why| {
        let what = "trust the kernel cache, whose kernels run as this user, in";
        GpuError::io(
            what,
            Some(folder),
            format!("{why}; or set GPUVM_CACHE_DIR to a folder of your own"),
        )
    })
}

/// Nothing but the user, and root, may write to it.
fn only_ours(known: &Metadata) -> Result<(), String> {
    match (known.uid(), known.mode() & 0o022) {
        (0, 0) => Ok(()),
        (owner, 0) if owner == user() => Ok(()),
        (owner, 0) => Err(format!("it belongs to the user {owner}")),
        _ => Err(format!(
            "others may write to it (mode {:o}): chmod go-w",
            known.mode() & 0o7777
        )),
    }
}

/// Not everybody may replace what is in it: they may not write to it, or remove only what is theirs (the sticky bit).
fn stays_in_place(known: &Metadata) -> Result<(), String> {
    match known.mode() & 0o1002 {
        0o0002 => Err(format!(
            "every user may replace its contents (mode {:o}): chmod o-w",
            known.mode() & 0o7777
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::time::SystemTime;

    use super::{Cache, STALE_AGE};

    #[test]
    fn code_that_others_may_replace_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("kernels.cubin");
        std::fs::write(&file, "code").expect("a file");
        let mode = |at: &std::path::Path, mode| {
            std::fs::set_permissions(at, Permissions::from_mode(mode)).expect("it is ours");
        };
        // Of a sticky folder, as /tmp is, and of a group.
        for (of_folder, of_file) in [(0o700, 0o644), (0o755, 0o664), (0o1777, 0o600)] {
            mode(dir.path(), of_folder);
            mode(&file, of_file);
            assert_eq!(super::check_code(&file), Ok(()));
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        mode(&file, 0o646);
        for name in [&file, &link] {
            let why = super::check_code(name).expect_err("everybody may write it");
            assert!(why.contains("mode 646") && why.contains("chmod o-w"), "{why}");
        }
        mode(&file, 0o600);
        mode(dir.path(), 0o777);
        let why = super::check_code(&file).expect_err("everybody may replace it");
        assert!(why.contains("in its folder") && why.contains("chmod o-w"), "{why}");
        mode(dir.path(), 0o700);
        // Root alone may give files away.
        if chown(&file, Some(12_345), None).is_ok() {
            let why = super::check_code(&file).expect_err("another user's");
            assert!(why.contains("the user 12345"), "{why}");
        }
        assert!(super::check_code(&dir.path().join("none")).is_err());
    }

    #[test]
    fn what_ended_processes_left_is_removed_once_it_is_old() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        for name in ["gpuvm-build-old", "gpuvm-build-new", "build-old"] {
            std::fs::create_dir(path(name)).expect("a folder");
            std::fs::write(path(name).join("source.cu"), "text").expect("a file");
        }
        for name in ["gpuvm-load-old.so", "gpuvm-entry-new", "0123-old"] {
            std::fs::write(path(name), "text").expect("a file");
        }
        let then = SystemTime::now() - STALE_AGE * 2;
        for name in ["gpuvm-build-old", "gpuvm-load-old.so", "0123-old", "build-old"] {
            let aged = File::open(path(name)).and_then(|file| file.set_modified(then));
            aged.expect("the age is set");
        }
        Cache::open(Some(dir.path().into())).expect("a cache");
        for (name, stays) in [
            ("gpuvm-build-old", false),
            ("gpuvm-load-old.so", false),
            ("gpuvm-build-new", true),
            ("gpuvm-entry-new", true),
            // An entry, which is for ever, and somebody else's folder.
            ("0123-old", true),
            ("build-old", true),
        ] {
            assert_eq!(path(name).exists(), stays, "{name}");
        }
    }

    #[test]
    fn a_damaged_entry_is_no_entry() {
        let dir = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(Some(dir.path().into())).expect("a cache");
        assert_eq!(cache.bytes("k"), None);
        cache.store_bytes("k", b"kernel").expect("it is stored");
        assert_eq!(cache.bytes("k").as_deref(), Some(&b"kernel"[..]));
        let path = dir.path().join("k");
        let mut whole = std::fs::read(&path).expect("the entry");
        whole[2] ^= 1;
        for damaged in [&whole[..], &whole[..7], &[]] {
            std::fs::write(&path, damaged).expect("the entry is damaged");
            assert_eq!(cache.bytes("k"), None);
        }
        cache.store_bytes("k", b"kernel").expect("it is replaced");
        assert!(cache.bytes("k").is_some());
    }

    #[test]
    fn what_others_may_write_is_not_trusted() {
        let scratch = tempfile::tempdir().expect("a folder");
        let (above, folder) = (scratch.path().join("above"), scratch.path().join("above/cache"));
        let open = || Cache::open(Some(folder.clone())).map_err(|error| error.to_string());
        let mode = |path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("the mode is set");
        let cache = open().expect("a cache");
        let made = std::fs::metadata(&folder).expect("the folder").permissions().mode();
        assert_eq!(made & 0o777, 0o700);
        for (path, bits, said) in [
            (&folder, 0o770, "others may write to it (mode 770): chmod go-w"),
            (&folder, 0o702, "others may write to it (mode 702): chmod go-w"),
            (
                &above,
                0o707,
                "every user may replace its contents (mode 707): chmod o-w",
            ),
        ] {
            mode(path, bits);
            let error = open().expect_err("it is not trusted");
            assert!(
                error.contains(said) && error.contains(&*path.to_string_lossy()),
                "{error}"
            );
            mode(path, 0o755);
        }
        mode(&above, 0o1777);
        open().expect("who may write may not replace it");
        cache.store_bytes("k", b"kernel").expect("it is stored");
        mode(&folder.join("k"), 0o666);
        assert_eq!(cache.bytes("k"), None, "an entry that others may write");
        cache.store_bytes("k", b"kernel").expect("it is replaced");
        assert!(cache.bytes("k").is_some());
        // Only root gives files away.
        if super::user() == 0 {
            chown(folder.join("k"), Some(65534), None).expect("it is given away");
            assert_eq!(cache.bytes("k"), None, "an entry of another user");
            chown(&folder, Some(65534), None).expect("it is given away");
            let error = open().expect_err("it is not trusted");
            assert!(error.contains("it belongs to the user 65534"), "{error}");
        }
    }
}
