//! What the repository's own commands do: installs the C library and makes its header, so that tests can, too; packs the crates that are published.

mod header;
mod install;
mod link;
mod package;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

pub use header::header;
pub use install::install;
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
    /// Packages that could not be built or found.
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
