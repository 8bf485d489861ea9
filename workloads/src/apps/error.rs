//! What can go wrong with an application.

use std::fmt;

use gpuvm::GpuError;

use super::parameters::ParameterError;
use super::way::Way;
use crate::bfs::BfsError;
use crate::gps::Form;
use crate::graph::{GraphError, SourceError};
use crate::input::{MemoryError, SpecError};
use crate::table::TableError;
use crate::vectors::VectorError;

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opening the GPU.
    Open,
    /// Compiling kernels.
    Compile,
    /// Making the arrays.
    Memory,
    /// Copying arrays to the GPU or back.
    Copy,
    /// Running kernels.
    Run,
    /// Reading the result.
    ReadBack,
    /// Reading the counters.
    Stats,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "opening the GPU",
            Self::Compile => "compiling the kernels",
            Self::Memory => "making the arrays",
            Self::Copy => "copying arrays",
            Self::Run => "running the kernels",
            Self::ReadBack => "reading the result",
            Self::Stats => "reading the counters",
        })
    }
}

/// An application that could not be run, or whose result is wrong.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The paging failed.
    #[error("{step} failed")]
    Vm {
        /// What was under way.
        step: Step,
        /// Why it failed.
        source: gpuvm::Error,
    },
    /// The GPU failed.
    #[error("{step} failed")]
    Device {
        /// What was under way.
        step: Step,
        /// Why it failed.
        source: GpuError,
    },
    /// It does not run in that way.
    #[error("it does not run {way}: {reason}")]
    Way {
        /// The way.
        way: Way,
        /// Why not.
        reason: String,
    },
    /// It does not run in that form.
    #[error("it does not run as {form}: {reason}")]
    Form {
        /// The form.
        form: Form,
        /// Why not.
        reason: String,
    },
    /// The input cannot be what was asked for.
    #[error("{what}")]
    Input {
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// A parameter has no such value.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A search has no start.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The graph could not be brought into the form that the application needs.
    #[error("the graph could not be prepared")]
    Graph(#[from] GraphError),
    /// The levels of a search did not end.
    #[error("the search failed")]
    Search(#[from] BfsError),
    /// A table that could not be read or made.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Vectors that could not be read, made or searched.
    #[error(transparent)]
    Vectors(#[from] VectorError),
    /// A name of no input.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The machine cannot hold the input.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A value differs from the one that the processor computed.
    #[error("{what} {place} is {found}, expected {expected}")]
    Wrong {
        /// What the value is.
        what: &'static str,
        /// Its index.
        place: u64,
        /// What the GPU computed.
        found: String,
        /// What the processor computed.
        expected: String,
    },
}

impl AppError {
    /// An error of the paging at that step.
    pub fn vm(step: Step) -> impl Fn(gpuvm::Error) -> Self {
        move |source| Self::Vm { step, source }
    }

    /// An error of the GPU at that step.
    pub fn device(step: Step) -> impl Fn(GpuError) -> Self {
        move |source| Self::Device { step, source }
    }
}

/// Compares two results value for value, which are to be `alike`; the number of values.
///
/// # Errors
/// [`AppError::Wrong`] with the first that differs, or with the lengths.
pub fn compare_by<T: fmt::Debug>(
    what: &'static str,
    found: &[T],
    expected: &[T],
    alike: impl Fn(&T, &T) -> bool,
) -> Result<u64, AppError> {
    let wrong = |place: usize, found: String, expected: String| AppError::Wrong {
        what,
        place: place as u64,
        found,
        expected,
    };
    if found.len() != expected.len() {
        let values = |count: usize| format!("the last of {count} values");
        return Err(wrong(found.len(), values(found.len()), values(expected.len())));
    }
    let differs = found.iter().zip(expected).position(|(one, other)| !alike(one, other));
    match differs {
        Some(at) => Err(wrong(at, format!("{:?}", found[at]), format!("{:?}", expected[at]))),
        None => Ok(found.len() as u64),
    }
}
