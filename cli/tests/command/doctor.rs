//! `gpuvm doctor` on this machine, whatever it has, and its self-test on the simulated GPU.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{finish, says};

/// `gpuvm doctor` with arguments separated by blanks.
fn doctor(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.arg("doctor").args(arguments.split_ascii_whitespace());
    command
        .current_dir(Path::new("/"))
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    finish(command)
}

/// The doctor on a machine that seems to have a ConnectX: the fake stands in for the libraries.
fn doctor_of_fake(arguments: &str, variables: &[(&str, &str)]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let built = std::env::current_exe().unwrap().with_file_name("libfake_rdma.so");
    assert!(built.is_file(), "{} was not built", built.display());
    for library in ["libibverbs.so.1", "libmlx5.so.1"] {
        std::os::unix::fs::symlink(&built, folder.path().join(library)).unwrap();
    }
    let mut paths = folder.path().as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
        paths.push(":");
        paths.push(others);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.arg("doctor").args(arguments.split_ascii_whitespace());
    command.env("LD_LIBRARY_PATH", paths).envs(variables.iter().copied());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

fn json(arguments: &str) -> (i32, Value) {
    let (status, out, err) = doctor(&format!("{arguments} --json"));
    assert_eq!(err, "", "{out}");
    assert_eq!(out.lines().count(), 1, "{out}");
    (status, serde_json::from_str(&out).unwrap())
}

#[test]
fn this_machine_is_described_in_both_forms() {
    let (status, report) = json("");
    assert_eq!(report["version"], 1);
    assert_eq!(report["exit_status"], status);
    let modes = report["modes"].as_array().unwrap();
    assert_eq!(
        modes.iter().filter(|mode| mode["chosen"] == true).count(),
        1,
        "{modes:?}"
    );
    // The tests themselves need a C++ compiler, so that the simulated GPU runs here.
    let simulated = |mode: &&Value| mode["gpu"] == "simulated" && mode["transport"] == "soft";
    assert_eq!(modes.iter().find(simulated).unwrap()["works"], true);
    let hardware = modes
        .iter()
        .any(|mode| mode["works"] == true && mode["hardware"] == true);
    assert_eq!(status, if hardware { 0 } else { 3 });
    let findings = report["findings"].as_array().unwrap();
    let compiler = findings.iter().find(|finding| finding["id"] == "compiler").unwrap();
    assert_eq!(compiler["state"], "ok", "{compiler}");

    let (text_status, text, err) = doctor("");
    assert_eq!((text_status, err.as_str()), (status, ""));
    for finding in findings {
        let title = finding["title"].as_str().unwrap();
        let state = finding["state"].as_str().unwrap();
        let line = text.lines().find(|line| line.contains(&format!("{title}: ")));
        assert!(line.unwrap().starts_with(&format!("[{state}]")), "{line:?}");
        let fixed = finding["fix"].as_str().is_none_or(|fix| text.contains(fix));
        assert!(fixed, "{finding}");
    }
    assert!(text.contains("Vm::builder() chooses --gpu"), "{text}");
}

#[test]
fn the_self_test_passes_on_the_simulated_gpu() {
    for transport in ["soft", "direct"] {
        let (status, report) = json(&format!("--selftest --gpu sim --transport {transport} --pages 256"));
        assert_eq!((status, &report["passed"]), (0, &Value::Bool(true)), "{report}");
        let steps = report["steps"].as_array().unwrap();
        let step = |name: &str| {
            let found = steps.iter().find(|step| step["name"] == name);
            found.unwrap_or_else(|| panic!("no step {name}: {report}"))
        };
        assert_eq!(report["machine"]["transport"], transport);
        assert!(
            step("random pages")["figures"]["verified"].as_u64().unwrap() >= 256,
            "{report}"
        );
        assert!(
            step("random pages")["figures"]["bytes_per_second"].as_f64().unwrap() > 0.0,
            "{report}"
        );
        let both = &step("loopback READ and WRITE")["figures"];
        assert!(both["written_back"].as_f64().unwrap() > 0.0, "{both}");
        let latency = &step("latency of one fault")["figures"];
        assert!(
            latency["ns_p99"].as_f64().unwrap() >= latency["ns_p50"].as_f64().unwrap(),
            "{latency}"
        );
        let doorbells = step("doorbell")["figures"]["doorbells"].as_f64().unwrap();
        assert_eq!(doorbells > 0.0, transport == "soft", "{report}");
    }
    // More than a GiB of data.
    let (status, text, err) = doctor("--selftest --gpu sim --transport auto --pages 300000");
    assert_eq!((status, err.as_str()), (0, ""), "{text}");
    assert!(
        text.ends_with("all passed\n") && text.contains("transport: soft") && text.contains("300000 pages verified"),
        "{text}"
    );
}

#[test]
fn the_self_test_passes_over_mlx5() {
    let breaches = tempfile::NamedTempFile::new().unwrap();
    let log = breaches.path().to_str().unwrap();
    let arguments = "--selftest --gpu sim --transport mlx5 --rdma-device mlx5_0 --pages 256 --json";
    let (status, out, err) = doctor_of_fake(arguments, &[("FAKE_RDMA_LOG", log)]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["machine"]["transport"], "mlx5");
    let first = &report["steps"][0]["figures"];
    assert_eq!(first["nics"], serde_json::json!(["mlx5_0"]), "{report}");
    assert!(first["queue_pairs"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(
        first["proxied_queue_pairs"], 0,
        "the simulated GPU reaches the register"
    );
    assert!(
        report["steps"][2]["said"]
            .as_str()
            .unwrap()
            .ends_with("by no processor"),
        "{report}"
    );
    let calls = std::fs::read_to_string(log).unwrap();
    says(&calls, &["ibv_reg_mr", "mlx5dv_init_obj"]);
    assert!(!calls.to_lowercase().contains("breach"), "{calls}");
}

#[test]
fn a_self_test_names_the_call_that_failed() {
    let arguments = "--selftest --gpu sim --transport mlx5";
    for (variable, value, words) in [
        ("FAKE_RDMA_PORT", "down", ["port 1, which is down", "ip link set"]),
        (
            "FAKE_RDMA_FAIL",
            "ibv_create_cq_ex:12",
            ["ibv_create_cq_ex on mlx5_0", "ulimit -l unlimited"],
        ),
    ] {
        let (status, text, err) = doctor_of_fake(arguments, &[(variable, value)]);
        assert_eq!((status, err.as_str()), (1, ""), "{text}");
        assert!(text.contains("[FAIL] bring-up"), "{text}");
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}

#[test]
fn a_self_test_that_cannot_run_fails_and_says_why() {
    let (status, text, err) = doctor("--selftest --gpu sim --transport rxe --rdma-device no-such-rxe");
    assert_eq!((status, err.as_str()), (1, ""), "{text}");
    says(&text, &["[FAIL] bring-up", "no-such-rxe"]);
    assert!(text.ends_with("FAILED\n"), "{text}");
    let (status, report) = json("--selftest --gpu cuda:99 --transport direct");
    assert_eq!((status, &report["passed"]), (1, &Value::Bool(false)));
    assert_eq!(report["steps"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn wrong_flags_end_with_status_2() {
    for (arguments, reason) in [
        ("--no-such-flag", "--no-such-flag"),
        ("here", "unexpected argument 'here'"),
        ("--pages 100", "--selftest"),
        ("--transport soft", "--selftest"),
        ("--rdma-device mlx5_0", "--selftest"),
        ("--rdma-queues devx", "--selftest"),
        ("--service-level 1", "--selftest"),
        ("--traffic-class 32", "--selftest"),
        ("--rdma-port 2", "--selftest"),
        ("--selftest --pages 0", "0 is not in 64.."),
        ("--selftest --pages 4294967296", "is not in 64.."),
        ("--selftest --transport tcp", "expected auto, soft, rxe, mlx5 or direct"),
        ("--selftest --gpu rocm", "expected auto, sim, cuda:N"),
        ("--selftest --queue-pairs 0", "0 is not in 1..=1024"),
    ] {
        let (status, out, err) = doctor(arguments);
        assert_eq!((status, out.as_str()), (2, ""), "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}
