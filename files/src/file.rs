//! A file behind the tier, as its users hold it.

use std::{ops::Range, path::Path, sync::Arc, time::Duration};

use crate::{
    FileError,
    opened::Opened,
    shared::Shared,
    slots::{Got, How, Piece},
};

/// A file behind a [`Tier`](crate::Tier). Clones are the same file.
#[derive(Clone)]
pub struct File {
    pub(crate) tier: Arc<Shared>,
    pub(crate) opened: Arc<Opened>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.opened.path)
            .field("length", &self.opened.length)
            .finish()
    }
}

impl File {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// Bytes when it was opened. It keeps this length: what is behind is not reached.
    pub fn length(&self) -> u64 {
        self.opened.length
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.opened.writable
    }

    /// Device and number: two names of one file have the same.
    pub fn identity(&self) -> (u64, u64) {
        self.opened.identity
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<Range<u64>, FileError> {
        let length = self.opened.length;
        match offset.checked_add(bytes) {
            Some(end) if end <= length => Ok(offset..end),
            end => Err(FileError::OutOfBounds {
                path: self.opened.path.clone(),
                offset,
                end: end.unwrap_or(u64::MAX),
                length,
            }),
        }
    }

    /// Begins to read the blocks of `bytes` bytes at `offset` that are not in memory, since they will be asked for. False where there is
    /// no room for that now. It never waits.
    pub fn expect(&self, offset: u64, bytes: u64) -> bool {
        match self.check(offset, bytes) {
            Ok(span) => self.tier.expect(&self.opened, span),
            Err(_) => true,
        }
    }

    /// Appends the memory that holds `bytes` bytes at `offset` to `pieces`, in order, and keeps it there until it is
    /// [released](Self::release). Where it is not in memory yet, reading begins and `pieces` is as it was. It never waits; [`Tier::poll`]
    /// is what lets reads end.
    ///
    /// [`Tier::poll`]: crate::Tier::poll
    ///
    /// # Errors
    /// [`FileError::Read`] and [`FileError::Shrank`], once for a read that failed: the next call reads again. [`FileError::Write`] where
    /// memory is full of blocks that cannot be written. [`FileError::OutOfBounds`], [`FileError::ReadOnly`].
    pub fn acquire(&self, offset: u64, bytes: u64, how: How, pieces: &mut Vec<Piece>) -> Result<Got, FileError> {
        let span = self.check(offset, bytes)?;
        if how == How::Write && !self.opened.writable {
            return Err(FileError::ReadOnly {
                path: self.opened.path.clone(),
            });
        }
        self.tier.acquire(&self.opened, span, how, pieces)
    }

    /// Lets go of what [`acquire`](Self::acquire) gave, with the same `how`.
    pub fn release(&self, pieces: &[Piece], how: How) {
        self.tier.release(pieces, how);
    }

    /// As [`Tier::poll`](crate::Tier::poll).
    pub fn poll(&self) -> bool {
        self.tier.poll()
    }

    /// What [`poll`](Self::poll) goes on with, as a number: files behind one tier have the same.
    pub fn tier_address(&self) -> usize {
        Arc::as_ptr(&self.tier).addr()
    }

    /// A count that changes when what had to wait may be there: the thread that was told [`Got::Wait`] asks again after that. It is to be read before
    /// asking.
    pub fn progress(&self) -> u64 {
        self.tier.progress()
    }

    /// Copies bytes out. Waits for the file.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), FileError> {
        let mut done = 0;
        self.in_chunks(offset, out.len() as u64, How::Read, |piece| {
            let part = &mut out[done..done + piece.bytes as usize];
            done += part.len();
            self.opened.copy_out(piece.address, part)
        })
    }

    /// Copies bytes in. They are in memory then; [`sync`](Self::sync) has them stored. Waits for the file where blocks are written in part.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        let mut done = 0;
        self.in_chunks(offset, data.len() as u64, How::Write, |piece| {
            let part = &data[done..done + piece.bytes as usize];
            done += part.len();
            self.opened.copy_in(piece.address, part)
        })
    }

    fn in_chunks(
        &self,
        offset: u64,
        bytes: u64,
        how: How,
        act: impl FnMut(&Piece) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut act = act;
        let end = self.check(offset, bytes)?.end;
        let chunk = self.tier.chunk_bytes();
        let (mut from, mut pieces) = (offset, Vec::new());
        while from < end {
            let next = (from - from % chunk + chunk).min(end);
            if next < end {
                self.expect(next, (end - next).min(chunk));
            }
            let mut pause = Pause::default();
            while self.acquire(from, next - from, how, &mut pieces)? == Got::Wait {
                if !self.tier.poll() {
                    pause.once();
                }
            }
            let acted = pieces.iter().try_for_each(&mut act);
            self.release(&pieces, how);
            acted?;
            pieces.clear();
            from = next;
        }
        Ok(())
    }

    /// Has blocks written at once that could not be: a caller that fixed the cause says so, and no [`acquire`](Self::acquire) fails for what was
    /// refused before. Else they are tried again after a while. It does not wait; [`sync`](Self::sync) begins with it.
    pub fn retry_writes(&self) {
        self.tier.retry_writes(&self.opened);
    }

    /// Writes what is in memory alone, and has the system store it. After `Ok`, everything that was released before this call survives the
    /// loss of power. After an error what was stored by earlier calls does; each block of the device holds what it held then or something
    /// that was written since, and what could not be written is in memory still.
    ///
    /// # Errors
    /// [`FileError::Write`], [`FileError::Sync`], [`FileError::Shrank`] and [`FileError::Deleted`].
    pub fn sync(&self) -> Result<(), FileError> {
        if !self.opened.writable {
            return Ok(());
        }
        self.opened.check()?;
        let mut pause = Pause::default();
        self.retry_writes();
        loop {
            match self.tier.write_some_of(&self.opened) {
                Ok(true) => break,
                Ok(false) if self.tier.poll() => {}
                Ok(false) => pause.once(),
                Err(failure) => return Err(failure),
            }
        }
        self.opened.storage.sync().map_err(|source| FileError::Sync {
            path: self.opened.path.clone(),
            source: Arc::new(source),
        })
    }
}

/// Shorter waits first.
#[derive(Default)]
struct Pause {
    turns: u32,
}

impl Pause {
    fn once(&mut self) {
        self.turns += 1;
        match self.turns {
            ..20 => std::thread::yield_now(),
            20..200 => std::thread::sleep(Duration::from_micros(20)),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}
