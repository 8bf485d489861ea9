//! How sessions, nodes and their threads end, and what is left of them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gpuvm_memory_node::protocol::Reason;
use gpuvm_memory_node::{
    Backing, CompletionStatus, Grant, GrantAccess, MemoryNode, NodeClient, NodeError, NodeEvent, ServeOptions,
};

use crate::common::{MIB, SOON, client, device, eventually, joined, named, node, options, pattern, read_at, status};

/// Not a test of its own: what the tests run in processes that they kill.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("GPUVM_TEST_CHILD_OF") else {
        return;
    };
    let client = NodeClient::connect(&address, &named("child")).unwrap();
    let grant = client.grant(2 * MIB, GrantAccess::ReadWrite).unwrap();
    grant.write(0, &[3; 100]).unwrap();
    let own = joined(&client);
    println!("\nchild is ready");
    std::thread::sleep(SOON * 3);
    drop((own, grant));
}

/// Kills its process when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child_of(address: &str) -> Killed {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ends::child_process", "--nocapture"])
        .env("GPUVM_TEST_CHILD_OF", address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let child = Killed(child);
    let ready = lines.map_while(Result::ok).any(|line| line == "child is ready");
    assert!(ready, "the child ended before it was ready");
    child
}

#[test]
fn a_killed_client_loses_its_grants() {
    let Some(device) = device() else { return };
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let (node, address) = node(ServeOptions {
        on_event: Some(Arc::new(move |event: &NodeEvent| {
            sink.lock().unwrap().push(event.clone())
        })),
        ..options(&device)
    });
    let child = child_of(&address);
    eventually("its queue pair joins", || node.metrics().queue_pairs == 1);
    let metrics = node.metrics();
    assert_eq!((metrics.clients, metrics.grants), (1, 1));
    assert_eq!(metrics.free_bytes, 14 * MIB);
    drop(child);
    eventually("the grant comes back", || node.metrics().free_bytes == 16 * MIB);
    let metrics = node.stop();
    assert_eq!(
        (
            metrics.clients,
            metrics.grants,
            metrics.queue_pairs,
            metrics.granted_bytes
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (
            metrics.losses_total,
            metrics.goodbyes_total,
            metrics.grants_revoked_total
        ),
        (1, 0, 1)
    );
    let events = events.lock().unwrap();
    assert!(
        matches!(&events[0], NodeEvent::Joined { name, .. } if name == "child"),
        "{events:?}"
    );
    assert!(
        matches!(&events[1], NodeEvent::Left { name, grants: 1, bytes, .. } if name == "child" && *bytes == 2 * MIB),
        "{events:?}"
    );
}

#[test]
fn a_goodbye_leaves_nothing_behind() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    for round in 1..=3 {
        let client = client(&address);
        let grant = client.grant(MIB, GrantAccess::ReadWrite).unwrap();
        let own = joined(&client);
        // The client may know of it before the node has counted it.
        eventually("its queue pair joins", || node.metrics().queue_pairs == 1);
        // Everything holds its session: the order does not matter.
        drop(client);
        drop(grant);
        drop(own);
        eventually("it leaves", || node.metrics().goodbyes_total == round);
    }
    let metrics = node.metrics();
    assert_eq!((metrics.clients, metrics.queue_pairs, metrics.losses_total), (0, 0, 0));
    assert_eq!(metrics.free_bytes, 16 * MIB);
}

#[test]
fn clients_of_a_node_that_stops_are_told() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    let client = client(&address);
    let grant = client.grant(MIB, GrantAccess::ReadWrite).unwrap();
    let own = joined(&client);
    assert!(!own.link.is_over());
    let metrics = node.stop();
    assert_eq!((metrics.clients, metrics.free_bytes), (0, 16 * MIB));
    eventually("the client is told", || client.failure().is_some());
    assert_eq!(client.failure().as_deref(), Some("the node was stopped"));
    assert!(own.link.is_over());
    let text = grant.write(0, &[1]).unwrap_err().to_string();
    assert_eq!(
        text,
        format!("the session with the memory node {address} is over: the node was stopped")
    );
    assert!(client.grant(4096, GrantAccess::ReadWrite).is_err());
    assert!(client.connect_queue(&own.queue).is_err());
    let lost = status(&own.queue, read_at(&grant, 0), 64);
    assert!(lost != CompletionStatus::SUCCESS, "nothing answers any more");
    drop((own, grant, client));
    let nobody = NodeClient::connect(&address, &named("late"));
    match nobody {
        Err(NodeError::Unreachable { why, .. }) => assert!(why.starts_with("nothing listens at that port"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_session_with_a_node_that_was_started_again_has_nothing_of_the_one_before() {
    let Some(device) = device() else { return };
    let (first, address) = node(options(&device));
    let client = client(&address);
    let grant = client.grant(MIB, GrantAccess::ReadWrite).unwrap();
    grant.write(0, &pattern(3, 4096)).unwrap();
    first.stop();
    eventually("the client is told", || client.failure().is_some());
    let go = AtomicBool::new(false);
    match client.connect_again(&go) {
        Err(NodeError::Unreachable { why, .. }) => assert!(why.starts_with("nothing listens at that port"), "{why}"),
        other => panic!("{other:?}"),
    }

    let (second, _) = node(ServeOptions {
        bind: address.parse().unwrap(),
        ..options(&device)
    });
    let again = client.connect_again(&go).unwrap();
    assert_eq!((again.address(), again.device()), (client.address(), client.device()));
    assert!(client.failure().is_some() && again.failure().is_none());
    assert!(grant.read(0, &mut [0; 64]).is_err(), "what was granted before is gone");
    let fresh = again.grant(MIB, GrantAccess::ReadWrite).unwrap();
    let mut found = vec![1; 4096];
    fresh.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    let own = joined(&again);
    assert_eq!(status(&own.queue, read_at(&fresh, 0), 64), CompletionStatus::SUCCESS);
    drop((own, fresh, grant, client, again));
    eventually("the client leaves", || second.metrics().goodbyes_total == 1);

    // One that asks for a secret.
    let open = NodeClient::connect(&address, &named("without a secret")).unwrap();
    second.stop();
    eventually("the client is told", || open.failure().is_some());
    let (_closed, _) = node(ServeOptions {
        bind: address.parse().unwrap(),
        secret: Some("open sesame".to_owned()),
        ..options(&device)
    });
    match open.connect_again(&go) {
        Err(NodeError::Refused { refusal, .. }) => assert_eq!(refusal.reason, Reason::SecretNeeded),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_session_that_nobody_wants_any_more_is_given_up_at_once() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    let client = client(&address);
    // Set before the first wait, each of which may take the whole timeout without it.
    let since = Instant::now();
    let given_up = client.connect_again(&AtomicBool::new(true));
    assert!(matches!(given_up, Err(NodeError::Cancelled { .. })), "{given_up:?}");
    assert!(since.elapsed() < SOON / 4, "{:?}", since.elapsed());
    assert!(
        client.failure().is_none() && client.ping().is_ok(),
        "this session goes on"
    );
    drop(client);
    eventually("nothing is left", || node.metrics().clients == 0);
    node.stop();
}

#[test]
fn a_port_in_use_and_devices_that_are_not_there_are_named() {
    let Some(device) = device() else { return };
    let (_node, address) = node(options(&device));
    let again = ServeOptions {
        bind: address.parse().unwrap(),
        ..options(&device)
    };
    let text = MemoryNode::start(again).unwrap_err().to_string();
    assert!(text.contains("another program listens at that port"), "{text}");
    let text = MemoryNode::start(options("no_such_device")).unwrap_err().to_string();
    assert!(
        text.starts_with("there is no RDMA device no_such_device; this machine has "),
        "{text}"
    );
    let elsewhere = ServeOptions {
        bind: "192.0.2.1:7471".parse().unwrap(),
        ..options(&device)
    };
    assert!(matches!(MemoryNode::start(elsewhere), Err(NodeError::Listen { .. })));
}

#[test]
fn files_serve_as_memory() {
    let Some(device) = device() else { return };
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("pool");
    let (node, address) = node(ServeOptions {
        memory: Backing::File(path.clone(), 4 * MIB),
        ..options(&device)
    });
    let client = client(&address);
    let grant = client.grant(4 * MIB, GrantAccess::ReadWrite).unwrap();
    let data = pattern(8, 4 << 20);
    grant.write(0, &data).unwrap();
    assert!(
        std::fs::read(&path).unwrap() == data,
        "the file holds what the client wrote"
    );
    drop((grant, client));
    node.stop();
}

#[test]
fn threads_end_with_their_owner() {
    let Some(device) = device() else { return };
    // By name: other tests run at the same time, under other names.
    let name = "threads-test";
    let (node, address) = node(options(&device));
    let client = NodeClient::connect(&address, &named(name)).unwrap();
    let grants: Vec<Grant> = (0..4)
        .map(|_| client.grant(4096, GrantAccess::ReadWrite).unwrap())
        .collect();
    let copies: Vec<_> = grants
        .into_iter()
        .enumerate()
        .map(|(seed, grant)| {
            std::thread::spawn(move || {
                for round in 0..20 {
                    let data = pattern((seed * 20 + round) as u8, 4096);
                    grant.write(0, &data).unwrap();
                    let mut seen = vec![0; 4096];
                    grant.read(0, &mut seen).unwrap();
                    assert!(seen == data);
                }
            })
        })
        .collect();
    for copy in copies {
        copy.join().unwrap();
    }
    drop(client);
    eventually("the client leaves", || node.metrics().goodbyes_total == 1);
    assert_eq!(node.stop().free_bytes, 16 * MIB);
}
