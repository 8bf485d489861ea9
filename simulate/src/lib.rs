//! Deterministic simulation of gpuvm: the real device library on the simulated GPU and the software NIC, under a scheduler
//! that one seed decides, watched after every access.
//!
//! [`run::run`] runs one seed of a [`Workload`]: it compares results with a model, and [`watch::Watcher`] compares every change
//! of page table entries, frames, requests and ring indexes with the protocol's rules. [`mutations`] breaks those rules one by one, to
//! show that the checks see it.
//!
//! [`scale`] is no simulation but arithmetic: how large each structure gets with many hosts, and which is too large first.
//!
//! ```
//! use gpuvm_simulate::{Workload, room::Options, run};
//!
//! let ended = run::run(Workload::Counters, 7, &Options::default());
//! let passed = ended.outcome.map_err(|failure| failure.what)?;
//! assert!(passed.looks.evicted > 0);
//! # Ok::<(), String>(())
//! ```

pub mod adjust;
pub mod bench;
pub mod campaign;
mod homes;
pub mod kernels;
pub mod linear;
pub mod mutations;
pub mod program;
pub mod room;
pub mod run;
pub mod scale;
pub mod trace;
pub mod watch;
pub mod words;
mod workload;

pub use workload::{UnknownWorkload, Workload};
