//! `gpuvm doctor --selftest`: the machine at work, step by step, over the same code as `gpuvm bench`.

use std::time::Instant;

use clap::Parser;
use gpuvm::TransportKind;
use gpuvm_nic::devices::{DeviceKind, PortState};
use gpuvm_nic::with_causes;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{Cli, Command, MachineArgs};
use crate::bench::args::Bench;
use crate::bench::machine::Machine;
use crate::bench::report::{Facts, Report};
use crate::bench::{measure, size};
use crate::doctor::args::DoctorArgs;
use crate::doctor::platform::doorbell_obstacle;
use crate::doctor::rdma::describe_port;
use crate::doctor::redact::redact;
use crate::doctor::report::SCHEMA_VERSION;
use crate::doctor::view::{Flavour, View};
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

/// What takes a NIC, as it is listed where there is none to take.
const NIC_STEPS: [&str; 4] = [
    "registration with a ConnectX",
    "loopback READ over a ConnectX",
    "doorbell of a ConnectX",
    "loopback READ and WRITE over a ConnectX",
];

/// The exit status where nothing failed, and the NIC's steps were left out.
const NOT_RUN_STATUS: u8 = 3;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// All of it was right.
    Passed,
    /// All data was right, and a fallback served.
    Limited,
    /// It was not done.
    NotRun,
    /// Something was wrong.
    Failed,
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Self::Passed => "[pass]",
            Self::Limited => "[limited]",
            Self::NotRun => "[not run]",
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
    /// Whether every step passed, and none was left out.
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
    test.steps(args, view);
    test.passed = test.steps.iter().all(|step| step.passed);
    test.exit_status = test.status();
    test
}

/// What moves the pages where that is left to the self-test: the ConnectX, if one has a port that is up. Else why its steps
/// cannot be run.
fn nic_transport(args: &DoctorArgs, view: &View) -> Result<TransportKind, String> {
    let wanted = |name: &String| args.rdma_device.is_empty() || args.rdma_device.contains(name);
    let number = args.path.path().port;
    let mut connectx = view.rdma.iter().filter(|device| device.kind == DeviceKind::Mlx5);
    if connectx.clone().next().is_none() {
        return Err("this machine has no ConnectX".to_owned());
    }
    let is_up = connectx.any(|device| {
        let mut ports = device.ports.iter();
        wanted(&device.name) && ports.any(|port| port.number == number && port.state == PortState::Active)
    });
    match is_up {
        true => Ok(TransportKind::Mlx5),
        false => Err(format!(
            "port {number} of no ConnectX that was asked for is active: gpuvm doctor says what it lacks"
        )),
    }
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
    fn steps(&mut self, args: &DoctorArgs, view: &View) {
        let asked = match &args.transport {
            Some(asked) => Ok(asked.name()),
            None => nic_transport(args, view).map(TransportKind::name),
        };
        self.machine_steps(args, view, asked.as_ref().ok().copied());
        let reason = asked.err();
        self.steps
            .extend(reason.iter().flat_map(|why| NIC_STEPS.map(|name| not_run(name, why))));
    }

    /// The steps over `transport`; without one over what a `Vm` takes by itself.
    fn machine_steps(&mut self, args: &DoctorArgs, view: &View, transport: Option<&str>) {
        let options = args.bench_options(transport);
        let mut transport = TransportKind::Soft;
        let mut cuda = false;
        let (mut pairs, mut proxied) = (0, 0);
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
            rings(transport, (pairs, proxied), &doorbells, doorbell_obstacle(view))
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
            let seconds = match step.mark {
                Mark::NotRun => String::new(),
                _ => format!(" ({:.1} s)", step.seconds),
            };
            text.push_str(&format!("{} {}{seconds}: {}\n", step.mark.text(), step.name, step.said));
            if let (Mark::Failed, Some(command)) = (step.mark, &step.command) {
                text.push_str(&format!("       again: RUST_LOG=gpuvm=debug {command}\n"));
            }
        }
        text.push_str(match self.worst() {
            Mark::Passed => "\nall passed",
            Mark::Limited => "\nall data was right, with limits: see above",
            Mark::NotRun => "\nwhat was run passed; NOTHING was tested on a ConnectX",
            Mark::Failed => "\nFAILED",
        });
        text
    }

    /// What is to be said of all steps together.
    fn worst(&self) -> Mark {
        let of = [Mark::Failed, Mark::NotRun, Mark::Limited].into_iter();
        let mut of = of.filter(|mark| self.steps.iter().any(|step| step.mark == *mark));
        of.next().unwrap_or(Mark::Passed)
    }

    fn status(&self) -> u8 {
        match self.worst() {
            Mark::Passed | Mark::Limited => 0,
            Mark::Failed => 1,
            Mark::NotRun => NOT_RUN_STATUS,
        }
    }
}

impl DoctorArgs {
    /// The options that were given, as the benchmarks spell them, over that transport.
    fn bench_options(&self, transport: Option<&str>) -> Vec<String> {
        let mut options = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            // One argument, whatever the value has in it.
            options.extend(value.map(|value| format!("--{name}={value}")));
        };
        option("gpu", self.gpu.as_ref().map(|gpu| gpu.to_string()));
        option("transport", transport.map(str::to_owned));
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

fn not_run(name: &'static str, why: &str) -> Step {
    Step {
        name,
        passed: false,
        mark: Mark::NotRun,
        seconds: 0.0,
        said: why.to_owned(),
        command: None,
        figures: Map::new(),
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

/// Who rang for the pages of a step with those figures, over so many queue pairs, of which a proxy serves so many, with what
/// is known against the GPU's ringing by itself.
fn rings(
    transport: TransportKind,
    (pairs, proxied): (u32, u32),
    figures: &Map<String, Value>,
    obstacle: Option<String>,
) -> Outcome {
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
        let why = obstacle
            .unwrap_or_else(|| "the driver refused to map the register, and RUST_LOG=gpuvm=warn says how".into());
        found
            .said
            .push_str(&format!("; the GPU does not reach the NIC's register: {why}"));
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
    use crate::doctor::tests::machines::{Fixture, NIC_WAY};

    #[test]
    fn a_doorbell_that_nobody_rang_fails() {
        let told = |doorbells: u64, calls: u64| {
            let value = json!({ "doorbells": doorbells, "doorbell_calls": calls, "pages": 10 });
            value.as_object().cloned().expect("an object")
        };
        let rung = |transport, pairs, told| rings(transport, pairs, &told, None);
        assert!(rung(TransportKind::Soft, (4, 0), told(0, 0)).is_err());
        assert!(rung(TransportKind::Direct, (0, 0), told(0, 0)).is_ok());
        let found = rung(TransportKind::Mlx5, (4, 0), told(3, 0)).expect("rung");
        assert!(found.said.contains("by no processor") && !found.limited, "{found:?}");
        let found = rung(TransportKind::Rxe, (4, 4), told(3, 2)).expect("rung");
        assert!(found.said.contains("2 calls") && !found.limited, "{found:?}");
    }

    #[test]
    fn a_connectx_that_a_proxy_rings_is_limited_and_says_why() {
        let told = json!({ "doorbells": 3, "doorbell_calls": 0, "pages": 10 });
        let told = told.as_object().expect("an object");
        for proxied in [1, 4] {
            let why = "the IOMMU translates";
            let found = rings(TransportKind::Mlx5, (4, proxied), told, Some(why.to_owned())).expect("rung");
            let of_all = format!("{proxied} of 4 queue pairs");
            assert!(
                found.limited && found.said.contains(&of_all) && found.said.contains(why),
                "{found:?}"
            );
            assert!(!found.said.contains("by no processor"), "{found:?}");
            let found = rings(TransportKind::Mlx5, (4, proxied), told, None).expect("rung");
            assert!(found.limited && found.said.contains("refused to map"), "{found:?}");
            let step = step("doorbell", None, || Ok(found));
            assert_eq!((step.mark, step.passed), (Mark::Limited, true));
        }
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
    fn a_connectx_that_is_up_is_what_is_tested() {
        let server = Fixture::server();
        let of = |fixture: &Fixture, words: &str| nic_transport(&args(words), &fixture.view());
        assert_eq!(of(&server, ""), Ok(TransportKind::Mlx5));
        assert_eq!(of(&server, "--rdma-device mlx5_0"), Ok(TransportKind::Mlx5));
        for other in ["--rdma-device rxe0", "--rdma-port 2"] {
            assert!(of(&server, other).is_err(), "{other}");
        }
        let port = format!("sys/devices/{NIC_WAY}/infiniband/mlx5_0/ports/1");
        server.tree.file(&format!("{port}/state"), "1: DOWN\n");
        let why = of(&server, "").expect_err("it is down");
        assert!(why.contains("port 1"), "{why}");
        assert_eq!(
            of(&Fixture::laptop(), ""),
            Err("this machine has no ConnectX".to_owned())
        );
    }

    #[test]
    fn steps_that_were_not_run_are_no_pass() {
        let fixture = Fixture::laptop();
        let words = "--gpu cuda:99";
        let test = run(&args(words), &fixture.view());
        let left_out: Vec<_> = test.steps.iter().filter(|step| step.mark == Mark::NotRun).collect();
        assert_eq!(left_out.len(), NIC_STEPS.len());
        assert!(!test.passed && test.exit_status == 1, "no such GPU");
        let mut test = test;
        test.steps.retain(|step| step.mark == Mark::NotRun);
        assert_eq!(test.status(), NOT_RUN_STATUS);
        let text = test.text();
        assert!(
            !text.contains("all passed") && text.contains("[not run] doorbell of a ConnectX: "),
            "{text}"
        );
        test.steps.clear();
        assert_eq!(test.status(), 0);
    }

    #[test]
    fn every_option_of_the_path_reaches_the_benchmarks() {
        let words =
            "--rdma-queues devx --rdma-port 2 --gid-index 3 --rdma-mtu 1024 --service-level 5 --traffic-class 96";
        let options = args(words).bench_options(Some("mlx5"));
        let parsed = machine_args(&options).expect("options of a benchmark");
        assert_eq!(parsed.rdma_queues, Some(gpuvm::QueueMaking::Devx));
        let path = parsed.path.path();
        assert_eq!((path.port, path.gid_index, path.mtu), (2, Some(3), Some(1024)));
        assert_eq!((path.service_level, path.traffic_class), (5, 96));
        assert_eq!(args("").bench_options(None), Vec::<String>::new());
    }

    #[test]
    fn a_report_without_rows_is_no_pass() {
        let mut report = Report::new("faults", Facts::default());
        report.skip("span by 4 warps", "too few frames");
        let error = reads(&report).expect_err("nothing was verified").to_string();
        assert!(error.contains("too few frames"), "{error}");
    }
}
