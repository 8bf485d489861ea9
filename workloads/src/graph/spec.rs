//! What a user writes to name a graph, and loading it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::{GraphError, SpecError};
use super::generate::{self, DEFAULT_SEED, Kind};
use super::source::Lines;
use super::{Direction, Graph, ProgressFn, edge_list, matrix_market};

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
    /// A Matrix Market file or an edge list, plain or gzip.
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
    /// Overrides what the file says of its direction; generated graphs are undirected by default.
    pub direction: Option<Direction>,
    /// The seed of a generated graph; files ignore it.
    pub seed: u64,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            direction: None,
            seed: DEFAULT_SEED,
        }
    }
}

impl GraphSpec {
    /// Reads or generates the graph, on all cores, and reports its progress to `progress`.
    ///
    /// A file is gzip when it begins with gzip's magic bytes, and a Matrix Market file when it begins with
    /// `%%MatrixMarket` or its name ends in `.mtx` or `.mtx.gz`; else it is an edge list.
    ///
    /// # Errors
    /// [`GraphError`], with file and line where a file is at fault.
    pub fn load(&self, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        let (kind, scale, degree) = match self {
            GraphSpec::File(path) => return load_file(path, options.direction, progress),
            GraphSpec::Kronecker { scale, degree } => (Kind::Kronecker, *scale, *degree),
            GraphSpec::Uniform { scale, degree } => (Kind::Uniform, *scale, *degree),
        };
        let direction = options.direction.unwrap_or(Direction::Undirected);
        generate::generate(kind, scale, degree, options.seed, direction, progress)
    }
}

fn load_file(path: &Path, direction: Option<Direction>, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
    enum Read {
        Matrix(matrix_market::Adjacency),
        Edges(edge_list::EdgeList),
    }
    // The reader and its buffers are gone before the rows are built.
    let read = {
        let mut report = |step| progress(step);
        let mut lines = Lines::open(path, &mut report)?;
        if !lines.advance_to_text()? {
            let (path, line) = (lines.path(), lines.number());
            return Err(GraphError::Empty {
                path,
                line,
                wanted: "edge",
            });
        }
        if is_matrix_market(path, lines.text()?) {
            Read::Matrix(matrix_market::read(&mut lines, direction)?)
        } else {
            Read::Edges(edge_list::read(&mut lines, direction)?)
        }
    };
    match read {
        Read::Matrix(matrix) => matrix.build(progress),
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
