//! Networks that lose, delay and reorder packets: no read is wrong, no write is lost.

use std::time::{Duration, Instant};

use super::SHORT;
use super::network::dropped;
use super::node::searched;
use super::programs::{number, run_test, serve, warm_all};
use super::start::check;
use crate::error::Error;
use crate::machine::Machine;

/// How long a test program may take on such a network.
const PROGRAM: Duration = Duration::from_secs(120);

/// How often a run is repeated that chance may spare.
const TRIES: u32 = 6;

pub(super) fn every_word_is_right(server: &Machine, client: &Machine) -> Result<(), Error> {
    warm_all(&["promises::no_lost_write::"])?;
    let machines = [server, client];
    let address = server.address();
    // Few queue pairs: the connection manager waits seconds for each packet of its own that is lost.
    let (node, at) = (
        serve(server, "")?,
        format!("--memory-node {address}:7471 --queue-pairs 2"),
    );
    let writes = |settings: &str| -> Result<(), Error> {
        let test = "promises::no_lost_write::a_write_after_a_read_of_the_same_page_is_not_lost_under_eviction";
        let settings = format!("GPUVM_TEST_NODE={address}:7471 {settings}");
        let since = Instant::now();
        run_test(client, test, &settings, "--exact", PROGRAM)?;
        println!("         no write was lost in {:.1} s", since.elapsed().as_secs_f32());
        Ok(())
    };

    network(machines, "loss 1%")?;
    searched(client, 12, &at)?;
    writes("")?;
    lost(machines)?;

    network(machines, "loss 5%")?;
    searched(client, 12, &format!("{at} --rdma-retries 7 --rdma-ack-timeout 11"))?;
    writes("GPUVM_TEST_RETRIES=7 GPUVM_TEST_ACK_TIMEOUT=11")?;
    lost(machines)?;

    // So few retries that queue pairs do run into errors.
    network(machines, "loss 5%")?;
    mended(client, &format!("{at} --rdma-retries 1 --rdma-ack-timeout 11"))?;
    writes("GPUVM_TEST_RETRIES=1 GPUVM_TEST_ACK_TIMEOUT=11")?;
    lost(machines)?;

    network(machines, "delay 2ms reorder 25% 50%")?;
    searched(client, 12, &at)?;
    writes("")?;

    network(machines, "delay 5ms")?;
    searched(client, 12, &at)?;

    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}

/// Sets what both machines do with the packets they send.
fn network(machines: [&Machine; 2], how: &str) -> Result<(), Error> {
    println!("         {how}:");
    for machine in machines {
        // A new discipline counts from 0.
        let command =
            format!("tc qdisc del dev eth0 root 2>/dev/null; tc qdisc add dev eth0 root netem limit 100000 {how}");
        machine.run(&command, SHORT)?.success()?;
    }
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
fn mended(client: &Machine, flags: &str) -> Result<(), Error> {
    for _ in 0..TRIES {
        let report = searched(client, 12, flags)?;
        if number(&report, "queue_pairs_mended")? > 0.0 {
            return Ok(());
        }
    }
    Err(Error::Check(format!(
        "no queue pair was mended in {TRIES} searches with {flags}"
    )))
}
