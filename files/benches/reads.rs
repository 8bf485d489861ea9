//! Random and sequential reads of a file by way of a tier of a sixteenth of it, and bare reads at the same depth.
//! `GPUVM_BENCH_DIR` names a folder on the disk to measure; default: the system's for temporary files.

use std::{collections::VecDeque, hint::black_box, path::Path, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gpuvm_files::{File, Got, How, Tier, TierOptions, read_bare};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

const FILE_BYTES: u64 = 512 << 20;
const READS: usize = 16384;
const DEPTH: u32 = 128;

/// Asks for each block, `DEPTH` at a time, as a NIC does for its queue pairs.
fn by_tier(file: &File, tier: &Tier, offsets: &[u64], bytes: u64) -> u64 {
    let (mut waiting, mut next) = (VecDeque::new(), offsets.iter());
    let (mut sum, mut pieces) = (0u64, Vec::new());
    loop {
        while waiting.len() < DEPTH as usize
            && let Some(&offset) = next.next()
        {
            file.expect(offset, bytes);
            waiting.push_back(offset);
        }
        if waiting.is_empty() {
            return sum;
        }
        tier.poll();
        waiting.retain(|&offset| {
            if file.acquire(offset, bytes, How::Read, &mut pieces).expect("a read") == Got::Wait {
                return true;
            }
            sum = sum.wrapping_add(pieces[0].address);
            file.release(&pieces, How::Read);
            pieces.clear();
            false
        });
    }
}

fn reads(c: &mut Criterion) {
    let dir = std::env::var_os("GPUVM_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let file = tempfile::NamedTempFile::new_in(dir).expect("a file");
    std::fs::write(file.path(), vec![7; FILE_BYTES as usize]).expect("room for the file");
    file.as_file().sync_all().expect("a file that is stored");
    for bytes in [4u64 << 10, 64 << 10] {
        let mut random: Vec<u64> = (0..FILE_BYTES / bytes).map(|block| block * bytes).collect();
        let sequential = random.clone();
        random.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
        for (name, mut offsets) in [("random", random), ("sequential", sequential)] {
            offsets.truncate(READS);
            one(c, file.path(), name, bytes, &offsets);
        }
    }
}

fn one(c: &mut Criterion, path: &Path, name: &str, bytes: u64, offsets: &[u64]) {
    let mut group = c.benchmark_group(format!("files/{name}"));
    group.throughput(Throughput::Bytes(offsets.len() as u64 * bytes));
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    group.bench_function(BenchmarkId::new("tier", bytes), |b| {
        b.iter_batched(
            || {
                let options = TierOptions::default().block(bytes);
                let tier = Tier::new(FILE_BYTES / 16, options).expect("a tier");
                let file = tier.open(path, false).expect("the file");
                (tier, file)
            },
            |(tier, file)| black_box(by_tier(&file, &tier, offsets, bytes)),
            criterion::BatchSize::PerIteration,
        );
    });
    // Neither O_DIRECT nor io_uring is everywhere.
    if let Err(error) = read_bare(path, &offsets[..1], bytes as u32, 1, |_, _| {}) {
        eprintln!("no bare reads here: {error}");
        return group.finish();
    }
    group.bench_function(BenchmarkId::new("bare", bytes), |b| {
        b.iter(|| {
            read_bare(path, offsets, bytes as u32, DEPTH, |_, page| {
                black_box(page[0]);
            })
            .expect("reads")
        });
    });
    group.finish();
}

criterion_group!(benches, reads);
criterion_main!(benches);
