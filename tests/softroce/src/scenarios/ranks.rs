//! Ranks of MPI on one machine, with their pages at a memory node on another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::programs::{gpuvm, named, serve, warm};
use super::start::{SHORT, check};
use crate::built;
use crate::error::Error;
use crate::job::{Job, Output};
use crate::machine::Machine;

/// How long a job may take that ends by itself: MPI starts slowly on emulated processors.
pub(super) const JOB: Duration = Duration::from_secs(120);

/// From the end of a rank to the end of its job; the promise.
pub(super) const NOTICED: Duration = Duration::from_secs(10);

/// Memory of the node: enough for one job, and not for two, which is tried.
pub(super) const NODE: &str = "--memory 3MiB";

/// A graph whose rows and neighbours are 1.8 MiB.
pub(super) const GRAPH: &str = "kron:14";

/// The program with MPI. Builds without it make one of the same name, so this is a copy.
pub(super) fn program() -> Result<&'static Path, Error> {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(copy) = COPY.get() {
        return Ok(copy);
    }
    // What is linked with the other one comes first.
    let beside = gpuvm()?;
    // As cluster/test builds it, so that nothing is built twice.
    let features = ["--features", "gpuvm-cluster/mpi", "--test", "cluster"];
    let found = built(&[&["test", "--no-run", "--release", "--workspace"], &features[..]].concat())?;
    let program = named(&found, "gpuvm-mpi", |program| program)?;
    let folder = beside.with_file_name("softroce-mpi");
    let copy = folder.join("gpuvm-mpi");
    // Scripts look for both in one folder.
    let copied = fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(program, &copy))
        .and_then(|_| fs::copy(beside, folder.join("gpuvm")));
    copied.map_err(|error| Error::Check(format!("{} cannot be written: {error}", copy.display())))?;
    Ok(COPY.get_or_init(|| copy))
}

/// A job of this many ranks of one machine. The RDMA device is gpuvm's alone: MPI would open it, too.
fn mpirun(ranks: u32, arguments: &str) -> Result<String, Error> {
    Ok(format!(
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 exec mpirun --oversubscribe \
         --mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none -n {ranks} {} {arguments}",
        program()?.display()
    ))
}

pub(super) fn prepare() -> Result<(), Error> {
    // The same kernels over the software NIC.
    let app = format!("pagerank {GRAPH} --iterations 1");
    warm(program()?, &format!("{app} --transport soft --memory 1MiB --workers 1"))
}

pub(super) fn at_a_node(server: &Machine, client: &Machine) -> Result<(), Error> {
    let node = serve(server, NODE)?;
    let at = format!("--memory-node {}:7471 --workers 1 --memory 512KiB", server.address());
    let job = format!("pagerank {GRAPH} --iterations 2 {at} --check");
    ran(client, &job)?;
    // The one that filled what the others read.
    lost(client, &at, 0, &job)?;
    // It has room at once: the node has taken back what the lost ranks had.
    ran(client, &job)?;
    finished(node)
}

/// Runs a job on two ranks, which rank 0 compares with itself alone.
fn ran(client: &Machine, arguments: &str) -> Result<Output, Error> {
    let output = client.run(&mpirun(2, arguments)?, JOB)?.success()?;
    let text = output.text();
    check(
        text.contains("values equal to one rank's") && text.contains("homes      ") && text.contains("transport rxe"),
        || format!("the job was not compared, or not at a node:\n{text}"),
    )?;
    println!(
        "         {arguments}:\n           {}",
        text.lines().filter(|line| line.starts_with("time")).collect::<String>()
    );
    Ok(output)
}

/// Kills a rank of four in the middle of its work. Until then there is no room for another job.
fn lost(client: &Machine, at: &str, rank: u32, other: &str) -> Result<(), Error> {
    let job = client.spawn(&mpirun(4, &format!("pagerank {GRAPH} --iterations 100000 {at}"))?)?;
    // Every rank has a thread that works for the GPU once its memory is there.
    let working = "[ $(cat /proc/[0-9]*/task/*/comm 2>/dev/null | grep -c '^gpuvm-sm') -ge 4 ]";
    let wait = format!("for n in $(seq 400); do {working} && exit 0; sleep 0.1; done; exit 1");
    client.run(&wait, SHORT)?.success()?;
    let refused = client.run(&mpirun(2, other)?, JOB)?;
    let text = refused.text();
    check(
        refused.code != 0 && text.contains("longest free piece of memory"),
        || format!("a second job ended with {} beside the first:\n{text}", refused.code),
    )?;
    let kill = format!(
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK={rank} && \
         grep -q gpuvm-mpi $p/comm && kill -KILL ${{p#/proc/}} && exit 0; done; exit 1"
    );
    client.run(&kill, SHORT)?.success()?;
    let killed = Instant::now();
    let output = job.wait(SHORT)?;
    let took = killed.elapsed();
    let text = output.text();
    check(
        output.code != 0 && took < NOTICED && text.contains(&format!("rank {rank} ")),
        || {
            format!(
                "rank {rank} was killed; the job ended {took:?} later with {} and said:\n{text}",
                output.code
            )
        },
    )?;
    println!(
        "         rank {rank} of 4 killed: the job has ended {:.2} s later, and names it",
        took.as_secs_f64()
    );
    Ok(())
}

/// Ends the node.
pub(super) fn finished(node: Job) -> Result<(), Error> {
    node.terminate()?;
    let said = node.wait(SHORT)?.success()?.text();
    check(said.contains("clients so far"), || {
        format!("the node said nothing of its clients:\n{said}")
    })
}
