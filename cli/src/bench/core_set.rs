//! The core benchmarks, each in a process of its own: what one does to the GPU does not reach the next.

use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{Gpu, Vm};

use crate::bench::report::Report;
use crate::error::CliError;
use crate::output::{Output, run_for, say};
use crate::stdout;

/// The core set.
#[derive(Debug, Args)]
pub struct CoreArgs {
    /// The folder for the reports, which is created.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, default_value = "auto")]
    pub gpu: String,

    /// The neighbour GPU whose memory is measured too.
    #[arg(long, value_name = "N")]
    pub peer: Option<u32>,

    /// Runs of each row.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Longest run of one benchmark in seconds; then it is ended and the next one begins.
    #[arg(long, value_name = "SECONDS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub limit: u64,

    /// Use the sizes of the simulated GPU also on an NVIDIA GPU: a smoke test.
    #[arg(long)]
    pub quick: bool,
}

/// A benchmark of the set: its file's name and its arguments.
struct Part {
    name: &'static str,
    arguments: String,
}

/// Runs the core set.
///
/// # Errors
/// A folder that cannot be written, [`CliError::SomeFailed`] after the last one.
pub fn run(args: &CoreArgs) -> Result<(), CliError> {
    let unwritable = |path: &Path| {
        let path = path.to_owned();
        move |source| CliError::Unwritten { path, source }
    };
    std::fs::create_dir_all(&args.out).map_err(unwritable(&args.out))?;
    let program = crate::own_program()?;
    let cuda = has_cuda(&args.gpu)?;
    let mut parts = parts(args.quick || !cuda, args.peer);
    if !cuda {
        say("uvm is left out: managed memory needs an NVIDIA GPU");
        parts.retain(|part| part.name != "uvm");
    }
    let (mut failed, mut reports) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for (number, part) in parts.iter().enumerate() {
        say(&format!(
            "[{}/{}] {:.0} s: gpuvm bench {}",
            number + 1,
            parts.len(),
            started.elapsed().as_secs_f64(),
            part.arguments
        ));
        match one(&program, args, part) {
            Ok(report) => reports.push((part.name, report)),
            Err(reason) => {
                say(&format!("      failed: {reason}"));
                // What is there is not whole.
                let _ = std::fs::remove_file(args.out.join(format!("{}.json", part.name)));
                failed.push((part.name, reason));
            }
        }
    }
    let text = combined(&reports, &failed);
    let path = args.out.join("core.txt");
    std::fs::write(&path, &text).map_err(unwritable(&path))?;
    stdout::print(&text)?;
    if failed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    Err(CliError::SomeFailed {
        failed: failed.len(),
        count: parts.len(),
        names: names.join(", "),
    })
}

/// The set, a line each: the name of a file, the arguments, and those besides in full, or in sizes that a simulated GPU can do.
const PARTS: &str = "\
limits | limits | --page-size 4KiB,16KiB,64KiB,2MiB | --page-size 4KiB,64KiB --data 2MiB
latency | latency --lanes 1,8,32 | --page-size 4KiB,16KiB,64KiB,2MiB --crowd 64 | --page-size 4KiB,64KiB --crowd 8 --faults 64
faults | faults --access warp,span --frames-share 1,1/4 | --page-size 4KiB,64KiB | --data 2MiB
faults-written | faults --access warp,span --frames-share 1/4 --writes 50,100 | --page-size 4KiB,64KiB | --data 2MiB
faults-orders | faults --access warp --frames-share 1/4 --pattern sequential,zipf |  | --data 2MiB
faults-lanes | faults --lanes-apart --frames-share 1 |  | --data 2MiB
faults-sparse | faults --access warp --frames-share 1 | --data 2GiB --sparse 8192 | --data 2MiB --sparse 64
uvm | uvm |  | --data 64MiB
hits | hits |  | --data 2MiB
bfs | bfs | --graph kron:22 | --graph kron:10
placement | placement --trace zipf,window,loop,first-word |  | --data 1MiB";
/// Those of two GPUs, of any size, with the neighbour as home.
const PARTS_OF_PEER: &str = "\
limits-peer | limits --only pages,latency --page-size 4KiB,64KiB
faults-peer | faults --access warp,span --frames-share 1,1/4 --page-size 4KiB,64KiB
faults-peer-written | faults --access warp,span --frames-share 1/4 --writes 100 --page-size 4KiB,64KiB";

/// The set, in full or in small.
fn parts(small: bool, peer: Option<u32>) -> Vec<Part> {
    let either = |full, quick| if small { quick } else { full };
    let cells = |line: &'static str| line.split('|').map(str::trim);
    let parts = PARTS.lines().map(|line| {
        let cells: Vec<&str> = cells(line).collect();
        let more = either(cells[2], cells[3]);
        (cells[0], format!("{} {more}", cells[1]))
    });
    let of_peer = peer.into_iter().flat_map(|peer| {
        let at_peer = PARTS_OF_PEER.lines().map(move |line| {
            let cells: Vec<&str> = cells(line).collect();
            (cells[0], format!("{} --home gpu:{peer}", cells[1]))
        });
        let sizes = either(
            "--data 16GiB --take-back 4GiB --borrow PEER:12GiB",
            "--data 16MiB --borrow PEER:16MiB",
        );
        let tier = format!("tier {}", sizes.replace("PEER", &peer.to_string()));
        at_peer.chain([("tier", tier)])
    });
    let parts = parts.chain(of_peer);
    parts.map(|(name, arguments)| Part { name, arguments }).collect()
}

/// Whether that choice of a GPU is an NVIDIA GPU here.
fn has_cuda(gpu: &str) -> Result<bool, CliError> {
    let gpu: Gpu = gpu.parse().map_err(CliError::BackEnd)?;
    let vm = Vm::builder().gpu(gpu).frame_memory(1 << 20).build();
    let vm = vm.map_err(CliError::BackEnd)?;
    Ok(vm.device().capabilities().compute_capability.is_some())
}

/// Runs one, its report into its file; why it failed.
fn one(program: &Path, args: &CoreArgs, part: &Part) -> Result<Report, String> {
    let json = args.out.join(format!("{}.json", part.name));
    let unwritable = |error: io::Error| format!("cannot write {}: {error}", json.display());
    let output = Output::create(&json).map_err(unwritable)?;
    // What was printed is looked at before the file has its name.
    let mut printed = output.handle().map_err(unwritable)?;
    let mut command = Command::new(program);
    command
        .arg0(crate::NAME)
        .arg("bench")
        .args(part.arguments.split_ascii_whitespace())
        .args(["--gpu", &args.gpu, "--repeat", &args.repeat.to_string(), "--json"])
        .stdin(Stdio::null())
        .stdout(output.handle().map_err(unwritable)?);
    let ended = run_for(&mut command, Duration::from_secs(args.limit));
    let status = ended.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    match status {
        Some(status) if status.success() => {}
        Some(status) => return Err(format!("it ended with {status}")),
        None => return Err(format!("it had not ended after {} s", args.limit)),
    }
    let mut text = String::new();
    let read = printed.rewind().and_then(|()| printed.read_to_string(&mut text));
    read.map_err(|error| format!("cannot read {}: {error}", json.display()))?;
    let report: Report =
        serde_json::from_str(&text).map_err(|error| format!("{} is not a report: {error}", json.display()))?;
    output.finish(|_| Ok(())).map_err(unwritable)?;
    Ok(report)
}

fn combined(reports: &[(&str, Report)], failed: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, report) in reports {
        text.push_str(&format!("## {name}\n{}\n{}\n\n", report.command, report.text()));
    }
    for (name, reason) in failed {
        text.push_str(&format!("## {name}\nFAILED: {reason}\n\n"));
    }
    text
}
