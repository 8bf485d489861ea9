//! Graphs from files, and the searches over them.

mod graph_files;
mod graph_round_trip;
mod paged_bfs;
