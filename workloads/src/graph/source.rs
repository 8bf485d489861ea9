//! A graph file as numbered lines of text: gzip, progress and damage.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;

use super::error::GraphError;
use super::{Progress, ProgressFn, Stage};

/// The longest line that is read; a file without line ends must not fill the memory.
pub(super) const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// Bytes of the file between two progress reports.
const REPORT_BYTES: u64 = 1 << 20;

pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How UTF-8 text begins where it begins with a byte order mark.
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
pub(crate) struct Pieces<R> {
    /// Nothing at the end.
    piece: Option<GzDecoder<R>>,
}

impl<R: BufRead> Pieces<R> {
    /// Decodes `raw`, which is at the beginning of the data.
    pub(crate) fn new(raw: R) -> Pieces<R> {
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
                    let what = "after its end there are bytes that are no gzip data";
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
pub(super) struct Lines<'a> {
    path: PathBuf,
    input: Box<dyn BufRead>,
    gzip: bool,
    number: u64,
    bytes: Arc<AtomicU64>,
    total_bytes: u64,
    report_at: u64,
    progress: &'a mut ProgressFn<'a>,
    buffer: Vec<u8>,
}

impl<'a> Lines<'a> {
    /// The lines of the open file `path`; gzip is known by its first two bytes, whatever the name says.
    pub(super) fn of(
        path: &Path,
        file: File,
        total_bytes: u64,
        progress: &'a mut ProgressFn<'a>,
    ) -> Result<Lines<'a>, GraphError> {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            file,
            bytes: Arc::clone(&bytes),
        };
        let mut raw = BufReader::with_capacity(1 << 18, counted);
        let read = |source| GraphError::Read {
            path: path.to_owned(),
            line: 1,
            source,
        };
        let gzip = raw.fill_buf().map_err(read)?.starts_with(&GZIP_MAGIC);
        let input: Box<dyn BufRead> = if gzip {
            Box::new(BufReader::with_capacity(1 << 18, Pieces::new(raw)))
        } else {
            Box::new(raw)
        };
        Ok(Lines {
            path: path.to_owned(),
            input,
            gzip,
            number: 0,
            bytes,
            total_bytes,
            report_at: 0,
            progress,
            buffer: Vec::new(),
        })
    }

    /// Reads the next line, without its end, into [`Lines::text`]. `false` at the end of the file.
    pub(super) fn advance(&mut self) -> Result<bool, GraphError> {
        self.buffer.clear();
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.read_error(error)),
            };
            if chunk.is_empty() {
                break;
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(chunk.len(), |at| at + 1);
            self.buffer.extend_from_slice(&chunk[..end.unwrap_or(taken)]);
            self.input.consume(taken);
            if self.buffer.len() > LINE_LIMIT_BYTES {
                let (path, line) = (self.path.clone(), self.number + 1);
                return Err(GraphError::LineTooLong {
                    path,
                    line,
                    limit_bytes: LINE_LIMIT_BYTES,
                });
            }
            if end.is_some() {
                self.number += 1;
                self.report();
                return Ok(true);
            }
        }
        // A last line without a line end counts; nothing after the last line end does not.
        if self.buffer.is_empty() {
            (self.progress)(Progress {
                stage: Stage::Read,
                done: self.total_bytes,
                total: self.total_bytes,
            });
            return Ok(false);
        }
        self.number += 1;
        Ok(true)
    }

    /// Reads on to the next line that holds something, `false` at the end of the file.
    pub(super) fn advance_to_text(&mut self) -> Result<bool, GraphError> {
        while self.advance()? {
            if self.number == 1 && self.buffer.starts_with(&BYTE_ORDER_MARK) {
                return Err(self.malformed("the file begins with a byte order mark; save it without one"));
            }
            let text = self.text()?;
            if text.contains('\r') {
                let what = "a carriage return within the line; lines end with LF or CR LF, not with CR alone";
                return Err(self.malformed(what));
            }
            if !text.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The line read last, without white space around it.
    pub(super) fn text(&self) -> Result<&str, GraphError> {
        match std::str::from_utf8(&self.buffer) {
            Ok(text) => Ok(text.trim_ascii()),
            Err(_) => Err(GraphError::NotUtf8 {
                path: self.path.clone(),
                line: self.number,
            }),
        }
    }

    /// The number of the line read last, from 1; also 1 in a file of no bytes.
    pub(super) fn number(&self) -> u64 {
        self.number.max(1)
    }

    /// The file's name.
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// An error about the line read last.
    pub(super) fn malformed(&self, what: impl Into<String>) -> GraphError {
        GraphError::Malformed {
            path: self.path(),
            line: self.number(),
            what: what.into(),
        }
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

    fn read_error(&self, source: io::Error) -> GraphError {
        let (path, line) = (self.path.clone(), self.number + 1);
        match source.kind() {
            io::ErrorKind::UnexpectedEof if self.gzip => GraphError::GzipTruncated { path, line },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => {
                GraphError::GzipDamaged { path, line, source }
            }
            _ => GraphError::Read { path, line, source },
        }
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
