//! Reading the parts of a file that say where its elements are.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{FormatError, HEADER_BYTES_MAX, Result};

/// An open file whose format is `kind`.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    pub path: Arc<Path>,
    /// When it was opened.
    pub bytes: u64,
    kind: &'static str,
}

/// Bytes at an address that 8 divides, as the numbers in them are read.
pub(crate) struct Aligned {
    words: Vec<u64>,
    bytes: usize,
}

impl Aligned {
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

impl Source {
    pub fn open(path: &Path, kind: &'static str) -> Result<Self> {
        let wrap = |source| FormatError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(wrap)?;
        let about = file.metadata().map_err(wrap)?;
        let source = Self {
            file,
            path: path.into(),
            bytes: about.len(),
            kind,
        };
        match about.is_file() {
            true => Ok(source),
            false => Err(source.broken("it is no regular file")),
        }
    }

    /// `N` bytes from `offset` on.
    pub fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// `bytes` bytes from `offset` on, which are `what`.
    pub fn part(&self, what: &str, offset: u64, bytes: u64) -> Result<Aligned> {
        if bytes > HEADER_BYTES_MAX {
            let reason = format!("{what} of {bytes} bytes is longer than {HEADER_BYTES_MAX}");
            return Err(self.broken(reason));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(self.broken(format!(
                "{what} is {bytes} bytes from byte {offset} on, and the file has {}",
                self.bytes
            )));
        }
        // It was found to be small.
        let bytes = bytes as usize;
        let mut words = vec![0; bytes.div_ceil(8)];
        self.read(offset, &mut bytemuck::cast_slice_mut(&mut words)[..bytes])?;
        Ok(Aligned { words, bytes })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(out, offset);
        read.map_err(|source| FormatError::Read {
            path: self.owned_path(),
            source,
        })
    }

    pub fn owned_path(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    pub fn broken(&self, reason: impl Into<String>) -> FormatError {
        self.broken_by(reason, None)
    }

    pub fn broken_by(
        &self,
        reason: impl Into<String>,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> FormatError {
        FormatError::Broken {
            path: self.owned_path(),
            kind: self.kind,
            reason: reason.into(),
            source,
        }
    }
}

/// Names for a message: the first ones.
pub(crate) fn some_of(names: impl ExactSizeIterator<Item: AsRef<str>>) -> String {
    /// Names in a message.
    const SHOWN: usize = 8;
    let count = names.len();
    if count == 0 {
        return "none".into();
    }
    // A name may be as long as a header.
    let shown: Vec<String> = names
        .take(SHOWN)
        .map(|name| format!("`{}`", name.as_ref().chars().take(40).collect::<String>()))
        .collect();
    match count.saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
