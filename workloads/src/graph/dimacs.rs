//! Files of the DIMACS challenges: `c` comments, a line `p sp VERTICES ARCS` and arcs `a FROM TO WEIGHT` (shortest paths), or
//! `p edge VERTICES EDGES` and edges `e ONE OTHER` (colouring).

use super::Direction;
use super::error::GraphError;
use super::text::{self, Adjacency, Kept};
use crate::input::{FileError, FileFault, Lines, require_memory, shown};

/// The line of the problem.
pub(super) struct Header {
    vertices: u32,
    entries: u64,
    /// Whether it has arcs with weights.
    pub weighted: bool,
}

/// Whether a file begins so.
pub(super) fn begins(first_line: &[u8]) -> bool {
    matches!(first_line, [b'c' | b'p'] | [b'c' | b'p', b' ' | b'\t', ..])
}

impl Header {
    /// Reads it; the current line of `lines` is the first one.
    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Header, FileError> {
        const EXPECTED: &str = "p sp VERTICES ARCS, or p edge VERTICES EDGES";
        text::skip_comments(lines, b'c', "line of the problem")?;
        let mut words = lines.text()?.split_ascii_whitespace();
        let weighted = match (words.next(), words.next()) {
            (Some("p"), Some("sp")) => true,
            (Some("p"), Some("edge" | "edges" | "col")) => false,
            (Some("p"), Some(problem)) => {
                let what = format!(
                    "the problem {} of DIMACS is not supported; expected '{EXPECTED}'",
                    shown(problem)
                );
                return Err(lines.error(FileFault::Unsupported, what));
            }
            _ => return Err(lines.malformed(format!("expected '{EXPECTED}'"))),
        };
        let vertices = text::number(lines, words.next(), "vertices", EXPECTED)?;
        let entries = text::number(lines, words.next(), "edges", EXPECTED)?;
        if let Some(word) = words.next() {
            return Err(lines.malformed(format!("{} after the sizes", shown(word))));
        }
        Ok(Header {
            vertices: text::vertices(lines, vertices)?,
            entries,
            weighted,
        })
    }
}

/// Reads the arcs or edges.
pub(super) fn read<W: Kept>(
    lines: &mut Lines<'_>,
    header: Header,
    direction: Option<Direction>,
) -> Result<Adjacency<W>, GraphError> {
    let Header {
        vertices,
        entries,
        weighted,
    } = header;
    require_memory(u64::from(vertices) * 16)?;
    let (letter, own) = match weighted {
        true => ("a", Direction::Directed),
        false => ("e", Direction::Undirected),
    };
    let edges = text::entries(lines, entries, |lines| {
        if lines.bytes().starts_with(b"c") {
            return Ok(None);
        }
        let mut words = lines.text()?.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if first != letter {
            let what = format!("{} begins no line here; '{letter}' and 'c' do", shown(first));
            return Err(lines.malformed(what));
        }
        let u = text::vertex(lines, words.next(), "first end", vertices)?;
        let v = text::vertex(lines, words.next(), "second end", vertices)?;
        let weight = match weighted {
            false => W::NONE,
            true => {
                let word = words.next().ok_or_else(|| lines.malformed("an arc without a weight"))?;
                text::value(lines, word)?
            }
        };
        match words.next() {
            None => Ok(Some((u, v, weight))),
            Some(word) => Err(lines.malformed(format!("{} after the entry", shown(word)))),
        }
    })?;
    Ok(Adjacency {
        vertices,
        edges,
        direction: direction.unwrap_or(own),
        mirrored: false,
    })
}
