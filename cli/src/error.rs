//! What can go wrong, one sentence each; causes are printed below it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use gpuvm_memory_node::NodeError;
use gpuvm_ptx::{FatBinaryError, PtxError};
use gpuvm_simulate::campaign::CampaignError;
use gpuvm_simulate::mutations::MutationError;
use gpuvm_tenants::{FolderError, GpuKey, PeerError};
use gpuvm_workloads::apps::{AppError, FormatError};
use gpuvm_workloads::bfs::BfsError;
use gpuvm_workloads::graph::reference::{Mismatch, VertexOutOfRange};
use gpuvm_workloads::graph::{GraphError, SourceError};

use crate::ptx::AssembleError;

/// A command that did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The graph could not be loaded.
    #[error("cannot load the graph {graph}")]
    Graph {
        /// The graph as given.
        graph: String,
        /// Why not.
        source: GraphError,
    },
    /// A worker of a simulation, or the answer to one, is not available.
    #[error("a worker of the simulation cannot be reached")]
    Worker(#[source] io::Error),
    /// A campaign did not run.
    #[error("the simulation could not be run")]
    Campaign(#[from] CampaignError),
    /// A mutation that is none, or whose place is no more.
    #[error("cannot plant the mutation")]
    Mutation(#[from] MutationError),
    /// Faults that were asked for and did nothing.
    #[error("these faults were asked for and never happened: {kinds}; give a higher rate or more seeds")]
    Unbitten {
        /// Their names.
        kinds: String,
    },
    /// Nothing was asked for.
    #[error("give --seeds A..B or --seed N")]
    NoSeeds,
    /// A timeline is of one run.
    #[error("--trace writes the timeline of one run: name one workload with --workload")]
    TraceOfMany,
    /// Nothing is left of the workloads.
    #[error("the lanes of workload {workloads} race on purpose: --races is for the others")]
    RacesOnPurpose {
        /// Those that were asked for.
        workloads: String,
    },
    /// The timeline was not written.
    #[error("cannot write the timeline {path}")]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A search has no start.
    #[error("cannot search the graph {graph}")]
    Source {
        /// The graph as given.
        graph: String,
        /// Why not.
        source: SourceError,
    },
    /// A GPU, a transport or a setting that cannot be used.
    #[error("the GPU, the transport or a setting that was asked for cannot be used")]
    BackEnd(#[source] gpuvm::Error),
    /// Less memory than a page.
    #[error("--memory {bytes} bytes is less than one page of {page_bytes} bytes")]
    TooLittleMemory {
        /// The memory asked for.
        bytes: u64,
        /// The page size.
        page_bytes: u64,
    },
    /// More memory than the data can make use of.
    #[error("--memory {bytes} bytes is more than the frame pool can hold; the whole graph has {data_bytes} bytes")]
    TooMuchMemory {
        /// The memory asked for.
        bytes: u64,
        /// The paged data.
        data_bytes: u64,
    },
    /// The search did not end well.
    #[error("the search of the graph {graph} failed")]
    Search {
        /// The graph as given.
        graph: String,
        /// Why.
        source: BfsError,
    },
    /// An application could not be run, or came to a wrong result.
    #[error("the application {app} failed")]
    App {
        /// Its name.
        app: String,
        /// Why.
        source: AppError,
    },
    /// The search on the CPU has no start.
    #[error("the search on the CPU failed")]
    Reference(#[from] VertexOutOfRange),
    /// The distances are wrong.
    #[error("the distances are wrong: they differ from those of the CPU; this is a defect of gpuvm")]
    Wrong(#[from] Mismatch),
    /// A benchmark did not end well.
    #[error("the benchmark {bench} failed")]
    Bench {
        /// Its name.
        bench: &'static str,
        /// Why.
        source: Box<CliError>,
    },
    /// The runtime's own, of a measurement.
    #[error(transparent)]
    Vm(#[from] gpuvm::Error),
    /// A measurement read wrong data: its figures mean nothing.
    #[error("{wrong} words were wrong in {of} units of work of {what}; this is a defect of gpuvm")]
    WrongData {
        /// Words with wrong data.
        wrong: u64,
        /// Units of work: pages, accesses.
        of: u64,
        /// The kernel, or what was read.
        what: String,
    },
    /// A measurement's kernel did not do its work: its figures mean nothing.
    #[error("the kernel {kernel} did {done} of {wanted} units of work; this is a defect of gpuvm")]
    DidNotRun {
        /// The kernel.
        kernel: String,
        /// What it did.
        done: u64,
        /// What it had to do.
        wanted: u64,
    },
    /// Pages were there that should have been absent, or were fetched again.
    #[error("{faults} faults for {pages} pages that were not there; this is a defect of gpuvm")]
    NotCold {
        /// Faults that were counted.
        faults: u64,
        /// Faults that there had to be.
        pages: u64,
    },
    /// What only an NVIDIA GPU can do.
    #[error("{what} needs an NVIDIA GPU, and this run has {gpu}; use --gpu cuda:0 on a machine that has one")]
    NeedsNvidia {
        /// What was asked for.
        what: String,
        /// The GPU that there is.
        gpu: String,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Options(String),
    /// Memory for a measurement.
    #[error("cannot get {bytes} bytes of memory for a measurement")]
    Memory {
        /// The bytes asked for.
        bytes: u64,
        /// Why not.
        source: gpuvm::GpuError,
    },
    /// Host memory for a measurement.
    #[error("no {bytes} bytes of host memory for a measurement; ask for less with --data")]
    HostMemory {
        /// The bytes asked for.
        bytes: u64,
    },
    /// A copy, or managed memory.
    #[error("the measurement of the GPU's own copies failed")]
    Device(#[from] gpuvm::GpuError),
    /// A report could not be written.
    #[error("cannot write {}", path.display())]
    Unwritten {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Some of all benchmarks failed.
    #[error("{failed} of {count} benchmarks failed: {names}")]
    SomeFailed {
        /// How many.
        failed: usize,
        /// Of how many.
        count: usize,
        /// Which.
        names: String,
    },
    /// A file could not be written.
    #[error("cannot write to {}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Writing would destroy what is read.
    #[error("{} is the input itself, which writing would destroy; name another file", path.display())]
    OutputIsInput {
        /// The file.
        path: PathBuf,
    },
    /// A file's name that says no format.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The converted graph could not be written.
    #[error("cannot write the graph to {}", path.display())]
    Convert {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A conversion would replace a file, which was not asked for.
    #[error("{} is there already; name another file, or replace it with --force", path.display())]
    OutputExists {
        /// The file.
        path: PathBuf,
    },
    /// The memory node did not start.
    #[error("the memory node cannot serve")]
    Serve(#[source] NodeError),
    /// The memory node ended by itself.
    #[error("the memory node ended unexpectedly; RUST_LOG=gpuvm_memory_node=debug shows why")]
    NodeEnded,
    /// The secret could not be read.
    #[error("cannot read the secret file {}", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Too much for a secret.
    #[error("the secret file {} holds more than {most} bytes; name a file with the secret alone", path.display())]
    LongSecret {
        /// The file.
        path: PathBuf,
        /// The most that a secret has.
        most: usize,
    },
    /// There is no secret in the file.
    #[error("the secret file {} is empty; write the secret into it", path.display())]
    EmptySecret {
        /// The file.
        path: PathBuf,
    },
    /// Metrics cannot be served.
    #[error("cannot serve metrics at {address}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The tenants of a GPU cannot be found.
    #[error("cannot find the tenants")]
    Tenants(#[from] FolderError),
    /// There is no such tenant.
    #[error("pid {pid} is not a tenant; {known}")]
    NoTenant {
        /// The process asked for.
        pid: u32,
        /// Those that there are.
        known: String,
    },
    /// A tenant says nothing.
    #[error(
        "pid {pid} on the GPU {gpu} does not answer: {why}; a process that is stopped goes on with `kill -CONT {pid}`"
    )]
    SilentTenant {
        /// The process.
        pid: u32,
        /// The GPU that it shares.
        gpu: GpuKey,
        /// Why not.
        why: String,
    },
    /// A tenant did not take other terms.
    #[error("cannot change the terms of pid {pid} on the GPU {gpu}")]
    TenantTerms {
        /// The process.
        pid: u32,
        /// The GPU that it shares.
        gpu: GpuKey,
        /// Why not.
        source: PeerError,
    },
    /// A benchmark's second process did not do its part.
    #[error("the other process of the benchmark {what}")]
    OtherProcess {
        /// What it did instead.
        what: String,
    },
    /// No folder for tenants of a benchmark.
    #[error("cannot make a folder for temporary files; set TMPDIR to one that can be written")]
    Registry(#[source] io::Error),
    /// Frames did not become as many, or as few, as a benchmark needs.
    #[error(
        "there are {frames} frames after {seconds} s, which is not what the measurement needs; does another program take memory of the GPU?"
    )]
    WrongFrameCount {
        /// Frames that there are.
        frames: u64,
        /// How long they were waited for.
        seconds: u64,
    },
    /// PTX that cannot be read as a file.
    #[error("cannot read {path}")]
    ReadPtx {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program or a library whose PTX cannot be taken out of it.
    #[error("cannot read the PTX in {path}")]
    FatBinary {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: FatBinaryError,
    },
    /// A program or a library without PTX, or without any that the architecture that was asked for runs.
    #[error("{} {}", path.display(), no_ptx(architectures))]
    NoPtx {
        /// The file.
        path: PathBuf,
        /// Those that it has PTX for.
        architectures: Vec<u32>,
    },
    /// One file was asked for where several texts are rewritten.
    #[error(
        "{path} has PTX of {texts} source files, and --output is one file; take them out with `cuobjdump -xptx all {path}` first"
    )]
    SeveralTexts {
        /// The file.
        path: PathBuf,
        /// How many there are.
        texts: usize,
    },
    /// The assembler that was asked for did not count registers.
    #[error("cannot read the register counts")]
    Registers(#[source] AssembleError),
    /// PTX that cannot be rewritten.
    #[error("cannot rewrite {path}")]
    RewritePtx {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: PtxError,
    },
    /// A statement that the simulated GPU does not run.
    #[error("{} has a statement in line {line} that the simulated GPU does not run", path.display())]
    NotSimulated {
        /// The file.
        path: PathBuf,
        /// Where in it.
        line: usize,
        /// What it is.
        source: gpuvm::Error,
    },
    /// The rewritten PTX could not be written.
    #[error("cannot write {path}")]
    WritePtx {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program that is to be run has no GPU to run on.
    #[error("cannot run {program}: there is no NVIDIA GPU for it")]
    NoDriver {
        /// As given.
        program: String,
        /// What the driver says.
        source: gpuvm::GpuError,
    },
    /// The library that programs are run with is not where it belongs.
    #[error(
        "cannot find libgpuvm_exec.so beside this command, nor in ../lib from there: run `cargo xtask install` in the repository, or `cargo build --release -p gpuvm-exec` for a command in its build folder"
    )]
    NoExecLibrary,
    /// A program that cannot be run.
    #[error("cannot run {program}")]
    Exec {
        /// As given.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// The report could not be printed.
    #[error("cannot print to the standard output; it is closed or full, or cannot be written")]
    Print(#[from] io::Error),
    /// No thread for the command.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Ctrl-C could not be arranged for.
    #[error("cannot set up the handling of signals")]
    Signals(#[source] io::Error),
}

/// What a program without PTX that would do lacks.
fn no_ptx(architectures: &[u32]) -> String {
    match architectures {
        [] => "has no PTX; compile it with `-gencode arch=compute_75,code=compute_75`".to_owned(),
        all => {
            let all: Vec<String> = all.iter().map(u32::to_string).collect();
            format!(
                "has no PTX that this architecture runs; it has some for {}",
                all.join(", ")
            )
        }
    }
}

impl CliError {
    /// The status that the command ends with: 2 for options that are as wrong as those that the parser refuses.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NoSeeds
            | Self::TraceOfMany
            | Self::RacesOnPurpose { .. }
            | Self::Mutation(MutationError::Unknown { .. })
            | Self::Campaign(CampaignError::TooMany { .. }) => 2,
            // As shells have it.
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 1,
        }
    }
}
