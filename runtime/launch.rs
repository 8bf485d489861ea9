//! Launches: what they are to be, and what is known of them while they run.

mod config;
mod flight;
mod naming;

pub use config::LaunchConfig;
pub(crate) use flight::{InFlight, Peers, stop_peers};
pub(crate) use naming::{LaunchKind, Memory, Naming, label};
