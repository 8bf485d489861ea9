//! The files of a machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most of a file that is looked at: all that is of interest fits, the list of a kernel's modules too.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Where a machine's `/sys`, `/proc`, `/dev` and `/lib` lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

impl Default for Machine {
    /// This machine.
    fn default() -> Self {
        Self::at("/")
    }
}

impl Machine {
    /// The machine whose files lie below `root`, `/` for this one.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The place of an absolute path below the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is something at that path.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The first 4 MiB of a regular file's text, without white space around it.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = self.path(path);
        // A pipe would hold the reader for ever.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        let file = File::open(path).ok()?;
        file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8(bytes).ok()?.trim().to_owned())
    }

    /// The first line of a file, which is all of it where the kernel writes one word; `None` for an empty one.
    pub fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        Some(text.lines().next()?.trim_end().to_owned())
    }

    /// A file's number, decimal or hexadecimal after `0x`.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, sorted.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = self.path(folder).read_dir().into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The last name in a link's target.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = self.path(path).read_link().ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The effective capabilities of this process, one bit each (`capabilities(7)`).
    pub fn effective_capabilities(&self) -> Option<u64> {
        let status = self.text("proc/self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    }
}
