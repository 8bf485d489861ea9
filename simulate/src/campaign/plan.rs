//! What a campaign runs, and how each run ends.

use std::{
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::run::{Failure, Passed};
use crate::workload::Workload;

/// What a campaign runs.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The program to start for a worker: it must call [`serve`](super::serve).
    pub program: PathBuf,
    /// What it is called, its first argument.
    pub name: String,
    /// Arguments of the worker.
    pub arguments: Vec<String>,
    /// Seeds.
    pub seeds: Range<u64>,
    /// Workloads, each with every seed.
    pub workloads: Vec<Workload>,
    /// Workers at one time.
    pub jobs: usize,
    /// Longest real time of one run.
    pub limit: Duration,
    /// Go on after a failure.
    pub keep_going: bool,
    /// Set by somebody else to end it before its end: runs under way are broken off.
    pub stop: Arc<AtomicBool>,
}

/// A campaign that could not be run.
#[derive(Debug, Error)]
pub enum CampaignError {
    /// A worker process did not start.
    #[error("cannot start a worker process ({program})")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// More runs than can be counted.
    #[error("{seeds} seeds of {workloads} workloads are more runs than can be counted; give fewer --seeds")]
    TooMany {
        /// Seeds.
        seeds: u64,
        /// Workloads, each with every seed.
        workloads: u64,
    },
}

/// One run's end, as a worker tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ran {
    /// The workload.
    pub workload: Workload,
    /// The seed.
    pub seed: u64,
    /// How it went.
    pub outcome: Result<Passed, Failure>,
}
