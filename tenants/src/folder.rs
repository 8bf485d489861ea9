//! The folder in which the tenants of a user find each other.

use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Names the folder, in place of the user's runtime folder.
pub const FOLDER_VARIABLE: &str = "GPUVM_TENANTS_DIR";

/// Permissions that would let other users change a folder.
const OTHERS_WRITE: u32 = 0o022;

/// Which GPU tenants share: its UUID, or for a simulated GPU a name. Letters, digits, `.`, `_` and `-`, 64 at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuKey(String);

impl FromStr for GpuKey {
    type Err = FolderError;

    fn from_str(text: &str) -> Result<Self, FolderError> {
        const LENGTH_MAX: usize = 64;
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        match plain && !text.starts_with('.') && (1..=LENGTH_MAX).contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(FolderError::Key { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for GpuKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where the tenants of one user find each other. It has a folder for each GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at `path`. It is created where it is missing, and has to be the user's alone. Its parent has to be there.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The folder of this process's user: `$GPUVM_TENANTS_DIR`; else `gpuvm` in `$XDG_RUNTIME_DIR` or in `/run/user/UID`, whichever
    /// is there and belongs to the user; else `gpuvm-UID` in the folder for temporary files.
    pub fn of_user() -> Self {
        Self::chosen(|name| std::env::var_os(name), std::env::temp_dir())
    }

    fn chosen(get: impl Fn(&str) -> Option<OsString>, temporary: PathBuf) -> Self {
        let get = |name| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = get(FOLDER_VARIABLE) {
            // The program may change its working directory.
            let path = std::path::absolute(&path).unwrap_or(path);
            return Self { path };
        }
        let user = geteuid().as_raw();
        let usual = Path::new("/run/user").join(user.to_string());
        // A program that was started with another user's environment must not use that user's folder.
        let mut runtime = get("XDG_RUNTIME_DIR").into_iter().chain([usual]);
        let runtime = runtime.find(|path| path.is_absolute() && open_own(path).is_ok());
        Self {
            path: runtime.map_or_else(
                || temporary.join(format!("gpuvm-{user}")),
                |runtime| runtime.join("gpuvm"),
            ),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GPUs that have, or had, tenants. None where there is no folder yet.
    ///
    /// # Errors
    /// A folder that cannot be read, or is not the user's alone.
    pub fn gpus(&self) -> Result<Vec<GpuKey>, FolderError> {
        let Some(folder) = present(open_own(&self.path))? else {
            return Ok(Vec::new());
        };
        // What else somebody keeps there is no GPU's.
        let is_file = |name: &String| {
            let found = std::fs::symlink_metadata(through(&folder).join(name));
            found.is_ok_and(|found| found.is_file())
        };
        let mut keys: Vec<GpuKey> = names(&folder, &self.path)?
            .iter()
            .filter(|name| !is_file(name))
            .filter_map(|name| name.parse().ok())
            .collect();
        keys.sort();
        Ok(keys)
    }

    /// The folder of a GPU, if it is there.
    pub(crate) fn open(&self, gpu: &GpuKey) -> Result<Option<Arc<GpuFolder>>, FolderError> {
        let Some(_parent) = present(open_own(&self.path))? else {
            return Ok(None);
        };
        let path = self.path.join(&gpu.0);
        let folder = present(open_own(&path))?;
        Ok(folder.map(|open| Arc::new(GpuFolder { open, path })))
    }

    /// The folder of a GPU, created where it is missing.
    pub(crate) fn create(&self, gpu: &GpuKey) -> Result<Arc<GpuFolder>, FolderError> {
        let path = self.path.join(&gpu.0);
        for path in [&self.path, &path] {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(FolderError::create(path, source));
                }
                _ => drop(open_own(path)?),
            }
        }
        let open = open_own(&path)?;
        Ok(Arc::new(GpuFolder { open, path }))
    }
}

/// The open folder of one GPU. Files in it are reached through the open folder, so that they are in this one whatever becomes of
/// its name, and so that the name of a socket is short enough for the kernel however long the folder's is.
#[derive(Debug)]
pub(crate) struct GpuFolder {
    open: File,
    path: PathBuf,
}

impl GpuFolder {
    /// How a file in it is reached.
    pub(crate) fn reach(&self, name: impl AsRef<Path>) -> PathBuf {
        through(&self.open).join(name)
    }

    /// What people call the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the files in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, FolderError> {
        names(&self.open, &self.path)
    }
}

fn through(folder: &File) -> PathBuf {
    format!("/proc/self/fd/{}", folder.as_raw_fd()).into()
}

fn names(folder: &File, path: &Path) -> Result<Vec<String>, FolderError> {
    let refuse = |source| FolderError::Io {
        what: "read",
        path: path.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(through(folder)).map_err(refuse)? {
        // Names of ours are plain.
        names.extend(entry.map_err(refuse)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Opens a folder that belongs to this process's user, and that others cannot change.
fn open_own(path: &Path) -> Result<File, FolderError> {
    let path_owned = || path.to_owned();
    // Not followed: a user who may place a link could lead here into a folder that the user uses for something else.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let folder = match opened {
        Ok(folder) => folder,
        Err(source) => {
            let known = std::fs::symlink_metadata(path).ok();
            return Err(match known.map(|known| known.file_type()) {
                Some(kind) if kind.is_symlink() => FolderError::Link { path: path_owned() },
                Some(kind) if !kind.is_dir() => FolderError::NoFolder { path: path_owned() },
                _ => FolderError::Io {
                    what: "open",
                    path: path_owned(),
                    source,
                },
            });
        }
    };
    let known = folder.metadata().map_err(|source| FolderError::Io {
        what: "look at",
        path: path_owned(),
        source,
    })?;
    let user = geteuid().as_raw();
    if known.uid() != user {
        return Err(FolderError::OtherOwner {
            path: path_owned(),
            owner: known.uid(),
            user,
        });
    }
    if known.mode() & OTHERS_WRITE != 0 {
        return Err(FolderError::OthersWrite {
            path: path_owned(),
            mode: known.mode() & 0o7777,
        });
    }
    Ok(folder)
}

/// Nothing where there is no such folder.
fn present(opened: Result<File, FolderError>) -> Result<Option<File>, FolderError> {
    match opened {
        Ok(folder) => Ok(Some(folder)),
        Err(FolderError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The registry's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A GPU's key that cannot name a folder.
    #[error(
        "invalid GPU key '{text}': give its UUID, or a name of up to 64 letters, digits, '.', '_' and '-' that does not begin with '.'"
    )]
    Key {
        /// As given.
        text: String,
    },
    /// A link in the place of the folder.
    #[error("{} is a symbolic link, which gpuvm does not follow there; remove it, or name another folder in {FOLDER_VARIABLE}", path.display())]
    Link {
        /// The folder's name.
        path: PathBuf,
    },
    /// A file in the place of the folder.
    #[error("{} is not a folder; name another one in {FOLDER_VARIABLE}", path.display())]
    NoFolder {
        /// The folder's name.
        path: PathBuf,
    },
    /// The folder is somebody else's.
    #[error(
        "the folder {} belongs to the user {owner}, and this process runs as {user}; name a folder of your own in {FOLDER_VARIABLE}",
        path.display()
    )]
    OtherOwner {
        /// The folder.
        path: PathBuf,
        /// The number of its owner.
        owner: u32,
        /// The number of this process's user.
        user: u32,
    },
    /// Others may change the folder.
    #[error("other users may write into the folder {} (mode {mode:o}); run `chmod 700 {}`", path.display(), path.display())]
    OthersWrite {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Nothing can be created there.
    #[error("cannot create {}{}", path.display(), create_hint(.source))]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The folder cannot be read.
    #[error("cannot {what} the folder {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl FolderError {
    pub(crate) fn create(path: &Path, source: io::Error) -> Self {
        Self::Create {
            path: path.to_owned(),
            source,
        }
    }
}

fn create_hint(source: &io::Error) -> String {
    let hint = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "its file system is full: free some of it",
        io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only",
        io::ErrorKind::PermissionDenied => "this process may not write there",
        io::ErrorKind::NotFound => "the folder above it is missing",
        _ => return String::new(),
    };
    format!("; {hint}, or name another folder in {FOLDER_VARIABLE}")
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn key() -> GpuKey {
        "sim".parse().unwrap()
    }

    #[test]
    fn keys_are_plain_names() {
        for good in [
            "GPU-8f6d1c6e-2a4b-11ee-be56-0242ac120002",
            "sim",
            "a.b_c-d",
            &"x".repeat(64),
        ] {
            assert_eq!(good.parse::<GpuKey>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            let error = bad.parse::<GpuKey>().unwrap_err();
            assert!(error.to_string().contains("invalid GPU key"), "{error}");
        }
    }

    #[test]
    fn the_environment_chooses_the_folder() {
        let own = tempfile::tempdir().unwrap();
        std::fs::set_permissions(own.path(), Permissions::from_mode(0o700)).unwrap();
        let open = own.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let chosen = |variables: &[(&str, &Path)]| {
            let get = |wanted: &str| {
                let found = variables.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| value.as_os_str().to_owned())
            };
            Folder::chosen(get, "/temporary".into()).path
        };
        assert_eq!(chosen(&[("XDG_RUNTIME_DIR", own.path())]), own.path().join("gpuvm"));
        let both = [("XDG_RUNTIME_DIR", own.path()), (FOLDER_VARIABLE, Path::new("/x"))];
        assert_eq!(chosen(&both), Path::new("/x"));
        // Where it cannot be used, the next one is taken.
        let otherwise = chosen(&[]);
        for useless in [Path::new(""), Path::new("relative"), &open, &own.path().join("missing")] {
            assert_eq!(chosen(&[("XDG_RUNTIME_DIR", useless)]), otherwise, "{useless:?}");
        }
        let user = geteuid().as_raw();
        let last = [format!("/run/user/{user}/gpuvm"), format!("/temporary/gpuvm-{user}")];
        assert!(last.iter().any(|last| otherwise == Path::new(last)), "{otherwise:?}");
    }

    #[test]
    fn folders_are_created_for_the_user_alone() {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::at(above.path().join("registry"));
        assert_eq!(folder.gpus().unwrap(), []);
        assert!(folder.open(&key()).unwrap().is_none());
        let gpu = folder.create(&key()).unwrap();
        for path in [folder.path(), gpu.path()] {
            assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o700, "{path:?}");
        }
        assert_eq!(folder.gpus().unwrap(), [key()]);
        assert!(folder.open(&key()).unwrap().is_some());
        // It may be there already.
        folder.create(&key()).unwrap();
    }

    #[test]
    fn what_is_not_the_users_alone_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let at = |name: &str| Folder::at(above.path().join(name));
        let target = above.path().join("target");
        std::fs::create_dir(&target).unwrap();
        symlink(&target, above.path().join("link")).unwrap();
        symlink("nowhere", above.path().join("dangling")).unwrap();
        std::fs::write(above.path().join("file"), "").unwrap();
        std::fs::create_dir(above.path().join("open")).unwrap();
        std::fs::set_permissions(above.path().join("open"), Permissions::from_mode(0o770)).unwrap();
        for (name, why) in [
            ("link", "is a symbolic link"),
            ("dangling", "is a symbolic link"),
            ("file", "is not a folder"),
            ("open", "other users may write into the folder"),
            ("missing/registry", "the folder above it is missing"),
        ] {
            let error = at(name).create(&key()).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(name), "{error}");
        }
        for name in ["link", "file", "open"] {
            assert!(at(name).open(&key()).is_err() && at(name).gpus().is_err(), "{name}");
        }
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0, "a link was followed");
        // The same holds for the folder of a GPU.
        let folder = at("registry");
        folder.create(&"other".parse().unwrap()).unwrap();
        symlink(&target, folder.path().join("sim")).unwrap();
        assert!(matches!(folder.create(&key()), Err(FolderError::Link { .. })));
        assert!(matches!(folder.open(&key()), Err(FolderError::Link { .. })));
    }

    #[test]
    fn what_is_no_folder_is_no_gpus() {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::at(above.path().join("registry"));
        folder.create(&key()).unwrap();
        std::fs::write(folder.path().join("notes"), "").unwrap();
        assert_eq!(folder.gpus().unwrap(), [key()]);
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::at(above.path().join("registry"));
        std::fs::create_dir(folder.path()).unwrap();
        if let Err(error) = std::os::unix::fs::chown(folder.path(), Some(12345), None) {
            // Only root gives files away, where it may. Root's folder is foreign to everybody else.
            eprintln!("not given away ({error}): the folder / stands for one of another user, if it is");
            let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/").unwrap());
            if owner != 0 || rustix::process::geteuid().is_root() {
                return;
            }
            assert!(matches!(
                open_own(Path::new("/")),
                Err(FolderError::OtherOwner { owner: 0, .. })
            ));
            return;
        }
        let error = folder.create(&key()).unwrap_err();
        assert!(matches!(error, FolderError::OtherOwner { owner: 12345, .. }), "{error}");
        assert!(error.to_string().contains("belongs to the user 12345"), "{error}");
        assert!(folder.open(&key()).is_err());
    }
}
