//! What a loss of power may leave on a disk with a volatile cache, from a log by the kernel's dm-log-writes
//! (Documentation/admin-guide/device-mapper/log-writes.rst).
//!
//! A write stands in the log once it is flushed, before the flush that did it, or where it was forced to the medium itself. So what stands
//! before an entry is on the medium when that entry's flush has ended; of what stands between it and the next flush, each write may be
//! there or not.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{error::Error, pages::PAGE};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// An entry of the log.
struct Entry {
    /// Of the disk, in bytes.
    offset: u64,
    flags: u64,
    /// Where its data lies in the log, and its length.
    data: (u64, u64),
    mark: Option<u32>,
}

struct Log<'a> {
    file: File,
    path: &'a Path,
}

impl<'a> Log<'a> {
    fn open(path: &'a Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::file("open", path))?;
        Ok(Self { file, path })
    }

    fn bytes(&self, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length as usize];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(Error::file("read", self.path))?;
        Ok(bytes)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        let head = self.bytes(0, 32)?;
        let number = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytemuck::pod_read_unaligned(&bytes[8 * at..][..8]));
        let sector = u64::from(bytemuck::pod_read_unaligned::<u32>(&head[24..28]));
        if number(&head, 0) != MAGIC || number(&head, 1) != 1 || !(512..=4096).contains(&sector) {
            let why = format!("it begins with {head:x?}");
            return Err(Error::Log {
                path: self.path.to_owned(),
                why,
            });
        }
        let (mut entries, mut at) = (Vec::new(), sector);
        for _ in 0..number(&head, 2) {
            let entry = self.bytes(at, sector)?;
            let (flags, length) = (number(&entry, 2), number(&entry, 1) * sector);
            let length = if flags & DISCARD == 0 { length } else { 0 };
            let text = String::from_utf8_lossy(&entry[32..]);
            let mark = text
                .trim_end_matches('\0')
                .strip_prefix("flushed-")
                .and_then(|version| version.parse().ok());
            entries.push(Entry {
                offset: number(&entry, 0) * sector,
                flags,
                data: (at + sector, length),
                mark: mark.filter(|_| flags & MARK != 0),
            });
            at += sector + length;
        }
        Ok(entries)
    }
}

/// Which entries have reached the medium, and the last mark that has.
fn survivors(entries: &[Entry], seed: u64, at_mark: bool) -> (Vec<bool>, u32) {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    let marks: Vec<usize> = (0..entries.len()).filter(|at| entries[*at].mark.is_some()).collect();
    let first = marks.first().copied().unwrap_or(0);
    let whole = match at_mark && !marks.is_empty() {
        true => marks[draw.random_range(0..marks.len())],
        false => draw.random_range(first..entries.len().max(first + 1)),
    };
    let next_flush = (whole + 1..entries.len()).find(|at| entries[*at].flags & FLUSH != 0);
    let cached = whole + 1..next_flush.unwrap_or(entries.len());
    let kept = (0..entries.len()).map(|at| at <= whole || !at_mark && cached.contains(&at) && draw.random_bool(0.5));
    let kept = kept.collect();
    let flushed = entries[..(whole + 1).min(entries.len())]
        .iter()
        .rev()
        .find_map(|entry| entry.mark);
    (kept, flushed.unwrap_or(0))
}

/// See the command's help. What an earlier replay of the same log left on the target is overwritten.
pub fn replay(log: &Path, target: &Path, seed: u64, at_mark: bool) -> Result<(), Error> {
    let failed = Error::file("write", target);
    let source = Log::open(log)?;
    let entries = source.entries()?;
    let (kept, flushed) = survivors(&entries, seed, at_mark);
    let disk = OpenOptions::new().write(true).open(target).map_err(&failed)?;
    let blocks: BTreeSet<u64> = entries
        .iter()
        .flat_map(|entry| entry.offset / PAGE..(entry.offset + entry.data.1).div_ceil(PAGE))
        .collect();
    for block in blocks {
        disk.write_all_at(&[0; PAGE as usize], block * PAGE).map_err(&failed)?;
    }
    for (entry, _) in entries
        .iter()
        .zip(&kept)
        .filter(|(entry, kept)| **kept && entry.data.1 > 0)
    {
        let data = source.bytes(entry.data.0, entry.data.1)?;
        disk.write_all_at(&data, entry.offset).map_err(&failed)?;
    }
    disk.sync_all().map_err(&failed)?;
    let (kept, all) = (kept.iter().filter(|kept| **kept).count(), entries.len());
    println!("flushed {flushed}: {kept} of {all} writes and flushes");
    Ok(())
}
