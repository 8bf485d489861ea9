//! The software NIC against bare `memcpy`, and its latency.
//!
//! Goal: random READs from one queue pair on one engine thread reach 60 % of the rate of `memcpy` on the same
//! addresses at 4 KiB and 80 % at 64 KiB. No goal: the poster, which runs on another core and is in no hurry.
//!
//! `cargo bench -p gpuvm-nic --bench soft_nic`. Each sample runs both on the same addresses, one after the other; the
//! ratio printed is the median over samples. All frames are verified at the end.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use gpuvm_nic::Pages;
use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::wire::mlx5::{Operation, Segment};
use gpuvm_nic::{Access, MemoryKey, Nic, SoftNic};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const HOME_BYTES: usize = 256 << 20;
const FRAMES_BYTES: usize = 64 << 20;
/// Requests announced by one doorbell.
const BATCH: usize = 16;
const BOUND: Duration = Duration::from_secs(10);

struct Bed {
    nic: Arc<SoftNic>,
    home: Pages,
    frames: Pages,
    home_key: MemoryKey,
    frames_key: MemoryKey,
}

impl Bed {
    fn new(engines: usize) -> Self {
        let nic = Arc::new(SoftNic::builder().engines(engines).build().expect("a NIC"));
        let (home, frames) = (Pages::new(HOME_BYTES), Pages::new(FRAMES_BYTES));
        // SAFETY: `home` is ours alone until it is registered.
        let words = unsafe { std::slice::from_raw_parts_mut(home.as_ptr().cast::<u64>(), HOME_BYTES / 8) };
        words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
        // SAFETY: both live as long as the NIC, and are read by others only when no request is in flight.
        let (home_key, frames_key) = unsafe {
            (
                nic.register(home.address(), HOME_BYTES as u64, Access::REMOTE_READ)
                    .expect("home"),
                nic.register(frames.address(), FRAMES_BYTES as u64, Access::LOCAL_WRITE)
                    .expect("frames"),
            )
        };
        Bed {
            nic,
            home,
            frames,
            home_key,
            frames_key,
        }
    }

    fn poster(&self) -> Poster {
        let config = PosterConfig {
            sq_entries: 256,
            cq_entries: 256,
            collapsed: false,
        };
        Poster::loopback(self.nic.clone(), config).expect("a queue pair")
    }

    /// READs page `from` of the home into frame `to`.
    fn post(&self, poster: &mut Poster, bytes: usize, from: usize, to: usize) {
        let remote = self.home.address() + (from * bytes) as u64;
        let address = self.frames.address() + (to * bytes) as u64;
        let operation = Operation::Read {
            remote,
            rkey: self.home_key.rkey,
        };
        let segment = Segment::Data {
            bytes: bytes as u32,
            lkey: self.frames_key.lkey,
            address,
        };
        poster
            .post(operation, &[segment], Flags::SIGNALLED)
            .expect("room in the send queue");
    }

    fn read_all(&self, poster: &mut Poster, bytes: usize, moves: &[(u32, u32)]) -> Duration {
        let start = Instant::now();
        for batch in moves.chunks(BATCH) {
            while poster.in_flight() + batch.len() > 256 {
                wait(poster);
            }
            for (from, to) in batch {
                self.post(poster, bytes, *from as usize, *to as usize);
            }
            poster.ring();
        }
        while poster.in_flight() > 0 {
            wait(poster);
        }
        start.elapsed()
    }

    fn copy_all(&self, bytes: usize, moves: &[(u32, u32)]) -> Duration {
        let start = Instant::now();
        for (from, to) in moves {
            // SAFETY: within `home` and `frames`, which no request uses now.
            unsafe {
                let from = self.home.as_ptr().add(*from as usize * bytes);
                let to = self.frames.as_ptr().add(*to as usize * bytes);
                std::ptr::copy_nonoverlapping(black_box(from), black_box(to), bytes);
            }
        }
        start.elapsed()
    }

    /// Checks each frame that the last of `moves` into it has filled.
    fn verify(&self, bytes: usize, moves: &[(u32, u32)]) -> usize {
        let mut last = vec![None; FRAMES_BYTES / bytes];
        moves
            .iter()
            .for_each(|(from, to)| last[*to as usize] = Some(*from as usize));
        // SAFETY: no request is in flight.
        let words = unsafe { std::slice::from_raw_parts(self.frames.as_ptr().cast::<u64>(), FRAMES_BYTES / 8) };
        for (to, from) in last
            .iter()
            .enumerate()
            .filter_map(|(to, from)| from.map(|from| (to, from)))
        {
            for i in 0..bytes / 8 {
                assert_eq!(
                    words[to * bytes / 8 + i],
                    pattern(from * bytes / 8 + i),
                    "frame {to} word {i}"
                );
            }
        }
        last.iter().flatten().count()
    }

    fn wipe(&self) {
        // SAFETY: no request is in flight, nothing else looks at the frames.
        unsafe { std::ptr::write_bytes(self.frames.as_ptr(), 0xa5, FRAMES_BYTES) };
    }
}

fn pattern(word: usize) -> u64 {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995
}

fn wait(poster: &mut Poster) {
    let start = Instant::now();
    let mut turns = 0u32;
    loop {
        if let Some(completion) = poster.poll() {
            assert!(completion.is_success(), "{completion}");
            return;
        }
        assert!(start.elapsed() < BOUND, "no completion within {BOUND:?}");
        // Where other work shares the cores, a poster that only spins keeps the engine from running.
        turns += 1;
        if turns.is_multiple_of(256) {
            std::thread::yield_now()
        } else {
            std::hint::spin_loop()
        }
    }
}

/// The engine's cost alone: one thread posts and steps a NIC in manual mode, so that no other core has a part in it.
/// Returns the median ratio of `memcpy`'s time to the time of the same READs.
fn alone(bytes: usize, moves: &[(u32, u32)]) -> f64 {
    let bed = Bed::new(0);
    let mut poster = bed.poster();
    bed.copy_all(bytes, moves);
    let mut ratios: Vec<f64> = (0..15)
        .map(|_| {
            let copied = bed.copy_all(bytes, moves);
            bed.wipe();
            let start = Instant::now();
            for batch in moves.chunks(BATCH) {
                for (from, to) in batch {
                    bed.post(&mut poster, bytes, *from as usize, *to as usize);
                }
                poster.ring();
                while bed.nic.step() {}
                (0..batch.len()).for_each(|_| wait(&mut poster));
            }
            let read = start.elapsed();
            bed.verify(bytes, moves);
            copied.as_secs_f64() / read.as_secs_f64()
        })
        .collect();
    median(&mut ratios)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn throughput(criterion: &mut Criterion, bed: &Bed, bytes: usize, goal: f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let count = (256 << 20) / bytes / 4;
    let moves: Vec<(u32, u32)> = (0..count)
        .map(|_| {
            let from = rng.random_range(0..HOME_BYTES / bytes) as u32;
            (from, rng.random_range(0..FRAMES_BYTES / bytes) as u32)
        })
        .collect();
    let mut poster = bed.poster();
    // Touch all memory and warm both ways up.
    bed.copy_all(bytes, &moves);
    bed.wipe();
    bed.read_all(&mut poster, bytes, &moves);
    let verified = bed.verify(bytes, &moves);
    let ratios = RefCell::new(Vec::new());
    let mut group = criterion.benchmark_group("random_read");
    group
        .throughput(Throughput::Bytes((bytes * count) as u64))
        .sample_size(20);
    group.bench_function(format!("soft_nic/{bytes}"), |bencher| {
        bencher.iter_custom(|turns| {
            let mut sum = Duration::ZERO;
            for _ in 0..turns {
                let copied = bed.copy_all(bytes, &moves);
                let read = bed.read_all(&mut poster, bytes, &moves);
                ratios.borrow_mut().push(copied.as_secs_f64() / read.as_secs_f64());
                sum += read;
            }
            sum
        });
    });
    group.bench_function(format!("memcpy/{bytes}"), |bencher| {
        bencher.iter_custom(|turns| (0..turns).map(|_| bed.copy_all(bytes, &moves)).sum());
    });
    group.finish();
    let ratio = median(&mut ratios.borrow_mut());
    let verdict = if ratio >= goal { "reached" } else { "MISSED" };
    println!(
        "random READ {bytes} B: {:.0} % of memcpy (goal {:.0} %: {verdict}); {count} requests a turn, {verified} frames verified",
        ratio * 100.0,
        goal * 100.0,
    );
    println!(
        "  the same on one core, posting and stepping by turns: {:.0} % of memcpy",
        alone(bytes, &moves) * 100.0
    );
}

fn latency(bed: &Bed, name: &str, rounds: usize, pause: Duration) {
    let mut poster = bed.poster();
    let mut times: Vec<f64> = (0..rounds)
        .map(|round| {
            std::thread::sleep(pause);
            bed.post(&mut poster, 4096, round % 1000, round % 500);
            let start = Instant::now();
            poster.ring();
            wait(&mut poster);
            start.elapsed().as_nanos() as f64
        })
        .collect();
    let p50 = median(&mut times);
    println!(
        "doorbell to completion, READ of 4 KiB, {name}: p50 {p50:.0} ns, p99 {:.0} ns",
        times[rounds * 99 / 100]
    );
}

fn main() {
    let bed = Bed::new(1);
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(4))
        .configure_from_args();
    throughput(&mut criterion, &bed, 4096, 0.6);
    throughput(&mut criterion, &bed, 65536, 0.8);
    latency(&bed, "engine awake", 20_000, Duration::ZERO);
    latency(&bed, "engine asleep", 500, Duration::from_millis(2));
    let addr = bed.poster().doorbell();
    let start = Instant::now();
    (0..1_000_000).for_each(|_| bed.nic.doorbell_written(black_box(addr)));
    println!("doorbell_written: {:.1} ns", start.elapsed().as_nanos() as f64 / 1e6);
    println!("violations: {:?}", bed.nic.violations());
    criterion.final_summary();
}
