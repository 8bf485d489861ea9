//! What holds a file's bytes: the system's file, or what a test puts in its place.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

use crate::open_regular;

/// Bytes that can be read and written at any place. Calls may come from any thread, several at a time.
pub trait Storage: Send + Sync {
    /// Reads at `offset` as much as is there; fewer bytes than `out` has where the file ends.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Returns when all that was written is stored where a loss of power leaves it.
    ///
    /// # Errors
    /// The system's: what was written since the last call may be lost then. A later call that returns `Ok` has stored that, too.
    fn sync(&self) -> io::Result<()>;

    /// How long it is, and whether it has a name still.
    ///
    /// # Errors
    /// The system's.
    fn look(&self) -> io::Result<Look>;

    /// The descriptor by which io_uring reaches aligned blocks at `offset`, where it may.
    fn descriptor(&self, offset: u64, bytes: u64) -> Option<RawFd>;
}

/// What a look at a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Bytes.
    pub length: u64,
    /// It has no name any more.
    pub deleted: bool,
    /// Which file it is: device and number. Two names of one file have the same.
    pub identity: (u64, u64),
}

/// A file of the system.
///
/// Whole blocks go by O_DIRECT, past the page cache, where the file system takes it. The last block, which may end within a block
/// of the device, always goes by way of the page cache, so that no byte is in both. What goes that way is written through: a page whose
/// write fails behind our back is clean to the system, and the next `fsync` says `Ok` without it.
pub(crate) struct SystemFile {
    cached: File,
    /// None where the file system has no O_DIRECT.
    direct: Option<File>,
    /// Bytes from here on are the last block's.
    tail: u64,
}

/// What O_DIRECT asks offsets, lengths and addresses to be multiples of.
pub(crate) const ALIGNMENT: u64 = 4096;

impl SystemFile {
    pub fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let options = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(writable).custom_flags(flags | libc::O_CLOEXEC);
            options
        };
        let cached = open_regular(path, &options(if writable { libc::O_DSYNC } else { 0 }))?;
        let direct = match options(libc::O_DIRECT).open(path) {
            // Between the two calls the name may have come to mean another file.
            Ok(file) if same(&file, &cached)? => Some(file),
            Ok(_) => return Err(io::Error::other("it was replaced while it was opened")),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no O_DIRECT there: it is read through the system's page cache");
                None
            }
        };
        let tail = cached.metadata()?.len() / ALIGNMENT * ALIGNMENT;
        Ok(Self { cached, direct, tail })
    }

    /// The file by which these bytes go.
    fn way(&self, offset: u64, bytes: u64, address: u64) -> &File {
        match &self.direct {
            Some(direct) if self.is_direct(offset, bytes) && address.is_multiple_of(ALIGNMENT) => direct,
            _ => &self.cached,
        }
    }

    fn is_direct(&self, offset: u64, bytes: u64) -> bool {
        let aligned = offset.is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT);
        self.direct.is_some() && aligned && offset + bytes <= self.tail
    }
}

/// Whether both are one file.
fn same(a: &File, b: &File) -> io::Result<bool> {
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

impl Storage for SystemFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let file = self.way(offset, out.len() as u64, out.as_ptr().addr() as u64);
        let mut done = 0;
        while done < out.len() {
            match file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                // By O_DIRECT, behind the end of a file that has become shorter.
                Err(_) if !(done as u64).is_multiple_of(ALIGNMENT) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.way(offset, data.len() as u64, data.as_ptr().addr() as u64)
            .write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // Of the file, not of the descriptor: what went by O_DIRECT is in it.
        self.cached.sync_all()
    }

    fn look(&self) -> io::Result<Look> {
        let about = self.cached.metadata()?;
        Ok(Look {
            length: about.len(),
            deleted: about.nlink() == 0,
            identity: (about.dev(), about.ino()),
        })
    }

    fn descriptor(&self, offset: u64, bytes: u64) -> Option<RawFd> {
        match &self.direct {
            Some(direct) if self.is_direct(offset, bytes) => Some(direct.as_raw_fd()),
            // By the page cache io_uring would read in its own threads, as ours do.
            _ => None,
        }
    }
}
