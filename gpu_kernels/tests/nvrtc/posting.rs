//! How many instructions posting a request takes.
//!
//! An instruction has 16 bytes, so the length of a kernel without branches is what one lane executes. The kernels here
//! tell the compiler which way the branches go that a queue pair and a region decide: the mlx5 format, one home and one NIC, READs that need
//! no flush.

use gpuvm_gpu::cuda::{Architecture, compile_to_cubin};
use gpuvm_gpu::{CompileOptions, Source};

const KERNELS: &str = r#"
#include <gpuvm/gpuvm.cuh>
using namespace gpuvm;
using namespace gpuvm::detail;

struct WantedSlot {
    u64 index, page_id;
    u32 frame, pins;
    const layout::VmDesc* vm;
};
// A lane's part of posting a fetch: work request and record.
__global__ void write_slots(const WantedSlot* slots) {
    WantedSlot s = slots[threadIdx.x];
    Queue q(s.vm, 0);
    __builtin_assume(q.desc->kind == layout::QUEUE_KIND_MLX5);
    __builtin_assume(q.desc->flags == 0);
    __builtin_assume(region_of(s.vm, s.page_id)->homes == 1);
    __builtin_assume(region_of(s.vm, s.page_id)->nics == 1);
    write_slot(q, s.index, layout::REQUEST_FETCH, s.page_id, s.frame, s.pins, 0);
}

struct WantedRead {
    const layout::QueueDesc* queue;
    u64 index, local, remote;
    u32 rkey, lkey, bytes;
};
// The work request alone.
__global__ void write_requests(const WantedRead* fetches) {
    WantedRead f = fetches[threadIdx.x];
    __builtin_assume(f.queue->flags == 0);
    mlx5::write_request(f.queue, f.index, Request{false, f.local, f.remote, f.rkey, f.lkey, f.bytes});
}

// A lane's arguments, as above, and an end.
__global__ void nothing(const WantedSlot* slots, u64* out) {
    WantedSlot s = slots[threadIdx.x];
    out[0] = s.index ^ s.page_id ^ s.frame ^ s.pins ^ reinterpret_cast<u64>(s.vm);
}

// The poster's part for a whole warp.
__global__ void post(const layout::VmDesc* vm, u64 id, u32 want, u32* out) {
    u32 queue;
    u64 first;
    u32 got = try_reserve_any(vm, id, false, want, &queue, &first);
    out[0] = got;
    Queue q(vm, queue);
    commit(q, first, got);
    ring(q);
}
"#;

/// Instructions of `kernel` up to its end; what follows fills the section up.
fn instructions(image: &[u8], kernel: &str) -> usize {
    let body = section(image, &format!(".text.{kernel}")).unwrap_or_else(|| panic!("no code of {kernel}"));
    const EXIT: u16 = 0x94d;
    let is_exit = |instruction: &[u8]| u16::from_le_bytes([instruction[0], instruction[1]]) & 0xfff == EXIT;
    let exits: Vec<usize> = (0..body.len() / 16).filter(|at| is_exit(&body[at * 16..])).collect();
    exits.last().expect("a kernel ends") + 1
}

/// The body of a section of a GPU binary, an ELF file of 64-bit words.
fn section<'a>(image: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let word = |at: usize, bytes: usize| {
        let field = image.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |word, byte| word << 8 | usize::from(*byte)))
    };
    let (table, count, names) = (word(0x28, 8)?, word(0x3c, 2)?, word(0x3e, 2)?);
    let names = word(table + names * 64 + 24, 8)?;
    (0..count).map(|index| table + index * 64).find_map(|header| {
        let own = image.get(names + word(header, 4)?..)?;
        let end = own.iter().position(|byte| *byte == 0)?;
        (&own[..end] == name.as_bytes()).then_some(())?;
        let start = word(header + 24, 8)?;
        image.get(start..start + word(header + 32, 8)?)
    })
}

/// `cargo test -p gpuvm-gpu --test nvrtc posting -- --nocapture` prints the numbers of docs/PERFORMANCE.md.
#[test]
fn a_request_is_posted_in_few_instructions() {
    if !crate::nvrtc() {
        return;
    }
    let source = Source::new("posting.cu", KERNELS);
    let options = CompileOptions {
        defines: vec![(
            "GPUVM_FEATURES".to_owned(),
            Some(gpuvm_layouts::FEATURE_QUEUED.to_string()),
        )],
        ..CompileOptions::default()
    };
    for architecture in [75, 80, 90] {
        let names = ["write_slots", "write_requests", "nothing", "post"];
        let cubin = compile_to_cubin(&source, &names, &options, Architecture(architecture));
        let cubin = cubin.unwrap_or_else(|error| panic!("{}", crate::chain(&error)));
        let counts: Vec<usize> = cubin
            .kernels
            .iter()
            .map(|kernel| instructions(&cubin.image, &kernel.lowered))
            .collect();
        println!("sm_{architecture}: {names:?} {counts:?}");
        let [slot, request, nothing, _] = counts[..] else {
            panic!("four kernels")
        };
        assert!(
            nothing > 8 && nothing < 24,
            "{nothing} instructions for a lane's arguments"
        );
        assert!(
            slot <= 93,
            "{slot} instructions for a request and its record, arguments included"
        );
        assert!(
            request <= 45,
            "{request} instructions for a work request, arguments included"
        );
    }
}
