//! Reading the parts of a file that say where its elements are.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use gpuvm_files::{KIND_BYTES, open_regular, other_kind};

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

impl Source {
    pub fn open(path: &Path, kind: &'static str) -> Result<Self> {
        let wrap = |source| FormatError::Read {
            path: path.to_owned(),
            source,
        };
        let file = open_regular(path, File::options().read(true)).map_err(wrap)?;
        let bytes = file.metadata().map_err(wrap)?.len();
        let source = Self {
            file,
            path: path.into(),
            bytes,
            kind,
        };
        let mut begin = [0; KIND_BYTES];
        let begin = &mut begin[..bytes.min(KIND_BYTES as u64) as usize];
        source.read(0, begin)?;
        match other_kind(begin) {
            Some(found) => Err(FormatError::Other {
                path: path.to_owned(),
                found,
            }),
            None => Ok(source),
        }
    }

    /// `N` bytes from `offset` on.
    pub fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// `bytes` bytes from `offset` on, which are `what`, at an address that 8 divides, as the numbers in them are read; zeros after them.
    pub fn part(&self, what: &str, offset: u64, bytes: u64) -> Result<Vec<u64>> {
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
        Ok(words)
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

    /// That there is no `what` of that name, but others.
    pub fn missing(&self, what: &'static str, name: &dyn std::fmt::Display, has: String) -> FormatError {
        FormatError::Missing {
            path: self.owned_path(),
            what,
            name: name.to_string(),
            has,
        }
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
    let more = names.len().saturating_sub(SHOWN);
    // A name may be as long as a header.
    let short = |name: &str| format!("`{}`", name.chars().take(40).collect::<String>());
    let shown: Vec<String> = names.take(SHOWN).map(|name| short(name.as_ref())).collect();
    match (shown.is_empty(), more) {
        (true, _) => "none".into(),
        (_, 0) => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
