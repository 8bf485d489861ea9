use proptest::prelude::*;

use super::*;

fn bodies() -> impl Strategy<Value = Body> {
    let access = prop_oneof![Just(GrantAccess::ReadOnly), Just(GrantAccess::ReadWrite)];
    prop_oneof![
        ".{0,100}".prop_map(|name| Body::Hello(Name::new(&name))),
        (any::<u64>(), access).prop_map(|(bytes, access)| Body::Grant { bytes, access }),
        any::<u64>().prop_map(|grant| Body::Release { grant }),
        any::<u64>().prop_map(|grant| Body::Seal { grant }),
        any::<u64>().prop_map(|grant| Body::Share { grant }),
        any::<Nonce>().prop_map(|key| Body::Attach { key }),
        any::<Nonce>().prop_map(|key| Body::Shared { key }),
        any::<u32>().prop_map(|queue| Body::Leave { queue }),
        (any::<u32>(), 0..1u32 << 24).prop_map(|(queue, packet)| Body::Rejoin { queue, packet }),
        Just(Body::Ping),
        Just(Body::Goodbye),
        any::<u64>().prop_map(|free| Body::Done { free }),
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
            |(grant, address, bytes, rkey, free)| Body::Granted {
                grant,
                address,
                bytes,
                rkey,
                free
            }
        ),
        (any::<u8>(), any::<u64>()).prop_map(|(code, detail)| Body::Refused {
            reason: Reason::from_code(code),
            detail
        }),
    ]
}

fn proofs() -> impl Strategy<Value = Proof> {
    (any::<Nonce>(), any::<[u8; PROOF_BYTES]>()).prop_map(|(challenge, digest)| Proof { challenge, digest })
}

proptest! {
    #[test]
    fn messages_survive_the_wire(request: u64, body in bodies()) {
        let message = Message { request, body };
        prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
    }

    #[test]
    fn connection_data_survive_the_wire(
        client_nonce: [u8; 8], proof in proptest::option::of(proofs()), token: Nonce, node_proof: Option<[u8; PROOF_BYTES]>,
        capacity: u64, keep_alive_ms: u32, code: u8, padding in 0usize..200,
    ) {
        for request in [ConnectRequest::Control { client_nonce, proof }, ConnectRequest::Data { token }] {
            prop_assert_eq!(ConnectRequest::parse(&request.emit()), Ok(request));
        }
        // The connection manager pads what it hands on.
        let accept = Accept { token, proof: node_proof, capacity, keep_alive_ms };
        let mut bytes = accept.emit().to_vec();
        bytes.resize(bytes.len() + padding, 0);
        prop_assert_eq!(Accept::parse(&bytes), Ok(accept));
        let reject = Reject { reason: Reason::from_code(code), detail: capacity, challenge: token };
        let mut bytes = reject.emit().to_vec();
        bytes.resize(bytes.len() + padding, 0);
        prop_assert_eq!(Reject::parse(&bytes), Ok(reject));
    }

    #[test]
    fn truncated_bytes_are_refused(body in bodies(), length in 0..MESSAGE_BYTES, token: Nonce) {
        let message = Message { request: 1, body }.emit();
        let short = |result: Result<(), ProtocolError>| matches!(result, Err(ProtocolError::Short { .. }));
        prop_assert!(short(Message::parse(&message[..length]).map(drop)));
        let request = ConnectRequest::Data { token }.emit();
        prop_assert!(short(ConnectRequest::parse(&request[..length.min(REQUEST_BYTES - 1)]).map(drop)));
        let accept = Accept { token, ..Accept::default() }.emit();
        prop_assert!(short(Accept::parse(&accept[..length.min(ACCEPT_BYTES - 1)]).map(drop)));
        let reject = Reject { reason: Reason::Stopping, detail: 0, challenge: token }.emit();
        prop_assert!(short(Reject::parse(&reject[..length.min(REJECT_BYTES - 1)]).map(drop)));
    }

    #[test]
    fn garbage_is_an_error_or_a_message_never_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), headed: bool) {
        if headed && bytes.len() >= 8 {
            bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
            bytes[6] %= 20;
            bytes[7] %= 2;
        }
        if let Ok(message) = Message::parse(&bytes) {
            // What was understood is what would be sent, but for a name's control characters.
            prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
        }
        let _ = (ConnectRequest::parse(&bytes), Accept::parse(&bytes), Reject::parse(&bytes));
    }
}

#[test]
fn foreign_bytes_are_named() {
    let mut bytes = Message {
        request: 3,
        body: Body::Ping,
    }
    .emit();
    bytes[6] = 99;
    let unknown = ProtocolError::Field {
        field: "kind of message",
        value: 99,
    };
    assert_eq!(Message::parse(&bytes), Err(unknown));
    bytes[4] = 9;
    assert_eq!(Message::parse(&bytes), Err(ProtocolError::Version(9)));
    bytes[0] = 0;
    assert!(matches!(Message::parse(&bytes), Err(ProtocolError::Magic(_))));
    // Another version may be shorter: what matters is that it is another.
    let mut bytes = ConnectRequest::Data { token: [1; 16] }.emit();
    bytes[4] = 2;
    assert_eq!(ConnectRequest::parse(&bytes[..8]), Err(ProtocolError::Version(2)));
}

#[test]
fn a_layout_does_not_move() {
    let message = Message {
        request: 0x0102_0304_0506_0708,
        body: Body::Granted {
            grant: 0x11,
            address: 0x2222_0000,
            bytes: 0x3000,
            rkey: 0x44,
            free: 0x5000,
        },
    };
    let bytes = message.emit();
    assert_eq!(&bytes[..16], b"gvmN\x01\0\x11\0\x08\x07\x06\x05\x04\x03\x02\x01");
    let values: Vec<u64> = (16..56).step_by(8).map(|at| u64_at(&bytes, at)).collect();
    assert_eq!(values, [0x11, 0x2222_0000, 0x3000, 0x44, 0x5000]);
    let request = ConnectRequest::Control {
        client_nonce: [3; 8],
        proof: Some(Proof {
            challenge: [1; 16],
            digest: [2; 24],
        }),
    };
    let mut wanted = b"gvmN\x01\0\x01\x01".to_vec();
    wanted.extend([1; 16]);
    wanted.extend([3; 8]);
    wanted.extend([2; 24]);
    assert_eq!(request.emit().to_vec(), wanted);
}

#[test]
fn names_are_cut_and_cannot_forge_lines() {
    assert_eq!(Name::new("a\nb\u{7}").as_str(), "a?b?");
    let long = Name::new(&"ü".repeat(100));
    assert_eq!(long.as_str(), "ü".repeat(32));
    let message = Message {
        request: 0,
        body: Body::Hello(long),
    };
    assert_eq!(Message::parse(&message.emit()), Ok(message));
}

#[test]
fn every_code_is_one_reason() {
    for code in 0..=255 {
        assert_eq!(Reason::from_code(code).code(), code);
    }
}
