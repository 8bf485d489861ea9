//! What goes wrong.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a step, a check or a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} has {length} bytes instead of {expected}", path.display())]
    Length { path: PathBuf, length: u64, expected: u64 },
    #[error("LOST: {pages} pages of {}; page {page} holds {found} and version {expected} of it was flushed", path.display())]
    Lost {
        path: PathBuf,
        pages: u64,
        page: u64,
        expected: u32,
        found: String,
    },
    #[error("{words} words are wrong among pages {first} to {end}")]
    Wrong { words: u64, first: u64, end: u64 },
    #[error("`{0}` is no step")]
    Step(String),
    #[error("{} is no log of dm-log-writes: {why}", path.display())]
    Log { path: PathBuf, why: String },
    #[error(transparent)]
    Gpuvm(#[from] gpuvm::Error),
}

impl Error {
    pub fn file(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            what,
            path: path.clone(),
            source,
        }
    }
}

/// An error and its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
