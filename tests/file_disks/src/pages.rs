//! What a page holds in which version, and what a file may hold after a loss of power.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use crate::error::Error;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
const WORDS: u32 = 1024;

/// The pages of a file, whose versions a seed decides.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub seed: u32,
    /// Of the file; the last page may be a part of one.
    pub bytes: u64,
}

fn mixed(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

impl Pages {
    pub fn count(&self) -> u64 {
        self.bytes.div_ceil(PAGE)
    }

    /// How many of a hundred pages a version changes: the first so few that memory holds all of them, the second all.
    pub fn percent(version: u32) -> u32 {
        match version {
            1 => 3,
            2 => 100,
            _ => 30,
        }
    }

    /// Whether a version changes a page.
    pub fn changes(&self, version: u32, page: u64) -> bool {
        let draw = mixed(self.seed ^ mixed(version.wrapping_mul(0x10001).wrapping_add(page as u32)));
        draw % 100 < Self::percent(version)
    }

    /// The version of a page once the versions up to this one were written.
    pub fn version(&self, page: u64, written: u32) -> u32 {
        (1..=written)
            .rev()
            .find(|version| self.changes(*version, page))
            .unwrap_or(0)
    }

    fn holds(&self, page: u64, version: u32, content: &[u8]) -> bool {
        let word = |at: u32| match version {
            0 => 0,
            _ => mixed(
                (self.seed)
                    .wrapping_add((page as u32).wrapping_mul(WORDS))
                    .wrapping_add(at),
            )
            .wrapping_add(version.wrapping_mul(0x9e37_79b1)),
        };
        let mut words = content.chunks_exact(4).zip(0..);
        words.all(|(found, at)| found == word(at).to_ne_bytes())
    }

    /// Looks at a file of which everything up to version `flushed` was flushed, and version `written` is the last that a kernel may have
    /// written. Returns how many pages are newer than what was flushed.
    ///
    /// # Errors
    /// [`Error::Lost`] for the first page that is neither; [`Error::File`].
    pub fn check(&self, path: &Path, flushed: u32, written: u32) -> Result<u64, Error> {
        let failed = Error::file("read", path);
        let mut file = File::open(path).map_err(&failed)?;
        let length = file.seek(SeekFrom::End(0)).map_err(&failed)?;
        if length != self.bytes {
            let path = path.to_owned();
            return Err(Error::Length {
                path,
                length,
                expected: self.bytes,
            });
        }
        file.rewind().map_err(&failed)?;
        let (mut newer, mut content) = (0, vec![0; PAGE as usize]);
        let mut lost = Vec::new();
        for page in 0..self.count() {
            let content = &mut content[..(self.bytes - page * PAGE).min(PAGE) as usize];
            file.read_exact(content).map_err(&failed)?;
            let safe = self.version(page, flushed);
            let later = (flushed + 1..=written).filter(|version| self.changes(*version, page));
            match std::iter::once(safe)
                .chain(later)
                .find(|version| self.holds(page, *version, content))
            {
                Some(version) => newer += u64::from(version != safe),
                None => lost.push((page, (0..=written).find(|version| self.holds(page, *version, content)))),
            }
        }
        match lost.first() {
            None => Ok(newer),
            Some(&(page, found)) => Err(Error::Lost {
                path: path.to_owned(),
                pages: lost.len() as u64,
                page,
                expected: self.version(page, flushed),
                found: found.map_or("no version whole".to_owned(), |version| format!("version {version}")),
            }),
        }
    }
}
