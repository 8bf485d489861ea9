//! Nearest neighbours by a beam search along a graph over the vectors ([`Index`]): a few rows of vectors and of links are read for each
//! query, anywhere.

use gpuvm::{Buffer, Kernel};
use rayon::prelude::*;

use super::array::Use;
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::space::{Space, finish};
use super::{App, Array, Column, Found, Loaded, Values, column};
use crate::graph::DEFAULT_SEED;
use crate::vectors::{Index, IndexOptions, NONE, Neighbours, VectorSpec, Vectors, distance, nearest, recall};

/// Blocks of 128 threads of a multiprocessor, by the kernel's bounds.
const BLOCKS: u32 = 4;
/// A beam is a number of these.
const BEAM_STEP: u32 = 32;
/// The distance of no vector, as the kernel has it: no number.
const NO_DISTANCE: f32 = f32::from_bits(0x7fff_ffff);
/// Components that a lane reads at once.
const QUAD: usize = 4;
/// Of this many vectors one is a query, where there are not too many.
const QUERY_SHARE: usize = 20;
/// The most queries that are made of an input.
const QUERIES_MAX: usize = 10_000;
/// Queries whose exact neighbours are known.
const SAMPLE: usize = 100;

parameters! {
    /// What is searched for, and how.
    #[derive(Copy)]
    KnnParameters {
        /// Neighbours of each query
        "k" k: u32 = 10, 1..=256;
        /// Vectors that a search keeps while it walks, in steps of 32 and no fewer than k: more find more and cost more
        "beam" beam: u32 = 64, 1..=256;
        /// The least share of the exact neighbours that the search of a sample has to find
        "recall" recall: f64 = 0.9, 0.0..=1.0;
    }
}

/// Four neighbouring components, which a lane reads at once.
type Quad = [f32; QUAD];

/// Vectors with an index, and queries.
pub struct Knn {
    base: Vectors,
    queries: Vectors,
    index: Index,
    parameters: KnnParameters,
    expected: [Column; 2],
    /// The exact neighbours of the first queries.
    truth: Neighbours,
}

impl Knn {
    /// The nearest of `base` for each query. Builds the index, on all cores.
    ///
    /// # Errors
    /// [`AppError::Vectors`] for queries of another dimension, fewer vectors than neighbours, options outside of their ranges, and where the
    /// machine has too little memory.
    pub fn new(
        base: Vectors,
        queries: Vectors,
        options: &IndexOptions,
        parameters: &KnnParameters,
    ) -> Result<Self, AppError> {
        let KnnParameters { k, beam, recall } = *parameters;
        let beam = beam.max(k).next_multiple_of(BEAM_STEP);
        let parameters = KnnParameters { k, beam, recall };
        let sample = queries.values().iter().take(SAMPLE * queries.width());
        let sample = Vectors::new(queries.width(), sample.copied().collect())?;
        let truth = nearest(&base, &sample, k as usize)?;
        // Before rows are filled up: dimensions that differ may be filled up to the same.
        let (base, queries) = (in_quads(base)?, in_quads(queries)?);
        let index = Index::build(&base, options)?;
        let found = index.search(&base, &queries, k as usize, beam as usize)?.neighbours;
        let expected = columns(k, distances(&base, &queries, &found), found.into_values());
        Ok(Self {
            base,
            queries,
            index,
            parameters,
            expected,
            truth,
        })
    }

    /// Vectors that are generated, with other ones of their clusters for queries; or those of a file, the last of which are the queries.
    ///
    /// # Errors
    /// As [`Knn::new`]; the file's; [`AppError::Input`] for a file of one vector.
    pub fn of(spec: &VectorSpec, parameters: &KnnParameters) -> Result<Self, AppError> {
        let vectors = spec.load(DEFAULT_SEED)?;
        let (count, dim) = (vectors.count(), vectors.width());
        let queries = (count / QUERY_SHARE).clamp(1, QUERIES_MAX);
        let options = IndexOptions::default();
        if let VectorSpec::Clusters(clusters) = spec {
            let queries = clusters.queries(queries as u32, DEFAULT_SEED)?;
            return Self::new(vectors, queries, &options, parameters);
        }
        if count == queries {
            let what = format!("{spec} has one vector; a search needs others to find, too");
            return Err(AppError::Input { what });
        }
        let mut values = vectors.into_values();
        let last = values.split_off((count - queries) * dim);
        let (base, queries) = (Vectors::new(dim, values)?, Vectors::new(dim, last)?);
        Self::new(base, queries, &options, parameters)
    }
}

/// The vectors with zeros behind each, up to whole quads. Distances stay the same, bit for bit.
fn in_quads(vectors: Vectors) -> Result<Vectors, AppError> {
    let dim = vectors.width();
    let wide = dim.next_multiple_of(QUAD);
    if wide == dim {
        return Ok(vectors);
    }
    let mut values = vec![0.0; vectors.count() * wide];
    let rows = values.chunks_exact_mut(wide).zip(vectors.rows());
    rows.for_each(|(wide, row)| wide[..dim].copy_from_slice(row));
    Ok(Vectors::new(wide, values)?)
}

/// The distances of each query from its neighbours.
fn distances(base: &Vectors, queries: &Vectors, neighbours: &Neighbours) -> Vec<f32> {
    let tasks = neighbours.values().par_chunks(neighbours.width()).enumerate();
    let all = tasks.flat_map_iter(|(query, ids)| {
        let query = queries.row(query as u32);
        ids.iter().map(|id| match *id {
            NONE => NO_DISTANCE,
            id => distance(query, base.row(id)),
        })
    });
    all.collect()
}

fn columns(k: u32, distances: Vec<f32>, ids: Vec<u32>) -> [Column; 2] {
    [("ids", Values::from(ids)), ("distances", distances.into())]
        .map(|(name, values)| Column::wide(name, k as usize, values))
}

/// The vectors as lanes read them.
fn quads(vectors: &Vectors) -> &[Quad] {
    bytemuck::cast_slice(vectors.values())
}

impl App for Knn {
    fn name(&self) -> &'static str {
        "knn"
    }

    fn input(&self) -> String {
        let links = self.index.links().width();
        let (count, dim, queries) = (self.base.count(), self.base.width(), self.queries.count());
        let k = self.parameters.k;
        format!("{count} vectors of {dim} floats with {links} links each, {queries} queries for {k}")
    }

    fn array_bytes(&self) -> Vec<u64> {
        let values = [self.base.values().len(), self.index.links().values().len()];
        values.map(|values| values as u64 * 4).to_vec()
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("each step of a search leads anywhere in the vectors")?;
        let beam = [("KNN_BEAM", self.parameters.beam.to_string())];
        let [kernel] = space.kernels("knn.cu", include_str!("knn.cu"), ["search"], &beam)?;
        let found = self.queries.count() as u64 * u64::from(self.parameters.k);
        Ok(Box::new(Work {
            app: self,
            space,
            kernel,
            vectors: space.array("vectors", Use::Read, quads(&self.base))?,
            links: space.array("links", Use::Read, self.index.links().values())?,
            queries: space.upload(quads(&self.queries))?,
            entries: space.upload(self.index.entries())?,
            found: space.buffer(found)?,
            distances: space.buffer(found)?,
        }))
    }

    fn expected(&self) -> &[Column] {
        &self.expected
    }

    /// Neighbours are the processor's, and near enough to the exact ones.
    fn check(&self, found: &Found) -> Result<u64, AppError> {
        let verified = column::compare(&found.columns, &self.expected, &|_| 0.0)?;
        let (k, truth) = (self.parameters.k as usize, &self.truth);
        let Values::U32(ids) = &found.columns[0].values else {
            unreachable!("compared with ids")
        };
        let found = Neighbours::new(k, ids[..truth.values().len()].to_vec())?;
        let recall = recall(&self.base, &self.queries, truth, &found, k)?;
        match recall >= self.parameters.recall {
            true => Ok(verified),
            false => Err(AppError::Wrong {
                what: "recall at",
                place: k as u64,
                found: recall.to_string(),
                expected: format!("at least {}; a wider --beam finds more", self.parameters.recall),
            }),
        }
    }
}

struct Work<'a> {
    app: &'a Knn,
    space: &'a Space,
    kernel: Kernel,
    vectors: Array<Quad>,
    links: Array<u32>,
    queries: Buffer<Quad>,
    entries: Buffer<u32>,
    found: Buffer<u32>,
    distances: Buffer<f32>,
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.vectors.prefetch()?;
        self.links.prefetch()?;
        let (quads, degree) = (self.app.base.width() / QUAD, self.app.index.links().width());
        let args = (
            self.vectors.arg()?,
            self.links.arg()?,
            &self.queries,
            &self.entries,
            &self.found,
            &self.distances,
            quads as u64,
            degree as u32,
            self.app.index.entries().len() as u32,
            self.app.parameters.k,
            self.app.queries.count() as u64,
        );
        finish(self.kernel.launch(self.space.whole_gpu(BLOCKS, 0), args))
    }

    fn found(&self) -> Result<Found, AppError> {
        let failed = AppError::vm(Step::ReadBack);
        let (ids, distances) = (
            self.found.to_vec().map_err(&failed)?,
            self.distances.to_vec().map_err(&failed)?,
        );
        Ok(columns(self.app.parameters.k, distances, ids).to_vec().into())
    }
}
