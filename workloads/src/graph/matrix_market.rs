//! Matrix Market files: <https://math.nist.gov/MatrixMarket/formats.html>, coordinate format.

use super::array::Array;
use super::csr::{self, push_edge};
use super::error::GraphError;
use super::{Direction, Graph, MAX_VERTICES, VertexIds};
use crate::input::{FileError, FileFault, Lines, require_memory, shown};

/// The first word of a Matrix Market file, in any case.
pub(super) const BANNER: &str = "%%MatrixMarket";

/// What stands after a row and a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Pattern,
    Real,
    Integer,
    Complex,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    field: Field,
    symmetric: bool,
}

/// Edges as read, before they are rows, each with its weight or with `()`.
pub(super) struct Adjacency<W> {
    vertices: u32,
    edges: Vec<(u32, u32, W)>,
    direction: Direction,
}

/// What is kept of an entry's value.
pub(super) trait Kept: Copy + Ord + Send + Sync {
    /// For an entry without a value, and for a self-loop, which is dropped whatever its value.
    const NONE: Self;
    /// Of a value that was found to be a number; `None` for one that cannot be kept.
    fn of(value: &str) -> Option<Self>;
    /// What was kept of all, in the order of the neighbours.
    fn weights(kept: Vec<Self>) -> Option<Array<u32>>;
}

impl Kept for () {
    const NONE: () = ();

    fn of(_: &str) -> Option<()> {
        Some(())
    }

    fn weights(_: Vec<()>) -> Option<Array<u32>> {
        None
    }
}

impl Kept for u32 {
    const NONE: u32 = 1;

    /// Also of a real number that is whole, such as `3.0` or `1e2`.
    fn of(value: &str) -> Option<u32> {
        let number = value.parse::<f64>().ok()?;
        let fits = number.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(&number);
        fits.then_some(number as u32)
    }

    fn weights(kept: Vec<u32>) -> Option<Array<u32>> {
        Some(kept.into())
    }
}

/// Whether the entries of a file have weights; the current line of `lines` is the first one.
///
/// # Errors
/// [`FileFault::Malformed`] where they have values that are none by their kind.
pub(super) fn has_weights(lines: &Lines<'_>) -> Result<bool, FileError> {
    let field = parse_header(lines)?.field;
    let skew = lines.text()?.to_ascii_lowercase().ends_with("skew-symmetric");
    match field {
        Field::Pattern => Ok(false),
        Field::Real | Field::Integer if !skew => Ok(true),
        _ => Err(lines
            .malformed("weights are positive numbers, which the values of this matrix are not; have weights drawn")),
    }
}

/// Reads a whole file; the current line of `lines` is the first one. Values are checked, and dropped where no weights are kept: every
/// entry is an edge from its row to its column, also one whose value is 0.
pub(super) fn read<W: Kept>(lines: &mut Lines<'_>, direction: Option<Direction>) -> Result<Adjacency<W>, GraphError> {
    let header = parse_header(lines)?;
    let (vertices, promised) = parse_sizes(lines)?;
    require_memory(u64::from(vertices) * 16)?;
    let mut edges = Vec::new();
    while lines.advance_to_text()? {
        if edges.len() as u64 == promised {
            let what = format!("one entry too many: {promised} entries are promised");
            return Err(lines.malformed(what).into());
        }
        let edge = parse_entry::<W>(lines, header.field, vertices)?;
        push_edge(&mut edges, edge)?;
    }
    if (edges.len() as u64) < promised {
        let found = edges.len();
        let what = format!("the file is truncated: {promised} entries are promised, it ends after {found}");
        return Err(lines.error(FileFault::Truncated, what).into());
    }
    let stored = if header.symmetric {
        Direction::Undirected
    } else {
        Direction::Directed
    };
    // One half of a symmetric matrix is not a directed graph: both halves are always walked.
    let direction = if header.symmetric {
        stored
    } else {
        direction.unwrap_or(stored)
    };
    Ok(Adjacency {
        vertices,
        edges,
        direction,
    })
}

impl<W: Kept> Adjacency<W> {
    /// Sorts the edges into rows.
    pub(super) fn build(self, progress: &mut super::ProgressFn<'_>) -> Result<Graph, GraphError> {
        let (csr, kept) = csr::build(self.vertices, self.edges, self.direction, progress)?;
        Ok(Graph {
            csr,
            weights: W::weights(kept),
            ids: VertexIds::Counted { first: 1 },
            direction: self.direction,
        })
    }
}

fn parse_header(lines: &Lines<'_>) -> Result<Header, FileError> {
    let text = lines.text()?.to_ascii_lowercase();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let &[banner, object, format, field, symmetry] = words.as_slice() else {
        return Err(lines.malformed(format!(
            "a header of {} words; expected '{BANNER} matrix coordinate FIELD SYMMETRY'",
            words.len()
        )));
    };
    if banner != BANNER.to_ascii_lowercase() {
        return Err(lines.malformed(format!(
            "{}: a Matrix Market file starts with '{BANNER}'",
            shown(banner)
        )));
    }
    let unsupported = |what: &str, word: &str| {
        let word = shown(word);
        let what = format!("the {what} {word} is not supported; use a square matrix in 'coordinate' format");
        lines.error(FileFault::Unsupported, what)
    };
    if object != "matrix" {
        return Err(unsupported("object", object));
    }
    if format != "coordinate" {
        return Err(unsupported("format", format));
    }
    let field = match field {
        "pattern" => Field::Pattern,
        "real" | "double" => Field::Real,
        "integer" => Field::Integer,
        "complex" => Field::Complex,
        _ => return Err(unsupported("field", field)),
    };
    let symmetric = match (symmetry, field) {
        ("general", _) => false,
        ("symmetric", _) => true,
        ("skew-symmetric", Field::Real | Field::Integer | Field::Complex) => true,
        ("hermitian", Field::Complex) => true,
        ("skew-symmetric" | "hermitian", _) => {
            return Err(lines.malformed(format!("a matrix of this field cannot be {symmetry}")));
        }
        _ => return Err(unsupported("symmetry", symmetry)),
    };
    Ok(Header { field, symmetric })
}

/// Skips the comments and reads rows, columns and entries.
fn parse_sizes(lines: &mut Lines<'_>) -> Result<(u32, u64), FileError> {
    loop {
        if !lines.advance_to_text()? {
            return Err(lines.error(FileFault::Empty, "the file is empty, it holds no sizes of the matrix"));
        }
        if !lines.text()?.starts_with('%') {
            break;
        }
    }
    let mut words = lines.text()?.split_ascii_whitespace();
    let mut size = |name: &str| match words.next() {
        Some(word) => word
            .parse::<u64>()
            .map_err(|_| lines.malformed(format!("the {name} {} are no number", shown(word)))),
        None => Err(lines.malformed(format!("the {name} are missing; expected 'ROWS COLUMNS ENTRIES'"))),
    };
    let (rows, columns, entries) = (size("rows")?, size("columns")?, size("entries")?);
    if let Some(word) = words.next() {
        return Err(lines.malformed(format!("{} after the three sizes", shown(word))));
    }
    if rows != columns {
        let what = format!("the matrix has {rows} rows and {columns} columns, a graph needs a square one");
        return Err(lines.error(FileFault::Unsupported, what));
    }
    match u32::try_from(rows) {
        Ok(0) => Err(lines.error(FileFault::Empty, "the file is empty, it holds no vertex")),
        Ok(vertices) if vertices <= MAX_VERTICES => Ok((vertices, entries)),
        _ => {
            let what = format!("{rows} vertices, at most {MAX_VERTICES} are supported");
            Err(lines.error(FileFault::TooLarge, what))
        }
    }
}

fn parse_entry<W: Kept>(lines: &Lines<'_>, field: Field, vertices: u32) -> Result<(u32, u32, W), FileError> {
    let mut words = lines.text()?.split_ascii_whitespace();
    let mut index = |which: &'static str| {
        let word = words
            .next()
            .ok_or_else(|| lines.malformed(format!("an entry without a {which} index")))?;
        let index: u64 = word
            .parse()
            .map_err(|_| lines.malformed(format!("the {which} index {} is no number", shown(word))))?;
        match index.checked_sub(1).and_then(|vertex| u32::try_from(vertex).ok()) {
            Some(vertex) if vertex < vertices => Ok(vertex),
            _ => Err(lines.malformed(format!("the {which} index {index} is outside 1 to {vertices}"))),
        }
    };
    let (u, v) = (index("row")?, index("column")?);
    let mut kept = W::NONE;
    let values = match field {
        Field::Pattern => 0,
        Field::Real | Field::Integer => 1,
        Field::Complex => 2,
    };
    for value in 0..values {
        let Some(word) = words.next() else {
            return Err(lines.malformed(format!("an entry with {value} of the {values} numbers of its value")));
        };
        let number = match field {
            Field::Integer => is_integer(word),
            _ => word.parse::<f64>().is_ok(),
        };
        if !number {
            return Err(lines.malformed(format!("the value {} is no number", shown(word))));
        }
        if u != v {
            kept = W::of(word).ok_or_else(|| {
                lines.malformed(format!(
                    "the value {} is no weight, which is a whole number from 1 to {}; have weights drawn, or give the file others",
                    shown(word),
                    u32::MAX
                ))
            })?;
        }
    }
    match words.next() {
        None => Ok((u, v, kept)),
        Some(word) => Err(lines.malformed(format!("{} after the entry", shown(word)))),
    }
}

/// Of any length: it may not be kept.
fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
