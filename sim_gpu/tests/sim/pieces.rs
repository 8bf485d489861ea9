//! Memory in pieces, placed at addresses that lanes of several simulated GPUs reach.

use std::sync::Arc;

use gpuvm_gpu::{CompileOptions, Gpu, GpuError, LaunchConfig, Piece, Source};
use gpuvm_sim_gpu::SimGpu;

fn gpu(memory: u64) -> SimGpu {
    SimGpu::builder().memory_bytes(memory).workers(1).build().unwrap()
}

/// Adds `by` to the 32-bit words at these addresses, each once.
fn add(gpu: &SimGpu, addresses: &[u64], by: u32) {
    let text = "__global__ void add(unsigned* at, unsigned by) { *at += by; }";
    let module = gpu.compile(&Source::new("add.cu", text), &["add"], &CompileOptions::default());
    let kernel = module.unwrap().kernel("add").unwrap();
    let stream = gpu.stream().unwrap();
    for address in addresses {
        let args: [&[u8]; 2] = [&address.to_ne_bytes(), &by.to_ne_bytes()];
        let launch = stream.launch(&kernel, &LaunchConfig::linear(1, 1), &args, 0, Box::new(|_| ()));
        launch.unwrap().wait(None).unwrap().unwrap();
    }
}

fn word(gpu: &SimGpu, address: u64) -> u32 {
    let mut word = [0; 4];
    gpu.read(address, &mut word).unwrap();
    u32::from_ne_bytes(word)
}

#[test]
fn pieces_of_two_gpus_lie_where_they_were_placed_and_keep_what_they_hold() {
    let (first, second) = (gpu(1 << 20), gpu(1 << 20));
    let size = first.piece_bytes();
    let space = first.reserve(3 * size, &[]).unwrap();
    let (own, theirs) = (first.piece().unwrap(), second.piece().unwrap());
    let at = |offset: u64| space.addr() + offset;
    space
        .place(&[
            (0, Arc::clone(&own)),
            (size, Arc::clone(&theirs)),
            (2 * size, Arc::clone(&own)),
        ])
        .unwrap();
    first.write(at(0), &[0; 8]).unwrap();
    first.write(at(2 * size - 8), &[0; 8]).unwrap();
    add(&first, &[at(0), at(2 * size - 4)], 1);
    add(&second, &[at(2 * size), at(2 * size - 4)], 2);
    // One piece at two addresses, and one that both GPUs changed.
    assert_eq!((word(&first, at(0)), word(&first, at(2 * size))), (3, 3));
    assert_eq!(word(&first, at(2 * size - 4)), 3);
    // What is replaced keeps what it holds while somebody has it.
    space
        .place(&[(0, Arc::clone(&theirs)), (size, Arc::clone(&own))])
        .unwrap();
    assert_eq!((word(&first, at(size - 4)), word(&first, at(size))), (3, 3));
    drop(space);
    let again = second.reserve(size, &[]).unwrap();
    again.place(&[(0, own)]).unwrap();
    assert_eq!(word(&second, again.addr()), 3);
}

#[test]
fn pieces_count_as_memory_and_come_back() {
    let gpu = gpu(1 << 20);
    let size = gpu.piece_bytes();
    let all = |gpu: &SimGpu| -> Vec<Arc<dyn Piece>> { std::iter::from_fn(|| gpu.piece().ok()).collect() };
    let pieces = all(&gpu);
    assert!(pieces.len() as u64 >= (1 << 20) / size - 1, "{} pieces", pieces.len());
    let refused = gpu.piece().err().unwrap();
    assert!(matches!(refused, GpuError::OutOfMemory { .. }), "{refused}");
    assert!(matches!(gpu.allocate(2 * size, 256), Err(GpuError::OutOfMemory { .. })));
    let count = pieces.len();
    let space = gpu.reserve(size, &[]).unwrap();
    space.place(&[(0, Arc::clone(&pieces[0]))]).unwrap();
    drop(pieces);
    // One is placed still.
    assert_eq!(all(&gpu).len(), count - 1);
    drop(space);
    assert_eq!(all(&gpu).len(), count);
    drop(gpu.allocate(2 * size, 256).unwrap());
}

#[test]
fn a_piece_is_placed_inside_the_addresses_and_host_accesses_stay_there() {
    let gpu = gpu(1 << 20);
    let size = gpu.piece_bytes();
    let space = gpu.reserve(size + 1, &[]).unwrap();
    let piece = gpu.piece().unwrap();
    for offset in [1, size / 2, 2 * size, u64::MAX] {
        let refused = space.place(&[(offset, Arc::clone(&piece))]).unwrap_err();
        assert!(matches!(refused, GpuError::BadAddress { .. }), "{refused}");
    }
    space.place(&[(size, piece)]).unwrap();
    let end = space.addr() + 2 * size;
    assert!(gpu.write(end - 4, &[1; 8]).is_err());
    gpu.write(end - 4, &[1; 4]).unwrap();
    let addr = space.addr();
    drop(space);
    assert!(gpu.read(addr + size, &mut [0; 4]).is_err());
    for bytes in [0, u64::MAX] {
        assert!(gpu.reserve(bytes, &[]).is_err());
    }
}

#[test]
fn what_is_taken_out_is_gone_from_its_addresses_and_kept_by_who_has_it() {
    let gpu = gpu(1 << 20);
    let size = gpu.piece_bytes();
    let space = gpu.reserve(3 * size, &[]).unwrap();
    let (kept, given) = (gpu.piece().unwrap(), gpu.piece().unwrap());
    let at = |offset: u64| space.addr() + offset;
    space.place(&[(0, Arc::clone(&kept)), (size, given)]).unwrap();
    gpu.write(at(size - 4), &[7; 8]).unwrap();
    // Where nothing lies there is nothing to take, and nothing to read.
    space.take(&[2 * size, u64::MAX, 5]).unwrap();
    assert!(gpu.read(at(2 * size - 4), &mut [0; 8]).is_err());
    space.take(&[0, size]).unwrap();
    for offset in [0, size - 4, size] {
        assert!(gpu.read(at(offset), &mut [0; 4]).is_err());
        assert!(gpu.write(at(offset), &[0; 4]).is_err());
    }
    space.place(&[(2 * size, kept)]).unwrap();
    let mut word = [0; 4];
    gpu.read(at(3 * size - 4), &mut word).unwrap();
    assert_eq!(word, [7; 4]);
    // The other one went when it was taken out.
    let rest: Vec<Arc<dyn Piece>> = std::iter::from_fn(|| gpu.piece().ok()).collect();
    space.take(&[2 * size]).unwrap();
    drop(rest);
    let all: Vec<Arc<dyn Piece>> = std::iter::from_fn(|| gpu.piece().ok()).collect();
    assert_eq!(all.len() as u64, (1 << 20) / size - 1);
}
