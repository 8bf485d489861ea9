//! Networks that lose, delay and reorder packets: no read is wrong, no write is lost.

use std::time::{Duration, Instant};

use super::network::{self, dropped, netem};
use super::node::searched;
use super::programs::{number, run_test, serve, warm_search, warm_tests};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;

/// How long a test program may take on such a network.
const PROGRAM: Duration = Duration::from_secs(120);

/// How often a run is repeated that chance may spare.
const TRIES: u32 = 6;

/// Writes pages that are evicted at once, and reads them back.
const WRITES: &str = "promises::no_lost_write::a_write_after_a_read_of_the_same_page_is_not_lost_under_eviction";

pub(super) fn prepare() -> Result<(), Error> {
    warm_tests(&[WRITES])?;
    warm_search()
}

pub(super) fn every_word_is_right(server: &Machine, client: &Machine) -> Result<(), Error> {
    let machines = [server, client];
    let address = server.address();
    // Few queue pairs: the connection manager waits seconds for each packet of its own that is lost.
    let (node, at) = (
        serve(server, "")?,
        format!("--memory-node {address}:7471 --queue-pairs 2"),
    );
    let writes = |settings: &str| -> Result<(), Error> {
        let settings = format!("GPUVM_TEST_NODE={address}:7471 {settings}");
        let since = Instant::now();
        run_test(client, WRITES, &settings, "--exact", PROGRAM)?;
        println!("         no write was lost in {:.1} s", since.elapsed().as_secs_f32());
        Ok(())
    };

    netem(machines, "loss 1%")?;
    searched(client, 12, &at)?;
    writes("")?;
    lost(machines)?;

    netem(machines, "loss 5%")?;
    searched(client, 12, &format!("{at} --rdma-retries 7 --rdma-ack-timeout 11"))?;
    writes("GPUVM_TEST_RETRIES=7 GPUVM_TEST_ACK_TIMEOUT=11")?;
    lost(machines)?;

    // So few retries that queue pairs do run into errors.
    netem(machines, "loss 5%")?;
    recovered(client, &format!("{at} --rdma-retries 1 --rdma-ack-timeout 11"))?;
    writes("GPUVM_TEST_RETRIES=1 GPUVM_TEST_ACK_TIMEOUT=11")?;
    lost(machines)?;

    netem(machines, "delay 2ms reorder 25% 50%")?;
    searched(client, 12, &at)?;
    writes("")?;

    netem(machines, "delay 5ms")?;
    searched(client, 12, &at)?;

    network::whole(machines)?;
    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}

/// Packets were lost both ways.
fn lost(machines: [&Machine; 2]) -> Result<(), Error> {
    let (there, back) = (dropped(machines[0])?, dropped(machines[1])?);
    println!("         lost packets: {there} of the node's, {back} of the program's");
    check(there > 0 && back > 0, || {
        format!("netem lost {there} packets one way and {back} the other")
    })
}

/// Searches until queue pairs were taken out of the error state.
fn recovered(client: &Machine, flags: &str) -> Result<(), Error> {
    for _ in 0..TRIES {
        let report = searched(client, 12, flags)?;
        if number(&report, "queue_pairs_recovered")? > 0.0 {
            return Ok(());
        }
    }
    Err(Error::Check(format!(
        "no queue pair was recovered in {TRIES} searches with {flags}"
    )))
}
