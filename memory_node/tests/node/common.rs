//! A node, its clients and their queue pairs over the device that the environment names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuvm_memory_node::{
    Backing, ClientOptions, CompletionStatus, Grant, HostQueue, JoinQueue, MemoryNode, NodeClient, QueueLink, Request,
    ServeOptions,
};

pub const MIB: u64 = 1 << 20;
/// Longest time in which something must have happened; emulated machines are slow.
pub const SOON: Duration = Duration::from_secs(20);

/// The device, or nothing with a word about it.
pub fn device() -> Option<String> {
    let device = std::env::var("GPUVM_TEST_RDMA").ok().filter(|name| !name.is_empty());
    if device.is_none() {
        eprintln!("skipped: GPUVM_TEST_RDMA names no RDMA device (for example rxe0)");
    }
    device
}

pub fn options(device: &str) -> ServeOptions {
    ServeOptions {
        device: Some(device.to_owned()),
        bind: "0.0.0.0:0".parse().unwrap(),
        keep_alive: Duration::from_millis(200),
        ..ServeOptions::new(Backing::Plain(16 * MIB))
    }
}

pub fn node(options: ServeOptions) -> (MemoryNode, String) {
    let node = MemoryNode::start(options).unwrap();
    let address = node.local_addr().to_string();
    (node, address)
}

pub fn named(name: &str) -> ClientOptions {
    ClientOptions {
        name: name.to_owned(),
        timeout: SOON,
        ..ClientOptions::default()
    }
}

pub fn client(address: &str) -> Arc<NodeClient> {
    NodeClient::connect(address, &named("test")).unwrap()
}

/// Waits until it holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
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
pub struct Joined {
    // Before the queue: the node is told before the queue pair goes.
    pub link: QueueLink,
    pub queue: HostQueue,
}

pub fn joined(client: &Arc<NodeClient>) -> Joined {
    let queue = HostQueue::open(client.device(), 16, 1 << 16).unwrap();
    let link = client.connect_queue(&queue).unwrap();
    assert_eq!(link.number(), queue.number());
    Joined { link, queue }
}

/// The status of one request over the first `bytes` bytes of the buffer.
pub fn status(queue: &HostQueue, request: Request, bytes: u32) -> CompletionStatus {
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

pub fn read_at(grant: &Grant, offset: u64) -> Request {
    Request::Read {
        remote: grant.address() + offset,
        rkey: grant.rkey(),
    }
}

pub fn write_at(grant: &Grant, offset: u64) -> Request {
    Request::Write {
        remote: grant.address() + offset,
        rkey: grant.rkey(),
    }
}
