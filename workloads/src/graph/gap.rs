//! Graphs that the GAP benchmark suite has serialized, `.sg` and with weights `.wsg`: `src/writer.h` and `src/reader.h` of
//! <https://github.com/sbeamer/gapbs>.
//!
//! A byte that is 1 for a directed graph, the numbers of stored neighbours and of vertices as 64-bit integers, the rows' offsets (64 bits
//! each, one more than vertices), and the neighbours: 32-bit vertices, in a `.wsg` each with a 32-bit weight behind it. A directed graph
//! then has the offsets and neighbours of its edges backwards, which are not read. All of it is little-endian and without padding.

use bytemuck::Pod;

use super::csr::Csr;
use super::error::GraphError;
use super::ids::VertexIds;
use super::rows;
use super::{Direction, Graph, LoadOptions, MAX_VERTICES, Progress, ProgressFn, Stage, Weights};
use crate::input::{FileError, FileFault, Input, Place, require_memory};

/// Bytes before the offsets.
const HEADER_BYTES: u64 = 17;

/// Bytes that are read at a time.
const READ_BYTES: usize = 8 << 20;

/// Reads a file.
pub(super) fn read(
    file: &Input<'_>,
    weighted: bool,
    options: &LoadOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<Graph, GraphError> {
    let Header {
        direction,
        vertices,
        edges,
        edge_bytes,
    } = Header::of(file, weighted)?;
    let neighbours_at = HEADER_BYTES + (u64::from(vertices) + 1) * 8;
    let mut rest = Rest {
        file,
        at: HEADER_BYTES,
        end: neighbours_at + edges * edge_bytes,
    };
    let keeps = weighted && options.weights == Weights::FromFileOrDrawn;
    require_memory((u64::from(vertices) + 1) * 8 + edges * if keeps { 8 } else { 4 })?;
    let offsets: Vec<u64> = rest.take(u64::from(vertices) + 1, progress)?;
    if let Some(fault) = rows::offsets_fault(&offsets, edges) {
        return Err(fault.in_file(file.path, HEADER_BYTES + fault.index as u64 * 8));
    }
    let (neighbours, mut weights) = match weighted {
        false => (rest.take(edges, progress)?, None),
        true => rest.take_pairs(edges, keeps, progress)?,
    };
    if let Some(weights) = &weights
        && let Some(index) = rows::first(weights, |weight| !(1..=i32::MAX as u32).contains(weight))
    {
        let what = format!("has the weight {}; weights are positive", weights[index] as i32);
        let at = neighbours_at + index as u64 * 8 + 4;
        return Err(rows::of_row(file.path, at, rows::row_of(&offsets, index), &what));
    }
    let mut csr = Csr::of_parts(offsets, neighbours);
    if let Some(fault) = rows::range_fault(&csr) {
        return Err(fault.in_file(file.path, neighbours_at + fault.index as u64 * edge_bytes));
    }
    // Rows that are unsorted, or that hold themselves or a neighbour twice, are put in order; a stored row stays one row.
    if rows::rows_fault(&csr, progress).is_some() {
        (csr, weights) = rows::rebuilt(csr, weights.as_deref(), Direction::Directed, progress)?;
    }
    if direction == Direction::Undirected && !rows::are_mirrored(&csr, weights.as_deref()) {
        return Err(rows::not_mirrored(file.path));
    }
    Ok(Graph {
        csr,
        weights: weights.map(Into::into),
        drawn: false,
        ids: VertexIds::Counted { first: 0 },
        direction,
    })
}

#[derive(Clone, Copy)]
struct Header {
    direction: Direction,
    vertices: u32,
    edges: u64,
    edge_bytes: u64,
}

impl Header {
    /// A file's header, whose numbers fit the file's size.
    fn of(file: &Input<'_>, weighted: bool) -> Result<Header, FileError> {
        let found = file.bytes;
        let wrong = |at, what| Err(file.error(FileFault::Malformed, Place::Byte(at), what));
        let mut bytes = [0; HEADER_BYTES as usize];
        if found < HEADER_BYTES {
            let what = format!("the file ends within the header of {HEADER_BYTES} bytes; fetch it again");
            return Err(file.error(FileFault::Truncated, Place::Byte(found), what));
        }
        file.read_at(0, &mut bytes)?;
        let [directed, numbers @ ..] = bytes;
        let direction = match directed {
            0 => Direction::Undirected,
            1 => Direction::Directed,
            other => {
                let what = format!(
                    "{other} in the place of 0 (undirected) or 1 (directed); is this a file of the GAP benchmark?"
                );
                return wrong(0, what);
            }
        };
        let [edges, vertices] = bytemuck::pod_read_unaligned::<[i64; 2]>(&numbers);
        let Ok(edges) = u64::try_from(edges) else {
            return wrong(1, format!("{edges} edges"));
        };
        let vertices = match u32::try_from(vertices) {
            Ok(vertices) if vertices <= MAX_VERTICES => vertices,
            _ => {
                let what = format!("{vertices} vertices, from 0 to {MAX_VERTICES} are supported");
                return wrong(9, what);
            }
        };
        let edge_bytes = if weighted { 8 } else { 4 };
        let ways = if direction == Direction::Directed { 2 } else { 1 };
        let length = |edge_bytes: u64| {
            let one_way = (u128::from(vertices) + 1) * 8 + u128::from(edges) * u128::from(edge_bytes);
            u128::from(HEADER_BYTES) + one_way * ways
        };
        let expected = length(edge_bytes);
        // A `.wsg` file of another name is as long, and has a weight in the place of the upper half.
        let mut upper = [1; 4];
        if expected != u128::from(found) && length(2 * edge_bytes) == u128::from(found) && edges > 0 {
            file.read_at(HEADER_BYTES + (u64::from(vertices) + 1) * 8 + 4, &mut upper)?;
        }
        if upper == [0; 4] {
            let what = "its vertices are numbers of 64 bits (64-bit ids), and 32 bits are read; write it by a GAP whose NodeID is int32_t";
            return Err(file.error(FileFault::Unsupported, Place::File, what));
        }
        if expected != u128::from(found) {
            let what = format!(
                "the file ends here, and with {vertices} vertices and {edges} edges it would end at byte {expected}; fetch it again"
            );
            return Err(file.error(FileFault::Truncated, Place::Byte(found), what));
        }
        Ok(Header {
            direction,
            vertices,
            edges,
            edge_bytes,
        })
    }
}

/// What is left of a file.
struct Rest<'a> {
    file: &'a Input<'a>,
    at: u64,
    /// Where the reading ends, for the progress.
    end: u64,
}

impl Rest<'_> {
    /// Reads elements.
    fn take<T: Pod>(&mut self, length: u64, progress: &mut ProgressFn<'_>) -> Result<Vec<T>, FileError> {
        let mut elements = vec![T::zeroed(); length as usize];
        for chunk in bytemuck::cast_slice_mut(&mut elements).chunks_mut(READ_BYTES) {
            self.file.read_at(self.at, chunk)?;
            self.at += chunk.len() as u64;
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
    ) -> Result<(Vec<u32>, Option<Vec<u32>>), FileError> {
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
}
