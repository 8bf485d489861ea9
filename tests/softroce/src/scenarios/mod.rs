//! What must work over SoftRoCE. A file here is a family of scenarios; each has an entry in [`all`].
//!
//! A scenario gets machines that are up and says what it expects of commands on them. Programs of this workspace are
//! built before, on this machine, by [`crate::built`], and run by their path, which is the same inside:
//! `machine.run(&format!("{} --nocapture", program.display()), limit)?.success()?`. Standard output of C programs is
//! held back in a pipe; `stdbuf -oL` before them makes each line come at once.

mod apps;
mod device;
mod disks;
mod independent;
mod loss;
mod network;
mod node;
mod perftest;
mod programs;
mod ranks;
mod ranks_apart;
mod speed;
mod start;

use std::time::Duration;

use crate::error::Error;
use crate::suite::{Run, Scenario};

pub use disks::MIB as DISKS_MIB;
pub use programs::build_ahead;

/// The scenario that runs a client by another library.
pub const INDEPENDENT: &str = "independent_clients";

/// Every scenario, in the order in which they run: those that leave a machine without power are last, and where they follow each other the
/// later one does not need it, or starts it.
pub fn all() -> Vec<Scenario> {
    [machines(), programs(), troubles(), without_power()]
        .into_iter()
        .flatten()
        .collect()
}

/// Those of these names, in this order. Without names those that run by default, or `everything`.
///
/// # Errors
/// [`Error::Check`] for a name that there is not.
pub fn chosen(names: &[String], everything: bool) -> Result<Vec<Scenario>, Error> {
    if names.is_empty() {
        let wanted = |scenario: &Scenario| everything || scenario.not_by_default.is_none();
        return Ok(all().into_iter().filter(wanted).collect());
    }
    let named = |name: &String| {
        all().into_iter().find(|scenario| scenario.name == name).ok_or_else(|| {
            let there: Vec<_> = all().iter().map(|scenario| scenario.name).collect();
            Error::Check(format!("there is no scenario {name}; there are: {}", there.join(", ")))
        })
    };
    names.iter().map(named).collect()
}

fn scenario(name: &'static str, minutes: u64, run: Run, what: &'static str) -> Scenario {
    Scenario {
        name,
        what,
        limit: Duration::from_secs(60 * minutes),
        not_by_default: None,
        prepare: || Ok(()),
        run,
    }
}

/// Makes lists of scenarios: name, minutes that it may take, where and what runs, what is built before, why it does not run by default; and
/// what must hold.
macro_rules! scenarios {
    ($($(#[$about:meta])* $list:ident {
        $($name:expr, $minutes:literal, $where:ident($run:path) $(, built by $prepare:path)? $(, left out: $why:expr)? => $what:literal;)*
    })*) => {
        $($(#[$about])* fn $list() -> Vec<Scenario> {
            vec![$(Scenario {
                $(prepare: $prepare,)?
                $(not_by_default: Some($why),)?
                ..scenario($name, $minutes, Run::$where($run), $what)
            }),*]
        })*
    };
}

const OF_LINUX: &str = "it tries Linux and other programs, which gpuvm does not change";
const OF_THE_HARNESS: &str = "it tries the harness, which every other scenario uses";

scenarios! {
    /// What the machines and their network can do.
    machines {
        "boot", 2, One(start::device_is_active), left out: OF_LINUX
            => "a machine starts, its RDMA device is active and visible to libibverbs";
        "commands", 2, One(start::commands), left out: OF_THE_HARNESS
            => "commands run side by side, are killed with what they started, and see the caller's files";
        "perftest", 3, One(perftest::read_bandwidth), left out: OF_LINUX
            => "ib_read_bw reads through the RDMA device of one machine";
        "rping_two_machines", 3, Two(network::rping), left out: OF_LINUX
            => "two machines exchange RDMA reads and writes over a connection by the connection manager";
        "netem", 5, Two(network::rping_with_loss), left out: OF_LINUX
            => "the same with 1 % of all packets lost both ways";
        "power_back", 3, Two(network::power_back), left out: OF_THE_HARNESS
            => "a machine that lost its power is started again and is reached by the other";
    }

    /// What this workspace's programs do where nothing goes wrong.
    programs {
        "device_suite", 8, One(device::suite), built by device::prepare_suite
            => "the tests of the library hold over the RDMA device";
        "memory_node_unit", 4, One(device::memory_node), built by device::prepare_memory_node
            => "the tests of the memory node hold over the RDMA device";
        "bfs_two_machines", 5, Two(node::bfs), built by programs::warm_search
            => "a search pages from memory nodes on another machine, and only with their secret";
        "apps_two_machines", 3, Two(apps::at_nodes), built by apps::prepare
            => "applications page from memory nodes on another machine: a graph, a stencil that writes, an embedding table";
        "device_suite_at_a_node", 8, Two(device::at_a_node), built by device::prepare_at_a_node
            => "tests of the library hold with their regions at a memory node";
        "ranks_at_a_node", 6, Two(ranks::at_a_node), built by ranks::prepare
            => "ranks of MPI share regions at a memory node on another machine; one that is killed ends its job, and the next one has room";
    }

    /// What they do where something goes wrong or others use the device.
    troubles {
        "loss", 6, Two(loss::every_word_is_right), built by loss::prepare
            => "every word is right over networks that lose, delay and reorder packets";
        "replica_node_killed", 3, One(node::replica_killed), built by node::prepare_deaths
            => "a kernel whose pages have two memory nodes goes on when one dies, which is taken back, and then the other may die";
        INDEPENDENT, 5, One(independent::clients), built by independent::prepare
            => "perftest, rping and a client of another library use the device while a search pages over it";
    }

    /// Those that cut the power of a machine.
    without_power {
        "node_killed", 5, Two(node::killed), built by node::prepare_deaths
            => "a kernel whose memory node dies ends in time, and what it wrote can be saved";
        "ranks_on_two_machines", 8, Two(ranks_apart::on_two_machines), built by ranks_apart::prepare
            => "ranks of MPI on two machines page from one memory node; a rank that is killed, or a machine without power, ends their job in time";
        // By now the second machine has no power, and this one does not need it.
        "files_on_disks", 5, OneVirtual(disks::files), built by disks::prepare
            => "what a flush stored outlives a loss of power, and disks that fail lose nothing: NVMe, ext4, device mapper";
        "power_cut", 2, OneVirtual(start::power_cut), left out: "it tries the harness, and node_killed cuts the power, too"
            => "a machine that is killed ends what waits for it, with an error that says so";
        "speed", 6, One(speed::table), built by speed::prepare, left out: "it measures: slow is no failure"
            => "prints how fast pages come beside what perftest reaches";
    }
}

#[cfg(test)]
pub(crate) use start::commands;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_differ() {
        let names: Vec<_> = all().iter().map(|scenario| scenario.name).collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for name in names {
            assert!(
                name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'),
                "{name}"
            );
        }
    }

    #[test]
    fn what_runs_by_default_and_what_is_asked_for() {
        let names = |scenarios: Vec<Scenario>| scenarios.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
        let default = names(chosen(&[], false).unwrap());
        for name in [
            "boot",
            "commands",
            "power_cut",
            "perftest",
            "rping_two_machines",
            "power_back",
            "netem",
            "speed",
        ] {
            assert!(!default.contains(&name), "{name}");
        }
        // A machine has no power behind these, so that nothing else is behind them.
        assert!(default.ends_with(&["node_killed", "ranks_on_two_machines", "files_on_disks"]));
        assert_eq!(names(chosen(&[], true).unwrap()), names(all()));
        let asked = ["speed", "boot"].map(str::to_owned);
        assert_eq!(names(chosen(&asked, false).unwrap()), asked);
        let error = chosen(&["boots".to_owned()], false).err().unwrap().to_string();
        assert!(
            error.contains("no scenario boots") && error.contains("power_cut"),
            "{error}"
        );
    }
}
