//! Applications over all ranks, each of the kernels that `gpuvm run` has for several GPUs.

mod bfs;
mod embedding;
mod pagerank;
mod rows;

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

pub use bfs::bfs;
use bytemuck::Pod;
pub use embedding::{Table, embedding};
pub use pagerank::pagerank;

use crate::partitioned::gather_of;
use crate::{ClusterError, Ranks};

/// What a rank has of a result, and what it took.
#[derive(Clone, Debug)]
pub struct Ran<T> {
    /// This rank's values.
    pub own: Vec<T>,
    /// Which values each rank has.
    pub parts: Vec<Range<usize>>,
    /// Before the first launch: kernels compiled and regions made.
    pub set_up: Duration,
    /// The algorithm, from a barrier on: launches, exchanges, what the host does between them.
    pub elapsed: Duration,
}

impl<T: Pod> Ran<T> {
    /// All values, on every rank: all ranks call it.
    ///
    /// # Errors
    /// [`ClusterError::Parts`] and [`ClusterError::TooMany`].
    pub fn gather(&self, ranks: &dyn Ranks) -> Result<Vec<T>, ClusterError> {
        let mut all = vec![T::zeroed(); self.parts.last().map_or(0, |part| part.end)];
        gather_of(ranks, "the result", &self.own, &self.parts, &mut all)?;
        Ok(all)
    }
}

/// Whether all values are the same, to the bit.
///
/// # Errors
/// [`ClusterError::Differs`], which names the first that is not.
pub fn compare<T: Pod + Debug>(what: &'static str, found: &[T], expected: &[T]) -> Result<(), ClusterError> {
    let differs = |place: usize, found: String, expected: String| {
        Err(ClusterError::Differs {
            what,
            place,
            found,
            expected,
        })
    };
    for (place, (one, other)) in found.iter().zip(expected).enumerate() {
        if bytemuck::bytes_of(one) != bytemuck::bytes_of(other) {
            return differs(place, format!("{one:?}"), format!("{other:?}"));
        }
    }
    if found.len() != expected.len() {
        let place = found.len().min(expected.len());
        return differs(
            place,
            format!("one of {}", found.len()),
            format!("one of {}", expected.len()),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named() {
        compare("value", &[1.5f32, 2.0], &[1.5, 2.0]).unwrap();
        let text = |found: &[f32]| compare("value", found, &[1.5, 0.0]).unwrap_err().to_string();
        assert!(text(&[1.5, -0.0]).starts_with("value 1 is -0.0, and one rank has 0.0"));
        assert!(text(&[1.5]).starts_with("value 1 is one of 1, and one rank has one of 2"));
        assert!(text(&[1.5, 0.0, 1.0]).starts_with("value 2 is one of 3"));
    }
}
