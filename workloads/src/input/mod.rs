//! What readers of graphs, tables and vectors have in common: names of inputs, files and their errors, lines of text, and memory.

mod lines;
mod name;

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpuvm_files::{KIND_BYTES, open_regular, other_kind};

pub use gpuvm_files::MemoryLimit;
pub(crate) use lines::{LINE_LIMIT_BYTES, Lines};
pub(crate) use name::{Number, numbers};
pub use name::{SpecError, named};

/// What a loading input is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a file; the unit of progress is bytes of the file as stored.
    Read,
    /// Drawing random edges; the unit is edges.
    Generate,
    /// Sorting edges into rows; the unit is edges.
    Build,
    /// Looking whether the rows of a binary file are in order; the unit is edges.
    Check,
    /// Writing a file; the unit is bytes.
    Write,
}

/// How far a loading input has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The work under way.
    pub stage: Stage,
    /// Units done, never more than `total` unless `total` is 0.
    pub done: u64,
    /// Units in all, 0 when unknown (a pipe).
    pub total: u64,
}

/// Called with a loading input's progress, on the thread that loads, at most some times a second.
pub type ProgressFn<'a> = dyn FnMut(Progress) + 'a;

/// The kind of error in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFault {
    /// It cannot be opened, or is not a regular file where one is needed.
    Open,
    /// The system failed in the middle of it.
    Read,
    /// It holds nothing of what it should hold.
    Empty,
    /// It ends too early.
    Truncated,
    /// Its compressed data or its checksum is wrong.
    Damaged,
    /// Its contents cannot be understood, or contradict each other.
    Malformed,
    /// It is of a kind that is not read.
    Unsupported,
    /// It holds more than is supported.
    TooLarge,
}

/// Where in a file the error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere in particular.
    File,
    /// A line of text, from 1.
    Line(u64),
    /// A byte, from 0.
    Byte(u64),
    /// A vector, from 0.
    Vector {
        /// Its number.
        vector: u64,
        /// Its first byte, from 0.
        byte: u64,
    },
    /// A row of a Parquet file; both numbers from 0, as Parquet's tools have them.
    Row {
        /// The row group.
        group: usize,
        /// The row within the group.
        row: usize,
    },
}

impl fmt::Display for Place {
    /// What follows the file's name and a colon in a message.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => Ok(()),
            Place::Line(line) => write!(out, "{line}:"),
            Place::Byte(byte) => write!(out, " byte {byte}:"),
            Place::Vector { vector, byte } => write!(out, " vector {vector} (byte {byte}):"),
            Place::Row { group, row } => write!(out, " row group {group}, row {row}:"),
        }
    }
}

/// A file that could not be read.
#[derive(Debug)]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The kind of error.
    pub fault: FileFault,
    /// Where it is.
    pub place: Place,
    /// What is wrong, and what to do.
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl FileError {
    pub(crate) fn new(path: &Path, fault: FileFault, place: Place, what: impl Into<String>) -> FileError {
        FileError {
            path: path.to_owned(),
            fault,
            place,
            what: what.into(),
            source: None,
        }
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> FileError {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            FileFault::Open => out.write_str(&self.what),
            _ => write!(out, "{}:{} {}", self.path.display(), self.place, self.what),
        }
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// How messages speak of the files of a reader.
#[derive(Debug)]
pub(crate) struct FileKind {
    /// Such a file.
    pub what: &'static str,
    /// What a user may name instead.
    pub give: &'static str,
    /// What such a file is, where it is no text or has a line that is too long.
    pub is: &'static str,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub path: &'a Path,
    pub file: File,
    /// Its length when it was opened, in bytes; 0 for a pipe.
    pub bytes: u64,
    kind: &'static FileKind,
}

impl<'a> Input<'a> {
    /// Opens a regular file. Pipes and the like have no length, and cannot be read at several places.
    pub(crate) fn open(path: &'a Path, kind: &'static FileKind) -> Result<Input<'a>, FileError> {
        Self::opened(path, kind, open_regular(path, File::options().read(true)))
    }

    /// Opens a file or a pipe, whose other end is waited for.
    pub(crate) fn open_stream(path: &'a Path, kind: &'static FileKind) -> Result<Input<'a>, FileError> {
        Self::opened(path, kind, File::open(path))
    }

    fn opened(path: &'a Path, kind: &'static FileKind, file: io::Result<File>) -> Result<Input<'a>, FileError> {
        let about = file.and_then(|file| Ok((file.metadata()?, file)));
        let about = about.and_then(|(about, file)| match about.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok((about.len(), file)),
        });
        let (bytes, file) = about.map_err(|source| {
            let what = format!("cannot open {} {}; {}", kind.what, path.display(), kind.give);
            FileError::new(path, FileFault::Open, Place::File, what).caused_by(source)
        })?;
        let input = Input {
            path,
            file,
            bytes,
            kind,
        };
        match other_kind(&input.begin::<KIND_BYTES>()) {
            Some(found) => Err(input.error(FileFault::Unsupported, Place::File, found)),
            None => Ok(input),
        }
    }

    /// The first bytes, fewer where the file is shorter. Of a pipe nothing is read.
    pub(crate) fn begin<const N: usize>(&self) -> Vec<u8> {
        let mut bytes = [0; N];
        // Those that cannot be read are told by their readers.
        let length = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        bytes[..length].to_vec()
    }

    /// Fills `bytes` from byte `at` on.
    pub(crate) fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<(), FileError> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|source| {
            self.error(FileFault::Read, Place::Byte(at), "cannot read on")
                .caused_by(source)
        })
    }

    pub(crate) fn error(&self, fault: FileFault, place: Place, what: impl Into<String>) -> FileError {
        FileError::new(self.path, fault, place, what)
    }
}

/// `word` cut to a length that fits into a message. Control characters are escaped: the file may come from anywhere.
pub(crate) fn shown(word: &str) -> String {
    const LIMIT: usize = 40;
    let mut text = String::from("'");
    for letter in word.chars().take(LIMIT) {
        match letter {
            '\'' | '"' | '\\' => text.push(letter),
            _ => text.extend(letter.escape_debug()),
        }
    }
    if word.chars().nth(LIMIT).is_some() {
        text.push_str("...");
    }
    text.push('\'');
    text
}

/// An input that the machine cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the input needs {needed_bytes} bytes of memory, {} {available_bytes} available; give a smaller one{}",
    .limit.as_ref().map_or_else(|| "this machine has".to_owned(), |limit| format!("and {limit} leaves")),
    if .limit.is_some() { ", or raise that limit" } else { "" }
)]
pub struct MemoryError {
    /// Bytes needed.
    pub needed_bytes: u64,
    /// Bytes that are left.
    pub available_bytes: u64,
    /// The limit of a control group that leaves no more; none where the machine has no more.
    pub limit: Option<MemoryLimit>,
}

/// Fails where the machine has less memory available, by `/proc/meminfo`, or a limit of the process's control groups leaves less.
/// Linux grants more than there is and kills the process later; this says so before.
pub(crate) fn require_memory(needed_bytes: u64) -> Result<(), MemoryError> {
    match gpuvm_files::available_memory() {
        Some((available_bytes, limit)) if needed_bytes > available_bytes => Err(MemoryError {
            needed_bytes,
            available_bytes,
            limit,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_is_refused() {
        assert!(require_memory(1).is_ok());
        let refusal = require_memory(u64::MAX).unwrap_err();
        assert_eq!(refusal.needed_bytes, u64::MAX);
    }
}
