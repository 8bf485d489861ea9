//! A node on another machine: run where `GPUVM_TEST_NODE` is its address (`10.9.0.1:7471`). The network between them may
//! lose packets. With `GPUVM_TEST_NODE_DIES=1` somebody ends the node, or its machine, during the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuvm_memory_node::{
    ClientOptions, CompletionStatus, Grant, GrantAccess, HostQueue, JoinQueue, NodeClient, QueueLink, Request,
};

/// Longest time for one step on a network that loses packets; emulated machines are slow.
const SOON: Duration = Duration::from_secs(60);

fn node() -> Option<String> {
    let node = std::env::var("GPUVM_TEST_NODE").ok().filter(|node| !node.is_empty());
    if node.is_none() {
        eprintln!("skipped: GPUVM_TEST_NODE names no memory node");
    }
    node
}

fn dies() -> bool {
    std::env::var_os("GPUVM_TEST_NODE_DIES").is_some()
}

/// Retries of a packet: `GPUVM_TEST_RETRIES`, 6 without it. 7 is for ever on rdma_rxe.
fn retries() -> u8 {
    std::env::var("GPUVM_TEST_RETRIES").map_or(6, |text| text.parse().expect("GPUVM_TEST_RETRIES is from 0 to 7"))
}

fn client(address: &str) -> Arc<NodeClient> {
    let options = ClientOptions {
        retry_count: retries(),
        name: "two machines".to_owned(),
        timeout: SOON,
        ..ClientOptions::default()
    };
    NodeClient::connect(address, &options).unwrap()
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 9) ^ (seed * 77)) as u8).collect()
}

/// READs the whole grant by requests of 4 KiB, 16 in flight, and compares.
fn read_by_queue(queue: &HostQueue, grant: &Grant, wanted: &[u8]) {
    const PAGE: usize = 4096;
    const DEPTH: usize = 16;
    let pages = wanted.len() / PAGE;
    let (mut posted, mut done, mut seen) = (0, 0, vec![0; PAGE]);
    let mut last = Instant::now();
    while done < pages {
        while posted < pages && posted < done + DEPTH {
            let request = Request::Read {
                remote: grant.address() + (posted * PAGE) as u64,
                rkey: grant.rkey(),
            };
            queue
                .post(posted as u64, request, posted % DEPTH * PAGE, PAGE as u32)
                .unwrap();
            posted += 1;
        }
        for completion in queue.poll() {
            assert_eq!(
                (completion.id, completion.status),
                (done as u64, CompletionStatus::SUCCESS)
            );
            assert!(queue.copy(done % DEPTH * PAGE, &mut seen));
            assert!(seen == wanted[done * PAGE..(done + 1) * PAGE], "page {done}");
            done += 1;
            last = Instant::now();
        }
        assert!(
            last.elapsed() < SOON,
            "no completion, {done} of {pages} pages are there"
        );
        std::thread::yield_now();
    }
}

#[test]
fn every_byte_is_right_over_the_network() {
    let Some(address) = node().filter(|_| !dies()) else {
        return;
    };
    let client = client(&address);
    for seed in 0..3 {
        let grant = client.grant(4 << 20, GrantAccess::ReadOnly).unwrap();
        let data = pattern(seed, 4 << 20);
        grant.write(0, &data).unwrap();
        grant.seal().unwrap();
        let queue = HostQueue::open(client.device(), 32, 16 * 4096).unwrap();
        let link = client.connect_queue(&queue).unwrap();
        read_by_queue(&queue, &grant, &data);
        drop(link);
        let mut seen = vec![0; data.len()];
        grant.read(0, &mut seen).unwrap();
        assert!(seen == data);
    }
    assert_eq!(client.failure(), None);
}

fn joined(client: &Arc<NodeClient>) -> (QueueLink, HostQueue) {
    let queue = HostQueue::open(client.device(), 32, 16 * 4096).unwrap();
    let link = client.connect_queue(&queue).unwrap();
    assert_eq!(link.number(), queue.number());
    (link, queue)
}

#[test]
fn a_node_that_dies_is_noticed() {
    let Some(address) = node().filter(|_| dies()) else {
        return;
    };
    let client = client(&address);
    let grant = client.grant(1 << 20, GrantAccess::ReadWrite).unwrap();
    let (link, queue) = joined(&client);
    println!("\nclient is ready");
    let end = Instant::now() + SOON;
    // Requests until one fails, as a GPU would make them. With retries for ever none does, and the session alone ends.
    let mut lost = (retries() == 7).then_some((CompletionStatus::SUCCESS, Duration::ZERO));
    while lost.is_none() {
        assert!(Instant::now() < end, "requests go on for ever");
        let request = Request::Read {
            remote: grant.address(),
            rkey: grant.rkey(),
        };
        queue.post(0, request, 0, 4096).unwrap();
        let posted = Instant::now();
        let status = loop {
            if let Some(completion) = queue.poll().first() {
                break completion.status;
            }
            assert!(Instant::now() < end, "a request does not end");
            std::thread::sleep(Duration::from_millis(1));
        };
        if status != CompletionStatus::SUCCESS {
            lost = Some((status, posted.elapsed()));
        }
    }
    let (status, after) = lost.unwrap();
    println!("a request ended after {after:?}: {status}");
    let asked = Instant::now();
    while client.failure().is_none() {
        assert!(Instant::now() < end, "the session goes on for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    println!(
        "the session ended {:?} later: {}",
        asked.elapsed(),
        client.failure().unwrap()
    );
    assert!(link.is_over());
    assert!(grant.write(0, &[1]).is_err());
    let leaving = Instant::now();
    drop((link, queue, grant, client));
    assert!(
        leaving.elapsed() < SOON / 2,
        "leaving a dead node took {:?}",
        leaving.elapsed()
    );
}
