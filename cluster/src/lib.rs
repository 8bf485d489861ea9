//! gpuvm on many machines: a rank of MPI for each GPU.
//!
//! A rank is a process with one GPU. Ranks share large data for reading: the pages of one file of their host, or one region at memory
//! nodes ([`shared`]). What they make is partitioned: each rank writes its own part ([`Partitioned`]). Barriers, reductions and exchanges
//! are MPI's, behind the trait [`Ranks`], which [`Alone`] answers for one rank without MPI.
//!
//! [`pagerank`](pagerank()) is in this form, of the kernel that `gpuvm run` has. [`watch`] ends the job of a rank that dies or falls silent, with an
//! error that names it.
//!
//! The feature `mpi` brings the binding to MPI (`Mpi`), which needs `mpicc` to build. Nothing else here does.

mod error;
#[cfg(feature = "mpi")]
mod mpi_ranks;
mod output;
mod pagerank;
mod partitioned;
mod ranks;
pub mod shared;
pub mod watch;

pub use error::ClusterError;
#[cfg(feature = "mpi")]
pub use mpi_ranks::Mpi;
pub use output::ResultFile;
pub use pagerank::{Ran, compare, pagerank};
pub use partitioned::Partitioned;
pub use ranks::{Alone, Place, Ranks};
