use super::*;
use crate::dial::next_event;
use crate::mailbox::SEND;
use crate::protocol::{GrantAccess, MESSAGE_BYTES, Message, Reject, VERSION};
use crate::verbs::{ConnectParameters, EventKind, HostQueue, JoinQueue};
use crate::{Backing, MemoryNode, ServeOptions};

/// Longest time in which something must have happened; emulated machines are slow.
const SOON: Duration = Duration::from_secs(20);

/// A node on the device that `GPUVM_TEST_RDMA` names, or nothing with a word about it.
fn node(secret: Option<&str>) -> Option<MemoryNode> {
    let Some(device) = std::env::var("GPUVM_TEST_RDMA").ok().filter(|name| !name.is_empty()) else {
        eprintln!("skipped: GPUVM_TEST_RDMA names no RDMA device (for example rxe0)");
        return None;
    };
    let options = ServeOptions {
        device: Some(device),
        bind: "0.0.0.0:0".parse().unwrap(),
        secret: secret.map(str::to_owned),
        ..ServeOptions::new(Backing::Plain(1 << 20))
    };
    Some(MemoryNode::start(options).unwrap())
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A connection request with these bytes, and how it ended.
fn knock(node: &MemoryNode, private_data: &[u8]) -> Event {
    let channel = Channel::new().unwrap();
    let options = ClientOptions {
        timeout: SOON,
        ..ClientOptions::default()
    };
    let dialling = Dialling {
        address: "the node",
        peer: node.local_addr(),
        options: &options,
        channel: &channel,
        resends: Resends::of_control(&options),
    };
    let events = |id: &Id, left| next_event(&channel, id, left, None);
    let id = dialling.resolve(&events).unwrap();
    let queue = HostQueue::open(&id.device().unwrap(), 1, 64).unwrap();
    id.connect(ConnectParameters {
        private_data,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 6,
        rnr_retry_count: 6,
        queue: queue.number(),
    })
    .unwrap();
    events(&id, SOON).unwrap().expect("an answer")
}

fn reject(event: &Event) -> (Reason, u64) {
    assert_eq!(event.kind, EventKind::Rejected);
    let reject = Reject::parse(&event.private_data).unwrap();
    (reject.reason, reject.detail)
}

#[test]
fn requests_that_mean_nothing_are_refused_with_the_reason() {
    let Some(node) = node(None) else { return };
    let mut other_version = ConnectRequest::Data { token: [1; 16] }.emit();
    other_version[4] = 9;
    assert_eq!(
        reject(&knock(&node, &other_version)),
        (Reason::WrongVersion, VERSION.into())
    );
    assert_eq!(reject(&knock(&node, &[0x5a; 56])).0, Reason::Malformed);
    assert_eq!(reject(&knock(&node, &[])).0, Reason::Malformed);
    let guess = ConnectRequest::Data { token: [1; 16] };
    assert_eq!(reject(&knock(&node, &guess.emit())).0, Reason::UnknownSession);
    assert_eq!(node.stop().clients_total, 0);
}

#[test]
fn a_proof_that_was_recorded_is_worth_nothing() {
    let Some(node) = node(Some("open sesame")) else { return };
    let client_nonce = [4; 8];
    let first = knock(
        &node,
        &ConnectRequest::Control {
            client_nonce,
            proof: None,
        }
        .emit(),
    );
    assert_eq!(reject(&first).0, Reason::SecretNeeded);
    let handshake = Handshake {
        challenge: Reject::parse(&first.private_data).unwrap().challenge,
        client_nonce,
        node: node.local_addr(),
    };
    let proof = Some(Proof {
        challenge: handshake.challenge,
        digest: handshake.prove("open sesame", Side::Client),
    });
    let request = ConnectRequest::Control { client_nonce, proof }.emit();
    assert_eq!(knock(&node, &request).kind, EventKind::ConnectResponse);
    assert_eq!(reject(&knock(&node, &request)).0, Reason::WrongSecret);
    // A challenge that the node did not make.
    let handshake = Handshake {
        challenge: [8; 16],
        ..handshake
    };
    let proof = Some(Proof {
        challenge: handshake.challenge,
        digest: handshake.prove("open sesame", Side::Client),
    });
    let request = ConnectRequest::Control { client_nonce, proof }.emit();
    assert_eq!(reject(&knock(&node, &request)).0, Reason::WrongSecret);
}

#[test]
fn a_malformed_message_ends_its_client_alone() {
    let Some(node) = node(None) else { return };
    let address = node.local_addr().to_string();
    let options = ClientOptions {
        timeout: SOON,
        ..ClientOptions::default()
    };
    let good = NodeClient::connect(&address, &options).unwrap();
    let grant = good.grant(4096, GrantAccess::ReadWrite).unwrap();
    let answer = Message {
        request: 9,
        body: Body::Done { free: 0 },
    };
    let ping = Message {
        request: 9,
        body: Body::Ping,
    };
    let bad: [Vec<u8>; 4] = [
        vec![0x5a; MESSAGE_BYTES],
        ping.emit()[..40].to_vec(),
        Vec::new(),
        // What a node says, not a client.
        answer.emit().to_vec(),
    ];
    for (bytes, losses) in bad.iter().zip(1..) {
        let client = NodeClient::connect(&address, &options).unwrap();
        let _lost = client.grant(4096, GrantAccess::ReadWrite).unwrap();
        client.inner.mail.queue.send(SEND, bytes).unwrap();
        eventually("the node ends it", || node.metrics().losses_total == losses);
        eventually("the client learns it", || client.failure().is_some());
    }
    grant.write(0, &[1; 4096]).unwrap();
    good.ping().unwrap();
    eventually("its memory comes back", || {
        node.metrics().free_bytes == (1 << 20) - 4096
    });
    assert_eq!(node.metrics().clients, 1);
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_else() {
    let usual = ClientOptions::default();
    for (options, name) in [
        (
            ClientOptions {
                retry_count: 8,
                ..usual.clone()
            },
            "retry_count",
        ),
        (
            ClientOptions {
                ack_timeout: 0,
                ..usual.clone()
            },
            "ack_timeout",
        ),
        (
            ClientOptions {
                timeout: Duration::ZERO,
                ..usual.clone()
            },
            "timeout",
        ),
        (
            ClientOptions {
                secret: Some(String::new()),
                ..usual.clone()
            },
            "secret",
        ),
    ] {
        match NodeClient::connect("127.0.0.1:7471", &options) {
            Err(NodeError::Option { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn the_secret_is_not_printed() {
    let options = ClientOptions {
        secret: Some("open sesame".to_owned()),
        ..ClientOptions::default()
    };
    assert!(!format!("{options:?}").contains("sesame"));
}
