//! The applications by name, with what their inputs are called.

use super::{Als, Case, Grid, PageRank, Shortest, Single, Wave};
use crate::apps::catalogue::{self, graph};
use crate::graph::Weights;

/// An application, before it has its input. The large input is one of which an iteration takes some milliseconds on one GPU.
pub type Entry = catalogue::Entry<dyn Case>;

/// All applications.
pub const ALL: &[Entry] = &[
    Entry::new(
        "jacobi",
        "",
        ["ROWSxWIDTH of the grid", "66x300", "32768x32768"],
        |input, _| Ok(Box::new(Single::new(Grid::jacobi(&input.to_string_lossy())?))),
    ),
    Entry::new("pagerank", "", GRAPH, |input, _| {
        let graph = graph(input, Weights::None)?;
        Ok(Box::new(Single::new(PageRank::new(&graph, &input.to_string_lossy())?)))
    }),
    Entry::new("sssp", "", GRAPH, |input, _| {
        let graph = graph(input, Weights::FromFileOrDrawn)?;
        let input = format!("{} {}", input.display(), graph.weights_name());
        Ok(Box::new(Single::new(Shortest::new(&graph, &input)?)))
    }),
    Entry::new(
        "als",
        "",
        [
            "USERSxITEMSxEACH, the items that each user rates",
            "48x32x9",
            "1048576x131072x64",
        ],
        |input, _| Ok(Box::new(Single::new(Als::new(&input.to_string_lossy())?))),
    ),
    Entry::new(
        "diffusion",
        "",
        ["PLANESxHEIGHTxWIDTH of the grid", "34x20x40", "1024x1024x1024"],
        |input, _| Ok(Box::new(Single::new(Grid::diffusion(&input.to_string_lossy())?))),
    ),
    Entry::new(
        "wave",
        "",
        ["ROWSxWIDTH of the grid", "64x300", "16384x16384"],
        |input, _| Ok(Box::new(Single::new(Wave::new(&input.to_string_lossy())?))),
    ),
];

const GRAPH: [&str; 3] = [
    "an undirected graph: a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]",
    "urand:9:8",
    "urand:24",
];

/// The application of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}
