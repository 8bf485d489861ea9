//! What every reader and writer of files promises, whatever the format.

use std::error::Error;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use gpuvm_workloads::graph::{GraphError, GraphSpec};
use gpuvm_workloads::input::{FileError, FileFault, Place};
use gpuvm_workloads::table::{TableError, TableSpec, generate, write_csv, write_parquet};
use gpuvm_workloads::vectors::{
    Clusters, Neighbours, VectorError, VectorSpec, Vectors, read_ivecs, write_bvecs, write_fvecs, write_ivecs,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::common::{self, WEIGHTED, csr_file, gap_file, gzip};

/// Reads a file: how many vertices, rows or vectors it has.
type Load = fn(&Path) -> Result<u64, FileError>;

fn graph(path: &Path) -> Result<u64, FileError> {
    match GraphSpec::File(path.to_owned()).load(&WEIGHTED, &mut |_| {}) {
        Ok(graph) => Ok(graph.csr().vertices().into()),
        Err(GraphError::File(error)) => Err(error),
        // A number in a file may ask for more than the machine has.
        Err(GraphError::Memory(_)) => Ok(0),
        Err(other) => panic!("{other}"),
    }
}

fn table(path: &Path) -> Result<u64, FileError> {
    match TableSpec::File(path.to_owned()).load(1) {
        Ok(trips) => Ok(trips.rows() as u64),
        Err(TableError::File(error)) => Err(error),
        Err(TableError::Memory(_)) => Ok(0),
        Err(other) => panic!("{other}"),
    }
}

fn vectors(path: &Path) -> Result<u64, FileError> {
    let rows = match path.extension() {
        Some(end) if end == "ivecs" => read_ivecs(path).map(|ids| ids.count()),
        _ => VectorSpec::File(path.to_owned()).load(1).map(|vectors| vectors.count()),
    };
    match rows {
        Ok(count) => Ok(count as u64),
        Err(VectorError::File(error)) => Err(error),
        Err(VectorError::Memory(_)) => Ok(0),
        Err(other) => panic!("{other}"),
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

/// A file of every format, with its name and its reader.
fn files() -> Vec<(&'static str, Vec<u8>, Load)> {
    let list = b"# Directed graph\n900 70\n70 800\n300 900\n900 800\n";
    let matrix = b"%%MatrixMarket matrix coordinate integer general\n% by hand\n3 3 3\n1 2 5\n2 3 6\n3 1 7\n";
    let metis = b"% by hand\n3 3 001\n2 5 3 7\n1 5 3 6\n2 6 1 7\n";
    let dimacs = b"c by hand\np sp 3 3\na 1 2 5\na 2 3 6\na 3 1 7\n";
    let rows = [vec![(1, 5), (2, 6)], vec![(0, 5)], vec![(0, 6)]];
    let trips = generate(50, 1).unwrap();
    let csv = written(|out| write_csv(&trips, out).unwrap());
    let numbers = Vectors::new(3, (0..30).map(|n| n as f32).collect()).unwrap();
    let ids = Neighbours::new(2, (0..20).collect()).unwrap();
    let mapped = common::load("a.txt", list, &WEIGHTED).0.unwrap();
    vec![
        ("a.txt", list.to_vec(), graph),
        ("a.txt.gz", gzip(list), graph),
        ("a.mtx", matrix.to_vec(), graph),
        ("a.mtx.gz", gzip(matrix), graph),
        ("a.graph", metis.to_vec(), graph),
        ("a.graph.gz", gzip(metis), graph),
        ("a.gr", dimacs.to_vec(), graph),
        ("a.wel", b"1 2 5\n2 3 6\n3 1 7\n".to_vec(), graph),
        ("a.gcsr", csr_file(&mapped), graph),
        ("a.sg", gap_file(&rows, false, false), graph),
        ("directed.sg", gap_file(&rows, true, false), graph),
        ("a.wsg", gap_file(&rows, false, true), graph),
        ("directed.WSG", gap_file(&rows, true, true), graph),
        ("a.csv", csv.clone(), table),
        ("a.csv.gz", gzip(&csv), table),
        ("a.parquet", written(|out| write_parquet(&trips, out).unwrap()), table),
        ("a.fvecs", written(|out| write_fvecs(&numbers, out).unwrap()), vectors),
        ("a.bvecs", written(|out| write_bvecs(&numbers, out).unwrap()), vectors),
        ("a.ivecs", written(|out| write_ivecs(&ids, out).unwrap()), vectors),
    ]
}

/// What a reader makes of these bytes, as a file of that name. An error names the file.
fn read(name: &str, bytes: &[u8], load: Load) -> Result<u64, FileError> {
    let (path, _folder) = common::file(name, bytes);
    load(&path).inspect_err(|error| {
        assert_eq!(error.path, path);
        let begin = format!("{}:", path.display());
        assert!(error.to_string().starts_with(&begin), "{error}");
    })
}

#[test]
fn whole_files_are_read() {
    for (name, bytes, load) in files() {
        assert!(read(name, &bytes, load).unwrap() > 0, "{name}");
    }
}

#[test]
fn what_is_no_file_is_named() {
    let folder = TempDir::new().unwrap();
    for (name, _, load) in files() {
        let missing = Path::new("no/such").join(name);
        let error = load(&missing).unwrap_err();
        assert_eq!((error.fault, error.place), (FileFault::Open, Place::File));
        let (message, source) = (error.to_string(), error.source().unwrap().to_string());
        assert!(message.starts_with("cannot open the "), "{message}");
        assert!(
            message.contains(&format!(" {}; name a ", missing.display())),
            "{message}"
        );
        assert!(source.contains("No such file"), "{source}");
        let directory = folder.path().join(format!("folder.{name}"));
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(load(&directory).unwrap_err().fault, FileFault::Open, "{name}");
        let device = folder.path().join(name);
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        // Text of a graph may come from a pipe.
        let is_text = TEXTS.contains(&name.trim_end_matches(".gz"));
        let expected = if is_text { FileFault::Empty } else { FileFault::Open };
        assert_eq!(load(&device).unwrap_err().fault, expected, "{name}");
        if !is_text {
            // Nothing writes into it: an open for reading would wait for ever.
            let pipe = folder.path().join(format!("pipe.{name}"));
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let error = load(&pipe).unwrap_err();
            assert_eq!(error.fault, FileFault::Open, "{name}");
            assert_eq!(error.source().unwrap().to_string(), "it is not a regular file");
        }
    }
}

/// Graphs as text.
const TEXTS: [&str; 5] = ["a.txt", "a.mtx", "a.graph", "a.gr", "a.wel"];

#[test]
fn a_graph_comes_from_a_pipe() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "1 2\n2 3\n").unwrap()
    });
    assert_eq!(graph(&pipe).unwrap(), 3);
    writer.join().unwrap();
}

#[test]
fn what_is_fetched_in_place_of_a_file_is_named() {
    let mut tar = [0; 2048];
    tar[..5].copy_from_slice(b"a.mtx");
    tar[257..262].copy_from_slice(b"ustar");
    for (bytes, what) in [
        (&tar[..], "a tar archive: unpack it, and name a file of it"),
        (b"PK\x03\x04\x14\0\0\0\x08\0", "a zip archive: unpack it"),
        (b"BZh91AY&SY", "packed by bzip2: unpack it"),
        (b"\xfd7zXZ\0\0\x04", "packed by xz: unpack it"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n",
            "a Git LFS pointer, not the file it stands for: fetch that with git lfs pull",
        ),
        (
            b"\n<!DOCTYPE html><html>",
            "an HTML page: fetch the file itself, the page has a link to it",
        ),
    ] {
        for (name, _, load) in files() {
            for bytes in [bytes.to_vec(), gzip(bytes)] {
                let is_packed = bytes.starts_with(&[0x1f, 0x8b]);
                if is_packed && !TEXTS.contains(&name.trim_end_matches(".gz")) && !name.starts_with("a.csv") {
                    continue;
                }
                let error = read(name, &bytes, load).unwrap_err();
                assert_eq!(
                    (error.fault, error.place),
                    (FileFault::Unsupported, Place::File),
                    "{name}: {error}"
                );
                assert!(error.to_string().ends_with(what), "{name}: {error}");
            }
        }
    }
}

#[test]
fn a_file_that_ends_too_early_is_refused() {
    for (name, bytes, load) in files() {
        // Text may end at the end of any line.
        if matches!(name, "a.txt" | "a.csv" | "a.wel") {
            continue;
        }
        let all = bytes.len();
        let near = |cut: &usize| *cut < 200 || all - cut < 50 || cut.is_multiple_of(61) || (cut + 2) % 4096 < 4;
        for cut in (0..all).filter(near) {
            let error = match read(name, &bytes[..cut], load) {
                Err(error) => error,
                // Only the last line's end is gone, or whole vectors are.
                Ok(_) if matches!(name, "a.mtx" | "a.graph" | "a.gr") && cut == all - 1 => continue,
                Ok(rows) if name.ends_with("vecs") && rows * all as u64 == cut as u64 * 10 => continue,
                Ok(rows) => panic!("{name}, cut to {cut} bytes: {rows} rows"),
            };
            use FileFault::{Damaged, Empty, Malformed, Truncated, Unsupported};
            let faults: &[FileFault] = match name {
                _ if cut == 0 => &[Empty, Truncated, Malformed],
                _ if name.ends_with(".gz") && cut > 1 => &[Truncated],
                "a.parquet" if cut >= 4 => &[Damaged],
                "a.mtx" | "a.graph" | "a.gr" => &[Malformed, Truncated, Unsupported, Empty],
                "a.parquet" | "a.mtx.gz" | "a.graph.gz" | "a.txt.gz" | "a.csv.gz" => &[Malformed, Unsupported],
                "a.gcsr" => &[Truncated, Malformed],
                _ => &[Truncated],
            };
            assert!(faults.contains(&error.fault), "{name}, cut to {cut} bytes: {error:?}");
            // Files of the GAP benchmark say where they end.
            if name.to_lowercase().ends_with("sg") {
                assert_eq!(error.place, Place::Byte(cut as u64), "{error}");
            }
        }
    }
}

/// Lines of numbers that hardly compress, so that a cut of the gzip data is in the middle of them.
fn long_files() -> [(&'static str, Vec<u8>, Load, Range<u64>); 2] {
    let lines = (0..5000_u64).map(|n| format!("{} {}\n", n * 982_451_653 % 1_000_003, n * 57_885_161 % 999_983));
    let csv = written(|out| write_csv(&generate(2000, 1).unwrap(), out).unwrap());
    [
        ("a.gz", lines.collect::<String>().into_bytes(), graph, 2..5002),
        ("a.csv.gz", csv, table, 2..2003),
    ]
}

#[test]
fn damaged_gzip_data_is_told_with_its_line() {
    for (name, text, load, lines) in long_files() {
        let whole = gzip(&text);
        let refused = |bytes: &[u8]| {
            let error = read(name, bytes, load).unwrap_err();
            assert!(!error.source().unwrap().to_string().is_empty());
            match error.place {
                Place::Line(line) => (error.fault, line),
                other => panic!("{other:?}"),
            }
        };
        assert!(read(name, &whole, load).is_ok());
        assert_eq!(refused(&whole[..5]), (FileFault::Truncated, 1));
        for cut in [whole.len() / 2, whole.len() - 1] {
            let (fault, line) = refused(&whole[..cut]);
            assert!(
                fault == FileFault::Truncated && lines.contains(&line),
                "{name}, line {line}: {fault:?}"
            );
        }
        let mut flipped = whole.clone();
        let end = flipped.len() - 6;
        flipped[end] ^= 0x55;
        assert_eq!(refused(&flipped), (FileFault::Damaged, lines.end - 1));
        // In several pieces, the last of which may be cut, and with what is no gzip data behind them.
        let two = [gzip(&text[..text.len() / 2]), gzip(&text[text.len() / 2..])].concat();
        assert_eq!(read(name, &two, load).unwrap(), read(name, &whole, load).unwrap());
        assert_eq!(
            refused(&[&whole[..], &whole[..7]].concat()),
            (FileFault::Truncated, lines.end - 1)
        );
        for more in [b"x".as_slice(), b"\0\0more", b"\x1fno", &[b'y'; 30]] {
            assert_eq!(
                refused(&[&whole, more].concat()),
                (FileFault::Damaged, lines.end - 1),
                "{more:?}"
            );
        }
        // Some media fill their blocks with zeros.
        assert!(read(name, &[&whole[..], &[0; 100]].concat(), load).is_ok());
    }
}

#[test]
fn text_is_told_by_its_line() {
    let returns = "1: a carriage return within the line; lines end with LF or CR LF, not with CR alone";
    for (name, load, is) in [
        ("edges", graph as Load, "a graph file is text with an edge a line"),
        (
            "a.csv",
            table,
            "a table is a CSV file with a trip a line, or a Parquet file",
        ),
    ] {
        let refused = |bytes: &[u8]| {
            let (path, _folder) = common::file(name, bytes);
            let message = load(&path).unwrap_err().to_string();
            message[path.display().to_string().len() + 1..].to_owned()
        };
        let long = format!("1: longer than 65536 bytes; {is}");
        assert!(refused(&[b'7'; 100_000]).starts_with(&long));
        assert_eq!(refused(b"1 2\r3 4\n"), returns);
        assert_eq!(refused(b"\xef\xbb\xbf1 2\r3 4\n"), returns);
    }
}

/// Takes some bytes and fails then, as a full disk does.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_cannot_be_written_whole_is_an_error() {
    let list = common::load("a.txt", b"1 2\n", &WEIGHTED).0.unwrap();
    let trips = generate(10_000, 1).unwrap();
    let clusters = Clusters {
        count: 500,
        dim: 30,
        clusters: 3,
    };
    let (floats, bytes) = (clusters.vectors(1).unwrap(), Vectors::new(2, vec![255.0; 800]).unwrap());
    let ids = Neighbours::new(1, (0..900).collect()).unwrap();
    type Writer<'a> = &'a dyn Fn(&mut (dyn Write + Send)) -> Result<(), Box<dyn Error>>;
    let of_table = |result| match result {
        Err(TableError::Write { source }) => Err(source.into()),
        other => other.map_err(Into::into),
    };
    let of_vectors = |result| match result {
        Err(VectorError::Write { source }) => Err(source.into()),
        other => other.map_err(Into::into),
    };
    let writers: [Writer<'_>; 6] = [
        &|out| Ok(list.write(out, &mut |_| {})?),
        &|out| of_table(write_csv(&trips, out)),
        &|out| of_table(write_parquet(&trips, out)),
        &|out| of_vectors(write_fvecs(&floats, out)),
        &|out| of_vectors(write_bvecs(&bytes, out)),
        &|out| of_vectors(write_ivecs(&ids, out)),
    ];
    for (number, write) in writers.iter().enumerate() {
        let mut whole = Vec::new();
        write(&mut whole).unwrap();
        for room in [0, 10, whole.len() / 2, whole.len() - 1] {
            let error = write(&mut Full(room)).unwrap_err();
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            assert_eq!(kind, Some(io::ErrorKind::StorageFull), "writer {number}: {error}");
        }
        write(&mut Full(whole.len())).unwrap();
    }
}

proptest! {
    /// Whatever a file holds, the answer is what it holds or an error that names the file. A damage is more often near the end, where a Parquet
    /// file says what is in it.
    #[test]
    fn damaged_files_are_answered(
        file in any::<prop::sample::Index>(),
        places in prop::collection::vec((any::<u32>(), 1_u8..), 1..4),
        cut in prop::option::weighted(0.1, any::<u32>()),
    ) {
        let files = files();
        let (name, mut bytes, load) = files[file.index(files.len())].clone();
        for (place, value) in places {
            let (length, at) = (bytes.len(), place as usize >> 1);
            let at = if place % 2 == 0 { at % length } else { length - 1 - at % length.min(2500) };
            bytes[at] ^= value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut as usize % bytes.len());
        }
        let _ = read(name, &bytes, load);
    }

    /// The begin of a file, and then anything.
    #[test]
    fn garbage_is_answered(
        file in any::<prop::sample::Index>(),
        kept in any::<prop::sample::Index>(),
        body in prop::collection::vec(prop_oneof![
            4 => prop::sample::select(b"0123456789 ,\n\r.-:%#e\"".to_vec()),
            1 => any::<u8>(),
            1 => Just(0),
        ], 0..200),
    ) {
        let files = files();
        let (name, bytes, load) = &files[file.index(files.len())];
        let kept = &bytes[..kept.index(bytes.len().min(300))];
        let _ = read(name, &[kept, &body].concat(), *load);
    }
}
