//! Matrix Market files: <https://math.nist.gov/MatrixMarket/formats.html>, coordinate format.

use super::Direction;
use super::error::GraphError;
use super::text::{self, Adjacency, Kept};
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
    let edges = text::entries(lines, promised, |lines| {
        parse_entry::<W>(lines, header.field, vertices).map(Some)
    })?;
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
        mirrored: false,
    })
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
        // That of SciPy, beside the format's own.
        "integer" | "unsigned-integer" => Field::Integer,
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
    const EXPECTED: &str = "ROWS COLUMNS ENTRIES";
    text::skip_comments(lines, b'%', "sizes of the matrix")?;
    let mut words = lines.text()?.split_ascii_whitespace();
    let mut size = |name| text::number(lines, words.next(), name, EXPECTED);
    let (rows, columns, entries) = (size("rows")?, size("columns")?, size("entries")?);
    if let Some(word) = words.next() {
        return Err(lines.malformed(format!("{} after the three sizes", shown(word))));
    }
    if rows != columns {
        let what = format!("the matrix has {rows} rows and {columns} columns, a graph needs a square one");
        return Err(lines.error(FileFault::Unsupported, what));
    }
    Ok((text::vertices(lines, rows)?, entries))
}

fn parse_entry<W: Kept>(lines: &Lines<'_>, field: Field, vertices: u32) -> Result<(u32, u32, W), FileError> {
    let mut words = lines.text()?.split_ascii_whitespace();
    let u = text::vertex(lines, words.next(), "row index", vertices)?;
    let v = text::vertex(lines, words.next(), "column index", vertices)?;
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
        // Of any length: it may not be kept.
        if field == Field::Integer && !is_integer(word) {
            return Err(lines.malformed(format!("the value {} is not a number", shown(word))));
        }
        match u == v {
            true => drop(text::value::<()>(lines, word)?),
            false => kept = text::value(lines, word)?,
        }
    }
    match words.next() {
        None => Ok((u, v, kept)),
        Some(word) => Err(lines.malformed(format!("{} after the entry", shown(word)))),
    }
}

fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
