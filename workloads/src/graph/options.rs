//! How a graph is loaded.

use super::generate::DEFAULT_SEED;
use super::ids::Direction;
use super::weights::Weights;

/// How to load a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Overrides what the file says of its direction; generated graphs are undirected by default. A file that stores both directions of
    /// each edge stays undirected: a symmetric matrix, an undirected `.gcsr`, `.sg` or `.wsg` file.
    pub direction: Option<Direction>,
    /// The seed of a generated graph and of drawn weights.
    pub seed: u64,
    /// Which weights the edges have.
    pub weights: Weights,
    /// Whether the checksums of a `.gcsr` file are compared, and whether its undirected edges are looked for in both rows.
    /// Without it such a file is only checked so far that no row leads outside the graph and all are sorted.
    pub verify: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            direction: None,
            seed: DEFAULT_SEED,
            weights: Weights::None,
            verify: false,
        }
    }
}
