//! Other clients of the device, beside a program that pages over it.

use std::time::Duration;

use super::node::searched;
use super::programs::{verbs_client, warm_search};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;

/// How long a client may take beside others.
const BESIDE: Duration = Duration::from_secs(120);

pub(super) fn prepare() -> Result<(), Error> {
    verbs_client()?;
    warm_search()
}

pub(super) fn clients(machine: &Machine) -> Result<(), Error> {
    let (device, address) = (machine.device(), machine.address());
    let verbs = verbs_client()?;
    // Each client repeats itself until it is told to stop, so that all of them run during the whole search.
    let read = format!("ib_read_bw -d {device} -F -s 4096 -n 1000");
    let bandwidth = format!("{read} >/tmp/bw & sleep 0.5; timeout 60 {read} {address}; wait $!");
    let ping = format!(
        "rping -s -a {address} -S 4096 -C 20 >/tmp/ping & sleep 0.5; timeout 60 rping -c -v -V -a {address} -S 4096 -C 20; wait $!"
    );
    let send = format!("timeout 60 {} {device} 500", verbs.display());
    let repeated = |once: &str| {
        format!(
            "rm -f /tmp/stop; for ((count = 1; ; count++)); do {{ {once}; }} || exit 9; echo \"round $count\"; [ -e /tmp/stop ] && exit 0; done"
        )
    };
    let mut others = Vec::new();
    for once in [&bandwidth, &ping, &send] {
        others.push(machine.spawn(&repeated(once))?);
    }
    for other in &mut others {
        other.wait_for("round 1", BESIDE)?;
    }
    searched(machine, 12, &format!("--transport rxe --rdma-device {device}"))?;
    for other in &others {
        check(!other.has_ended(), || "a client ended beside the search".to_owned())?;
    }
    machine.run("touch /tmp/stop", SHORT)?.success()?;
    for other in others {
        other.wait(BESIDE)?.success()?;
    }
    Ok(())
}
