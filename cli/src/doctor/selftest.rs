//! `gpuvm doctor --selftest`: the machine at work, step by step, over the same code as `gpuvm bench`.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use clap::Parser;
use gpuvm::Transport;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{Cli, Command, MachineArgs};
use crate::bench::args::Bench;
use crate::bench::machine::Machine;
use crate::bench::report::{Facts, Report};
use crate::bench::{measure, size};
use crate::doctor::args::DoctorArgs;
use crate::doctor::rdma::describe_port;
use crate::doctor::report::SCHEMA_VERSION;
use crate::doctor::view::{Flavour, View};
use crate::error::{CliError, chain};

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Frames of the first step.
const FRAMES: u64 = 256;
/// Pages of the steps that look at one thing each, on an NVIDIA GPU, whose many warps want a frame each, and on the
/// simulated one.
const FEW_PAGES: (u64, u64) = (65_536, 2048);
/// Random pages, on either.
const PAGES: (u64, u64) = (1_000_000, 8192);
/// Faults to time, on either.
const FAULTS: (u64, u64) = (2000, 500);

/// One step.
#[derive(Debug, Serialize)]
pub struct Step {
    /// What was tested.
    pub name: &'static str,
    /// Whether all of it was right.
    pub passed: bool,
    /// Seconds that it took.
    pub seconds: f64,
    /// What came of it, or what went wrong.
    pub said: String,
    /// The command that does the same.
    pub command: Option<String>,
    /// Figures.
    pub figures: Map<String, Value>,
}

/// What `gpuvm doctor --selftest --json` prints; docs/DOCTOR.md has the meaning of each field.
#[derive(Debug, Serialize)]
pub struct SelfTest {
    /// The schema's version.
    pub version: u32,
    /// Whether every step passed.
    pub passed: bool,
    /// The kernel's release.
    pub kernel: String,
    /// NVIDIA's kernel driver.
    pub driver: Option<String>,
    /// RDMA devices, without addresses.
    pub rdma: Vec<String>,
    /// GPU, transport, versions; `None` where the machine did not come up.
    pub machine: Option<Facts>,
    /// The steps that were done, in order; the last one may be the one that ended it.
    pub steps: Vec<Step>,
}

/// Tests. What goes wrong is in the report.
pub fn run(args: &DoctorArgs, view: &View) -> SelfTest {
    let mut test = SelfTest {
        version: SCHEMA_VERSION,
        passed: false,
        kernel: view.release.clone(),
        driver: view.driver.as_ref().map(|driver| {
            let flavour = match driver.flavour {
                Flavour::Open => "open",
                Flavour::Proprietary => "proprietary",
                Flavour::Unknown => "flavour unknown",
            };
            format!("{} ({flavour})", driver.version.as_deref().unwrap_or("version unknown"))
        }),
        rdma: view.rdma.iter().map(describe).collect(),
        machine: None,
        steps: Vec::new(),
    };
    test.steps(args);
    test.passed = test.steps.iter().all(|step| step.passed);
    test
}

/// A device without what would name it or its network.
fn describe(device: &gpuvm_nic::devices::RdmaDevice) -> String {
    let facts = [&device.model, &device.board, &device.firmware];
    let mut text = device.name.clone();
    for fact in facts.into_iter().flatten() {
        text.push_str(&format!(" {fact}"));
    }
    for port in &device.ports {
        text.push_str(&format!(", port {}: {}", port.number, describe_port(device, port)));
    }
    text
}

/// What a step found: words and figures.
type Outcome = Result<(String, Map<String, Value>), CliError>;

impl SelfTest {
    fn steps(&mut self, args: &DoctorArgs) {
        let mut transport = Transport::Auto;
        let mut cuda = false;
        let (mut pairs, mut proxied) = (0, 0);
        let options = args.bench_options();
        let machine = &mut self.machine;
        let up = step("bring-up and registration", None, || {
            let args = machine_args(&options)?;
            let opened = Machine::open(&args, PAGE_BYTES, FRAMES)?;
            transport = opened.vm.transport();
            cuda = opened.is_cuda();
            let facts = opened.facts(&args);
            let (said, figures) = came_up_as(&opened);
            let said = format!("{}, transport {transport}: {said}", facts.gpu);
            (pairs, proxied) = (opened.vm.queue_pairs(), opened.vm.proxied_queue_pairs());
            *machine = Some(facts);
            Ok((said, figures))
        });
        let came_up = up.passed;
        self.steps.push(up);
        if !came_up {
            return;
        }
        let pick = |(real, simulated): (u64, u64)| if cuda { real } else { simulated };
        let few = format!(
            "faults --pages {} --frames-share 1/4 --repeat 1 --no-ceilings",
            pick(FEW_PAGES)
        );
        self.bench("loopback READ", &options, &few, reads);
        let doorbells = self.steps.last().map(|step| step.figures.clone()).unwrap_or_default();
        self.steps.push(step("doorbell", None, || {
            rings(transport, (pairs, proxied), &doorbells)
        }));
        let writes = format!("{few} --access warp --writes 50");
        self.bench("loopback READ and WRITE", &options, &writes, reads);
        let pages = args.pages.unwrap_or(pick(PAGES));
        let random = format!("faults --pages {pages} --frames-share 1/4 --repeat 1 --no-ceilings");
        self.bench("random pages", &options, &random, reads);
        let faults = format!("latency --faults {}", pick(FAULTS));
        self.bench("latency of one fault", &options, &faults, latency);
    }

    fn bench(&mut self, name: &'static str, options: &[String], what: &str, told: fn(&Report) -> Outcome) {
        let command = format!("gpuvm bench {what} {}", options.join(" "));
        let done = step(name, Some(command.trim_end()), || {
            told(&measure(&parse(what, options)?)?)
        });
        self.steps.push(done);
    }

    /// For an issue.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut fact = |name: &str, value: &str| text.push_str(&format!("{name}: {value}\n"));
        fact("gpuvm", env!("CARGO_PKG_VERSION"));
        fact("Linux", &self.kernel);
        if let Some(driver) = &self.driver {
            fact("NVIDIA driver", driver);
        }
        if let Some(machine) = &self.machine {
            fact("GPU", &machine.gpu);
            fact("transport", &machine.transport);
            if let Some(version) = &machine.cuda_version {
                fact("CUDA", version);
            }
        }
        for device in &self.rdma {
            fact("RDMA", device);
        }
        text.push('\n');
        for step in &self.steps {
            let mark = if step.passed { "[pass]" } else { "[FAIL]" };
            text.push_str(&format!(
                "{mark} {} ({:.1} s): {}\n",
                step.name, step.seconds, step.said
            ));
            if let (false, Some(command)) = (step.passed, &step.command) {
                text.push_str(&format!("       again: RUST_LOG=gpuvm=debug {command}\n"));
            }
        }
        text.push_str(if self.passed { "\nall passed" } else { "\nFAILED" });
        text
    }
}

impl DoctorArgs {
    /// The options that were given, as the benchmarks spell them.
    fn bench_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            // One argument, whatever the value has in it.
            options.extend(value.map(|value| format!("--{name}={value}")));
        };
        option("gpu", self.gpu.map(|gpu| gpu.to_string()));
        option("transport", self.transport.map(|transport| transport.to_string()));
        for device in &self.rdma_device {
            option("rdma-device", Some(device.clone()));
        }
        option("rdma-port", self.rdma_port.map(|port| port.to_string()));
        option("gid-index", self.gid_index.map(|index| index.to_string()));
        option("rdma-mtu", self.rdma_mtu.map(|bytes| bytes.to_string()));
        option("queue-pairs", self.queue_pairs.map(|pairs| pairs.to_string()));
        options
    }
}

/// A benchmark with its defaults.
fn parse(what: &str, options: &[String]) -> Result<Bench, CliError> {
    let words = ["gpuvm", "bench"].into_iter().chain(what.split_ascii_whitespace());
    let parsed = Cli::try_parse_from(words.map(str::to_owned).chain(options.iter().cloned()));
    match parsed.map_err(|error| CliError::Options(error.to_string()))?.command {
        Command::Bench(bench) => Ok(bench),
        _ => Err(CliError::Options(format!("`{what}` is no benchmark"))),
    }
}

/// GPU, transport and queues, with the benchmarks' defaults.
fn machine_args(options: &[String]) -> Result<MachineArgs, CliError> {
    match parse("latency", options)? {
        Bench::Latency(args) => Ok(args.machine),
        _ => Err(CliError::Options("these are no options of a benchmark".to_owned())),
    }
}

fn step(name: &'static str, command: Option<&str>, work: impl FnOnce() -> Outcome) -> Step {
    let started = Instant::now();
    let outcome = work();
    let seconds = started.elapsed().as_secs_f64();
    let passed = outcome.is_ok();
    let (said, figures) = outcome.unwrap_or_else(|error| (chain(&error), Map::new()));
    Step {
        name,
        passed,
        seconds,
        said: redact(&said),
        command: command.map(redact),
        figures,
    }
}

/// Where the frames lie and how NICs reach them, and the queue pairs.
fn came_up_as(machine: &Machine) -> (String, Map<String, Value>) {
    let vm = &machine.vm;
    let (access, pairs, proxied) = (
        vm.frame_access().to_string(),
        vm.queue_pairs(),
        vm.proxied_queue_pairs(),
    );
    let nics: Vec<String> = vm.nics().into_iter().map(|nic| nic.name).collect();
    let said = match pairs {
        0 => format!("frames in {access}"),
        _ => format!("frames in {access}; {pairs} queue pairs on {}", nics.join(", ")),
    };
    let figures = json!({ "frames": access, "nics": nics, "queue_pairs": pairs, "proxied_queue_pairs": proxied });
    (said, figures.as_object().cloned().unwrap_or_default())
}

fn figure(figures: &Map<String, Value>, name: &str) -> f64 {
    figures.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// Pages that were fetched, and written where that was asked for; every one was compared, or it was an error.
fn reads(report: &Report) -> Outcome {
    let Some(row) = report.rows.first() else {
        let reasons: Vec<&str> = report.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
        return Err(CliError::Options(format!(
            "nothing could be measured: {}",
            reasons.join("; ")
        )));
    };
    let more = |name: &str| row.more.get(name).copied().unwrap_or(0.0);
    let mut figures = report.first.clone();
    figures.insert("verified".to_owned(), row.verified.into());
    figures.insert("written_back".to_owned(), more("written back").into());
    let said = format!(
        "{} {} verified, {} written back; {:.0} pages of {} a second, {:.3} GB/s; p50 {:.1} us, p99 {:.1} us under load",
        row.verified,
        row.verified_unit,
        more("written back"),
        figure(&figures, "pages_per_second"),
        size(PAGE_BYTES),
        more("GB/s"),
        figure(&figures, "fault_ns_p50") / 1e3,
        figure(&figures, "fault_ns_p99") / 1e3,
    );
    Ok((said, figures))
}

/// Who rang for the pages of a step with those figures, over so many queue pairs, of which a proxy serves so many.
fn rings(transport: Transport, (pairs, proxied): (u32, u32), figures: &Map<String, Value>) -> Outcome {
    let (doorbells, calls, pages) = (
        figure(figures, "doorbells"),
        figure(figures, "doorbell_calls"),
        figure(figures, "pages"),
    );
    let told = json!({
        "doorbells": doorbells, "doorbell_calls": calls, "queue_pairs": pairs, "proxied_queue_pairs": proxied,
    });
    let told = told.as_object().cloned().unwrap_or_default();
    if transport == Transport::Direct {
        return Ok(("transport direct has none".to_owned(), told));
    }
    if doorbells < 1.0 {
        return Err(CliError::Options(format!("no GPU thread rang for {pages} pages")));
    }
    let rung = format!("rung {doorbells} times by GPU threads for {pages} pages");
    let said = match proxied {
        0 if calls == 0.0 => format!("{rung}, by no processor"),
        0 => format!("{rung}; a proxy passed that on by {calls} calls"),
        _ => format!("{rung}; a proxy passes that on for {proxied} of {pairs} queue pairs, by {calls} calls"),
    };
    Ok((said, told))
}

fn latency(report: &Report) -> Outcome {
    let figures = report.first.clone();
    let us = |name: &str| figure(&figures, name) / 1e3;
    let said = format!(
        "{} faults, one at a time: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us",
        figure(&figures, "faults"),
        us("ns_p50"),
        us("ns_p99"),
        us("ns_p999"),
    );
    Ok((said, figures))
}

/// Without addresses of networks and names of devices that only this machine has.
fn redact(text: &str) -> String {
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || ".:-[]%".contains(sign);
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let word = &rest[start..];
        let end = word.find(|sign| !is_part(sign)).unwrap_or(word.len());
        out.push_str(&rest[..start]);
        // The sentence's own signs are not the address's.
        let bare = word[..end].trim_end_matches(['.', ':', '-']);
        out.push_str(if is_private(bare) { "<redacted>" } else { bare });
        out.push_str(&word[bare.len()..end]);
        rest = &word[end..];
    }
    out.push_str(rest);
    out
}

fn is_private(word: &str) -> bool {
    // GUIDs, GIDs and hardware addresses; a PCI address has two colons.
    let hex_groups = || {
        let groups: Vec<&str> = word.split(':').collect();
        let hex = |group: &&str| group.bytes().all(|digit| digit.is_ascii_hexdigit());
        groups.len() >= 4 && groups.iter().all(hex)
    };
    let uuid = || word.contains("GPU-") || word.contains("MIG-");
    word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok() || uuid() || hex_groups()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_machine_is_taken_out() {
        for (text, clean) in [
            ("no route to 10.9.0.1:7471.", "no route to <redacted>."),
            ("GID fe80::a288:c2ff:fe12:3456, port 1", "GID <redacted>, port 1"),
            ("node [fd00::1]:7471: gone", "node <redacted>: gone"),
            ("guid a088:c203:0012:3456", "guid <redacted>"),
            (
                "--gpu cuda:GPU-01234567-89ab-cdef-0123-456789abcdef",
                "--gpu <redacted>",
            ),
            (
                "a088c203:12 at 0000:3b:00.0 of mlx5_0",
                "a088c203:12 at 0000:3b:00.0 of mlx5_0",
            ),
            (
                "Linux 6.8.0-45-generic, 4.5 us: ok",
                "Linux 6.8.0-45-generic, 4.5 us: ok",
            ),
            ("", ""),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn a_doorbell_that_nobody_rang_fails() {
        let told = |doorbells: u64, calls: u64| {
            let value = json!({ "doorbells": doorbells, "doorbell_calls": calls, "pages": 10 });
            value.as_object().cloned().expect("an object")
        };
        assert!(rings(Transport::Soft, (4, 0), &told(0, 0)).is_err());
        assert!(rings(Transport::Direct, (0, 0), &told(0, 0)).is_ok());
        let (said, _) = rings(Transport::Mlx5, (4, 0), &told(3, 0)).expect("rung");
        assert!(said.contains("by no processor"), "{said}");
        let (said, _) = rings(Transport::Mlx5, (4, 3), &told(3, 0)).expect("rung");
        assert!(
            said.contains("3 of 4 queue pairs") && !said.contains("no processor"),
            "{said}"
        );
        let (said, _) = rings(Transport::Rxe, (4, 4), &told(3, 2)).expect("rung");
        assert!(said.contains("2 calls"), "{said}");
    }

    #[test]
    fn a_report_without_rows_is_no_pass() {
        let mut report = Report::new("faults", Facts::default());
        report.skip("span by 4 warps", "too few frames");
        let error = reads(&report).expect_err("nothing was verified").to_string();
        assert!(error.contains("too few frames"), "{error}");
    }
}
