//! What text formats of graphs share: edges before they are rows, and the words of a line.

use std::path::Path;

use super::array::Array;
use super::csr::{self, push_edge};
use super::error::GraphError;
use super::ids::VertexIds;
use super::{Direction, Graph, MAX_VERTICES, ProgressFn, rows};
use crate::input::{FileError, FileFault, Lines, shown};

/// What is kept of an edge's value.
pub(super) trait Kept: Copy + Ord + Send + Sync {
    /// For an edge without a value, and for a self-loop, which is dropped whatever its value.
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

/// Edges of vertices that count from 1, before they are rows.
pub(super) struct Adjacency<W> {
    pub vertices: u32,
    pub edges: Vec<(u32, u32, W)>,
    pub direction: Direction,
    /// Whether the file has each edge in both directions.
    pub mirrored: bool,
}

impl<W: Kept> Adjacency<W> {
    /// Sorts the edges into rows.
    pub(super) fn build(self, path: &Path, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        let stored = match self.mirrored {
            true => Direction::Directed,
            false => self.direction,
        };
        let (csr, kept) = csr::build(self.vertices, self.edges, stored, progress)?;
        let weights = W::weights(kept);
        if self.mirrored && !rows::are_mirrored(&csr, weights.as_deref()) {
            return Err(rows::not_mirrored(path));
        }
        Ok(Graph {
            csr,
            weights,
            drawn: false,
            ids: VertexIds::Counted { first: 1 },
            direction: self.direction,
        })
    }
}

/// All edges of a file that promises this many, one a line; `parse` makes none of a comment.
pub(super) fn entries<W>(
    lines: &mut Lines<'_>,
    promised: u64,
    parse: impl Fn(&Lines<'_>) -> Result<Option<(u32, u32, W)>, FileError>,
) -> Result<Vec<(u32, u32, W)>, GraphError> {
    let mut edges = Vec::new();
    while lines.advance_to_text()? {
        let Some(edge) = parse(lines)? else { continue };
        if edges.len() as u64 == promised {
            let what = format!("one entry too many: {promised} entries are promised");
            return Err(lines.malformed(what).into());
        }
        push_edge(&mut edges, edge)?;
    }
    if (edges.len() as u64) < promised {
        let found = edges.len();
        let what = format!("the file is truncated: {promised} entries are promised, it ends after {found}");
        return Err(lines.error(FileFault::Truncated, what).into());
    }
    Ok(edges)
}

/// Reads on to the next line that is no comment, from the current one on; an error that the file lacks `what` at its end.
pub(super) fn skip_comments(lines: &mut Lines<'_>, comment: u8, what: &str) -> Result<(), FileError> {
    while lines.bytes().first().is_none_or(|first| *first == comment) {
        if !lines.advance_to_text()? {
            return Err(lines.error(FileFault::Empty, format!("the file is empty, it holds no {what}")));
        }
    }
    Ok(())
}

/// A whole number of a line, which has to be there.
pub(super) fn number(lines: &Lines<'_>, word: Option<&str>, name: &str, expected: &str) -> Result<u64, FileError> {
    let word = word.ok_or_else(|| lines.malformed(format!("the {name} are missing; expected '{expected}'")))?;
    word.parse()
        .map_err(|_| lines.malformed(format!("the {name} {} are not a number", shown(word))))
}

/// As many vertices as a graph may have, and at least one.
pub(super) fn vertices(lines: &Lines<'_>, count: u64) -> Result<u32, FileError> {
    match u32::try_from(count) {
        Ok(0) => Err(lines.error(FileFault::Empty, "the file is empty, it holds no vertex")),
        Ok(vertices) if vertices <= MAX_VERTICES => Ok(vertices),
        _ => {
            let what = format!("{count} vertices, at most {MAX_VERTICES} are supported");
            Err(lines.error(FileFault::TooLarge, what))
        }
    }
}

/// The vertex that a word names, from 1 on; `which` says what it is.
pub(super) fn vertex(lines: &Lines<'_>, word: Option<&str>, which: &str, vertices: u32) -> Result<u32, FileError> {
    let word = word.ok_or_else(|| lines.malformed(format!("an entry without a {which}")))?;
    let index: u64 = word
        .parse()
        .map_err(|_| lines.malformed(format!("the {which} {} is not a number", shown(word))))?;
    match index.checked_sub(1).and_then(|vertex| u32::try_from(vertex).ok()) {
        Some(vertex) if vertex < vertices => Ok(vertex),
        _ => Err(lines.malformed(format!("the {which} {index} is outside 1 to {vertices}"))),
    }
}

/// What is kept of a word that has to be a number.
pub(super) fn value<W: Kept>(lines: &Lines<'_>, word: &str) -> Result<W, FileError> {
    if word.parse::<f64>().is_err() {
        return Err(lines.malformed(format!("the value {} is not a number", shown(word))));
    }
    W::of(word).ok_or_else(|| {
        lines.malformed(format!(
            "invalid weight {}: expected a whole number from 1 to {}; have weights drawn, or give the file others",
            shown(word),
            u32::MAX
        ))
    })
}
