//! Graphs that the GAP benchmark suite has serialized, `.sg` and with weights `.wsg`: `src/writer.h` and `src/reader.h` of
//! <https://github.com/sbeamer/gapbs>.
//!
//! A byte that is 1 for a directed graph, the numbers of stored neighbours and of vertices as 64-bit integers, the rows' offsets (64 bits
//! each, one more than vertices), and the neighbours: 32-bit vertices, in a `.wsg` each with a 32-bit weight behind it. A directed graph
//! then has the offsets and neighbours of its edges backwards, which are not read. All of it is little-endian and without padding.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytemuck::Pod;

use super::csr::{self, Csr};
use super::error::GraphError;
use super::rows::{self, Fault};
use super::{Direction, Graph, LoadOptions, MAX_VERTICES, Progress, ProgressFn, Stage, VertexIds, Weights};

/// Bytes before the offsets.
const HEADER_BYTES: u64 = 17;

/// Bytes that are read at a time.
const READ_BYTES: usize = 8 << 20;

/// Reads a file that is `file_bytes` long.
pub(super) fn read(
    path: &Path,
    file: &File,
    weighted: bool,
    options: &LoadOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<Graph, GraphError> {
    let mut input = Input {
        path,
        file,
        at: 0,
        end: 0,
    };
    let header = input.header(weighted)?;
    let Header {
        direction,
        vertices,
        edges,
        edge_bytes,
    } = header;
    input.end = header.neighbours_at() + edges * edge_bytes;
    let keeps = weighted && options.weights == Weights::FromFileOrDrawn;
    csr::require_memory((u64::from(vertices) + 1) * 8 + edges * if keeps { 8 } else { 4 })?;
    let offsets: Vec<u64> = input.take(u64::from(vertices) + 1, progress)?;
    if let Some(fault) = rows::offsets_fault(&offsets, edges) {
        return Err(of_row(path, HEADER_BYTES + fault.index as u64 * 8, fault));
    }
    let (neighbours, mut weights) = match weighted {
        false => (input.take(edges, progress)?, None),
        true => input.take_pairs(edges, keeps, progress)?,
    };
    if let Some(weights) = &weights
        && let Some(index) = rows::first(weights, |weight| !(1..=i32::MAX as u32).contains(weight))
    {
        return Err(GraphError::Row {
            path: path.to_owned(),
            at: header.neighbours_at() + index as u64 * 8 + 4,
            row: rows::row_of(&offsets, index),
            what: format!("has the weight {}; weights are positive", weights[index] as i32),
        });
    }
    let mut csr = Csr::of_parts(offsets, neighbours);
    if let Some(fault) = rows::range_fault(&csr) {
        return Err(of_row(
            path,
            header.neighbours_at() + fault.index as u64 * edge_bytes,
            fault,
        ));
    }
    // Rows that are unsorted, or that hold themselves or a neighbour twice, are put in order; a stored row stays one row.
    if rows::rows_fault(&csr, progress).is_some() {
        (csr, weights) = rows::rebuilt(csr, weights.as_deref(), Direction::Directed, progress)?;
    }
    if direction == Direction::Undirected && !rows::are_mirrored(&csr, weights.as_deref()) {
        return Err(GraphError::NotMirrored { path: path.to_owned() });
    }
    Ok(Graph {
        csr,
        weights: weights.map(Into::into),
        ids: VertexIds::Counted { first: 0 },
        direction,
    })
}

fn of_row(path: &Path, at: u64, fault: Fault) -> GraphError {
    GraphError::Row {
        path: path.to_owned(),
        at,
        row: fault.row,
        what: fault.kind.to_string(),
    }
}

#[derive(Clone, Copy)]
struct Header {
    direction: Direction,
    vertices: u32,
    edges: u64,
    edge_bytes: u64,
}

impl Header {
    fn neighbours_at(&self) -> u64 {
        HEADER_BYTES + (u64::from(self.vertices) + 1) * 8
    }
}

/// What is left of a file.
struct Input<'a> {
    path: &'a Path,
    file: &'a File,
    at: u64,
    /// Where the reading ends, for the progress.
    end: u64,
}

impl Input<'_> {
    /// Reads the header, whose numbers fit the file's size.
    fn header(&mut self, weighted: bool) -> Result<Header, GraphError> {
        let found = self.file.metadata().map_err(|source| self.unreadable(source))?.len();
        let mut bytes = [0; HEADER_BYTES as usize];
        if found < HEADER_BYTES {
            let what = format!("the file ends within the header of {HEADER_BYTES} bytes; fetch it again");
            return Err(self.wrong(found, what));
        }
        self.fill(&mut bytes)?;
        let [directed, numbers @ ..] = bytes;
        let direction = match directed {
            0 => Direction::Undirected,
            1 => Direction::Directed,
            other => {
                let what = format!(
                    "{other} in the place of 0 (undirected) or 1 (directed); is this a file of the GAP benchmark?"
                );
                return Err(self.wrong(0, what));
            }
        };
        let [edges, vertices] = bytemuck::pod_read_unaligned::<[i64; 2]>(&numbers);
        let Ok(edges) = u64::try_from(edges) else {
            return Err(self.wrong(1, format!("{edges} edges")));
        };
        let vertices = match u32::try_from(vertices) {
            Ok(vertices) if vertices <= MAX_VERTICES => vertices,
            _ => {
                return Err(self.wrong(
                    9,
                    format!("{vertices} vertices, from 0 to {MAX_VERTICES} are supported"),
                ));
            }
        };
        let edge_bytes = if weighted { 8 } else { 4 };
        let one_way = (u128::from(vertices) + 1) * 8 + u128::from(edges) * u128::from(edge_bytes);
        let ways = if direction == Direction::Directed { 2 } else { 1 };
        let expected = u128::from(HEADER_BYTES) + one_way * ways;
        if expected != u128::from(found) {
            return Err(GraphError::Size {
                path: self.path.to_owned(),
                vertices,
                edges,
                expected,
                found,
            });
        }
        Ok(Header {
            direction,
            vertices,
            edges,
            edge_bytes,
        })
    }

    /// Reads elements.
    fn take<T: Pod>(&mut self, length: u64, progress: &mut ProgressFn<'_>) -> Result<Vec<T>, GraphError> {
        let mut elements = vec![T::zeroed(); length as usize];
        for chunk in bytemuck::cast_slice_mut(&mut elements).chunks_mut(READ_BYTES) {
            self.fill(chunk)?;
            progress(Progress {
                stage: Stage::Read,
                done: self.at,
                total: self.end,
            });
        }
        Ok(elements)
    }

    /// Reads neighbours, each with its weight, which is kept or not.
    fn take_pairs(
        &mut self,
        length: u64,
        keeps: bool,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(Vec<u32>, Option<Vec<u32>>), GraphError> {
        const PAIRS: u64 = READ_BYTES as u64 / 8;
        let mut neighbours = Vec::with_capacity(length as usize);
        let mut weights = keeps.then(|| Vec::with_capacity(length as usize));
        while (neighbours.len() as u64) < length {
            let pairs: Vec<[u32; 2]> = self.take(PAIRS.min(length - neighbours.len() as u64), progress)?;
            neighbours.extend(pairs.iter().map(|pair| pair[0]));
            if let Some(weights) = &mut weights {
                weights.extend(pairs.iter().map(|pair| pair[1]));
            }
        }
        Ok((neighbours, weights))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), GraphError> {
        let read = self.file.read_exact_at(bytes, self.at);
        read.map_err(|source| self.unreadable(source))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn unreadable(&self, source: std::io::Error) -> GraphError {
        GraphError::ReadAt {
            path: self.path.to_owned(),
            at: self.at,
            source,
        }
    }

    fn wrong(&self, at: u64, what: String) -> GraphError {
        GraphError::Header {
            path: self.path.to_owned(),
            at,
            what,
        }
    }
}
