//! Passes over all rows, on all cores: whether they are what [`Csr`] promises, whether they mirror each other, and back to edges.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::csr::{self, Csr};
use super::error::GraphError;
use super::{Direction, Progress, ProgressFn, Stage};
use crate::input::{FileError, FileFault, Place, require_memory};

/// Neighbours that a thread takes at a time.
pub(super) const CHUNK: usize = 1 << 16;

/// Neighbours between two progress reports.
const STEP: usize = 1 << 26;

/// What is wrong with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The element at fault: of the offsets or of the neighbours.
    pub index: usize,
    /// The row.
    pub row: u32,
    pub kind: FaultKind,
}

impl Fault {
    /// The error of a file that has the element at fault at byte `at`.
    pub(super) fn in_file(self, path: &Path, at: u64) -> GraphError {
        of_row(path, at, self.row, &self.kind)
    }
}

/// The error of a row of a file, which has the element at fault at byte `at`.
pub(super) fn of_row(path: &Path, at: u64, row: u32, what: &dyn std::fmt::Display) -> GraphError {
    FileError::new(path, FileFault::Malformed, Place::Byte(at), format!("row {row} {what}")).into()
}

/// The error of a file that stores an undirected graph one way, or with unequal weights.
pub(super) fn not_mirrored(path: &Path) -> GraphError {
    let what = "the graph is undirected by its header, and not every edge is in the rows of both its ends with one weight; write the file again";
    FileError::new(path, FileFault::Malformed, Place::File, what).into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FaultKind {
    #[error("begins at neighbour {begin}, it has to begin at {wanted}")]
    Begin { begin: u64, wanted: u64 },
    #[error("ends at neighbour {end}, before it begins at {begin}")]
    Descends { begin: u64, end: u64 },
    #[error("ends at neighbour {end}, and the graph has {edges}")]
    End { end: u64, edges: u64 },
    #[error("has the neighbour {neighbour}, and the graph's vertices are 0 to {}", vertices - 1)]
    OutOfRange { neighbour: u32, vertices: u32 },
    #[error("has the neighbour {neighbour} after {before}; they have to ascend")]
    NotAscending { before: u32, neighbour: u32 },
    #[error("has itself as a neighbour")]
    Loop,
}

/// The parts of rows that lie in a range of the neighbours of checked offsets: each row with the places of its part.
pub(super) fn parts(offsets: &[u64], range: Range<usize>) -> impl Iterator<Item = (u32, Range<usize>)> {
    let mut at = range.start;
    // The row that holds the first one: the last row that begins there or before.
    let mut row = offsets.partition_point(|begin| *begin <= at as u64).max(1) - 1;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        while offsets[row + 1] <= at as u64 {
            row += 1;
        }
        let part = at..range.end.min(offsets[row + 1] as usize);
        at = part.end;
        Some((row as u32, part))
    })
}

/// The chunks of `0..length`.
fn chunks(range: Range<usize>) -> impl ParallelIterator<Item = Range<usize>> {
    let end = range.end;
    let starts = range.into_par_iter().step_by(CHUNK);
    starts.map(move |start| start..end.min(start + CHUNK))
}

/// The first row whose ends cannot be.
pub(super) fn offsets_fault(offsets: &[u64], edges: u64) -> Option<Fault> {
    let fault = |index: usize, kind| {
        let row = index.saturating_sub(1) as u32;
        Some(Fault { index, row, kind })
    };
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    if first != 0 {
        let kind = FaultKind::Begin {
            begin: first,
            wanted: 0,
        };
        return fault(0, kind);
    }
    if let Some(index) = first_pair(offsets, |begin, end| begin > end) {
        let (begin, end) = (offsets[index - 1], offsets[index]);
        return fault(index, FaultKind::Descends { begin, end });
    }
    if last != edges {
        let kind = FaultKind::End { end: last, edges };
        return fault(offsets.len() - 1, kind);
    }
    None
}

/// The first element that is bad.
pub(super) fn first<T: Sync>(elements: &[T], bad: impl Fn(&T) -> bool + Sync) -> Option<usize> {
    // Without an early end the compiler looks at several at once.
    let any = |chunk: &Range<usize>| {
        elements[chunk.clone()]
            .iter()
            .fold(false, |any, element| any | bad(element))
    };
    let mut chunk = chunks(0..elements.len()).find_first(any)?;
    chunk.find(|&index| bad(&elements[index]))
}

/// The first element that makes a bad pair with the one before it.
pub(super) fn first_pair<T: Sync>(elements: &[T], bad: impl Fn(&T, &T) -> bool + Sync) -> Option<usize> {
    let any = |chunk: &Range<usize>| {
        let pairs = elements[chunk.start..=chunk.end].windows(2);
        pairs.fold(false, |any, pair| any | bad(&pair[0], &pair[1]))
    };
    let mut chunk = chunks(0..elements.len().saturating_sub(1)).find_first(any)?;
    chunk
        .find(|&index| bad(&elements[index], &elements[index + 1]))
        .map(|index| index + 1)
}

/// The first neighbour that is no vertex.
pub(super) fn range_fault(csr: &Csr) -> Option<Fault> {
    let (neighbours, vertices) = (csr.neighbours(), csr.vertices());
    let index = first(neighbours, |neighbour| *neighbour >= vertices)?;
    let kind = FaultKind::OutOfRange {
        neighbour: neighbours[index],
        vertices,
    };
    let row = row_of(csr.offsets(), index);
    Some(Fault { index, row, kind })
}

/// The row that holds the neighbour with that index.
pub(super) fn row_of(offsets: &[u64], index: usize) -> u32 {
    parts(offsets, index..index + 1).next().map_or(0, |(row, _)| row)
}

/// The first neighbour that is not as [`Csr`] promises, where the offsets are.
pub(super) fn rows_fault(csr: &Csr, progress: &mut ProgressFn<'_>) -> Option<Fault> {
    let length = csr.neighbours().len();
    for start in (0..length).step_by(STEP) {
        report(progress, start, length);
        let step = chunks(start..length.min(start + STEP));
        let found =
            step.find_map_first(|chunk| parts(csr.offsets(), chunk).find_map(|(row, part)| fault_of(csr, row, part)));
        if found.is_some() {
            return found;
        }
    }
    report(progress, length, length);
    None
}

fn report(progress: &mut ProgressFn<'_>, done: usize, total: usize) {
    progress(Progress {
        stage: Stage::Check,
        done: done as u64,
        total: total as u64,
    });
}

/// Looks at a part of a row.
fn fault_of(csr: &Csr, row: u32, part: Range<usize>) -> Option<Fault> {
    let (neighbours, vertices) = (csr.neighbours(), csr.vertices());
    // With the neighbour before the part, if that is of the row too.
    let begins = part.start as u64 == csr.offsets()[row as usize];
    let from = part.start - usize::from(!begins);
    let seen = &neighbours[from..part.end];
    let ascend = seen.windows(2).fold(true, |fine, pair| fine & (pair[0] < pair[1]));
    let fine = seen.iter().fold(ascend, |fine, neighbour| fine & (*neighbour != row));
    // The last one is the largest where they ascend.
    if fine && seen[seen.len() - 1] < vertices {
        return None;
    }
    part.into_iter().find_map(|index| {
        let neighbour = neighbours[index];
        let before = (index > from).then(|| neighbours[index - 1]);
        let kind = match before {
            _ if neighbour >= vertices => FaultKind::OutOfRange { neighbour, vertices },
            _ if neighbour == row => FaultKind::Loop,
            Some(before) if before >= neighbour => FaultKind::NotAscending { before, neighbour },
            _ => return None,
        };
        Some(Fault { index, row, kind })
    })
}

/// Whether every edge is in the rows of both its ends, with one weight. Sums of hashes are compared, so that an edge without its
/// mirror stays unseen once in 2^64 graphs.
pub(super) fn are_mirrored(csr: &Csr, weights: Option<&[u32]>) -> bool {
    let neighbours = csr.neighbours();
    let sum = chunks(0..neighbours.len()).map(|chunk| {
        let parts = parts(csr.offsets(), chunk);
        parts.fold(0_u64, |sum, (row, part)| {
            part.into_iter().fold(sum, |sum, index| {
                let neighbour = neighbours[index];
                let weight = weights.map_or(0, |weights| u64::from(weights[index]));
                let hash = mix(pair(row, neighbour) ^ mix(weight));
                match row < neighbour {
                    true => sum.wrapping_add(hash),
                    false => sum.wrapping_sub(hash),
                }
            })
        })
    });
    sum.reduce(|| 0, u64::wrapping_add) == 0
}

/// Builds rows anew from rows that are unsorted, or that are to be mirrored.
pub(super) fn rebuilt(
    csr: Csr,
    weights: Option<&[u32]>,
    direction: Direction,
    progress: &mut ProgressFn<'_>,
) -> Result<(Csr, Option<Vec<u32>>), GraphError> {
    Ok(match weights {
        None => (rebuilt_with(csr, |_| (), direction, progress)?.0, None),
        Some(weights) => {
            let (csr, weights) = rebuilt_with(csr, |index| weights[index], direction, progress)?;
            (csr, Some(weights))
        }
    })
}

fn rebuilt_with<W: Copy + Ord + Send + Sync>(
    csr: Csr,
    weight: impl Fn(usize) -> W,
    direction: Direction,
    progress: &mut ProgressFn<'_>,
) -> Result<(Csr, Vec<W>), GraphError> {
    let (vertices, neighbours) = (csr.vertices(), csr.neighbours());
    require_memory((neighbours.len() * size_of::<(u32, u32, W)>()) as u64)?;
    let mut edges = Vec::with_capacity(neighbours.len());
    for (row, part) in parts(csr.offsets(), 0..neighbours.len()) {
        edges.extend(part.map(|index| (row, neighbours[index], weight(index))));
    }
    drop(csr);
    csr::build(vertices, edges, direction, progress)
}

/// One number for both orders of the ends of an edge.
pub(super) fn pair(u: u32, v: u32) -> u64 {
    u64::from(u.min(v)) << 32 | u64::from(u.max(v))
}

/// A step of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub(super) fn mix(state: u64) -> u64 {
    let mut word = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_row_by_row() {
        let offsets = [0, 0, 3, 3, 3, 8, 8];
        let all: Vec<_> = parts(&offsets, 0..8).collect();
        assert_eq!(all, [(1, 0..3), (4, 3..8)]);
        let some: Vec<_> = parts(&offsets, 2..5).collect();
        assert_eq!(some, [(1, 2..3), (4, 3..5)]);
        assert_eq!(parts(&offsets, 3..3).count(), 0);
        assert_eq!(row_of(&offsets, 7), 4);
    }

    #[test]
    fn faults_are_found_across_chunks() {
        // A star whose row is longer than two chunks, then leaves.
        let leaves = 3 * CHUNK as u32;
        let edges: Vec<(u32, u32)> = (1..=leaves).map(|leaf| (0, leaf)).collect();
        let csr = Csr::from_edges(leaves + 1, &edges, Direction::Undirected).unwrap();
        let fault = |csr: &Csr| rows_fault(csr, &mut |_| {});
        assert_eq!(
            (fault(&csr), range_fault(&csr), are_mirrored(&csr, None)),
            (None, None, true)
        );
        let (offsets, neighbours) = csr.into_parts();
        for index in [CHUNK - 1, CHUNK, 2 * CHUNK + 7] {
            let with = |neighbour| {
                let mut neighbours = neighbours.clone();
                neighbours[index] = neighbour;
                Csr::of_parts(offsets.clone(), neighbours)
            };
            let kind = |csr: &Csr| fault(csr).map(|fault| (fault.index, fault.row, fault.kind));
            let before = neighbours[index - 1];
            let twice = FaultKind::NotAscending {
                before,
                neighbour: before,
            };
            assert_eq!(kind(&with(before)), Some((index, 0, twice)));
            assert_eq!(kind(&with(0)), Some((index, 0, FaultKind::Loop)));
            let far = FaultKind::OutOfRange {
                neighbour: leaves + 1,
                vertices: leaves + 1,
            };
            assert_eq!(kind(&with(leaves + 1)), Some((index, 0, far)));
            assert_eq!(range_fault(&with(leaves + 1)), fault(&with(leaves + 1)));
            assert!(!are_mirrored(&with(before), None));
        }
    }

    #[test]
    fn ends_of_rows_are_checked() {
        let kind = |offsets: &[u64]| offsets_fault(offsets, 4).map(|fault| (fault.index, fault.row, fault.kind));
        assert_eq!(kind(&[0, 0, 4]), None);
        let begin = FaultKind::Begin { begin: 1, wanted: 0 };
        assert_eq!(kind(&[1, 4]), Some((0, 0, begin)));
        let descends = FaultKind::Descends { begin: 5, end: 4 };
        assert_eq!(kind(&[0, 5, 4]), Some((2, 1, descends)));
        let end = FaultKind::End { end: 3, edges: 4 };
        assert_eq!(kind(&[0, 3]), Some((1, 0, end)));
        let mut long: Vec<u64> = (0..=4 * CHUNK as u64).map(|row| row.min(4)).collect();
        assert_eq!(kind(&long), None);
        long[3 * CHUNK] = 5;
        assert_eq!(kind(&long).map(|(index, ..)| index), Some(3 * CHUNK + 1));
    }
}
