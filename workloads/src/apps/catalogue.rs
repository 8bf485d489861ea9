//! The applications by name, with what their inputs are called.

use std::ffi::OsStr;
use std::sync::Arc;

use super::error::AppError;
use super::{
    App, Bfs, BfsParameters, Components, Dense, DenseKind, Embedding, EmbeddingParameters, EmbeddingShape,
    GesummvParameters, Given, Knn, KnnParameters, OfQuery, PageRank, PageRankParameters, Parameter, Parameters, Sort,
    SortParameters, Sssp, SsspParameters, TableQuery, Triangles,
};
use crate::graph::{DEFAULT_SEED, Graph, GraphSpec, LoadOptions, Weights};
use crate::input::named;
use crate::table::TableSpec;
use crate::vectors::VectorSpec;

/// An application, before it has its input.
pub struct Entry<A: ?Sized = dyn App> {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What its input is, in words.
    pub input: &'static str,
    /// An input that a simulated GPU does in seconds.
    pub small: &'static str,
    /// An input for a GPU: about a gibibyte of arrays, or as much as is made in seconds.
    pub large: &'static str,
    /// Whether it runs on several GPUs of one virtual memory, too.
    pub several: bool,
    /// What else it can be told.
    pub parameters: fn() -> Vec<Parameter>,
    pub(crate) make: Make<A>,
}

impl<A: ?Sized> std::fmt::Debug for Entry<A> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name)
    }
}

/// Makes an application of its input and of parameters that are given.
pub(crate) type Make<A = dyn App> = fn(&OsStr, &Given) -> Result<Box<A>, AppError>;

impl<A: ?Sized> Entry<A> {
    /// One without parameters; inputs are in words, a small one, a large one.
    pub(crate) const fn new(name: &'static str, about: &'static str, inputs: [&'static str; 3], make: Make<A>) -> Self {
        let [input, small, large] = inputs;
        Self {
            name,
            about,
            input,
            small,
            large,
            several: false,
            parameters: <()>::list,
            make,
        }
    }

    /// The application with the input that `input` names.
    ///
    /// # Errors
    /// [`AppError::Input`] and others that say what inputs look like; a file that is broken.
    pub fn make(&self, input: impl AsRef<OsStr>) -> Result<Box<A>, AppError> {
        self.make_with(input, &[])
    }

    /// [`make`](Self::make) with parameters that are given; the others have their defaults.
    ///
    /// # Errors
    /// As [`make`](Self::make); for a value that a parameter cannot have.
    pub fn make_with(&self, input: impl AsRef<OsStr>, given: &Given) -> Result<Box<A>, AppError> {
        (self.make)(input.as_ref(), given)
    }
}

const MATRIX: [&str; 3] = ["N, for matrices of N x N", "256", "16384"];
const TRIPS: [&str; 3] = [
    "a CSV or Parquet file of taxi trips, or trips:ROWS",
    "trips:20000",
    "trips:67108864",
];
const GRAPH: [&str; 3] = [
    "a graph: a file, kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE]",
    "kron:11",
    "kron:23",
];
/// Its work grows faster than the graph.
const FEWER_EDGES: [&str; 3] = ["an undirected graph, as for bfs", "kron:11", "urand:22"];
const UNDIRECTED: [&str; 3] = [FEWER_EDGES[0], "kron:11", "kron:23"];
const TABLE: [&str; 3] = [
    "ROWS or ROWSxCOLUMNS of a table, with 128 columns where none are given",
    "2000",
    "2097152",
];
const KEYS: [&str; 3] = ["COUNT, of the keys", "20000", "134217728"];
const VECTORS: [&str; 3] = [
    "a .fvecs or .bvecs file, the last of whose vectors are the queries, or clusters:COUNT:DIM[:CLUSTERS]",
    "clusters:2000:32",
    "clusters:400000:96",
];

/// Makes the table: name, what it does, input, whether it runs on several GPUs, its parameters, and how it is made of input and parameters.
macro_rules! applications {
    ($($name:literal, $about:literal, $inputs:expr, $several:literal, $parameters:ty, |$input:pat_param, $own:pat_param| $make:expr;)*) => {
        /// All applications.
        pub const ALL: &[Entry] = &[$(Entry {
            several: $several,
            parameters: <$parameters>::list,
            ..Entry::new($name, $about, $inputs, |$input, given| {
                let $own = <$parameters>::of(given)?;
                Ok(Box::new($make))
            })
        },)*];
    };
}

applications! {
    "vector-add", "c = a + b, of N^2 elements each", MATRIX, false, (), |n, ()| dense(DenseKind::VectorAdd, n)?;
    "mvt", "Matrix times vector and transposed matrix times vector (PolyBench)", MATRIX, false, (), |n, ()| dense(DenseKind::Mvt, n)?;
    "atax", "Transposed matrix times matrix times vector (PolyBench)", MATRIX, false, (), |n, ()| dense(DenseKind::Atax, n)?;
    "bicg", "The kernel of the biconjugate gradient method (PolyBench)", MATRIX, false, (), |n, ()| dense(DenseKind::Bicg, n)?;
    "gesummv", "Two matrices times a vector (PolyBench)", MATRIX, false, GesummvParameters,
        |n, own| Dense::new(DenseKind::Gesummv, whole(n, MATRIX)?, &own)?;
    "stencil", "One step of a stencil of five points, over a grid of N x N", MATRIX, false, (), |n, ()| dense(DenseKind::Stencil, n)?;
    "query0", "Totals of the longest 0.01 % of trips", TRIPS, false, OfQuery<0>, |file, own| query(file, &own)?;
    "query1", "Fares and tips of the longest 1 % of trips", TRIPS, false, OfQuery<1>, |file, own| query(file, &own)?;
    "query2", "Totals and tips of the latest trips that were paid by card, 10 % of all", TRIPS, false, OfQuery<2>, |file, own| query(file, &own)?;
    "query3", "Fares and tips of the longer trips with one or two passengers, 50 % of all", TRIPS, false, OfQuery<3>,
        |file, own| query(file, &own)?;
    "query4", "Fares and tips of the longest 10 % of trips by pickup zone and hour", TRIPS, false, OfQuery<4>, |file, own| query(file, &own)?;
    "embedding", "Sums of rows of an embedding table by ids, few of which are popular", TABLE, false, EmbeddingParameters,
        |table, own| Embedding::new(shape(table, &own)?, DEFAULT_SEED)?;
    "sort", "Out-of-core sort of random keys of 32 bits", KEYS, false, SortParameters,
        |count, own| Sort::random(whole(count, KEYS)?, DEFAULT_SEED, &own)?;
    "knn", "Nearest neighbours by a beam search along a graph", VECTORS, false, KnnParameters,
        |file, own| Knn::of(&named(file, VectorSpec::File)?, &own)?;
    "bfs", "Breadth-first search over a graph whose rows and distances are paged", GRAPH, true, BfsParameters,
        |file, own| Bfs::new(&graph(file, Weights::None)?, &own)?;
    "sssp", "Shortest paths over weighted edges, which are drawn where the file has no weights", GRAPH, false, SsspParameters,
        |file, own| Sssp::new(&graph(file, Weights::FromFileOrDrawn)?, &own)?;
    "cc", "Connected components", GRAPH, false, (), |file, ()| Components::new(&graph(file, Weights::None)?)?;
    "pagerank", "PageRank", UNDIRECTED, true, PageRankParameters, |file, own| PageRank::new(&graph(file, Weights::None)?, &own)?;
    "tc", "Counts triangles", FEWER_EDGES, false, (), |file, ()| Triangles::new(&graph(file, Weights::None)?)?;
}

/// The application of that name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
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

/// A whole number of an input, which `give` says how to write.
fn number(input: &str, text: &str, give: &str) -> Result<u64, AppError> {
    text.parse().map_err(|_| AppError::Input {
        what: format!("invalid size `{input}`: give {give}"),
    })
}

/// An input that is a whole number.
fn whole(input: &OsStr, [give, ..]: [&str; 3]) -> Result<u64, AppError> {
    let input = &input.to_string_lossy();
    number(input, input, give)
}

fn dense(kind: DenseKind, n: &OsStr) -> Result<Dense, AppError> {
    Dense::new(kind, whole(n, MATRIX)?, &GesummvParameters::default())
}

fn query<const PLACE: usize>(file: &OsStr, own: &OfQuery<PLACE>) -> Result<TableQuery, AppError> {
    TableQuery::new(named(file, TableSpec::File)?.load(DEFAULT_SEED)?, own)
}

fn shape(table: &OsStr, own: &EmbeddingParameters) -> Result<EmbeddingShape, AppError> {
    let give = "ROWS or ROWSxCOLUMNS of the table, for example 1000000x64";
    let input = &*table.to_string_lossy();
    let (rows, columns) = input.split_once('x').unwrap_or((input, "128"));
    let (rows, columns) = (number(input, rows, give)?, number(input, columns, give)?);
    Ok(EmbeddingShape {
        rows,
        columns,
        bags: own.bags.unwrap_or((rows / 16).max(1)),
        bag_ids: own.ids,
    })
}
