//! The options of `gpuvm simulate`.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use gpuvm_nic::soft::FaultMix;
use gpuvm_simulate::Workload;

use super::scale::ScaleArgs;

/// A campaign, or one run; or what is computed rather than run.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SimulateArgs {
    /// What is computed.
    #[command(subcommand)]
    pub computed: Option<Computed>,

    /// Seeds, from A up to but not including B.
    #[arg(long, value_name = "A..B", conflicts_with = "seed", required_unless_present_any = ["seed", "worker", "mutation"])]
    pub seeds: Option<Seeds>,

    /// One seed.
    // Without the last number, which no range A..B has either.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    pub seed: Option<u64>,

    /// Which workloads run.
    #[arg(long, value_name = "NAME[,..]", default_value = "all", help = format!("Workloads, separated by commas, or all: {}", names(|_| true)))]
    pub workload: Workloads,

    /// Faults of the NIC, drawn by the seed: KIND:1/ODDS, KIND:TIMES, each perhaps with @TIME, separated by commas. Kinds that only
    /// delay, and those that the library repeats and recovers, must change no result; others may end a kernel with an error, and must do
    /// no more. A kind that never happens is an error.
    #[arg(long, value_name = "MIX")]
    pub faults: Option<FaultMix>,

    /// Look for data races as well.
    #[arg(long, help = format!("Look for data races in the GPU's memory as well, which are failures. Memory is sequentially consistent then, so results say \
                                less. Without {}, whose lanes race for words on purpose", names(Workload::races_on_purpose)))]
    pub races: bool,

    /// Worker processes. Without it: one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,

    /// Go on after a seed that failed, and list all that did.
    #[arg(long)]
    pub keep_going: bool,

    /// Longest real time of one seed of one workload, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,

    /// Write a timeline of the one seed of the one workload: Chrome trace-event JSON, which https://ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    pub trace: Option<PathBuf>,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Break a rule of the device library on purpose, to see that the checks find it; `list` lists them, and `none` breaks none of the
    /// library that has them all.
    #[arg(long, value_name = "NAME", hide = true)]
    pub mutation: Option<String>,

    /// Answer `WORKLOAD SEED` lines on the standard input: a worker of another such command.
    #[arg(long, hide = true, conflicts_with_all = ["seeds", "seed"])]
    pub worker: bool,
}

/// The names of those workloads.
fn names(which: fn(Workload) -> bool) -> String {
    let names: Vec<&str> = Workload::ALL
        .into_iter()
        .filter(|workload| which(*workload))
        .map(Workload::name)
        .collect();
    names.join(", ")
}

/// What is computed and not run.
#[derive(Debug, Clone, Subcommand)]
pub enum Computed {
    /// Prints how large each structure gets with this many hosts, its limit, and the size from which on it is too large; the worst first.
    ///
    /// Sizes and limits are those of the program's own structures. What is assumed is said in docs/SCALE.md.
    Scale(ScaleArgs),
}

/// A range of seeds on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeds(pub Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid range of seeds `{text}`: write it as 0..1000");
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let (from, to) = (number(from)?, number(to)?);
        if from >= to {
            return Err(format!(
                "`{text}` has no seed: the first number must be less than the second"
            ));
        }
        Ok(Self(from..to))
    }
}

/// Workloads on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workloads(pub Vec<Workload>);

impl FromStr for Workloads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Workload::ALL.to_vec()));
        }
        let mut all = Vec::new();
        for name in text.split(',') {
            let workload: Workload = name.trim().parse().map_err(|error| format!("{error}"))?;
            if !all.contains(&workload) {
                all.push(workload);
            }
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_workload() {
        use clap::Args;
        let mut command = SimulateArgs::augment_args(clap::Command::new("simulate"));
        let help = command.render_long_help().to_string();
        let missing = |workload: &Workload| !help.split([' ', ',', '\n', '[']).any(|word| word == workload.name());
        assert_eq!(Workload::ALL.into_iter().find(missing), None, "{help}");
    }

    #[test]
    fn ranges_and_names() {
        assert_eq!("3..9".parse::<Seeds>().unwrap().0, 3..9);
        for wrong in ["", "3", "9..3", "3..3", "a..b", "-1..2", "1...2"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong}");
        }
        assert_eq!("all".parse::<Workloads>().unwrap().0.len(), Workload::ALL.len());
        let two = "bfs,linear,bfs".parse::<Workloads>().unwrap().0;
        assert_eq!(two, [Workload::Bfs, Workload::Linear]);
        assert!("bfs,nothing".parse::<Workloads>().is_err() && "".parse::<Workloads>().is_err());
    }
}
