//! `gpuvm doctor --selftest`: the machine at work, step by step, over the same code as `gpuvm bench`.

use std::time::Instant;

use clap::Parser;
use gpuvm::TransportKind;
use gpuvm_nic::with_causes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{Cli, Command, MachineArgs};
use crate::bench::Bench;
use crate::bench::driver::facts;
use crate::bench::machine::Machine;
use crate::bench::report::{Facts, Report};
use crate::bench::{measure, size};
use crate::doctor::args::DoctorArgs;
use crate::doctor::rdma::describe;
use crate::doctor::redact::redact;
use crate::doctor::report::SCHEMA_VERSION;
use crate::doctor::view::View;
use crate::error::CliError;

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

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// All of it was right.
    Passed,
    /// All data was right, and a fallback served.
    Limited,
    /// Something was wrong.
    Failed,
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Self::Passed => "[pass]",
            Self::Limited => "[limited]",
            Self::Failed => "[FAIL]",
        }
    }
}

/// One step.
#[derive(Debug, Serialize)]
pub struct Step {
    /// What was tested.
    pub name: &'static str,
    /// Whether all data was right.
    pub passed: bool,
    /// How it ended.
    pub mark: Mark,
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
    /// The exit status.
    pub exit_status: u8,
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
        exit_status: 1,
        kernel: view.release.clone(),
        driver: view.driver.as_ref().map(|driver| {
            let version = driver.version.as_deref().unwrap_or("version unknown");
            format!("{version} ({} kernel modules)", driver.flavour())
        }),
        rdma: view.rdma.iter().map(describe).collect(),
        machine: None,
        steps: Vec::new(),
    };
    test.steps(args);
    test.passed = test.steps.iter().all(|step| step.passed);
    test.exit_status = u8::from(!test.passed);
    test
}

/// What a step found: words and figures.
#[derive(Debug)]
struct Found {
    said: String,
    figures: Map<String, Value>,
    limited: bool,
}

impl Found {
    fn new(said: String, figures: Map<String, Value>) -> Self {
        Self {
            said,
            figures,
            limited: false,
        }
    }
}

type Outcome = Result<Found, CliError>;

impl SelfTest {
    fn steps(&mut self, args: &DoctorArgs) {
        let options = args.bench_options();
        let mut transport = TransportKind::Soft;
        let mut cuda = false;
        let (mut pairs, mut proxied) = (0, 0);
        let machine = &mut self.machine;
        let up = step("bring-up and registration", None, || {
            let args = machine_args(&options)?;
            let opened = Machine::open(&args, PAGE_BYTES, FRAMES)?;
            transport = opened.vm.transport();
            cuda = opened.is_cuda();
            let facts = facts(&opened, &args);
            let (said, figures) = came_up_as(&opened);
            let said = format!("{}, transport {transport}: {said}", facts.gpu);
            (pairs, proxied) = (opened.vm.queue_pairs(), opened.vm.proxied_queue_pairs());
            *machine = Some(facts);
            Ok(Found::new(said, figures))
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
            let (mark, name, seconds, said) = (step.mark.text(), step.name, step.seconds, &step.said);
            text.push_str(&format!("{mark} {name} ({seconds:.1} s): {said}\n"));
            if let (Mark::Failed, Some(command)) = (step.mark, &step.command) {
                text.push_str(&format!("       again: RUST_LOG=gpuvm=debug {command}\n"));
            }
        }
        text.push_str(match self.steps.iter().any(|step| step.mark == Mark::Limited) {
            _ if !self.passed => "\nFAILED",
            true => "\nall data was right, with limits: see above",
            false => "\nall passed",
        });
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
        option("gpu", self.gpu.as_ref().map(|gpu| gpu.to_string()));
        option(
            "transport",
            self.transport.as_ref().map(|transport| transport.name().to_owned()),
        );
        option("nic-engine", self.nic_engine.map(|engine| engine.to_string()));
        for device in &self.rdma_device {
            option("rdma-device", Some(device.clone()));
        }
        option("rdma-queues", self.rdma_queues.map(|making| making.to_string()));
        for (name, value) in self.path.options() {
            option(name, value);
        }
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
        _ => Err(CliError::Options(format!("`{what}` is not a benchmark"))),
    }
}

/// GPU, transport and queues, with the benchmarks' defaults.
fn machine_args(options: &[String]) -> Result<MachineArgs, CliError> {
    match parse("latency", options)? {
        Bench::Latency(args) => Ok(args.machine),
        _ => Err(CliError::Options("these are not options of a benchmark".to_owned())),
    }
}

fn step(name: &'static str, command: Option<&str>, work: impl FnOnce() -> Outcome) -> Step {
    let started = Instant::now();
    let outcome = work();
    let seconds = started.elapsed().as_secs_f64();
    let mark = match &outcome {
        Ok(found) if found.limited => Mark::Limited,
        Ok(_) => Mark::Passed,
        Err(_) => Mark::Failed,
    };
    let found = outcome.unwrap_or_else(|error| Found::new(with_causes(&error), Map::new()));
    Step {
        name,
        passed: mark != Mark::Failed,
        mark,
        seconds,
        said: redact(&found.said),
        command: command.map(redact),
        figures: found.figures,
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
    Ok(Found::new(said, figures))
}

/// Who rang for the pages of a step with those figures, over this many queue pairs, of which a proxy serves this many.
fn rings(transport: TransportKind, (pairs, proxied): (u32, u32), figures: &Map<String, Value>) -> Outcome {
    let (doorbells, calls, pages) = (
        figure(figures, "doorbells"),
        figure(figures, "doorbell_calls"),
        figure(figures, "pages"),
    );
    let told = json!({
        "doorbells": doorbells, "doorbell_calls": calls, "queue_pairs": pairs, "proxied_queue_pairs": proxied,
    });
    let told = told.as_object().cloned().unwrap_or_default();
    if transport == TransportKind::Direct {
        return Ok(Found::new("transport direct has none".to_owned(), told));
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
    let mut found = Found::new(said, told);
    // SoftRoCE takes a system call; a ConnectX is there to be rung by the GPU.
    if transport == TransportKind::Mlx5 && proxied > 0 {
        found.said += "; the driver refused to map the NIC's register for the GPU: RUST_LOG=gpuvm=warn says why";
        found.limited = true;
    }
    Ok(found)
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
    Ok(Found::new(said, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rang_is_told() {
        let rung = |transport, proxied, doorbells: u64, calls: u64| {
            let told = json!({ "doorbells": doorbells, "doorbell_calls": calls, "pages": 10 });
            rings(transport, (4, proxied), told.as_object().expect("an object"))
        };
        assert!(rung(TransportKind::Soft, 0, 0, 0).is_err(), "no thread rang");
        assert!(rung(TransportKind::Direct, 0, 0, 0).is_ok());
        let found = rung(TransportKind::Mlx5, 0, 3, 0).expect("rung");
        assert!(found.said.contains("by no processor") && !found.limited, "{found:?}");
        let found = rung(TransportKind::Rxe, 4, 3, 2).expect("rung");
        assert!(found.said.contains("2 calls") && !found.limited, "{found:?}");
        let found = rung(TransportKind::Mlx5, 1, 3, 0).expect("rung");
        assert!(found.limited && found.said.contains("1 of 4 queue pairs"), "{found:?}");
        assert!(
            found.said.contains("refused to map") && !found.said.contains("by no processor"),
            "{found:?}"
        );
        let step = step("doorbell", None, || Ok(found));
        assert_eq!((step.mark, step.passed), (Mark::Limited, true));
    }

    /// As `gpuvm doctor --selftest` with those.
    fn args(words: &str) -> DoctorArgs {
        let words = ["gpuvm", "doctor", "--selftest"]
            .into_iter()
            .chain(words.split_ascii_whitespace());
        match Cli::try_parse_from(words).expect("options").command {
            Command::Doctor(args) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn every_option_of_the_path_reaches_the_benchmarks() {
        let words = "--transport mlx5 --rdma-queues devx --rdma-port 2 --gid-index 3 --rdma-mtu 1024 --service-level 5 \
                     --traffic-class 96";
        let options = args(words).bench_options();
        let parsed = machine_args(&options).expect("options of a benchmark");
        assert_eq!(parsed.rdma_queues, Some(gpuvm::QueueMaking::Devx));
        let path = parsed.path.options().map(|(_, value)| value.unwrap());
        assert_eq!(path, ["2", "3", "1024", "5", "96"]);
        assert_eq!(args("").bench_options(), Vec::<String>::new());
    }

    #[test]
    fn a_report_without_rows_is_no_pass() {
        let mut report = Report::new("faults", Facts::default());
        report.skip("span by 4 warps", "too few frames");
        let error = reads(&report).expect_err("nothing was verified").to_string();
        assert!(error.contains("too few frames"), "{error}");
    }
}
