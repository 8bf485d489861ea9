//! What can go wrong with a file behind the tier.

use std::{io, path::PathBuf, sync::Arc};

/// A file, or the tier before it, cannot do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// A block cannot be read. Nothing of the file is lost; the next request reads it again.
    #[error("cannot read {bytes} bytes at {offset} of {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// Blocks cannot be written. They stay in memory, to be written again by the next flush.
    #[error("cannot write {bytes} bytes at {offset} of {}; they stay in memory: fix the cause, and flush again", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The system does not say that what was written is stored.
    #[error("cannot sync {} to storage; what was written since the last flush may not survive a loss of power: flush again", path.display())]
    Sync {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The file was made shorter after it was opened.
    #[error(
        "{} has {now} bytes and had {before} when it was opened; a mapped file must not become shorter: restore it, and try again",
        path.display()
    )]
    Shrank {
        /// The file.
        path: PathBuf,
        /// Bytes when it was opened.
        before: u64,
        /// Bytes now, or up to where it could be read.
        now: u64,
    },
    /// The file has no name any more: what is written to it goes with the process.
    #[error("{} was deleted after it was opened; copy its contents elsewhere before the process ends", path.display())]
    Deleted {
        /// Where it was.
        path: PathBuf,
    },
    /// The cache is smaller than what requests need at one time.
    #[error("{bytes} bytes are {slots} blocks of {block} bytes; give at least {least} blocks")]
    TooSmall {
        /// Bytes that were given.
        bytes: u64,
        /// Bytes of a block.
        block: u64,
        /// Blocks in them.
        slots: u64,
        /// Blocks that are needed.
        least: u64,
    },
    /// The memory is not available.
    #[error("cannot allocate {bytes} bytes of memory")]
    Memory {
        /// Length in bytes.
        bytes: u64,
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The device whose memory holds blocks of the file does not give or take them.
    #[error("cannot reach the GPU's memory that holds blocks of {}", path.display())]
    Device {
        /// The file.
        path: PathBuf,
        /// The device's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// io_uring was asked for by name and is not available.
    #[error("io_uring is not available: leave the engine at its default, or allow this process to use io_uring")]
    Ring {
        /// The system's reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// The span asked for does not lie in the file.
    #[error("bytes {offset} to {end} are beyond the end of {}, which has {length} bytes", path.display())]
    OutOfBounds {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Byte after the last one.
        end: u64,
        /// The file's length in bytes.
        length: u64,
    },
    /// The file was opened for reading.
    #[error("{} was opened for reading and cannot be written", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
}
