//! The applications by name, with what their inputs are called.

use std::ffi::OsStr;
use std::sync::Arc;

use super::error::AppError;
use super::{
    App, Bfs, Components, Dense, DenseKind, Embedding, EmbeddingShape, Knn, PageRank, Sort, Sssp, TableQuery, Triangles,
};
use crate::graph::{DEFAULT_SEED, Graph, GraphSpec, LoadOptions, Weights};
use crate::input::named;
use crate::table::TableSpec;
use crate::vectors::VectorSpec;

/// An application, before it has its input.
pub struct Entry<A: ?Sized = dyn App> {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What its input is, in words.
    pub input: &'static str,
    /// An input that a simulated GPU does in seconds.
    pub small: &'static str,
    /// An input for a GPU: about a gibibyte of arrays, or as much as is made in seconds.
    pub large: &'static str,
    pub(crate) make: fn(&OsStr) -> Result<Box<A>, AppError>,
}

impl<A: ?Sized> Entry<A> {
    /// The application with the input that `input` names.
    ///
    /// # Errors
    /// [`AppError::Input`] and others that say what inputs look like; a file that is broken.
    pub fn make(&self, input: impl AsRef<OsStr>) -> Result<Box<A>, AppError> {
        (self.make)(input.as_ref())
    }
}

/// All applications.
pub const ALL: &[Entry] = &[
    matrix("vector-add", |input| dense(DenseKind::VectorAdd, input)),
    matrix("mvt", |input| dense(DenseKind::Mvt, input)),
    matrix("atax", |input| dense(DenseKind::Atax, input)),
    matrix("bicg", |input| dense(DenseKind::Bicg, input)),
    matrix("gesummv", |input| dense(DenseKind::Gesummv, input)),
    matrix("stencil", |input| dense(DenseKind::Stencil, input)),
    table("query0", |input| query(0, input)),
    table("query1", |input| query(1, input)),
    table("query2", |input| query(2, input)),
    table("query3", |input| query(3, input)),
    table("query4", |input| query(4, input)),
    Entry {
        name: "embedding",
        input: "ROWS or ROWSxCOLUMNS of a table, with 128 columns where none are given",
        small: "2000",
        large: "2097152",
        make: embedding,
    },
    Entry {
        name: "sort",
        input: "COUNT, of the keys",
        small: "20000",
        large: "134217728",
        make: sort,
    },
    Entry {
        name: "knn",
        input: "a .fvecs or .bvecs file, or clusters:COUNT:DIM[:CLUSTERS]",
        small: "clusters:2000:32",
        large: "clusters:400000:96",
        make: knn,
    },
    of_graph("bfs", bfs),
    of_graph("sssp", sssp),
    of_graph("cc", components),
    of_graph("pagerank", pagerank),
    Entry {
        // Its work grows faster than the graph.
        large: "urand:22",
        ..of_graph("tc", triangles)
    },
];

/// Iterations of PageRank, as many as GAP's benchmark runs at most.
const PAGERANK_ITERATIONS: u32 = 20;

/// The application of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

/// Makes an application of its input.
type Make = fn(&OsStr) -> Result<Box<dyn App>, AppError>;

const fn matrix(name: &'static str, make: Make) -> Entry {
    Entry {
        name,
        input: "N, for matrices of N x N",
        small: "256",
        large: "16384",
        make,
    }
}

const fn of_graph(name: &'static str, make: Make) -> Entry {
    Entry {
        name,
        input: "a graph: a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]",
        small: "kron:11",
        large: "kron:23",
        make,
    }
}

/// The graph that an input names.
pub(crate) fn graph(input: &OsStr, weights: Weights) -> Result<Arc<Graph>, AppError> {
    let options = LoadOptions {
        weights,
        ..LoadOptions::default()
    };
    let graph = named(input, GraphSpec::File)?.load(&options, &mut |_| {})?;
    Ok(Arc::new(graph))
}

fn bfs(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let graph = graph(input, Weights::None)?;
    Ok(Box::new(Bfs::new(&graph, first_connected(&graph))?))
}

fn sssp(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let graph = graph(input, Weights::FromFileOrDrawn)?;
    Ok(Box::new(Sssp::new(&graph, first_connected(&graph), None)?))
}

fn components(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    Ok(Box::new(Components::new(&graph(input, Weights::None)?)?))
}

fn pagerank(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let graph = graph(input, Weights::None)?;
    Ok(Box::new(PageRank::new(&graph, PAGERANK_ITERATIONS)?))
}

fn triangles(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    Ok(Box::new(Triangles::new(&graph(input, Weights::None)?)?))
}

/// Where walks begin, as those of `gpuvm run bfs`; a graph without edges is refused by who gets it.
fn first_connected(graph: &Graph) -> u32 {
    graph.csr().first_connected().unwrap_or(0)
}

const fn table(name: &'static str, make: Make) -> Entry {
    Entry {
        name,
        input: "a CSV or Parquet file, or trips:ROWS",
        small: "trips:20000",
        large: "trips:67108864",
        make,
    }
}

/// A whole number of an input, which `give` says how to write.
fn number(input: &str, text: &str, give: &str) -> Result<u64, AppError> {
    text.parse().map_err(|_| AppError::Input {
        what: format!("`{input}` is no size; give {give}"),
    })
}

fn dense(kind: DenseKind, input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let input = &input.to_string_lossy();
    let n = number(input, input, "N, for matrices of N x N")?;
    Ok(Box::new(Dense::new(kind, n)?))
}

fn query(place: usize, input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let trips = named(input, TableSpec::File)?.load(DEFAULT_SEED)?;
    let mut queries = TableQuery::all(trips)?.into_iter();
    match queries.nth(place) {
        Some(query) => Ok(Box::new(query)),
        None => unreachable!("there are five"),
    }
}

/// A table with a bag of 32 ids for each 16 of its rows.
fn embedding(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let give = "ROWS or ROWSxCOLUMNS of the table, for example 1000000x64";
    let input = &*input.to_string_lossy();
    let (rows, columns) = input.split_once('x').unwrap_or((input, "128"));
    let (rows, columns) = (number(input, rows, give)?, number(input, columns, give)?);
    let shape = EmbeddingShape {
        columns,
        ..EmbeddingShape::of_rows(rows, (rows / 16).max(1))
    };
    Ok(Box::new(Embedding::new(shape, DEFAULT_SEED)?))
}

fn sort(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    let input = &input.to_string_lossy();
    let keys = number(input, input, "COUNT, of the keys")?;
    Ok(Box::new(Sort::random(keys, DEFAULT_SEED)?))
}

fn knn(input: &OsStr) -> Result<Box<dyn App>, AppError> {
    Ok(Box::new(Knn::of(&named(input, VectorSpec::File)?)?))
}
