//! Compressed sparse rows and their parallel construction.

use std::path::Path;

use rayon::prelude::*;

use super::array::Array;
use super::error::GraphError;
use super::{Direction, MAX_VERTICES, Progress, ProgressFn, Stage};
use crate::input::{MemoryError, require_memory};

/// A graph as compressed sparse rows: the neighbours of vertex `v` are
/// `neighbours()[offsets()[v]..offsets()[v + 1]]`, ascending, each once, never `v` itself.
///
/// Offsets are always 64 bits wide: they are an eighth of a typical graph, and one width means one
/// kernel and no limit at 2^32 edges. Neighbours are 32 bits wide.
///
/// Both lie in memory of the graph's own or, for a `.gcsr` file, in the file's map; a clone shares the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    offsets: Array<u64>,
    neighbours: Array<u32>,
}

impl Csr {
    /// Builds the rows from edges, on all cores. Self-loops are dropped and duplicates merged.
    ///
    /// # Errors
    /// [`GraphError::EdgeOutOfRange`] and [`GraphError::VerticesOutOfRange`] on bad input,
    /// [`GraphError::Memory`] where the machine has too little memory.
    pub fn from_edges(vertices: u32, edges: &[(u32, u32)], direction: Direction) -> Result<Csr, GraphError> {
        if vertices > MAX_VERTICES {
            return Err(GraphError::VerticesOutOfRange { vertices });
        }
        if let Some(edge) = edges.par_iter().position_first(|e| e.0.max(e.1) >= vertices) {
            let (from, to) = edges[edge];
            return Err(GraphError::EdgeOutOfRange {
                edge,
                from,
                to,
                vertices,
            });
        }
        let edges = edges.par_iter().map(|&(u, v)| (u, v, ())).collect();
        Ok(build(vertices, edges, direction, &mut |_| {})?.0)
    }

    /// Of parts that are as [`Csr`] says, or that are checked before anybody sees them.
    pub(super) fn of_parts(offsets: impl Into<Array<u64>>, neighbours: impl Into<Array<u32>>) -> Csr {
        Csr {
            offsets: offsets.into(),
            neighbours: neighbours.into(),
        }
    }

    /// How many vertices the graph has.
    pub fn vertices(&self) -> u32 {
        (self.offsets.len() - 1) as u32
    }

    /// How many neighbours are stored: an undirected edge counts twice.
    pub fn edges(&self) -> u64 {
        self.neighbours.len() as u64
    }

    /// Where each row starts in [`Csr::neighbours`]; one element more than vertices.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// All rows, one after the other.
    pub fn neighbours(&self) -> &[u32] {
        &self.neighbours
    }

    /// The file that holds the offsets, and their first byte in it; none where they are in memory of the graph's own.
    pub fn offsets_in_file(&self) -> Option<(&Path, u64)> {
        self.offsets.place()
    }

    /// The file that holds the neighbours, and their first byte in it; none where they are in memory of the graph's own.
    pub fn neighbours_in_file(&self) -> Option<(&Path, u64)> {
        self.neighbours.place()
    }

    /// The neighbours of `vertex`; none where there is no such vertex.
    pub fn row(&self, vertex: u32) -> &[u32] {
        let (vertex, offsets) = (vertex as usize, self.offsets());
        match (offsets.get(vertex), offsets.get(vertex + 1)) {
            (Some(&begin), Some(&end)) => &self.neighbours[begin as usize..end as usize],
            _ => &[],
        }
    }

    /// The lowest vertex that has a neighbour.
    pub fn first_connected(&self) -> Option<u32> {
        self.offsets
            .windows(2)
            .position(|pair| pair[0] < pair[1])
            .map(|vertex| vertex as u32)
    }

    /// Takes the offsets and the neighbours out, to move them into paged regions. Only those of a mapped file are copied.
    pub fn into_parts(self) -> (Vec<u64>, Vec<u32>) {
        (self.offsets.into_vec(), self.neighbours.into_vec())
    }
}

/// Builds rows from edges whose ends were checked to be below `vertices`: mirrors them, sorts them, drops self-loops, and merges
/// duplicates. With each edge goes a weight, or `()`, which takes no memory; of duplicates the least weight stays.
pub(super) fn build<W: Copy + Ord + Send + Sync>(
    vertices: u32,
    mut edges: Vec<(u32, u32, W)>,
    direction: Direction,
    progress: &mut ProgressFn<'_>,
) -> Result<(Csr, Vec<W>), GraphError> {
    let total = edges.len() as u64;
    let mut report = |done: u64| {
        progress(Progress {
            stage: Stage::Build,
            done,
            total,
        })
    };
    report(0);
    edges.retain(|(u, v, _)| u != v);
    let mirrored = if direction == Direction::Undirected {
        edges.len()
    } else {
        0
    };
    let stored = edges.len() + mirrored;
    let kept = stored * (size_of::<u32>() + size_of::<W>());
    require_memory(u64::from(vertices) * 8 + (mirrored * size_of::<(u32, u32, W)>() + kept) as u64)?;
    edges.reserve_exact(mirrored);
    edges.extend_from_within(..mirrored);
    edges[stored - mirrored..]
        .par_iter_mut()
        .for_each(|(u, v, _)| std::mem::swap(u, v));
    edges.par_sort_unstable_by_key(|&(u, v, weight)| (u64::from(u) << 32 | u64::from(v), weight));
    report(total / 2);
    edges.dedup_by_key(|&mut (u, v, _)| (u, v));
    let neighbours: Vec<u32> = edges.par_iter().map(|edge| edge.1).collect();
    let weights: Vec<W> = edges.par_iter().map(|edge| edge.2).collect();
    let mut offsets = Vec::with_capacity(vertices as usize + 1);
    let mut end = 0;
    for row in 0..=vertices {
        offsets.push(end as u64);
        end += edges[end..].iter().take_while(|edge| edge.0 == row).count();
    }
    report(total);
    Ok((Csr::of_parts(offsets, neighbours), weights))
}

/// Adds an edge to a growing list.
///
/// # Errors
/// [`GraphError::Memory`] where the list cannot grow, instead of the end of the process.
pub(super) fn push_edge<E>(edges: &mut Vec<E>, edge: E) -> Result<(), GraphError> {
    if edges.len() == edges.capacity() {
        let more = edges.len().max(1 << 12);
        let needed_bytes = (more * size_of::<E>()) as u64;
        require_memory(needed_bytes)?;
        edges.try_reserve_exact(more).map_err(|_| MemoryError {
            needed_bytes,
            available_bytes: 0,
            limit: None,
        })?;
    }
    edges.push(edge);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_without_loops_or_duplicates() {
        let edges = [(2, 0), (0, 2), (1, 1), (2, 3), (2, 3), (0, 1)];
        let undirected = Csr::from_edges(5, &edges, Direction::Undirected).unwrap();
        assert_eq!(undirected.offsets(), [0, 2, 3, 5, 6, 6]);
        assert_eq!(undirected.neighbours(), [1, 2, 0, 0, 3, 2]);
        let directed = Csr::from_edges(5, &edges, Direction::Directed).unwrap();
        assert_eq!(directed.offsets(), [0, 2, 2, 4, 4, 4]);
        assert_eq!(directed.neighbours(), [1, 2, 0, 3]);
        assert_eq!(directed.row(4), [0; 0]);
        assert_eq!(directed.row(77), [0; 0]);
    }

    #[test]
    fn many_rows_with_duplicates() {
        // Rows of different lengths, each edge three times.
        let vertices = 3000_u32;
        let mut edges = Vec::new();
        for _ in 0..3 {
            for u in 0..vertices {
                edges.extend((0..u % 97).map(|k| (u, (u * 31 + k * 7) % vertices)));
            }
        }
        let csr = Csr::from_edges(vertices, &edges, Direction::Directed).unwrap();
        for u in 0..vertices {
            let mut row: Vec<u32> = (0..u % 97).map(|k| (u * 31 + k * 7) % vertices).collect();
            row.retain(|v| *v != u);
            row.sort_unstable();
            row.dedup();
            assert_eq!(csr.row(u), row, "row {u}");
        }
    }

    #[test]
    fn a_graph_of_nothing_has_one_offset() {
        let csr = Csr::from_edges(0, &[], Direction::Directed).unwrap();
        assert_eq!((csr.vertices(), csr.edges(), csr.first_connected()), (0, 0, None));
    }

    #[test]
    fn bad_input_is_refused() {
        let error = Csr::from_edges(3, &[(0, 1), (1, 3)], Direction::Directed).unwrap_err();
        assert_eq!(
            error.to_string(),
            "edge 1 (1, 3) is outside the 3 vertices of the graph"
        );
        let error = Csr::from_edges(u32::MAX, &[], Direction::Directed).unwrap_err();
        assert!(matches!(error, GraphError::VerticesOutOfRange { .. }));
    }
}
