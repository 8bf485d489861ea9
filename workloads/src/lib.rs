//! Workloads that gpuvm is shown and measured with.
//!
//! [`graph`] holds compressed sparse row graphs, with weights where they are asked for: readers for Matrix Market files, SNAP edge
//! lists (plain or gzip) and the GAP benchmark's serialized graphs, `.gcsr` files that are mapped, the GAP benchmark's Kronecker and
//! uniform generators, and a breadth-first search on the CPU that every paged result is compared with. [`bfs`] is the same search on the GPU, over a paged graph.
//!
//! [`input`] holds what their readers have in common. [`table`] holds taxi trips as columns, and five queries over them. [`vectors`] holds vectors, their exact nearest neighbours,
//! and a graph by which near ones are found.
//!
//! [`gps`] holds applications whose GPUs exchange what they make, over broadcast arrays and in the ways that they are compared with.
//!
//! ```
//! use gpuvm_workloads::graph::{GraphSpec, LoadOptions, reference};
//!
//! let spec: GraphSpec = "kron:8".parse()?;
//! let graph = spec.load(&LoadOptions::default(), &mut |_| {})?;
//! let source = graph.csr().first_connected().ok_or("no edge")?;
//! let distances = reference::bfs(graph.csr(), source)?;
//! assert_eq!(distances[source as usize], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod apps;
pub mod bfs;
pub mod gps;
pub mod graph;
pub mod input;
mod random;
mod rows;
pub mod table;
pub mod take;
pub mod vectors;
