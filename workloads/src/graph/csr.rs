//! Compressed sparse rows and their parallel construction.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rayon::prelude::*;

use super::error::GraphError;
use super::{Direction, Progress, ProgressFn, Stage};

/// The most vertices of a graph: distances are `i32`, so the longest path still fits.
pub const MAX_VERTICES: u32 = i32::MAX as u32;

/// Edges that one task scatters between two progress reports.
const EDGES_PER_STEP: usize = 1 << 24;

/// Neighbours that one task sorts; few enough to spread, many enough to be worth a task.
const NEIGHBOURS_PER_TASK: u64 = 1 << 16;

/// A graph as compressed sparse rows: the neighbours of vertex `v` are
/// `neighbours()[offsets()[v]..offsets()[v + 1]]`, ascending, each once, never `v` itself.
///
/// Offsets are always 64 bits wide: they are an eighth of a typical graph, and one width means one
/// kernel and no limit at 2^32 edges. Neighbours are 32 bits wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
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
        build(vertices, edges, direction, &mut |_| {})
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

    /// The neighbours of `vertex`; none where there is no such vertex.
    pub fn row(&self, vertex: u32) -> &[u32] {
        let vertex = vertex as usize;
        match (self.offsets.get(vertex), self.offsets.get(vertex + 1)) {
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

    /// Takes the offsets and the neighbours out, to move them into paged regions without a copy.
    pub fn into_parts(self) -> (Vec<u64>, Vec<u32>) {
        (self.offsets, self.neighbours)
    }
}

/// Builds rows from edges whose ends were checked to be below `vertices`.
pub(super) fn build(
    vertices: u32,
    edges: &[(u32, u32)],
    direction: Direction,
    progress: &mut ProgressFn<'_>,
) -> Result<Csr, GraphError> {
    let both = direction == Direction::Undirected;
    let copies = if both { 2 } else { 1 };
    require_memory(u64::from(vertices) * 16 + edges.len() as u64 * 4 * copies)?;

    let total = edges.len() as u64 * 2;
    let mut report = |done: u64| {
        progress(Progress {
            stage: Stage::Build,
            done,
            total,
        })
    };
    report(0);

    // Relaxed throughout: the joins of the parallel loops order the passes against each other,
    // within a pass only the sums matter.
    let cursors: Vec<AtomicU64> = (0..=vertices as usize).map(|_| AtomicU64::new(0)).collect();
    edges.par_iter().filter(|(u, v)| u != v).for_each(|&(u, v)| {
        cursors[u as usize].fetch_add(1, Ordering::Relaxed);
        if both {
            cursors[v as usize].fetch_add(1, Ordering::Relaxed);
        }
    });
    report(edges.len() as u64);

    let mut offsets = Vec::with_capacity(cursors.len());
    let mut sum = 0;
    for cursor in &cursors {
        offsets.push(sum);
        sum += cursor.swap(sum, Ordering::Relaxed);
    }

    let slots: Vec<AtomicU32> = (0..sum).map(|_| AtomicU32::new(0)).collect();
    let place = |row: u32, neighbour: u32| {
        let slot = cursors[row as usize].fetch_add(1, Ordering::Relaxed);
        slots[slot as usize].store(neighbour, Ordering::Relaxed);
    };
    let mut done = edges.len() as u64;
    for step in edges.chunks(EDGES_PER_STEP) {
        step.par_iter().filter(|(u, v)| u != v).for_each(|&(u, v)| {
            place(u, v);
            if both {
                place(v, u);
            }
        });
        done += step.len() as u64;
        report(done);
    }
    drop(cursors);
    let neighbours = slots.into_iter().map(AtomicU32::into_inner).collect();
    Ok(sort_rows(offsets, neighbours))
}

/// Rows `rows` of a graph under construction, with their part of the neighbours.
struct Block<'a> {
    rows: Range<usize>,
    neighbours: &'a mut [u32],
}

/// Sorts every row and merges its duplicates.
fn sort_rows(mut offsets: Vec<u64>, mut neighbours: Vec<u32>) -> Csr {
    let blocks = split_blocks(&offsets, &mut neighbours);
    let starts: Vec<(usize, usize)> = blocks
        .iter()
        .map(|block| (offsets[block.rows.start] as usize, block.rows.start))
        .collect();
    let lengths: Vec<Vec<u64>> = blocks
        .into_par_iter()
        .map(|block| sort_block(&offsets, block))
        .collect();

    // Close the gaps that the duplicates left between the blocks.
    let mut filled = 0;
    for ((start, row), lengths) in starts.into_iter().zip(lengths) {
        let mut length = 0;
        for (index, row_length) in lengths.into_iter().enumerate() {
            offsets[row + index] = (filled + length) as u64;
            length += row_length as usize;
        }
        neighbours.copy_within(start..start + length, filled);
        filled += length;
    }
    if let Some(last) = offsets.last_mut() {
        *last = filled as u64;
    }
    neighbours.truncate(filled);
    neighbours.shrink_to_fit();
    Csr { offsets, neighbours }
}

/// Cuts the rows into blocks of about [`NEIGHBOURS_PER_TASK`] neighbours.
fn split_blocks<'a>(offsets: &[u64], neighbours: &'a mut [u32]) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    let mut rest = neighbours;
    let mut first = 0;
    for row in 1..offsets.len() {
        let length = offsets[row] - offsets[first];
        if length >= NEIGHBOURS_PER_TASK || row + 1 == offsets.len() {
            let (head, tail) = rest.split_at_mut(length as usize);
            blocks.push(Block {
                rows: first..row,
                neighbours: head,
            });
            rest = tail;
            first = row;
        }
    }
    blocks
}

/// Sorts the rows of one block, packs them at its front and returns their new lengths.
fn sort_block(offsets: &[u64], block: Block<'_>) -> Vec<u64> {
    let base = offsets[block.rows.start];
    let mut filled = 0;
    block
        .rows
        .map(|row| {
            let (begin, end) = ((offsets[row] - base) as usize, (offsets[row + 1] - base) as usize);
            block.neighbours[begin..end].sort_unstable();
            let first = filled;
            for index in begin..end {
                let neighbour = block.neighbours[index];
                if filled == first || block.neighbours[filled - 1] != neighbour {
                    block.neighbours[filled] = neighbour;
                    filled += 1;
                }
            }
            (filled - first) as u64
        })
        .collect()
}

/// Fails where `needed_bytes` are more than the machine has available, by `/proc/meminfo`.
/// Linux grants more than it has and kills the process later; this says so before.
pub(super) fn require_memory(needed_bytes: u64) -> Result<(), GraphError> {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    });
    match available.map(|kib| kib * 1024) {
        Some(available_bytes) if needed_bytes > available_bytes => Err(GraphError::Memory {
            needed_bytes,
            available_bytes,
        }),
        _ => Ok(()),
    }
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
        edges.try_reserve_exact(more).map_err(|_| GraphError::Memory {
            needed_bytes,
            available_bytes: 0,
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
    fn many_blocks_join_as_one() {
        // Rows of different lengths, each edge three times, over several blocks.
        let vertices = 3000_u32;
        let mut edges = Vec::new();
        for _ in 0..3 {
            for u in 0..vertices {
                edges.extend((0..u % 97).map(|k| (u, (u * 31 + k * 7) % vertices)));
            }
        }
        assert!(edges.len() as u64 > 4 * NEIGHBOURS_PER_TASK);
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
        assert!(matches!(require_memory(u64::MAX), Err(GraphError::Memory { .. })));
    }
}
