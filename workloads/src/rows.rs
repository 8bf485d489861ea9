//! What kernels that include `rows.cuh` are compiled with.

use gpuvm::CompileOptions;

use crate::apps::ACCESS;

/// The device header with the walks of rows.
pub const ROWS: &str = include_str!("rows.cuh");

/// Edges of a piece: half a page of 4 KiB. A listed row has less than one piece for every `PIECE_EDGES / 2` edges.
pub const PIECE_EDGES: u64 = 512;

/// Counts at the head of the list of pieces: one for even levels, one for odd ones.
pub const LIST_HEAD: u64 = 2;

/// Words of a list of long rows' pieces, for a graph of that many edges.
pub fn list_words(edges: u64) -> u64 {
    LIST_HEAD + edges.div_ceil(PIECE_EDGES / 2)
}

/// The options for a source that includes `rows.cuh`.
pub fn compile_options() -> CompileOptions {
    CompileOptions {
        headers: vec![
            ("rows.cuh".to_owned(), ROWS.to_owned()),
            ("access.cuh".to_owned(), ACCESS.to_owned()),
        ],
        defines: vec![
            ("ROW_PIECE_EDGES".to_owned(), Some(PIECE_EDGES.to_string())),
            ("ROW_LIST_HEAD".to_owned(), Some(LIST_HEAD.to_string())),
        ],
        ..CompileOptions::default()
    }
}
