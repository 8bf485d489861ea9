//! Edge lists as SNAP and KONECT publish them: comments, perhaps the names of the columns, then two vertex ids a line.

use std::collections::HashMap;

use super::csr::{self, push_edge};
use super::error::GraphError;
use super::ids::VertexIds;
use super::text::{self, Kept};
use super::{Direction, Graph, MAX_VERTICES, ProgressFn};
use crate::input::{FileError, FileFault, Lines, Place, require_memory, shown};

/// The most numbers after the two ids of an edge: a weight, a sign, a time.
const EXTRA_COLUMNS: usize = 2;

/// Edges with the ids of the file.
pub(super) struct EdgeList<W> {
    edges: Vec<(u64, u64, W)>,
    direction: Direction,
    last_line: u64,
    path: std::path::PathBuf,
}

/// What is before the first edge: comments, and a line with the names of the columns.
#[derive(Default)]
pub(super) struct Head {
    /// What a comment says.
    said: Option<Direction>,
    /// Whether there is anything.
    any: bool,
    /// Numbers of each line, where they are named.
    columns: Option<usize>,
    /// Whether the third number is a weight.
    pub weighted: bool,
}

impl Head {
    /// Reads on to the first edge; the current line of `lines` is the first one with text.
    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Head, FileError> {
        let mut head = Head::default();
        loop {
            if let Some(comment) = comment(lines) {
                head.said = head.said.or(direction_said(lines, &comment)?);
            } else {
                let names: Vec<_> = words(lines.text()?)
                    .map(|name| name.trim_matches('"').to_owned())
                    .collect();
                let is_name =
                    |name: &String| name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
                if head.columns.is_some() || names.len() < 2 || !names.iter().all(is_name) {
                    break;
                }
                head.weighted = names.get(2).is_some_and(|name| name.eq_ignore_ascii_case("weight"));
                head.columns = Some(names.len());
            }
            head.any = true;
            if !lines.advance_to_text()? {
                return Err(no_edge(lines));
            }
        }
        // GAP's, with a weight behind each edge.
        let name = lines.path().to_string_lossy().to_ascii_lowercase();
        head.weighted |= name.ends_with(".wel") || name.ends_with(".wel.gz");
        Ok(head)
    }
}

/// Reads a whole file; the current line of `lines` is the first one with an edge.
pub(super) fn read<W: Kept>(
    lines: &mut Lines<'_>,
    head: Head,
    direction: Option<Direction>,
) -> Result<EdgeList<W>, GraphError> {
    let (mut edges, mut columns) = (Vec::new(), head.columns);
    loop {
        if comment(lines).is_none() {
            let (edge, found) = parse_edge(lines, head.weighted)?;
            let expected = *columns.get_or_insert(found);
            if found != expected {
                let what = format!(
                    "{found} numbers, and {expected} in the line before; an edge list has as many in each (METIS files are named .graph)"
                );
                return Err(lines.malformed(what).into());
            }
            push_edge(&mut edges, edge)?;
        }
        if !lines.advance_to_text()? {
            break;
        }
    }
    if !head.any && columns == Some(2) && may_be_metis(&edges) {
        let what = "these lines may be edges, or a METIS file with its sizes in the first line: name that .graph, or begin the edges with a line \
                    '# edges'";
        return Err(FileError::new(lines.path(), FileFault::Malformed, Place::File, what).into());
    }
    Ok(EdgeList {
        edges,
        direction: direction.or(head.said).unwrap_or(Direction::Undirected),
        last_line: lines.number(),
        path: lines.path().to_owned(),
    })
}

/// Whether lines of two numbers are sizes and rows of vertices as well.
fn may_be_metis<W>(edges: &[(u64, u64, W)]) -> bool {
    let Some(((vertices, edges, _), rows)) = edges.split_first() else {
        return false;
    };
    let fits = |id: &u64, row: u64| (1..=*vertices).contains(id) && *id != row;
    let mut numbered = rows.iter().zip(1..);
    vertices == edges && rows.len() as u64 == *vertices && numbered.all(|((u, v, _), row)| fits(u, row) && fits(v, row))
}

/// The error of a file without edges.
pub(super) fn no_edge(lines: &Lines<'_>) -> FileError {
    lines.error(FileFault::Empty, "the file is empty, it holds no edge")
}

/// The current line without its sign, if it is a comment. Whatever the encoding: it may have names of people.
fn comment(lines: &Lines<'_>) -> Option<String> {
    let bytes = lines.bytes();
    let text = [&b"#"[..], b"%", b"//"]
        .iter()
        .find_map(|sign| bytes.strip_prefix(*sign))?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// SNAP's files say `# Directed graph ...` or `# Undirected graph ...`, KONECT's `% asym ...` or `% sym ...`.
fn direction_said(lines: &Lines<'_>, comment: &str) -> Result<Option<Direction>, FileError> {
    let mut words = comment.split_ascii_whitespace();
    let (Some(first), Some(second)) = (words.next(), words.next()) else {
        return Ok(None);
    };
    let is_graph = second.trim_end_matches([':', '.', ',']).eq_ignore_ascii_case("graph");
    Ok(match first.to_ascii_lowercase().as_str() {
        "directed" if is_graph => Some(Direction::Directed),
        "undirected" if is_graph => Some(Direction::Undirected),
        "asym" if lines.bytes()[0] == b'%' => Some(Direction::Directed),
        "sym" if lines.bytes()[0] == b'%' => Some(Direction::Undirected),
        "bip" if lines.bytes()[0] == b'%' => {
            let what = "a bipartite graph, each side of which counts its vertices from 1: give them ids of their own, and remove this line";
            return Err(lines.error(FileFault::Unsupported, what));
        }
        _ => None,
    })
}

/// The words of a line, with commas or white space between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let comma = text.contains(',');
    let between = move |letter: char| match comma {
        true => letter == ',',
        false => letter.is_ascii_whitespace(),
    };
    text.split(between)
        .map(str::trim)
        .filter(move |word| comma || !word.is_empty())
}

/// An edge, and how many numbers its line has.
fn parse_edge<W: Kept>(lines: &Lines<'_>, weighted: bool) -> Result<((u64, u64, W), usize), FileError> {
    let mut words = words(lines.text()?);
    let mut id = |missing: &str| {
        let word = words.next().ok_or_else(|| lines.malformed(missing))?;
        word.parse::<u64>().map_err(|_| {
            let too_large = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            lines.malformed(match too_large {
                true => format!("vertex ID {} does not fit into 64 bits", shown(word)),
                false => format!("invalid vertex ID {}: expected a non-negative integer", shown(word)),
            })
        })
    };
    let (u, v) = (
        id("an edge without ids")?,
        id("an edge with one id; expected two (is the file truncated?)")?,
    );
    let (mut kept, mut columns) = (W::NONE, 2);
    for word in words {
        if columns == 2 && weighted && u != v {
            kept = text::value(lines, word)?;
        } else if columns >= 2 + EXTRA_COLUMNS || word.parse::<f64>().is_err() {
            return Err(lines.malformed(format!("{} after the two ids of an edge", shown(word))));
        }
        columns += 1;
    }
    match weighted && columns == 2 {
        true => Err(lines.malformed("an edge without its weight")),
        false => Ok(((u, v, kept), columns)),
    }
}

impl<W: Kept> EdgeList<W> {
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
        let (csr, kept) = csr::build(vertices, edges, self.direction, progress)?;
        let last = ids.last().copied().unwrap_or(0);
        let counted = last == u64::from(vertices) - 1;
        let ids = if counted {
            VertexIds::Counted { first: 0 }
        } else {
            VertexIds::Listed(ids.into())
        };
        Ok(Graph {
            csr,
            weights: W::weights(kept),
            drawn: false,
            ids,
            direction: self.direction,
        })
    }
}

/// Replaces ids by their place among the sorted `ids`.
fn renumber<W>(edges: Vec<(u64, u64, W)>, ids: &[u64]) -> Vec<(u32, u32, W)> {
    let last = ids.last().copied().unwrap_or(0);
    // Ids that are nearly counted need no search.
    if last < ids.len() as u64 * 8 {
        let mut places = vec![0_u32; last as usize + 1];
        for (place, id) in ids.iter().enumerate() {
            places[*id as usize] = place as u32;
        }
        return edges
            .into_iter()
            .map(|(u, v, kept)| (places[u as usize], places[v as usize], kept))
            .collect();
    }
    let places: HashMap<u64, u32> = ids.iter().zip(0..).map(|(id, place)| (*id, place)).collect();
    edges
        .into_iter()
        .map(|(u, v, kept)| (places[&u], places[&v], kept))
        .collect()
}
