//! What `gpuvm serve` says of flags and machines that cannot serve; with `GPUVM_TEST_RDMA=rxe0`, how it serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::says;
use gpuvm_memory_node::{ClientOptions, GrantAccess, NodeClient};

fn serve(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.arg("serve").args(arguments.split_whitespace());
    command
}

/// Status and standard error of a program that must end by itself and print nothing on the standard output.
fn refusal(arguments: &str) -> (i32, String) {
    let output = serve(arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments}");
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap(), err)
}

#[test]
fn wrong_flags_end_with_status_2() {
    for (arguments, reason) in [
        ("", "--memory"),
        ("--memory lots", "invalid size 'lots'"),
        ("--memory 100", "at least one page"),
        ("--memory 1GiB --listen here", "--listen"),
        ("--memory 1GiB --allow 10.0.0.0/99", "is not a network"),
        ("--memory 1GiB --clients 0", "0 is not in 1..=65536"),
        ("--memory 1GiB --file x --huge-pages", "cannot be used with"),
        ("--memory 1GiB --metrics 9471", "--metrics"),
        ("--memory 1GiB --client-capacity 0", "at least one page"),
    ] {
        let (status, err) = refusal(arguments);
        assert_eq!(status, 2, "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (status, err) = refusal("--memory 1MiB --secret-file not/here");
    assert!(
        err.starts_with("error: cannot read the secret file not/here\n  caused by: No such file"),
        "{err}"
    );
    assert_eq!(status, 1);
    let empty = folder.path().join("secret");
    std::fs::write(&empty, "\n").unwrap();
    let (status, err) = refusal(&format!("--memory 1MiB --secret-file {}", empty.display()));
    assert!(err.ends_with("secret is empty; write the secret into it\n"), "{err}");
    assert_eq!(status, 1);
    // Neither this device nor perhaps any RDMA library is there.
    let (status, err) = refusal("--memory 1MiB --device no_such_device");
    let causes = [
        "there is no RDMA device no_such_device; this machine has ",
        "cannot be loaded; install it (Debian, Ubuntu: apt-get install librdmacm1 ibverbs-providers",
    ];
    assert!(
        err.starts_with("error: the memory node cannot serve\n  caused by: "),
        "{err}"
    );
    assert!(causes.iter().any(|cause| err.contains(cause)), "{err}");
    assert_eq!(status, 1);
}

/// A node that is killed when it is dropped.
struct Serving {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Serving {
    fn line(&mut self) -> String {
        self.lines.next().expect("another line").unwrap()
    }

    fn terminate(&mut self) -> i32 {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().expect("an exit status, not a signal");
            }
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serving(arguments: &str) -> Serving {
    let mut child = serve(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Serving { child, lines }
}

fn rdma_device() -> Option<String> {
    let device = std::env::var("GPUVM_TEST_RDMA").ok().filter(|name| !name.is_empty());
    if device.is_none() {
        eprintln!("skipped: GPUVM_TEST_RDMA names no RDMA device (for example rxe0)");
    }
    device
}

#[test]
fn a_node_serves_until_it_is_told_to_stop() {
    let Some(device) = rdma_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "open sesame\n").unwrap();
    let flags = format!(
        "--device {device} --memory 8MiB --listen 0.0.0.0:0 --client-capacity 4MiB --secret-file {} --metrics 127.0.0.1:0",
        secret.display()
    );
    let mut node = serving(&flags);
    let ready = node.line();
    let words: Vec<&str> = ready.split(' ').collect();
    assert_eq!(
        (words[0], words[1], words[2], words[3]),
        ("serving", "8", "MiB", "on"),
        "{ready}"
    );
    assert_eq!(words[5], format!("({device}),"), "{ready}");
    let (address, metrics) = (
        words[4],
        words[8].trim_start_matches("http://").trim_end_matches("/metrics"),
    );
    let options = |secret: &str| ClientOptions {
        secret: Some(secret.to_owned()),
        name: "tester".to_owned(),
        timeout: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    assert!(NodeClient::connect(address, &options("guess")).is_err());
    let line = node.line();
    assert!(
        line.starts_with("refused: ") && line.ends_with(": WrongSecret"),
        "{line}"
    );
    let client = NodeClient::connect(address, &options("open sesame")).unwrap();
    let line = node.line();
    assert!(line.starts_with("joined: 'tester' from "), "{line}");
    let grant = client.grant(1 << 20, GrantAccess::ReadWrite).unwrap();
    assert_eq!(client.free_bytes(), 3 << 20);

    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\ngpuvm_node_granted_bytes 1048576\n"), "{answer}");

    drop((grant, client));
    let line = node.line();
    assert!(
        line.starts_with("left: 'tester' from ") && line.contains(": goodbye; 0 grants"),
        "{line}"
    );
    assert_eq!(node.terminate(), 0);
    assert_eq!(
        node.line(),
        "stopped: 1 clients so far, 1 disconnected, 0 were lost; 1 grants, 0 of them taken back; 1 refusals"
    );
}

/// With a client that does not leave.
#[test]
fn a_node_tells_machines_what_happens() {
    let Some(device) = rdma_device() else { return };
    let mut node = serving(&format!("--device {device} --memory 1MiB --listen 0.0.0.0:0 --json"));
    let ready = node.line();
    let address = ready.split('"').skip_while(|&word| word != "address").nth(2).unwrap();
    let client = NodeClient::connect(address, &ClientOptions::default()).unwrap();
    let _grant = client.grant(4096, GrantAccess::ReadWrite).unwrap();
    assert!(node.line().contains("\"event\":\"joined\""));
    assert_eq!(node.terminate(), 0);
    assert!(node.line().contains("\"grants\":1"));
    says(&node.line(), &["\"event\":\"stopped\"", "\"grants_revoked\":1"]);
}
