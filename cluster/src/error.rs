//! What can go wrong between ranks.

use std::io;
use std::path::PathBuf;

use gpuvm_workloads::apps::FormatError;
use gpuvm_workloads::graph::GraphError;

/// A rank that cannot go on. The command ends the whole job then.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The parts of an exchange do not fit what is exchanged.
    #[error("an exchange of {what}: {reason}; give parts of all elements, one a rank, in their order")]
    Parts {
        /// What is exchanged.
        what: String,
        /// What does not fit.
        reason: String,
    },
    /// MPI counts elements by 31 bits.
    #[error(
        "an exchange of {what}: {elements} elements; MPI takes at most 2147483647 at once: use a smaller input, or more ranks"
    )]
    TooMany {
        /// What is exchanged.
        what: String,
        /// Its elements.
        elements: u64,
    },
    /// MPI was started before by this process.
    #[error("MPI is in use in this process already; start it once, before anything else of it")]
    Started,
    /// The watch of the ranks could not begin.
    #[error(
        "the watch over the ranks cannot {what}; --watch-host names an address of rank 0's host that all ranks reach"
    )]
    Watch {
        /// What failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// Data that the ranks of a host share.
    #[error(
        "cannot {what} for the ranks of this host to share; free memory, or give a .gcsr file that `gpuvm convert` wrote"
    )]
    Share {
        /// What failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file with the secret of the memory nodes.
    #[error("cannot read the secret in {}; give a file with one line of text, not empty", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of the result.
    #[error("cannot write the result to {}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file's name that says no format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Settings that do not fit together.
    #[error("{0}")]
    Options(String),
    /// The graph.
    #[error("cannot get the graph")]
    Graph(#[from] GraphError),
    /// The virtual memory.
    #[error("{step} failed")]
    Vm {
        /// What was under way.
        step: &'static str,
        /// Why.
        source: gpuvm::Error,
    },
    /// The ranks' result is not what one rank has.
    #[error(
        "the rank of vertex {place} is {found}, and one rank of MPI has {expected}; this is an error of gpuvm: please report it with the command"
    )]
    Differs {
        /// The vertex.
        place: usize,
        /// What the ranks have.
        found: String,
        /// What one rank has.
        expected: String,
    },
}

impl ClusterError {
    /// Wraps an error of a virtual memory.
    pub(crate) fn vm(step: &'static str) -> impl Fn(gpuvm::Error) -> Self {
        move |source| Self::Vm { step, source }
    }
}
