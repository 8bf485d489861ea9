//! Graphs, tables and vectors from files, and the searches over them.

mod binary_files;
mod common;
mod every_reader;
mod graph_files;
mod graph_index;
mod graph_round_trip;
mod paged_bfs;
mod parquet_files;
mod table_files;
mod table_round_trip;
mod vector_files;
mod weights;
