//! perftest, an independent client of the device.

use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;

pub(super) fn read_bandwidth(machine: &Machine) -> Result<(), Error> {
    let (device, address) = (machine.device(), machine.address());
    let command = format!("ib_read_bw -d {device} -s 4096 -n 300 -F");
    let mut server = machine.spawn(&format!("stdbuf -oL {command}"))?;
    server.wait_for("Waiting for client", SHORT)?;
    let report = machine.run(&format!("{command} {address}"), SHORT)?.success()?.text();
    server.wait(SHORT)?.success()?;
    // Bytes, iterations, peak and average bandwidth, messages.
    let row = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row
        .into_iter()
        .find(|words| words.len() >= 4 && words[..2] == ["4096", "300"]);
    let average = row.and_then(|words| words[3].parse::<f64>().ok());
    check(average.is_some_and(|average| average > 0.0), || {
        format!("no bandwidth is reported:\n{report}")
    })
}
