//! The device library's mlx5 format against requests, doorbells and completions that the public header
//! `<infiniband/mlx5dv.h>` made of random fields: recorded ones always, fresh ones where header and compiler are there.

mod common;
#[path = "../../nic/tests/reference/mlx5_cases.rs"]
mod mlx5_cases;
#[path = "../../nic/tests/reference/mod.rs"]
mod reference;

use common::{Bed, bed};
use gpuvm_gpu::{DeviceMemory, Gpu, LaunchConfig};
use mlx5_cases::{Case, cases};

const KERNELS: &str = r#"
#include <gpuvm/gpuvm.cuh>
using namespace gpuvm;
using namespace gpuvm::detail;

struct Post {
    unsigned long long index, local, remote;
    unsigned number, rkey, lkey, bytes, write, start;
};

// A ring of four slots, a doorbell record and a doorbell each.
__global__ void post(unsigned char* rings, unsigned* records, unsigned long long* doorbells, const Post* posts, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Post p = posts[i];
    layout::QueueDesc queue{};
    queue.kind = layout::QUEUE_KIND_MLX5;
    queue.number = p.number;
    queue.send_ring = reinterpret_cast<unsigned long long>(rings + i * 256);
    queue.send_mask = 3;
    queue.send_shift = 6;
    queue.send_start = p.start;
    queue.doorbell_record = reinterpret_cast<unsigned long long>(records + 2 * i + 1);
    queue.doorbell = reinterpret_cast<unsigned long long>(doorbells + i);
    write_request(&queue, p.index, Request{p.write != 0, p.local, p.remote, p.rkey, p.lkey, p.bytes});
    announce(&queue, p.index + 1);
}

struct Poll {
    unsigned long long index;
    unsigned mask, start;
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
    // The entry of this completion is the only one that is there.
    unsigned slot = p.start + static_cast<unsigned>(p.index) & p.mask;
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

/// READs and WRITEs of one page each are what the device library posts.
#[test]
fn requests_and_doorbells_are_the_headers() {
    let mut cases = cases("requests_and_doorbells_are_the_headers", 8_000);
    cases.retain(|case| matches!(case.text("kind"), Some("read" | "write")) && case.local().len() == 1);
    // Lanes count further than the NIC does, and on when it begins anew.
    let start = |case: &Case| (case.number("remote") >> 8) as u32;
    let index = |case: &Case| {
        let position = case.number("remote") >> 20 << 16 | case.number("index");
        position.wrapping_sub(start(case).into())
    };
    let mut posts = Vec::new();
    for case in &cases {
        let (bytes, lkey, local) = case.local()[0];
        for word in [index(case), local, case.number("remote")] {
            posts.extend(word.to_ne_bytes());
        }
        let write = u32::from(case.text("kind") == Some("write"));
        let (number, rkey) = (case.number("qpn") as u32, case.number("rkey") as u32);
        for half in [number, rkey, lkey, bytes, write, start(case)] {
            posts.extend(half.to_ne_bytes());
        }
    }
    let bed = bed(KERNELS, &["post", "poll"]);
    let rings = upload(&bed, &vec![0xa5; 256 * cases.len()]);
    let records = upload(&bed, &vec![0; 8 * cases.len()]);
    let doorbells = upload(&bed, &vec![0; 8 * cases.len()]);
    let posts = upload(&bed, &posts);
    launch(&bed, "post", &[&rings, &records, &doorbells, &posts], cases.len());
    let rings = download(&bed, &rings, 256 * cases.len());
    let records = download(&bed, &records, 8 * cases.len());
    let doorbells = download(&bed, &doorbells, 8 * cases.len());
    let (mut reads, mut unchanged) = (0, 0);
    for (i, case) in cases.iter().enumerate() {
        let mut wqe = case.bytes("wqe");
        unchanged += u32::from(wqe[11] == 0x08);
        // Every request asks for a completion and for nothing else (MLX5_WQE_CTRL_CQ_UPDATE).
        wqe[11] = 0x08;
        let slot = case.number("index") as usize % 4 * 64;
        let mut expected = [0xa5; 256];
        expected[slot..slot + wqe.len()].copy_from_slice(&wqe);
        assert_eq!(rings[i * 256..(i + 1) * 256], expected, "{}", case.line);
        assert_eq!(records[i * 8..(i + 1) * 8], case.bytes("record"), "{}", case.line);
        assert_eq!(doorbells[i * 8..(i + 1) * 8], case.bytes("doorbell"), "{}", case.line);
        reads += usize::from(case.text("kind") == Some("read"));
    }
    println!(
        "{reads} READs, {} WRITEs, {unchanged} with the flags as they are",
        cases.len() - reads
    );
    assert!(reads > 0 && reads < cases.len() && unchanged > 0);
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
        polls.extend((case.number("entries") as u32 - 1).to_ne_bytes());
        polls.extend(start.to_ne_bytes());
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
