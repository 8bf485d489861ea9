//! Ranks of MPI on two machines, started by the script that users are told to use, over a real ssh.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::programs::{cache, gpuvm, serve, warm};
use super::ranks::{GRAPH, JOB, NODE, NOTICED, finished, program};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::job::Job;
use crate::machine::Machine;
use crate::tools;

/// Files of ssh on both machines; gone with them.
const SSH: &str = "/run/softroce-ssh";

/// Where the second machine's sshd listens: not where a machine's own would.
const PORT: u16 = 2222;

/// The options of all jobs' ranks.
const RANK: &str = "--workers 1 --memory 512KiB";

pub(super) fn prepare() -> Result<(), Error> {
    let pagerank = format!("pagerank {GRAPH} --iterations 1 {RANK} --check");
    warm(program()?, &format!("{pagerank} --transport soft"))?;
    let file = graph_file()?;
    if file.is_file() {
        return Ok(());
    }
    tools::output(
        gpuvm()?,
        &["convert", "kron:12", &file.to_string_lossy()],
        Path::new("/"),
    )
    .map(drop)
}

pub(super) fn on_two_machines(here: &Machine, there: &Machine) -> Result<(), Error> {
    let pagerank = format!("pagerank {GRAPH} --iterations 1 {RANK} --check");
    let graph = graph_file()?;
    let ssh = let_in(here, there)?;

    // With a node of the script's own, which ends with the job.
    let text = ran(here, &line(there, "", &pagerank)?, true)?;
    // Rank 0 compares with the same `Vm`.
    check(
        text.contains("serving ") && text.contains("stopped: 2 clients so far, 2 disconnected"),
        || format!("the script's node did not serve both ranks, or did not end:\n{text}"),
    )?;

    // Two ranks of a machine share the map of a file; no memory node is there.
    let alone = format!("pagerank {} --iterations 1 {RANK} --check", graph.display());
    ran(here, &line(there, "GPUVM_NODE=none GPUVM_RANKS=2", &alone)?, false)?;

    let node = serve(here, NODE)?;
    let at = format!("GPUVM_NODE={}:7471", here.address());
    killed(here, there, &at)?;
    // The next job works at once: the node has taken back what the lost ranks had.
    without_power(here, there, &at)?;
    drop(ssh);
    finished(node)
}

/// The script's command line on the first machine; `before` are variables for it.
fn line(there: &Machine, before: &str, arguments: &str) -> Result<String, Error> {
    let folder = program()?.parent().unwrap_or(Path::new("/"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster/jobs/two-machines.sh");
    let cache = cache().ok_or_else(|| Error::Check("no folder for compiled kernels is known".to_owned()))?;
    Ok(format!(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 \
         GPUVM_CACHE_DIR={} GPUVM_BIN={} GPUVM_NODE_MEMORY=16MiB {before} \
         exec {} 10.9.0.1 {} {arguments}",
        cache.display(),
        folder.display(),
        script.display(),
        there.address()
    ))
}

/// Starts sshd on the second machine, with keys that were made for it there and on the first, which each other know.
fn let_in(here: &Machine, there: &Machine) -> Result<Job, Error> {
    let (sshd, keygen) = (
        tools::find("sshd", "openssh-server")?,
        tools::find("ssh-keygen", "openssh-client")?,
    );
    let make = format!(
        "mkdir -p -m 700 {SSH} && {} -q -t ed25519 -N '' -f {SSH}/key && cat {SSH}/key.pub",
        keygen.display()
    );
    let key = |machine: &Machine| -> Result<String, Error> {
        Ok(machine.run(&make, SHORT)?.success()?.text().trim().to_owned())
    };
    let (user, host, address) = (key(here)?, key(there)?, there.address());
    let client =
        format!("Host {address}\nPort {PORT}\nIdentityFile {SSH}/key\nUserKnownHostsFile {SSH}/known\nBatchMode yes\n");
    let known = format!("[{address}]:{PORT} {host}");
    // ssh reads the settings in the home of its user, not in $HOME.
    let settings = format!(
        "home=$(getent passwd $(id -u) | cut -d: -f6) && mkdir -p -m 700 $home/.ssh && printf '%s' '{client}' >$home/.ssh/config && \
         chmod 600 $home/.ssh/config && echo '{known}' >{SSH}/known"
    );
    here.run(&settings, SHORT)?.success()?;
    let server = format!(
        "Port {PORT}\nListenAddress {address}\nHostKey {SSH}/key\nAuthorizedKeysFile {SSH}/allowed\nPidFile none\n\
         PasswordAuthentication no\n"
    );
    // sshd checks who may write to the keys; /run/sshd is where it locks itself up.
    let mut job = there.spawn(&format!(
        "mkdir -p -m 755 /run/sshd && printf '%s' '{server}' >{SSH}/sshd && echo '{user}' >{SSH}/allowed && exec {} -D -e -f {SSH}/sshd",
        sshd.display()
    ))?;
    job.wait_for("Server listening", SHORT)?;
    here.run(&format!("ssh {address} true"), SHORT)?.success()?;
    Ok(job)
}

/// A small graph as a file that both machines see.
fn graph_file() -> Result<PathBuf, Error> {
    Ok(program()?.with_file_name("kron12.gcsr"))
}

/// Runs a job, which rank 0 compares with itself alone, and returns what it said.
fn ran(here: &Machine, line: &str, is_at_node: bool) -> Result<String, Error> {
    let since = Instant::now();
    let text = here.run(line, JOB)?.success()?.text();
    let homes = text.contains("homes      ") && text.contains("transport rxe");
    check(
        text.contains("values equal to one rank's") && homes == is_at_node,
        || format!("the job was not compared, or its pages are not where they ought to be:\n{text}"),
    )?;
    let told = text
        .lines()
        .filter(|line| ["app ", "ranks ", "time "].iter().any(|word| line.starts_with(word)));
    told.for_each(|line| println!("         {line}"));
    println!("         all of it  {:.1} s", since.elapsed().as_secs_f64());
    Ok(text)
}

/// Starts a job that would take for ever, and waits until both machines work for it. The node has no room for another then.
fn working(here: &Machine, there: &Machine, at: &str) -> Result<Job, Error> {
    let job = here.spawn(&line(
        there,
        at,
        &format!("pagerank {GRAPH} --iterations 100000 {RANK}"),
    )?)?;
    // A rank has such a thread once its GPU is there, and after that only faults bring this many packets.
    let device = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
    for machine in [here, there] {
        let working = "cat /proc/[0-9]*/task/*/comm 2>/dev/null | grep -q '^gpuvm-sm'";
        let wait = format!(
            "for n in $(seq 200); do {working} && break; sleep 0.3; done; {working} && before=$(cat {device}) && \
             for n in $(seq 300); do [ $(($(cat {device}) - before)) -gt 200 ] && exit 0; sleep 0.1; done; exit 1"
        );
        let waited = machine.run(&wait, JOB)?;
        if waited.code != 0 {
            job.kill()?;
            let said = job.wait(SHORT)?.text();
            return Err(Error::Check(format!(
                "{} does not work for the job:\n{said}",
                machine.name()
            )));
        }
    }
    Ok(job)
}

/// Kills the second machine's rank in the middle of its work.
fn killed(here: &Machine, there: &Machine, at: &str) -> Result<(), Error> {
    let job = working(here, there, at)?;
    let kill = "for p in /proc/[0-9]*; do grep -qx gpuvm-mpi $p/comm 2>/dev/null && kill -KILL ${p#/proc/} && exit 0; done; exit 1";
    there.run(kill, SHORT)?.success()?;
    ends(job, Instant::now(), "killed on the second machine", "rank 1 ")
}

/// Cuts the second machine's power in the middle of its rank's work.
fn without_power(here: &Machine, there: &Machine, at: &str) -> Result<(), Error> {
    let job = working(here, there, at)?;
    there.kill()?;
    ends(job, Instant::now(), "without power", "error: rank 1 of 2 (process ")
}

/// The job ends in time, and says which rank was lost.
fn ends(job: Job, since: Instant, how: &str, named: &str) -> Result<(), Error> {
    let output = job.wait(SHORT)?;
    let took = since.elapsed();
    let text = output.text();
    check(output.code != 0 && took < NOTICED && text.contains(named), || {
        format!(
            "rank 1 was {how}; the job ended {took:?} later with {} and said:\n{text}",
            output.code
        )
    })?;
    println!(
        "         rank 1 {how}: the job has ended {:.2} s later, and names it",
        took.as_secs_f64()
    );
    Ok(())
}
