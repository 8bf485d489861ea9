//! The tests of the library over a machine's RDMA device.

use std::time::{Duration, Instant};

use super::SHORT;
use super::programs::{run_test, serve, warm_all};
use crate::error::Error;
use crate::machine::Machine;

/// How long one test program may take.
const PROGRAM: Duration = Duration::from_secs(240);

/// Tests that page over the device that the environment names, the cheapest first. Of random programs one for each size of a page, of
/// searches those that differ in frames: what differs by the type of elements or by the shape of a graph does not reach the device.
const OVER_THE_DEVICE: [&str; 16] = [
    "nic::rxe::",
    "graphs::paged_bfs::generated_graphs_at_a_quarter_and_whole",
    "graphs::paged_bfs::one_frame_is_enough",
    "promises::bookkeeping::",
    "promises::flush_and_host_access::",
    "promises::scoped_borrows::",
    "promises::no_lost_write::",
    "promises::prefetch::",
    "promises::many_requests_in_flight::",
    "promises::kernel_errors::",
    "promises::every_wait_ends::",
    "promises::inside_the_region::",
    "promises::drop_in_any_order::",
    "promises::random_programs::words_in_pages_of_4_kib",
    "promises::random_programs::structures_of_32_bytes_in_pages_of_64_kib",
    "promises::random_programs::long_words_in_pages_of_2_mib",
];

/// Those of them that say most about regions at a memory node.
const AT_A_NODE: [&str; 6] = [
    "promises::memory_node::",
    "promises::flush_and_host_access::",
    "promises::no_lost_write::",
    "promises::prefetch::",
    "node::two_machines::",
    "promises::random_programs::words_in_pages_of_4_kib",
];

pub(super) fn suite(machine: &Machine) -> Result<(), Error> {
    if machine.is_virtual() {
        // A region of more than 2^32 elements is reserved, not used.
        machine.run("sysctl -q vm.overcommit_memory=1", SHORT)?.success()?;
    }
    warm_all(&OVER_THE_DEVICE)?;
    run_tests(machine, &OVER_THE_DEVICE, "")
}

/// The tests of a reset: a request that is left unsent ends one of them after half a minute.
pub(super) fn reset(machine: &Machine) -> Result<(), Error> {
    let tests = [
        "nic::rxe::a_ring_during_a_reset_leaves_no_request_unsent",
        "nic::rxe::a_pair_that_is_reset_while_it_reads_works_again",
    ];
    run_tests(machine, &tests, "")
}

/// Runs test programs one after the other and shows how long each took.
fn run_tests(machine: &Machine, names: &[&str], environment: &str) -> Result<(), Error> {
    let mut took = Vec::new();
    for name in names {
        let since = Instant::now();
        run_test(machine, name, environment, "", PROGRAM)?;
        took.push(format!("{name} {:.0} s", since.elapsed().as_secs_f32()));
    }
    println!("         {}", took.join(", "));
    Ok(())
}

pub(super) fn memory_node(machine: &Machine) -> Result<(), Error> {
    for name in ["gpuvm_memory_node", "node::rdma::", "node::ends::", "command::serve::"] {
        let output = run_test(machine, name, "", "--nocapture", PROGRAM)?;
        let skipped = output.lines.iter().any(|line| line.text.contains("skipped:"));
        super::start::check(!skipped, || format!("tests were skipped:\n{}", output.text()))?;
    }
    Ok(())
}

pub(super) fn at_a_node(server: &Machine, client: &Machine) -> Result<(), Error> {
    warm_all(&AT_A_NODE)?;
    let node = serve(server, "--memory 1GiB")?;
    let environment = format!("GPUVM_TEST_NODE={}:7471", server.address());
    run_tests(client, &AT_A_NODE, &environment)?;
    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}
