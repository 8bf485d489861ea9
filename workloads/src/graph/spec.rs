//! What a user writes to name a graph, and loading it.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::edge_list::EdgeList;
use super::error::GraphError;
use super::generate::{self, Kind};
use super::text::{Adjacency, Kept};
use super::weights::{self, Weights};
use super::{Direction, Graph, LoadOptions, ProgressFn, csr_file, dimacs, edge_list, gap, matrix_market, metis};
use crate::input::{FileError, FileKind, Input, Lines, Number, SpecError, numbers};

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
    /// A file of Matrix Market, METIS or DIMACS, or an edge list, plain or gzip; a `.gcsr` file, or a serialized graph of the GAP benchmark (`.sg`, `.wsg`).
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

impl GraphSpec {
    /// Reads or generates the graph, on all cores, and reports its progress to `progress`.
    ///
    /// `docs/GRAPHS.md` says by what each format is known. Text is gzip when it begins with gzip's magic bytes.
    ///
    /// A `.gcsr` file is mapped for as long as the graph or a clone of it lives. Meanwhile nothing may write into it or cut it: a search
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
            graph.drawn = true;
        }
        Ok(graph)
    }
}

/// How messages speak of graph files.
const KIND: FileKind = FileKind {
    what: "the graph file",
    give: GIVE,
    is: "a graph file is text with an edge a line (Matrix Market, DIMACS or an edge list) or a row (METIS), or its name ends in .gcsr, .sg or .wsg",
};
const GIVE: &str = "name a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]";

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Csr,
    Gap { weighted: bool },
}

impl Format {
    /// By the name alone.
    fn named(path: &Path) -> Format {
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("gcsr") => Format::Csr,
            Some("sg") => Format::Gap { weighted: false },
            Some("wsg") => Format::Gap { weighted: true },
            _ => Format::Text,
        }
    }
}

fn load_file(path: &Path, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
    const MAGIC_BYTES: usize = csr_file::MAGIC.len();
    let format = Format::named(path);
    let file = match format {
        Format::Text => Input::open_stream(path, &KIND)?,
        _ => Input::open(path, &KIND)?,
    };
    let has_magic = file.begin::<MAGIC_BYTES>() == csr_file::MAGIC;
    let graph = match format {
        Format::Gap { weighted } if !has_magic => gap::read(&file, weighted, options, progress)?,
        Format::Text if !has_magic => return load_text(file, options, progress),
        _ => csr_file::load(&file, options, progress)?,
    };
    match (graph.direction, options.direction) {
        (Direction::Directed, Some(Direction::Undirected)) => graph.mirrored(progress),
        _ => Ok(graph),
    }
}

/// A file that was read, before its edges are rows.
enum Read<W> {
    Counted(Adjacency<W>),
    List(EdgeList<W>),
}

/// What a text begins with, once its lines are known to be of that format.
enum Head {
    Matrix,
    Metis(metis::Header),
    Dimacs(dimacs::Header),
    List(edge_list::Head),
}

impl Head {
    /// By the first line that has text, which is the current one, and the name.
    fn read(lines: &mut Lines<'_>) -> Result<Head, FileError> {
        let name = lines.path().to_string_lossy().to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let banner = matrix_market::BANNER.as_bytes();
        let begin = lines.bytes().get(..banner.len());
        Ok(
            if begin.is_some_and(|begin| begin.eq_ignore_ascii_case(banner)) || name.ends_with(".mtx") {
                Head::Matrix
            } else if name.ends_with(".graph") || name.ends_with(".metis") {
                Head::Metis(metis::Header::read(lines)?)
            } else if dimacs::begins(lines.bytes()) {
                Head::Dimacs(dimacs::Header::read(lines)?)
            } else {
                Head::List(edge_list::Head::read(lines)?)
            },
        )
    }

    /// Whether the edges have weights.
    fn weighted(&self, lines: &Lines<'_>) -> Result<bool, FileError> {
        match self {
            Head::Matrix => matrix_market::has_weights(lines),
            Head::Metis(head) => Ok(head.weighted),
            Head::Dimacs(head) => Ok(head.weighted),
            Head::List(head) => Ok(head.weighted),
        }
    }

    fn read_edges<W: Kept>(self, lines: &mut Lines<'_>, direction: Option<Direction>) -> Result<Read<W>, GraphError> {
        Ok(match self {
            Head::Matrix => Read::Counted(matrix_market::read(lines, direction)?),
            Head::Metis(head) => Read::Counted(metis::read(lines, head)?),
            Head::Dimacs(head) => Read::Counted(dimacs::read(lines, head, direction)?),
            Head::List(head) => Read::List(edge_list::read(lines, head, direction)?),
        })
    }
}

impl<W: Kept> Read<W> {
    fn build(self, path: &Path, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        match self {
            Read::Counted(edges) => edges.build(path, progress),
            Read::List(edges) => edges.build(progress),
        }
    }
}

fn load_text(file: Input<'_>, options: &LoadOptions, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
    let (path, direction) = (file.path, options.direction);
    // The reader and its buffers are gone before the rows are built.
    let (plain, weighted) = {
        let mut report = |step| progress(step);
        let mut lines = Lines::of(file, &mut report)?;
        if !lines.advance_to_text()? {
            return Err(edge_list::no_edge(&lines).into());
        }
        let head = Head::read(&mut lines)?;
        match options.weights == Weights::FromFileOrDrawn && head.weighted(&lines)? {
            false => (Some(head.read_edges::<()>(&mut lines, direction)?), None),
            true => (None, Some(head.read_edges::<u32>(&mut lines, direction)?)),
        }
    };
    match (plain, weighted) {
        (Some(edges), _) => edges.build(path, progress),
        (_, Some(edges)) => edges.build(path, progress),
        _ => unreachable!("one of them was read"),
    }
}

impl FromStr for GraphSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<GraphSpec, SpecError> {
        if text.is_empty() {
            return Err(SpecError::Empty { give: GIVE });
        }
        let wanted = [
            Number {
                what: "scale",
                max: MAX_SCALE.into(),
                default: None,
            },
            Number {
                what: "degree",
                max: MAX_DEGREE.into(),
                default: Some(DEFAULT_DEGREE.into()),
            },
        ];
        // The largest ones are numbers of 32 bits.
        let kron = numbers(text, "kron:SCALE[:DEGREE], for example kron:18", "kron", wanted)?;
        if let Some([scale, degree]) = kron.map(|kron| kron.map(|number| number as u32)) {
            return Ok(GraphSpec::Kronecker { scale, degree });
        }
        let urand = numbers(text, "urand:SCALE[:DEGREE], for example urand:18", "urand", wanted)?;
        if let Some([scale, degree]) = urand.map(|urand| urand.map(|number| number as u32)) {
            return Ok(GraphSpec::Uniform { scale, degree });
        }
        Ok(GraphSpec::File(PathBuf::from(text)))
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
