//! Graphs from files, and the searches over them.

mod binary_files;
mod common;
mod graph_files;
mod graph_round_trip;
mod paged_bfs;
mod weights;
