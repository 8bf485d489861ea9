//! The device library's mlx5 format against requests, doorbells and completions that the public header
//! `<infiniband/mlx5dv.h>` made of random fields: recorded ones always, fresh ones where header and compiler are there.

use crate::common::{Bed, bed};
use crate::reference::mlx5_cases::{self, Case, cases};
use gpuvm_gpu::{DeviceMemory, Gpu, LaunchConfig};

/// Flags of a queue pair, as the kernels check.
const QUEUE_FLUSHES_READS: u32 = 1;
const QUEUE_COLLAPSED: u32 = 2;

const KERNELS: &str = r#"
#include <gpuvm/gpuvm.cuh>
using namespace gpuvm;
using namespace gpuvm::detail;
static_assert(layout::QUEUE_FLUSHES_READS == 1 && layout::QUEUE_COLLAPSED == 2, "the test has the same");

struct Post {
    unsigned long long index, local, remote;
    unsigned number, rkey, lkey, bytes, write, start, flags, unused;
};

// A ring of four blocks, a doorbell record and a doorbell each.
__global__ void post(unsigned char* rings, unsigned* records, unsigned long long* doorbells, const Post* posts, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Post p = posts[i];
    layout::QueueDesc queue{};
    queue.kind = layout::QUEUE_KIND_MLX5;
    queue.number = p.number;
    queue.send_ring = reinterpret_cast<unsigned long long>(rings + i * 256);
    // Two blocks a request where READs are flushed.
    bool two = p.flags & layout::QUEUE_FLUSHES_READS;
    queue.send_mask = two ? 1 : 3;
    queue.send_shift = two ? 7 : 6;
    queue.send_start = p.start;
    queue.flags = p.flags;
    queue.doorbell_record = reinterpret_cast<unsigned long long>(records + 2 * i + 1);
    queue.doorbell = reinterpret_cast<unsigned long long>(doorbells + i);
    write_request(&queue, p.index, Request{p.write != 0, p.local, p.remote, p.rkey, p.lkey, p.bytes});
    announce(&queue, p.index + 1);
}

struct Poll {
    unsigned long long index;
    unsigned mask, start, flags, unused;
};

__global__ void poll(unsigned* out, const unsigned char* entries, const Poll* polls, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Poll p = polls[i];
    layout::QueueDesc queue{};
    queue.kind = layout::QUEUE_KIND_MLX5;
    queue.completion_mask = p.mask;
    queue.completion_shift = 6;
    queue.completion_start = p.start;
    queue.send_start = p.start;
    queue.flags = p.flags;
    // The entry of this completion is the only one that is there; the first is the only one of a collapsed queue.
    unsigned slot = p.start + static_cast<unsigned>(p.index) & p.mask;
    if (p.flags & layout::QUEUE_COLLAPSED) slot = 0;
    queue.completion_ring = reinterpret_cast<unsigned long long>(entries + i * 64) - (static_cast<unsigned long long>(slot) << 6);
    Completion done = completion(&queue, p.index);
    out[i] = done.arrived | done.ok << 1 | done.syndrome << 8 | done.vendor_syndrome << 16;
}
"#;

fn upload(bed: &Bed, bytes: &[u8]) -> DeviceMemory {
    let memory = bed.gpu.allocate(bytes.len() as u64, 256).expect("memory");
    bed.gpu.write(memory.addr(), bytes).expect("live memory");
    memory
}

fn download(bed: &Bed, memory: &DeviceMemory, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    bed.gpu.read(memory.addr(), &mut found).expect("live memory");
    found
}

fn launch(bed: &Bed, kernel: &str, memory: &[&DeviceMemory], count: usize) {
    let mut args: Vec<[u8; 8]> = memory.iter().map(|memory| memory.addr().to_ne_bytes()).collect();
    args.push((count as u64).to_ne_bytes());
    let last = memory.len();
    let args: Vec<&[u8]> = args
        .iter()
        .enumerate()
        .map(|(at, bytes)| if at == last { &bytes[..4] } else { &bytes[..] })
        .collect();
    let config = LaunchConfig::linear(count.div_ceil(64) as u32, 64);
    bed.outcome(kernel, &config, &args).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn record_is_what_the_header_makes() {
    mlx5_cases::check_record("record_is_what_the_header_makes");
}

/// A request to post.
struct Post {
    index: u64,
    start: u32,
    flags: u32,
    number: u32,
    write: bool,
    remote: u64,
    rkey: u32,
    /// Length, key, address.
    local: (u32, u32, u64),
}

/// What was written for each.
struct Posted {
    rings: Vec<u8>,
    records: Vec<u8>,
    doorbells: Vec<u8>,
}

impl Posted {
    /// In the block of request `i` is this entry, and behind it what lay there before.
    fn is_written(&self, i: usize, case: &Case, wqe: &[u8]) {
        let at = i * 256 + case.number("index") as usize % 4 * 64;
        let (written, behind) = self.rings[at..at + 64].split_at(wqe.len());
        assert_eq!(written, wqe, "{}", case.line);
        assert_eq!(behind, &[0xa5; 64][wqe.len()..], "{}", case.line);
    }

    /// Record and doorbell of request `i` are the header's.
    fn is_rung(&self, i: usize, case: &Case) {
        let at = i * 8..(i + 1) * 8;
        assert_eq!(self.records[at.clone()], case.bytes("record"), "{}", case.line);
        assert_eq!(self.doorbells[at], case.bytes("doorbell"), "{}", case.line);
    }
}

fn post(requests: &[Post]) -> Posted {
    let mut posts = Vec::new();
    for request in requests {
        let (bytes, lkey, local) = request.local;
        for word in [request.index, local, request.remote] {
            posts.extend(word.to_ne_bytes());
        }
        let (write, start) = (u32::from(request.write), request.start);
        for half in [
            request.number,
            request.rkey,
            lkey,
            bytes,
            write,
            start,
            request.flags,
            0,
        ] {
            posts.extend(half.to_ne_bytes());
        }
    }
    let count = requests.len();
    let bed = bed(KERNELS, &["post", "poll"]);
    let rings = upload(&bed, &vec![0xa5; 256 * count]);
    let records = upload(&bed, &vec![0; 8 * count]);
    let doorbells = upload(&bed, &vec![0; 8 * count]);
    let posts = upload(&bed, &posts);
    launch(&bed, "post", &[&rings, &records, &doorbells, &posts], count);
    Posted {
        rings: download(&bed, &rings, 256 * count),
        records: download(&bed, &records, 8 * count),
        doorbells: download(&bed, &doorbells, 8 * count),
    }
}

/// Lanes count further than the NIC does, and on when it begins anew: where they stand for a position of the NIC's, and where
/// the NIC began.
fn index_and_start(case: &Case, position: u64, salt: u64) -> (u64, u32) {
    let start = (salt >> 8) as u32;
    assert!(position < 1 << 16, "{}", case.line);
    ((salt >> 20 << 16 | position).wrapping_sub(start.into()), start)
}

/// READs and WRITEs of one page each are what the device library posts.
#[test]
fn requests_and_doorbells_are_the_headers() {
    let mut cases = cases("requests_and_doorbells_are_the_headers", 8_000);
    cases.retain(|case| matches!(case.text("kind"), Some("read" | "write")) && case.local().len() == 1);
    let requests: Vec<Post> = cases
        .iter()
        .map(|case| request_of(case, case.number("index"), 0))
        .collect();
    let posted = post(&requests);
    let (mut reads, mut unchanged) = (0, 0);
    for (i, case) in cases.iter().enumerate() {
        let mut wqe = case.bytes("wqe");
        unchanged += u32::from(wqe[11] == 0x08);
        // Every request asks for a completion and for nothing else (MLX5_WQE_CTRL_CQ_UPDATE).
        wqe[11] = 0x08;
        let slot = case.number("index") as usize % 4 * 64;
        let mut expected = [0xa5; 256];
        expected[slot..slot + wqe.len()].copy_from_slice(&wqe);
        assert_eq!(posted.rings[i * 256..(i + 1) * 256], expected, "{}", case.line);
        posted.is_rung(i, case);
        reads += usize::from(case.text("kind") == Some("read"));
    }
    println!(
        "{reads} READs, {} WRITEs, {unchanged} with the flags as they are",
        cases.len() - reads
    );
    assert!(reads > 0 && reads < cases.len() && unchanged > 0);
}

/// The READ or WRITE of a case, as request `position` of its queue pair.
fn request_of(case: &Case, position: u64, flags: u32) -> Post {
    let (index, start) = index_and_start(case, position, case.number("remote"));
    Post {
        index,
        start,
        flags,
        number: case.number("qpn") as u32,
        write: case.text("kind") == Some("write"),
        remote: case.number("remote"),
        rkey: case.number("rkey") as u32,
        local: case.local()[0],
    }
}

/// Where READs are flushed the request comes first, and asks for no completion.
#[test]
fn a_flushed_request_itself_is_the_headers() {
    let mut cases = cases("a_flushed_request_itself_is_the_headers", 8_000);
    cases.retain(|case| {
        let one = matches!(case.text("kind"), Some("read" | "write")) && case.local().len() == 1;
        one && case.number("index").is_multiple_of(2)
    });
    let request = |case| request_of(case, case.number("index") / 2, QUEUE_FLUSHES_READS);
    let posted = post(&cases.iter().map(request).collect::<Vec<_>>());
    for (i, case) in cases.iter().enumerate() {
        let mut wqe = case.bytes("wqe");
        wqe[11] = 0;
        posted.is_written(i, case, &wqe);
    }
    println!("{} requests", cases.len());
    assert!(!cases.is_empty());
}

/// Behind it comes a DUMP of the page's first bytes, fenced, or behind a WRITE a NOP: that one asks for the completion, and
/// record and doorbell are past it.
#[test]
fn what_flushes_a_request_is_the_headers() {
    let mut cases = cases("what_flushes_a_request_is_the_headers", 8_000);
    cases.retain(|case| matches!(case.text("kind"), Some("dump" | "nop")) && case.number("index") % 2 == 1);
    let request = |case: &Case| {
        let salt = case.number("qpn") << 20 | case.number("index");
        let (index, start) = index_and_start(case, case.number("index") / 2, salt);
        Post {
            index,
            start,
            flags: QUEUE_FLUSHES_READS,
            number: case.number("qpn") as u32,
            write: case.text("kind") == Some("nop"),
            remote: 0x1000,
            rkey: 7,
            local: case.local().first().copied().unwrap_or((4096, 5, 0x2000)),
        }
    };
    let posted = post(&cases.iter().map(request).collect::<Vec<_>>());
    let mut dumps = 0;
    for (i, case) in cases.iter().enumerate() {
        let mut wqe = case.bytes("wqe");
        if case.text("kind") == Some("dump") {
            // One data segment of four bytes; MLX5_WQE_CTRL_CQ_UPDATE and MLX5_WQE_CTRL_FENCE.
            wqe.truncate(32);
            (wqe[7], wqe[11]) = (2, 0x88);
            wqe[16..20].copy_from_slice(&4u32.to_be_bytes());
            dumps += 1;
        } else {
            wqe[11] = 0x08;
        }
        posted.is_written(i, case, &wqe);
        posted.is_rung(i, case);
    }
    println!("{dumps} DUMPs, {} NOPs", cases.len() - dumps);
    assert!(dumps > 0 && dumps < cases.len());
}

/// Completions and errors with every syndrome, in every lap of rings of 1 to 32,768 entries.
#[test]
fn completions_are_the_headers() {
    let mut cases = cases("completions_are_the_headers", 8_000);
    cases.retain(|case| case.what == "completion");
    let mut polls = Vec::new();
    for case in &cases {
        // As for requests: the completion's place is the NIC's, less where the queue pair began anew.
        let start = case.number("counter") as u32 * 0x1_0001;
        polls.extend(case.number("before").wrapping_sub(start.into()).to_ne_bytes());
        for half in [case.number("entries") as u32 - 1, start, 0, 0] {
            polls.extend(half.to_ne_bytes());
        }
    }
    let bed = bed(KERNELS, &["post", "poll"]);
    let out = upload(&bed, &vec![0xff; 4 * cases.len()]);
    let entries: Vec<u8> = cases.iter().flat_map(|case| case.bytes("cqe")).collect();
    let (entries, polls) = (upload(&bed, &entries), upload(&bed, &polls));
    launch(&bed, "poll", &[&out, &entries, &polls], cases.len());
    let out = bed.read(&out, cases.len());
    let (mut arrived, mut failed) = (0, 0);
    for (case, found) in cases.iter().zip(out) {
        let valid = case.number("valid") as u32;
        // Only MLX5_CQE_REQ is a request that succeeded.
        let ok = u32::from(valid == 1 && case.number("opcode") == 0);
        let error = valid == 1 && case.text("syndrome").is_some();
        let expected = match error {
            true => 1 | (case.number("syndrome") as u32) << 8 | (case.number("vendor") as u32) << 16,
            false => valid | ok << 1,
        };
        // Other completions than a request's have no syndrome of their own: whatever is read there, they are no success.
        let known = error || ok == 1 || valid == 0;
        let mask = if known { u32::MAX } else { 3 };
        assert_eq!(found & mask, expected & mask, "{}", case.line);
        arrived += valid;
        failed += u32::from(error);
    }
    println!("{} entries, {arrived} arrived, {failed} of them errors", cases.len());
    assert!(arrived > failed && failed > 0 && (arrived as usize) < cases.len());
}

/// In a collapsed queue the one entry tells of every request: of the one whose block it names, of those before, and nothing of
/// those after.
#[test]
fn collapsed_completions_are_the_headers() {
    const FLUSHED: u32 = 5;
    let mut cases = cases("collapsed_completions_are_the_headers", 2_000);
    cases.retain(|case| case.what == "completion");
    // The entry of each case, looked at for the request that it names and its neighbours, with one and two blocks a request.
    let looks: Vec<(&Case, i64, u32)> = cases
        .iter()
        .flat_map(|case| [-300, -2, -1, 0, 1, 2, 300].map(|past| (case, past)))
        .flat_map(|(case, past)| [1, 2].map(|blocks| (case, past, blocks)))
        .collect();
    let mut polls = Vec::new();
    for (case, past, blocks) in &looks {
        let named = case.number("counter") / u64::from(*blocks);
        // Far from both ends of the NIC's count of blocks, which ends at another count of requests.
        let position = (named as i64 + past).rem_euclid(1 << 16) as u64;
        let (index, start) = index_and_start(case, position, case.number("qpn") << 16);
        polls.extend(index.to_ne_bytes());
        let flags = QUEUE_COLLAPSED | if *blocks == 2 { QUEUE_FLUSHES_READS } else { 0 };
        for half in [0, start, flags, 0] {
            polls.extend(half.to_ne_bytes());
        }
    }
    let bed = bed(KERNELS, &["post", "poll"]);
    let out = upload(&bed, &vec![0xff; 4 * looks.len()]);
    let entries: Vec<u8> = looks.iter().flat_map(|(case, ..)| case.bytes("cqe")).collect();
    let (entries, polls) = (upload(&bed, &entries), upload(&bed, &polls));
    launch(&bed, "poll", &[&out, &entries, &polls], looks.len());
    let out = bed.read(&out, looks.len());
    let (mut arrived, mut failed, mut flushed) = (0, 0, 0);
    for ((case, past, blocks), found) in looks.iter().zip(out) {
        let opcode = case.number("opcode");
        let error = case.text("syndrome").is_some();
        let (expected, mask) = match (opcode, *past) {
            // MLX5_CQE_INVALID; or the request comes after the one that is named.
            (15, _) | (_, 1..) => (0, u32::MAX),
            // MLX5_CQE_REQ
            (0, _) => (3, u32::MAX),
            (_, 0) if error => {
                failed += 1;
                let (syndrome, vendor) = (case.number("syndrome") as u32, case.number("vendor") as u32);
                (1 | syndrome << 8 | vendor << 16, u32::MAX)
            }
            // Other completions than a request's have no syndrome of their own.
            (_, 0) => (1, 3),
            _ => {
                flushed += 1;
                (1 | FLUSHED << 8, u32::MAX)
            }
        };
        assert_eq!(
            found & mask,
            expected & mask,
            "{past} past, {blocks} blocks: {}",
            case.line
        );
        arrived += u32::from(expected & 1 == 1);
    }
    println!(
        "{} looks, {arrived} arrived, {failed} errors, {flushed} before an error",
        looks.len()
    );
    assert!(arrived > failed + flushed && failed > 0 && flushed > 0 && (arrived as usize) < looks.len());
}
