//! What must work over SoftRoCE. A file here is a family of scenarios; each has an entry in [`all`].
//!
//! A scenario gets machines that are up and says what it expects of commands on them. Programs of this workspace are
//! built first, on this machine, by [`crate::built`], and run by their path, which is the same inside:
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

use crate::suite::{Run, Scenario};

pub use programs::build_ahead;

/// The scenario that runs a client by another library.
pub const INDEPENDENT: &str = "independent_clients";

/// How long a command may take that does little; emulated processors are slow.
const SHORT: Duration = Duration::from_secs(60);

/// Every scenario, in the order in which they run.
pub fn all() -> Vec<Scenario> {
    let mut all = checks();
    all.push(Scenario {
        name: "speed",
        what: "prints how fast pages come beside what perftest reaches; slow is no failure, so it runs only where it is named",
        limit: minutes(6),
        run: Run::One(speed::table),
    });
    all
}

/// Those that run where none is named: what is right or wrong.
pub fn checks() -> Vec<Scenario> {
    let mut checks = machines();
    checks.extend(programs());
    checks.extend(troubles());
    checks
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// What the machines and their network can do.
fn machines() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "boot",
            what: "a machine starts, its RDMA device is active and visible to libibverbs",
            limit: minutes(2),
            run: Run::One(start::device_is_active),
        },
        Scenario {
            name: "commands",
            what: "commands run side by side, are killed with what they started, and see the caller's files",
            limit: minutes(2),
            run: Run::One(start::commands),
        },
        Scenario {
            name: "power_cut",
            what: "a machine that is killed ends what waits for it, with an error that says so",
            limit: minutes(2),
            run: Run::OneVirtual(start::power_cut),
        },
        Scenario {
            name: "perftest",
            what: "ib_read_bw reads through the RDMA device of one machine",
            limit: minutes(3),
            run: Run::One(perftest::read_bandwidth),
        },
        Scenario {
            name: "rping_two_machines",
            what: "two machines exchange RDMA reads and writes over a connection by the connection manager",
            limit: minutes(3),
            run: Run::Two(network::rping),
        },
        Scenario {
            name: "power_back",
            what: "a machine that lost its power is started again and is reached by the other",
            limit: minutes(3),
            run: Run::Two(network::power_back),
        },
        Scenario {
            name: "netem",
            what: "the same with 1 % of all packets lost both ways",
            limit: minutes(5),
            run: Run::Two(network::rping_with_loss),
        },
    ]
}

/// What this workspace's programs do where nothing goes wrong.
fn programs() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "device_suite",
            what: "the tests of the library hold over the RDMA device",
            limit: minutes(8),
            run: Run::One(device::suite),
        },
        Scenario {
            name: "reset",
            what: "a queue pair that is reset amid requests and rings leaves no later request unsent",
            limit: minutes(3),
            run: Run::One(device::reset),
        },
        Scenario {
            name: "memory_node_unit",
            what: "the tests of the memory node hold over the RDMA device",
            limit: minutes(4),
            run: Run::One(device::memory_node),
        },
        Scenario {
            name: "bfs_two_machines",
            what: "a search pages from memory nodes on another machine, and only with their secret",
            limit: minutes(5),
            run: Run::Two(node::bfs),
        },
        Scenario {
            name: "apps_two_machines",
            what: "applications page from memory nodes on another machine: a graph, a stencil that writes, an embedding table",
            limit: minutes(3),
            run: Run::Two(apps::at_nodes),
        },
        Scenario {
            name: "device_suite_at_a_node",
            what: "tests of the library hold with their regions at a memory node",
            limit: minutes(8),
            run: Run::Two(device::at_a_node),
        },
        Scenario {
            name: "ranks_at_a_node",
            what: "ranks of MPI share regions at a memory node on another machine; one that is killed ends its job, and the next one has room",
            limit: minutes(6),
            run: Run::Two(ranks::at_a_node),
        },
        Scenario {
            name: "ranks_on_two_machines",
            what: "ranks of MPI on two machines page from one memory node; a rank that is killed, or a machine without power, ends their job in time",
            limit: minutes(8),
            run: Run::Two(ranks_apart::on_two_machines),
        },
    ]
}

/// What they do where something goes wrong or others use the device.
fn troubles() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "loss",
            what: "every word is right over networks that lose, delay and reorder packets",
            limit: minutes(6),
            run: Run::Two(loss::every_word_is_right),
        },
        Scenario {
            name: "node_killed",
            what: "a kernel whose memory node dies ends in time, and what it wrote can be saved",
            limit: minutes(5),
            run: Run::Two(node::killed),
        },
        Scenario {
            name: "replica_node_killed",
            what: "a kernel whose pages have two memory nodes goes on when one dies, which is taken back, and then the other may die",
            limit: minutes(3),
            run: Run::One(node::replica_killed),
        },
        Scenario {
            name: INDEPENDENT,
            what: "perftest, rping and a client of another library use the device while a search pages over it",
            limit: minutes(5),
            run: Run::One(independent::clients),
        },
        Scenario {
            name: "files_on_disks",
            what: "what a flush stored outlives a loss of power, and disks that fail lose nothing: NVMe, ext4, device mapper",
            limit: minutes(5),
            run: Run::Disks(&disks::MIB, disks::files),
        },
    ]
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
}
