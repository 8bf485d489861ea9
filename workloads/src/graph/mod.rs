//! Graphs in compressed sparse row form: where they come from and what is known about them.
//!
//! A [`GraphSpec`] names a file or a generator and [`GraphSpec::load`] makes a [`Graph`] of it.
//! Every graph is built in the same way: self-loops are dropped, rows are sorted in ascending
//! order and hold each neighbour once, as the GAP benchmark's builder does.
//!
//! A graph is directed or not as its file says: a `general` Matrix Market file and an edge list
//! with SNAP's comment `# Directed graph` are directed; symmetric matrices, edge lists that say
//! `# Undirected graph` or say nothing, and generated graphs are undirected, so that each edge is
//! stored in both rows. GAP's serialized graphs and `.gcsr` files say it in their headers. [`LoadOptions::direction`] overrides it.
//!
//! A graph has weights where [`LoadOptions::weights`] asks for them. Of several edges between the same ends the least weight stays.
//!
//! [`Graph::write`] writes a `.gcsr` file, which [`GraphSpec::load`] maps: nothing is parsed, sorted or copied.

mod array;
mod csr;
mod csr_file;
mod dimacs;
mod edge_list;
mod error;
mod gap;
pub(crate) mod generate;
mod ids;
mod loaded;
mod lower;
mod matrix_market;
mod metis;
mod options;
pub mod reference;
mod rows;
mod spec;
mod text;
mod weights;

pub use csr::Csr;
pub use error::{GraphError, SourceError};
pub use generate::DEFAULT_SEED;
pub use ids::{Direction, MAX_VERTICES};
pub use loaded::Graph;
pub use options::LoadOptions;
pub use spec::{DEFAULT_DEGREE, GraphSpec, MAX_DEGREE, MAX_SCALE};
pub use weights::{DRAWN_WEIGHT_MAX, Weights, draw_weights};

pub use crate::input::{Progress, ProgressFn, SpecError, Stage};
