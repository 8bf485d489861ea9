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
    #[error("{}:{line}: not UTF-8 text; a graph file is text (Matrix Market or an edge list), or its name ends in .gcsr, .sg or .wsg", path.display())]
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
    /// A value of a Matrix Market file that is no weight.
    #[error("{}:{line}: the value {value} is no weight, which is a whole number from 1 to {}; have weights drawn, or give the file others", path.display(), u32::MAX)]
    Weight {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The value as written.
        value: String,
    },
    /// Something that has no length and no places, such as a pipe, in the place of a binary file.
    #[error("{}: a .gcsr, .sg or .wsg graph has to be a regular file", path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// A binary file could not be read.
    #[error("{}: byte {at}: cannot read on", path.display())]
    ReadAt {
        /// The file.
        path: PathBuf,
        /// The first byte that was asked for, from 0.
        at: u64,
        /// Why not.
        source: io::Error,
    },
    /// A binary file could not be mapped.
    #[error("{}: cannot map the file into memory", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A header of a binary file that cannot be.
    #[error("{}: byte {at}: {what}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The byte at fault, from 0.
        at: u64,
        /// What is wrong there.
        what: String,
    },
    /// A binary file of another length than its header says.
    #[error(
        "{}: byte {found}: the file ends here, and with {vertices} vertices and {edges} edges it would end at byte {expected}; fetch it again", path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Vertices as in the header.
        vertices: u32,
        /// Stored neighbours as in the header.
        edges: u64,
        /// The length that follows, in bytes.
        expected: u128,
        /// The length of the file.
        found: u64,
    },
    /// A row of a binary file that cannot be.
    #[error("{}: byte {at}: row {row} {what}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The first byte of the element at fault.
        at: u64,
        /// The row, from 0.
        row: u32,
        /// What is wrong with it.
        what: String,
    },
    /// A binary file of an undirected graph that has an edge in one row only, or with two weights.
    #[error(
        "{}: the graph is undirected by its header, and not every edge is in the rows of both its ends with one weight; write the file again", path.display()
    )]
    NotMirrored {
        /// The file.
        path: PathBuf,
    },
    /// A section of a `.gcsr` file is not what was written.
    #[error("{}: byte {at}: the checksum of the {section} does not fit: the file is damaged; convert the graph again", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Where the section begins.
        at: u64,
        /// Its name.
        section: &'static str,
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
