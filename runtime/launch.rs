//! Launches: what they are to be, and what is known of them while they run.

mod config;
mod flight;

pub use config::LaunchConfig;
pub(crate) use flight::{InFlight, Memory, Peers, stop_peers};
