//! `gpuvm exec`, with a driver that a test has built: which functions are served, and that a program behaves as without it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::{finish, says};

/// A folder with a stand-in for the driver, and programs.
struct Machine(TempDir);

fn compile(arguments: &[&str]) {
    let built = Command::new("cc").args(arguments).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

impl Machine {
    /// With a driver that has no memory of a GPU at the host's addresses.
    fn new() -> Self {
        Self::with(&[])
    }

    /// With one that has.
    fn with_memory() -> Self {
        Self::with(&["-DRESIDENT"])
    }

    fn with(of_driver: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = |name: &str| format!("{}/tests/command/exec/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let driver = place("libcuda.so.1");
        let soname = "-Wl,-soname,libcuda.so.1";
        let shared = ["-O1", "-shared", "-fPIC", soname, &source("driver"), "-o", &driver];
        compile(&[&shared[..], of_driver].concat());
        // Functions without a prototype, as programs call them that find them by name.
        let plain = ["-std=gnu11", "-O1", "-w", &source("program"), "-o"];
        compile(&[&plain[..], &[&place("by_name"), "-ldl"]].concat());
        compile(&[&plain[..], &[&place("linked"), "-DLINKED", &driver]].concat());
        if !of_driver.is_empty() {
            for program in ["rounds", "order"] {
                compile(&["-O1", &source(program), "-o", &place(program), &driver, "-lpthread"]);
            }
        }
        Self(folder)
    }

    /// What a program says as it is, and under `gpuvm exec`, which has to be the same; and what that says besides.
    fn as_ever(&self, options: &[&str], argument: &str) -> (String, String, Vec<String>) {
        let program = self.0.path().join("order");
        let mut plain = Command::new(&program);
        plain.arg(argument);
        let ((status, said, err), _) = self.run(plain);
        assert_eq!((status, &*err), (0, ""), "{argument}: {said}");
        let ((status, out, err), log) = self.exec(options, &program, argument);
        assert_eq!((status, &*out), (0, &*said), "{argument}: {err} {log:?}");
        (said, err, log)
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    /// Runs a command, and gives its status, its output and errors, and what the driver was called for.
    fn run(&self, mut command: Command) -> ((i32, String, String), Vec<String>) {
        std::fs::write(self.log(), "").unwrap();
        let mut paths = self.0.path().as_os_str().to_owned();
        if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
            paths.push(":");
            paths.push(others);
        }
        command.env("LD_LIBRARY_PATH", paths).env("DRIVER_LOG", self.log());
        let result = finish(command);
        let log = std::fs::read_to_string(self.log()).unwrap();
        (result, log.lines().map(str::to_owned).collect())
    }

    fn exec(&self, options: &[&str], program: &Path, argument: &str) -> ((i32, String, String), Vec<String>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
        command.arg("exec").args(options).arg(program).arg(argument);
        self.run(command)
    }
}

#[test]
fn a_program_behaves_as_without_it_however_it_finds_the_driver() {
    let machine = Machine::new();
    let sum = (0..1_i64 << 20).map(|value| value + 2).sum::<i64>();
    let said = format!("sum {sum}, other 42\nlast 1048577, set 7\nthe program's own handler\n");
    for (program, argument) in [("linked", "-"), ("by_name", "dlsym"), ("by_name", "address")] {
        let program = machine.0.path().join(program);
        let mut plain = Command::new(&program);
        plain.arg(argument);
        let (result, log) = machine.run(plain);
        assert_eq!(result, (0, said.clone(), String::new()), "{argument}");
        assert_eq!(log.iter().filter(|call| *call == "cuMemAllocManaged").count(), 2);
        let ((status, out, err), log) = machine.exec(&[], &program, argument);
        assert_eq!((status, &*out), (0, &*said), "{argument}: {err}");
        // The stand-in is no driver that pages can be brought with.
        says(
            &err,
            &["gpuvm exec: nothing is paged any more: the GPU failed while opening GPU cuda:0"],
        );
        assert!(err.contains("gpuvm exec: launches of `add_one` at home: 2"), "{err}");
        let calls = |name: &str| log.iter().filter(|call| *call == name).count();
        // As it is: nothing is in it that has to be there once, and nothing looks pages up.
        assert_eq!(calls("cuModuleLoadData"), 1, "{argument}: {log:?}");
        assert_eq!(
            (calls("cuLaunchKernel"), calls("cuMemHostRegister_v2")),
            (2, 2),
            "{log:?}"
        );
        assert_eq!((calls("cuMemAllocManaged"), calls("cuMemFree_v2")), (0, 0), "{log:?}");
    }
}

/// What was copied, and what was launched, in order.
fn moved(log: &[String]) -> Vec<&str> {
    let is_of_it = |call: &&str| call.starts_with("to the ") || call.starts_with("cuLaunchKernel");
    log.iter().map(String::as_str).filter(is_of_it).collect()
}

const AS_WRITTEN: &str = "cuLaunchKernel as it was written";

#[test]
fn memory_that_the_gpu_holds_is_copied_where_the_host_asks_alone() {
    let machine = Machine::with_memory();
    let program = machine.0.path().join("rounds");
    let said = "first 4097, last 2\nwritten 103, beside it 3\ncopied 3 50, set 9 9\nagain 1, 0\n";
    let (result, _) = machine.run(Command::new(&program));
    assert_eq!(result, (0, said.to_owned(), String::new()));
    let ((status, out, err), log) = machine.exec(&["--verbose"], &program, "rounds");
    assert_eq!((status, &*out), (0, said), "{err}");
    assert!(
        err.contains(
            "gpuvm exec: launches of 1 kernels as they are: 3; 48 MiB of the GPU's memory held all managed memory"
        ),
        "{err}"
    );
    assert!(err.contains("gpuvm exec: copying to the GPU: 4 times"), "{err}");
    let (to_host, to_gpu) = ("to the host 64 KiB", "to the GPU 64 KiB");
    let expected = [
        // The parameters, and what the host has made; then the second launch reads its parameters.
        &[to_gpu, to_gpu, AS_WRITTEN, to_host, AS_WRITTEN][..],
        // Where the values are, the first and the last of them; one that is written; the parameters.
        &[to_host, to_host, to_host, to_host, to_gpu, AS_WRITTEN],
        // That one, and what is written before a copy on the GPU.
        &[to_host, to_host, to_gpu, to_host],
    ];
    assert_eq!(moved(&log), expected.concat());
    assert_eq!(
        log.iter()
            .filter(|call| *call == "cuModuleLoadData of rewritten text")
            .count(),
        1
    );
    // As on the program's way.
    let program = machine.0.path().join("linked");
    let mut plain = Command::new(&program);
    plain.arg("-");
    let (plain, _) = machine.run(plain);
    let ((status, out, err), log) = machine.exec(&[], &program, "-");
    assert_eq!((status, &*out), (0, &*plain.1), "{err}");
    let again = moved(&log)
        .windows(2)
        .filter(|two| *two == ["cuLaunchKernel"; 2])
        .count();
    assert_eq!(again, 1, "nothing comes between launches: {log:?}");
}

#[test]
fn memory_that_the_gpu_does_not_hold_leaves_it_as_it_was() {
    let machine = Machine::with_memory();
    let program = machine.0.path().join("rounds");
    let said = "sum 549758435391, written 71\n";
    let mut plain = Command::new(&program);
    plain.arg("large");
    assert_eq!(machine.run(plain).0, (0, said.to_owned(), String::new()));
    for options in [&["--frames", "48MiB"][..], &["--frames", "1MiB"]] {
        let ((status, out, err), log) = machine.exec(options, &program, "large");
        assert_eq!((status, &*out), (0, said), "{err}");
        says(&err, &["the GPU's memory does not hold all managed memory"]);
        // Nor does the stand-in page: the rest is at home.
        assert!(err.contains("gpuvm exec: launches of `add_one` at home"), "{err}");
        let calls = |name: &str| log.iter().filter(|call| *call == name).count();
        assert_eq!(calls("cuMemAddressFree"), 1, "{log:?}");
    }
}

#[test]
fn host_functions_on_streams_touch_managed_memory() {
    let machine = Machine::with_memory();
    let program = machine.0.path().join("rounds");
    let ((status, out, err), log) = machine.exec(&[], &program, "host");
    assert_eq!((status, &*out), (0, "behind it 21\nwaited for 220\n"), "{err} {log:?}");
    // A launch that waits for one keeps nothing that it needs.
    let mut full = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    full.args(["exec", "--quiet"])
        .arg(&program)
        .arg("host")
        .env("DRIVER_FULL", "1");
    let (result, log) = machine.run(full);
    assert_eq!(
        result,
        (0, "behind it 21\nwaited for 220\n".to_owned(), String::new()),
        "{log:?}"
    );
}

#[test]
fn host_functions_of_two_streams_wait_for_nothing_and_lose_nothing() {
    let machine = Machine::with_memory();
    let (said, ..) = machine.as_ever(&[], "beside");
    assert!(said.starts_with("beside it 20 2\nmeanwhile 3 8 1048575\n"), "{said}");
    machine.as_ever(&[], "threads");
}

#[test]
fn nobody_waits_for_a_host_function_with_what_its_faults_need() {
    let machine = Machine::with_memory();
    let (said, err, _) = machine.as_ever(&["--frames", "48MiB"], "leaves");
    assert_eq!(said, "left 21 5\n");
    assert!(
        err.contains("the GPU's memory does not hold all managed memory"),
        "{err}"
    );
    let (said, err, _) = machine.as_ever(&[], "elsewhere");
    assert_eq!(said, "elsewhere 20 1\n");
    assert!(
        err.contains("the program uses GPU 1, and managed memory lies in that of GPU 0"),
        "{err}"
    );
}

#[test]
fn a_reset_begins_anew() {
    let machine = Machine::with_memory();
    let (said, err, log) = machine.as_ever(&["--verbose"], "resets");
    assert_eq!(said, "anew 1\nagain 8\n");
    assert!(err.contains("launches of 1 kernels as they are: 2"), "{err}");
    assert_eq!(
        log.iter().filter(|call| *call == "cuMemAddressFree").count(),
        2,
        "{log:?}"
    );
}

#[test]
fn what_a_kernel_breaks_is_told_as_ever() {
    let machine = Machine::with_memory();
    let (said, err, _) = machine.as_ever(&[], "fault");
    assert!(
        said.contains("launch 700, wait 700, allocate 700, copy 700, free 700"),
        "{said}"
    );
    assert!(err.contains("CUDA error 700"), "{err}");
}

#[test]
fn a_capture_forbids_nothing_that_is_done() {
    let machine = Machine::with_memory();
    let (said, _, log) = machine.as_ever(&[], "captures");
    assert_eq!(said, "meanwhile 2 4\ngraph 510\n");
    let illegal: Vec<&String> = log.iter().filter(|call| call.starts_with("illegal")).collect();
    assert_eq!(illegal, [""; 0], "{log:?}");
}

#[test]
fn few_pieces_of_memory_do_and_none_are_told() {
    let machine = Machine::with_memory();
    let program = machine.0.path().join("order");
    let ((status, out, err), _) = machine.exec(&[], &program, "pieces");
    if status == 77 {
        eprintln!("vm.max_map_count is too large to be reached here");
        return;
    }
    assert_eq!((status, &*out), (0, "sum 514\n"), "{err}");
    // It ends by a signal.
    let mut none = Command::new("sh");
    none.args([
        "-c",
        "ulimit -c 0; \"$@\"; exit $?",
        "sh",
        env!("CARGO_BIN_EXE_gpuvm"),
        "exec",
    ]);
    none.arg(&program).arg("no-pieces");
    let ((status, out, err), _) = machine.run(none);
    assert_eq!((status, &*out), (128 + 6, ""), "{err}");
    assert!(err.contains("raise vm.max_map_count"), "{err}");
}

#[test]
fn what_the_host_leaves_behind_is_copied_before_a_launch_asks_for_it() {
    let machine = Machine::with_memory();
    let (_, _, log) = machine.as_ever(&["--verbose"], "ahead");
    let written = log.iter().position(|call| call == "cuCtxSynchronize").unwrap();
    let copied = |calls: &[String]| -> u64 {
        let kib = calls
            .iter()
            .filter_map(|call| call.strip_prefix("to the GPU ")?.strip_suffix(" KiB"));
        kib.map(|kib| kib.parse::<u64>().unwrap()).sum()
    };
    assert!(copied(&log[..written]) >= 60 << 10, "{log:?}");
    assert_eq!(
        copied(&log),
        (64 << 10) + 64,
        "what was written again is copied again: {log:?}"
    );
}

#[test]
fn what_cannot_be_run_is_said() {
    let machine = Machine::new();
    let ((status, out, err), _) = machine.exec(&[], Path::new("./missing"), "x");
    assert_eq!((status, &*out), (127, ""));
    assert!(err.contains("cannot run ./missing"), "{err}");
    let ((status, _, err), _) = machine.exec(&[], &machine.log(), "x");
    assert_eq!(status, 126, "{err}");
    for (options, message) in [
        (["--page-size", "3000"], "--page-size"),
        (["--frames", "many"], "--frames"),
        (["--registers", "8"], "--registers"),
        (["--unknown", "8"], "--unknown"),
    ] {
        let ((status, _, err), _) = machine.exec(&options, Path::new("true"), "x");
        assert_eq!(status, 2, "{err}");
        assert!(err.contains(message), "{err}");
    }
    let ((status, out, err), _) = machine.exec(&["--quiet"], &machine.0.path().join("by_name"), "dlsym");
    assert_eq!((status, &*err), (0, ""), "{out}");
}
