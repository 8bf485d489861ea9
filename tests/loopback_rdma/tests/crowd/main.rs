//! A memory node with many clients at once that come and go, some of them broken or malicious, in one process over the fake device.

mod child;
mod raw;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuvm_memory_node::limits::CLIENTS_PER_COMPLETION_QUEUE;
use gpuvm_memory_node::protocol::{Body, ConnectRequest, MESSAGE_BYTES, Message, Name, REQUEST_BYTES, Reason};
use gpuvm_memory_node::{
    Backing, ClientOptions, CompletionStatus, Grant, GrantAccess, HostQueue, MemoryNode, NodeClient, NodeError,
    NodeEvent, Request, ServeOptions,
};

use child::{Fake, in_child};
use raw::{Answer, Raw};

/// Longest time in which something must have happened.
const SOON: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
/// Honest clients at once: more than one completion queue has room for.
const CROWD: usize = CLIENTS_PER_COMPLETION_QUEUE as usize + 63;
/// Clients that break rules, all the while.
const BAD: usize = 100;
/// Objects of the device that a node has without clients: what it listens with, and the completion queues for a crowd that was there.
const AT_REST: u64 = 1 + CROWD.div_ceil(CLIENTS_PER_COMPLETION_QUEUE as usize) as u64;
/// Threads that drive honest clients, and bad ones.
const DRIVERS: (usize, usize) = (8, 2);

fn node(clients_max: u32) -> (MemoryNode, String) {
    node_that_tells(clients_max, |_| {})
}

fn node_that_tells(clients_max: u32, tell: impl Fn(&NodeEvent) + Send + Sync + 'static) -> (MemoryNode, String) {
    let node = MemoryNode::start(ServeOptions {
        on_event: Some(Arc::new(tell)),
        bind: "127.0.0.1:0".parse().unwrap(),
        clients_max,
        capacity_per_client: Some(4 * PAGE),
        ..ServeOptions::new(Backing::Plain(4 * PAGE * (CROWD + BAD) as u64))
    });
    let node = node.unwrap();
    let address = node.local_addr().to_string();
    (node, address)
}

fn join(address: &str, name: &str) -> Arc<NodeClient> {
    let options = ClientOptions {
        name: name.to_owned(),
        timeout: SOON,
        ..ClientOptions::default()
    };
    let end = Instant::now() + SOON;
    loop {
        match NodeClient::connect(address, &options) {
            // Others leave in a moment.
            Err(NodeError::Refused { refusal, .. }) if refusal.reason == Reason::ClientsMax && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            joined => return joined.unwrap_or_else(|error| panic!("{name}: {error:?}")),
        }
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a client keeps in its grant.
fn pattern(seed: u64) -> Vec<u8> {
    (0..2 * PAGE)
        .map(|at| (seed.wrapping_mul(0x9e37_79b9) >> (at % 4 * 8)) as u8 ^ at as u8)
        .collect()
}

fn holds(grant: &Grant, seed: u64) -> bool {
    let mut seen = vec![0; 2 * PAGE as usize];
    grant.read(0, &mut seen).unwrap();
    seen == pattern(seed)
}

/// Clients that join, write, read again when all are there, and leave.
fn honest(address: &str, seeds: std::ops::Range<u64>, all_there: &std::sync::Barrier) {
    let clients: Vec<(u64, Grant, Arc<NodeClient>)> = seeds
        .map(|seed| {
            let client = join(address, &format!("honest {seed}"));
            let grant = client.grant(2 * PAGE, GrantAccess::ReadWrite).unwrap();
            grant.write(0, &pattern(seed)).unwrap();
            (seed, grant, client)
        })
        .collect();
    all_there.wait();
    for (seed, grant, client) in &clients {
        assert!(holds(grant, *seed), "client {seed} finds what it wrote");
        if seed.is_multiple_of(16) {
            let queue = HostQueue::open(client.device(), 4, 2 * PAGE as usize).unwrap();
            let link = client.connect_queue(&queue).unwrap();
            let read = Request::Read {
                remote: grant.address(),
                rkey: grant.rkey(),
            };
            assert_eq!(raw::status(&queue, read, 2 * PAGE as u32), CompletionStatus::SUCCESS);
            let mut seen = vec![0; 2 * PAGE as usize];
            assert!(queue.copy(0, &mut seen) && seen == pattern(*seed));
            drop(link);
        }
    }
    all_there.wait();
}

fn control() -> [u8; REQUEST_BYTES] {
    ConnectRequest::Control {
        client_nonce: [7; 8],
        proof: None,
    }
    .emit()
}

fn message(request: u64, body: Body) -> [u8; MESSAGE_BYTES] {
    Message { request, body }.emit()
}

/// A client that has joined by hand and said its name, or not.
fn by_hand(address: &str, says_hello: bool) -> Option<Raw> {
    let mut raw = Raw::new(address);
    match raw.ask(&control()) {
        Answer::Accepted(_) => {}
        // There is no room, or the node has ended it before it was done.
        _ => return None,
    }
    raw.join().then_some(())?;
    if says_hello {
        raw.send(&message(1, Body::Hello(Name::new("bad"))));
    }
    Some(raw)
}

/// What one bad client does; its kind by its number. Which it was, where it got so far.
fn bad(address: &str, number: u64, keys: u32) -> Option<&'static str> {
    match number % 7 {
        0 => {
            let garbage: Vec<u8> = (0..REQUEST_BYTES as u64)
                .map(|at| (number * 31 + at * 7) as u8)
                .collect();
            let answer = Raw::new(address).ask(&garbage);
            assert!(!matches!(answer, Answer::Accepted(_)), "garbage is no request");
            Some("garbage")
        }
        1 => {
            let silent = by_hand(address, false)?;
            std::thread::sleep(Duration::from_millis(50));
            drop(silent);
            Some("silent")
        }
        2 => {
            let raw = by_hand(address, number.is_multiple_of(2))?;
            raw.send(&[0xa5; MESSAGE_BYTES]);
            raw.wait_for_end(SOON);
            Some("nonsense")
        }
        3 => {
            let raw = by_hand(address, true)?;
            // It takes no answer, and asks on.
            (2..66).for_each(|request| raw.send(&message(request, Body::Ping)));
            raw.wait_for_end(SOON);
            Some("flood")
        }
        4 => {
            let token = [number as u8; 16];
            let answer = Raw::new(address).ask(&ConnectRequest::Data { token }.emit());
            assert!(!matches!(answer, Answer::Accepted(_)), "a guessed token is no session");
            Some("guess")
        }
        5 => {
            let client = join(address, "greedy");
            assert!(client.grant(1 << 40, GrantAccess::ReadWrite).is_err());
            let grant = client.grant(PAGE, GrantAccess::ReadWrite).unwrap();
            for key in (0..keys)
                .step_by(keys as usize / 8 + 1)
                .map(|key| key + number as u32 % 97)
            {
                let queue = HostQueue::open(client.device(), 4, PAGE as usize).unwrap();
                let _link = client.connect_queue(&queue).unwrap();
                let write = Request::Write {
                    remote: grant.address() + PAGE,
                    rkey: key,
                };
                let ended = raw::status(&queue, write, PAGE as u32);
                assert_eq!(ended, CompletionStatus::REMOTE_ACCESS, "key {key}");
            }
            Some("thief")
        }
        _ => {
            // With memory, which the node has to take back.
            let raw = by_hand(address, true)?;
            let (bytes, access) = (PAGE, GrantAccess::ReadWrite);
            raw.send(&message(2, Body::Grant { bytes, access }));
            std::thread::sleep(Duration::from_millis(20));
            raw.vanish();
            Some("vanishes")
        }
    }
}

/// Bad clients until it is over. How many of each kind there were.
fn bad_ones(
    address: &str,
    first: u64,
    over: &AtomicBool,
    keys: &AtomicU64,
) -> std::collections::BTreeMap<&'static str, u64> {
    let mut done = std::collections::BTreeMap::new();
    for number in first.. {
        // Relaxed: nothing else is told by either.
        if over.load(Ordering::Relaxed) && number - first >= (BAD / DRIVERS.1) as u64 {
            break;
        }
        let kind = bad(address, number, keys.load(Ordering::Relaxed) as u32);
        *done.entry(kind.unwrap_or("no room")).or_default() += 1;
    }
    done
}

/// All honest clients join, are there at once, and leave, while bad ones come and go.
fn wave(node: &MemoryNode, address: &str, keys: &AtomicU64) {
    let all_there = std::sync::Barrier::new(DRIVERS.0 + 1);
    let over = AtomicBool::new(false);
    let kinds = std::thread::scope(|scope| {
        let each = CROWD.div_ceil(DRIVERS.0);
        let (all_there, over) = (&all_there, &over);
        let crowd: Vec<_> = (0..DRIVERS.0)
            .map(|driver| {
                let seeds = (driver * each) as u64..((driver + 1) * each).min(CROWD) as u64;
                scope.spawn(move || honest(address, seeds, all_there))
            })
            .collect();
        let bad: Vec<_> = (0..DRIVERS.1)
            .map(|driver| scope.spawn(move || bad_ones(address, driver as u64 * 1_000_003, over, keys)))
            .collect();
        all_there.wait();
        assert!(node.metrics().clients >= CROWD as u64, "all are there at once");
        all_there.wait();
        crowd.into_iter().for_each(|driver| driver.join().unwrap());
        // Relaxed: see `bad_ones`.
        over.store(true, Ordering::Relaxed);
        bad.into_iter().map(|driver| driver.join().unwrap()).collect::<Vec<_>>()
    });
    for kind in ["garbage", "silent", "nonsense", "flood", "guess", "thief", "vanishes"] {
        let times: u64 = kinds.iter().filter_map(|done| done.get(kind)).sum();
        assert!(times > 0, "no client was of the kind `{kind}`: {kinds:?}");
    }
    // Their memory comes back on another thread than they leave on.
    eventually("all are gone, with all they had", || {
        let metrics = node.metrics();
        (metrics.clients, metrics.grants, metrics.free_bytes) == (0, 0, metrics.memory_bytes)
    });
}

/// Nothing of the device is left of clients. The last one that was refused knows it before the node has given up its identifier.
fn nothing_is_left(fake: &Fake) {
    let end = Instant::now() + SOON;
    while fake.objects() != AT_REST && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        fake.objects(),
        AT_REST,
        "objects of the device, {SOON:?} after all clients have left"
    );
}

#[test]
fn clients_come_and_go_and_bad_ones_harm_nobody() {
    in_child("clients_come_and_go_and_bad_ones_harm_nobody", || {
        let fake = Fake::new();
        // Silent and vanished ones hold a place for a while.
        let (node, address) = node((CROWD + BAD) as u32);
        let keys = AtomicU64::new(64);
        wave(&node, &address, &keys);
        nothing_is_left(&fake);
        let resident = child::resident_bytes();
        let begun = Instant::now();
        wave(&node, &address, &keys);
        wave(&node, &address, &keys);
        println!("# two waves of {CROWD} clients in {:?}", begun.elapsed());
        nothing_is_left(&fake);
        let grown = child::resident_bytes().saturating_sub(resident);
        println!("# resident memory: {resident} bytes, {grown} more after two waves");
        // A page for each of the clients would be more.
        assert!(grown < 2 * CROWD as u64 * PAGE, "memory grew by {grown} bytes");
        assert_eq!(fake.overruns(), 0, "every completion had its place");
        let metrics = node.metrics();
        assert_eq!((metrics.grants, metrics.granted_bytes, metrics.queue_pairs), (0, 0, 0));
        assert_eq!((metrics.free_bytes, metrics.lost_bytes), (metrics.memory_bytes, 0));
        assert!(metrics.grants_revoked_total > 0, "{metrics:?}");
        assert!(metrics.goodbyes_total >= 3 * CROWD as u64, "{metrics:?}");
        node.stop();
    });
}

#[test]
fn a_client_that_says_nothing_gives_way() {
    in_child("a_client_that_says_nothing_gives_way", || {
        let (left, leaves) = std::sync::mpsc::channel();
        let (node, address) = node_that_tells(4, move |event| {
            if let NodeEvent::Left { why, .. } = event {
                left.send(why.clone()).unwrap();
            }
        });
        let _silent: Vec<Raw> = (0..4)
            .map(|_| by_hand(&address, false).expect("there is room"))
            .collect();
        let honest = join(&address, "honest");
        // Not because it was silent for so long that it would have ended anyway.
        let left: Vec<String> = leaves.try_iter().collect();
        assert_eq!(left, ["it did not say its name, and others wait"]);
        honest.grant(PAGE, GrantAccess::ReadWrite).unwrap();
        assert_eq!(node.metrics().clients, 4);
        // Who has a name stays.
        let others: Vec<_> = (0..3).map(|_| join(&address, "another")).collect();
        let full = NodeClient::connect(&address, &ClientOptions::default());
        assert!(matches!(full, Err(NodeError::Refused { refusal, .. }) if refusal.reason == Reason::ClientsMax));
        drop(others);
    });
}
