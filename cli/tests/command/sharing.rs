//! `gpuvm bench tenants` on the simulated GPU, and the metrics of a program that runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::finish;

fn tenants(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command
        .args(["bench", "tenants"])
        .args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A port that nothing else takes meanwhile: below those that the system gives to who names none, and each process of a test tries others first.
fn free_port() -> u16 {
    let first = 10_000 + std::process::id() as u16 % 20_000;
    let mut ports = (first..30_000).chain(10_000..first);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("a free port")
}

#[test]
fn one_has_memory_for_a_while_beside_one_that_pages_and_metrics_tell_of_it() {
    let port = free_port();
    let mut command = tenants("--gpu sim --data 3MiB --frames 2MiB --burst 1MiB --bursts 2 --repeat 1 --json");
    command.env("GPUVM_METRICS", port.to_string());
    let asked = std::thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let mut answer = String::new();
            let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            if asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.contains("gpuvm_faults_total{")
            {
                return true;
            }
        }
        false
    });
    let (status, out, err) = finish(command);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(asked.join().unwrap());
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        assert!(row["ceiling"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["parameters"]["processes"], "1", "{row}");
    }
    assert_eq!(rows[0]["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let (status, _, err) = finish(tenants("--gpu sim --frames 1MiB --burst 1MiB"));
    assert!(
        status != 0 && err.contains("--burst must be at least a page and less than --frames"),
        "{err}"
    );
    let mut command = tenants("--gpu sim");
    command.env("GPUVM_METRICS", "everywhere");
    let (status, _, err) = finish(command);
    assert!(
        status != 0 && err.contains("GPUVM_METRICS") && err.contains("a port of 127.0.0.1"),
        "{err}"
    );
}
