//! The command line of `gpuvm tenants`.

use std::time::Duration;

use clap::{Args, Subcommand};
use gpuvm_tenants::{GpuKey, Limit, Minimum, parse_priority};

/// Tenants that are listed or changed.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TenantsArgs {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<TenantsCommand>,

    /// Which are listed, and how.
    #[command(flatten)]
    pub list: ListArgs,
}

/// What else to do with tenants.
#[derive(Debug, Subcommand)]
pub enum TenantsCommand {
    /// Changes the terms of a running process. With a lower limit it gives up at once what it holds above it.
    Set(SetArgs),
}

/// Which tenants are listed, and how.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Those of one GPU: its UUID, or the name of a simulated GPU. Without it, those of all.
    #[arg(long, value_name = "KEY")]
    pub gpu: Option<GpuKey>,

    /// Print one JSON object on one line.
    #[arg(long)]
    pub json: bool,

    /// List them again and again until Ctrl-C, every 2 seconds or as often as given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds)]
    pub watch: Option<Duration>,
}

/// New terms of a tenant; those that are not given stay.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("terms").required(true).multiple(true))]
pub struct SetArgs {
    /// The process, as `gpuvm tenants` lists it.
    pub pid: u32,

    /// On this GPU alone. Without it, on all that the process uses.
    #[arg(long, value_name = "KEY")]
    pub gpu: Option<GpuKey>,

    /// What it always keeps: a size such as 2GiB, 0, or a share of the GPU's memory such as 10%.
    #[arg(long, value_name = "SIZE", group = "terms")]
    pub min: Option<Minimum>,

    /// The most it may hold: a size such as 8GiB, a share of the GPU's memory such as 50%, or none.
    #[arg(long, value_name = "SIZE", group = "terms")]
    pub limit: Option<Limit>,

    /// Who goes first when memory is short: from -100 to 100, higher goes first.
    #[arg(long, value_name = "N", group = "terms", allow_negative_numbers = true, value_parser = parse_priority)]
    pub priority: Option<i8>,

    /// Print one JSON object on one line.
    #[arg(long)]
    pub json: bool,
}

/// From a tenth of a second, below which the tenants would do little else than answer, to a day.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a number of seconds from 0.1 to 86400"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_limits() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "NaN", "inf", "1e9", "2s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
