//! METIS files: a line of sizes, then the row of each vertex. The manual of METIS 5.1, section 4.1.1.

use super::Direction;
use super::csr::push_edge;
use super::error::GraphError;
use super::text::{self, Adjacency, Kept};
use crate::input::{FileError, FileFault, Lines, require_memory, shown};

const EXPECTED: &str = "VERTICES EDGES [FORMAT [WEIGHTS]]";

/// The longest row that is read.
const ROW_BYTES_MAX: usize = 1 << 30;

/// The first line that is no comment.
pub(super) struct Header {
    vertices: u32,
    edges: u64,
    /// Numbers of each row before its neighbours: the vertex's size and weights.
    before: u64,
    /// Whether each neighbour is followed by its edge's weight.
    pub weighted: bool,
}

impl Header {
    /// Reads it; the current line of `lines` is the first one.
    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Header, FileError> {
        text::skip_comments(lines, b'%', "sizes of the graph")?;
        let mut words = lines.text()?.split_ascii_whitespace();
        let vertices = text::number(lines, words.next(), "vertices", EXPECTED)?;
        let edges = text::number(lines, words.next(), "edges", EXPECTED)?;
        let format = words.next().unwrap_or("0");
        let of = |digit: u32| format.bytes().rev().nth(digit as usize) == Some(b'1');
        if format.len() > 3 || !format.bytes().all(|digit| matches!(digit, b'0' | b'1')) {
            let what = format!("the format {} is not up to three digits of 0 and 1", shown(format));
            return Err(lines.malformed(what));
        }
        let weights = words.next().map(|word| (word, word.parse().ok()));
        let weights = match (weights, of(1)) {
            (None, has) => u64::from(has),
            (Some((_, Some(count @ 1..))), true) => count,
            (Some((word, _)), _) => {
                let what = format!("{} weights of a vertex, in the format {format}", shown(word));
                return Err(lines.malformed(what));
            }
        };
        if let Some(word) = words.next() {
            return Err(lines.malformed(format!("{} after the sizes; expected '{EXPECTED}'", shown(word))));
        }
        Ok(Header {
            vertices: text::vertices(lines, vertices)?,
            edges,
            before: weights + u64::from(of(2)),
            weighted: of(0),
        })
    }
}

/// Reads the rows. A line without text is a vertex without neighbours.
pub(super) fn read<W: Kept>(lines: &mut Lines<'_>, header: Header) -> Result<Adjacency<W>, GraphError> {
    let Header {
        vertices,
        edges: promised,
        before,
        weighted,
    } = header;
    require_memory(u64::from(vertices) * 16)?;
    lines.allow_lines_of(ROW_BYTES_MAX);
    let (mut edges, mut row) = (Vec::new(), 0);
    while lines.advance_line()? {
        if lines.bytes().starts_with(b"%") || (row == vertices && lines.bytes().is_empty()) {
            continue;
        }
        if row == vertices {
            let what = format!("one row too many: {vertices} vertices are promised; is it a file of another format?");
            return Err(lines.malformed(what).into());
        }
        let mut words = lines.text()?.split_ascii_whitespace();
        for _ in 0..before {
            text::number(
                lines,
                words.next(),
                "size and weights of the vertex",
                "SIZE WEIGHT... NEIGHBOUR...",
            )?;
        }
        while let Some(word) = words.next() {
            let neighbour = text::vertex(lines, Some(word), "neighbour", vertices)?;
            let weight = match (weighted, words.clone().next()) {
                (false, _) => W::NONE,
                (true, None) => return Err(lines.malformed("a neighbour without its weight").into()),
                (true, Some(word)) => {
                    words.next();
                    text::value(lines, word)?
                }
            };
            push_edge(&mut edges, (row, neighbour, weight))?;
        }
        row += 1;
    }
    if row < vertices {
        let what = format!("the file is truncated: {vertices} vertices are promised, it ends after {row}");
        return Err(lines.error(FileFault::Truncated, what).into());
    }
    if Some(edges.len() as u64) != promised.checked_mul(2) {
        let found = edges.len();
        let what = format!(
            "{promised} edges are promised, each in the rows of both its ends, and the rows have {found} neighbours"
        );
        return Err(lines.malformed(what).into());
    }
    Ok(Adjacency {
        vertices,
        edges,
        direction: Direction::Undirected,
        mirrored: true,
    })
}
