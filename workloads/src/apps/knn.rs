//! Nearest neighbours by a beam search along a graph over the vectors ([`Index`]): a few rows of vectors and of links are read for each
//! query, anywhere.

use gpuvm::{Buffer, Kernel};

use super::error::{AppError, Step, compare};
use super::space::{Space, Use, finish};
use super::{App, Array, Loaded};
use crate::graph::DEFAULT_SEED;
use crate::vectors::{Index, IndexOptions, Neighbours, VectorSpec, Vectors, nearest, recall};

/// Blocks of 128 threads of a multiprocessor, by the kernel's bounds.
const BLOCKS: u32 = 4;
/// Neighbours that are searched for.
const K: usize = 10;
/// The width of the beam, as the kernel has it.
const BEAM: usize = 64;
/// Components that a lane reads at once.
const QUAD: usize = 4;
/// Of so many vectors one is a query, where there are not too many.
const QUERY_SHARE: usize = 20;
/// The most queries that are made of an input.
const QUERIES_MAX: usize = 10_000;
/// Queries whose exact neighbours are known.
const SAMPLE: usize = 100;
/// The least share of the exact neighbours that a search of the sample has to find.
const RECALL: f64 = 0.9;

/// Four neighbouring components, which a lane reads at once.
type Quad = [f32; QUAD];

/// Vectors with an index, and queries.
pub struct Knn {
    base: Vectors,
    queries: Vectors,
    index: Index,
    expected: Neighbours,
    /// The exact neighbours of the first queries.
    truth: Neighbours,
}

impl Knn {
    /// The ten nearest of `base` for each query, by a beam of 64. Builds the index, on all cores.
    ///
    /// # Errors
    /// [`AppError::Vectors`] for queries of another dimension, fewer than ten vectors, options outside of their ranges, and where the
    /// machine has too little memory.
    pub fn new(base: Vectors, queries: Vectors, options: &IndexOptions) -> Result<Self, AppError> {
        let sample = queries.values().iter().take(SAMPLE * queries.width());
        let sample = Vectors::new(queries.width(), sample.copied().collect())?;
        let truth = nearest(&base, &sample, K)?;
        // Before rows are filled up: dimensions that differ may be filled up to the same.
        let (base, queries) = (in_quads(base)?, in_quads(queries)?);
        let index = Index::build(&base, options)?;
        let expected = index.search(&base, &queries, K, BEAM)?.neighbours;
        Ok(Self {
            base,
            queries,
            index,
            expected,
            truth,
        })
    }

    /// Vectors that are generated, with other ones of their clusters for queries; or those of a file, the last of which are the queries.
    ///
    /// # Errors
    /// As [`Knn::new`]; the file's; [`AppError::Input`] for a file of one vector.
    pub fn of(spec: &VectorSpec) -> Result<Self, AppError> {
        let vectors = spec.load(DEFAULT_SEED)?;
        let (count, dim) = (vectors.count(), vectors.width());
        let queries = (count / QUERY_SHARE).clamp(1, QUERIES_MAX);
        let options = IndexOptions::default();
        if let VectorSpec::Clusters(clusters) = spec {
            return Self::new(vectors, clusters.queries(queries as u32, DEFAULT_SEED)?, &options);
        }
        if count == queries {
            let what = format!("{spec} has one vector; a search needs others to find, too");
            return Err(AppError::Input { what });
        }
        let mut values = vectors.into_values();
        let last = values.split_off((count - queries) * dim);
        Self::new(Vectors::new(dim, values)?, Vectors::new(dim, last)?, &options)
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
        format!("{count} vectors of {dim} floats with {links} links each, {queries} queries")
    }

    fn array_bytes(&self) -> Vec<u64> {
        let values = [self.base.values().len(), self.index.links().values().len()];
        values.map(|values| values as u64 * 4).to_vec()
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("each step of a search leads anywhere in the vectors")?;
        let [kernel] = space.kernels("knn.cu", include_str!("knn.cu"), ["search"], &[])?;
        Ok(Box::new(Work {
            app: self,
            space,
            kernel,
            vectors: space.array("vectors", Use::Read, quads(&self.base))?,
            links: space.array("links", Use::Read, self.index.links().values())?,
            queries: space.upload(quads(&self.queries))?,
            entries: space.upload(self.index.entries())?,
            found: space.buffer(self.expected.values().len() as u64)?,
        }))
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
            quads as u64,
            degree as u32,
            self.app.index.entries().len() as u32,
            K as u32,
            self.app.queries.count() as u64,
        );
        finish(self.kernel.launch(self.space.whole_gpu(BLOCKS, 0), args))
    }

    fn check(&self) -> Result<u64, AppError> {
        let mut found = self.found.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        let verified = compare("neighbour", &found, self.app.expected.values())?;
        let truth = &self.app.truth;
        found.truncate(truth.values().len());
        let found = Neighbours::new(K, found)?;
        let recall = recall(&self.app.base, &self.app.queries, truth, &found, K)?;
        match recall >= RECALL {
            true => Ok(verified),
            false => Err(AppError::Wrong {
                what: "recall at",
                place: K as u64,
                found: recall.to_string(),
                expected: format!("at least {RECALL}"),
            }),
        }
    }
}
