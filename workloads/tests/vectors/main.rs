//! Vectors from files, and the search for the nearest of them.

mod graph_index;
mod vector_files;
