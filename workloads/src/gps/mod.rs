//! The applications of GPS (Muthukrishnan et al., MICRO'21) by how their GPUs communicate: Jacobi's method and diffusion exchange the
//! borders of their parts, a wave does so twice an iteration, PageRank, shortest paths and alternating least squares read all that the
//! others have made.
//!
//! Each runs in several forms from one text of kernels: on one GPU, over broadcast arrays, over arrays whose pages lie with one GPU each
//! and are read over the link, with copies between iterations, and over CUDA's managed memory. An [`App`] says what its arrays are, who
//! writes which elements and who reads them; [`Case::run`] runs it in a [`Form`], measures, and compares.

mod als;
mod array;
pub mod catalogue;
mod form;
mod graphs;
mod grids;
mod run;
mod wave;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytemuck::Pod;
use gpuvm::{Arg, CompileOptions, ElementType, Kernel, Launch, Vm, VmGpu};

pub use als::Als;
pub use form::Form;
pub use graphs::{PageRank, Shortest};
pub use grids::Grid;
pub use run::Single;
pub use wave::Wave;

use crate::apps::{AppError, Step};

/// One GPU's part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whose, from 0 on.
    pub place: usize,
    /// How many parts there are.
    pub of: usize,
}

impl Part {
    /// All of the work.
    pub const WHOLE: Self = Self { place: 0, of: 1 };

    /// All parts of this many.
    fn all(of: usize) -> impl Iterator<Item = Self> {
        (0..of).map(move |place| Self { place, of })
    }

    /// Its units, where all are alike. An owner's pages of a broadcast array are cut in the same way.
    fn share(self, units: u64) -> Range<u64> {
        let cut = |place: usize| (u128::from(units) * place as u128 / self.of as u128) as u64;
        cut(self.place)..cut(self.place + 1)
    }
}

/// Elements of one of an application's arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    /// Which array.
    pub array: usize,
    /// Which elements.
    pub range: Range<u64>,
}

/// What an application is, with its input.
#[derive(Clone, Debug)]
pub struct About {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Its input, in words.
    pub input: String,
    /// Into how many parts the work can be cut at most.
    pub parts_max: u64,
    /// Elements of each shared array.
    pub lengths: Vec<u64>,
    /// Iterations until every array has had every part that it plays.
    pub cycle: u32,
    /// Launches of one iteration on each GPU.
    pub steps: usize,
    /// Whether the processor's result is there in seconds.
    pub is_small: bool,
}

impl About {
    /// Two arrays of this many elements, of which each is read and written in turn, by one launch an iteration.
    fn in_turn(name: &'static str, input: String, parts_max: u64, length: u64) -> Self {
        Self {
            name,
            input,
            parts_max,
            lengths: vec![length; 2],
            cycle: 2,
            steps: 1,
            is_small: length <= 1 << 21,
        }
    }
}

/// An application over arrays that its GPUs share.
pub trait App: Send + Sync {
    /// An element of its arrays.
    type Word: Pod + fmt::Debug + Send + Sync;

    /// What it is.
    fn about(&self) -> About;

    /// What an array holds before the first iteration.
    fn initial(&self, array: usize) -> Vec<Self::Word>;

    /// What the GPU with that part writes in a step of an iteration.
    fn written(&self, step: usize, iteration: u32, part: Part) -> Vec<Elements>;

    /// What of it another part reads before it is written again. Of more than it reads it may say all.
    fn read_by(&self, step: usize, iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        let _ = reader;
        self.written(step, iteration, part)
    }

    /// Kernels and memory of a GPU for its part.
    ///
    /// # Errors
    /// The compiler's; memory that is short.
    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError>;

    /// The array with the result of this many iterations.
    fn result(&self, iterations: u32) -> usize {
        iterations as usize % 2
    }

    /// The result of this many iterations, by the processor.
    fn reference(&self, iterations: u32) -> Vec<Self::Word>;

    /// Whether a GPU's value is the processor's.
    fn alike(&self, found: &Self::Word, expected: &Self::Word) -> bool {
        bytemuck::bytes_of(found) == bytemuck::bytes_of(expected)
    }
}

/// A GPU that gets its part of the work.
pub struct On<'a> {
    /// The GPU.
    pub gpu: &'a VmGpu,
    /// Its part.
    pub part: Part,
    /// How kernels get to shared arrays.
    pub form: Form,
}

impl On<'_> {
    /// Kernels of an application's source: templates of the way to shared arrays.
    fn kernels<const N: usize>(&self, file: &str, source: &str, names: [&str; N]) -> Result<[Kernel; N], AppError> {
        let options = CompileOptions {
            headers: vec![("shared.cuh".to_owned(), include_str!("shared.cuh").to_owned())],
            ..CompileOptions::default()
        };
        let way = if self.form.broadcasts() {
            "broadcasts"
        } else {
            "pointers"
        };
        let names = names.map(|name| format!("{name}<{way}>"));
        let names = names.each_ref().map(String::as_str);
        let kernels = self.gpu.kernels(file, source, names, &options);
        kernels.map_err(AppError::vm(Step::Compile))
    }

    /// Memory of this GPU alone, with these values.
    fn upload<T: Pod>(&self, values: &[T]) -> Result<gpuvm::Buffer<T>, AppError> {
        let buffer = self.gpu.buffer::<T>(values.len().max(1) as u64);
        let buffer = buffer.map_err(AppError::vm(Step::Memory))?;
        buffer.write(values).map_err(AppError::vm(Step::Memory))?;
        Ok(buffer)
    }
}

/// A GPU that is ready for its part: launches a step of an iteration, and does not wait for it. It gets the step, the iteration, and the
/// shared arrays in their order.
pub type Worker<'a> = Box<dyn Fn(usize, u32, &[Arg<'_>]) -> Result<Launch, gpuvm::Error> + 'a>;

/// A number as a kernel's argument.
fn number<T: Pod>(value: &T) -> Arg<'_> {
    Arg::value(ElementType::of::<T>(), bytemuck::bytes_of(value))
}

/// Fails with what is wrong with an application's input.
fn refuse<T>(what: String) -> Result<T, AppError> {
    Err(AppError::Input { what })
}

/// How often an application runs.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Iterations of a timed run.
    pub iterations: u32,
    /// Timed runs.
    pub repeat: u32,
}

/// What a form took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Of each run, the time of all its iterations.
    pub times: Vec<Duration>,
    /// Values that were compared.
    pub verified: u64,
    /// Bytes that GPUs stored or copied to others' memory in one iteration, on average. Loads over the link are not counted.
    pub sent: u64,
    /// Bytes that GPUs read of what others made in one iteration: in whole pages, where pages are subscribed to.
    pub read: u64,
}

/// An application with its input, whatever its arrays hold.
pub trait Case {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;

    /// Its input, in words.
    fn input(&self) -> String;

    /// Whether the result on one GPU is compared with the processor's.
    fn is_small(&self) -> bool;

    /// Runs it in that form on the GPUs of `vm`. The result on one GPU is compared with the processor's where that takes seconds, and
    /// kept; those of other forms are compared with it, so [`Form::One`] is first.
    ///
    /// # Errors
    /// [`AppError::Wrong`]; [`AppError::Form`] for a form that these GPUs do not have; the launches'.
    fn run(&mut self, vm: &Vm, form: Form, plan: Plan) -> Result<Measured, AppError>;
}
