//! Matrix Market files: <https://math.nist.gov/MatrixMarket/formats.html>, coordinate format.

use super::csr::{self, push_edge};
use super::error::GraphError;
use super::source::{Lines, shown};
use super::{Direction, Graph, MAX_VERTICES, VertexIds};

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

/// Edges as read, before they are rows.
pub(super) struct Adjacency {
    vertices: u32,
    edges: Vec<(u32, u32)>,
    direction: Direction,
}

/// Reads a whole file; the current line of `lines` is the first one. Values are checked and
/// dropped: every entry is an edge from its row to its column, also one whose value is 0.
pub(super) fn read(lines: &mut Lines<'_>, direction: Option<Direction>) -> Result<Adjacency, GraphError> {
    let header = parse_header(lines)?;
    let (vertices, promised) = parse_sizes(lines)?;
    csr::require_memory(u64::from(vertices) * 16)?;
    let mut edges = Vec::new();
    while lines.advance_to_text()? {
        if edges.len() as u64 == promised {
            let (path, line) = (lines.path(), lines.number());
            return Err(GraphError::TooManyEntries { path, line, promised });
        }
        let edge = parse_entry(lines, header.field, vertices)?;
        push_edge(&mut edges, edge)?;
    }
    if (edges.len() as u64) < promised {
        let found = edges.len() as u64;
        let (path, line) = (lines.path(), lines.number());
        return Err(GraphError::TooFewEntries {
            path,
            line,
            promised,
            found,
        });
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

impl Adjacency {
    /// Sorts the edges into rows.
    pub(super) fn build(self, progress: &mut super::ProgressFn<'_>) -> Result<Graph, GraphError> {
        let csr = csr::build(self.vertices, self.edges, self.direction, progress)?;
        Ok(Graph {
            csr,
            ids: VertexIds::Counted { first: 1 },
            direction: self.direction,
        })
    }
}

fn parse_header(lines: &Lines<'_>) -> Result<Header, GraphError> {
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
    let unsupported = |what: String| {
        let (path, line) = (lines.path(), lines.number());
        GraphError::Unsupported { path, line, what }
    };
    if object != "matrix" {
        return Err(unsupported(format!("the object {}", shown(object))));
    }
    if format != "coordinate" {
        return Err(unsupported(format!("the format {}", shown(format))));
    }
    let field = match field {
        "pattern" => Field::Pattern,
        "real" | "double" => Field::Real,
        "integer" => Field::Integer,
        "complex" => Field::Complex,
        _ => return Err(unsupported(format!("the field {}", shown(field)))),
    };
    let symmetric = match (symmetry, field) {
        ("general", _) => false,
        ("symmetric", _) => true,
        ("skew-symmetric", Field::Real | Field::Integer | Field::Complex) => true,
        ("hermitian", Field::Complex) => true,
        ("skew-symmetric" | "hermitian", _) => {
            return Err(lines.malformed(format!("a matrix of this field cannot be {symmetry}")));
        }
        _ => return Err(unsupported(format!("the symmetry {}", shown(symmetry)))),
    };
    Ok(Header { field, symmetric })
}

/// Skips the comments and reads rows, columns and entries.
fn parse_sizes(lines: &mut Lines<'_>) -> Result<(u32, u64), GraphError> {
    loop {
        if !lines.advance_to_text()? {
            let (path, line) = (lines.path(), lines.number());
            return Err(GraphError::Empty {
                path,
                line,
                wanted: "sizes of the matrix",
            });
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
    let (path, line) = (lines.path(), lines.number());
    if rows != columns {
        return Err(GraphError::NotSquare {
            path,
            line,
            rows,
            columns,
        });
    }
    match u32::try_from(rows) {
        Ok(0) => Err(GraphError::Empty {
            path,
            line,
            wanted: "vertex",
        }),
        Ok(vertices) if vertices <= MAX_VERTICES => Ok((vertices, entries)),
        _ => Err(GraphError::TooManyVertices {
            path,
            line,
            vertices: rows,
        }),
    }
}

fn parse_entry(lines: &Lines<'_>, field: Field, vertices: u32) -> Result<(u32, u32), GraphError> {
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
            _ => Err(GraphError::OutOfRange {
                path: lines.path(),
                line: lines.number(),
                which,
                index,
                vertices: u64::from(vertices),
            }),
        }
    };
    let edge = (index("row")?, index("column")?);
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
    }
    match words.next() {
        None => Ok(edge),
        Some(word) => Err(lines.malformed(format!("{} after the entry", shown(word)))),
    }
}

/// Of any length: the value is not kept.
fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
