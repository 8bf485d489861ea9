//! Rows that hold lower vertices alone: each edge of an undirected graph once.

use rayon::prelude::*;

use super::csr::Csr;
use super::error::GraphError;
use crate::input::require_memory;

/// Rows whose lengths are looked at for [`is_skewed`].
const SAMPLES: u32 = 1000;

impl Csr {
    /// An undirected graph's rows with the lower vertices alone. Where a few vertices have most edges, vertices are numbered by their
    /// degrees beforehand, the highest first, so that rows are short. The GAP benchmark orders graphs so for counting
    /// triangles: `src/tc.cc` and `src/builder.h` of <https://github.com/sbeamer/gapbs>.
    ///
    /// # Errors
    /// [`GraphError::Memory`] where the machine has too little memory.
    pub fn lower(&self) -> Result<Csr, GraphError> {
        require_memory(u64::from(self.vertices()) * 16 + self.edges() / 2 * 4)?;
        let mut order: Vec<u32> = (0..self.vertices()).collect();
        if is_skewed(self) {
            order.par_sort_unstable_by_key(|vertex| (usize::MAX - self.row(*vertex).len(), *vertex));
        }
        let mut number = vec![0; order.len()];
        for (place, vertex) in order.iter().enumerate() {
            number[*vertex as usize] = place as u32;
        }
        let lower = |place: usize| {
            let row = self.row(order[place]).iter();
            row.map(|neighbour| number[*neighbour as usize])
                .filter(move |other| (*other as usize) < place)
        };
        let mut offsets = vec![0_u64];
        let lengths: Vec<u64> = (0..order.len())
            .into_par_iter()
            .map(|place| lower(place).count() as u64)
            .collect();
        offsets.extend(lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        }));
        let mut neighbours = vec![0; offsets[order.len()] as usize];
        let (mut rest, mut rows) = (neighbours.as_mut_slice(), Vec::with_capacity(order.len()));
        for length in lengths {
            let (row, others) = rest.split_at_mut(length as usize);
            rows.push(row);
            rest = others;
        }
        rows.into_par_iter().enumerate().for_each(|(place, row)| {
            row.iter_mut().zip(lower(place)).for_each(|(to, from)| *to = from);
            row.sort_unstable();
        });
        Ok(Csr::of_parts(offsets, neighbours))
    }
}

/// GAP's rule, over rows at equal distances: they are long, and their mean is far above their median.
fn is_skewed(csr: &Csr) -> bool {
    if csr.edges() / u64::from(csr.vertices().max(1)) < 10 {
        return false;
    }
    let samples = SAMPLES.min(csr.vertices());
    let row = |sample: u32| {
        csr.row((u64::from(sample) * u64::from(csr.vertices()) / u64::from(samples)) as u32)
            .len()
    };
    let mut lengths: Vec<usize> = (0..samples).map(row).collect();
    lengths.sort_unstable();
    let mean = lengths.iter().sum::<usize>() as f64 / f64::from(samples);
    mean / 1.3 > lengths[lengths.len() / 2] as f64
}

#[cfg(test)]
mod tests {
    use super::super::{GraphSpec, LoadOptions};
    use super::*;

    #[test]
    fn each_edge_is_kept_once_and_hubs_come_first() {
        for (spec, skewed) in [("kron:10", true), ("urand:10", false)] {
            let graph = spec.parse::<GraphSpec>().unwrap();
            let graph = graph.load(&LoadOptions::default(), &mut |_| {}).unwrap();
            let (csr, lower) = (graph.csr(), graph.csr().lower().unwrap());
            assert_eq!(is_skewed(csr), skewed, "{spec}");
            assert_eq!((lower.vertices(), lower.edges()), (csr.vertices(), csr.edges() / 2));
            let ascends =
                |vertex: u32| lower.row(vertex).is_sorted() && lower.row(vertex).iter().all(|to| *to < vertex);
            assert!((0..lower.vertices()).all(ascends));
            let longest = |csr: &Csr| (0..csr.vertices()).map(|vertex| csr.row(vertex).len()).max().unwrap();
            // The longest of kron:10 has hundreds.
            assert!(
                !skewed || longest(&lower) * 2 < longest(csr),
                "{} {}",
                longest(&lower),
                longest(csr)
            );
        }
    }
}
