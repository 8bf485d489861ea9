//! What the fuzz targets run.

mod targets;

pub use targets::*;
