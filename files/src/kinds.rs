//! What a file is, looked at before it is read as something else.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
};

/// Opens what must be a regular file. Anything else is refused before it is opened: an open of a named pipe waits for a writer.
///
/// # Errors
/// The system's, and "it is not a regular file".
pub fn open_regular(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let about = std::fs::metadata(path)?;
    if about.is_file() {
        return options.open(path);
    }
    let kind = match about.is_dir() {
        true => io::ErrorKind::IsADirectory,
        false => io::ErrorKind::InvalidInput,
    };
    Err(io::Error::new(kind, "it is not a regular file"))
}

/// How files begin that are fetched in place of others, what they are, and what to do.
const OTHERS: [(&[u8], &str); 15] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file it stands for: fetch that with git lfs pull",
    ),
    (
        b"<!doctype",
        "an HTML page: fetch the file itself, the page has a link to it",
    ),
    (
        b"<html",
        "an HTML page: fetch the file itself, the page has a link to it",
    ),
    (b"<?xml", "an XML file: convert it first"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"BZh", "packed by bzip2: unpack it"),
    (b"\xfd7zXZ\0", "packed by xz: unpack it"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd: unpack it"),
    (b"\x04\x22\x4d\x18", "packed by lz4: unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: convert it first"),
    (
        b"\x93NUMPY",
        "a NumPy file: convert it first, or in Python give numpy.load(path) to Vm.array",
    ),
    (b"MATLAB 5.0", "a MATLAB file: convert it first"),
    (b"GGUF", "a GGUF file: convert it first"),
];

/// Bytes from a file's begin by which [`other_kind`] knows it.
pub const KIND_BYTES: usize = 512;

/// What a file that begins so is, if it is none that anything here reads, and what to do. Gzip, Arrow and Parquet have readers and are not told.
pub fn other_kind(begin: &[u8]) -> Option<&'static str> {
    /// Where a tar archive has its magic, in the first entry's header.
    const TAR: usize = 257;
    if begin.get(TAR..).is_some_and(|rest| rest.starts_with(b"ustar")) {
        return Some("a tar archive: unpack it, and name a file of it");
    }
    let text = begin.trim_ascii_start();
    let is = |magic: &[u8]| match magic[0] {
        b'<' => text
            .get(..magic.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(magic)),
        _ => begin.starts_with(magic),
    };
    OTHERS.iter().find(|(magic, _)| is(magic)).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_their_first_bytes() {
        let mut tar = [0; KIND_BYTES];
        tar[..5].copy_from_slice(b"x.mtx");
        assert_eq!(other_kind(&tar), None);
        tar[257..262].copy_from_slice(b"ustar");
        for (begin, what) in [
            (&tar[..], "a tar archive: unpack it"),
            (b"PK\x03\x04...", "a zip archive"),
            (b"BZh91AY", "packed by bzip2"),
            (b"\xfd7zXZ\0...", "packed by xz"),
            (b"\n <!DOCTYPE html>", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ] {
            assert!(other_kind(begin).unwrap().starts_with(what), "{what}");
        }
        for begin in [&b""[..], b"P", b"1 2\n", b"%%MatrixMarket", b"version 2\n", b"<"] {
            assert_eq!(other_kind(begin), None);
        }
    }
}
