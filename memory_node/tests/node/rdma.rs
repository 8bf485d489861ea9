//! A node and its clients over a real RDMA device, looped back: run where `GPUVM_TEST_RDMA` names one (`rxe0`).

use std::sync::Arc;

use gpuvm_memory_node::protocol::Reason;
use gpuvm_memory_node::{
    ClientOptions, CompletionStatus, Grant, GrantAccess, HostQueue, NodeClient, NodeError, Request, ServeOptions,
    ShareKey,
};

use crate::common::{
    Joined, MIB, client, device, eventually, joined, named, node, options, pattern, read_at, status, write_at,
};

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

#[test]
fn a_sealed_grant_is_read_by_those_who_have_its_key() {
    let Some(device) = device() else { return };
    let (node, address) = node(options(&device));
    let clients = [client(&address), client(&address), client(&address)];
    let grant = clients[0].grant(2 * MIB, GrantAccess::ReadOnly).unwrap();
    let wanted = pattern(3, (2 * MIB) as usize);
    grant.write(0, &wanted).unwrap();
    let refused = |shared: Result<(), NodeError>, wanted: Reason| match shared {
        Err(NodeError::GrantRefused { refusal, .. }) if refusal.reason == wanted => {}
        other => panic!("{other:?}"),
    };
    refused(grant.share().map(drop), Reason::NotSealed);
    let other = clients[0].grant(4096, GrantAccess::ReadWrite).unwrap();
    refused(other.share().map(drop), Reason::NotSealed);
    grant.seal().unwrap();
    let key = grant.share().unwrap();
    assert_eq!(grant.share().unwrap(), key);
    refused(clients[1].attach(&ShareKey([7; 16])).map(drop), Reason::NotShared);
    let free = node.metrics().free_bytes;
    let attached = [&clients[1], &clients[2]].map(|client| client.attach(&key).unwrap());
    assert_eq!(node.metrics().free_bytes, free, "it takes no memory");
    // Who filled it leaves.
    drop(grant);
    assert_eq!(node.metrics().free_bytes, free);
    for (client, grant) in clients[1..].iter().zip(&attached) {
        let mut seen = vec![0; wanted.len()];
        grant.read(0, &mut seen).unwrap();
        assert!(seen == wanted);
        assert!(matches!(grant.write(0, &[1]), Err(NodeError::Sealed)));
        // What is attached is not this client's to hand on.
        refused(grant.share().map(drop), Reason::NotSealed);
        let own = joined(client);
        assert_eq!(status(&own.queue, read_at(grant, MIB), 4096), CompletionStatus::SUCCESS);
        let refused = joined(client);
        let written = status(&refused.queue, write_at(grant, 0), 4096);
        assert_eq!(written, CompletionStatus::REMOTE_ACCESS);
    }
    // A key for RDMA is of one client.
    let foreign = joined(&clients[2]);
    let read = status(&foreign.queue, read_at(&attached[0], 0), 4096);
    assert_eq!(read, CompletionStatus::REMOTE_ACCESS);
    drop(foreign);
    drop(attached);
    eventually("the memory comes back", || node.metrics().free_bytes == free + 2 * MIB);
    refused(clients[1].attach(&key).map(drop), Reason::NotShared);
}
