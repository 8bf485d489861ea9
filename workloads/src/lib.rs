//! Workloads that gpuvm is shown and measured with.
//!
//! [`graph`] holds compressed sparse row graphs: readers for Matrix Market files and SNAP edge
//! lists (plain or gzip), the GAP benchmark's Kronecker and uniform generators, and a breadth-first
//! search on the CPU that every paged result is compared with. [`bfs`] is the same search on the GPU, over a paged graph.
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

pub mod bfs;
pub mod graph;
