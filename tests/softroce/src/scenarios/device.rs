//! The tests of the library over a machine's RDMA device.

use std::time::Duration;

use super::SHORT;
use super::programs::{run_test, serve};
use crate::error::Error;
use crate::machine::Machine;

/// How long one test program may take.
const PROGRAM: Duration = Duration::from_secs(240);

/// Tests that page over the device that the environment names, the cheapest first.
const OVER_THE_DEVICE: [&str; 13] = [
    "rxe",
    "paged_bfs",
    "bookkeeping",
    "flush_and_host_access",
    "scoped_borrows",
    "no_lost_write",
    "prefetch",
    "many_requests_in_flight",
    "kernel_errors",
    "every_wait_ends",
    "inside_the_region",
    "drop_in_any_order",
    "random_programs",
];

/// Those of them that say most about regions at a memory node.
const AT_A_NODE: [&str; 4] = ["memory_node", "flush_and_host_access", "no_lost_write", "prefetch"];

pub(super) fn suite(machine: &Machine) -> Result<(), Error> {
    if machine.is_virtual() {
        // A region of more than 2^32 elements is reserved, not used.
        machine.run("sysctl -q vm.overcommit_memory=1", SHORT)?.success()?;
    }
    for name in OVER_THE_DEVICE {
        run_test(machine, name, "", "", PROGRAM)?;
    }
    Ok(())
}

pub(super) fn memory_node(machine: &Machine) -> Result<(), Error> {
    for name in ["gpuvm_memory_node", "rdma", "serve"] {
        let output = run_test(machine, name, "", "--nocapture", PROGRAM)?;
        let skipped = output.lines.iter().any(|line| line.text.contains("skipped:"));
        super::start::check(!skipped, || format!("tests were skipped:\n{}", output.text()))?;
    }
    Ok(())
}

pub(super) fn at_a_node(server: &Machine, client: &Machine) -> Result<(), Error> {
    let node = serve(server, "--memory 1GiB")?;
    let environment = format!("GPUVM_TEST_NODE={}:7471", server.address());
    for name in AT_A_NODE {
        run_test(client, name, &environment, "", PROGRAM)?;
    }
    run_test(client, "random_programs", &environment, "4_kib", PROGRAM)?;
    run_test(client, "two_machines", &environment, "", PROGRAM)?;
    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}
