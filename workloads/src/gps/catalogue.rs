//! The applications by name, with what their inputs are called.

use super::{Als, Case, Grid, PageRank, Shortest, Single, Wave};
use crate::apps::catalogue::{self, graph};
use crate::graph::Weights;

/// An application, before it has its input. The large input is one of which an iteration takes some milliseconds on one GPU.
pub type Entry = catalogue::Entry<dyn Case>;

/// All applications.
pub const ALL: &[Entry] = &[
    Entry {
        name: "jacobi",
        input: "ROWSxWIDTH of the grid",
        small: "66x300",
        large: "32768x32768",
        make: |input| Ok(Box::new(Single::new(Grid::jacobi(&input.to_string_lossy())?))),
    },
    Entry {
        name: "pagerank",
        input: GRAPH,
        small: "urand:9:8",
        large: "urand:24",
        make: |input| {
            let graph = graph(input, Weights::None)?;
            Ok(Box::new(Single::new(PageRank::new(&graph, &input.to_string_lossy())?)))
        },
    },
    Entry {
        name: "sssp",
        input: GRAPH,
        small: "urand:9:8",
        large: "urand:24",
        make: |input| {
            let graph = graph(input, Weights::FromFileOrDrawn)?;
            let input = format!("{} {}", input.display(), graph.weights_name());
            Ok(Box::new(Single::new(Shortest::new(&graph, &input)?)))
        },
    },
    Entry {
        name: "als",
        input: "USERSxITEMSxEACH, the items that each user rates",
        small: "48x32x9",
        large: "1048576x131072x64",
        make: |input| Ok(Box::new(Single::new(Als::new(&input.to_string_lossy())?))),
    },
    Entry {
        name: "diffusion",
        input: "PLANESxHEIGHTxWIDTH of the grid",
        small: "34x20x40",
        large: "1024x1024x1024",
        make: |input| Ok(Box::new(Single::new(Grid::diffusion(&input.to_string_lossy())?))),
    },
    Entry {
        name: "wave",
        input: "ROWSxWIDTH of the grid",
        small: "64x300",
        large: "16384x16384",
        make: |input| Ok(Box::new(Single::new(Wave::new(&input.to_string_lossy())?))),
    },
];

const GRAPH: &str = "an undirected graph: a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]";

/// The application of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}
