//! What searches and sums over graphs come to, on the CPU, and the comparison of a breadth-first search with it.

mod components;
mod paths;
mod ranks;
mod triangles;

pub use components::components;
pub use paths::sssp;
pub use ranks::{DAMPING, Ranking, pagerank};
pub use triangles::triangles;

use super::Csr;

/// A search from a vertex that the graph does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vertex {vertex} is outside the graph's {vertices} vertices")]
pub struct VertexOutOfRange {
    /// The vertex asked for.
    pub vertex: u32,
    /// Vertices of the graph.
    pub vertices: u32,
}

/// Distances that differ from the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The results are of different graphs.
    #[error("{found} distances for {expected} vertices")]
    Length {
        /// Vertices of the reference.
        expected: usize,
        /// Distances given.
        found: usize,
    },
    /// Some distances differ.
    #[error("vertex {vertex} is at distance {expected}, found {found}; {differing} vertices differ")]
    Distance {
        /// The lowest vertex that differs.
        vertex: usize,
        /// Its distance in the reference, -1 where unreached.
        expected: i32,
        /// Its distance in the result.
        found: i32,
        /// How many vertices differ in all.
        differing: usize,
    },
}

/// Edges from `source` to every vertex on a shortest path, -1 where there is no path.
///
/// # Errors
/// [`VertexOutOfRange`] where `source` is no vertex of the graph.
pub fn bfs(csr: &Csr, source: u32) -> Result<Vec<i32>, VertexOutOfRange> {
    let vertices = csr.vertices();
    if source >= vertices {
        return Err(VertexOutOfRange {
            vertex: source,
            vertices,
        });
    }
    let mut distances = vec![-1; vertices as usize];
    distances[source as usize] = 0;
    let mut frontier = vec![source];
    let mut next = Vec::new();
    let mut level = 0;
    while !frontier.is_empty() {
        level += 1;
        for &vertex in &frontier {
            for &neighbour in csr.row(vertex) {
                let distance = &mut distances[neighbour as usize];
                if *distance < 0 {
                    *distance = level;
                    next.push(neighbour);
                }
            }
        }
        frontier.clear();
        std::mem::swap(&mut frontier, &mut next);
    }
    Ok(distances)
}

/// Compares a result with the reference.
///
/// # Errors
/// [`Mismatch`], with the first vertex that differs.
pub fn compare(expected: &[i32], found: &[i32]) -> Result<(), Mismatch> {
    if expected.len() != found.len() {
        return Err(Mismatch::Length {
            expected: expected.len(),
            found: found.len(),
        });
    }
    let mut differing = expected.iter().zip(found).enumerate().filter(|(_, (e, f))| e != f);
    match differing.next() {
        None => Ok(()),
        Some((vertex, (&expected, &found))) => {
            let differing = 1 + differing.count();
            Err(Mismatch::Distance {
                vertex,
                expected,
                found,
                differing,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Direction;
    use super::*;

    #[test]
    fn distances_of_a_small_graph() {
        let edges = [(0, 1), (1, 2), (2, 3), (0, 3), (4, 0)];
        let csr = Csr::from_edges(6, &edges, Direction::Directed).unwrap();
        assert_eq!(bfs(&csr, 0).unwrap(), [0, 1, 2, 1, -1, -1]);
        assert_eq!(bfs(&csr, 4).unwrap(), [1, 2, 3, 2, 0, -1]);
        assert_eq!(bfs(&csr, 6), Err(VertexOutOfRange { vertex: 6, vertices: 6 }));
    }

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(compare(&[0, 1, -1], &[0, 1, -1]), Ok(()));
        let expected = Mismatch::Distance {
            vertex: 1,
            expected: 1,
            found: 2,
            differing: 2,
        };
        assert_eq!(compare(&[0, 1, -1], &[0, 2, 4]), Err(expected));
        assert_eq!(compare(&[0], &[]), Err(Mismatch::Length { expected: 1, found: 0 }));
    }
}
