//! Tables of trips from files.

mod parquet_files;
mod table_files;
mod table_round_trip;

use std::io::Write;
use std::path::PathBuf;

use flate2::{Compression, write::GzEncoder};
use gpuvm_workloads::table::{TableError, TableSpec, Trips};
use tempfile::TempDir;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn load_bytes(name: &str, bytes: &[u8]) -> (Result<Trips, TableError>, PathBuf, TempDir) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (TableSpec::File(path.clone()).load(1), path, folder)
}

fn load(name: &str, bytes: &[u8]) -> Trips {
    load_bytes(name, bytes).0.unwrap()
}

/// The message for a bad file, which must begin with the file's name, without that name.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let (result, path, _folder) = load_bytes(name, bytes);
    let message = result.unwrap_err().to_string();
    let rest = message.strip_prefix(&format!("{}:", path.display()));
    rest.unwrap_or_else(|| panic!("{message} does not name the file first"))
        .to_owned()
}
