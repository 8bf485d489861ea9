//! A node and its clients over a real RDMA device, looped back: run where `GPUVM_TEST_RDMA` names one (`rxe0`).

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, atomic::AtomicBool};
use std::time::{Duration, Instant};

use gpuvm_memory_node::protocol::Reason;
use gpuvm_memory_node::{
    Backing, ClientOptions, CompletionStatus, Grant, GrantAccess, HostQueue, JoinQueue, MemoryNode, NodeClient,
    NodeError, NodeEvent, QueueLink, Request, ServeOptions,
};

const MIB: u64 = 1 << 20;
/// Longest time in which something must have happened; emulated machines are slow.
const SOON: Duration = Duration::from_secs(20);

/// The device, or nothing with a word about it.
fn device() -> Option<String> {
    let device = std::env::var("GPUVM_TEST_RDMA").ok().filter(|name| !name.is_empty());
    if device.is_none() {
        eprintln!("skipped: GPUVM_TEST_RDMA names no RDMA device (for example rxe0)");
    }
    device
}

fn options(device: &str) -> ServeOptions {
    ServeOptions {
        device: Some(device.to_owned()),
        bind: "0.0.0.0:0".parse().unwrap(),
        keep_alive: Duration::from_millis(200),
        ..ServeOptions::new(Backing::Plain(16 * MIB))
    }
}

fn node(options: ServeOptions) -> (MemoryNode, String) {
    let node = MemoryNode::start(options).unwrap();
    let address = node.local_addr().to_string();
    (node, address)
}

fn named(name: &str) -> ClientOptions {
    ClientOptions {
        name: name.to_owned(),
        timeout: SOON,
        ..ClientOptions::default()
    }
}

fn client(address: &str) -> Arc<NodeClient> {
    NodeClient::connect(address, &named("test")).unwrap()
}

/// Waits until it holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| {
            (at as u8)
                .wrapping_mul(31)
                .wrapping_add((at >> 12) as u8)
                .wrapping_add(seed)
        })
        .collect()
}

/// A queue pair of its own that has joined a session.
struct Joined {
    // Before the queue: the node is told before the queue pair goes.
    link: QueueLink,
    queue: HostQueue,
}

fn joined(client: &Arc<NodeClient>) -> Joined {
    let queue = HostQueue::open(client.device(), 16, 1 << 16).unwrap();
    let link = client.connect_queue(&queue).unwrap();
    assert_eq!(link.number(), queue.number());
    Joined { link, queue }
}

/// The status of one request over the first `bytes` bytes of the buffer.
fn status(queue: &HostQueue, request: Request, bytes: u32) -> CompletionStatus {
    queue.post(7, request, 0, bytes).unwrap();
    let end = Instant::now() + SOON;
    loop {
        if let Some(completion) = queue.poll().first() {
            assert_eq!(completion.id, 7);
            return completion.status;
        }
        assert!(Instant::now() < end, "no completion of {request:?}");
    }
}

fn read_at(grant: &Grant, offset: u64) -> Request {
    Request::Read {
        remote: grant.address() + offset,
        rkey: grant.rkey(),
    }
}

fn write_at(grant: &Grant, offset: u64) -> Request {
    Request::Write {
        remote: grant.address() + offset,
        rkey: grant.rkey(),
    }
}

#[test]
fn data_of_two_clients_are_kept_apart() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    let clients = [client(&address), client(&address)];
    assert_eq!(clients[0].device(), device);
    let grants: Vec<Grant> = clients
        .iter()
        .map(|client| client.grant(3 * MIB + 1, GrantAccess::ReadWrite).unwrap())
        .collect();
    let mut seen = vec![1; (3 * MIB) as usize];
    for (grant, seed) in grants.iter().zip([1, 2]) {
        assert_eq!(grant.bytes(), 3 * MIB + 4096);
        grant.read(4096, &mut seen).unwrap();
        assert!(seen.iter().all(|&byte| byte == 0), "a grant begins as zeroes");
        grant.write(5, &pattern(seed, seen.len())).unwrap();
    }
    for (grant, seed) in grants.iter().zip([1, 2]) {
        grant.read(5, &mut seen).unwrap();
        assert!(seen == pattern(seed, seen.len()), "what was written is read");
    }
    // Now by queue pairs of the clients' own.
    for ((client, grant), seed) in clients.iter().zip(&grants).zip([3, 4]) {
        let mut own = joined(client);
        assert!(own.queue.fill(0, &pattern(seed, 5000)));
        assert_eq!(
            status(&own.queue, write_at(grant, MIB), 5000),
            CompletionStatus::SUCCESS
        );
    }
    for ((client, grant), seed) in clients.iter().zip(&grants).zip([3, 4]) {
        let own = joined(client);
        assert!(own.link.outstanding_reads_max() > 1);
        assert_eq!(status(&own.queue, read_at(grant, MIB), 5000), CompletionStatus::SUCCESS);
        let mut out = vec![0; 5000];
        assert!(own.queue.copy(0, &mut out));
        assert!(out == pattern(seed, 5000));
        grant.read(MIB, &mut out).unwrap();
        assert!(out == pattern(seed, 5000));
    }
    let metrics = node.metrics();
    assert_eq!(
        (metrics.clients, metrics.grants, metrics.granted_bytes),
        (2, 2, 6 * MIB + 8192)
    );
    drop(grants);
    assert_eq!(node.metrics().free_bytes, 16 * MIB);
    drop(clients);
    eventually("both leave", || node.metrics().clients == 0);
    let metrics = node.stop();
    assert_eq!(
        (metrics.goodbyes_total, metrics.losses_total, metrics.grants_total),
        (2, 0, 2)
    );
}

#[test]
fn memory_that_was_used_is_zeroed_for_the_next_one() {
    let Some(device) = device() else { return };
    let (_node, address) = node(options(&device));
    let client = client(&address);
    let grant = client.grant(16 * MIB, GrantAccess::ReadWrite).unwrap();
    grant.write(0, &vec![0xaa; 16 << 20]).unwrap();
    drop(grant);
    let grant = client.grant(16 * MIB, GrantAccess::ReadWrite).unwrap();
    let mut seen = vec![1; 16 << 20];
    grant.read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 0));
}

#[test]
fn foreign_stale_and_out_of_bounds_accesses_are_refused() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    let (mine, other) = (client(&address), client(&address));
    let grant = mine.grant(8192, GrantAccess::ReadWrite).unwrap();
    let foreign = other.grant(8192, GrantAccess::ReadWrite).unwrap();
    foreign.write(0, &[9; 8192]).unwrap();
    let refused = |request, why: &str| {
        let mut own = joined(&mine);
        assert!(own.queue.fill(0, &[5; 4096]));
        assert_eq!(
            status(&own.queue, request, 4096),
            CompletionStatus::REMOTE_ACCESS,
            "{why}"
        );
        // The error has ended this queue pair; the session goes on, and a reset one joins again.
        drop(own.link);
        own.queue.reset().unwrap();
        own.link = mine.connect_queue(&own.queue).unwrap();
        assert_eq!(
            status(&own.queue, write_at(&grant, 0), 4096),
            CompletionStatus::SUCCESS,
            "after {why}"
        );
    };
    refused(read_at(&foreign, 0), "READ with another client's key");
    refused(write_at(&foreign, 0), "WRITE with another client's key");
    refused(read_at(&grant, 4097), "READ beyond the end");
    refused(write_at(&grant, 8192), "WRITE behind the end");
    let before = Request::Read {
        remote: grant.address() - 4096,
        rkey: grant.rkey(),
    };
    refused(before, "READ before the beginning");
    let gone = mine.grant(8192, GrantAccess::ReadWrite).unwrap();
    let (stale_read, stale_write) = (read_at(&gone, 0), write_at(&gone, 0));
    drop(gone);
    refused(stale_read, "READ with a key that was given back");
    refused(stale_write, "WRITE with a key that was given back");
    // The memory of the last grant belongs to somebody else now; the old key does not reach it.
    let next = other.grant(8192, GrantAccess::ReadWrite).unwrap();
    refused(stale_write, "WRITE into memory that was granted anew");
    for grant in [&foreign, &next] {
        let mut seen = [1; 8192];
        grant.read(0, &mut seen).unwrap();
        assert!(!seen.contains(&5), "nothing was written to another client's memory");
    }
    assert_eq!(mine.failure(), None);
    assert_eq!(node.metrics().clients, 2);
}

#[test]
fn a_queue_pair_in_error_begins_anew_over_its_connection() {
    let Some(device) = device() else { return };
    let (_node, address) = node(options(&device));
    let client = client(&address);
    let grant = client.grant(MIB, GrantAccess::ReadWrite).unwrap();
    let data = pattern(3, 4096);
    grant.write(8192, &data).unwrap();
    let neighbour = joined(&client);
    let Joined { link, queue } = joined(&client);
    for _ in 0..3 {
        assert_eq!(status(&queue, read_at(&grant, 8192), 4096), CompletionStatus::SUCCESS);
        let foreign = Request::Read {
            remote: grant.address(),
            rkey: grant.rkey() ^ 0xff00,
        };
        assert_eq!(status(&queue, foreign, 64), CompletionStatus::REMOTE_ACCESS);
        assert_eq!(status(&queue, read_at(&grant, 0), 64), CompletionStatus::FLUSHED);
        queue.reset().unwrap();
        link.rejoin(&queue).unwrap();
        assert_eq!(status(&queue, read_at(&grant, 8192), 4096), CompletionStatus::SUCCESS);
        let mut found = vec![0; 4096];
        assert!(queue.copy(0, &mut found));
        assert_eq!(found, data);
        assert!(!link.is_over());
        let beside = status(&neighbour.queue, read_at(&grant, 0), 64);
        assert_eq!(beside, CompletionStatus::SUCCESS);
    }
}

#[test]
fn a_sealed_grant_can_be_read_only() {
    let Some(device) = device() else { return };
    let (_node, address) = node(options(&device));
    let client = client(&address);
    let grant = client.grant(MIB, GrantAccess::ReadOnly).unwrap();
    let data = pattern(6, MIB as usize);
    grant.write(0, &data).unwrap();
    let filling = write_at(&grant, 0);
    grant.seal().unwrap();
    for (request, why) in [(write_at(&grant, 0), "the new key"), (filling, "the key from before")] {
        let own = joined(&client);
        assert_eq!(
            status(&own.queue, request, 64),
            CompletionStatus::REMOTE_ACCESS,
            "{why}"
        );
    }
    assert!(matches!(grant.write(0, &[1]), Err(NodeError::Sealed)));
    assert!(matches!(
        grant.seal(),
        Err(NodeError::GrantRefused { refusal, .. }) if refusal.reason == Reason::NotReadOnly
    ));
    let mut seen = vec![0; data.len()];
    grant.read(0, &mut seen).unwrap();
    assert!(seen == data);
    let writable = client.grant(4096, GrantAccess::ReadWrite).unwrap();
    assert!(writable.seal().is_err());
}

fn refusal<T: std::fmt::Debug>(result: Result<T, NodeError>) -> (Reason, u64, String) {
    match result {
        Err(error @ NodeError::Refused { refusal, .. }) => (refusal.reason, refusal.detail, error.to_string()),
        Err(error @ NodeError::NotGranted { refusal, .. }) => (refusal.reason, refusal.detail, error.to_string()),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_secret_is_asked_for_by_both_sides() {
    let Some(device) = device() else { return };
    let secret = |text: &str| Some(text.to_owned());
    let (node, address) = node(ServeOptions {
        secret: secret("open sesame"),
        ..options(&device)
    });
    let with = |secret| {
        NodeClient::connect(
            &address,
            &ClientOptions {
                secret,
                ..named("test")
            },
        )
    };
    let client = with(secret("open sesame")).unwrap();
    client
        .grant(4096, GrantAccess::ReadWrite)
        .unwrap()
        .write(0, &[1])
        .unwrap();
    joined(&client);
    let (reason, _, text) = refusal(with(secret("open barley")));
    assert_eq!(reason, Reason::WrongSecret);
    assert_eq!(text, format!("the memory node {address} refused: the secret is wrong"));
    assert_eq!(refusal(with(None)).0, Reason::SecretNeeded);
    assert_eq!(node.metrics().refusals_total.get("WrongSecret"), Some(&1));
    // A node that knows no secret is not the one that a client with a secret looks for.
    let (_node, address) = self::node(options(&device));
    let options = ClientOptions {
        secret: secret("open sesame"),
        ..named("test")
    };
    assert!(matches!(
        NodeClient::connect(&address, &options),
        Err(NodeError::NodeNotProved { .. })
    ));
}

#[test]
fn the_allow_list_is_kept() {
    let Some(device) = device() else { return };
    let (closed, address) = node(ServeOptions {
        allow: vec!["192.0.2.0/24".parse().unwrap()],
        ..options(&device)
    });
    let (reason, _, text) = refusal(NodeClient::connect(&address, &named("test")));
    assert_eq!(reason, Reason::NotAllowed);
    assert!(
        text.ends_with("this machine's address is not on its allow-list"),
        "{text}"
    );
    assert_eq!(closed.stop().refusals_total.get("NotAllowed"), Some(&1));
    let (_open, address) = node(ServeOptions {
        allow: vec!["192.0.2.0/24".parse().unwrap(), "0.0.0.0/0".parse().unwrap()],
        ..options(&device)
    });
    client(&address);
}

#[test]
fn capacities_are_kept() {
    let Some(device) = device() else { return };
    let (_node, address) = node(ServeOptions {
        capacity_per_client: Some(10 * MIB),
        clients_max: 2,
        grants_per_client_max: 2,
        queues_per_client_max: 1,
        ..options(&device)
    });
    let (first, second) = (client(&address), client(&address));
    let grant = |client: &Arc<NodeClient>, bytes| client.grant(bytes, GrantAccess::ReadWrite);
    assert_eq!((first.capacity_bytes(), first.free_bytes()), (10 * MIB, 10 * MIB));
    let (reason, left, text) = refusal(grant(&first, 10 * MIB + 1));
    assert_eq!((reason, left), (Reason::ClientCapacity, 10 * MIB), "{text}");
    assert_eq!(refusal(grant(&first, u64::MAX)).0, Reason::ClientCapacity);
    assert_eq!(refusal(grant(&first, 0)).0, Reason::EmptyGrant);
    let held = grant(&first, 9 * MIB).unwrap();
    assert_eq!(first.free_bytes(), MIB);
    assert_eq!(refusal(grant(&first, 2 * MIB)).0, Reason::ClientCapacity);
    assert_eq!(refusal(grant(&second, 8 * MIB)).0, Reason::PoolFull);
    let small = grant(&first, 1).unwrap();
    assert_eq!(refusal(grant(&first, 1)).0, Reason::GrantsMax);
    assert_eq!(first.free_bytes(), MIB - 4096);
    drop((held, small));
    assert_eq!((first.free_bytes(), first.ping().unwrap()), (10 * MIB, 10 * MIB));
    drop(grant(&second, 8 * MIB).unwrap());

    assert_eq!(
        refusal(NodeClient::connect(&address, &named("third"))).0,
        Reason::ClientsMax
    );
    let one = joined(&first);
    let queue = HostQueue::open(first.device(), 4, 4096).unwrap();
    assert_eq!(refusal(first.connect_queue(&queue)).0, Reason::QueuesMax);
    drop(one);
    first.connect_queue(&queue).unwrap();
}

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
        .args(["--exact", "rdma::child_process", "--nocapture"])
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
    assert!(lost != CompletionStatus::SUCCESS, "nobody answers any more");
    drop((own, grant, client));
    let nobody = NodeClient::connect(&address, &named("late"));
    match nobody {
        Err(NodeError::Unreachable { why, .. }) => assert!(why.starts_with("nobody listens at that port"), "{why}"),
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
        Err(NodeError::Unreachable { why, .. }) => assert!(why.starts_with("nobody listens at that port"), "{why}"),
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
    eventually("nobody is left", || node.metrics().clients == 0);
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
