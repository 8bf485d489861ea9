//! What the repository's own commands do: installs the C library, so that tests can, too; packs the crates that are published.

mod link;
mod package;

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

pub use link::symbols;
pub use package::{Packed, install_command, package};

/// What could not be done, and why.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file or a folder.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// What was done.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A program that could not be started.
    #[error("cannot run {program}; install it (Debian, Ubuntu: apt-get install {package})")]
    Program {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A program that failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// The program.
        program: &'static str,
        /// What it wrote.
        output: String,
    },
    /// A build without the library.
    #[error("cargo built gpuvm-capi and named no static library; run cargo clean -p gpuvm-capi and try again")]
    NoLibrary,
    /// An answer of cargo that is none.
    #[error("cannot understand what cargo metadata answered")]
    Metadata(#[source] serde_json::Error),
    /// Packages that nobody could build or find.
    #[error("packages are incomplete:\n  {}", .0.join("\n  "))]
    Incomplete(Vec<String>),
}

/// Says what was done with a path when it failed.
trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, TaskError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, TaskError> {
        self.map_err(|source| TaskError::File {
            doing,
            path: path.to_owned(),
            source,
        })
    }
}

/// The version of everything in the repository.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The repository's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The cargo that runs this, or the one on the path.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Installs the C library below `prefix`: `lib/libgpuvm.so`, which is linked from the static library `archive` of gpuvm-capi, the headers, and
/// what CMake and pkg-config read. All of it may be moved together afterwards.
///
/// # Errors
/// [`TaskError`].
pub fn install(archive: &Path, prefix: &Path) -> Result<(), TaskError> {
    let root = root();
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    make_dir(&lib)?;
    let named = lib.join(format!("libgpuvm.so.{VERSION}"));
    link::shared_library(archive, &root.join("capi/gpuvm.map"), &named)?;
    let soname = link::soname();
    link_to(&lib.join(&soname), &format!("libgpuvm.so.{VERSION}"))?;
    link_to(&lib.join("libgpuvm.so"), &soname)?;

    copy_all(&root.join("gpu_kernels/include"), &include)?;
    copy_all(&root.join("capi/include"), &include)?;

    let templates = root.join("capi/install");
    let cmake = lib.join("cmake/gpuvm");
    for (name, folder) in [
        ("gpuvmConfig.cmake", &cmake),
        ("gpuvmConfigVersion.cmake", &cmake),
        ("gpuvm.pc", &lib.join("pkgconfig")),
    ] {
        make_dir(folder)?;
        let template = templates.join(format!("{name}.in"));
        let text = fs::read_to_string(&template).doing("read", &template)?;
        let text = text.replace("@VERSION@", VERSION).replace("@SONAME@", &soname);
        let to = folder.join(name);
        fs::write(&to, text).doing("write", &to)?;
    }
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), TaskError> {
    fs::create_dir_all(path).doing("make", path)
}

/// A link in the place of what was there.
fn link_to(path: &Path, target: &str) -> Result<(), TaskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing("replace", path),
        _ => std::os::unix::fs::symlink(target, path).doing("link", path),
    }
}

/// Copies all files of a folder and of those in it.
fn copy_all(from: &Path, to: &Path) -> Result<(), TaskError> {
    make_dir(to)?;
    for entry in fs::read_dir(from).doing("read", from)? {
        let entry = entry.doing("read", from)?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_all(&path, &place)?,
            false => drop(fs::copy(&path, &place).doing("copy", &path)?),
        }
    }
    Ok(())
}
