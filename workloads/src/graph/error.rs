//! Errors of graph specifications, files and generators.

use std::io;
use std::path::PathBuf;

use super::{MAX_DEGREE, MAX_SCALE, MAX_VERTICES};

/// A graph specification that names neither a file nor a generator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing was given.
    #[error("the graph is empty; name a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]")]
    Empty,
    /// A generator without a scale.
    #[error(
        "'{spec}' names a generator without a scale; write {generator}:SCALE[:DEGREE], for example {generator}:18 (or ./{spec} for a file of that name)"
    )]
    NoScale {
        /// What was given.
        spec: String,
        /// The generator's name.
        generator: &'static str,
    },
    /// A scale that is no number, or outside the supported range.
    #[error("'{spec}': the scale '{scale}' is not a whole number from 1 to {MAX_SCALE}")]
    Scale {
        /// What was given.
        spec: String,
        /// The part that was to be the scale.
        scale: String,
    },
    /// A degree that is no number, or outside the supported range.
    #[error("'{spec}': the degree '{degree}' is not a whole number from 1 to {MAX_DEGREE}")]
    Degree {
        /// What was given.
        spec: String,
        /// The part that was to be the degree.
        degree: String,
    },
    /// More parts than a generator takes.
    #[error("'{spec}' has too many parts; write {generator}:SCALE[:DEGREE]")]
    TooManyParts {
        /// What was given.
        spec: String,
        /// The generator's name.
        generator: &'static str,
    },
}

/// A graph that could not be loaded or built. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The file could not be opened.
    #[error("cannot open the graph file {}; name a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Reading failed half way.
    #[error("{}:{line}: cannot read on", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The line being read.
        line: u64,
        /// Why not.
        source: io::Error,
    },
    /// The gzip stream ends too early.
    #[error("{}:{line}: the gzip data is truncated; fetch the file again", path.display())]
    GzipTruncated {
        /// The file.
        path: PathBuf,
        /// The line at which the data ends.
        line: u64,
    },
    /// The gzip stream is damaged.
    #[error("{}:{line}: the gzip data is damaged; fetch the file again", path.display())]
    GzipDamaged {
        /// The file.
        path: PathBuf,
        /// The line at which the damage was met.
        line: u64,
        /// What the decoder says.
        source: io::Error,
    },
    /// Bytes that are no text.
    #[error("{}:{line}: not UTF-8 text; a graph file is a Matrix Market file or an edge list", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
    },
    /// A line that no graph file has.
    #[error("{}:{line}: longer than {limit_bytes} bytes; a graph file has one edge a line", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The longest line that is read.
        limit_bytes: usize,
    },
    /// No edge and no header.
    #[error("{}:{line}: the file is empty, it holds no {wanted}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The last line, 1 in a file of no bytes.
        line: u64,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A line that cannot be understood.
    #[error("{}:{line}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A Matrix Market file of a kind that is no graph.
    #[error("{}:{line}: {what} is not supported; use a square matrix in 'coordinate' format", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The header's word.
        what: String,
    },
    /// A matrix that is no adjacency matrix.
    #[error("{}:{line}: the matrix has {rows} rows and {columns} columns, a graph needs a square one", path.display())]
    NotSquare {
        /// The file.
        path: PathBuf,
        /// The line of the sizes.
        line: u64,
        /// Rows.
        rows: u64,
        /// Columns.
        columns: u64,
    },
    /// An index outside the matrix.
    #[error("{}:{line}: the {which} index {index} is outside 1 to {vertices}", path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// `row` or `column`.
        which: &'static str,
        /// The index as written.
        index: u64,
        /// The matrix's size.
        vertices: u64,
    },
    /// The file ends before the promised entries.
    #[error("{}:{line}: the file is truncated: {promised} entries are promised, it ends after {found}", path.display())]
    TooFewEntries {
        /// The file.
        path: PathBuf,
        /// The last line.
        line: u64,
        /// Entries as in the header.
        promised: u64,
        /// Entries found.
        found: u64,
    },
    /// The file goes on after the promised entries.
    #[error("{}:{line}: one entry too many: {promised} entries are promised", path.display())]
    TooManyEntries {
        /// The file.
        path: PathBuf,
        /// The line of the first entry too many.
        line: u64,
        /// Entries as in the header.
        promised: u64,
    },
    /// More vertices than vertex numbers.
    #[error("{}:{line}: {vertices} vertices, at most {MAX_VERTICES} are supported", path.display())]
    TooManyVertices {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// Vertices.
        vertices: u64,
    },
    /// An edge given to [`super::Csr::from_edges`] names no vertex of the graph.
    #[error("edge {edge} ({from}, {to}) is outside the {vertices} vertices of the graph")]
    EdgeOutOfRange {
        /// The edge's place in the list, from 0.
        edge: usize,
        /// Its first end.
        from: u32,
        /// Its second end.
        to: u32,
        /// Vertices of the graph.
        vertices: u32,
    },
    /// [`super::Csr::from_edges`] was asked for more vertices than vertex numbers.
    #[error("a graph of {vertices} vertices was asked for, at most {MAX_VERTICES} are supported")]
    VerticesOutOfRange {
        /// Vertices asked for.
        vertices: u32,
    },
    /// The machine cannot hold the graph.
    #[error(
        "the graph needs {needed_bytes} bytes of memory to build, this machine has {available_bytes} available; use a smaller graph"
    )]
    Memory {
        /// Bytes for the edges and the rows.
        needed_bytes: u64,
        /// Bytes that the machine has left.
        available_bytes: u64,
    },
}
