//! Files made of bytes, and what is read from them.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};
use gpuvm_workloads::graph::{Graph, GraphError, GraphSpec, LoadOptions, Progress, Stage, Weights};
use gpuvm_workloads::table::{TableError, TableSpec, Trips};
use tempfile::TempDir;

/// Graphs as they are by default.
pub const PLAIN: LoadOptions = LoadOptions {
    direction: None,
    seed: 1,
    weights: Weights::None,
    verify: false,
};

/// Graphs with weights.
pub const WEIGHTED: LoadOptions = LoadOptions {
    weights: Weights::FromFileOrDrawn,
    ..PLAIN
};

/// Graphs with weights, whose checksums are compared.
pub const VERIFIED: LoadOptions = LoadOptions {
    verify: true,
    ..WEIGHTED
};

/// A file of that name with those bytes, and the folder that holds it.
pub fn file(name: &str, bytes: &[u8]) -> (PathBuf, TempDir) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (path, folder)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The message for a bad file, which must begin with the file's name, without that name.
pub fn told<T>(path: &Path, result: Result<T, impl Error>) -> String {
    let Err(error) = result else {
        panic!("{} was read", path.display())
    };
    let message = error.to_string();
    let rest = message.strip_prefix(&format!("{}:", path.display()));
    rest.unwrap_or_else(|| panic!("{message} does not name the file first"))
        .to_owned()
}

/// Loads a graph; its file, and the folder that holds it.
pub fn load(name: &str, bytes: &[u8], options: &LoadOptions) -> (Result<Graph, GraphError>, PathBuf, TempDir) {
    let (path, folder) = file(name, bytes);
    let result = GraphSpec::File(path.clone()).load(options, &mut |_| {});
    (result, path, folder)
}

/// That a stage of loading or writing was reported in ascending steps, up to its end.
pub fn reaches_its_end(seen: &[Progress], stage: Stage) {
    let steps: Vec<&Progress> = seen.iter().filter(|step| step.stage == stage).collect();
    assert!(steps.windows(2).all(|pair| pair[0].done <= pair[1].done), "{steps:?}");
    let last = steps.last().unwrap();
    assert!(last.done == last.total && last.total > 0, "{last:?}");
}

/// What is said of a file that is no graph.
pub fn refusal(name: &str, bytes: &[u8], options: &LoadOptions) -> String {
    let (result, path, _folder) = load(name, bytes, options);
    told(&path, result)
}

/// Loads a table.
pub fn load_table(name: &str, bytes: &[u8]) -> Result<Trips, TableError> {
    let (path, _folder) = file(name, bytes);
    TableSpec::File(path).load(1)
}

/// What is said of a file that is no table.
pub fn table_refusal(name: &str, bytes: &[u8]) -> String {
    let (path, _folder) = file(name, bytes);
    told(&path, TableSpec::File(path.clone()).load(1))
}

/// The neighbours of every vertex.
pub fn rows(graph: &Graph) -> Vec<Vec<u32>> {
    let csr = graph.csr();
    (0..csr.vertices()).map(|vertex| csr.row(vertex).to_vec()).collect()
}

/// The neighbours of every vertex with their weights.
pub fn weighted_rows(graph: &Graph) -> Vec<Vec<(u32, u32)>> {
    let mut weights = graph.weights().expect("there are weights").iter().copied();
    let rows = rows(graph).into_iter();
    let weighted = rows.map(|row| row.into_iter().zip(&mut weights).collect()).collect();
    assert_eq!(weights.next(), None);
    weighted
}

/// The graph as a `.gcsr` file.
pub fn csr_file(graph: &Graph) -> Vec<u8> {
    let mut bytes = Vec::new();
    graph.write(&mut bytes, &mut |_| {}).unwrap();
    bytes
}

/// Rows of neighbours with weights as the GAP benchmark serializes them, with the weights or without.
pub fn gap_file(rows: &[Vec<(u32, u32)>], directed: bool, weighted: bool) -> Vec<u8> {
    let mut backwards = vec![Vec::new(); rows.len()];
    for (vertex, row) in rows.iter().enumerate() {
        for (neighbour, weight) in row {
            // A test may name vertices that there are not.
            if let Some(row) = backwards.get_mut(*neighbour as usize) {
                row.push((vertex as u32, *weight));
            }
        }
    }
    let edges: usize = rows.iter().map(Vec::len).sum();
    let mut bytes = vec![u8::from(directed)];
    bytes.extend((edges as u64).to_le_bytes());
    bytes.extend((rows.len() as u64).to_le_bytes());
    let ways = [rows, &backwards];
    for rows in &ways[..if directed { 2 } else { 1 }] {
        let mut end = 0_u64;
        bytes.extend(end.to_le_bytes());
        for row in *rows {
            end += row.len() as u64;
            bytes.extend(end.to_le_bytes());
        }
        for (neighbour, weight) in rows.iter().flatten() {
            bytes.extend(neighbour.to_le_bytes());
            bytes.extend(weight.to_le_bytes().iter().filter(|_| weighted));
        }
    }
    bytes
}
