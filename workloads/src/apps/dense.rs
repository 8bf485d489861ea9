//! Matrices and vectors: vector addition, MVT, ATAX, BICG and GESUMMV of PolyBench, and a stencil of five points.
//!
//! Values are small integers, so that sums have one result in any order, but for ATAX, whose sums are longer than a float's 24 bits.

use std::sync::OnceLock;

use gpuvm::{Buffer, Kernel};
use rayon::prelude::*;

use super::array::{Stream, Use};
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::rows::ran;
use super::space::Space;
use super::{App, Array, Column, Found, Loaded};
use crate::input::require_memory;

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;
/// How far a sum of ATAX may be off, of the sum.
const TOLERANCE: f64 = 1e-4;

/// How far a sum of GESUMMV may be off, of what it has at most: as many roundings of a float.
const ROUNDINGS: f64 = 8.0 / (1 << 24) as f64;

parameters! {
    /// What GESUMMV multiplies with.
    #[derive(Copy)]
    GesummvParameters {
        /// What the first product is multiplied with
        "alpha" alpha: f32 = 2.0, -1e6..=1e6;
        /// What the second product is multiplied with
        "beta" beta: f32 = 3.0, -1e6..=1e6;
    }
}

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseKind {
    /// c = a + b.
    VectorAdd,
    /// x1 += A y1, x2 += A' y2.
    Mvt,
    /// y = A' (A x).
    Atax,
    /// q = A p, s = A' r.
    Bicg,
    /// y = alpha A x + beta B x.
    Gesummv,
    /// One step of a stencil of five points.
    Stencil,
}

impl DenseKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::VectorAdd,
        Self::Mvt,
        Self::Atax,
        Self::Bicg,
        Self::Gesummv,
        Self::Stencil,
    ];

    /// Its name, its large inputs of n x n, the columns of its result, and whether that is as large as an input.
    fn facts(self) -> (&'static str, usize, &'static [&'static str], bool) {
        match self {
            Self::VectorAdd => ("vector-add", 2, &["c"], true),
            Self::Mvt => ("mvt", 1, &["x1", "x2"], false),
            Self::Atax => ("atax", 1, &["y"], false),
            Self::Bicg => ("bicg", 1, &["q", "s"], false),
            Self::Gesummv => ("gesummv", 2, &["y"], false),
            Self::Stencil => ("stencil", 1, &["grid"], true),
        }
    }
}

/// One of them, with matrices of `n` x `n`; vector addition has vectors of that many elements.
pub struct Dense {
    kind: DenseKind,
    n: u64,
    inputs: Vec<Vec<f32>>,
    factors: GesummvParameters,
    expected: OnceLock<Vec<Column>>,
}

impl Dense {
    /// With its input. `factors`: for GESUMMV.
    ///
    /// # Errors
    /// [`AppError::Input`] for no or too many elements.
    pub fn new(kind: DenseKind, n: u64, factors: &GesummvParameters) -> Result<Self, AppError> {
        if n == 0 || n > 1 << 20 {
            let what = format!("matrices of {n} x {n}: n is 1 to 2^20");
            return Err(AppError::Input { what });
        }
        require_memory(kind.facts().1 as u64 * n * n * 4)?;
        let value = |which: u64, at: u64| ((at / n * 7 + at % n * 13 + which * 3) % 5) as f32;
        let input = |which: u64| (0..n * n).into_par_iter().map(|at| value(which, at)).collect();
        Ok(Self {
            kind,
            n,
            inputs: (0..kind.facts().1 as u64).map(input).collect(),
            factors: *factors,
            expected: OnceLock::new(),
        })
    }

    /// One of the two vectors that a matrix is multiplied with.
    fn vector(&self, which: u64) -> Vec<f32> {
        (0..self.n).map(|at| ((at * 5 + which) % 4) as f32).collect()
    }

    /// The result, by the processor: one vector, or two.
    fn results(&self) -> Vec<Vec<f32>> {
        let (first, second) = (self.vector(0), self.vector(1));
        let (a, GesummvParameters { alpha, beta }) = (&self.inputs[0], self.factors);
        match self.kind {
            DenseKind::VectorAdd => vec![a.par_iter().zip(&self.inputs[1]).map(|(a, b)| a + b).collect()],
            DenseKind::Mvt | DenseKind::Bicg => vec![self.rows(a, &first), self.columns(a, &second)],
            DenseKind::Atax => vec![self.columns(a, &self.rows(a, &first))],
            DenseKind::Gesummv => {
                let (of_a, of_b) = (self.rows(a, &first), self.rows(&self.inputs[1], &first));
                vec![of_a.iter().zip(of_b).map(|(a, b)| alpha * a + beta * b).collect()]
            }
            DenseKind::Stencil => vec![self.step(a)],
        }
    }

    /// Results by their names.
    fn named(&self, results: Vec<Vec<f32>>) -> Vec<Column> {
        let columns = self.kind.facts().2.iter().zip(results);
        let column = |(name, values): (&&'static str, _)| match self.kind {
            DenseKind::Stencil => Column::wide(name, self.n as usize, values),
            _ => Column::new(name, values),
        };
        columns.map(column).collect()
    }

    fn rows(&self, matrix: &[f32], x: &[f32]) -> Vec<f32> {
        let product = |row: &[f32]| {
            row.iter()
                .zip(x)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum::<f64>() as f32
        };
        matrix.par_chunks(self.n as usize).map(product).collect()
    }

    fn columns(&self, matrix: &[f32], x: &[f32]) -> Vec<f32> {
        let n = self.n as usize;
        let add = |mut sums: Vec<f64>, (row, with): (&[f32], &f32)| {
            sums.iter_mut()
                .zip(row)
                .for_each(|(sum, a)| *sum += f64::from(*a) * f64::from(*with));
            sums
        };
        let zeros = || vec![0.0; n];
        let both = |one: Vec<f64>, other: Vec<f64>| one.iter().zip(other).map(|(a, b)| a + b).collect();
        let sums = matrix.par_chunks(n).zip(x).fold(zeros, add).reduce(zeros, both);
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    fn step(&self, from: &[f32]) -> Vec<f32> {
        let n = self.n as usize;
        let point = |at: usize| {
            let (row, column) = (at / n, at % n);
            let inside = row > 0 && row + 1 < n && column > 0 && column + 1 < n;
            match inside {
                true => 0.25 * (from[at - n] + from[at + n] + from[at - 1] + from[at + 1]),
                false => from[at],
            }
        };
        (0..n * n).into_par_iter().map(point).collect()
    }
}

impl App for Dense {
    fn name(&self) -> &'static str {
        self.kind.facts().0
    }

    fn input(&self) -> String {
        format!("{0} x {0}", self.n)
    }

    fn array_bytes(&self) -> Vec<u64> {
        let arrays = self.kind.facts().1 + usize::from(self.kind.facts().3);
        vec![self.n * self.n * 4; arrays]
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        let (file, source, names) = match self.kind {
            DenseKind::VectorAdd => ("vector_add.cu", include_str!("vector_add.cu"), ["vector_add"; 2]),
            DenseKind::Gesummv => ("gesummv.cu", include_str!("gesummv.cu"), ["gesummv"; 2]),
            DenseKind::Stencil => ("stencil.cu", include_str!("stencil.cu"), ["stencil"; 2]),
            DenseKind::Mvt | DenseKind::Atax | DenseKind::Bicg => (
                "matrix_vector.cu",
                include_str!("matrix_vector.cu"),
                ["row_products", "column_products"],
            ),
        };
        let inputs = self.inputs.iter().zip(["a", "b"]);
        let inputs = inputs.map(|(values, name)| space.array(name, Use::Read, values));
        let output = match self.kind.facts().3 {
            true => Some(space.array("c", Use::ReadWrite, &vec![0.0; (self.n * self.n) as usize])?),
            false => None,
        };
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels(file, source, names, &[])?,
            inputs: inputs.collect::<Result<_, _>>()?,
            output,
            vectors: [space.upload(&self.vector(0))?, space.upload(&self.vector(1))?],
            results: [space.buffer(self.n)?, space.buffer(self.n)?],
        }))
    }

    fn expected(&self) -> &[Column] {
        self.expected.get_or_init(|| self.named(self.results()))
    }

    fn slack(&self, expected: f64) -> f64 {
        let GesummvParameters { alpha, beta } = self.factors;
        match self.kind {
            DenseKind::Atax => TOLERANCE * expected.abs(),
            // Elements of matrices are at most 4, and those of vectors 3.
            DenseKind::Gesummv => ROUNDINGS * f64::from(alpha.abs() + beta.abs()) * 12.0 * self.n as f64,
            _ => 0.0,
        }
    }
}

struct Work<'a> {
    app: &'a Dense,
    space: &'a Space,
    kernels: [Kernel; 2],
    inputs: Vec<Array<f32>>,
    output: Option<Array<f32>>,
    vectors: [Buffer<f32>; 2],
    results: [Buffer<f32>; 2],
}

impl Work<'_> {
    /// Adds the products of the matrix's rows, or columns, with `x` to `y`.
    fn products(&self, columns: bool, x: &Buffer<f32>, y: &Buffer<f32>) -> Result<(), AppError> {
        let (matrix, n) = (&self.inputs[0], self.app.n);
        let kernel = &self.kernels[usize::from(columns)];
        self.space
            .sweep(n, &[matrix.by_rows(&|row| row * n)], &mut |first, count| {
                let args = (matrix.arg()?, x, y, n, first, count);
                ran(kernel.launch(self.space.whole_gpu(BLOCKS, 1), args))
            })
    }

    fn gesummv(&self) -> Result<(), AppError> {
        let ([a, b], n) = ([&self.inputs[0], &self.inputs[1]], self.app.n);
        let rows = |row| row * n;
        self.space
            .sweep(n, &[a.by_rows(&rows), b.by_rows(&rows)], &mut |first, count| {
                let (x, y) = (&self.vectors[0], &self.results[0]);
                let GesummvParameters { alpha, beta } = self.app.factors;
                let args = (a.arg()?, b.arg()?, x, y, alpha, beta, n, first, count);
                ran(self.kernels[0].launch(self.space.whole_gpu(BLOCKS, 2), args))
            })
    }

    fn vector_add(&self, c: &Array<f32>) -> Result<(), AppError> {
        let [a, b] = [&self.inputs[0], &self.inputs[1]];
        let streams = [a, b, c].map(|array| array.by_rows(&|element| element));
        self.space.sweep(a.len(), &streams, &mut |first, count| {
            let args = (a.arg()?, b.arg()?, c.arg()?, first, count);
            ran(self.kernels[0].launch(self.space.whole_gpu(BLOCKS, 3), args))
        })
    }

    fn stencil(&self, to: &Array<f32>) -> Result<(), AppError> {
        let (from, n) = (&self.inputs[0], self.app.n);
        let points = |row| row * n;
        let around = Stream {
            array: from,
            first: &|row| row.saturating_sub(1) * n,
            past: &|row| (row + 1).min(n) * n,
        };
        self.space
            .sweep(n, &[around, to.by_rows(&points)], &mut |first, count| {
                let args = (from.arg()?, to.arg()?, n, n, first, count);
                ran(self.kernels[0].launch(self.space.whole_gpu(BLOCKS, 4), args))
            })
    }
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.inputs.iter().chain(&self.output).try_for_each(Array::prefetch)?;
        for result in &self.results {
            let zeros = vec![0.0; self.app.n as usize];
            result.write(&zeros).map_err(AppError::vm(Step::Memory))?;
        }
        let ([x, other], [y, second]) = (&self.vectors, &self.results);
        match (self.app.kind, &self.output) {
            (DenseKind::Mvt | DenseKind::Bicg, _) => {
                self.products(false, x, y)?;
                self.products(true, other, second)
            }
            (DenseKind::Atax, _) => {
                self.products(false, x, second)?;
                self.products(true, second, y)
            }
            (DenseKind::Gesummv, _) => self.gesummv(),
            (DenseKind::VectorAdd, Some(c)) => self.vector_add(c),
            (DenseKind::Stencil, Some(to)) => self.stencil(to),
            (DenseKind::VectorAdd | DenseKind::Stencil, None) => unreachable!("made with its output"),
        }
    }

    fn found(&self) -> Result<Found, AppError> {
        let read = |result: &Buffer<f32>| result.to_vec().map_err(AppError::vm(Step::ReadBack));
        let results = match &self.output {
            Some(output) => vec![output.to_vec()?],
            None => self.results.iter().map(read).collect::<Result<_, _>>()?,
        };
        Ok(self.app.named(results).into())
    }
}
