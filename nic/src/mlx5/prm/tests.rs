use super::codec::{completion_context, context};
use super::*;

/// Paths over Ethernet, and by LID with a global header and without.
fn paths() -> [Command; 3] {
    let global = GlobalHeader {
        gid: std::array::from_fn(|at| at as u8 + 1),
        source_index: 3,
        hop_limit: 64,
        traffic_class: 0xa4,
        flow_label: 0xf_1234,
    };
    let path = ToReadyToReceive {
        queue_pair: 0xab_cdef,
        port: 2,
        pkey_index: 0x1234,
        mtu: 5,
        remote: 0xfe_dcba,
        receive_psn: 0x12_3456,
        log_reads_in: 4,
        rnr_timer: 12,
        link: Link::Ethernet {
            mac: [0x02, 0x11, 0x22, 0x33, 0x44, 0x55],
            udp_source: 0xc001,
            priority: 5,
        },
        global: Some(global),
        rate: 3,
    };
    let by_lid = Link::InfiniBand {
        lid: 0xbeef,
        source_path_bits: 0x55,
        service_level: 9,
    };
    let bare = ToReadyToReceive {
        link: by_lid,
        global: None,
        rate: 0,
        ..path
    };
    let global = ToReadyToReceive { link: by_lid, ..path };
    [path, global, bare].map(Command::ToReadyToReceive)
}

fn commands() -> Vec<Command> {
    let place = |umem, offset| Place { umem, offset };
    let mut all = vec![
        Command::CreateCompletionQueue(CreateCompletionQueue {
            log_entries: 15,
            uar_page: 0x12_3456,
            event_queue: 9,
            ring: place(0x1122_3344, 0x1_0000_2000),
            record: place(0x5566_7788, 0x2_0000_3040),
        }),
        Command::CreateQueuePair(CreateQueuePair {
            domain: 0x65_4321,
            log_blocks: 15,
            uar_page: 0x12_3456,
            completion_queue: 0x77_8899,
            ring: place(1, 0x8000_0000_0000_1000),
            record: place(2, 8),
        }),
        Command::ToInit(ToInit {
            queue_pair: 7,
            port: 1,
            pkey_index: 0xffff,
            access: RemoteAccess {
                read: true,
                write: true,
            },
        }),
        Command::ToReadyToSend(ToReadyToSend {
            queue_pair: 9,
            send_psn: 0xff_ffff,
            log_reads_out: 7,
            ack_timeout: 31,
            retries: 7,
            rnr_retries: 6,
        }),
        Command::ToReset { queue_pair: 0xff_ffff },
        Command::ToError { queue_pair: 1 },
        Command::QueryQueuePair { queue_pair: 2 },
    ];
    all.extend(paths());
    all
}

#[test]
fn fields_hold_what_they_are_given_and_touch_nothing_else() {
    for (name, bytes, fields) in STRUCTURES {
        for (field_name, field) in fields.iter().filter(|(_, field)| field.bits <= 64) {
            for background in [0u8, 0xff] {
                let mut memory = vec![background; *bytes];
                let value = 0x9e37_79b9_7f4a_7c15 & field.most();
                field.set(&mut memory, value);
                assert_eq!(field.get(&memory), Some(value), "{name}.{field_name}");
                field.set(&mut memory, if background == 0 { 0 } else { field.most() });
                assert!(memory.iter().all(|byte| *byte == background), "{name}.{field_name}");
            }
            assert_eq!(field.get(&[]), None);
        }
    }
}

#[test]
fn a_field_is_big_endian() {
    let mut bytes = [0; 16];
    Field::new(12, 24).set(&mut bytes, 0xab_cdef);
    assert_eq!(bytes[..6], [0, 0x0a, 0xbc, 0xde, 0xf0, 0]);
}

#[test]
fn commands_are_read_back() {
    for command in commands() {
        let bytes = command.encode();
        assert_eq!(Command::parse(&bytes), Ok(command));
        let short = Command::parse(&bytes[..bytes.len() - 1]);
        assert!(short.is_err(), "{command:?}");
    }
}

#[test]
fn a_command_in_which_any_bit_is_wrong_is_another_or_none() {
    for command in commands() {
        let good = command.encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            assert_ne!(Command::parse(&bytes), Ok(command), "bit {bit} of {command:?}");
        }
    }
    assert_eq!(Command::parse(&[]), Err(PrmError::Opcode { opcode: 0 }));
}

#[test]
fn fixed_parts_of_the_contexts_are_as_they_have_to_be() {
    let [cq, qp, ..] = &commands()[..] else {
        panic!("two commands")
    };
    let (cq, qp) = (cq.encode(), qp.encode());
    for field in [cqc::cc, cqc::oi, cqc::dbr_umem_valid] {
        assert_eq!(completion_context(field).get(&cq), Some(1));
    }
    assert_eq!(completion_context(cqc::cqe_sz).get(&cq), Some(0), "64 bytes");
    assert_eq!(create_cq_in::cq_umem_valid.get(&cq), Some(1));
    let expected = [
        (qpc::st, 0),
        (qpc::pm_state, 3),
        (qpc::rq_type, 3),
        (qpc::cs_req, 0),
        (qpc::cs_res, 0),
        (qpc::dbr_umem_valid, 1),
        (qpc::ts_format, 1),
        (qpc::cqn_snd, 0x77_8899),
    ];
    for (field, value) in expected {
        assert_eq!(context(field).get(&qp), Some(value), "{field:?}");
    }
}

#[test]
fn answers_are_read_back() {
    for command in commands() {
        let mut bytes = vec![0; command.answer_bytes()];
        let value = match command {
            Command::CreateCompletionQueue(_) | Command::CreateQueuePair(_) => 0xab_cdef,
            Command::QueryQueuePair { .. } => 6,
            _ => 0,
        };
        let answer = Answer {
            status: 3,
            syndrome: 0x1234_5678,
            value,
        };
        command.write_answer(&answer, &mut bytes);
        assert_eq!(command.read_answer(&bytes), answer);
        // An answer that is too short tells nothing.
        assert_eq!(command.read_answer(&[]), Answer::default());
    }
    let said = Answer {
        status: 3,
        syndrome: 0xabcd,
        value: 0,
    };
    assert_eq!(
        said.to_string(),
        "firmware status 0x03 (bad parameter), syndrome 0x0000abcd"
    );
}
