//! Bags of an embedding table: sums of rows by ids, few of which are popular.
//!
//! Ids follow Zipf's law with the exponent 0.99, as key-value stores and recommendation models are measured (Cooper et al., Benchmarking
//! Cloud Serving Systems with YCSB, 2010). The k-th popular row lies anywhere, so that popular rows share no pages. Values are small whole
//! numbers: sums have one result in any order.

use std::ops::Range;
use std::sync::OnceLock;

use gpuvm::{Buffer, Kernel, LaunchConfig};
use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::array::Use;
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::space::{Space, finish};
use super::{App, Array, Column, Found, Loaded};
use crate::graph::generate::stream;
use crate::input::require_memory;

/// Blocks of 128 threads of a multiprocessor, by the kernel's bounds.
const BLOCKS: u32 = 4;
/// How fast the rows' popularity falls.
const EXPONENT: f64 = 0.99;
/// A prime above all numbers of rows, so that multiples of it name each row once.
const APART: u64 = 4_294_967_311;
/// A sum of this many values is exact as a float.
const BAG_MAX: u64 = 1 << 16;

/// Four neighbouring columns of a row, which a lane reads at once.
type Quad = [f32; 4];

parameters! {
    /// The bags of a table.
    EmbeddingParameters {
        /// Bags, of which each is one result of a row's length. Without it: one for 16 rows of the table
        "bags" bags: Option<u64> = None, 1..=1 << 40;
        /// Ids of a bag
        "ids" ids: u64 = 32, 1..=BAG_MAX;
    }
}

/// What a table and its bags are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingShape {
    /// Rows of the table: 1 to 2^32.
    pub rows: u64,
    /// Columns, each a float of 4 bytes: a multiple of 4.
    pub columns: u64,
    /// Bags, of which each is one result of a row's length.
    pub bags: u64,
    /// Ids of a bag: 1 to 65 536.
    pub bag_ids: u64,
}

impl EmbeddingShape {
    /// Bags of 32 rows of 128 columns (512 bytes), `bags` in all.
    pub fn of_rows(rows: u64, bags: u64) -> Self {
        Self {
            rows,
            columns: 128,
            bags,
            bag_ids: 32,
        }
    }

    /// Whether there is such a table, and room for it and its ids.
    ///
    /// # Errors
    /// [`AppError::Input`] for a shape past its limits or this machine's memory.
    pub fn check(&self) -> Result<(), AppError> {
        if let Some(fault) = self.fault() {
            let what = format!("an embedding table of {self:?}: {fault}");
            return Err(AppError::Input { what });
        }
        Ok(require_memory(
            4 * (self.rows * self.columns + self.bags * self.bag_ids),
        )?)
    }

    /// Four neighbouring columns of the table, counted row by row.
    pub fn quad(&self, at: u64) -> [f32; 4] {
        let quads = self.columns / 4;
        let value = |row: u64, column: u64| ((row * 2_654_435_761 + column * 40_503) >> 13 & 0xff) as f32;
        [0, 1, 2, 3].map(|k| value(at / quads, at % quads * 4 + k))
    }

    /// The ids of some bags, which the seed names, one bag after the other. A bag has its own random numbers: neither the number of cores
    /// matters, nor which other bags are asked for.
    pub fn ids(&self, seed: u64, bags: Range<u64>) -> Vec<u32> {
        // Ranks by the inverse of the law's integral, from 1 to `rows` + 1.
        let rest = 1.0 - EXPONENT;
        let all = ((self.rows + 1) as f64).powf(rest) - 1.0;
        let mut ids = vec![0; ((bags.end - bags.start) * self.bag_ids) as usize];
        let chunks = ids.par_chunks_mut(self.bag_ids as usize).enumerate();
        chunks.for_each(|(bag, ids)| {
            let mut random = stream(seed, bags.start + bag as u64);
            ids.fill_with(|| {
                let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = (uniform * all + 1.0).powf(rest.recip()) as u64;
                let rank = rank.clamp(1, self.rows);
                (u128::from(rank) * u128::from(APART) % u128::from(self.rows)) as u32
            });
        });
        ids
    }

    /// Why there is no such table.
    fn fault(&self) -> Option<&'static str> {
        let quads = (self.columns / 4).checked_mul(self.rows.max(self.bags));
        match self {
            _ if self.rows == 0 || self.rows > 1 << 32 => Some("rows are 1 to 2^32"),
            _ if self.columns == 0 || !self.columns.is_multiple_of(4) => Some("columns are a multiple of 4, and not 0"),
            _ if self.bags == 0 => Some("there must be at least one bag"),
            _ if self.bag_ids == 0 || self.bag_ids > BAG_MAX => Some("ids of a bag are 1 to 65536"),
            _ if quads.is_none_or(|quads| quads > 1 << 40) => Some("a table and its results have at most 2^42 values"),
            _ if self.bags.checked_mul(self.bag_ids).is_none_or(|ids| ids > 1 << 40) => {
                Some("all bags have at most 2^40 ids")
            }
            _ => None,
        }
    }
}

/// A table, with bags of its rows.
pub struct Embedding {
    shape: EmbeddingShape,
    table: Vec<Quad>,
    ids: Vec<u32>,
    expected: OnceLock<[Column; 1]>,
}

impl Embedding {
    /// With its values and ids, which the seed names.
    ///
    /// # Errors
    /// [`AppError::Input`] for a shape past its limits or this machine's memory.
    pub fn new(shape: EmbeddingShape, seed: u64) -> Result<Self, AppError> {
        shape.check()?;
        let quads = 0..shape.rows * (shape.columns / 4);
        Ok(Self {
            shape,
            table: quads.into_par_iter().map(|at| shape.quad(at)).collect(),
            ids: shape.ids(seed, 0..shape.bags),
            expected: OnceLock::new(),
        })
    }

    fn column(&self, sums: &[Quad]) -> Column {
        Column::wide("sums", self.shape.columns as usize, sums.as_flattened().to_vec())
    }
}

impl App for Embedding {
    fn expected(&self) -> &[Column] {
        self.expected.get_or_init(|| {
            let quads = (self.shape.columns / 4) as usize;
            let mut sums = vec![[0.0; 4]; self.shape.bags as usize * quads];
            let bags = self.ids.par_chunks(self.shape.bag_ids as usize);
            sums.par_chunks_mut(quads).zip(bags).for_each(|(sum, bag)| {
                for &id in bag {
                    let row = &self.table[id as usize * quads..][..quads];
                    let values = row.as_flattened().iter();
                    sum.as_flattened_mut()
                        .iter_mut()
                        .zip(values)
                        .for_each(|(sum, value)| *sum += value);
                }
            });
            [self.column(&sums)]
        })
    }

    fn name(&self) -> &'static str {
        "embedding"
    }

    fn input(&self) -> String {
        let EmbeddingShape {
            rows,
            columns,
            bags,
            bag_ids,
        } = self.shape;
        format!("{rows} rows of {columns} floats, {bags} bags of {bag_ids}")
    }

    fn array_bytes(&self) -> Vec<u64> {
        vec![self.shape.rows * self.shape.columns * 4]
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("a bag's rows lie anywhere in the table")?;
        let [kernel] = space.kernels("embedding.cu", include_str!("embedding.cu"), ["sum_bags"], &[])?;
        Ok(Box::new(Work {
            app: self,
            kernel,
            config: space.whole_gpu(BLOCKS, 0),
            table: space.array("table", Use::Read, &self.table)?,
            ids: space.upload(&self.ids)?,
            sums: space.buffer(self.shape.bags * self.shape.columns / 4)?,
        }))
    }
}

struct Work<'a> {
    app: &'a Embedding,
    kernel: Kernel,
    config: LaunchConfig,
    table: Array<Quad>,
    ids: Buffer<u32>,
    sums: Buffer<Quad>,
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.table.prefetch()?;
        let EmbeddingShape {
            columns, bags, bag_ids, ..
        } = self.app.shape;
        let args = (self.table.arg()?, &self.ids, &self.sums, columns / 4, bag_ids, bags);
        finish(self.kernel.launch(self.config.clone(), args))
    }

    fn found(&self) -> Result<Found, AppError> {
        let sums = self.sums.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        Ok(vec![self.app.column(&sums)].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_popular() {
        let ids = EmbeddingShape::of_rows(10_000, 1_000).ids(5, 0..1_000);
        let mut counts = vec![0; 10_000];
        ids.iter().for_each(|id| counts[*id as usize] += 1);
        counts.sort_unstable();
        // The first hundred of 10^4 ranks have (101^0.01 - 1) / (10001^0.01 - 1) = 49 % of the draws.
        let top: usize = counts[9_900..].iter().sum();
        assert!((15_000..17_500).contains(&top), "{top} of 32000");
    }

    #[test]
    fn bags_have_the_same_ids_alone() {
        let shape = EmbeddingShape::of_rows(10_000, 100);
        let all = shape.ids(5, 0..100);
        let parts = [0..33, 33..33, 33..100].map(|bags| shape.ids(5, bags));
        assert_eq!(parts.concat(), all);
    }
}
