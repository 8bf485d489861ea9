//! The codecs against requests, doorbells and completions that the public header's helpers and structures make of random
//! fields: recorded ones always, fresh ones where `<infiniband/mlx5dv.h>` and a C compiler are there.

use crate::reference::mlx5_cases::{self, Case, cases};
use gpuvm_nic::wire::mlx5::{
    BLOCK_BYTES, Completion, CompletionDetail, Cqe, CqeOpcode, Doorbell, DoorbellRecord, Opcode, Operation, Segment,
    Segments, WorkRequest, control_flags,
};

#[test]
fn record_is_what_the_header_makes() {
    mlx5_cases::check_record("record_is_what_the_header_makes");
}

fn operation(case: &Case) -> Operation {
    let remote = || case.number("remote");
    let rkey = || case.number("rkey") as u32;
    match case.text("kind").expect("a kind") {
        "nop" => Operation::Nop,
        "dump" => Operation::Dump,
        "read" => Operation::Read {
            remote: remote(),
            rkey: rkey(),
        },
        "write" | "write_inline" => Operation::Write {
            remote: remote(),
            rkey: rkey(),
        },
        "write_imm" => Operation::WriteImmediate {
            remote: remote(),
            rkey: rkey(),
            immediate: case.number("immediate") as u32,
        },
        "compare_swap" => Operation::CompareSwap {
            remote: remote(),
            rkey: rkey(),
            compare: case.number("compare"),
            swap: case.number("swap_add"),
        },
        "fetch_add" => Operation::FetchAdd {
            remote: remote(),
            rkey: rkey(),
            add: case.number("swap_add"),
        },
        other => panic!("{other} in {}", case.line),
    }
}

fn check_request(case: &Case) {
    let line = &case.line;
    let flags = case.number("flags") as u8;
    let data = case.text("data").map(|_| case.bytes("data"));
    let mut segments: Vec<Segment<'_>> = case
        .local()
        .into_iter()
        .map(|(bytes, lkey, address)| Segment::Data { bytes, lkey, address })
        .collect();
    segments.extend(data.as_deref().map(Segment::Inline));
    let request = WorkRequest {
        index: case.number("index") as u16,
        queue_pair: case.number("qpn") as u32,
        fence: flags & control_flags::FENCE != 0,
        signalled: flags & control_flags::CQ_UPDATE != 0,
        solicited: flags & control_flags::SOLICITED != 0,
        operation: operation(case),
        segments: Segments::List(&segments),
    };
    let expected = case.bytes("wqe");
    let mut buffer = [0xa5; 4 * BLOCK_BYTES];
    let filled = request
        .emit(&mut buffer)
        .unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(request.wire_bytes(), expected.len(), "{line}");
    assert_eq!(buffer[..expected.len()], expected, "{line}");
    assert!(buffer[expected.len()..filled].iter().all(|byte| *byte == 0), "{line}");
    assert!(buffer[filled..].iter().all(|byte| *byte == 0xa5), "{line}");
    assert_eq!(WorkRequest::parse(&expected), Ok(request), "{line}");

    let next = request.index.wrapping_add(request.blocks() as u16);
    let mut record = [0; 8];
    DoorbellRecord::new_checked(&mut record[..])
        .expect("8 bytes")
        .set_send(next.into());
    assert_eq!(record.to_vec(), case.bytes("record"), "{line}");
    let doorbell = Doorbell {
        index: next,
        queue_pair: request.queue_pair,
    };
    assert_eq!(doorbell.emit().to_vec(), case.bytes("doorbell"), "{line}");
    assert_eq!(Doorbell::parse(doorbell.emit()), doorbell, "{line}");
}

fn check_completion(case: &Case) {
    let line = &case.line;
    let expected = case.bytes("cqe");
    let entry = Cqe::new_checked(&expected[..]).expect("64 bytes");
    let valid = entry.is_valid(case.number("before"), case.number("entries") as u32);
    assert_eq!(valid, case.number("valid") == 1, "{line}");
    let kind = CqeOpcode::from(case.number("opcode") as u8);
    if kind == CqeOpcode::Invalid {
        assert!(Completion::parse(&expected).is_err(), "{line}");
        return;
    }
    let detail = match case.text("syndrome") {
        Some(_) => CompletionDetail::Error {
            syndrome: (case.number("syndrome") as u8).into(),
            vendor: case.number("vendor") as u8,
        },
        None => CompletionDetail::Success {
            bytes: case.number("bytes") as u32,
            immediate: case.number("immediate") as u32,
            timestamp: case.number("timestamp"),
        },
    };
    let completion = Completion {
        kind,
        opcode: Opcode::from(case.number("wqe_opcode") as u8),
        queue_pair: case.number("qpn") as u32,
        index: case.number("counter") as u16,
        solicited: case.number("solicited") == 1,
        owner: case.number("owner") == 1,
        detail,
    };
    assert_eq!(Completion::parse(&expected), Ok(completion), "{line}");
    let mut buffer = [0xa5; 64];
    completion.emit(&mut buffer).expect("64 bytes");
    assert_eq!(buffer.to_vec(), expected, "{line}");
}

#[test]
fn requests_doorbells_and_completions_are_the_headers() {
    let (mut requests, mut completions, mut valid) = (0, 0, 0);
    for case in cases("requests_doorbells_and_completions_are_the_headers", 4_000) {
        match case.what.as_str() {
            "request" => {
                check_request(&case);
                requests += 1;
            }
            "completion" => {
                check_completion(&case);
                completions += 1;
                valid += case.number("valid");
            }
            other => panic!("{other}"),
        }
    }
    println!("{requests} requests, {completions} completions, {valid} of them valid in their lap");
    assert!(requests >= 32 && completions >= 24 && valid > 4 && valid < completions);
}
