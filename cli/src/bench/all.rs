//! All benchmarks, each in a process of its own: what one does to the GPU does not reach the next.

use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::args::AllArgs;
use crate::bench::report::Report;
use crate::error::CliError;
use crate::output::{Output, run_for};
use crate::stdout;

/// A benchmark of the set: its file's name and its arguments.
struct Part {
    name: &'static str,
    arguments: String,
}

/// Runs all of them.
///
/// # Errors
/// A folder that cannot be written, [`CliError::SomeFailed`] after the last one.
pub fn run(args: &AllArgs) -> Result<(), CliError> {
    let unwritable = |path: &Path| {
        let path = path.to_owned();
        move |source| CliError::Unwritten { path, source }
    };
    std::fs::create_dir_all(&args.out).map_err(unwritable(&args.out))?;
    let program = crate::own_program()?;
    let cuda = super::has_cuda(&args.gpu)?;
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
    let path = args.out.join("all.txt");
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

/// The set, in full or in sizes that a simulated GPU can do.
fn parts(small: bool, peer: Option<u32>) -> Vec<Part> {
    let part = |name, full: &str, quick: &str| Part {
        name,
        arguments: if small { quick } else { full }.to_owned(),
    };
    let mut parts = vec![
        part(
            "limits",
            "limits --page-size 4KiB,16KiB,64KiB,2MiB",
            "limits --page-size 4KiB,64KiB --data 2MiB",
        ),
        part(
            "latency",
            "latency --lanes 1,8,32 --page-size 4KiB,16KiB,64KiB,2MiB --crowd 64",
            "latency --lanes 1,8,32 --page-size 4KiB,64KiB --crowd 8 --faults 64",
        ),
        part(
            "faults",
            "faults --access warp,span --frames-share 1,1/4 --page-size 4KiB,64KiB",
            "faults --access warp,span --frames-share 1,1/4 --data 2MiB",
        ),
        part(
            "faults-written",
            "faults --access warp,span --frames-share 1/4 --writes 50,100 --page-size 4KiB,64KiB",
            "faults --access warp,span --frames-share 1/4 --writes 50,100 --data 2MiB",
        ),
        part(
            "faults-orders",
            "faults --access warp --frames-share 1/4 --pattern sequential,zipf",
            "faults --access warp --frames-share 1/4 --pattern sequential,zipf --data 2MiB",
        ),
        part(
            "faults-lanes",
            "faults --lanes-apart --frames-share 1",
            "faults --lanes-apart --frames-share 1 --data 2MiB",
        ),
        part(
            "faults-sparse",
            "faults --access warp --frames-share 1 --data 2GiB --sparse 8192",
            "faults --access warp --frames-share 1 --data 2MiB --sparse 64",
        ),
        part("uvm", "uvm", "uvm --data 64MiB"),
        part("hits", "hits", "hits --data 2MiB"),
        part("bfs", "bfs --graph kron:22", "bfs --graph kron:10"),
        part(
            "placement",
            "placement --trace zipf,window,loop,first-word",
            "placement --trace zipf,window,loop,first-word --data 1MiB",
        ),
    ];
    parts.extend(peer.into_iter().flat_map(|peer| parts_of_peer(small, peer)));
    parts
}

/// Those of two GPUs.
fn parts_of_peer(small: bool, peer: u32) -> impl Iterator<Item = Part> {
    let more = [
        ("limits-peer", "limits --only pages,latency --page-size 4KiB,64KiB"),
        (
            "faults-peer",
            "faults --access warp,span --frames-share 1,1/4 --page-size 4KiB,64KiB",
        ),
        (
            "faults-peer-written",
            "faults --access warp,span --frames-share 1/4 --writes 100 --page-size 4KiB,64KiB",
        ),
    ];
    let at_peer = more.map(|(name, arguments)| Part {
        name,
        arguments: format!("{arguments} --home gpu:{peer}"),
    });
    let sizes = match small {
        true => format!("--data 16MiB --borrow {peer}:16MiB"),
        false => format!("--data 16GiB --take-back 4GiB --borrow {peer}:12GiB"),
    };
    let tier = Part {
        name: "tier",
        arguments: format!("tier {sizes}"),
    };
    at_peer.into_iter().chain([tier])
}

/// Runs one, its report into its file; why it failed.
fn one(program: &Path, args: &AllArgs, part: &Part) -> Result<Report, String> {
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
        serde_json::from_str(&text).map_err(|error| format!("{} is no report: {error}", json.display()))?;
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

/// Progress; a closed standard error is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
