//! The tests of the library over a machine's RDMA device.

use std::time::{Duration, Instant};

use super::programs::{run_test, serve, warm_tests};
use super::start::SHORT;
use crate::error::Error;
use crate::machine::Machine;

/// How long one test program may take.
const PROGRAM: Duration = Duration::from_secs(240);

/// Tests that page over the device that the environment names, the cheapest first. Of random programs one for each size of a page, of
/// searches those that differ in frames: what differs by the type of elements or by the shape of a graph does not reach the device.
const OVER_THE_DEVICE: [&str; 16] = [
    "nic::rxe::",
    "readers::paged_bfs::generated_graphs_at_a_quarter_and_whole",
    "readers::paged_bfs::one_frame_is_enough",
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

/// What [`suite`] needs.
pub(super) fn prepare_suite() -> Result<(), Error> {
    warm_tests(&OVER_THE_DEVICE)
}

pub(super) fn suite(machine: &Machine) -> Result<(), Error> {
    if machine.is_virtual() {
        // A region of more than 2^32 elements is reserved, not used.
        machine.run("sysctl -q vm.overcommit_memory=1", SHORT)?.success()?;
    }
    run_tests(machine, &OVER_THE_DEVICE, "")
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

/// The tests of the memory node that look at the device.
const MEMORY_NODE: [&str; 4] = ["gpuvm_memory_node", "node::rdma::", "node::ends::", "command::serve::"];

/// What [`memory_node`] needs.
pub(super) fn prepare_memory_node() -> Result<(), Error> {
    warm_tests(&MEMORY_NODE)
}

pub(super) fn memory_node(machine: &Machine) -> Result<(), Error> {
    for name in MEMORY_NODE {
        let output = run_test(machine, name, "", "--nocapture", PROGRAM)?;
        let skipped = output.lines.iter().any(|line| line.text.contains("skipped:"));
        super::start::check(!skipped, || format!("tests were skipped:\n{}", output.text()))?;
    }
    Ok(())
}

/// What [`at_a_node`] needs.
pub(super) fn prepare_at_a_node() -> Result<(), Error> {
    warm_tests(&AT_A_NODE)
}

pub(super) fn at_a_node(server: &Machine, client: &Machine) -> Result<(), Error> {
    let node = serve(server, "--memory 1GiB")?;
    let environment = format!("GPUVM_TEST_NODE={}:7471", server.address());
    run_tests(client, &AT_A_NODE, &environment)?;
    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}
