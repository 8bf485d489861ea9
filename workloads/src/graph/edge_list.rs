//! Edge lists as SNAP publishes them: `#` comments, then two vertex ids a line.

use std::collections::HashMap;

use super::csr::{self, push_edge};
use super::error::GraphError;
use super::{Direction, Graph, MAX_VERTICES, ProgressFn, VertexIds};
use crate::input::{FileError, FileFault, Lines, Place, require_memory, shown};

/// The most numbers after the two ids of an edge: a weight, a sign, a time.
const EXTRA_COLUMNS: usize = 2;

/// Edges with the ids of the file.
pub(super) struct EdgeList {
    edges: Vec<(u64, u64)>,
    direction: Direction,
    last_line: u64,
    path: std::path::PathBuf,
}

/// Reads a whole file; the current line of `lines` is the first one with text.
pub(super) fn read(lines: &mut Lines<'_>, direction: Option<Direction>) -> Result<EdgeList, GraphError> {
    let mut edges = Vec::new();
    let mut said = None;
    loop {
        let text = lines.text()?;
        if let Some(comment) = text.strip_prefix('#') {
            said = said.or_else(|| direction_said(comment));
        } else {
            let edge = parse_edge(lines, text)?;
            push_edge(&mut edges, edge)?;
        }
        if !lines.advance_to_text()? {
            break;
        }
    }
    if edges.is_empty() {
        return Err(no_edge(lines).into());
    }
    Ok(EdgeList {
        edges,
        direction: direction.or(said).unwrap_or(Direction::Undirected),
        last_line: lines.number(),
        path: lines.path().to_owned(),
    })
}

/// The error of a file without edges.
pub(super) fn no_edge(lines: &Lines<'_>) -> FileError {
    lines.error(FileFault::Empty, "the file is empty, it holds no edge")
}

/// SNAP's files say `# Directed graph ...` or `# Undirected graph ...`.
fn direction_said(comment: &str) -> Option<Direction> {
    let mut words = comment.split_ascii_whitespace();
    let (first, second) = (words.next()?, words.next()?);
    if !second.trim_end_matches([':', '.', ',']).eq_ignore_ascii_case("graph") {
        return None;
    }
    match first.to_ascii_lowercase().as_str() {
        "directed" => Some(Direction::Directed),
        "undirected" => Some(Direction::Undirected),
        _ => None,
    }
}

fn parse_edge(lines: &Lines<'_>, text: &str) -> Result<(u64, u64), FileError> {
    let mut words = text.split_ascii_whitespace();
    let mut id = |missing: &str| {
        let word = words.next().ok_or_else(|| lines.malformed(missing))?;
        word.parse::<u64>().map_err(|_| {
            let why = match word.bytes().all(|byte| byte.is_ascii_digit()) {
                true => "does not fit into 64 bits",
                false => "is no vertex id (a whole number, 0 or more)",
            };
            lines.malformed(format!("{} {why}", shown(word)))
        })
    };
    let edge = (
        id("an edge without ids")?,
        id("an edge with one id; expected two (is the file truncated?)")?,
    );
    for (index, word) in words.enumerate() {
        if index >= EXTRA_COLUMNS || word.parse::<f64>().is_err() {
            return Err(lines.malformed(format!("{} after the two ids of an edge", shown(word))));
        }
    }
    Ok(edge)
}

impl EdgeList {
    /// Numbers the vertices in ascending order of their ids and sorts the edges into rows.
    pub(super) fn build(self, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        // The sorted ids, the renumbered edges and the table of a lookup.
        require_memory(self.edges.len() as u64 * 24)?;
        let mut ids: Vec<u64> = self.edges.iter().flat_map(|edge| [edge.0, edge.1]).collect();
        rayon::slice::ParallelSliceMut::par_sort_unstable(ids.as_mut_slice());
        ids.dedup();
        ids.shrink_to_fit();
        let vertices = match u32::try_from(ids.len()) {
            Ok(vertices) if vertices <= MAX_VERTICES => vertices,
            _ => {
                let what = format!("{} vertices, at most {MAX_VERTICES} are supported", ids.len());
                return Err(FileError::new(&self.path, FileFault::TooLarge, Place::Line(self.last_line), what).into());
            }
        };
        let edges = renumber(self.edges, &ids);
        let (csr, _) = csr::build(vertices, edges, self.direction, progress)?;
        let last = ids.last().copied().unwrap_or(0);
        let counted = last == u64::from(vertices) - 1;
        let ids = if counted {
            VertexIds::Counted { first: 0 }
        } else {
            VertexIds::Listed(ids.into())
        };
        Ok(Graph {
            csr,
            weights: None,
            ids,
            direction: self.direction,
        })
    }
}

/// Replaces ids by their place among the sorted `ids`.
fn renumber(edges: Vec<(u64, u64)>, ids: &[u64]) -> Vec<(u32, u32, ())> {
    let last = ids.last().copied().unwrap_or(0);
    // Ids that are nearly counted need no search.
    if last < ids.len() as u64 * 8 {
        let mut places = vec![0_u32; last as usize + 1];
        for (place, id) in ids.iter().enumerate() {
            places[*id as usize] = place as u32;
        }
        return edges
            .into_iter()
            .map(|(u, v)| (places[u as usize], places[v as usize], ()))
            .collect();
    }
    let places: HashMap<u64, u32> = ids.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
    edges.into_iter().map(|(u, v)| (places[&u], places[&v], ())).collect()
}
