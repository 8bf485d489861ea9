//! Applications whose arrays live on another machine.

use std::time::Duration;

use serde_json::Value;

use super::programs::{gpuvm, json, number, serve, warm};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;

/// How long an application may take.
const APP: Duration = Duration::from_secs(60);

/// An application and its input.
struct Case {
    run: &'static str,
    /// Whether its kernels write paged arrays.
    writes: bool,
    /// Whether its pages are striped over both nodes.
    striped: bool,
}

/// A graph, matrices and an index; data of a few dozen pages, frames for a part of them.
const CASES: [Case; 3] = [
    Case {
        run: "pagerank kron:10",
        writes: true,
        striped: false,
    },
    Case {
        run: "stencil 200",
        writes: true,
        striped: true,
    },
    Case {
        run: "embedding 1000x32",
        writes: false,
        striped: false,
    },
];

pub(super) fn prepare() -> Result<(), Error> {
    CASES
        .iter()
        .try_for_each(|case| warm(gpuvm()?, &format!("run {}", case.run)))
}

pub(super) fn at_nodes(server: &Machine, client: &Machine) -> Result<(), Error> {
    let address = server.address();
    let at = |port: u32| format!("--memory-node {address}:{port}");
    let (first, second) = (serve(server, "")?, serve(server, "--listen 0.0.0.0:7472")?);
    for case in &CASES {
        let nodes = match case.striped {
            true => format!("{} {}", at(7471), at(7472)),
            false => at(7471),
        };
        ran(client, case, &nodes)?;
    }
    for (node, runs) in [(first, CASES.len()), (second, striped())] {
        node.terminate()?;
        let said = node.wait(SHORT)?.success()?.text();
        // Each run asks once whether the nodes are available.
        let clients = 2 * runs;
        check(
            said.contains(&format!("{clients} clients so far, {clients} disconnected")),
            || format!("a node was left otherwise than by {clients} goodbyes:\n{said}"),
        )?;
    }
    Ok(())
}

/// Cases at both nodes.
fn striped() -> usize {
    CASES.iter().filter(|case| case.striped).count()
}

/// Runs an application, which compares its results with the processor's, and looks for its pages on the cable.
fn ran(client: &Machine, case: &Case, nodes: &str) -> Result<(), Error> {
    let command = format!("{} run {} {nodes} --json", gpuvm()?.display(), case.run);
    let before = carried(client)?;
    let report = json(&client.run(&command, APP)?.success()?)?;
    let [received, sent] = carried(client)?;
    let [received, sent] = [received - before[0], sent - before[1]];
    let of = |name| number(&report, name);
    check(
        of("verified")? > 0.0 && report.get("transport") == Some(&Value::from("rxe")),
        || format!("it was not verified over rxe: {report}"),
    )?;
    let (fetched, written) = (of("bytes_fetched")?, of("pages_written_back")? * of("page_bytes")?);
    check(of("faults")? > 0.0 && fetched > 0.0 && received >= fetched, || {
        format!("{received} bytes came over the cable: {report}")
    })?;
    // The arrays went there before the run, and what was written followed.
    let least = of("data_bytes")? + written;
    check(sent >= least && (written > 0.0) == case.writes, || {
        format!("{sent} bytes went over the cable: {report}")
    })?;
    println!(
        "         {} {nodes}: {} values verified twice, {:.2} s cold, {} faults, {fetched} bytes fetched and {received} received, {written} written back and {sent} sent",
        case.run,
        of("verified")?,
        of("cold_seconds")?,
        of("faults")?,
    );
    Ok(())
}

/// Bytes that a machine has received and sent over the cable so far.
fn carried(machine: &Machine) -> Result<[f64; 2], Error> {
    let command = "cd /sys/class/net/eth0/statistics && cat rx_bytes tx_bytes";
    let text = machine.run(command, SHORT)?.success()?.text();
    let counts: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    <[f64; 2]>::try_from(counts).map_err(|_| Error::Check(format!("`{command}` tells no two numbers: {text}")))
}
