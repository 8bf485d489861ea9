//! What a user writes to name a graph, and loading it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::{GraphError, SpecError};
use super::generate::{self, DEFAULT_SEED, Kind};
use super::source::Lines;
use super::weights::{self, Weights};
use super::{Direction, Graph, ProgressFn, csr_file, edge_list, gap, matrix_market};

/// The largest scale of a generated graph: 2^30 vertices.
pub const MAX_SCALE: u32 = 30;
/// The largest degree of a generated graph.
pub const MAX_DEGREE: u32 = 4096;
/// The degree of a generated graph where none is given, as in GAP and Graph500.
pub const DEFAULT_DEGREE: u32 = 16;

/// A graph by name: a file, `kron:SCALE[:DEGREE]` or `urand:SCALE[:DEGREE]`.
///
/// A generated graph has 2^SCALE vertices and DEGREE * 2^SCALE drawn edges, fewer after self-loops
/// and duplicates are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphSpec {
    /// A Matrix Market file or an edge list, plain or gzip; a `.gcsr` file, or a serialized graph of the GAP benchmark (`.sg`, `.wsg`).
    File(PathBuf),
    /// A Kronecker graph with Graph500's parameters.
    Kronecker {
        /// The logarithm of the number of vertices.
        scale: u32,
        /// Drawn edges for each vertex.
        degree: u32,
    },
    /// A graph whose edges have uniform ends.
    Uniform {
        /// The logarithm of the number of vertices.
        scale: u32,
        /// Drawn edges for each vertex.
        degree: u32,
    },
}

/// How to load a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Overrides what the file says of its direction; generated graphs are undirected by default. A file that stores both directions of
    /// each edge stays undirected: a symmetric matrix, an undirected `.gcsr`, `.sg` or `.wsg` file.
    pub direction: Option<Direction>,
    /// The seed of a generated graph and of drawn weights.
    pub seed: u64,
    /// Which weights the edges have.
    pub weights: Weights,
    /// Whether the checksums of a `.gcsr` file are compared, and whether its undirected edges are looked for in both rows.
    /// Without it such a file is only checked so far that no row leads outside the graph and all are sorted.
    pub verify: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            direction: None,
            seed: DEFAULT_SEED,
            weights: Weights::None,
            verify: false,
        }
    }
}

impl GraphSpec {
    /// Reads or generates the graph, on all cores, and reports its progress to `progress`.
    ///
    /// A file is a `.gcsr` file when it begins with that format's magic bytes or is named so, and a serialized graph of the GAP
    /// benchmark when its name ends in `.sg` or `.wsg`. Else it is text: gzip when it begins with gzip's magic bytes, and a Matrix Market
    /// file when it begins with `%%MatrixMarket` or its name ends in `.mtx` or `.mtx.gz`; else it is an edge list.
    ///
    /// A `.gcsr` file is mapped for as long as the graph or a clone of it lives. Meanwhile nobody may write into it or cut it: a search
    /// would see any mixture, and a page that is gone ends the process. A new file may take its name.
    ///
    /// # Errors
    /// [`GraphError`], with file and line, or byte, where a file is at fault.
    pub fn load(&self, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        let direction = options.direction.unwrap_or(Direction::Undirected);
        let mut generate =
            |kind, scale, degree| generate::generate(kind, scale, degree, options.seed, direction, progress);
        let mut graph = match *self {
            GraphSpec::Kronecker { scale, degree } => generate(Kind::Kronecker, scale, degree)?,
            GraphSpec::Uniform { scale, degree } => generate(Kind::Uniform, scale, degree)?,
            GraphSpec::File(ref path) => load_file(path, options, progress)?,
        };
        if options.weights != Weights::None && graph.weights.is_none() {
            graph.weights = Some(weights::draw_weights(&graph.csr, options.seed)?.into());
        }
        Ok(graph)
    }
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Csr,
    Gap { weighted: bool },
}

impl Format {
    /// By the magic bytes, else by the name. Of a pipe nothing is read.
    fn of(path: &Path, file: &File) -> Format {
        let mut magic = csr_file::MAGIC;
        magic.fill(0);
        // Files that are too short, and those that cannot be read, are told by their readers.
        let begins = file.read_exact_at(&mut magic, 0).is_ok() && magic == csr_file::MAGIC;
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            _ if begins => Format::Csr,
            Some("gcsr") => Format::Csr,
            Some("sg") => Format::Gap { weighted: false },
            Some("wsg") => Format::Gap { weighted: true },
            _ => Format::Text,
        }
    }
}

fn load_file(path: &Path, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
    let failed = |source| GraphError::Open {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let format = Format::of(path, &file);
    if format != Format::Text && !metadata.is_file() {
        return Err(GraphError::NotRegular { path: path.to_owned() });
    }
    let graph = match format {
        Format::Text => return load_text(path, file, metadata.len(), options, progress),
        Format::Csr => csr_file::load(path, &file, options, progress)?,
        Format::Gap { weighted } => gap::read(path, &file, weighted, options, progress)?,
    };
    match (graph.direction, options.direction) {
        (Direction::Directed, Some(Direction::Undirected)) => graph.mirrored(progress),
        _ => Ok(graph),
    }
}

fn load_text(
    path: &Path,
    file: File,
    total_bytes: u64,
    options: &LoadOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<Graph, GraphError> {
    enum Read {
        Matrix(matrix_market::Adjacency<()>),
        Weighted(matrix_market::Adjacency<u32>),
        Edges(edge_list::EdgeList),
    }
    let direction = options.direction;
    // The reader and its buffers are gone before the rows are built.
    let read = {
        let mut report = |step| progress(step);
        let mut lines = Lines::of(path, file, total_bytes, &mut report)?;
        if !lines.advance_to_text()? {
            let (path, line) = (lines.path(), lines.number());
            return Err(GraphError::Empty {
                path,
                line,
                wanted: "edge",
            });
        }
        if !is_matrix_market(path, lines.text()?) {
            Read::Edges(edge_list::read(&mut lines, direction)?)
        } else if options.weights == Weights::FromFileOrDrawn && matrix_market::has_weights(&lines)? {
            Read::Weighted(matrix_market::read(&mut lines, direction)?)
        } else {
            Read::Matrix(matrix_market::read(&mut lines, direction)?)
        }
    };
    match read {
        Read::Matrix(matrix) => matrix.build(progress),
        Read::Weighted(matrix) => matrix.build(progress),
        Read::Edges(edges) => edges.build(progress),
    }
}

fn is_matrix_market(path: &Path, first_line: &str) -> bool {
    let banner = matrix_market::BANNER.as_bytes();
    let start = &first_line.as_bytes()[..banner.len().min(first_line.len())];
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    start.eq_ignore_ascii_case(banner) || name.is_some_and(|name| name.ends_with(".mtx") || name.ends_with(".mtx.gz"))
}

impl FromStr for GraphSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<GraphSpec, SpecError> {
        if text.is_empty() {
            return Err(SpecError::Empty);
        }
        let mut parts = text.split(':');
        let generator = match parts.next() {
            Some("kron") => "kron",
            Some("urand") => "urand",
            _ => return Ok(GraphSpec::File(PathBuf::from(text))),
        };
        let spec = || text.to_owned();
        let Some(scale) = parts.next() else {
            return Err(SpecError::NoScale {
                spec: spec(),
                generator,
            });
        };
        let number = |word: &str, limit| word.parse().ok().filter(|n| (1..=limit).contains(n));
        let Some(scale) = number(scale, MAX_SCALE) else {
            return Err(SpecError::Scale {
                spec: spec(),
                scale: scale.to_owned(),
            });
        };
        let degree = match parts.next() {
            None => DEFAULT_DEGREE,
            Some(degree) => number(degree, MAX_DEGREE).ok_or_else(|| SpecError::Degree {
                spec: spec(),
                degree: degree.to_owned(),
            })?,
        };
        if parts.next().is_some() {
            return Err(SpecError::TooManyParts {
                spec: spec(),
                generator,
            });
        }
        Ok(match generator {
            "kron" => GraphSpec::Kronecker { scale, degree },
            _ => GraphSpec::Uniform { scale, degree },
        })
    }
}

impl fmt::Display for GraphSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphSpec::File(path) => write!(out, "{}", path.display()),
            GraphSpec::Kronecker { scale, degree } => write!(out, "kron:{scale}:{degree}"),
            GraphSpec::Uniform { scale, degree } => write!(out, "urand:{scale}:{degree}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        let kron = GraphSpec::Kronecker { scale: 18, degree: 16 };
        assert_eq!("kron:18".parse(), Ok(kron.clone()));
        assert_eq!(kron.to_string().parse(), Ok(kron));
        assert_eq!("urand:3:5".parse(), Ok(GraphSpec::Uniform { scale: 3, degree: 5 }));
        assert_eq!("a:b.mtx".parse(), Ok(GraphSpec::File("a:b.mtx".into())));
        assert_eq!("./kron".parse(), Ok(GraphSpec::File("./kron".into())));
    }

    #[test]
    fn bad_names_are_explained() {
        let message = |text: &str| text.parse::<GraphSpec>().unwrap_err().to_string();
        assert!(message("").contains("name a file"));
        assert!(message("kron").contains("without a scale"));
        for scale in ["kron:", "kron:x", "kron:0", "kron:31", "urand:-3", "kron:99999999999"] {
            assert!(message(scale).contains("from 1 to 30"), "{scale}");
        }
        for degree in ["kron:3:", "kron:3:0", "kron:3:4097", "urand:3:x"] {
            assert!(message(degree).contains("from 1 to 4096"), "{degree}");
        }
        assert!(message("urand:3:4:5").contains("too many parts"));
    }
}
