//! Triangles.

use rayon::prelude::*;

use super::Csr;

/// How many triangles a graph has whose rows hold lower vertices alone ([`Csr::lower`]), by merging rows, on all cores.
pub fn triangles(lower: &Csr) -> u64 {
    let common = |one: &[u32], other: &[u32]| {
        let (mut at, mut count) = (0, 0);
        for vertex in one {
            while other.get(at).is_some_and(|to| to < vertex) {
                at += 1;
            }
            count += u64::from(other.get(at) == Some(vertex));
        }
        count
    };
    let of_row = |vertex: u32| {
        let row = lower.row(vertex);
        row.iter().map(|other| common(lower.row(*other), row)).sum::<u64>()
    };
    (0..lower.vertices()).into_par_iter().map(of_row).sum()
}

#[cfg(test)]
mod tests {
    use super::super::super::{GraphSpec, LoadOptions};
    use super::*;

    #[test]
    fn triangles_are_those_of_all_triples() {
        for spec in ["kron:7", "urand:7:4"] {
            let graph = spec.parse::<GraphSpec>().unwrap();
            let graph = graph.load(&LoadOptions::default(), &mut |_| {}).unwrap();
            let csr = graph.csr();
            let edge = |u: u32, v: u32| csr.row(u).contains(&v);
            let mut expected = 0;
            for u in 0..csr.vertices() {
                for v in (0..u).filter(|v| edge(u, *v)) {
                    expected += (0..v).filter(|w| edge(u, *w) && edge(v, *w)).count() as u64;
                }
            }
            assert!(expected > 0);
            assert_eq!(triangles(&csr.lower().unwrap()), expected, "{spec}");
        }
    }
}
