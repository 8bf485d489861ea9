//! A file as numbered lines of text: gzip, progress and damage.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;
use gpuvm_files::other_kind;

use super::{FileError, FileFault, FileKind, Input, Place, Progress, ProgressFn, Stage};

/// The longest line that is read; a file without line ends must not fill the memory.
pub(crate) const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// Bytes of the file between two progress reports.
const REPORT_BYTES: u64 = 1 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How UTF-8 text begins that spreadsheets and some editors write.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Counts the bytes taken from a file, under the decoder.
struct Counted {
    file: File,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        // Relaxed: a figure for the progress bar, it orders nothing.
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Gzip data, in one piece or in several that follow each other. Unlike a decoder of several pieces, it tells other bytes
/// behind them from data that end too early. Zeros, with which some media fill their blocks, are ignored.
struct Pieces<R> {
    /// Nothing at the end.
    piece: Option<GzDecoder<R>>,
}

impl<R: BufRead> Pieces<R> {
    /// Decodes `raw`, which is at the beginning of the data.
    fn new(raw: R) -> Pieces<R> {
        let piece = Some(GzDecoder::new(raw));
        Pieces { piece }
    }
}

impl<R: BufRead> Read for Pieces<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(piece) = &mut self.piece {
            let count = piece.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let mut rest = match self.piece.take() {
                Some(ended) => ended.into_inner(),
                None => break,
            };
            self.piece = match gzip_follows(&mut rest)? {
                None => None,
                Some(true) => Some(GzDecoder::new(rest)),
                Some(false) => {
                    let what = "after its end there are bytes that are not gzip data";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
            };
        }
        Ok(0)
    }
}

/// Whether gzip data follow the zeros; `None` at the end. What follows is not consumed.
fn gzip_follows(input: &mut impl BufRead) -> io::Result<Option<bool>> {
    loop {
        let chunk = input.fill_buf()?;
        if let Some(at) = chunk.iter().position(|byte| *byte != 0) {
            // As much of the magic number as is there: the decoder sees the rest.
            let follows = chunk[at..].iter().zip(GZIP_MAGIC).all(|(byte, magic)| *byte == magic);
            input.consume(at);
            return Ok(Some(follows));
        }
        let zeros = chunk.len();
        if zeros == 0 {
            return Ok(None);
        }
        input.consume(zeros);
    }
}

/// The lines of a plain or gzip file, with their numbers.
pub(crate) struct Lines<'a> {
    path: &'a Path,
    kind: &'static FileKind,
    input: Box<dyn BufRead>,
    gzip: bool,
    number: u64,
    bytes: Arc<AtomicU64>,
    total_bytes: u64,
    report_at: u64,
    progress: &'a mut ProgressFn<'a>,
    buffer: Vec<u8>,
    /// The longest line that is read.
    limit: usize,
}

impl<'a> Lines<'a> {
    /// The lines of a file; gzip is known by its first two bytes, whatever the name says.
    pub(crate) fn of(input: Input<'a>, progress: &'a mut ProgressFn<'a>) -> Result<Lines<'a>, FileError> {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            file: input.file,
            bytes: Arc::clone(&bytes),
        };
        let mut lines = Lines {
            path: input.path,
            kind: input.kind,
            input: Box::new(io::empty()),
            gzip: false,
            number: 0,
            bytes,
            total_bytes: input.bytes,
            report_at: 0,
            progress,
            buffer: Vec::new(),
            limit: LINE_LIMIT_BYTES,
        };
        let mut raw = BufReader::with_capacity(1 << 18, counted);
        let begin = raw.fill_buf().map_err(|source| lines.read_error(source))?;
        lines.gzip = begin.starts_with(&GZIP_MAGIC);
        lines.input = match lines.gzip {
            true => Box::new(BufReader::with_capacity(1 << 18, Pieces::new(raw))),
            false => Box::new(raw),
        };
        match lines.input.fill_buf().map(other_kind) {
            Err(source) => Err(lines.read_error(source)),
            Ok(Some(found)) => Err(FileError::new(lines.path, FileFault::Unsupported, Place::File, found)),
            Ok(None) => Ok(lines),
        }
    }

    /// Reads the next line, with its end where it has one. `false` at the end of the file.
    fn advance(&mut self) -> Result<bool, FileError> {
        self.buffer.clear();
        let mut limited = self.input.by_ref().take(self.limit as u64 + 1);
        if let Err(error) = limited.read_until(b'\n', &mut self.buffer) {
            return Err(self.read_error(error));
        }
        if self.buffer.is_empty() {
            (self.progress)(Progress {
                stage: Stage::Read,
                done: self.total_bytes,
                total: self.total_bytes,
            });
            return Ok(false);
        }
        self.number += 1;
        if self.buffer.len() > self.limit {
            let what = format!("longer than {} bytes; {}", self.limit, self.kind.is);
            return Err(self.malformed(what));
        }
        if self.number == 1 && self.buffer.starts_with(&BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        self.report();
        Ok(true)
    }

    /// Reads the next line, which may hold nothing; `false` at the end of the file.
    pub(crate) fn advance_line(&mut self) -> Result<bool, FileError> {
        let found = self.advance()?;
        if self.bytes().contains(&b'\r') {
            let what = "a carriage return within the line; lines end with LF or CR LF, not with CR alone";
            return Err(self.malformed(what));
        }
        Ok(found)
    }

    /// Reads on to the next line that holds something, `false` at the end of the file.
    pub(crate) fn advance_to_text(&mut self) -> Result<bool, FileError> {
        while self.advance_line()? {
            if !self.bytes().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lines from here on may be so long.
    pub(crate) fn allow_lines_of(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// The line read last, without white space around it.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.trim_ascii()
    }

    /// [`Lines::bytes`] as text.
    pub(crate) fn text(&self) -> Result<&str, FileError> {
        let text = str::from_utf8(self.bytes());
        text.map_err(|_| self.malformed(format!("not UTF-8 text; {}", self.kind.is)))
    }

    /// The number of the line read last, from 1; also 1 in a file of no bytes.
    pub(crate) fn number(&self) -> u64 {
        self.number.max(1)
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// An error about the line read last.
    pub(crate) fn error(&self, fault: FileFault, what: impl Into<String>) -> FileError {
        FileError::new(self.path, fault, Place::Line(self.number()), what)
    }

    /// An error about the line read last, which cannot be understood.
    pub(crate) fn malformed(&self, what: impl Into<String>) -> FileError {
        self.error(FileFault::Malformed, what)
    }

    fn report(&mut self) {
        // Relaxed: a figure for the progress bar, it orders nothing.
        let done = self.bytes.load(Ordering::Relaxed).min(self.total_bytes);
        if done >= self.report_at {
            self.report_at = done + REPORT_BYTES;
            (self.progress)(Progress {
                stage: Stage::Read,
                done,
                total: self.total_bytes,
            });
        }
    }

    /// An error of the line after the one read last.
    fn read_error(&self, source: io::Error) -> FileError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let (fault, what) = match source.kind() {
            UnexpectedEof if self.gzip => (FileFault::Truncated, "the gzip data is truncated; fetch the file again"),
            InvalidInput | InvalidData if self.gzip => {
                (FileFault::Damaged, "the gzip data is damaged; fetch the file again")
            }
            _ => (FileFault::Read, "cannot read on"),
        };
        FileError::new(self.path, fault, Place::Line(self.number + 1), what).caused_by(source)
    }
}
