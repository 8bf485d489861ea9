//! Programs on one machine whose data live on another.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::programs::{gpuvm, json, number, serve, test, warm_search, warm_tests};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::job::Job;
use crate::machine::Machine;

/// How long a search may take.
const SEARCH: Duration = Duration::from_secs(120);

/// The arguments of a search that pages with memory for a quarter of its data.
pub(super) fn search(scale: u32) -> String {
    format!("run bfs kron:{scale} --memory 25% --json")
}

/// Searches a graph whose pages are at nodes, compares with a search on the CPU, and shows the statistics.
pub(super) fn searched(client: &Machine, scale: u32, flags: &str) -> Result<Value, Error> {
    let program = gpuvm()?;
    let command = format!("{} {} {flags}", program.display(), search(scale));
    let report = json(&client.run(&command, SEARCH)?.success()?)?;
    let verified = report.get("verified") == Some(&Value::Bool(true));
    check(verified, || format!("the search was not verified: {report}"))?;
    for name in ["faults", "doorbell_calls", "pages_written_back"] {
        check(number(&report, name)? > 0.0, || format!("no {name}: {report}"))?;
    }
    let of = |name| number(&report, name);
    println!(
        "         kron:{scale} {flags}: verified, {:.2} s, {} faults (p50 {:.0} us), {} pages written, {} doorbell calls, {} queue pairs recovered",
        of("seconds")?,
        of("faults")?,
        of("fault_ns_p50")? / 1e3,
        of("pages_written_back")?,
        of("doorbell_calls")?,
        of("queue_pairs_recovered")?
    );
    Ok(report)
}

pub(super) fn bfs(server: &Machine, client: &Machine) -> Result<(), Error> {
    let address = server.address();
    let node = serve(server, "")?;
    searched(client, 13, &format!("--memory-node {address}:7471"))?;

    // A second node beside it: the pages are striped over both, so neither has room for all of them.
    let second = serve(server, "--listen 0.0.0.0:7472")?;
    searched(
        client,
        12,
        &format!("--memory-node {address}:7471 --memory-node {address}:7472"),
    )?;
    for (node, clients) in [(node, 4), (second, 2)] {
        node.terminate()?;
        let said = node.wait(SHORT)?.success()?.text();
        // Each search asks once whether the nodes are available, and then searches.
        check(
            said.contains(&format!("{clients} clients so far, {clients} disconnected")),
            || format!("a node was left otherwise than by {clients} goodbyes:\n{said}"),
        )?;
    }
    secrets(server, client)
}

fn secrets(server: &Machine, client: &Machine) -> Result<(), Error> {
    for machine in [server, client] {
        let files = "echo 'open sesame' > /tmp/secret; echo 'open barley' > /tmp/wrong";
        machine.run(files, SHORT)?.success()?;
    }
    let address = server.address();
    let mut node = serve(server, "--secret-file /tmp/secret")?;
    // The node sees a wrong secret; a client that has none leaves when it is asked for one.
    let at = format!("--memory-node {address}:7471");
    searched(client, 10, &format!("{at} --secret-file /tmp/secret"))?;
    for (flags, says, event) in [
        ("--secret-file /tmp/wrong", "the secret is wrong", Some("WrongSecret")),
        ("", "it asks for a secret, and none was given", None),
    ] {
        let command = format!("{} {} {at} {flags}", gpuvm()?.display(), search(10));
        let refused = client.run(&command, SHORT)?;
        let text = refused.text();
        check(refused.code == 1 && text.contains(says), || {
            format!("`{command}` ended with {} and said: {text}", refused.code)
        })?;
        if let Some(event) = event {
            node.wait_for(event, SHORT)?;
        }
    }
    node.terminate()?;
    node.wait(SHORT)?.success()?;
    Ok(())
}

/// From the end of a node to the end of the kernel that needs it: the program's wait limit of 5 s, and time for
/// emulated processors.
const NOTICED: Duration = Duration::from_secs(15);

pub(super) fn prepare_deaths() -> Result<(), Error> {
    warm_tests(&["promises::memory_node::"])?;
    warm_search()
}

pub(super) fn killed(server: &Machine, client: &Machine) -> Result<(), Error> {
    let at = format!("--memory-node {}:7471", server.address());
    for retries in [6, 7] {
        let node = serve(server, "")?;
        outlived(client, server, "its process", retries, || node.kill())?;
        node.wait(SHORT)?;
    }
    let again = serve(server, "")?;
    searched(client, 10, &at)?;
    drop(again);

    for retries in [6, 7] {
        let node = serve(server, "")?;
        outlived(client, server, "its machine", retries, || server.kill())?;
        drop(node);
        server.boot_again()?;
    }
    let _node = serve(server, "")?;
    searched(client, 10, &at).map(drop)
}

/// Ends a node while a test program pages from it; the program checks what it is left with.
fn outlived(
    client: &Machine,
    server: &Machine,
    what: &str,
    retries: u32,
    end: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let program = test("promises")?;
    let environment = format!(
        "GPUVM_TEST_NODE={}:7471 GPUVM_TEST_NODE_DIES=1 GPUVM_TEST_RETRIES={retries}",
        server.address()
    );
    let mut job = client.spawn(&format!(
        "{environment} {} --nocapture --exact memory_node::node_death",
        program.display()
    ))?;
    job.wait_for("RUNNING", SHORT)?;
    // The kernel is to be at work.
    std::thread::sleep(Duration::from_millis(500));
    check(!job.has_ended(), || "the program ended too early".to_owned())?;
    end()?;
    let since = Instant::now();
    let ended = job.wait_for("ENDED after", NOTICED)?;
    let seconds = since.elapsed().as_secs_f32();
    let salvaged = job.wait_for("SALVAGED", SHORT)?;
    let left = job.wait_for("LEFT after", SHORT)?;
    job.wait(SHORT)?.success()?;
    println!("         {what} ended, {retries} retries: noticed after {seconds:.1} s; {salvaged}; {left}");
    println!("           {ended}");
    Ok(())
}

/// Regions with two replicas at two nodes of one machine. One is killed while a kernel writes; in its place comes one with too
/// little memory, then some that die while they are taken back, then one that stays; then the other one is killed, and comes back. Virtual memories
/// end while they call a node that is dead, and while they take one back.
pub(super) fn replica_killed(machine: &Machine) -> Result<(), Error> {
    const SECOND: &str = "--listen 0.0.0.0:7472";
    let address = machine.address();
    let (first, second) = (serve(machine, "")?, serve(machine, SECOND)?);
    machine.run("rm -f /tmp/nodes.*", SHORT)?.success()?;
    let environment = format!("GPUVM_TEST_NODE={address}:7471,{address}:7472 GPUVM_TEST_REPLICA_DIES=/tmp/nodes");
    let program = test("promises")?.display();
    let mut job = machine.spawn(&format!(
        "{environment} {program} --nocapture --exact memory_node::replica_node_death"
    ))?;
    let done = |word: &str| {
        let touched = machine.run(&format!("touch /tmp/nodes.{word}"), SHORT)?;
        touched.success().map(drop)
    };
    let end = |node: Job| {
        node.kill()?;
        node.wait(SHORT).map(drop)
    };
    job.wait_for("RUNNING", SHORT)?;
    // The kernel is to be at work.
    std::thread::sleep(Duration::from_millis(1500));
    second.kill()?;
    let since = Instant::now();
    let survived = job.wait_for("SURVIVED", SHORT)?;
    let seconds = since.elapsed().as_secs_f32();
    // A kernel that was done before its node died has shown nothing.
    check(seconds > 0.5, || {
        format!("the kernel ended {seconds:.1} s after the node")
    })?;
    second.wait(SHORT)?;

    job.wait_for("REFUSE", SHORT)?;
    let small = serve(machine, &format!("{SECOND} --memory 16KiB"))?;
    done("REFUSE")?;
    let refused = job.wait_for("# ", SHORT)?;
    job.wait_for("GO", SHORT)?;
    end(small)?;
    done("GO")?;
    job.wait_for("RETURN", SHORT)?;
    // Lost again at some step of being taken back.
    for pause in [100, 400, 1000] {
        let short = serve(machine, SECOND)?;
        std::thread::sleep(Duration::from_millis(pause));
        end(short)?;
    }
    let second = serve(machine, SECOND)?;
    done("RETURN")?;
    let whole = job.wait_for("WHOLE", SHORT)?;

    job.wait_for("OTHER", SHORT)?;
    end(first)?;
    done("OTHER")?;
    job.wait_for("EXACT", SHORT)?;
    job.wait_for("BACK", SHORT)?;
    let first = serve(machine, "")?;
    done("BACK")?;
    job.wait_for("END", SHORT)?;
    end(second)?;
    done("END")?;
    job.wait_for("BOTH", SHORT)?;
    let second = serve(machine, SECOND)?;
    done("BOTH")?;
    job.wait_for("AGAIN", SHORT)?;
    end(first)?;
    let first = serve(machine, "")?;
    done("AGAIN")?;
    let all = job.wait_for("ALL WELL", SHORT)?;
    job.wait(SHORT)?.success()?;
    println!("         the kernel ended well {seconds:.1} s after the node: {survived}");
    println!("         {refused}");
    println!("         {whole}; {all}");
    for node in [first, second] {
        node.terminate()?;
        node.wait(SHORT)?.success()?;
    }
    Ok(())
}
